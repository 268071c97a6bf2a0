"""The greedy balancing sampler of GDumb (Prabhu et al., ECCV 2020, Algorithm 1)."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

from carousel.memory import seeds
from carousel.memory.admission.base import Assignment, Ints, SlotState, assign, fresh_rows

__all__ = ["Greedy"]


class Greedy:
    """A sample enters while its class holds less than an even share; the largest class makes room.

    Samples are taken in the order of their arrival. With M slots and C classes seen so far, this
    one's included, a sample enters if its class holds fewer than M / C samples (compared as
    fractions, as in the paper, so that a remainder of M is used too). When the memory is full, a
    random sample of the largest class leaves, of several largest the one with the lowest label. A
    sample that came with the same batch may leave again. Nothing is ever taken out for a class
    that has its share: who came first stays.

    Args:
        rng: the rule's random numbers.

    Example:
        >>> empty = np.full(4, -1)
        >>> state = SlotState(labels=empty, ids=empty, tasks=empty, capacity=4)
        >>> labels = np.array([5, 5, 5, 7, 7, 7])
        >>> rule = Greedy(np.random.default_rng(0))
        >>> plan = rule.plan(state, np.arange(6), labels, labels)
        >>> labels[plan.rows].tolist()
        [5, 5, 7, 7]
    """

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._seen: set[int] = set()

    def plan(self, slots: SlotState, ids: Ints, labels: Ints, tasks: Ints) -> Assignment:
        """See `Admission.plan`."""
        del tasks
        filled, rows = slots.filled, fresh_rows(slots, ids)
        self._seen.update(slots.labels[filled].tolist())
        surplus = max(0, len(filled) - slots.capacity)
        held = _Members(slots, self._rng.random(surplus + len(rows)).tolist())
        for _ in range(surplus):
            held.drop_one()
        # The order of arrival matters, so this is a loop; it touches plain numbers only.
        for row, label in zip(rows.tolist(), labels[rows].tolist(), strict=True):
            self._seen.add(label)
            if held.counts[label] * len(self._seen) < slots.capacity:
                if held.total == slots.capacity:
                    held.drop_one()
                held.add(row, label)
        return assign(slots, held.left(), held.entered())

    def state_dict(self) -> dict[str, Any]:
        """See `Admission.state_dict`."""
        return {"seen": sorted(self._seen), "rng": seeds.state_of(self._rng)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """See `Admission.load_state_dict`."""
        self._seen = {int(label) for label in state["seen"]}
        seeds.load_state(self._rng, state["rng"])


class _Members:
    """Who is in memory while a batch passes: slots by their number, rows as -1 - row.

    Args:
        slots: who is there at first.
        chances: from 0 to 1, one for each member that may have to leave.
    """

    def __init__(self, slots: SlotState, chances: list[float]) -> None:
        self._labels = slots.labels
        self._chances = chances
        self._members: dict[int, list[int]] = {}
        self._left: list[int] = []
        self.counts = Counter(slots.labels[slots.filled].tolist())
        self.total = self.counts.total()

    def add(self, row: int, label: int) -> None:
        self._of(label).append(-1 - row)
        self.counts[label] += 1
        self.total += 1

    def drop_one(self) -> None:
        """Let a random member of the largest class go."""
        label = min(self.counts, key=lambda each: (-self.counts[each], each))
        members = self._of(label)
        at = int(self._chances.pop() * len(members))
        members[at], members[-1] = members[-1], members[at]
        if (member := members.pop()) >= 0:
            self._left.append(member)
        self.counts[label] -= 1
        self.total -= 1

    def left(self) -> Ints:
        """Slots whose samples leave."""
        return np.array(self._left, np.int64)

    def entered(self) -> Ints:
        """Rows that are in, ascending."""
        rows = [-1 - member for each in self._members.values() for member in each if member < 0]
        return np.sort(np.array(rows, np.int64))

    def _of(self, label: int) -> list[int]:
        if label not in self._members:
            self._members[label] = np.flatnonzero(self._labels == label).tolist()
        return self._members[label]
