"""Errors of LMDB and of opening files, in the words of this package."""

from __future__ import annotations

from pathlib import Path

import lmdb

from carousel.errors import (
    StorageCorruptedError,
    StorageError,
    TierFullError,
)
from carousel.storage.disk import error_at

__all__ = ["MapFullError", "TooLargeError", "cannot_open", "translate"]

_DAMAGE = (
    lmdb.CorruptedError,
    lmdb.PageNotFoundError,
    lmdb.InvalidError,
    # A transaction that has met a damaged page refuses everything that follows.
    lmdb.BadTxnError,
    lmdb.PanicError,
    lmdb.CursorFullError,
    lmdb.IncompatibleError,
)
_LITTLE = 1 << 16
_MARGIN = 1 << 20


class MapFullError(TierFullError):
    """The map is full: evict or grow, then try again."""


class TooLargeError(Exception):
    """The transaction would leave more live bytes than the budget's share; undone."""

    def __init__(self, excess: int) -> None:
        super().__init__(excess)
        self.excess = excess


def translate(error: lmdb.Error, path: Path, need_bytes: int = 0) -> StorageError:
    """The error that an error of LMDB within a transaction stands for.

    Args:
        error: what LMDB raised.
        path: the storage folder.
        need_bytes: what was going to be written. LMDB reports a full disk as a plain I/O error,
            so it is told by what the disk has left.
    """
    if isinstance(error, lmdb.MapFullError):
        return MapFullError(f"the map of {path} is full")
    if isinstance(error, _DAMAGE):
        return StorageCorruptedError(
            f"the data file of {path} is damaged ({error}); export what is readable, restore a "
            "copy, or start anew in another folder"
        )
    least = need_bytes + _MARGIN if need_bytes else 0
    return error_at(path, error, f"{path} cannot be read or written", least)


def cannot_open(error: OSError | lmdb.Error, path: Path) -> StorageError:
    """The error that an error while opening or making a storage stands for."""
    return error_at(path, error, f"{path} cannot be opened", _LITTLE)
