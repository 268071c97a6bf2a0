"""Class-balanced memory: every class seen holds the same share of the slots."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import torch

from carousel.errors import BadInputError
from carousel.memory import seeds
from carousel.memory.admission.base import Assignment, Ints, SlotState, assign
from carousel.memory.admission.quota import Ages, Census, first_of_each, water_fill

__all__ = ["ClassBalanced", "Order"]

_MOST_SEEN = 10**9 - 1
"""numpy draws from no larger urn; an arrival has practically no chance there any more."""

Order = Literal["random", "last"]


class ClassBalanced:
    """Share the slots evenly among classes; old classes shrink as new ones come.

    With M slots and C classes each holds M // C or one more; what a small class cannot use goes to
    the others. Class sizes differ by at most one wherever supply allows.

    Args:
        rng: the rule's random numbers.
        order: ``"random"`` keeps a uniform sample of all that were seen of a class, also when the
            class comes back; ``"last"`` keeps the latest and shrinks from the oldest, as ER does
            in the CarM paper's official code.

    Raises:
        BadInputError: the order is neither.

    Example:
        >>> empty = np.full(4, -1)
        >>> state = SlotState(labels=empty, ids=empty, tasks=empty, capacity=4)
        >>> labels = np.array([5, 5, 5, 7, 7, 7])
        >>> rule = ClassBalanced(np.random.default_rng(0), order="last")
        >>> rule.plan(state, np.arange(6), labels, labels).rows.tolist()
        [1, 2, 4, 5]
    """

    def __init__(self, rng: np.random.Generator, order: Order = "random") -> None:
        if order not in ("random", "last"):
            raise BadInputError(f"order is {order!r}", fix="use random or last")
        self._rng = rng
        self._order = order
        self._seen: dict[int, int] = {}
        self._ages = Ages()

    def plan(self, slots: SlotState, ids: Ints, labels: Ints, tasks: Ints) -> Assignment:
        """See `Admission.plan`."""
        del tasks
        census = Census.take(slots, ids, labels)
        held, coming = census.held_counts, census.coming_counts
        target = water_fill(held + coming, slots.capacity, held, self._rng)
        entering = self._entering(census, target)
        leaving = held - (target - entering)
        out = census.filled[first_of_each(census.held, leaving, self._resident_key(census))]
        rows = census.rows[first_of_each(census.coming, entering, self._row_key(census))]
        plan = assign(slots, out, rows)
        self._note(census, plan)
        return plan

    def state_dict(self) -> dict[str, Any]:
        """See `Admission.state_dict`."""
        return {
            "order": self._order,
            "seen": dict(self._seen),
            "stamps": torch.from_numpy(self._ages.stamps.copy()),
            "rng": seeds.state_of(self._rng),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Admission.load_state_dict`."""
        self._order = state["order"]
        self._seen = {int(label): int(count) for label, count in state["seen"].items()}
        self._ages.load(state["stamps"].numpy())
        seeds.load_state(self._rng, state["rng"])

    def _entering(self, census: Census, target: Ints) -> Ints:
        """How many rows of each class enter; the rest of its target are residents."""
        held, coming = census.held_counts, census.coming_counts
        most = np.minimum(coming, target)
        if self._order == "last":
            return most
        # of a uniform sample from (seen before + coming), how many are among the coming
        seen = np.array([self._seen.get(int(label), 0) for label in census.classes], np.int64)
        urn = np.minimum(np.maximum(seen, held), _MOST_SEEN)
        drawn = self._rng.hypergeometric(coming, urn, target)
        return np.clip(drawn, np.maximum(target - held, 0), most)

    def _resident_key(self, census: Census) -> np.ndarray[Any, np.dtype[Any]]:
        if self._order == "last":
            return self._ages.of(census.filled)
        return self._rng.random(len(census.filled))

    def _row_key(self, census: Census) -> np.ndarray[Any, np.dtype[Any]]:
        if self._order == "last":
            return -census.rows
        return self._rng.random(len(census.rows))

    def _note(self, census: Census, plan: Assignment) -> None:
        self._ages.touch(plan.slots)
        for label, count in zip(census.classes, census.coming_counts, strict=True):
            if count:
                self._seen[int(label)] = self._seen.get(int(label), 0) + int(count)
