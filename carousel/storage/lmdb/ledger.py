"""Every write transaction of an LMDB store: records, what the rule evicts, counters, forgetting."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from carousel.errors import (
    DuplicateIdError,
    StorageCorruptedError,
    StorageError,
    TierFullError,
)
from carousel.storage.columns import Ids
from carousel.storage.creation import META, QUARANTINE, SAMPLES
from carousel.storage.eviction import Eviction, EvictionPlan, Limits
from carousel.storage.index import Index
from carousel.storage.lmdb.counters import Counters
from carousel.storage.lmdb.environment import Environment
from carousel.storage.lmdb.errors import MapFullError, TooLargeError
from carousel.storage.lmdb.pages import record_costs
from carousel.storage.lmdb.problems import raise_all
from carousel.storage.lmdb.put import Put, join
from carousel.storage.lmdb.reader import big_endian_keys
from carousel.storage.lmdb.seal import seal, unseal
from carousel.storage.lmdb.space import Space
from carousel.storage.lmdb.stored import differing, head, is_damaged
from carousel.storage.tombstones import Tombstones

__all__ = ["Ledger"]

logger = logging.getLogger("carousel.storage")

_STATE = b"state"
_TICK = b"tick"
_FORGOTTEN = b"forgotten"
_ATTEMPTS = 8
_LONGEST_REASON = 1000


class Ledger:
    """Writes a store, one transaction at a time; the index changes when one is committed.

    Args:
        env: the open environment.
        index: what is stored; changed here only, but for records found damaged.
        eviction: the rule when the budget is full; its state travels with the records.
        limits: the budget in records and bytes of the file.
    """

    def __init__(self, env: Environment, index: Index, eviction: Eviction, limits: Limits) -> None:
        self._env = env
        self._index = index
        self._eviction = eviction
        self._space = Space(env, index, limits)
        self._lock = threading.RLock()
        self._dirty = False
        self.counters = Counters()
        self.next_id = 0
        self.quarantined: dict[int, str] = {}
        self.problems: list[str] = []
        self._hands_off = env.readonly
        self._tombstones = Tombstones()
        self._load()

    def reserve(self, count: int) -> int:
        """Give out ids; the mark is committed with whatever is written next, or by `settle`."""
        with self._lock:
            first = self.next_id
            self.next_id += count
            self._dirty = self._dirty or count > 0
            return first

    def settle(self) -> None:
        """Commit the high-water mark if it moved since the last transaction."""
        with self._lock:
            if self._dirty and not self._env.readonly:
                self._commit()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Hold all writes while the block runs."""
        with self._lock:
            yield

    def write_group(self, puts: Sequence[Put]) -> None:
        """Commit records, in one transaction with what makes room for them.

        Raises:
            DuplicateIdError: some ids are stored with other content; the others were written.
            TierFullError: some records found no room.
            StorageError: nothing was written.
        """
        with self._lock:
            batch = join(puts)
            self.counters.puts += len(batch)
            rows, changed = self._unstored(batch)
            full = self._store(batch, rows)
            self._index.show(batch.ids)
        problems: list[StorageError | DuplicateIdError] = []
        if changed:
            problems.append(
                DuplicateIdError(
                    f"ids {changed[:5]} are stored with other content",
                    fix="give every sample its own id, see reserve_ids",
                )
            )
        if full:
            problems.append(self._space.full_error())
        raise_all(problems)

    def delete(self, ids: Ids) -> int:
        """Remove records and quarantine entries for good; returns how many records existed."""
        with self._lock:
            known = np.unique(ids)
            stored = known[self._index.contains(known)]
            given = known[known < self.next_id]
            if len(stored) == 0 and self._tombstones.contains(given).all():
                return 0
            forgotten = self._tombstones.with_ids(given)
            before = self._eviction.state_dict()
            self._eviction.forget(self._index.emptied_by(stored))
            try:
                self._commit(drop=known, meta={_FORGOTTEN: forgotten.to_bytes()})
            except BaseException:
                self._eviction.load_state_dict(before)
                raise
            self._tombstones = forgotten
            self._index.remove(stored)
            for id_ in known.tolist():
                self.quarantined.pop(id_, None)
            return len(stored)

    def rewrite(self, ids: Ids, records: Sequence[memoryview]) -> None:
        """Replace stored records by others of the same sizes, in one transaction.

        Raises:
            MapFullError: the transaction needs more free pages than there are; nothing changed.
        """
        with self._lock:
            keys = big_endian_keys(ids)
            need = int(self._index.lookup(ids).lengths.sum()) + self._env.page_bytes * len(ids)
            try:
                self._commit(keys=keys, records=records, need_bytes=need)
            except MapFullError:
                self._tick()
                self._commit(keys=keys, records=records, need_bytes=need)

    def rewrites_at_once(self) -> int | None:
        """Most records for `rewrite`, None for any number; each may copy a leaf of its own."""
        return self._space.deletes_at_once()

    def put_meta(self, items: Mapping[bytes, bytes]) -> None:
        """Commit small values, or some that are less small."""
        page = self._env.page_bytes
        need = sum(len(value) for value in items.values() if len(value) > page // 4)
        with self._lock:
            self._commit(meta=items, need_bytes=need)

    def get_meta(self, key: bytes) -> bytes | None:
        """A small value, None when there is none."""
        with self._env.read() as txn:
            value = txn.get(key, db=self._env.databases[META])
            return None if value is None else unseal(value, f"a value in {self._env.path}")

    def leave_file_alone(self) -> None:
        """Set damaged records aside in RAM only: writing into a damaged tree damages more."""
        self._hands_off = True

    def set_aside(self, damaged: Mapping[int, str]) -> None:
        """Take damaged records out, and keep their ids and what was wrong with them.

        Each is looked at once more first: meanwhile it may have been written anew.
        """
        with self._lock:
            fresh = {
                id_: why
                for id_, why in damaged.items()
                if id_ not in self.quarantined and is_damaged(self._env, self._index, id_)
            }
            ids = np.array(sorted(fresh), np.int64)
            self._index.remove(ids)
            self.quarantined.update(fresh)
            if not fresh:
                return
            logger.warning("%d damaged records are set aside, such as id %d", len(ids), ids[0])
            if self._hands_off:
                return
            try:
                self._commit(drop=ids, aside=fresh)
            except StorageCorruptedError:
                # The tree around the record is damaged too: note it without touching the record.
                self._commit(aside=fresh)

    def _load(self) -> None:
        """Read what is kept beside the records; a reader goes on without what is damaged."""
        state: dict[str, Any] = {}
        steps = (self._load_state, self._load_tombstones, self._load_quarantine)
        for load in steps:
            try:
                state.update(load() or {})
            except StorageCorruptedError as error:
                if not self._env.readonly:
                    raise
                self.problems.append(str(error))
        self.next_id = int(state.get("next_id", 0))
        if "eviction" in state and not self._env.readonly:
            self._eviction.load_state_dict(state["eviction"])

    def _load_state(self) -> dict[str, Any]:
        raw = self.get_meta(_STATE)
        return {} if raw is None else dict(json.loads(raw))

    def _load_tombstones(self) -> None:
        self._tombstones = Tombstones.from_bytes(self.get_meta(_FORGOTTEN) or b"")

    def _load_quarantine(self) -> None:
        with self._env.read() as txn:
            for key, why in txn.cursor(self._env.databases[QUARANTINE]).iternext():
                text = bytes(why[:_LONGEST_REASON]).decode(errors="replace")
                self.quarantined[int.from_bytes(key[:8], "big")] = text

    def _unstored(self, batch: Put) -> tuple[Ids, list[int]]:
        """Rows to store, and ids that are stored or given twice with other content."""
        _, first, group = np.unique(batch.ids, return_index=True, return_inverse=True)
        changed = {
            int(batch.ids[row])
            for row in np.flatnonzero(first[group] != np.arange(len(batch))).tolist()
            if head(batch.records[row]) != head(batch.records[first[group[row]]])
        }
        stored = first[self._index.contains(batch.ids[first])]
        if len(stored):
            differ = differing(self._env, batch, stored)
            damaged = {i: why for i, why in differ.items() if why is not None}
            self.set_aside(damaged)
            changed |= differ.keys() - damaged.keys()
        rows = np.sort(first)
        rows = rows[~self._index.contains(batch.ids[rows])]
        forgotten = self._tombstones.contains(batch.ids[rows])
        if forgotten.any():
            self.counters.rejected += int(forgotten.sum())
            logger.warning("%d samples were deleted before and stay out", int(forgotten.sum()))
        return rows[~forgotten], sorted(changed)

    def _store(self, batch: Put, rows: Ids) -> bool:
        """Write rows and evict for them; returns whether some found no room at all."""
        sizes = np.array([len(batch.records[row]) for row in rows.tolist()], np.int64)
        fits = record_costs(sizes, self._env.page_bytes) <= self._space.largest_record()
        full = not bool(fits.all())
        self.counters.rejected += int(np.count_nonzero(~fits))
        rows = rows[fits]
        stride = self._space.deletes_at_once() or max(1, len(rows))
        for start in range(0, len(rows), stride):
            full |= self._store_part(batch, rows[start : start + stride]).full
        return full

    def _store_part(self, batch: Put, rows: Ids) -> EvictionPlan:
        lengths = np.array([len(batch.records[row]) for row in rows.tolist()], np.int64)
        costs = record_costs(lengths, self._env.page_bytes)
        before = self._eviction.state_dict()
        tight = 0
        for attempt in range(_ATTEMPTS):
            try:
                plan = self._eviction.plan(
                    self._index, batch.labels[rows], costs, self._space.limits(costs, tight)
                )
                large = self._space.is_large(int(costs[plan.accept].sum()))
                self._evict_ahead(plan, always=attempt > 0 or large)
                self._apply(batch, rows[plan.accept], costs[plan.accept], plan)
            except TooLargeError as error:
                # Small records share leaves: evicting some of a leaf does not free it.
                tight = 2 * tight + max(error.excess, int(costs.sum()) // 4)
            except MapFullError:
                # There are free pages, but not enough next to each other.
                if not self._env.grow():
                    tight += int(costs.sum())
            except TierFullError:
                self._space.disk_is_full()
                self._eviction.load_state_dict(before)
                raise
            except BaseException:
                self._eviction.load_state_dict(before)
                raise
            else:
                self.counters.rejected += len(rows) - int(np.count_nonzero(plan.accept))
                self.counters.raw_bytes += int(lengths[plan.accept].sum())
                return plan
            self._eviction.load_state_dict(before)
        raise TierFullError(f"no room could be made in the storage at {self._env.path}")

    def _evict_ahead(self, plan: EvictionPlan, *, always: bool) -> None:
        """Make room in transactions of their own, where it does not fit into that of the records.

        What they free can be used two transactions later.
        """
        stride = self._space.deletes_at_once()
        crowded = stride is not None and len(plan.evict) > stride
        if len(plan.evict) == 0 or not (always or crowded or self._space.disk_was_full):
            return
        stride = stride or len(plan.evict)
        while len(plan.evict):
            part, plan.evict = plan.evict[:stride], plan.evict[stride:]
            self._commit(drop=part)
            self._index.remove(part)
            self.counters.evicted += len(part)
        self._tick()

    def _tick(self) -> None:
        """Let two transactions pass, after which what was freed before can be used."""
        for tick in range(2):
            self._commit(meta={_TICK: bytes([tick])})

    def _apply(self, batch: Put, rows: Ids, costs: Ids, plan: EvictionPlan) -> None:
        ids = batch.ids[rows]
        next_id = max(self.next_id, int(batch.ids.max()) + 1)
        self._commit(
            drop=plan.evict,
            keys=big_endian_keys(ids),
            records=[batch.records[row] for row in rows.tolist()],
            need_bytes=int(costs.sum()),
            next_id=next_id,
        )
        self._index.remove(plan.evict)
        self._index.add(ids, batch.labels[rows], batch.tasks[rows], costs)
        self.counters.evicted += len(plan.evict)
        self.counters.cost_bytes += int(costs.sum())
        for id_ in ids.tolist() if self.quarantined else ():
            self.quarantined.pop(id_, None)

    def _commit(
        self,
        *,
        drop: Ids | None = None,
        keys: Sequence[bytes] = (),
        records: Sequence[memoryview] = (),
        meta: Mapping[bytes, bytes] | None = None,
        aside: Mapping[int, str] | None = None,
        need_bytes: int = 0,
        next_id: int | None = None,
    ) -> None:
        samples, metas, quarantine = (
            self._env.databases[name] for name in (SAMPLES, META, QUARANTINE)
        )
        grows = next_id is not None
        next_id = self.next_id if next_id is None else next_id
        dropped = [] if drop is None else big_endian_keys(drop)
        need = need_bytes + self._env.page_bytes * (len(dropped) + len(keys) // 8)
        state = {"next_id": next_id, "eviction": self._eviction.state_dict()}
        values = {**(meta or {}), _STATE: json.dumps(state).encode()}

        def write() -> None:
            with self._env.write(need, required=need_bytes > 0) as txn:
                for key in dropped:
                    txn.delete(key, db=samples)
                    txn.delete(key, db=quarantine)
                self._put(txn, keys, records)
                for id_, why in (aside or {}).items():
                    txn.put(id_.to_bytes(8, "big"), why[:_LONGEST_REASON].encode(), db=quarantine)
                for name, value in values.items():
                    txn.put(name, seal(value), db=metas)
                if grows:
                    self._check_size(txn)

        try:
            write()
        except MapFullError:
            self._env.grow()
            write()
        self.next_id = next_id
        self._dirty = False
        self.counters.commits += 1

    def _put(self, txn: Any, keys: Sequence[bytes], records: Sequence[memoryview]) -> None:
        samples, quarantine = self._env.databases[SAMPLES], self._env.databases[QUARANTINE]
        cursor = txn.cursor(samples)
        last = bytes(cursor.key()) if cursor.last() else b""
        for key, record in zip(keys, records, strict=True):
            # Appending fills leaves to the brim; an ordinary insert at the end leaves them half.
            append = key > last
            txn.put(key, record, append=append, db=samples)
            if append:
                last = key
            if self.quarantined:
                txn.delete(key, db=quarantine)

    def _check_size(self, txn: Any) -> None:
        excess = self._space.excess(txn)
        if excess > 0:
            raise TooLargeError(excess)
