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
from carousel.memory.replacement import Replacement
from carousel.memory.sizes import publish_every_for
from carousel.memory.slab import Slab
from carousel.memory.swapper import CHUNK, Request, Swap, Swapper
from carousel.memory.worker import SwapWorker
from carousel.memory.write_back import WriteBack
from carousel.storage.tier import StorageTier

__all__ = ["STALENESS_BINS", "SwapEngine"]

Ints = npt.NDArray[np.int64]

STALENESS_BINS = 64
"""Bins of the staleness histogram: swaps published after 0, 1, ... steps, the last and beyond."""


class SwapEngine:
    """Swaps samples between slots and storage, and counts every request by its outcome.

    One thread trains: it asks (`request`), says where a step ends (`step`), and sees slots change
    only there. A worker thread draws, saves and reads. In sync mode there is no thread: `step`
    does the whole swap, and the same seed gives the same swaps. At most one request a slot is in
    flight, and at most `queue_rows` in all. After Lee et al., CarM (DAC 2022), section 3.

    Args:
        slab: the slots.
        tier: where replacements come from and what leaves is kept.
        replacement: the rule that draws.
        rng: chance for the draws.
        sync: swap inline at `step`.
        publish_every: steps between two publications; None means 4 for memories of at least 1000
            slots, else 1. Sync mode publishes at every step.
        queue_rows: most requests in flight; more are dropped and counted.

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
        queue_rows: int = 1024,
    ) -> None:
        def make_swapper(pause: Callable[[float], object]) -> Swapper:
            return Swapper(slab, tier, replacement, rng, pause)

        self._slab = slab
        self._queue_rows = queue_rows
        self._publish_every = publish_every or publish_every_for(slab.slots, sync=sync)
        self._few_rows = slab.spares // 2
        self._busy = np.zeros(slab.slots, np.bool_)
        self._in_flight = 0
        self._tally = Tally()
        self._steps = 0
        self._closed = False
        self._worker = None if sync else SwapWorker(slab, make_swapper)
        self._swapper = self._worker.swapper if self._worker else make_swapper(time.sleep)
        self._keeper = WriteBack(slab, tier)
        self._waiting: deque[Request] = deque()
        self._error: Exception | None = None
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
        return self._worker.failures if self._worker else int(self._error is not None)

    @property
    def written_back(self) -> int:
        """Residents that were saved again because storage had evicted them."""
        return self._swapper.write_back.written + self._keeper.written

    @property
    def lost(self) -> int:
        """Residents that left and that storage had no room for."""
        return self._swapper.write_back.lost + self._keeper.lost

    def request(self, slots: Ints, generations: Ints) -> None:
        """Ask for other samples in (n,) slots; never waits, and counts what it cannot take.

        Args:
            slots: (n,) slots that may change.
            generations: (n,) their generations when the samples were gathered.
        """
        self._tally.requested += len(slots)
        slots, generations = self._acceptable(slots, generations)
        if len(slots) == 0:
            return
        self._busy[slots] = True
        self._in_flight += len(slots)
        request = Request(slots, generations, self._slab.labels[slots], self._steps)
        if self._worker is not None:
            self._worker.submit(request)
        else:
            self._waiting.extend(request.pieces(max(1, min(CHUNK, self._slab.spares))))

    def step(self) -> None:
        """The end of a training step, where finished swaps become visible."""
        self._steps += 1
        if self._worker is None:
            self._swap_inline()
        elif self._steps % self._publish_every == 0 or self._slab.free_rows < self._few_rows:
            self._publish_finished()

    def save_unstored(self, slots: Ints) -> None:
        """Queue the samples of (n,) slots that storage does not hold, before they are overwritten.

        On the training thread, where the admission rule gives slots to others; may block while
        the tier's queue is full, as saving does.
        """
        self._keeper.save(slots, self._slab.generations[slots])

    def drain(self, timeout: float | None = None) -> None:
        """Wait for all requests in flight and publish them; a worker's error stays for `flush`.

        Raises:
            TimeoutError: not done within `timeout` seconds.
        """
        if self._worker is None:
            self._swap_inline()
            return
        deadline = None if timeout is None else time.monotonic() + timeout
        while self._in_flight:
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                self._publish(self._worker.finished.get(timeout=left))
            except queue.Empty:
                raise TimeoutError(f"{self._in_flight} swaps are still in flight") from None
            self._wake_starved()

    def flush(self, timeout: float | None = None) -> None:
        """`drain`, count what was lost, and raise what the worker met.

        Raises:
            TimeoutError: not done within `timeout` seconds.
            WorkerError: the worker met an unexpected error since the last call.
        """
        self.drain(timeout)
        self._swapper.release_settled()
        for write_back in (self._swapper.write_back, self._keeper):
            write_back.settle()
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
        for request in self._waiting:
            self._publish(_cancelled(request))
        self._waiting.clear()
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

    def _acceptable(self, slots: Ints, generations: Ints) -> tuple[Ints, Ints]:
        fresh = self._slab.generations[slots] == generations
        free = ~self._busy[slots]
        room = self._queue_rows - self._in_flight
        repeats = len(set(slots.tolist())) < len(slots)
        if repeats or len(slots) > room or self._closed or not (fresh & free).all():
            return self._sift(slots, generations, fresh, free, room)
        return slots, generations

    def _sift(
        self,
        slots: Ints,
        generations: Ints,
        fresh: npt.NDArray[np.bool_],
        free: npt.NDArray[np.bool_],
        room: int,
    ) -> tuple[Ints, Ints]:
        if self._closed:
            self._tally.add(Outcome.CANCELLED, len(slots))
            return slots[:0], generations[:0]
        first = np.zeros(len(slots), np.bool_)
        good = np.flatnonzero(fresh & free)
        first[good[np.unique(slots[good], return_index=True)[1]]] = True
        taken = np.flatnonzero(first)[:room]
        self._tally.add(Outcome.STALE, int((~fresh).sum()))
        self._tally.add(Outcome.DUPLICATE, int((fresh & ~first).sum()))
        self._tally.add(Outcome.DROPPED_FULL, int(first.sum()) - len(taken))
        return slots[taken], generations[taken]

    def _swap_inline(self) -> None:
        while self._waiting:
            swap = Swap.of(self._waiting.popleft())
            try:
                self._swapper.choose(swap)
                rows = self._slab.take_spares(len(swap.done))
                if rows is not None:
                    self._swapper.fill(swap, rows)
            except Exception as error:
                self._error = self._error or error
                self._swapper.abandon(swap)
            self._publish(swap)

    def _publish_finished(self) -> None:
        if self._worker is None:
            return
        while not self._worker.finished.empty():
            self._publish(self._worker.finished.get())
        self._wake_starved()

    def _wake_starved(self) -> None:
        if self._worker is not None and self._worker.starved:
            self._worker.spares_came()

    def _publish(self, swap: Swap) -> None:
        request = swap.request
        done = swap.done
        if len(done):
            done = self._still_wanted(swap, done)
            self._slab.publish(
                request.slots[done], swap.rows[done], swap.ids[done], swap.tasks[done]
            )
            swap.rows[done] = -1
            age = min(self._steps - request.asked_at, STALENESS_BINS - 1)
            self.staleness[age] += len(done)
        if len(done) < len(swap):
            self._slab.give_back(swap.rows[swap.rows >= 0])
        self._swapper.settled(swap.ids)
        self._busy[request.slots] = False
        self._in_flight -= len(swap)
        self._tally.add_all(swap.outcomes)

    def _still_wanted(self, swap: Swap, done: Ints) -> Ints:
        """Drops swaps whose slot changed meanwhile, or whose sample was admitted elsewhere."""
        slab, request = self._slab, swap.request
        wanted = slab.generations[request.slots[done]] == request.generations[done]
        wanted &= ~slab.resident(swap.ids[done])
        if wanted.all():
            return done
        kept: Ints = done[wanted]
        swap.outcomes[done[~wanted]] = Outcome.STALE
        return kept

    def _raise_error(self) -> None:
        error = self._worker.take_error() if self._worker else self._error
        self._error = None
        if error is not None:
            kind = type(error).__name__
            raise WorkerError(f"the swap worker failed: {kind}: {error}") from error


def _cancelled(request: Request) -> Swap:
    swap = Swap.of(request)
    swap.outcomes[:] = Outcome.CANCELLED
    return swap
