"""The one store behind all LMDB tiers of a folder in a process."""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
import numpy.typing as npt
from lmdb.verify import verify as lmdb_verify

from carousel.errors import CorruptRecordError, StorageClosedError, StorageError
from carousel.storage.budget import Budget
from carousel.storage.codec import decode_as
from carousel.storage.columns import Ids
from carousel.storage.creation import DATA, SAMPLES
from carousel.storage.disk import folder_bytes
from carousel.storage.eviction import Eviction, Limits, make_eviction
from carousel.storage.index import Index
from carousel.storage.lmdb.environment import Environment
from carousel.storage.lmdb.ledger import Ledger
from carousel.storage.lmdb.pages import (
    check_budget_bytes,
    data_bytes,
    file_bytes,
    group_bytes,
    index_bytes,
)
from carousel.storage.lmdb.prefetch import Prefetcher
from carousel.storage.lmdb.problems import raise_all
from carousel.storage.lmdb.put import Put, pieces
from carousel.storage.lmdb.reader import Destination, Layouts, big_endian_keys
from carousel.storage.lmdb.reviser import Reviser
from carousel.storage.lmdb.scan import fill_index, find_offsets, save_index
from carousel.storage.lmdb.writer import GroupWriter, WriterLimits
from carousel.storage.record import Record, RecordBatch
from carousel.storage.revision import Revision
from carousel.storage.tier import Durability, Progress, ReadStatus, TierStats, VerifyReport

__all__ = ["LMDBStore", "StoreOptions"]

logger = logging.getLogger("carousel.storage")

_QUEUE_BYTES = 4 << 20
_GROUP_RECORDS = 256
_AMPLIFICATION = 1.5
_SMALL_RECORD = 2 << 10


@dataclass(frozen=True)
class StoreOptions:
    """How a store is opened; the tiers that share it must agree on this."""

    budget: Budget
    durability: Durability
    eviction: Eviction | str | None
    readonly: bool
    preallocate: bool
    seed: int
    sync: bool


class LMDBStore:
    """Environment, index, ledger and writer of one folder."""

    def __init__(self, path: Path, options: StoreOptions) -> None:
        budget = options.budget.resolve(path, _size_of(path))
        check_budget_bytes(budget.max_bytes)
        self.path = path
        self.options = options
        self.env = Environment(
            path,
            durability=options.durability,
            readonly=options.readonly,
            max_bytes=None if options.readonly else data_bytes(budget.max_bytes),
            preallocate=options.preallocate,
        )
        try:
            self._load(budget)
        except BaseException:
            self.env.close()
            raise

    def _load(self, budget: Budget) -> None:
        self.budget = budget
        self.index = Index()
        eviction = make_eviction(self.options.eviction, self.options.seed)
        limits = Limits(budget.max_records, data_bytes(budget.max_bytes))
        self.ledger = Ledger(self.env, self.index, eviction, limits)
        self._fill_index()
        self._prefetcher = Prefetcher(self.env.data_path)
        self._group_bytes = group_bytes(budget.max_bytes)
        queue = _QUEUE_BYTES if budget.max_bytes is None else budget.max_bytes // 16
        self._writer: GroupWriter[Put] = GroupWriter(
            self._write_group,
            limits=WriterLimits(min(_QUEUE_BYTES, queue), self._group_bytes, _GROUP_RECORDS),
        )
        self._reviser = Reviser(
            self.env,
            self.index,
            self.ledger,
            self.note_damage,
            group_bytes=self._group_bytes,
            group_records=_GROUP_RECORDS,
        )
        self._layouts = Layouts()
        self._counts = threading.Lock()
        self._reads = self._corrupt = self._io_errors = 0
        self._warned = False
        self._closed = False

    def _fill_index(self) -> None:
        found = fill_index(self.env, self.index)
        self.ledger.problems.extend(found.problems)
        counters = self.ledger.counters
        counters.raw_bytes, counters.cost_bytes = found.raw_bytes, self.index.total_length
        if found.damaged:
            self.ledger.set_aside(found.damaged)

    def _save_index(self) -> None:
        limit = self.budget.max_bytes
        room = None if limit is None else index_bytes(limit)
        try:
            save_index(self.env, self.index, self._amplification(), room)
        except OSError as error:
            logger.warning("the index of %s was not saved; opening will scan: %s", self.path, error)

    def put(self, batch: RecordBatch) -> None:
        """Encode in pieces of at most one group and queue them, or write them when in sync.

        An error of one piece, or of earlier ones, is raised when all pieces were taken.
        """
        self._check_writable()
        problems: list[Exception] = []
        for piece in pieces(batch, self._group_bytes, _GROUP_RECORDS):
            try:
                if self.options.sync:
                    self._write_group([piece])
                else:
                    self._writer.submit(piece)
            except StorageClosedError:
                raise
            except Exception as error:
                problems.append(error)
        raise_all(problems)

    def delete(self, ids: Ids) -> int:
        """Remove records, after everything that was queued before."""
        self._check_writable()
        self._writer.drain()
        return self.ledger.delete(ids)

    def revise(self, revision: Revision) -> int:
        """Rewrite fields of records, after everything that was queued before."""
        self._check_writable()
        self._writer.drain()
        try:
            return len(self._reviser.revise(revision))
        finally:
            self.index.set_offsets(revision.ids, find_offsets(self.env, revision.ids))

    def reserve(self, count: int) -> int:
        """Give out ids."""
        self._check_writable()
        first = self.ledger.reserve(count)
        if self.options.sync:
            self.ledger.settle()
        return first

    def put_meta(self, items: Mapping[bytes, bytes]) -> None:
        """Commit small values."""
        self._check_writable()
        self.ledger.put_meta(items)

    def read_into(
        self, ids: Ids, out: Mapping[str, npt.NDArray[Any]], rows: Ids
    ) -> npt.NDArray[np.uint8]:
        """Read a batch in one transaction; damaged records are set aside after it."""
        self._check_open()
        destination = Destination(out, self._layouts)
        failures = (lmdb.CorruptedError, lmdb.Error)
        with self.env.read() as txn:
            status = destination.read(txn, self.env.databases[SAMPLES], ids, rows, failures)
        self._read_again(destination, ids, rows, status)
        with self._counts:
            self._reads += len(ids)
            self._io_errors += destination.io_errors
        if destination.damaged:
            self.note_damage(destination.damaged)
        return status

    def _read_again(
        self, destination: Destination, ids: Ids, rows: Ids, status: npt.NDArray[np.uint8]
    ) -> None:
        """Read one by one what was refused because the transaction had met a damaged page."""
        if not destination.io_errors:
            return
        destination.io_errors = 0
        damage = (lmdb.Error, lmdb.Error)
        for at in np.flatnonzero(status == ReadStatus.IO_ERROR).tolist():
            one = slice(at, at + 1)
            with self.env.read() as txn:
                status[one] = destination.read(
                    txn, self.env.databases[SAMPLES], ids[one], rows[one], damage
                )

    def read_many(self, ids: Ids) -> list[Record | None]:
        """Read whole records; None where one is missing or damaged."""
        self._check_open()
        found: list[Record | None] = []
        damaged: dict[int, str] = {}
        while len(found) < len(ids):
            found.extend(self._read_on(ids[len(found) :], damaged))
        if damaged:
            self.note_damage(damaged)
        return found

    def _read_on(self, ids: Ids, damaged: dict[int, str]) -> list[Record | None]:
        """Read in one transaction, which is of no use after the first damaged page."""
        found: list[Record | None] = []
        database = self.env.databases[SAMPLES]
        with self.env.read() as txn:
            for id_, key in zip(ids.tolist(), big_endian_keys(ids), strict=True):
                try:
                    view = txn.get(key, None, database)
                    found.append(None if view is None else decode_as(view, id_))
                except CorruptRecordError as error:
                    damaged[id_] = str(error)
                    found.append(None)
                except lmdb.Error as error:
                    damaged[id_] = str(error)
                    return [*found, None]
        return found

    def note_damage(self, damaged: Mapping[int, str]) -> None:
        """Set records aside, without an error for the reader who found them."""
        with self._counts:
            self._corrupt += len(damaged)
        try:
            self.ledger.set_aside(damaged)
        except StorageError as error:
            logger.warning("damaged records could not be set aside on disk: %s", error)

    def prefetch(self, ids: Ids) -> None:
        """Hint at ids that are read soon."""
        found = self.index.lookup(ids)
        self._prefetcher.hint(found.offsets, file_bytes(found.lengths, self.env.page_bytes))

    def drain(self) -> None:
        """Wait for the queue, leaving its errors for `flush`."""
        self._writer.drain()

    def flush(self, timeout: float | None) -> None:
        """Wait for the queue and raise what was met."""
        self._check_open()
        self._writer.flush(timeout)
        self.ledger.settle()

    def verify(self, progress: Progress | None = None) -> VerifyReport:
        """Walk the pages of the file while nothing writes, then read every record."""
        self._check_open()
        entries = self.index.entries()
        report = VerifyReport(checked=len(entries), problems=list(self.ledger.problems))
        with self.ledger.paused():
            found = lmdb_verify(str(self.path))
        report.problems.extend(found)
        if found:
            self.ledger.leave_file_alone()
        before = set(self.ledger.quarantined)
        for start in range(0, len(entries), _GROUP_RECORDS):
            part = slice(start, start + _GROUP_RECORDS)
            for expected, record in zip(
                zip(entries.labels[part].tolist(), entries.tasks[part].tolist(), strict=True),
                self.read_many(entries.ids[part]),
                strict=True,
            ):
                if record is not None and (record.label, record.task) != expected:
                    report.problems.append(
                        f"record {record.id} has label and task {record.label, record.task}, "
                        f"the index {expected}"
                    )
            if progress is not None:
                progress(min(start + _GROUP_RECORDS, len(entries)), len(entries))
        report.corrupt = {
            id_: why for id_, why in self.ledger.quarantined.items() if id_ not in before
        }
        return report

    def stats(self) -> TierStats:
        """Counters and sizes."""
        self._check_open()
        counters = self.ledger.counters
        with self.env.read() as txn:
            live = self.env.live_bytes(txn)
        return TierStats(
            records=len(self.index),
            live_bytes=live,
            file_bytes=folder_bytes(self.path),
            budget_bytes=self.budget.max_bytes,
            budget_records=self.budget.max_records,
            space_amplification=self._amplification(),
            queued_bytes=self._writer.queued_bytes,
            commits=counters.commits,
            puts=counters.puts,
            reads=self._reads,
            evicted=counters.evicted,
            rejected=counters.rejected,
            corrupt=self._corrupt,
            io_errors=self._io_errors,
            save_stall_seconds=self._writer.stall_seconds,
        )

    def close(self) -> None:
        """Commit what is queued and give everything back; raises what the writer met."""
        if self._closed or self.env.forked:
            return
        self._closed = True
        try:
            self._writer.close()
        finally:
            try:
                if not self.options.readonly:
                    self.ledger.settle()
                    self._save_index()
            finally:
                self._prefetcher.close()
                self.env.close()

    def _write_group(self, puts: Sequence[Put]) -> None:
        try:
            self.ledger.write_group(puts)
        finally:
            ids = np.concatenate([put.ids for put in puts])
            self.index.set_offsets(ids, find_offsets(self.env, ids))
        self._warn_if_wasteful()

    def _amplification(self) -> float:
        counters = self.ledger.counters
        return counters.cost_bytes / counters.raw_bytes if counters.raw_bytes else 1.0

    def _warn_if_wasteful(self) -> None:
        if not self._warned and len(self.index) >= 64 and self._amplification() > _AMPLIFICATION:
            self._warned = True
            mean = self.index.total_length / self._amplification() / len(self.index)
            logger.log(
                # Small records never fill their pages: nothing to act on.
                logging.INFO if mean < _SMALL_RECORD else logging.WARNING,
                "records of %s take %.1f times their size in pages; another sample size, or "
                "several samples a record, would save space",
                self.path,
                self._amplification(),
            )

    def _check_open(self) -> None:
        if self._closed:
            raise StorageClosedError(f"the storage at {self.path} is closed")

    def _check_writable(self) -> None:
        self._check_open()
        if self.options.readonly:
            raise StorageError(f"{self.path} is open for reading only")


def _size_of(path: Path) -> int:
    data = path / DATA
    return data.stat().st_size if data.exists() else 0
