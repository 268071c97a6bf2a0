"""The default rule of eviction: equal classes, and within a class every arrival the same chance."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np

from carousel.storage.columns import Ids
from carousel.storage.index import Index
from carousel.storage.limits import (
    EvictionPlan,
    Limits,
    Mask,
    State,
    fits_alone,
    same_rule,
    surplus,
    within,
)

__all__ = ["ClassReservoir"]


class ClassReservoir:
    """Equal shares for all classes, and within a class every arrival the same chance (default).

    A class may keep its level of the budget: all classes share it equally, a class with fewer
    records leaves the rest to the others, and what does not divide goes to single classes by a
    lottery that is fixed by the seed. A class above its share loses uniformly random unpinned
    records. Within a class at its share the q survivors are a uniform sample of all arrivals: a
    new one enters with probability q / seen (Vitter 1985, algorithm R). A whole batch is decided
    at once, by the hypergeometric number of newcomers among the survivors; the outcome has the
    same distribution as one by one. A class below its share takes everything.

    A byte budget counts as budget / mean length records, and is then held to the byte.

    Args:
        seed: of the rule's own random stream.
    """

    def __init__(self, seed: int = 0) -> None:
        self._rng = np.random.default_rng(seed)
        self._salt = int(self._rng.integers(2**63))
        self._seen: dict[int, int] = {}

    def plan(self, index: Index, labels: Ids, lengths: Ids, limits: Limits) -> EvictionPlan:
        """See `Eviction.plan`."""
        fits = fits_alone(lengths, limits)
        batch = _Batch(labels, lengths, fits, limits)
        plan = EvictionPlan(fits.copy(), full=not bool(fits.all()))
        if not within(index, lengths[fits], limits):
            self._choose(index, batch, plan)
            self._trim(index, batch, plan)
        for label, count in _counts(labels[fits]).items():
            self._seen[label] = self._seen.get(label, 0) + count
        return plan

    def forget(self, labels: Iterable[int]) -> None:
        """See `Eviction.forget`."""
        for label in labels:
            self._seen.pop(label, None)

    def state_dict(self) -> State:
        """See `Eviction.state_dict`."""
        return {
            "rule": "class-reservoir",
            "seen": [[label, count] for label, count in sorted(self._seen.items())],
            "salt": self._salt,
            "rng": self._rng.bit_generator.state,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Eviction.load_state_dict`."""
        same_rule(state, "class-reservoir")
        self._seen = {int(label): int(count) for label, count in state["seen"]}
        self._salt = int(state["salt"])
        self._rng.bit_generator.state = state["rng"]

    def _choose(self, index: Index, batch: _Batch, plan: EvictionPlan) -> None:
        """Bring every class to its share."""
        stored, arrivals = index.stored_counts(), _counts(batch.labels[batch.fits])
        classes = np.array(sorted(stored.keys() | arrivals.keys()), np.int64)
        held = np.array([stored.get(c, 0) for c in classes.tolist()], np.int64)
        coming = np.array([arrivals.get(c, 0) for c in classes.tolist()], np.int64)
        places = _capacity(index, batch.lengths[batch.fits], batch.limits)
        quotas = _levels(held + coming, places, _lottery(classes, self._salt))
        plan.accept[:] = False
        leaving = [plan.evict]
        for i in np.flatnonzero((coming > 0) | (held > quotas)).tolist():
            label = int(classes[i])
            rows = np.flatnonzero(batch.fits & (batch.labels == label))
            enter, leave = self._renew(index, label, len(rows), int(quotas[i]) - int(held[i]))
            plan.accept[self._rng.choice(rows, enter, replace=False)] = True
            leaving.append(leave)
        plan.evict = np.concatenate(leaving)

    def _renew(self, index: Index, label: int, coming: int, room: int) -> tuple[int, Ids]:
        """How many newcomers of a class enter, and who of it leaves, for `room` more members."""
        stored = index.stored_ids(label)
        seen, quota = max(self._seen.get(label, 0), len(stored)), len(stored) + room
        seen = min(seen, _MOST_SEEN)
        enter = int(self._rng.hypergeometric(coming, seen, quota)) if coming and quota else 0
        enter = max(enter, min(coming, room))
        leave = enter - room
        if leave <= 0:
            return enter, stored[:0]
        free = stored[~index.pinned_mask(stored)]
        missing = max(0, leave - len(free))
        leaving = self._rng.choice(free, leave - missing, replace=False, shuffle=False)
        return max(0, enter - missing), leaving

    def _trim(self, index: Index, batch: _Batch, plan: EvictionPlan) -> None:
        """Take random members out of the largest classes until the limits hold to the byte.

        Only lengths that differ, or pinned ids, leave anything to do here.
        """
        while True:
            gone = int(index.lookup(plan.evict).lengths.sum())
            records = len(index) - len(plan.evict) + int(np.count_nonzero(plan.accept))
            size = index.total_length - gone + int(batch.lengths[plan.accept].sum())
            too_many = surplus(records, size, batch.limits)
            if too_many == 0 or not self._shrink(index, batch.labels, plan, too_many):
                return

    def _shrink(self, index: Index, labels: Ids, plan: EvictionPlan, too_many: int) -> bool:
        """Make `too_many` more members leave; False when all that is left is pinned."""
        members: list[tuple[Ids, Ids]] = []
        for label in sorted(index.stored_counts().keys() | set(labels[plan.accept].tolist())):
            free = index.stored_ids(label)
            free = free[~(index.pinned_mask(free) | np.isin(free, plan.evict))]
            members.append((free, np.flatnonzero(plan.accept & (labels == label))))
        sizes = np.array([len(ids) + len(rows) for ids, rows in members], np.int64)
        total = int(sizes.sum())
        keep = _levels(sizes, max(0, total - too_many), np.arange(len(sizes)))
        leaving = [plan.evict]
        for (ids, rows), count in zip(members, (sizes - keep).tolist(), strict=True):
            out = self._rng.permutation(len(ids) + len(rows))[:count]
            leaving.append(ids[out[out < len(ids)]])
            plan.accept[rows[out[out >= len(ids)] - len(ids)]] = False
        plan.evict = np.concatenate(leaving)
        return total > 0


_MOST_SEEN = 10**9 - 1
"""numpy draws from no larger urn; an arrival has practically no chance there any more."""


class _Batch(NamedTuple):
    labels: Ids
    lengths: Ids
    fits: Mask
    limits: Limits


def _levels(wanted: Ids, capacity: int, priority: Ids) -> Ids:
    """Share `capacity` places: everyone up to one level, what is left over by priority."""
    if int(wanted.sum()) <= capacity:
        return wanted
    ascending = np.sort(wanted)
    # Places taken if the level were each of the wanted sizes.
    taken = np.cumsum(ascending) + ascending * np.arange(len(ascending) - 1, -1, -1)
    met = int(np.searchsorted(taken, capacity, side="right"))
    level = (capacity - int(ascending[:met].sum())) // (len(ascending) - met)
    shares = np.minimum(wanted, level)
    above = np.flatnonzero(wanted > level)
    left = capacity - int(shares.sum())
    shares[above[np.argsort(priority[above], kind="stable")[:left]]] += 1
    return shares


def _lottery(classes: Ids, salt: int) -> Ids:
    """A fixed random rank a class, the same for every batch, so that no share ever grows back."""
    x = classes.astype(np.uint64) + np.uint64(salt)
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ (x >> np.uint64(shift))) * np.uint64(factor)
    return (x >> np.uint64(1)).astype(np.int64)


def _capacity(index: Index, lengths: Ids, limits: Limits) -> int:
    records = len(index) + len(lengths)
    capacity = records
    if limits.max_records is not None:
        capacity = min(capacity, limits.max_records)
    if limits.max_bytes is not None:
        total = max(1, index.total_length + int(lengths.sum()))
        capacity = min(capacity, limits.max_bytes * records // total)
    return capacity


def _counts(labels: Ids) -> dict[int, int]:
    values, counts = np.unique(labels, return_counts=True)
    return dict(zip(values.tolist(), counts.tolist(), strict=True))
