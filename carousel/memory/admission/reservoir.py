"""Reservoir sampling over the whole stream (Vitter 1985, algorithm R)."""

from __future__ import annotations

from typing import Any

import numpy as np

from carousel.memory import seeds
from carousel.memory.admission.base import Assignment, Ints, SlotState, fresh_rows

__all__ = ["Reservoir"]


class Reservoir:
    """Every sample of the stream has the same chance of being in memory, whatever its class.

    Sample number t (from 0) takes the place of resident j, drawn uniformly from 0 to t inclusive,
    and is passed over when there is no resident j. Empty slots are filled first.

    Args:
        rng: the rule's random numbers.

    Example:
        >>> empty = np.full(2, -1)
        >>> state = SlotState(labels=empty, ids=empty, tasks=empty, capacity=2)
        >>> rule = Reservoir(np.random.default_rng(0))
        >>> len(rule.plan(state, np.arange(9), np.zeros(9, np.int64), np.zeros(9, np.int64)))
        2
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._seen = 0

    @property
    def seen(self) -> int:
        """Samples presented so far."""
        return self._seen

    def plan(self, slots: SlotState, ids: Ints, labels: Ints, tasks: Ints) -> Assignment:
        """See `Admission.plan`."""
        del labels, tasks  # a reservoir is blind to both
        kept, freed = self._shrink(slots)
        draws = self._rng.integers(0, self._seen + np.arange(len(ids)), endpoint=True)
        self._seen += len(ids)

        rows = fresh_rows(slots, ids)
        free = slots.free[: min(len(rows), slots.capacity - len(kept))]
        homes = np.concatenate([kept, free])
        late = rows[len(free) :]
        late = late[draws[late] < len(homes)]
        places = np.concatenate([free, homes[draws[late]]])
        rows = np.concatenate([rows[: len(free)], late])
        last = _last_of_each(places)
        return Assignment(places[last], rows[last], freed)

    def state_dict(self) -> dict[str, Any]:
        """See `Admission.state_dict`."""
        return {"seen": self._seen, "rng": seeds.state_of(self._rng)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Admission.load_state_dict`."""
        self._seen = int(state["seen"])
        seeds.load_state(self._rng, state["rng"])

    def _shrink(self, slots: SlotState) -> tuple[Ints, Ints]:
        filled = slots.filled
        if len(filled) <= slots.capacity:
            return filled, filled[:0]
        mixed = self._rng.permutation(filled)
        return np.sort(mixed[: slots.capacity]), np.sort(mixed[slots.capacity :])


def _last_of_each(places: Ints) -> Ints:
    """Positions that hold the last mention of each place, ascending: later samples push out."""
    backwards = np.unique(places[::-1], return_index=True)[1]
    return np.sort(len(places) - 1 - backwards)
