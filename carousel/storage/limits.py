"""What a tier may hold, a plan that keeps to it, and the arithmetic between them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from carousel.errors import BadInputError
from carousel.storage.columns import Ids
from carousel.storage.index import Index

__all__ = [
    "EvictionPlan",
    "Limits",
    "Mask",
    "State",
    "fits_alone",
    "same_rule",
    "surplus",
    "within",
]

Mask: TypeAlias = npt.NDArray[np.bool_]
State: TypeAlias = dict[str, Any]


class Limits(NamedTuple):
    """What all records together may come to; None where nothing is limited.

    ``max_bytes`` is in the unit of the index's lengths.
    """

    max_records: int | None = None
    max_bytes: int | None = None


@dataclass(slots=True)
class EvictionPlan:
    """What to do with a batch: which rows enter and which stored ids leave first.

    Args:
        accept: (n,) bool, the incoming rows to store.
        evict: ids to remove in the same transaction.
        full: rows were turned away because nothing may make room: a `TierFullError`.
    """

    accept: Mask
    evict: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    full: bool = False


def surplus(records: int, size: int, limits: Limits) -> int:
    """How many records have to leave for the limits to hold, at least by the mean."""
    surplus = 0
    if limits.max_records is not None:
        surplus = max(surplus, records - limits.max_records)
    if limits.max_bytes is not None and size > limits.max_bytes:
        surplus = max(surplus, -((limits.max_bytes - size) * records // size))
    return surplus


def within(index: Index, lengths: Ids, limits: Limits) -> bool:
    """Whether records of these lengths fit beside all that is stored."""
    return surplus(len(index) + len(lengths), index.total_length + int(lengths.sum()), limits) == 0


def fits_alone(lengths: Ids, limits: Limits) -> Mask:
    """Which records would fit into an empty tier, (n,) bool."""
    if limits.max_bytes is None:
        return np.ones(len(lengths), np.bool_)
    return lengths <= limits.max_bytes


def same_rule(state: Mapping[str, Any], rule: str) -> None:
    """Refuse the state of another rule.

    Raises:
        BadInputError: the state is not this rule's.
    """
    if state.get("rule") != rule:
        raise BadInputError(
            f"the storage was filled under the eviction rule {state.get('rule')!r}, not {rule!r}",
            fix="open it with the same rule",
        )
