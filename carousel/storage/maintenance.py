"""Care of a store: verify it, forget what must go, and give the freed bytes back."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping
from concurrent.futures import BrokenExecutor, ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import lmdb
import numpy as np
from lmdb.verify import verify as lmdb_verify

from carousel.errors import (
    BadInputError,
    StorageCorruptedError,
    StorageLockedError,
    TierFullError,
)
from carousel.storage.columns import Ids
from carousel.storage.creation import DATA, DATABASES, create_storage
from carousel.storage.disk import free_bytes, sync_folder
from carousel.storage.eviction import EvictionPlan, Limits
from carousel.storage.failures import disk_error
from carousel.storage.index import Index
from carousel.storage.limits import State
from carousel.storage.lmdb.datafile import inspect_data_file
from carousel.storage.lmdb.environment import Environment
from carousel.storage.lmdb.errors import translate
from carousel.storage.lmdb.index_file import INDEX_FILE
from carousel.storage.lmdb.registry import is_open
from carousel.storage.lmdb.tier import LMDBTier
from carousel.storage.owner import OwnerLock, read_marker
from carousel.storage.plain.file_tier import JOURNAL, FileTier
from carousel.storage.schema_note import SCHEMA
from carousel.storage.tier import Durability, Progress, StorageTier, VerifyReport

__all__ = ["CompactReport", "compact", "forget", "kind_of", "open_store", "verify_store"]

_CHUNK = 4096
_TXN_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class CompactReport:
    """Size of the store's data before and after, in bytes."""

    before_bytes: int
    after_bytes: int


def kind_of(path: str | Path) -> str:
    """``"lmdb"`` or ``"files"``: which tier wrote this folder.

    Raises:
        BadInputError: the path is not a folder, or no store is in it.
    """
    folder = Path(path)
    if (folder / DATA).exists():
        return "lmdb"
    if (folder / JOURNAL).exists():
        return "files"
    what = "holds no storage" if folder.is_dir() else "is not a folder"
    raise BadInputError(f"{folder} {what}", fix="give the folder of a storage")


def open_store(path: str | Path, *, readonly: bool = False) -> FileTier | LMDBTier:
    """Open a store that exists as it is, whatever its kind, durability and eviction rule.

    It can be read, verified, exported and forgotten from, but takes in nothing new.

    Args:
        path: folder of the store.
        readonly: read it beside an owner (LMDB only).

    Raises:
        BadInputError: no store is there.
        StorageLockedError: another process owns it.
    """
    folder, rule = Path(path), _AsStored()
    if kind_of(folder) == "files":
        return FileTier(folder, durability=_durability(folder, "process"), eviction=rule)
    durability = _durability(folder, "bounded")
    return LMDBTier(folder, durability=durability, eviction=rule, readonly=readonly)


def verify_store(
    target: StorageTier | str | Path, progress: Progress | None = None
) -> VerifyReport:
    """Check every byte of every record, and the structure of the file.

    Damaged records are set aside, unless another process owns the store, or the file itself is
    damaged: then it is only read.

    Args:
        target: an open tier or the folder of a store.
        progress: called with records done and all records.

    Raises:
        BadInputError: no store is there.
        ForeignStorageError: what is there was not made by Carousel.
        StorageError: the disk or the folder cannot be used.
    """
    if isinstance(target, StorageTier):
        target.flush()
        return target.verify(progress)
    folder = Path(target)
    if kind_of(folder) == "lmdb" and not is_open(folder) and lmdb_verify(str(folder)):
        return _verify_damaged(folder)
    try:
        tier = open_store(folder)
    except StorageLockedError:
        tier = open_store(folder, readonly=True)
    except StorageCorruptedError as error:
        if kind_of(folder) == "lmdb":
            return _verify_damaged(folder)
        return VerifyReport(problems=[str(error)])
    with tier:
        return tier.verify(progress)


def _verify_damaged(folder: Path) -> VerifyReport:
    """Read what can be read of a file whose structure is damaged, without writing to it.

    In a process of its own: LMDB follows damaged pages beyond the end of the file, which the
    system answers by ending the process.
    """
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        try:
            return pool.submit(_verify_readonly, folder).result()
        except BrokenExecutor:
            end = "the process that read it was ended by a damaged page"
        except StorageCorruptedError as error:
            end = str(error)
    return VerifyReport(problems=[end, *lmdb_verify(str(folder))])


def _verify_readonly(folder: Path) -> VerifyReport:
    with open_store(folder, readonly=True) as tier:
        return tier.verify()


def forget(
    tier: StorageTier,
    *,
    ids: Collection[int] | Ids = (),
    labels: Collection[int] = (),
    tasks: Collection[int] = (),
    everything: bool = False,
    progress: Progress | None = None,
) -> int:
    """Remove samples for good: by id, class, task, or all of them.

    They stay out when they are presented again, and notes about damaged ones go too. Their bytes
    leave the medium when files are deleted (`FileTier`) or with `compact` (`LMDBTier`).

    Args:
        tier: the store.
        ids: samples to forget.
        labels: classes to forget.
        tasks: tasks to forget.
        everything: forget all that is stored; samples to come may then have other fields.
        progress: called with samples done and all samples to forget.

    Returns:
        How many stored samples were removed.

    Raises:
        BadInputError: nothing was named.

    Example:
        >>> from carousel.storage import MemoryTier
        >>> forget(MemoryTier(), labels=[3])
        0
    """
    if not (everything or len(ids) or len(labels) or len(tasks)):
        raise BadInputError("nothing to forget is named", fix="give ids, labels, tasks or all")
    tier.flush()
    entries = tier.entries()
    named = np.isin(entries.labels, list(labels)) | np.isin(entries.tasks, list(tasks))
    gone = [np.fromiter(ids, np.int64, len(ids)), entries.ids[named | everything]]
    if everything:
        gone.append(np.fromiter(tier.quarantined(), np.int64))
    chosen = np.unique(np.concatenate(gone))
    removed = 0
    for start in range(0, len(chosen), _CHUNK):
        removed += tier.delete_many(chosen[start : start + _CHUNK])
        if progress is not None:
            progress(min(start + _CHUNK, len(chosen)), len(chosen))
    if everything and tier.get_meta(SCHEMA):
        tier.put_meta({SCHEMA: b""})
    return removed


def compact(path: str | Path, progress: Progress | None = None) -> CompactReport:
    """Write a store anew with only what it holds, and put it in the old one's place in one step.

    Every record is copied by itself, not page by page, so that nothing of a forgotten or evicted
    sample remains, neither on free pages nor in the gaps of used ones. It needs room on the disk
    for a second copy. A folder of files gives its bytes back at once; only its journal shrinks.

    Args:
        path: folder of the store; no one may have it open.
        progress: called with records done and all records.

    Raises:
        BadInputError: no store is there, or this process has it open.
        StorageLockedError: another process has it open.
        TierFullError: the disk has no room for the copy; nothing was changed.
    """
    folder = Path(path)
    if kind_of(folder) == "files":
        return _compact_files(folder)
    if is_open(folder):
        raise BadInputError(f"{folder} is open in this process", fix="close the tier first")
    fresh = folder / _FRESH
    shutil.rmtree(fresh, ignore_errors=True)
    before = (folder / DATA).stat().st_size
    try:
        transaction = _copy(folder, fresh, progress)
        _put_in_place(folder, fresh, transaction)
    finally:
        shutil.rmtree(fresh, ignore_errors=True)
    return CompactReport(before, (folder / DATA).stat().st_size)


_FRESH = ".compact"


def _compact_files(folder: Path) -> CompactReport:
    tier = open_store(folder)
    assert isinstance(tier, FileTier)
    with tier:
        before = tier.stats().file_bytes
        tier.shorten_journal()
        return CompactReport(before, tier.stats().file_bytes)


def _copy(folder: Path, fresh: Path, progress: Progress | None) -> int:
    """Copy all databases into a new data file; returns the transaction that was copied."""
    env = Environment(folder, durability=_durability(folder, "bounded"))
    try:
        _require_room(env)
        fresh.mkdir()
        create_storage(fresh)
        with _writing(fresh, env.file_bytes) as copy:
            for name in DATABASES:
                _copy_database(env, copy, name, progress)
        return env.last_transaction
    except lmdb.Error as error:
        raise translate(error, folder) from error
    except OSError as error:
        raise disk_error(error, f"{folder} cannot be compacted") from error
    finally:
        env.close()


def _copy_database(env: Environment, copy: Any, name: bytes, progress: Progress | None) -> None:
    target = copy.open_db(name)
    with env.read() as source:
        total = source.stat(env.databases[name])["entries"]
        cursor = source.cursor(env.databases[name]).iternext()
        done = 0
        for items in _portions(cursor):
            with copy.begin(write=True) as txn:
                for key, value in items:
                    txn.put(key, value, db=target)
            done += len(items)
            if progress is not None and name == DATABASES[0]:
                progress(done, total)


def _portions(cursor: Iterator[tuple[memoryview, memoryview]]) -> Iterator[list[tuple[Any, Any]]]:
    items: list[tuple[Any, Any]] = []
    size = 0
    for key, value in cursor:
        items.append((bytes(key), value))
        size += len(value) + _NODE_BYTES
        if size >= _TXN_BYTES:
            yield items
            items, size = [], 0
    if items:
        yield items


_NODE_BYTES = 64


@contextmanager
def _writing(fresh: Path, old_bytes: int) -> Iterator[Any]:
    env = lmdb.open(
        str(fresh),
        map_size=old_bytes + (64 << 20),
        max_dbs=len(DATABASES) + 2,
        lib_version=0,
        sync=False,
    )
    try:
        yield env
        env.sync(True)
    finally:
        env.close()


def _put_in_place(folder: Path, fresh: Path, transaction: int) -> None:
    lock = OwnerLock(folder)
    try:
        with _no_reader(folder):
            if inspect_data_file(folder / DATA, ours=True).transaction != transaction:
                raise StorageLockedError(f"{folder} was written while it was compacted; try again")
            # The new file counts its transactions anew, so a saved index could seem to fit it.
            (folder / INDEX_FILE).unlink(missing_ok=True)
            (fresh / DATA).replace(folder / DATA)
            sync_folder(folder)
    finally:
        lock.release()


@contextmanager
def _no_reader(folder: Path) -> Iterator[None]:
    # Readers of the old file would share LMDB's lock file with writers of the new one, whose
    # transactions have other numbers. LMDB holds a shared lock on it wherever it is open.
    path = folder / "lock.mdb"
    if not path.exists():
        yield
        return
    file = os.open(path, os.O_RDWR)
    try:
        fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
        yield
    except BlockingIOError as error:
        raise StorageLockedError(f"{folder} is being read by another process") from error
    finally:
        os.close(file)


def _require_room(env: Environment) -> None:
    with env.read() as txn:
        needed = env.live_bytes(txn)
    if free_bytes(env.path) < needed + (1 << 20):
        raise TierFullError(f"compacting {env.path} needs {needed} bytes free on its disk")


def _durability(folder: Path, default: Durability) -> Durability:
    marker = read_marker(folder)
    return default if marker is None else marker.durability


class _AsStored:
    """Stands in for the rule that a store was filled under, and keeps its state."""

    def __init__(self) -> None:
        self._state: State = {}

    def plan(self, index: Index, labels: Ids, lengths: Ids, limits: Limits) -> EvictionPlan:  # noqa: ARG002
        return EvictionPlan(np.zeros(len(labels), np.bool_), full=True)

    def forget(self, labels: Iterable[int]) -> None:
        # Counts of a class are kept by the rules that count.
        if "seen" in self._state:
            gone = set(labels)
            self._state["seen"] = [pair for pair in self._state["seen"] if pair[0] not in gone]

    def state_dict(self) -> State:
        return dict(self._state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._state = dict(state)
