"""A tier in RAM: the reference that the other tiers are tested against."""

from __future__ import annotations

import uuid
from collections.abc import Sequence

from carousel.errors import BadInputError
from carousel.storage.budget import BudgetLike, parse_budget
from carousel.storage.eviction import Eviction, make_eviction
from carousel.storage.plain.medium import Change, Contents, Read
from carousel.storage.plain.tier import PlainTier
from carousel.storage.table import Buffer

__all__ = ["MemoryTier"]


class MemoryTier(PlainTier):
    """Keeps encoded records in a dict, with all the checks of a tier on disk.

    For tests, for dry runs and for stores that need not outlive the process (``ephemeral``).

    Args:
        budget: records, bytes (``"64MiB"``, of encoded records), a `Budget`, or None.
        eviction: a rule or its name; default `ClassReservoir`.
        seed: of the default rule.

    Raises:
        BadInputError: the budget is a share of the disk, or cannot be read.

    Example:
        >>> tier = MemoryTier(budget=1000)
        >>> tier.reserve_ids(10), tier.high_water
        (0, 10)
    """

    def __init__(
        self,
        budget: BudgetLike = None,
        eviction: Eviction | str | None = None,
        seed: int = 0,
    ) -> None:
        limits = parse_budget(budget)
        if limits.disk_fraction is not None:
            raise BadInputError(
                "the budget is a share of the disk, but this tier is in RAM",
                fix='give records like 5000 or bytes like "64MiB"',
            )
        super().__init__(_Dict(), limits, make_eviction(eviction, seed), "ephemeral")


class _Dict:
    """A medium of records in a dict; bytes of its own, so that one record keeps no block alive."""

    def __init__(self) -> None:
        self.identity = uuid.uuid4().hex
        self._records: dict[int, Buffer] = {}
        self._size = 0

    def open(self) -> Contents:
        return Contents()

    def pack(self, record: Buffer) -> Buffer:
        return bytes(record)

    def commit(self, change: Change) -> None:
        for id_ in [*change.drop.tolist(), *change.quarantine]:
            self._size -= len(self._records.pop(id_, b""))
        for place, blob in zip(change.places, change.blobs, strict=True):
            self._size += len(blob) - len(self._records.get(place.id, b""))
            self._records[place.id] = blob

    def read(self, ids: Sequence[int]) -> list[Read]:
        return [self._records.get(id_, _MISSING) for id_ in ids]

    def problems(self) -> list[str]:
        return []

    def file_bytes(self) -> int:
        return self._size

    def close(self) -> None:
        self._records.clear()
        self._size = 0


_MISSING = KeyError("not stored")
