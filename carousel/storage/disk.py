"""What the storage asks of the file system: room, kind, and extending a file."""

from __future__ import annotations

import logging
import os
import shutil
from errno import ENOSPC
from pathlib import Path

import psutil

from carousel.errors import StorageError
from carousel.storage.failures import disk_error, means_full

__all__ = [
    "error_at",
    "extend",
    "file_id",
    "folder_bytes",
    "free_bytes",
    "network_kind",
    "sync_file",
    "sync_folder",
    "warn_if_networked",
]

logger = logging.getLogger("carousel.storage")

_NETWORKED = (
    "nfs",
    "cifs",
    "smb",
    "afs",
    "ceph",
    "lustre",
    "gluster",
    "beegfs",
    "9p",
    "fuse.sshfs",
)


def free_bytes(path: Path) -> int:
    """Bytes that may still be written at a path that exists."""
    return shutil.disk_usage(path).free


def error_at(path: Path, error: Exception, what: str, least_free: int) -> StorageError:
    """The error of this package for one of a library that hides that the disk is full.

    Args:
        path: on the disk; where there is none, nothing is known of its disk.
        error: of the library.
        what: could not be done; begins the sentence.
        least_free: with fewer bytes left on the disk it counts as full.
    """
    if not means_full(error) and path.exists() and free_bytes(path) < least_free:
        error = OSError(ENOSPC, str(error))
    return disk_error(error, what)


def folder_bytes(folder: Path) -> int:
    """Bytes of all files in a folder.

    Raises:
        StorageIOError: it cannot be read.
    """
    try:
        with os.scandir(folder) as files:
            return sum(file.stat().st_size for file in files if file.is_file())
    except OSError as error:
        raise disk_error(error, f"{folder} cannot be read") from error


def file_id(path: Path) -> tuple[int, int] | None:
    """What names a file for as long as someone has it open; None when there is none.

    A removed file's path, or a removed folder's number, may be another one's by then.
    """
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def extend(file_path: Path, size: int, target: int) -> None:
    """Make a file of `size` bytes `target` bytes long, with disk space behind them if possible."""
    if target <= size:
        return
    file = os.open(file_path, os.O_RDWR)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, size, target - size)
        else:
            os.ftruncate(file, target)
    finally:
        os.close(file)


def sync_file(file_path: Path) -> None:
    """Bring a file's bytes to the medium."""
    _sync(file_path, os.O_RDWR)


def sync_folder(folder: Path) -> None:
    """Make created, renamed and removed names in a folder survive power loss."""
    _sync(folder, os.O_RDONLY)


def _sync(path: Path, flags: int) -> None:
    file = os.open(path, flags)
    try:
        os.fsync(file)
    finally:
        os.close(file)


def network_kind(path: Path) -> str | None:
    """Type of the network file system that a path lies on, None on a local one."""
    real, kind, longest = os.path.realpath(path), "", -1
    for mount in psutil.disk_partitions(all=True):
        inside = real == mount.mountpoint or real.startswith(mount.mountpoint.rstrip("/") + "/")
        if inside and len(mount.mountpoint) >= longest:
            kind, longest = mount.fstype, len(mount.mountpoint)
    return kind if kind.startswith(_NETWORKED) else None


def warn_if_networked(path: Path) -> None:
    """Warn when a storage lies where maps and locks cannot be relied on."""
    kind = network_kind(path)
    if kind is not None:
        logger.warning(
            "%s is on a network file system (%s): it is slow there and not safe with several "
            "machines; prefer a local disk",
            path,
            kind,
        )
