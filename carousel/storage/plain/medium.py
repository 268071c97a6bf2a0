"""The seam below the plain tiers: something that keeps record bytes by id, and `Change`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

import numpy as np

from carousel.storage.columns import Ids
from carousel.storage.table import Buffer

__all__ = ["Change", "Contents", "Medium", "Place", "Read"]

Read: TypeAlias = Buffer | Exception
"""A record's bytes, or why not: `KeyError` (not here), `CorruptRecordError`, `OSError`."""


@dataclass(slots=True)
class Place:
    """Where one record belongs, beside its id."""

    id: int
    label: int
    task: int


@dataclass(slots=True)
class Change:
    """What happens to a medium in one step: wholly or not at all.

    Args:
        places: of the records to store; one that is there already is replaced.
        blobs: what `Medium.pack` made of them.
        drop: ids to remove for good; a note about one in quarantine goes too.
        quarantine: damaged ids, and what is wrong: the bytes go, the note stays.
        meta: small values to store.
        next_id: the new high-water mark, None when it stays.
    """

    places: Sequence[Place] = ()
    blobs: Sequence[Buffer] = ()
    drop: Ids = field(default_factory=lambda: np.empty(0, np.int64))
    quarantine: Mapping[int, str] = field(default_factory=dict)
    meta: Mapping[str, bytes] = field(default_factory=dict)
    next_id: int | None = None


@dataclass(slots=True)
class Contents:
    """What a medium held when it was opened."""

    places: list[Place] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    quarantined: dict[int, str] = field(default_factory=dict)
    meta: dict[str, bytes] = field(default_factory=dict)
    next_id: int = 0


class Medium(Protocol):
    """Keeps bytes by id. One thread changes it at a time; any number may read."""

    @property
    def identity(self) -> str:
        """Name of what is kept here, given when it was made."""
        ...

    def open(self) -> Contents:
        """What is there now."""
        ...

    def pack(self, record: Buffer) -> Buffer:
        """The bytes that will be kept for a record; their length is what it costs."""
        ...

    def commit(self, change: Change) -> None:
        """Make a change; raises `OSError`, and then nothing was changed for a reader."""
        ...

    def read(self, ids: Sequence[int]) -> list[Read]:
        """Records as they were given to `pack`, in the order asked for."""
        ...

    def problems(self) -> list[str]:
        """What is wrong with the medium itself, beyond single records."""
        ...

    def file_bytes(self) -> int:
        """Bytes taken on the medium."""
        ...

    def close(self) -> None:
        """Give everything back; calling it again is fine."""
        ...
