"""The seam of admission: what a rule sees, what it answers, and how rows find their slots."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

__all__ = ["Admission", "Assignment", "Ints", "SlotState", "assign", "exactly", "fresh_rows"]

Ints: TypeAlias = npt.NDArray[np.int64]


@dataclass(slots=True)
class SlotState:
    """The slots as they are; a rule reads these arrays and never writes them.

    Args:
        labels: (M,) int64 class of each slot's sample, -1 for an empty slot.
        ids: (M,) int64 sample ids, -1 for an empty slot.
        tasks: (M,) int64 task labels.
        capacity: how many samples may be held; new ones enter slots 0 to capacity - 1 only. Less
            than M while the system is short of memory.
    """

    labels: Ints
    ids: Ints
    tasks: Ints
    capacity: int

    @property
    def filled(self) -> Ints:
        """Slots that hold a sample, ascending."""
        return np.flatnonzero(self.labels >= 0)

    @property
    def free(self) -> Ints:
        """Usable slots that hold none, ascending."""
        return np.flatnonzero(self.labels[: self.capacity] < 0)


@dataclass(slots=True)
class Assignment:
    """What changes: put batch row ``rows[i]`` into slot ``slots[i]``; empty the slots ``freed``.

    Args:
        slots: (k,) int64, distinct; such a slot may hold a sample, which then leaves.
        rows: (k,) int64 rows of the incoming batch, ascending, distinct.
        freed: (f,) int64 slots that become empty; none of them is in `slots`.
    """

    slots: Ints
    rows: Ints
    freed: Ints

    def __len__(self) -> int:
        return len(self.slots)


@runtime_checkable
class Admission(Protocol):
    """Decides which samples hold a slot.

    A plan counts as carried out: the rule notes it in its own state (samples seen, ages).
    """

    def plan(self, slots: SlotState, ids: Ints, labels: Ints, tasks: Ints) -> Assignment:
        """Answer a batch of n samples in the order of their arrival; only labels are looked at.

        Samples that stay keep their slots. A sample whose id already holds a slot stays there and
        is not admitted twice. An empty batch changes nothing, unless more samples are held than
        the capacity allows: the rule then answers which leave, and the caller moves the rest.
        """
        ...

    def state_dict(self) -> dict[str, Any]:
        """The state as plain types and tensors."""
        ...

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        ...


def fresh_rows(slots: SlotState, ids: Ints) -> Ints:
    """Rows whose id holds no slot, each id once (its first row), ascending."""
    first = np.sort(np.unique(ids, return_index=True)[1])
    return first[~np.isin(ids[first], slots.ids)]


def assign(slots: SlotState, leaving: Ints, rows: Ints) -> Assignment:
    """Give `rows` (ascending) the empty slots first, then those that `leaving` samples vacate."""
    usable = leaving[leaving < slots.capacity]
    places = np.concatenate([slots.free, np.sort(usable)])[: len(rows)]
    return Assignment(places, rows, np.setdiff1d(leaving, places, assume_unique=True))


def exactly(slots: SlotState, ids: Ints) -> Assignment:
    """The plan after which just these (n,) distinct ids are held; n is at most the capacity."""
    held = slots.filled
    return assign(slots, held[~np.isin(slots.ids[held], ids)], fresh_rows(slots, ids))
