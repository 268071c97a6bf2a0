"""A whole `StorageTier` on any `Medium`: what `MemoryTier` and `FileTier` have in common.

Nothing is queued: a call has happened when it returns. That makes it the reference for the
faster tiers, and simple enough to trust.
"""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Self

import numpy as np
import numpy.typing as npt

from carousel.errors import (
    DuplicateIdError,
    StorageClosedError,
    StorageError,
    TierFullError,
)
from carousel.storage.budget import Budget
from carousel.storage.codec import encode_batch
from carousel.storage.columns import Ids
from carousel.storage.eviction import Eviction, Limits
from carousel.storage.failures import disk_error
from carousel.storage.index import Index
from carousel.storage.plain.medium import Change, Medium, Place
from carousel.storage.plain.reader import PlainReader, chunks, copy_row
from carousel.storage.plain.rewrite import Rewrite
from carousel.storage.record import Record, RecordBatch
from carousel.storage.revision import Revision
from carousel.storage.table import Buffer
from carousel.storage.tier import (
    Durability,
    IndexEntries,
    Progress,
    ReadStatus,
    TierStats,
    VerifyReport,
    as_count,
    as_ids,
)
from carousel.storage.tombstones import Tombstones

__all__ = ["PlainTier"]

logger = logging.getLogger("carousel.storage")

_STEP = 64
_RULE_KEY, _FORGOTTEN_KEY = "_eviction", "_forgotten"


class PlainTier:
    """The tier protocol, synchronous, over a medium.

    Args:
        medium: keeps the bytes.
        budget: limits, already resolved to bytes and records.
        eviction: who stays when the budget is full.
        durability: what the medium promises.
    """

    def __init__(
        self, medium: Medium, budget: Budget, eviction: Eviction, durability: Durability
    ) -> None:
        self._medium = medium
        self._eviction = eviction
        self._durability = durability
        self._limits = Limits(budget.max_records, budget.max_bytes)
        self._index = Index()
        self._lock = threading.RLock()
        self._stats = TierStats(budget_bytes=budget.max_bytes, budget_records=budget.max_records)
        self._reader = PlainReader(medium, self._set_aside)
        self._closed = False
        self._forgotten = Tombstones()
        self._load()

    @property
    def identity(self) -> str:
        """See `StorageTier.identity`."""
        return self._medium.identity

    @property
    def durability(self) -> Durability:
        """See `StorageTier.durability`."""
        return self._durability

    @property
    def high_water(self) -> int:
        """See `StorageTier.high_water`."""
        return self._next_id

    def reserve_ids(self, count: int) -> int:
        """See `StorageTier.reserve_ids`."""
        count = as_count(count)
        with self._lock:
            first = self._next_id
            self._commit(Change(next_id=first + count))
            return first

    def put_many(self, batch: RecordBatch) -> None:
        """See `StorageTier.put_many`; the errors that others raise at `flush` come at once."""
        records = encode_batch(batch)
        with self._lock:
            self._check_open()
            rows, changed = self._unstored(batch, records)
            blobs = [self._medium.pack(records[row]) for row in rows.tolist()]
            full = self._store(batch, rows, blobs)
            self._index.show(batch.ids)
            self._stats.puts += len(batch)
        if changed:
            raise DuplicateIdError(
                f"ids {changed[:5]} are stored with other content",
                fix="give every sample its own id, see reserve_ids",
            )
        if full:
            raise TierFullError("the storage budget is full; raise it or choose another eviction")

    def get_into(
        self, ids: Ids, out: Mapping[str, npt.NDArray[np.generic]], rows: Ids
    ) -> npt.NDArray[np.uint8]:
        """See `StorageTier.get_into`.

        An encoded field can be asked for too: its array has dtype object and receives ``bytes``.
        """
        self._check_open()
        ids, rows = as_ids(ids), as_ids(rows)
        status = np.full(len(ids), ReadStatus.MISSING, np.uint8)
        at = np.flatnonzero(self._index.contains(ids))
        for i, found in zip(at.tolist(), self._reader.records(ids[at]), strict=True):
            row = int(rows[i])
            status[i] = copy_row(found, out, row) if isinstance(found, Record) else found
        return status

    def get_many(self, ids: Ids) -> list[Record | None]:
        """See `StorageTier.get_many`."""
        self._check_open()
        ids = as_ids(ids)
        found: list[Record | None] = [None] * len(ids)
        at = np.flatnonzero(self._index.contains(ids))
        for i, record in zip(at.tolist(), self._reader.records(ids[at]), strict=True):
            found[i] = record if isinstance(record, Record) else None
        return found

    def prefetch(self, ids: Ids) -> None:
        """See `StorageTier.prefetch`; there is nothing to gain here."""

    def revise_many(self, ids: Ids, fields: Mapping[str, npt.NDArray[np.generic]]) -> int:
        """See `StorageTier.revise_many`; all records in one step."""
        revision = Revision.checked(as_ids(ids), fields)
        with self._lock:
            self._check_open()
            rewrite = Rewrite.of(revision, self._index, self._medium)
            if rewrite.damaged:
                self._set_aside(rewrite.damaged)
            rewrite.check_room(self._index, self._limits)
            if len(rewrite):
                self._commit(Change(places=rewrite.places, blobs=rewrite.blobs))
                self._index.set_lengths(rewrite.ids, rewrite.lengths)
            return len(rewrite)

    def delete_many(self, ids: Ids) -> int:
        """See `StorageTier.delete_many`; deleted ids stay out when they are presented again."""
        with self._lock:
            known = np.unique(as_ids(ids))
            stored = known[self._index.contains(known)]
            given = known[known < self._next_id]
            if len(stored) == 0 and self._forgotten.contains(given).all():
                return 0
            forgotten = self._forgotten.with_ids(given)
            with self._rule_undone_on_error():
                self._eviction.forget(self._index.emptied_by(stored))
                meta = {_FORGOTTEN_KEY: forgotten.to_bytes(), _RULE_KEY: self._rule_state()}
                self._commit(Change(drop=known, meta=meta))
            self._forgotten = forgotten
            self._index.remove(stored)
            for id_ in known.tolist():
                self._quarantined.pop(id_, None)
            return len(stored)

    def contains(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """See `StorageTier.contains`."""
        return self._index.contains(as_ids(ids))

    def ids_of(self, label: int) -> Ids:
        """See `StorageTier.ids_of`."""
        return self._index.ids_of(label)

    def tasks_of(self, ids: Ids) -> Ids:
        """See `StorageTier.tasks_of`."""
        return self._index.lookup(as_ids(ids)).tasks

    def class_counts(self) -> dict[int, int]:
        """See `StorageTier.class_counts`."""
        return self._index.class_counts()

    def hide_from(self, first_id: int) -> None:
        """See `StorageTier.hide_from`."""
        self._index.hide_from(first_id)

    def pin(self, ids: Ids) -> None:
        """See `StorageTier.pin`."""
        self._index.pin(as_ids(ids))

    def unpin(self, ids: Ids) -> None:
        """See `StorageTier.unpin`."""
        self._index.unpin(as_ids(ids))

    def entries(self) -> IndexEntries:
        """See `StorageTier.entries`."""
        return self._index.entries()

    def get_meta(self, key: str) -> bytes | None:
        """See `StorageTier.get_meta`."""
        return self._meta.get(key)

    def put_meta(self, items: Mapping[str, bytes]) -> None:
        """See `StorageTier.put_meta`."""
        with self._lock:
            self._commit(Change(meta=dict(items)))

    def meta_keys(self) -> list[str]:
        """See `StorageTier.meta_keys`."""
        with self._lock:
            return [key for key in self._meta if key not in (_RULE_KEY, _FORGOTTEN_KEY)]

    def flush(self, timeout: float | None = None) -> None:  # noqa: ARG002
        """See `StorageTier.flush`; nothing is ever queued."""
        self._check_open()

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """See `StorageTier.verify`."""
        self._check_open()
        ids = self._index.entries().ids
        with self._lock:
            report = VerifyReport(checked=len(ids), problems=self._medium.problems())
        before = self.quarantined()
        for done, found in enumerate(self._reader.records(ids), start=1):
            if found is ReadStatus.IO_ERROR:
                report.problems.append(f"record {ids[done - 1]} could not be read")
            if progress is not None and (done % _STEP == 0 or done == len(ids)):
                progress(done, len(ids))
        report.corrupt = {i: why for i, why in self.quarantined().items() if i not in before}
        return report

    def quarantined(self) -> dict[int, str]:
        """See `StorageTier.quarantined`."""
        with self._lock:
            return dict(self._quarantined)

    def stats(self) -> TierStats:
        """See `StorageTier.stats`."""
        live, size = self._index.total_length, self._medium.file_bytes()
        return replace(
            self._stats,
            records=len(self._index),
            live_bytes=live,
            file_bytes=size,
            reads=self._reader.reads,
            io_errors=self._stats.io_errors + self._reader.io_errors,
            space_amplification=size / live if live else 1.0,
        )

    def close(self) -> None:
        """See `StorageTier.close`."""
        with self._lock:
            self._closed = True
            self._medium.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _load(self) -> None:
        contents = self._medium.open()
        places = contents.places
        self._index.add(
            np.array([place.id for place in places], np.int64),
            np.array([place.label for place in places], np.int64),
            np.array([place.task for place in places], np.int64),
            np.array(contents.lengths, np.int64),
        )
        self._quarantined = contents.quarantined
        self._meta = contents.meta
        self._next_id = contents.next_id
        self._forgotten = Tombstones.from_bytes(self._meta.get(_FORGOTTEN_KEY, b""))
        if _RULE_KEY in self._meta:
            self._eviction.load_state_dict(json.loads(self._meta[_RULE_KEY]))

    def _check_open(self) -> None:
        if self._closed:
            raise StorageClosedError("the storage tier is closed")

    def _commit(self, change: Change) -> None:
        self._check_open()
        try:
            self._medium.commit(change)
        except OSError as error:
            self._stats.io_errors += 1
            what = f"{error.filename or 'the storage'} cannot be written"
            raise disk_error(error, what) from error
        self._stats.commits += 1
        self._meta.update(change.meta)
        if change.next_id is not None:
            self._next_id = change.next_id

    def _unstored(self, batch: RecordBatch, records: list[memoryview]) -> tuple[Ids, list[int]]:
        """Rows to store, and ids that are stored with other content."""
        _, first, group = np.unique(batch.ids, return_index=True, return_inverse=True)
        changed = {
            int(batch.ids[row])
            for row in np.flatnonzero(first[group] != np.arange(len(batch))).tolist()
            if records[row] != records[first[group[row]]]
        }
        stored = first[self._index.contains(batch.ids[first])]
        for rows in chunks(stored):
            reads = self._medium.read(batch.ids[rows].tolist())
            differ = np.array([records[r] != x for r, x in zip(rows.tolist(), reads, strict=True)])
            ids = batch.ids[rows[differ]]
            intact = [isinstance(found, Record) for found in self._reader.records(ids)]
            changed |= set(ids[intact].tolist())
        # A stored copy that proved damaged just now was set aside: the new one takes its place.
        rows = np.sort(first)
        rows = rows[~self._index.contains(batch.ids[rows])]
        forgotten = self._forgotten.contains(batch.ids[rows])
        self._stats.rejected += int(np.count_nonzero(forgotten))
        return rows[~forgotten], sorted(changed)

    def _store(self, batch: RecordBatch, rows: Ids, blobs: list[Buffer]) -> bool:
        """Let the rule decide and commit what it says; returns whether the tier is full."""
        if len(rows) == 0:
            return False
        lengths = np.array([len(blob) for blob in blobs], np.int64)
        with self._rule_undone_on_error():
            plan = self._eviction.plan(self._index, batch.labels[rows], lengths, self._limits)
            kept = rows[plan.accept]
            ids, labels, tasks = batch.ids[kept], batch.labels[kept], batch.tasks[kept]
            columns = zip(ids.tolist(), labels.tolist(), tasks.tolist(), strict=True)
            self._commit(
                Change(
                    places=[Place(*row) for row in columns],
                    blobs=[blobs[i] for i in np.flatnonzero(plan.accept).tolist()],
                    drop=plan.evict,
                    meta={_RULE_KEY: self._rule_state()},
                    next_id=max(self._next_id, int(batch.ids.max()) + 1),
                )
            )
        self._index.remove(plan.evict)
        self._index.add(ids, labels, tasks, lengths[plan.accept])
        for id_ in ids.tolist():
            self._quarantined.pop(id_, None)
        self._stats.evicted += len(plan.evict)
        self._stats.rejected += len(rows) - len(kept)
        return plan.full

    @contextmanager
    def _rule_undone_on_error(self) -> Iterator[None]:
        before = self._eviction.state_dict()
        try:
            yield
        except BaseException:
            self._eviction.load_state_dict(before)
            raise

    def _rule_state(self) -> bytes:
        return json.dumps(self._eviction.state_dict()).encode()

    def _set_aside(self, damaged: dict[int, str]) -> set[int]:
        with self._lock:
            ids = np.array(sorted(damaged), np.int64)
            ids = ids[self._index.contains(ids)]
            self._index.remove(ids)
            self._stats.corrupt += len(ids)
            why = {id_: damaged[id_] for id_ in ids.tolist()}
            self._quarantined.update(why)
            try:
                self._commit(Change(quarantine=why))
            except StorageError as error:
                # The reader who found it is served all the same; it is found again when reopened.
                logger.warning("damaged records could not be set aside: %s", error)
            return set(ids.tolist())
