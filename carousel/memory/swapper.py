"""The work of a swap: choose a replacement, make sure nothing is lost, read it into a spare row.

Nothing here touches a slot. `SwapEngine` runs it in its worker thread, or inline in sync mode,
and publishes what comes out.
"""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from carousel.errors import StorageIOError
from carousel.memory.breaker import Breaker
from carousel.memory.counters import Outcome
from carousel.memory.reader import RecordReader
from carousel.memory.replacement import NO_CANDIDATE, Replacement
from carousel.memory.request import Swap
from carousel.memory.residents import Residents
from carousel.memory.slab import Slab
from carousel.memory.write_back import WriteBack
from carousel.storage.tier import ReadStatus, StorageTier

__all__ = ["Swapper"]

Ints = npt.NDArray[np.int64]

_REDRAWS = 3
_SLOW_SECONDS = 50e-6
"""A sample that takes longer came from the medium, not from the page cache."""
_COLD_CHUNKS = 32
"""Chunks to be read ahead after a slow one; hints cost as much as warm reads do."""
_MOST_UNFIT = 4096


class Swapper:
    """Draws, saves and reads for one request at a time; called by one thread at a time.

    Args:
        slab: whose spare rows are filled.
        tier: where replacements come from.
        replacement: the rule that draws them.
        rng: chance for the draws.
        pause: sleeps for seconds between retries; may return early.

    Attributes:
        busy: (slots,) bool, slots with a request in flight; cleared by `release_settled`.
        breaker: whether storage is taken to be broken.
        write_back: saves what leaves.
    """

    def __init__(
        self,
        slab: Slab,
        tier: StorageTier,
        replacement: Replacement,
        rng: np.random.Generator,
        pause: Callable[[float], object],
    ) -> None:
        self._slab = slab
        self._tier = tier
        self._replacement = replacement
        self._rng = rng
        self._reader = RecordReader(tier, slab.schema, pause)
        self._cold_for = _COLD_CHUNKS
        self._taken = _Taken(slab.residents)
        self._mark = np.zeros(slab.slots, np.int64)
        self._settled: deque[tuple[Ints, Ints]] = deque()
        self.busy = np.zeros(slab.slots, np.bool_)
        self.breaker = Breaker()
        self.write_back = WriteBack(slab, tier)

    def choose(self, swap: Swap) -> None:
        """Claim the slots that may change, draw a replacement for each, start reading ahead."""
        swap.epoch = self._slab.residents.epoch
        self.release_settled()
        self._claim(swap)
        if not self.breaker.allows():
            swap.outcomes[swap.claimed] = Outcome.IO_ERROR
            return
        self._draw(swap, swap.claimed)
        if self._cold_for:
            self._tier.prefetch(swap.ids[swap.done])

    def fill(self, swap: Swap, rows: Ints) -> None:
        """Read the chosen samples into spare rows; the outcomes say which are whole.

        Args:
            swap: from `choose`.
            rows: a spare row for each position of ``swap.done``.
        """
        positions = swap.done
        swap.rows[positions] = rows
        if len(positions) == 0 or not self._save_leaving(swap, positions):
            return
        damaged = np.zeros(len(swap), np.bool_)
        for _ in range(_REDRAWS + 1):
            positions, statuses = self._read(swap, positions)
            if len(positions) == 0:
                break
            damaged[positions] |= statuses != ReadStatus.MISSING
            self._redraw(swap, positions, statuses)
            positions = positions[swap.outcomes[positions] == Outcome.DONE]
        swap.outcomes[positions] = Outcome.NO_CANDIDATE
        # A damaged record that nothing replaced is what the user must hear of.
        swap.outcomes[damaged & (swap.outcomes == Outcome.NO_CANDIDATE)] = Outcome.CORRUPT
        done = swap.done
        swap.tasks[done] = self._tier.tasks_of(swap.ids[done])

    def settled(self, ids: Ints, slots: Ints) -> None:
        """Say that these ids are resident or given up, and these slots changed or free.

        Any thread may call it, after the slots changed.
        """
        self._settled.append((ids, slots))

    def release_settled(self) -> None:
        """Let what is settled be drawn, evicted and asked for again, but for ids now resident."""
        settled = [self._settled.popleft() for _ in range(len(self._settled))]
        self._slab.residents.refresh()
        if settled:
            ids, slots = zip(*settled, strict=True)
            self.busy[np.concatenate(slots)] = False
            self._release(np.concatenate(ids))

    def abandon(self, swap: Swap) -> None:
        """Give a whole request up; never raises."""
        swap.outcomes[:] = Outcome.CANCELLED
        with contextlib.suppress(BaseException):
            self._release(swap.ids)
        swap.ids[:] = NO_CANDIDATE

    def _claim(self, swap: Swap) -> None:
        """One request a slot: others are duplicates; a slot that changed is stale."""
        request = swap.request
        order = np.arange(len(swap))
        self._mark[request.slots] = order
        first = self._mark[request.slots] == order
        fresh = self._slab.generations[request.slots] == request.generations
        swap.outcomes[:] = np.where(fresh, Outcome.DUPLICATE, Outcome.STALE)
        swap.claimed = np.flatnonzero(fresh & first & ~self.busy[request.slots])
        self.busy[request.slots[swap.claimed]] = True
        swap.outcomes[swap.claimed] = Outcome.DONE

    def _draw(self, swap: Swap, positions: Ints) -> None:
        labels = swap.request.labels[positions]
        ids = self._replacement.draw(self._tier, labels, self._taken, self._rng)
        swap.ids[positions] = ids
        swap.outcomes[positions[ids == NO_CANDIDATE]] = Outcome.NO_CANDIDATE
        found = ids[ids != NO_CANDIDATE]
        self._taken.coming.update(found.tolist())
        self._tier.pin(found)

    def _save_leaving(self, swap: Swap, positions: Ints) -> bool:
        request = swap.request
        try:
            self.write_back.save(request.slots[positions], request.generations[positions])
        except (OSError, StorageIOError) as error:
            self.write_back.error = self.write_back.error or error
            self._fail(swap, positions)
            return False
        return True

    def _read(self, swap: Swap, positions: Ints) -> tuple[Ints, npt.NDArray[np.uint8]]:
        """Read; returns the positions whose record is unusable, and why."""
        start = time.perf_counter()
        statuses = self._reader.read(swap.ids[positions], self._slab.arrays, swap.rows[positions])
        slow = time.perf_counter() - start > _SLOW_SECONDS * len(positions)
        self._cold_for = _COLD_CHUNKS if slow else max(0, self._cold_for - 1)
        failed = statuses == ReadStatus.IO_ERROR
        if failed.any():
            self._fail(swap, positions[failed])
        else:
            self.breaker.succeeded()
        unusable = ~failed & (statuses != ReadStatus.OK)
        return positions[unusable], statuses[unusable]

    def _redraw(self, swap: Swap, positions: Ints, statuses: npt.NDArray[np.uint8]) -> None:
        """Another sample for records that were damaged, of another layout, or gone."""
        bad = swap.ids[positions]
        self._release(bad)
        self._taken.refuse(bad[statuses != ReadStatus.MISSING])
        self._draw(swap, positions)

    def _fail(self, swap: Swap, positions: Ints) -> None:
        swap.outcomes[positions] = Outcome.IO_ERROR
        self.breaker.failed()

    def _release(self, ids: Ints) -> None:
        held = ids[ids != NO_CANDIDATE]
        self._taken.coming.difference_update(held.tolist())
        self._tier.unpin(held)


class _Taken:
    """Ids that must not be drawn: residents, those on their way, and records that are unfit."""

    def __init__(self, residents: Residents) -> None:
        self._residents = residents
        self._unfit: dict[int, None] = {}
        self.coming: set[int] = set()

    def __contains__(self, sample: object) -> bool:
        return sample in self.coming or sample in self._residents or sample in self._unfit

    def refuse(self, ids: Ints) -> None:
        self._unfit.update(dict.fromkeys(ids.tolist()))
        while len(self._unfit) > _MOST_UNFIT:
            self._unfit.pop(next(iter(self._unfit)))
