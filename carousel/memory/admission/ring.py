"""Ring buffers: the last m samples of each class (Chaudhry et al. 2019, tiny episodic memories)."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from carousel.errors import BadInputError
from carousel.memory.admission.base import Assignment, Ints, SlotState, assign
from carousel.memory.admission.quota import Ages, Census, first_of_each

__all__ = ["Ring"]


class Ring:
    """A first-in first-out buffer of m samples for each class; no class lends room to another.

    Args:
        per_class: m; None makes it M // classes seen, at least 1, so that it shrinks as classes
            come. Where m a class is more than M slots, the classes that came last keep theirs.

    Raises:
        BadInputError: m is below 1.

    Example:
        >>> empty = np.full(4, -1)
        >>> state = SlotState(labels=empty, ids=empty, tasks=empty, capacity=4)
        >>> labels = np.array([5, 5, 5, 7])
        >>> Ring().plan(state, np.arange(4), labels, labels).rows.tolist()
        [1, 2, 3]
    """

    def __init__(self, per_class: int | None = None) -> None:
        if per_class is not None and per_class < 1:
            raise BadInputError(f"per_class is {per_class}", fix="give at least 1")
        self._per_class = per_class
        self._seen: set[int] = set()
        self._ages = Ages()

    def plan(self, slots: SlotState, ids: Ints, labels: Ints, tasks: Ints) -> Assignment:
        """See `Admission.plan`."""
        del tasks
        census = Census.take(slots, ids, labels)
        self._seen.update(census.classes.tolist())
        target = self._targets(census, slots.capacity)
        entering = np.minimum(census.coming_counts, target)
        leaving = census.held_counts - (target - entering)
        ages = self._ages.of(census.filled)
        out = census.filled[first_of_each(census.held, leaving, ages)]
        rows = census.rows[first_of_each(census.coming, entering, -census.rows)]
        plan = assign(slots, out, rows)
        self._ages.touch(plan.slots)
        return plan

    def state_dict(self) -> dict[str, Any]:
        """See `Admission.state_dict`."""
        return {"seen": sorted(self._seen), "stamps": torch.from_numpy(self._ages.stamps.copy())}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Admission.load_state_dict`."""
        self._seen = {int(label) for label in state["seen"]}
        self._ages.load(state["stamps"].numpy())

    def _targets(self, census: Census, capacity: int) -> Ints:
        share = self._per_class or max(1, capacity // max(1, len(self._seen)))
        target: Ints = np.minimum(census.held_counts + census.coming_counts, share)
        if int(target.sum()) <= capacity:
            return target
        newest = np.zeros(len(census.classes), np.int64)
        np.maximum.at(newest, census.held, self._ages.of(census.filled))
        np.maximum.at(newest, census.coming, int(newest.max(initial=0)) + 1 + census.rows)
        order = np.argsort(-newest, kind="stable")
        before = np.cumsum(target[order]) - target[order]
        target[order] = np.clip(capacity - before, 0, target[order])
        return target
