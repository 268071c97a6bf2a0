"""One LMDB environment: opened with care, its transactions, its growth, its errors in our words.

Readers pass a gate, so that the map only changes while no transaction is open in the process.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import lmdb

from carousel.errors import (
    BadInputError,
    StorageClosedError,
    StorageCorruptedError,
    StorageError,
)
from carousel.storage.creation import (
    DATA,
    DATABASES,
    SAMPLES,
    check_identity,
    create_storage,
    own_folder,
    remove_leftovers,
    take_lock_file,
)
from carousel.storage.disk import extend, file_id, free_bytes, sync_file, warn_if_networked
from carousel.storage.durability import Durability, survives_power_loss
from carousel.storage.failures import disk_error, means_full
from carousel.storage.lmdb.datafile import inspect_data_file
from carousel.storage.lmdb.errors import MapFullError, cannot_open, translate
from carousel.storage.owner import Marker, boot_id, read_marker, refuse_unclean, write_marker

__all__ = ["Environment", "MapFullError"]

logger = logging.getLogger("carousel.storage")

_FLAGS: dict[Durability, dict[str, bool]] = {
    "durable": {},
    "bounded": {"metasync": False},
    "process": {"sync": False},
    "ephemeral": {"sync": False},
}
_FIRST_MAP = 1 << 28
_AHEAD = 4 << 20
_MAX_READERS = 512
_MARGIN_PAGES = 32
_FORKED = (
    "{path} was open when this process was forked, and LMDB does not survive that; "
    "use it in the parent only, or start the child with the spawn method"
)


class Environment:
    """An open storage folder.

    Args:
        path: the folder; made when missing, with its parents, unless `readonly`.
        durability: what a commit survives.
        readonly: read beside an owner; nothing is written.
        max_bytes: bytes that the data file never exceeds; None: grow while the disk allows.
        preallocate: take all of `max_bytes` from the disk at once.

    Raises:
        BadInputError: the path cannot hold a storage, or the budget is less than is stored.
        StorageLockedError: another process owns the folder.
        StorageCorruptedError, ForeignStorageError, UncleanStorageError: what is there cannot
            be used.
    """

    def __init__(
        self,
        path: Path,
        *,
        durability: Durability,
        readonly: bool = False,
        max_bytes: int | None = None,
        preallocate: bool = False,
    ) -> None:
        self.path = path
        self.readonly = readonly
        self.durability: Durability = durability
        self.max_bytes = max_bytes
        self._data = path / DATA
        self._pid = os.getpid()
        self._gate = threading.Condition()
        self._readers = 0
        self._resizing = False
        self._closed = False
        self._owner = None if readonly else own_folder(path)
        self._env: Any = None
        try:
            self._open(preallocate)
        except BaseException as error:
            if self._env is not None:
                self._env.close()
            self._release()
            if isinstance(error, OSError | lmdb.Error):
                raise cannot_open(error, self.path) from error
            raise

    def _open(self, preallocate: bool) -> None:
        marker = read_marker(self.path)
        if marker is not None:
            refuse_unclean(self.path, marker)
        if not self.readonly:
            remove_leftovers(self.path)
        if not self._data.exists():
            if self.readonly:
                raise BadInputError(f"{self.path} holds no storage", fix="check the path")
            if marker is not None:
                raise StorageCorruptedError(
                    f"{self._data} is missing; restore a copy, or start anew with another path"
                )
            create_storage(self.path)
        if not self.readonly:
            take_lock_file(self.path)
        geometry = inspect_data_file(self._data, ours=marker is not None)
        self.page_bytes = geometry.page_bytes
        used = (geometry.last_page + 1) * geometry.page_bytes
        if self.max_bytes is not None and not self.readonly and used > self.max_bytes:
            raise BadInputError(
                f"the storage budget of {self.max_bytes} bytes is less than the {used} in use at "
                f"{self.path}",
                fix="compact the storage or give a larger budget",
            )
        self._map_bytes = self._map_for(used)
        if self.max_bytes is not None and not self.readonly:
            _shorten(self._data, self._map_bytes)
        self._file_id = file_id(self._data)
        self._env = self._map()
        try:
            self.uuid = check_identity(self._env, self.path)
            self.databases = {name: self._env.open_db(name, create=False) for name in DATABASES}
        except lmdb.Error as error:
            raise translate(error, self.path) from error
        if self.readonly:
            return
        self._env.reader_check()
        if marker is not None and not marker.clean:
            # Written since the machine started, not yet on the medium: make it so.
            sync_file(self._data)
        self._mark(clean=False)
        warn_if_networked(self.path)
        if preallocate:
            self._preallocate()

    @contextmanager
    def read(self) -> Iterator[Any]:
        """A read transaction whose values are views: copy what is needed inside of it."""
        self._check_usable()
        self._enter()
        try:
            with self._begin() as txn:
                yield txn
        except lmdb.Error as error:
            raise translate(error, self.path) from error
        finally:
            self._leave()

    @contextmanager
    def write(self, need_bytes: int = 0, *, required: bool = True) -> Iterator[Any]:
        """A write transaction, committed when the block ends and undone when it raises.

        Args:
            need_bytes: what the transaction is going to write, to be taken from the disk first.
            required: whether it is an error if the disk has not got them; not so for deletions.

        Raises:
            MapFullError: the map is full. `TierFullError`: the disk is.
        """
        self._check_usable()
        if self.readonly:
            raise StorageError(f"{self.path} is open for reading only")
        self._take_ahead(need_bytes, required)
        self._enter()
        try:
            with self._env.begin(write=True, buffers=True) as txn:
                yield txn
        except lmdb.Error as error:
            raise translate(error, self.path, need_bytes) from error
        finally:
            self._leave()

    def grow(self) -> bool:
        """Double the map; False when the budget or the disk does not allow it.

        Also then the readers of before are gone, who keep old pages from being used again.
        """
        with self._alone():
            if self.max_bytes is not None or free_bytes(self.path) < _AHEAD:
                return False
            self._map_bytes *= 2
            self._env.set_mapsize(self._map_bytes)
        logger.info("grew the map of %s to %d bytes", self.path, self._map_bytes)
        return True

    def live_bytes(self, txn: Any) -> int:
        """Bytes of the pages in use, as the transaction sees them."""
        stats = [txn.stat(database) for database in self.databases.values()]
        pages = sum(s["branch_pages"] + s["leaf_pages"] + s["overflow_pages"] for s in stats)
        # Two meta pages and the tree that names the databases.
        return int(pages + 3) * self.page_bytes

    def leaf_pages(self, txn: Any) -> int:
        """Leaves of the tree of records."""
        return int(txn.stat(self.databases[SAMPLES])["leaf_pages"])

    @property
    def forked(self) -> bool:
        """Whether this is a copy in a child process, which must leave the original alone."""
        return self._pid != os.getpid()

    @property
    def file_bytes(self) -> int:
        """Size of the data file; `StorageIOError` when it is gone."""
        try:
            return self._data.stat().st_size
        except OSError as error:
            raise disk_error(error, f"{self._data} is gone") from error

    @property
    def last_transaction(self) -> int:
        """Number of the last committed transaction."""
        return int(self._env.info()["last_txnid"])

    @property
    def data_path(self) -> Path:
        """The data file."""
        return self._data

    def copy(self, folder: Path) -> None:
        """Write a compacted copy of the data file into an existing empty folder."""
        self._enter()
        try:
            self._env.copy(str(folder), compact=True)
        except lmdb.Error as error:
            raise translate(error, self.path) from error
        finally:
            self._leave()

    def sync(self) -> None:
        """Bring everything that is committed to the medium."""
        self._env.sync(True)

    def close(self) -> None:
        """Sync, say that it was closed cleanly, and release the folder, whatever goes wrong."""
        if self._closed or self._pid != os.getpid():
            return
        self._closed = True
        try:
            with self._alone(), closing(self._env):
                if not self.readonly:
                    self._env.sync(True)
                    self._mark(clean=True)
        except lmdb.Error as error:
            raise translate(error, self.path) from error
        finally:
            self._release()

    def _map(self) -> Any:
        options: dict[str, Any] = {
            "map_size": self._map_bytes,
            "max_dbs": len(DATABASES) + 2,
            "max_readers": _MAX_READERS,
            "readahead": False,
            "readonly": self.readonly,
            "create": False,
            "lib_version": 0,
            "max_spare_txns": 2,
            **_FLAGS[self.durability],
        }
        try:
            try:
                return lmdb.open(str(self.path), **options)
            except lmdb.ReadonlyError:
                if not self.readonly:
                    raise
                # A read-only medium: without the lock file there is also no owner.
                return lmdb.open(str(self.path), **options, lock=False)
        except (lmdb.Error, OSError) as error:
            if "already open" in str(error):
                raise StorageClosedError(_FORKED.format(path=self.path)) from error
            if isinstance(error, lmdb.InvalidError | lmdb.CorruptedError):
                raise translate(error, self.path) from error
            raise cannot_open(error, self.path) from error

    def _map_for(self, used: int) -> int:
        if self.max_bytes is not None:
            return max(self.max_bytes, used) // self.page_bytes * self.page_bytes
        size = _FIRST_MAP
        while size < 2 * used:
            size *= 2
        return size

    def _begin(self) -> Any:
        while True:
            try:
                return self._env.begin(buffers=True)
            except lmdb.MapResizedError:
                # The owner, another process, has grown its map.
                self._leave()
                try:
                    with self._alone():
                        self._env.set_mapsize(0)
                finally:
                    self._enter()

    def _take_ahead(self, need_bytes: int, required: bool) -> None:
        """Take disk space before LMDB writes there.

        So a full disk shows before a commit rather than within one, three commits of this size
        stay possible when it is full, and the file is never shorter than its last page.
        """
        used = (self._env.info()["last_pgno"] + 1) * self.page_bytes
        size, margin = self.file_bytes, need_bytes + _MARGIN_PAGES * self.page_bytes
        with self.read() as txn:
            live = self.live_bytes(txn)
        wanted = min(max(used + margin, live + 3 * margin), self._map_bytes)
        if wanted <= size:
            return
        target = min(wanted + min(_AHEAD, used // 32), self._map_bytes)
        try:
            extend(self._data, size, target // self.page_bytes * self.page_bytes)
        except OSError as error:
            spare = size - live >= 2 * need_bytes
            if not means_full(error) or (required and not spare):
                raise disk_error(error, f"{self._data} cannot grow") from error

    def _preallocate(self) -> None:
        if self.max_bytes is None:
            raise BadInputError("preallocate needs a budget in bytes", fix="give a storage budget")
        try:
            extend(self._data, self.file_bytes, self._map_bytes)
        except OSError as error:
            raise disk_error(error, f"{self._data} cannot take the storage budget") from error

    def _mark(self, *, clean: bool) -> None:
        if file_id(self._data) != self._file_id:
            return  # the folder was removed while it was open, and perhaps made anew
        safe = survives_power_loss(self.durability)
        try:
            write_marker(self.path, Marker(self.uuid, self.durability, boot_id(), clean or safe))
        except OSError as error:
            if not (safe or clean):
                raise
            logger.warning("the marker of %s could not be written: %s", self.path, error)

    def _check_usable(self) -> None:
        if self._pid != os.getpid():
            raise StorageClosedError(_FORKED.format(path=self.path))
        if self._closed:
            raise StorageClosedError(f"{self.path} was closed")

    def _enter(self) -> None:
        with self._gate:
            while self._resizing:
                self._gate.wait()
            self._readers += 1

    def _leave(self) -> None:
        with self._gate:
            self._readers -= 1
            if self._resizing:
                self._gate.notify_all()

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Hold the gate while no transaction is open."""
        with self._gate:
            while self._resizing:
                self._gate.wait()
            self._resizing = True
            while self._readers:
                self._gate.wait()
            try:
                yield
            finally:
                self._resizing = False
                self._gate.notify_all()

    def _release(self) -> None:
        if self._owner is not None:
            self._owner.release()


def _shorten(data: Path, limit: int) -> None:
    # Space that was taken ahead under a larger budget.
    if data.stat().st_size > limit:
        os.truncate(data, limit)
