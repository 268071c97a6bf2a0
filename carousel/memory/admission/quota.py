"""Arithmetic that rules with a quota a class share; classes are codes 0 to C - 1."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carousel.memory.admission.base import Ints, SlotState, fresh_rows

__all__ = ["Ages", "Census", "first_of_each", "water_fill"]


@dataclass(slots=True)
class Census:
    """Who competes: residents and fresh rows, with their classes as codes.

    Args:
        classes: (C,) int64 labels that are resident or arrive, ascending.
        filled: (r,) int64 slots that hold a sample.
        rows: (k,) int64 rows of the batch that may enter.
        held: (r,) int64 class codes of `filled`.
        coming: (k,) int64 class codes of `rows`.
    """

    classes: Ints
    filled: Ints
    rows: Ints
    held: Ints
    coming: Ints

    @classmethod
    def take(cls, slots: SlotState, ids: Ints, labels: Ints) -> Census:
        """Count a batch against the slots."""
        filled, rows = slots.filled, fresh_rows(slots, ids)
        both = np.concatenate([slots.labels[filled], labels[rows]])
        classes, codes = np.unique(both, return_inverse=True)
        return cls(classes, filled, rows, codes[: len(filled)], codes[len(filled) :])

    @property
    def held_counts(self) -> Ints:
        """(C,) residents a class."""
        return np.bincount(self.held, minlength=len(self.classes))

    @property
    def coming_counts(self) -> Ints:
        """(C,) fresh rows a class."""
        return np.bincount(self.coming, minlength=len(self.classes))


class Ages:
    """When each slot was filled, as a rising stamp; swapping a slot's sample leaves its age."""

    def __init__(self) -> None:
        self.stamps: Ints = np.zeros(0, np.int64)
        self._next = 1

    def of(self, slots: Ints) -> Ints:
        """The stamps of these slots; 0 for one that was never stamped."""
        self._grow(slots)
        return self.stamps[slots]

    def touch(self, slots: Ints) -> None:
        """Stamp slots as filled now, in this order."""
        self._grow(slots)
        self.stamps[slots] = self._next + np.arange(len(slots))
        self._next += len(slots)

    def load(self, stamps: Ints) -> None:
        """Take over stamps that were saved."""
        self.stamps = stamps.copy()
        self._next = int(stamps.max(initial=0)) + 1

    def _grow(self, slots: Ints) -> None:
        size = int(slots.max(initial=-1)) + 1
        if size > len(self.stamps):
            self.stamps = np.concatenate([self.stamps, np.zeros(size - len(self.stamps), np.int64)])


def first_of_each(codes: Ints, counts: Ints, key: npt.NDArray[np.generic]) -> Ints:
    """Positions of the ``counts[c]`` members of each class c with the smallest keys, ascending.

    Classes that give none are not sorted, which is what keeps a small batch cheap.
    """
    members = np.flatnonzero(counts[codes] > 0)
    order = members[np.lexsort((key[members], codes[members]))]
    sizes = np.bincount(codes[order], minlength=len(counts))
    starts = np.cumsum(sizes) - sizes
    position = np.arange(len(order)) - starts[codes[order]]
    return np.sort(order[position < counts[codes[order]]])


def water_fill(supply: Ints, budget: int, held: Ints, rng: np.random.Generator) -> Ints:
    """Share a budget so evenly as supply allows: no class can gain but at a smaller one's cost.

    Args:
        supply: (C,) samples that each class could hold.
        budget: slots to share.
        held: (C,) samples that it holds; slots left over after the even share go, one each, to
            classes that already hold more than it, then to others, drawn by `rng`: a remainder
            that wandered from batch to batch would push samples out for nothing.
        rng: random numbers.

    Returns:
        (C,) targets, at most `supply`, with the sum min(budget, sum of supply).
    """
    if int(supply.sum()) <= budget:
        return supply.copy()
    low, high = 0, int(supply.max())  # the largest level whose cost is within the budget
    while low < high:
        middle = (low + high + 1) // 2
        if int(np.minimum(supply, middle).sum()) <= budget:
            low = middle
        else:
            high = middle - 1
    target = np.minimum(supply, low)
    wanting = rng.permutation(np.flatnonzero(supply > low))
    ranked = wanting[np.argsort(held[wanting] <= low, kind="stable")]
    target[ranked[: budget - int(target.sum())]] += 1
    return target
