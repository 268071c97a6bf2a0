"""Making a new storage folder, and telling whether an existing one is ours."""

from __future__ import annotations

import json
import shutil
import uuid
from pathlib import Path
from typing import Any

import lmdb

from carousel.errors import BadInputError, ForeignStorageError
from carousel.storage.disk import extend, sync_folder
from carousel.storage.owner import OwnerLock

__all__ = [
    "DATA",
    "DATABASES",
    "META",
    "QUARANTINE",
    "SAMPLES",
    "check_identity",
    "create_storage",
    "own_folder",
    "remove_leftovers",
    "take_lock_file",
]

DATA = "data.mdb"
LOCK = "lock.mdb"
SAMPLES, META, QUARANTINE = b"samples", b"meta", b"quarantine"
DATABASES = (SAMPLES, META, QUARANTINE)
FORMAT = 1

_IDENTITY = b"carousel"
_IDENTITY_BYTES = 1000
_FRESH = ".new"
_FIRST_MAP = 1 << 20
_LOCK_BYTES = 40 << 10  # 512 readers


def own_folder(path: Path) -> OwnerLock:
    """Make the folder and its parents if need be, and take the right to write it.

    Raises:
        BadInputError: the path is a file, or may not be written.
        StorageLockedError: another process has the right.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        return OwnerLock(path)
    except (FileExistsError, NotADirectoryError) as error:
        raise BadInputError(
            f"the storage path {path} leads through a file", fix="give a folder"
        ) from error
    except OSError as error:
        raise BadInputError(
            f"the storage path {path} cannot be written ({error.strerror})",
            fix="give a folder that may be written, or open it read-only",
        ) from error


def create_storage(path: Path) -> None:
    """Make an empty data file in one step: after a kill it is there and ours, or not there."""
    fresh = path / _FRESH
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir()
    take_lock_file(fresh)
    env = lmdb.open(str(fresh), map_size=_FIRST_MAP, max_dbs=len(DATABASES), lib_version=0)
    databases = {name: env.open_db(name) for name in DATABASES}
    identity = {"format": FORMAT, "uuid": uuid.uuid4().hex, "lmdb": "0.9"}
    with env.begin(write=True) as txn:
        txn.put(_IDENTITY, json.dumps(identity).encode(), db=databases[META])
    env.close()
    (fresh / DATA).rename(path / DATA)
    shutil.rmtree(fresh)
    sync_folder(path)


def remove_leftovers(path: Path) -> None:
    """Remove what a kill left half-made; only the owner may."""
    shutil.rmtree(path / _FRESH, ignore_errors=True)
    for file in path.glob("*.new"):
        if file.is_file():
            file.unlink()


def take_lock_file(path: Path) -> None:
    """Give the lock file of LMDB its disk space while nothing has it open.

    LMDB maps and writes it; on a full disk that would be a SIGBUS.

    Raises:
        OSError: the disk is full.
    """
    lock = path / LOCK
    lock.touch()
    extend(lock, lock.stat().st_size, _LOCK_BYTES)


def check_identity(env: Any, path: Path) -> str:
    """The storage's uuid.

    Raises:
        ForeignStorageError: Carousel did not make this data file, or a newer version did.
    """
    try:
        database = env.open_db(META, create=False)
        with env.begin(db=database, buffers=True) as txn:
            identity = json.loads(bytes((txn.get(_IDENTITY) or b"")[:_IDENTITY_BYTES]))
            found, name = int(identity["format"]), str(identity["uuid"])
    except (lmdb.NotFoundError, lmdb.IncompatibleError, ValueError, KeyError, TypeError) as error:
        raise ForeignStorageError(
            f"{path} holds a database that Carousel did not make; use another path"
        ) from error
    if found != FORMAT:
        raise ForeignStorageError(
            f"{path} has format {found} and this version reads format {FORMAT}; "
            "update Carousel or use another path"
        )
    return name
