"""Which ids are in a slot, as the swap worker sees it."""

from __future__ import annotations

from collections import deque

import numpy as np
import numpy.typing as npt

__all__ = ["Residents"]

Ints = npt.NDArray[np.int64]

_MOST_CHANGES = 1024


class Residents:
    """A set of ids that one thread changes and another looks at.

    The training thread only notes what changed, which costs it nothing; the worker brings the set
    up to date when it needs it. When the worker does not come to it, the notes are thrown away
    and the set is built anew.

    Args:
        ids: (slots,) the live column of ids, negative where a slot is empty.

    Attributes:
        epoch: rises after slots changed by another way than a swap. What was drawn in this epoch,
            after `refresh`, cannot be resident already, and slots that a swap claimed in it still
            hold what was judged.
    """

    def __init__(self, ids: Ints) -> None:
        self._column = ids
        self._ids: set[int] = set()
        self._changes: deque[tuple[list[int], list[int]]] = deque()
        self._outdated = False
        self.epoch = 0

    def __contains__(self, sample: object) -> bool:
        return sample in self._ids

    def swapped(self, leaving: list[int], coming: list[int]) -> None:
        """Note that a swap was published."""
        self._changes.append((leaving, coming))
        if len(self._changes) > _MOST_CHANGES:
            self._outdated = True  # before the notes go: the worker finds them or this
            self._changes.clear()

    def admitted(self, leaving: list[int], coming: list[int]) -> None:
        """Note that slots were filled or emptied by something else than a swap."""
        self.swapped(leaving, coming)
        self.moved()  # after the note: who sees this epoch finds the note, too

    def moved(self) -> None:
        """Note that samples went to other slots, or their rows did."""
        self.epoch += 1

    def refresh(self) -> None:
        """Bring the set up to date; called by the worker only."""
        while self._outdated or self._changes:
            if self._outdated:
                self._outdated = False
                # What is noted from here on is applied on top, in order, once more at most.
                self._ids = set(self._column.tolist())
            self._apply_next()

    def _apply_next(self) -> None:
        try:
            leaving, coming = self._changes.popleft()
        except IndexError:  # nothing left, or thrown away this moment
            return
        self._ids.difference_update(leaving)
        self._ids.update(coming)
