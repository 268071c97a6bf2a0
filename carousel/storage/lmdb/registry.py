"""The stores that are open in this process: one a folder, shared by all tiers that name it."""

from __future__ import annotations

import atexit
import logging
import os
import threading
from dataclasses import dataclass
from pathlib import Path

from carousel.errors import BadInputError, CarouselError
from carousel.storage.creation import DATA
from carousel.storage.disk import file_id
from carousel.storage.lmdb.store import LMDBStore, StoreOptions

__all__ = ["acquire", "is_open", "release"]

logger = logging.getLogger("carousel.storage")

DataFile = tuple[int, int]


@dataclass(slots=True)
class _Shared:
    store: LMDBStore
    users: int


class _Registry:
    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.stores: dict[DataFile, _Shared] = {}


_registry = _Registry()
_inherited: list[_Registry] = []


def acquire(path: Path, options: StoreOptions, *, agree: bool) -> LMDBStore:
    """The open store of a folder, opened if this is its first user.

    Args:
        path: the folder; links are followed.
        options: how to open it.
        agree: refuse a store that is open with other options instead of sharing it as it is.

    Raises:
        BadInputError: it is open with other options.
        StorageError: see `Environment`.
    """
    with _registry.lock:
        shared = _find(path)
        if shared is None:
            store = LMDBStore(path.resolve(), options)
            file = file_id(path / DATA)
            assert file is not None  # just opened
            _registry.stores[file] = _Shared(store, 1)
            return store
        if agree:
            _refuse_other_options(shared.store, options)
        shared.users += 1
        return shared.store


def is_open(path: Path) -> bool:
    """Whether a tier of this process has the folder open."""
    with _registry.lock:
        return _find(path) is not None


def release(store: LMDBStore) -> None:
    """Give up one use; the last one closes the store and raises what its writer met."""
    with _registry.lock:
        for file, shared in _registry.stores.items():
            if shared.store is store:
                shared.users -= 1
                if shared.users > 0:
                    return
                del _registry.stores[file]
                break
        else:
            return
        store.close()


def _find(path: Path) -> _Shared | None:
    file = file_id(path / DATA)
    return None if file is None else _registry.stores.get(file)


def _refuse_other_options(store: LMDBStore, options: StoreOptions) -> None:
    if options.readonly:
        return
    for name in ("readonly", "durability", "budget", "sync"):
        have, want = getattr(store.options, name), getattr(options, name)
        if have != want:
            raise BadInputError(
                f"{store.path} is open in this process with {name} {have!r}, not {want!r}",
                fix="close it first, or open it with the same options",
            )


def _close_all() -> None:
    for shared in list(_registry.stores.values()):
        try:
            shared.store.close()
        except (CarouselError, OSError) as error:
            logger.error("closing %s at exit: %s", shared.store.path, error)
    _registry.stores.clear()


def _start_anew() -> None:
    # A child keeps the parent's stores unreachable but alive: nothing in it may close them.
    global _registry  # noqa: PLW0603
    _inherited.append(_registry)
    _registry = _Registry()


atexit.register(_close_all)
os.register_at_fork(after_in_child=_start_anew)
