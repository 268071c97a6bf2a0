"""`LMDBTier`: the default tier, a handle on the store of one folder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from carousel.errors import BadInputError, StorageClosedError, StorageLockedError
from carousel.storage.budget import BudgetLike, parse_budget
from carousel.storage.columns import Ids
from carousel.storage.creation import META
from carousel.storage.durability import check_durability
from carousel.storage.eviction import Eviction
from carousel.storage.lmdb.registry import acquire, release
from carousel.storage.lmdb.store import LMDBStore, StoreOptions
from carousel.storage.record import Record, RecordBatch
from carousel.storage.revision import Revision
from carousel.storage.tier import (
    Durability,
    IndexEntries,
    Progress,
    TierStats,
    VerifyReport,
    as_count,
    as_ids,
)

__all__ = ["LMDBTier"]


class LMDBTier:
    """Keeps records in an LMDB environment, written by one background thread.

    The same folder may be opened several times in a process: the handles share one store and the
    last `close` closes it. A handle can be pickled; the copy opens the folder when first used, to
    read only if another process owns it. After a fork the child gets a typed error, never a
    damaged store.

    Args:
        path: the folder of the environment (``path/data.mdb``); made when missing.
        budget: records like 5000, bytes like ``"64MiB"``, a share of the free disk like
            ``"50%"``, a `Budget`, or None for no limit. File bytes never exceed it; one sample may
            take up to 1/16 of it.
        durability: what an acknowledged record survives, see `Durability`.
        eviction: a rule or its name; default `ClassReservoir`.
        readonly: read a folder that another process may own.
        preallocate: take the whole byte budget from the disk now.
        seed: of the default eviction rule.
        sync: no thread; `put_many` has committed when it returns, which makes runs repeatable.

    Raises:
        BadInputError: an option or the path cannot be used.
        StorageLockedError: another process owns the folder; has its process id.
        StorageCorruptedError, ForeignStorageError, UncleanStorageError: what is there cannot
            be used, and the message says what to do.

    Example:
        >>> import tempfile
        >>> with tempfile.TemporaryDirectory() as folder, LMDBTier(folder + "/db") as tier:
        ...     tier.reserve_ids(10), tier.high_water
        (0, 10)
    """

    def __init__(
        self,
        path: str | Path,
        *,
        budget: BudgetLike = None,
        durability: Durability = "bounded",
        eviction: Eviction | str | None = None,
        readonly: bool = False,
        preallocate: bool = False,
        seed: int = 0,
        sync: bool = False,
    ) -> None:
        check_durability(durability)
        self.path = Path(path).absolute()
        self._options = StoreOptions(
            parse_budget(budget), durability, eviction, readonly, preallocate, seed, sync
        )
        self._closed = False
        self._held: LMDBStore | None = acquire(self.path, self._options, agree=True)

    @property
    def identity(self) -> str:
        """See `StorageTier.identity`."""
        return self._store.env.uuid

    @property
    def durability(self) -> Durability:
        """See `StorageTier.durability`."""
        return self._options.durability

    @property
    def readonly(self) -> bool:
        """Whether this handle only reads."""
        return self._options.readonly or self._store.options.readonly

    @property
    def high_water(self) -> int:
        """See `StorageTier.high_water`."""
        return self._store.ledger.next_id

    def reserve_ids(self, count: int) -> int:
        """See `StorageTier.reserve_ids`; committed by the next `flush` at the latest."""
        count = as_count(count)
        return self._writable.reserve(count)

    def put_many(self, batch: RecordBatch) -> None:
        """See `StorageTier.put_many`."""
        self._writable.put(batch)

    def get_into(
        self,
        ids: Ids,
        out: Mapping[str, npt.NDArray[Any]],
        rows: Ids,
    ) -> npt.NDArray[np.uint8]:
        """See `StorageTier.get_into`.

        An encoded field can be asked for too: its array has dtype object and receives ``bytes``.
        """
        return self._store.read_into(as_ids(ids), out, as_ids(rows))

    def get_many(self, ids: Ids) -> list[Record | None]:
        """See `StorageTier.get_many`."""
        return self._store.read_many(as_ids(ids))

    def prefetch(self, ids: Ids) -> None:
        """See `StorageTier.prefetch`."""
        self._store.prefetch(as_ids(ids))

    def revise_many(self, ids: Ids, fields: Mapping[str, npt.NDArray[np.generic]]) -> int:
        """See `StorageTier.revise_many`."""
        revision = Revision.checked(as_ids(ids), fields)
        return self._writable.revise(revision)

    def delete_many(self, ids: Ids) -> int:
        """See `StorageTier.delete_many`; these ids stay out when they are presented again."""
        return self._writable.delete(as_ids(ids))

    def contains(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """See `StorageTier.contains`."""
        return self._store.index.contains(as_ids(ids))

    def ids_of(self, label: int) -> Ids:
        """See `StorageTier.ids_of`."""
        return self._store.index.ids_of(label)

    def tasks_of(self, ids: Ids) -> Ids:
        """See `StorageTier.tasks_of`."""
        return self._store.index.lookup(as_ids(ids)).tasks

    def class_counts(self) -> dict[int, int]:
        """See `StorageTier.class_counts`."""
        return self._store.index.class_counts()

    def hide_from(self, first_id: int) -> None:
        """See `StorageTier.hide_from`."""
        self._store.index.hide_from(first_id)

    def pin(self, ids: Ids) -> None:
        """See `StorageTier.pin`."""
        self._store.index.pin(as_ids(ids))

    def unpin(self, ids: Ids) -> None:
        """See `StorageTier.unpin`."""
        self._store.index.unpin(as_ids(ids))

    def entries(self) -> IndexEntries:
        """See `StorageTier.entries`."""
        return self._store.index.entries()

    def get_meta(self, key: str) -> bytes | None:
        """See `StorageTier.get_meta`."""
        return self._store.ledger.get_meta(_meta_key(key))

    def put_meta(self, items: Mapping[str, bytes]) -> None:
        """See `StorageTier.put_meta`."""
        self._writable.put_meta({_meta_key(key): value for key, value in items.items()})

    def meta_keys(self) -> list[str]:
        """See `StorageTier.meta_keys`."""
        env, start = self._store.env, _meta_key("")
        with env.read() as txn:
            keys = map(bytes, txn.cursor(env.databases[META]).iternext(values=False))
            return [
                key[len(start) :].decode(errors="replace") for key in keys if key.startswith(start)
            ]

    def flush(self, timeout: float | None = None) -> None:
        """See `StorageTier.flush`."""
        self._store.flush(timeout)

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """See `StorageTier.verify`; then the file's own structure is checked."""
        return self._store.verify(progress)

    def quarantined(self) -> dict[int, str]:
        """See `StorageTier.quarantined`."""
        return dict(self._store.ledger.quarantined)

    def stats(self) -> TierStats:
        """See `StorageTier.stats`."""
        return self._store.stats()

    def close(self) -> None:
        """See `StorageTier.close`."""
        self._closed = True
        store, self._held = self._held, None
        if store is not None:
            release(store)

    def __enter__(self) -> LMDBTier:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> tuple[Path, StoreOptions, bool]:
        return self.path, self._options, self._closed

    def __setstate__(self, state: tuple[Path, StoreOptions, bool]) -> None:
        self.path, self._options, self._closed = state
        self._held = None

    @property
    def _store(self) -> LMDBStore:
        if self._closed:
            raise StorageClosedError(f"the storage at {self.path} is closed")
        if self._held is None or self._held.env.forked:
            self._held = self._reopen()
        return self._held

    @property
    def _writable(self) -> LMDBStore:
        store = self._store
        if self._options.readonly or store.options.readonly:
            raise BadInputError(f"{self.path} is open for reading only", fix="open it for writing")
        return store

    def _reopen(self) -> LMDBStore:
        try:
            return acquire(self.path, self._options, agree=False)
        except StorageLockedError:
            return acquire(self.path, replace(self._options, readonly=True), agree=False)


def _meta_key(key: str) -> bytes:
    return b"user/" + key.encode()
