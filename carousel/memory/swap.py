"""The swap engine: requests go out, replacements come in, training never waits."""

from __future__ import annotations

import queue
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from carousel.errors import WorkerError
from carousel.memory.counters import Outcome, SwapCounters, Tally
from carousel.memory.joining import Joining
from carousel.memory.replacement import Replacement
from carousel.memory.request import Asked, Request, Sealed, Swap
from carousel.memory.sizes import publish_every_for
from carousel.memory.slab import Slab
from carousel.memory.swapper import Swapper
from carousel.memory.worker import CHUNK, SwapWorker
from carousel.memory.write_back import WriteBack
from carousel.storage.tier import StorageTier

__all__ = ["STALENESS_BINS", "SwapEngine"]

Ints = npt.NDArray[np.int64]

_MOST_QUEUED = 1024

STALENESS_BINS = 64
"""Bins of the staleness histogram: swaps published after 0, 1, ... steps, the last and beyond."""


class SwapEngine:
    """Swaps samples between slots and storage, and counts every request by its outcome.

    One thread trains: it asks (`request`), says where a step ends (`step`), and sees slots change
    only there. A worker thread draws, saves and reads. In sync mode there is no thread: `step`
    does the whole swap, and the same seed gives the same swaps. At most one request a slot is in
    flight, and about `queue_rows` in all. Small requests of up to 4 steps go to the worker
    together, see `Joining`. After Lee et al., CarM (DAC 2022), section 3.

    Args:
        slab: the slots.
        tier: where replacements come from and what leaves is kept.
        replacement: the rule that draws.
        rng: chance for the draws.
        sync: swap inline at `step`.
        publish_every: steps between two publications; None means 4 for memories of at least 1000
            slots, else 1. Sync mode publishes at every step.
        queue_rows: requests are dropped, and counted, while so many are in flight; None means
            one for every slot, but at most 1024.

    Attributes:
        staleness: (64,) int64, swaps by the number of steps from request to publication.
    """

    def __init__(
        self,
        slab: Slab,
        tier: StorageTier,
        replacement: Replacement,
        *,
        rng: np.random.Generator,
        sync: bool = False,
        publish_every: int | None = None,
        queue_rows: int | None = None,
    ) -> None:
        def make_swapper(pause: Callable[[float], object]) -> Swapper:
            return Swapper(slab, tier, replacement, rng, pause)

        self._slab = slab
        self._queue_rows = queue_rows or min(_MOST_QUEUED, slab.slots)
        self._publish_every = publish_every or publish_every_for(slab.slots, sync=sync)
        self._few_rows = slab.spares // 2
        self._in_flight = 0
        self._tally = Tally()
        self._steps = 0
        self._closed = False
        self._worker = None if sync else SwapWorker(slab, make_swapper)
        self._swapper = self._worker.swapper if self._worker else make_swapper(time.sleep)
        self._keeper = WriteBack(slab, tier)
        self._waiting: deque[Request] = deque()
        self._joining = Joining(slab.slots)
        self._error: Exception | None = None
        self._failures = 0
        self.staleness: Ints = np.zeros(STALENESS_BINS, np.int64)

    @property
    def counters(self) -> SwapCounters:
        """Requests by outcome, now."""
        return self._tally.counters()

    @property
    def in_flight(self) -> int:
        """Requests that are not published or given up yet."""
        return self._in_flight

    @property
    def ram_only(self) -> bool:
        """True while storage is taken to be broken: nothing is swapped but a probe now and then."""
        return self._swapper.breaker.is_open

    @property
    def worker_failures(self) -> int:
        """Unexpected errors that the worker survived."""
        return self._worker.failures if self._worker else self._failures

    @property
    def written_back(self) -> int:
        """Residents that were saved again because storage had evicted them."""
        return self._swapper.write_back.written + self._keeper.written

    @property
    def lost(self) -> int:
        """Residents that left and that storage had no room for."""
        return self._swapper.write_back.lost + self._keeper.lost

    @property
    def storage_full(self) -> bool:
        """Whether storage refused samples, saved by whomever, for want of room."""
        return self._swapper.write_back.full or self._keeper.full

    def request(
        self,
        slots: Ints,
        generations: Ints,
        labels: Ints,
        pick: Callable[[], Ints] | None = None,
        size: int | None = None,
    ) -> None:
        """Ask for other samples in slots; never waits, and counts what it cannot take.

        The arrays are used later and must not change.

        Args:
            slots: (n,) slots that may change.
            generations: (n,) theirs when the samples were gathered.
            labels: (n,) the classes of these samples.
            pick: chooses which of the n rows are meant; the worker runs it. None means all.
            size: how many rows `pick` chooses.
        """
        rows = len(slots) if size is None else size
        self._tally.requested += rows
        if self._closed:
            self._tally.add(Outcome.CANCELLED, rows)
        elif self._in_flight >= self._queue_rows:
            self._tally.add(Outcome.DROPPED_FULL, rows)
        elif rows:
            asked = Asked(slots, generations, labels, self._steps, pick, rows)
            if self._worker is None:
                self._waiting.extend(self._picked(asked))
            else:
                self._joining.add(asked)
                self._send_if_due(self._worker, self._steps)
            self._in_flight += rows

    def step(self) -> None:
        """The end of a training step, where finished swaps become visible."""
        self._steps += 1
        if self._worker is None:
            self._swap_inline()
            return
        if self._steps % self._publish_every == 0 or self._slab.free_rows < self._few_rows:
            self._publish_finished()
        if self._joining.size:  # the step that would have sent it asked for nothing
            self._send_if_due(self._worker, self._steps - 1)

    def save_unstored(self, slots: Ints) -> None:
        """Queue the samples of (n,) slots that storage does not hold, before they are overwritten.

        On the training thread, where the admission rule gives slots to others; may block while
        the tier's queue is full, as saving does.
        """
        self._keeper.save(slots, self._slab.generations[slots])

    def drain(self, timeout: float | None = None) -> None:
        """Wait for all requests in flight, publish them, and count what was lost.

        Raises:
            TimeoutError: not done within `timeout` seconds.
            StorageError: what left could not be saved, for another reason than room.
        """
        if self._worker is None:
            self._swap_inline()
        else:
            self._send(self._worker)
            self._await(self._worker, timeout)
        self._swapper.release_settled()
        for write_back in (self._swapper.write_back, self._keeper):
            write_back.settle()

    def flush(self, timeout: float | None = None) -> None:
        """`drain`, and raise what the worker met.

        Raises:
            TimeoutError: not done within `timeout` seconds.
            WorkerError: the worker met an unexpected error since the last call.
        """
        self.drain(timeout)
        self._raise_error()

    def close(self, timeout: float = 30.0) -> None:
        """Cancel what is queued, publish what is finished, join the worker; may be called twice.

        Raises:
            WorkerError: the worker met an error, or is blocked in storage for longer than
                `timeout` seconds.
        """
        if self._closed:
            return
        self._closed = True
        self._cancel_waiting()
        if self._worker is None:
            self._swapper.release_settled()
            self._raise_error()
            return
        ended = self._worker.stop(timeout)
        self._publish_finished()
        if not ended:
            self._tally.add(Outcome.CANCELLED, self._in_flight)
            self._in_flight = 0
            raise WorkerError(f"the swap worker is still blocked in storage after {timeout:g} s")
        self._swapper.release_settled()
        self._raise_error()

    def state_dict(self) -> dict[str, Any]:
        """Counters, steps and staleness; what is in flight counts as cancelled."""
        counts = self.counters.as_dict()
        counts["cancelled"] += self._in_flight
        return {
            "swaps": counts,
            "steps": self._steps,
            "staleness": torch.from_numpy(self.staleness.copy()),
            "written_back": self.written_back,
            "lost": self.lost,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on counting from a `state_dict`; nothing may be in flight."""
        self._tally.load(state["swaps"])
        self._steps = int(state["steps"])
        self.staleness[:] = state["staleness"].numpy()
        self._keeper.written = int(state["written_back"])
        self._keeper.lost = int(state["lost"])

    def _send_if_due(self, worker: SwapWorker, step: int) -> None:
        if self._joining.is_due(step):
            self._send(worker)

    def _send(self, worker: SwapWorker) -> None:
        if self._joining.size:
            worker.submit(self._joining.take())

    def _cancel_waiting(self) -> None:
        """Give up what nobody works on yet."""
        rows = self._joining.size + sum(map(len, self._waiting))
        self._joining.take()
        self._waiting.clear()
        if rows:
            self._publish(Sealed.cancelled(rows))

    def _picked(self, asked: Asked) -> list[Request]:
        try:
            return list(asked.picked().pieces(max(1, min(CHUNK, self._slab.spares))))
        except BaseException:
            self._tally.add(Outcome.CANCELLED, asked.size)
            raise

    def _swap_inline(self) -> None:
        while self._waiting:
            swap = Swap.of(self._waiting.popleft())
            try:
                self._swapper.choose(swap)
                rows = self._slab.take_spares(len(swap.done))
                assert rows is not None  # nothing else holds any
                self._swapper.fill(swap, rows)
            except Exception as error:
                self._failures += 1
                self._error = self._error or error
                self._swapper.abandon(swap)
            except BaseException:  # Ctrl-C: the engine goes on from here when it is used again
                self._swapper.abandon(swap)
                raise
            finally:
                self._publish(swap.sealed(self._slab))

    def _await(self, worker: SwapWorker, timeout: float | None) -> None:
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._in_flight:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                self._publish(worker.finished.get(timeout=left))
            except queue.Empty:
                raise TimeoutError(f"{self._in_flight} swaps are still in flight") from None
            self._wake_starved()

    def _publish_finished(self) -> None:
        if self._worker is None:
            return
        while not self._worker.finished.empty():
            self._publish(self._worker.finished.get())
        self._wake_starved()

    def _wake_starved(self) -> None:
        if self._worker is not None and self._worker.starved:
            self._worker.spares_came()

    def _publish(self, swap: Sealed) -> None:
        slab = self._slab
        if len(swap.coming):
            if swap.epoch != slab.residents.epoch:
                swap = self._still_wanted(swap)
            slab.publish(swap.slots, swap.columns, swap.leaving, swap.coming, swap.freed_rows)
            for asked_at in set(swap.asked_at):
                age = min(self._steps - asked_at, STALENESS_BINS - 1)
                self.staleness[age] += swap.asked_at.count(asked_at)
        if swap.unused_rows:
            slab.give_back(swap.unused_rows)
        self._swapper.settled(swap.drawn, swap.claimed)
        self._in_flight -= swap.size
        self._tally.add_all(swap.counts)

    def _still_wanted(self, swap: Sealed) -> Sealed:
        """Without rows whose slot changed meanwhile, or whose sample was admitted elsewhere."""
        slab = self._slab
        unwanted = slab.generations[swap.slots] != swap.generations
        unwanted |= slab.resident(swap.columns[1])
        return swap.without(unwanted) if unwanted.any() else swap

    def _raise_error(self) -> None:
        error = self._worker.take_error() if self._worker else self._error
        self._error = None
        if error is not None:
            kind = type(error).__name__
            raise WorkerError(f"the swap worker failed: {kind}: {error}") from error
