"""The work of a swap: choose a replacement, make sure nothing is lost, read it into a spare row.

Nothing here touches a slot. `SwapEngine` runs it in its worker thread, or inline in sync mode,
and publishes what comes out.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carousel.errors import StorageIOError
from carousel.memory.breaker import Breaker
from carousel.memory.counters import Outcome
from carousel.memory.reader import RecordReader
from carousel.memory.replacement import NO_CANDIDATE, Replacement
from carousel.memory.slab import Slab
from carousel.memory.write_back import WriteBack
from carousel.storage.tier import ReadStatus, StorageTier

__all__ = ["CHUNK", "Request", "Swap", "Swapper"]

Ints = npt.NDArray[np.int64]

CHUNK = 64
"""Most rows that are worked on at once."""

_REDRAWS = 3
_MOST_UNFIT = 4096


@dataclass(slots=True)
class Request:
    """Slots that may change, (n,) each: as they were when the samples were looked at."""

    slots: Ints
    generations: Ints
    labels: Ints
    asked_at: int

    def __len__(self) -> int:
        return len(self.slots)

    def pieces(self, size: int) -> list[Request]:
        """The same request cut into parts of at most `size` rows."""
        if len(self) <= size:
            return [self]
        return [
            Request(
                self.slots[start : start + size],
                self.generations[start : start + size],
                self.labels[start : start + size],
                self.asked_at,
            )
            for start in range(0, len(self), size)
        ]


@dataclass(slots=True)
class Swap:
    """A request in work. Where the outcome is DONE, a filled row waits to be published.

    Args:
        request: what was asked.
        outcomes: (n,) `Outcome` so far.
        ids: (n,) ids chosen to come in, `NO_CANDIDATE` where there is none.
        tasks: (n,) their task labels.
        rows: (n,) spare rows that are held for it, -1 where there is none.
    """

    request: Request
    outcomes: npt.NDArray[np.uint8]
    ids: Ints
    tasks: Ints
    rows: Ints

    @classmethod
    def of(cls, request: Request) -> Swap:
        """A request before any work: all stale until proved otherwise."""
        count = len(request)
        stale = np.full(count, Outcome.STALE, np.uint8)
        nothing = np.full((3, count), -1)
        return cls(request, stale, nothing[0], nothing[1], nothing[2])

    def __len__(self) -> int:
        return len(self.request)

    @property
    def done(self) -> Ints:
        """(k,) positions that still go well."""
        return np.flatnonzero(self.outcomes == Outcome.DONE)


class Swapper:
    """Draws, saves and reads for one request at a time; called by one thread at a time.

    Args:
        slab: whose spare rows are filled.
        tier: where replacements come from.
        replacement: the rule that draws them.
        rng: chance for the draws.
        pause: sleeps for seconds between retries; may return early.
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
        self._coming: set[int] = set()
        self._unfit: dict[int, None] = {}
        self._settled: deque[Ints] = deque()
        self.breaker = Breaker()
        self.write_back = WriteBack(slab, tier)

    def choose(self, swap: Swap) -> None:
        """Draw a replacement for every slot that has not changed, and start reading ahead."""
        self.release_settled()
        request = swap.request
        live = self._slab.generations[request.slots] == request.generations
        if not self.breaker.allows():
            swap.outcomes[live] = Outcome.IO_ERROR
            return
        swap.outcomes[live] = Outcome.DONE
        self._draw(swap, np.flatnonzero(live))
        self._tier.prefetch(swap.ids[swap.done])

    def fill(self, swap: Swap, rows: Ints) -> None:
        """Read the chosen samples into spare rows; the outcomes say which are whole.

        Args:
            swap: from `choose`.
            rows: a spare row for each position of ``swap.done``.
        """
        positions = swap.done
        swap.rows[positions] = rows
        if len(positions) == 0:
            return
        if not self._save_leaving(swap, positions):
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

    def settled(self, ids: Ints) -> None:
        """Say that these ids are resident or given up; any thread may call it."""
        self._settled.append(ids)

    def release_settled(self) -> None:
        """Let ids that are settled be drawn and evicted again."""
        while self._settled:
            self._release(self._settled.popleft())

    def abandon(self, swap: Swap) -> None:
        """Give a whole request up; never raises."""
        swap.outcomes[:] = Outcome.CANCELLED
        with contextlib.suppress(Exception):
            self._release(swap.ids)
        swap.ids[:] = NO_CANDIDATE

    def _draw(self, swap: Swap, positions: Ints) -> None:
        excluded = (self._slab.slot_of, self._coming, self._unfit)
        labels = swap.request.labels[positions]
        ids = self._replacement.draw(self._tier, labels, excluded, self._rng)
        swap.ids[positions] = ids
        swap.outcomes[positions[ids == NO_CANDIDATE]] = Outcome.NO_CANDIDATE
        found = ids[ids != NO_CANDIDATE]
        self._coming.update(found.tolist())
        self._tier.pin(found)

    def _save_leaving(self, swap: Swap, positions: Ints) -> bool:
        request = swap.request
        try:
            self.write_back.save(request.slots[positions], request.generations[positions])
        except (OSError, StorageIOError):
            self._fail(swap, positions)
            return False
        return True

    def _read(self, swap: Swap, positions: Ints) -> tuple[Ints, npt.NDArray[np.uint8]]:
        """Read; returns the positions whose record is unusable, and why."""
        statuses = self._reader.read(swap.ids[positions], self._slab.arrays, swap.rows[positions])
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
        self._unfit.update(dict.fromkeys(bad[statuses != ReadStatus.MISSING].tolist()))
        while len(self._unfit) > _MOST_UNFIT:
            self._unfit.pop(next(iter(self._unfit)))
        self._draw(swap, positions)

    def _fail(self, swap: Swap, positions: Ints) -> None:
        swap.outcomes[positions] = Outcome.IO_ERROR
        self.breaker.failed()

    def _release(self, ids: Ints) -> None:
        held = ids[ids != NO_CANDIDATE]
        self._coming.difference_update(held.tolist())
        self._tier.unpin(held)
