"""Who is in the slots."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from carousel.memory.slab import EMPTY, Slab

__all__ = ["Residency"]

Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Residency:
    """The filled slots of a memory, ascending, and what they hold; copies of that moment.

    Args:
        slots: (filled,) int64 slots.
        ids: (filled,) int64 sample ids.
        labels: (filled,) int64 class labels.
        tasks: (filled,) int64 task labels.

    Example:
        >>> len(Residency.of(None))
        0
    """

    slots: Ints
    ids: Ints
    labels: Ints
    tasks: Ints

    def __len__(self) -> int:
        return len(self.slots)

    @classmethod
    def of(cls, slab: Slab | None) -> Residency:
        """Who is in these slots; nobody without any."""
        if slab is None:
            return cls(*np.empty((4, 0), np.int64))
        slots = np.flatnonzero(slab.ids != EMPTY)
        return cls(slots, slab.ids[slots], slab.labels[slots], slab.tasks[slots])
