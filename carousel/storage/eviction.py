"""Who stays when a tier is full: rules that are functions of the index and a seeded generator."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol

import numpy as np

from carousel.errors import BadInputError
from carousel.storage.columns import Ids
from carousel.storage.index import Index
from carousel.storage.limits import (
    EvictionPlan,
    Limits,
    State,
    fits_alone,
    same_rule,
    within,
)
from carousel.storage.reservoir import ClassReservoir

__all__ = [
    "ClassReservoir",
    "Eviction",
    "EvictionPlan",
    "Fifo",
    "Limits",
    "Reject",
    "make_eviction",
]


class Eviction(Protocol):
    """A rule. Within the limits a plan never evicts, and it never evicts a pinned id."""

    def plan(self, index: Index, labels: Ids, lengths: Ids, limits: Limits) -> EvictionPlan:
        """Decide on a batch of records that are not stored yet.

        Args:
            index: what is stored, and what is pinned.
            labels: (n,) class labels of the batch, in order of arrival.
            lengths: (n,) bytes that each record would cost.
            limits: what stored and accepted records together may come to.
        """
        ...

    def forget(self, labels: Iterable[int]) -> None:
        """Drop what the rule remembers of classes that were deleted on purpose."""
        ...

    def state_dict(self) -> State:
        """All that later plans depend on, in plain JSON types."""
        ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; `BadInputError` when it is another rule's."""
        ...


class Fifo:
    """The records with the lowest ids leave first; pinned ones are passed over."""

    def plan(
        self,
        index: Index,
        labels: Ids,  # noqa: ARG002
        lengths: Ids,
        limits: Limits,
    ) -> EvictionPlan:
        """See `Eviction.plan`."""
        fits = fits_alone(lengths, limits)
        accept, full = fits.copy(), not bool(fits.all())
        if within(index, lengths[fits], limits):
            return EvictionPlan(accept, full=full)
        entries = index.entries()
        free = np.flatnonzero(~index.pinned_mask(entries.ids))
        # The queue: what may leave, oldest first, then the newcomers; cut off its front.
        queue = np.r_[entries.lengths[free], lengths[fits]]
        records = len(index) + np.count_nonzero(fits)
        size = index.total_length + int(lengths[fits].sum())
        cut = _front(queue, int(records), size, limits)
        accept[np.flatnonzero(fits)[: max(0, cut - len(free))]] = False
        return EvictionPlan(accept, entries.ids[free[:cut]], full)

    def forget(self, labels: Iterable[int]) -> None:
        """See `Eviction.forget`; this rule remembers nothing."""

    def state_dict(self) -> State:
        """See `Eviction.state_dict`."""
        return {"rule": "fifo"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Eviction.load_state_dict`."""
        same_rule(state, "fifo")


class Reject:
    """Nothing leaves; what does not fit any more is refused (the tier raises `TierFullError`)."""

    def plan(
        self,
        index: Index,
        labels: Ids,  # noqa: ARG002
        lengths: Ids,
        limits: Limits,
    ) -> EvictionPlan:
        """See `Eviction.plan`."""
        records = len(index) + np.arange(1, len(lengths) + 1)
        sizes = index.total_length + np.cumsum(lengths)
        accept = np.ones(len(lengths), np.bool_)
        if limits.max_records is not None:
            accept &= records <= limits.max_records
        if limits.max_bytes is not None:
            accept &= sizes <= limits.max_bytes
        return EvictionPlan(accept, full=not bool(accept.all()))

    def forget(self, labels: Iterable[int]) -> None:
        """See `Eviction.forget`; this rule remembers nothing."""

    def state_dict(self) -> State:
        """See `Eviction.state_dict`."""
        return {"rule": "reject"}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """See `Eviction.load_state_dict`."""
        same_rule(state, "reject")


def make_eviction(rule: str | Eviction | None = None, seed: int = 0) -> Eviction:
    """The rule of a name: ``class-reservoir`` (also None), ``fifo`` or ``reject``.

    Raises:
        BadInputError: no rule has this name.
    """
    if rule is None:
        return ClassReservoir(seed)
    if not isinstance(rule, str):
        return rule
    if rule not in _RULES:
        raise BadInputError(f"eviction is {rule!r}", fix=f"choose one of {', '.join(_RULES)}")
    return _RULES[rule](seed)


_RULES: dict[str, Callable[[int], Eviction]] = {
    "class-reservoir": ClassReservoir,
    "fifo": lambda _seed: Fifo(),
    "reject": lambda _seed: Reject(),
}


def _front(queue: Ids, records: int, size: int, limits: Limits) -> int:
    """How many of the queue's front have to leave; all of it when pinned records fill the tier."""
    cut = 0
    if limits.max_records is not None:
        cut = max(cut, records - limits.max_records)
    if limits.max_bytes is not None and size > limits.max_bytes:
        cut = max(cut, 1 + int(np.searchsorted(np.cumsum(queue), size - limits.max_bytes)))
    return min(cut, len(queue))
