"""The seam between the memory and whatever keeps the bytes: `StorageTier`."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from operator import index as as_int
from typing import Protocol, SupportsIndex, TypeAlias, runtime_checkable

import numpy as np
import numpy.typing as npt

from carousel.errors import BadInputError
from carousel.storage.durability import DURABILITIES, Durability
from carousel.storage.record import MAX_ID, Record, RecordBatch

__all__ = [
    "DURABILITIES",
    "Durability",
    "IndexEntries",
    "Progress",
    "ReadStatus",
    "StorageTier",
    "TierStats",
    "VerifyReport",
]

Progress: TypeAlias = Callable[[int, int], None]
"""Called now and then with how many records are done, and how many there are."""


class ReadStatus(IntEnum):
    """What became of one row of a batch read."""

    OK = 0
    MISSING = 1
    CORRUPT = 2
    LAYOUT = 3  # intact, but its fields are not those of the destination
    IO_ERROR = 4


@dataclass(slots=True)
class IndexEntries:
    """What is stored, column by column, in ascending order of id."""

    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    tasks: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(slots=True)
class TierStats:
    """Counters and sizes of a tier. Bytes are bytes; the stall is in seconds."""

    records: int = 0
    live_bytes: int = 0
    file_bytes: int = 0
    budget_bytes: int | None = None
    budget_records: int | None = None
    space_amplification: float = 1.0
    queued_bytes: int = 0
    commits: int = 0
    puts: int = 0
    reads: int = 0
    evicted: int = 0
    rejected: int = 0
    corrupt: int = 0
    io_errors: int = 0
    save_stall_seconds: float = 0.0


@dataclass(slots=True)
class VerifyReport:
    """Outcome of reading every record: how many are intact, which are not, and why."""

    checked: int = 0
    corrupt: dict[int, str] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """True when every record and the file itself are intact."""
        return not self.corrupt and not self.problems


@runtime_checkable
class StorageTier(Protocol):
    """Keeps records by id; every call takes and gives batches.

    Reads are safe from several threads. Writes are queued to one writer which commits them in
    groups; what `flush` returned for is acknowledged and survives as `durability` says. Ids are
    given out by `reserve_ids`, rise, and are never used twice.
    """

    @property
    def identity(self) -> str:
        """Name of this storage and no other, given when it was made; a copy keeps it."""
        ...

    @property
    def durability(self) -> Durability:
        """What an acknowledged record survives."""
        ...

    @property
    def high_water(self) -> int:
        """The next id that `reserve_ids` would give."""
        ...

    def reserve_ids(self, count: int) -> int:
        """Set aside `count` fresh ids and return the first; survives a restart."""
        ...

    def put_many(self, batch: RecordBatch) -> None:
        """Queue a batch; blocks while the queue is full. The arrays are copied before it returns.

        An id that is stored with the same content is skipped and shown again; with other content
        it is a `DuplicateIdError` at `flush`. When the budget is full the eviction rule decides.

        Raises:
            TierFullError: nothing can make room (also raised by `flush`).
            SchemaMismatchError: the batch's arrays do not have the layout they state.
        """
        ...

    def get_into(
        self,
        ids: npt.NDArray[np.int64],
        out: Mapping[str, npt.NDArray[np.generic]],
        rows: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint8]:
        """Read records straight into ``out[name][row]`` and return a `ReadStatus` a row.

        ``out`` names the fields wanted, each (capacity, *shape). Only a row with status OK was
        written whole; others may hold anything. Never raises for a single record.
        """
        ...

    def get_many(self, ids: npt.NDArray[np.int64]) -> list[Record | None]:
        """Read whole records (None where missing or corrupt): for inspection, not for training."""
        ...

    def prefetch(self, ids: npt.NDArray[np.int64]) -> None:
        """Hint that these ids are read soon; costs little and never fails."""
        ...

    def revise_many(
        self, ids: npt.NDArray[np.int64], fields: Mapping[str, npt.NDArray[np.generic]]
    ) -> int:
        """Replace some fields of records; returns how many were, committed when it returns.

        Comes after all that was queued before. Records are rewritten in groups, each group in one
        transaction: after a kill a record is the old one or the new one. Everything else about
        it, its size too, stays. Ids that are not stored, or damaged, are ignored; hidden ones are
        revised and stay hidden.

        Args:
            ids: (n,) distinct ids.
            fields: per field to replace an array (n, *shape), of the dtype that is stored.

        Raises:
            BadInputError: an id is given twice, or a field has another number of rows.
            SchemaMismatchError: a record has not got such a field, or its values are encoded;
                nothing was changed.
            TierFullError: there is no room to write; earlier groups may have been rewritten.
        """
        ...

    def delete_many(self, ids: npt.NDArray[np.int64]) -> int:
        """Remove records and return how many existed; committed when it returns."""
        ...

    def contains(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Which ids are committed (hidden ones included), (n,) bool."""
        ...

    def ids_of(self, label: int) -> npt.NDArray[np.int64]:
        """Committed, visible ids of a class: a read-only snapshot, cheap to take."""
        ...

    def tasks_of(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
        """Task label of each id, (n,); -1 where the id is not committed."""
        ...

    def class_counts(self) -> dict[int, int]:
        """Committed, visible records by class label."""
        ...

    def hide_from(self, first_id: int) -> None:
        """Hide every record with this id or a later one from draws until it is presented again."""
        ...

    def pin(self, ids: npt.NDArray[np.int64]) -> None:
        """Keep these ids from eviction (counted: pin twice, unpin twice)."""
        ...

    def unpin(self, ids: npt.NDArray[np.int64]) -> None:
        """Undo one `pin` of each id."""
        ...

    def entries(self) -> IndexEntries:
        """All committed records, hidden ones included."""
        ...

    def get_meta(self, key: str) -> bytes | None:
        """A small value kept beside the records (schema, journal of runs)."""
        ...

    def put_meta(self, items: Mapping[str, bytes]) -> None:
        """Store small values in one commit, as durable as a record."""
        ...

    def meta_keys(self) -> list[str]:
        """The keys of all values that `put_meta` stored."""
        ...

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all queued writes are committed; raises what the writer met since the last.

        Raises:
            TimeoutError: not done within `timeout` seconds.
        """
        ...

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Read every record and check every byte; corrupt ones are set aside."""
        ...

    def quarantined(self) -> dict[int, str]:
        """Ids that were set aside as corrupt, and why."""
        ...

    def stats(self) -> TierStats:
        """Counters and sizes now."""
        ...

    def close(self) -> None:
        """Commit what is queued, stop the threads, release the lock; calling it again is fine."""
        ...


def as_count(count: SupportsIndex) -> int:
    """A number of ids as an int.

    Raises:
        BadInputError: it is no whole number of at least 0, or no ids are left for so many.
    """
    try:
        number = as_int(count)
    except TypeError:
        number = -1
    if not 0 <= number <= MAX_ID:
        raise BadInputError(f"count is {count!r}", fix="reserve 0 ids or more")
    return number


def as_ids(ids: Sequence[int] | npt.NDArray[np.generic]) -> npt.NDArray[np.int64]:
    """Any sequence of ids as the int64 array that a tier takes."""
    return np.asarray(ids, dtype=np.int64).reshape(-1)
