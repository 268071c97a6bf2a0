"""Rewriting fields of records in an LMDB store: a group at a time, each in one transaction."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping

import numpy as np

from carousel.errors import CorruptRecordError, TierFullError
from carousel.storage.codec import read_table
from carousel.storage.columns import Ids
from carousel.storage.creation import SAMPLES
from carousel.storage.index import Index
from carousel.storage.lmdb.environment import Environment
from carousel.storage.lmdb.errors import MapFullError
from carousel.storage.lmdb.ledger import Ledger
from carousel.storage.lmdb.reader import big_endian_keys
from carousel.storage.revision import Revision

__all__ = ["Reviser"]


class Reviser:
    """Reads records, replaces values in them, and writes them under the same ids.

    Nothing else writes meanwhile. A record that is found damaged is set aside.

    Args:
        env: the environment.
        index: what is stored; it does not change, for a record keeps its size.
        ledger: writes.
        set_aside: takes damaged ids, and what is wrong with them.
        group_bytes: records of one transaction.
        group_records: likewise.
    """

    def __init__(
        self,
        env: Environment,
        index: Index,
        ledger: Ledger,
        set_aside: Callable[[Mapping[int, str]], None],
        *,
        group_bytes: int,
        group_records: int,
    ) -> None:
        self._env = env
        self._index = index
        self._ledger = ledger
        self._set_aside = set_aside
        self._group_bytes = group_bytes
        self._group_records = group_records

    def revise(self, revision: Revision) -> Ids:
        """Rewrite what is stored of these ids; returns the ids that were, (k,).

        Raises:
            SchemaMismatchError: a record has not got the fields; nothing was written.
            TierFullError: there is no room to write; groups before this one were written.
        """
        with self._ledger.paused():
            rows = np.flatnonzero(self._index.contains(revision.ids))
            rows = rows[np.argsort(revision.ids[rows])]
            self._check_layouts(revision, rows)
            done = [self._rewrite(revision, group) for group in self._groups(revision, rows)]
        return np.concatenate([*done, revision.ids[:0]])

    def _check_layouts(self, revision: Revision, rows: Ids) -> None:
        """Look at one record of each layout, without reading its values."""
        known: set[bytes] = set()
        with self._env.read() as txn:
            for key in big_endian_keys(revision.ids[rows]):
                view = txn.get(key, db=self._env.databases[SAMPLES])
                fingerprint = b"" if view is None else bytes(view[_FINGERPRINT])
                if view is None or fingerprint in known:
                    continue
                known.add(fingerprint)
                try:
                    info = read_table(view)
                except (
                    CorruptRecordError,
                    ValueError,
                    struct.error,
                ):  # set aside when its turn comes
                    continue
                revision.check_layout(info)

    def _groups(self, revision: Revision, rows: Ids) -> list[Ids]:
        if len(rows) == 0:
            return []
        most = min(self._group_records, self._ledger.rewrites_at_once() or self._group_records)
        sizes = np.cumsum(self._index.lookup(revision.ids[rows]).lengths)
        groups, start = [], 0
        while start < len(rows):
            before = int(sizes[start - 1]) if start else 0
            stop = int(np.searchsorted(sizes, before + self._group_bytes, side="right"))
            stop = min(max(stop, start + 1), start + most)
            groups.append(rows[start:stop])
            start = stop
        return groups

    def _rewrite(self, revision: Revision, rows: Ids) -> Ids:
        records: dict[int, memoryview] = {}
        damaged: dict[int, str] = {}
        ids = revision.ids[rows]
        with self._env.read() as txn:
            for row, id_, key in zip(
                rows.tolist(), ids.tolist(), big_endian_keys(ids), strict=True
            ):
                view = txn.get(key, db=self._env.databases[SAMPLES])
                try:
                    if view is None:
                        raise CorruptRecordError("the index knew it, the database does not")
                    records[id_] = revision.applied(view, row)
                except CorruptRecordError as error:
                    damaged[id_] = str(error)
        if damaged:
            self._set_aside(damaged)
        done = np.array(list(records), np.int64)
        if len(done):
            self._write(done, list(records.values()))
        return done

    def _write(self, ids: Ids, records: list[memoryview]) -> None:
        try:
            self._ledger.rewrite(ids, records)
        except MapFullError as error:
            if len(ids) <= 1:
                raise TierFullError(
                    f"the storage at {self._env.path} has no room to rewrite a record"
                ) from error
            half = len(ids) // 2
            self._write(ids[:half], records[:half])
            self._write(ids[half:], records[half:])


_FINGERPRINT = slice(32, 40)
