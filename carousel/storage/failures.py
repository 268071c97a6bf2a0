"""What the system reports of a disk, in the words of this package; every floor asks here."""

from __future__ import annotations

import errno
import os

from carousel.errors import StorageError, StorageIOError, TierFullError

__all__ = ["disk_error", "means_full"]

_FULL = {
    errno.ENOSPC: "the disk is full: free some space, or use another disk",
    errno.EDQUOT: "the disk quota is full: free some space, or ask for a larger one",
    errno.EFBIG: "the file has the largest size allowed: raise the limit (`ulimit -f`), or use a "
    "file system that takes larger files",
}
_BROKEN = {
    errno.EROFS: "the file system is read-only: mount it for writing, or use another disk",
    errno.EIO: "the disk reports an error: check it, and restore a copy if files are damaged",
    errno.EACCES: "it is not permitted: change the permissions, or use another folder",
    errno.EPERM: "it is not permitted: change the permissions, or use another folder",
    errno.EMFILE: "too many files are open: close some, or raise the limit (`ulimit -n`)",
    errno.ENODEV: "the disk is gone: connect it again",
    errno.ENXIO: "the disk is gone: connect it again",
    errno.ESTALE: "the network's file is gone: mount the file system again",
}


def means_full(error: Exception) -> bool:
    """Whether an error says that nothing more fits: on the disk, in the quota, or in a file."""
    return _number(error) in _FULL


def disk_error(error: Exception, what: str) -> StorageError:
    """The error of this package that an error of the system stands for.

    Args:
        error: an `OSError`, or one of a library that keeps the system's number in ``code``.
        what: could not be done; begins the sentence.

    Returns:
        `TierFullError` where nothing more fits, else `StorageIOError`; its message says what to
        do.

    Example:
        >>> import errno
        >>> disk_error(OSError(errno.EROFS, "read-only"), "states.bin cannot be written")
        StorageIOError('states.bin cannot be written; the file system is read-only: mount it for \
writing, or use another disk')
    """
    number = _number(error)
    if number in _FULL:
        return TierFullError(f"{what}; {_FULL[number]}")
    said = os.strerror(number).lower() if number else str(error)
    return StorageIOError(f"{what}; {_BROKEN.get(number, said)}")


def _number(error: Exception) -> int:
    found = getattr(error, "errno", None) or getattr(error, "code", None)
    return found if isinstance(found, int) and found > 0 else 0  # LMDB's own are below 0
