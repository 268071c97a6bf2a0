"""What travels between the training thread and the swap worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from carousel.memory.counters import Outcome
from carousel.memory.replacement import NO_CANDIDATE
from carousel.memory.slab import Slab

__all__ = ["Asked", "Request", "Sealed", "Swap"]

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Asked:
    """What a training step asks for: slots that may change, (n,) each, and who decides which.

    Args:
        slots: the slots.
        generations: theirs when the samples were gathered.
        labels: the classes that they hold.
        step: the training step.
        pick: chooses which of the rows are meant, (k,) indices; run by the worker, so that
            judging a batch costs training nothing. None means all.
        size: k.
    """

    slots: Ints
    generations: Ints
    labels: Ints
    step: int
    pick: Callable[[], Ints] | None
    size: int

    def picked(self) -> Request:
        """The request for the rows that are meant.

        Raises:
            RuntimeError: there are not as many as were announced.
        """
        rows = slice(None) if self.pick is None else self.pick()
        slots = self.slots[rows]
        if len(slots) != self.size:
            raise RuntimeError(f"the gate chose {len(slots)} rows instead of {self.size}")
        asked_at = np.full(self.size, self.step)
        return Request(slots, self.generations[rows], self.labels[rows], asked_at)


@dataclass(slots=True)
class Request:
    """Slots that shall change, (n,) each: as they were when the samples were looked at.

    Args:
        slots: the slots.
        generations: theirs when the samples were gathered.
        labels: the classes that they hold.
        asked_at: the training steps that ask.
    """

    slots: Ints
    generations: Ints
    labels: Ints
    asked_at: Ints

    @classmethod
    def joined(cls, requests: Sequence[Request]) -> Request:
        """At least one request, one behind the other."""
        if len(requests) == 1:
            return requests[0]
        columns = ((r.slots, r.generations, r.labels, r.asked_at) for r in requests)
        return cls(*map(np.concatenate, zip(*columns, strict=True)))

    def __len__(self) -> int:
        return len(self.slots)

    def take(self, rows: slice) -> Request:
        """The request for some of its rows."""
        return Request(
            self.slots[rows], self.generations[rows], self.labels[rows], self.asked_at[rows]
        )

    def pieces(self, size: int) -> Iterator[Request]:
        """The same request in parts of at most `size` rows."""
        for start in range(0, len(self), size):
            yield self.take(slice(start, start + size))


@dataclass(slots=True)
class Swap:
    """A request in work. Where the outcome is DONE, a filled row waits to be published.

    Args:
        request: what was asked.
        outcomes: (n,) `Outcome` so far.
        ids: (n,) ids chosen to come in, `NO_CANDIDATE` where there is none.
        tasks: (n,) their task labels.
        rows: (n,) spare rows that are held for it, -1 where there is none.
        claimed: (k,) positions whose slot is marked as busy.
        epoch: of `Residents` before the slots were claimed and the ids drawn.
    """

    request: Request
    outcomes: npt.NDArray[np.uint8]
    ids: Ints
    tasks: Ints
    rows: Ints
    claimed: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    epoch: int = -1

    @classmethod
    def of(cls, request: Request) -> Swap:
        """A request before any work: cancelled, until something becomes of it."""
        count = len(request)
        ids, tasks, rows = np.full((3, count), NO_CANDIDATE)
        return cls(request, np.full(count, Outcome.CANCELLED, np.uint8), ids, tasks, rows)

    def __len__(self) -> int:
        return len(self.request)

    @property
    def done(self) -> Ints:
        """(k,) positions that still go well."""
        return np.flatnonzero(self.outcomes == Outcome.DONE)

    def sealed(self, slab: Slab) -> Sealed:
        """All that publishing needs, worked out beforehand to keep the training thread short."""
        done, request = self.done, self.request
        slots = request.slots[done]
        generations = request.generations[done]
        columns = np.stack(
            [
                self.rows[done],
                self.ids[done],
                request.labels[done],
                self.tasks[done],
                generations + 1,
            ]
        )
        unused = (self.rows >= 0) & (self.outcomes != Outcome.DONE)
        return Sealed(
            size=len(self),
            asked_at=request.asked_at[done].tolist(),
            slots=slots,
            generations=generations,
            columns=columns,
            leaving=slab.ids[slots].tolist(),
            freed_rows=slab.table[slots].tolist(),
            coming=self.ids[done].tolist(),
            counts=np.bincount(self.outcomes, minlength=len(Outcome)),
            claimed=request.slots[self.claimed],
            unused_rows=self.rows[unused].tolist(),
            drawn=self.ids,
            epoch=self.epoch,
        )


@dataclass(slots=True)
class Sealed:
    """A finished swap of n rows, k of them filled.

    Args:
        size: n.
        asked_at: k training steps that asked for it.
        slots: (k,) slots to change.
        generations: (k,) what their generations must be.
        columns: (5, k) what they become, in the order of `Slab.columns`.
        leaving: k ids that they hold if the generations are right.
        freed_rows: k rows that they point to in that case.
        coming: k ids that they get.
        counts: (8,) rows by `Outcome`.
        claimed: slots that are not busy any more.
        unused_rows: spare rows that were not filled.
        drawn: ids that are settled by this.
        epoch: of `Residents` before the slots were claimed and the ids drawn.
    """

    size: int
    asked_at: list[int]
    slots: Ints
    generations: Ints
    columns: Ints
    leaving: list[int]
    freed_rows: list[int]
    coming: list[int]
    counts: npt.NDArray[np.int64]
    claimed: Ints
    unused_rows: list[int]
    drawn: Ints
    epoch: int

    @classmethod
    def cancelled(cls, size: int) -> Sealed:
        """A request of `size` rows that nothing was done for."""
        nothing = np.empty(0, np.int64)
        counts = np.zeros(len(Outcome), np.int64)
        counts[Outcome.CANCELLED] = size
        columns = np.empty((5, 0), np.int64)
        return cls(
            size=size,
            asked_at=[],
            slots=nothing,
            generations=nothing,
            columns=columns,
            leaving=[],
            freed_rows=[],
            coming=[],
            counts=counts,
            claimed=nothing,
            unused_rows=[],
            drawn=nothing,
            epoch=-1,
        )

    def without(self, unwanted: npt.NDArray[np.bool_]) -> Sealed:
        """The same with (k,) some of its rows stale, their spare rows unused."""
        kept = ~unwanted
        counts = self.counts.copy()
        counts[Outcome.DONE] -= int(unwanted.sum())
        counts[Outcome.STALE] += int(unwanted.sum())
        return Sealed(
            size=self.size,
            asked_at=np.array(self.asked_at, np.int64)[kept].tolist(),
            slots=self.slots[kept],
            generations=self.generations[kept],
            columns=self.columns[:, kept],
            leaving=np.array(self.leaving, np.int64)[kept].tolist(),
            freed_rows=np.array(self.freed_rows, np.int64)[kept].tolist(),
            coming=np.array(self.coming, np.int64)[kept].tolist(),
            counts=counts,
            claimed=self.claimed,
            unused_rows=[*self.unused_rows, *self.columns[0, unwanted].tolist()],
            drawn=self.drawn,
            epoch=self.epoch,
        )
