"""The file that the states stream through: preallocated, positional I/O, past the page cache.

Every chunk has two places in it (one, where nothing is recovered), so that what was committed is
never overwritten. The first 4 KiB name the plan.
"""

from __future__ import annotations

import logging
import mmap
import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from carousel.errors import (
    BadInputError,
    ForeignStorageError,
    StorageCorruptedError,
)
from carousel.offload.record import BLOCK
from carousel.storage.disk import extend, sync_folder
from carousel.storage.failures import disk_error

__all__ = ["IO_KINDS", "IoKind", "StatesFile"]

IoKind: TypeAlias = Literal["auto", "direct", "buffered"]
IO_KINDS: tuple[IoKind, ...] = ("auto", "direct", "buffered")

Bytes = npt.NDArray[np.uint8]

logger = logging.getLogger("carousel.offload")

_MAGIC = b"CRSLSTATES1\n"
_DIRECT = getattr(os, "O_DIRECT", 0)


class StatesFile:
    """Records of chunks in numbered places.

    Args:
        path: the file.
        plan: digest of the plan.
        sizes: bytes of each chunk's record, multiples of 4096.
        places: how many places each chunk has, 1 or 2.
        io: ``"direct"``, ``"buffered"``, or ``"auto"``: direct where the file system can.
        create: make the file, with disk space for all of it.
        readonly: only read it, through the page cache, beside an owner.

    Attributes:
        direct: whether the page cache is passed by.
        read_bytes, written_bytes: moved so far.

    Raises:
        TierFullError: the disk has no room for the file.
        ForeignStorageError: the file is of another plan, or none of ours.
        StorageCorruptedError: it is missing or too short.
        BadInputError: `io` is ``"direct"`` and the file system cannot.
    """

    def __init__(
        self,
        path: Path,
        plan: str,
        sizes: Sequence[int],
        *,
        places: int = 2,
        io: IoKind = "auto",
        create: bool = False,
        readonly: bool = False,
    ) -> None:
        self.path = path
        self._starts = [BLOCK]
        for size in sizes:
            self._starts.append(self._starts[-1] + places * size)
        self._sizes = list(sizes)
        self.read_bytes = self.written_bytes = 0
        self._counts = threading.Lock()
        head = np.frombuffer(_MAGIC + plan.encode(), np.uint8)
        if create:
            _create(path, head, self._starts[-1])
        else:
            _check(path, head, self._starts[-1])
        self._file, self.direct = _open_readonly(path) if readonly else _open(path, io)

    @property
    def nbytes(self) -> int:
        """Bytes on the disk."""
        return self._starts[-1]

    def read(self, chunk: int, place: int, record: Bytes, begin: int = 0) -> None:
        """Fill ``record[begin:]`` from a place.

        Args:
            chunk: its number.
            place: 0 or 1.
            record: (size,) uint8; begins at a multiple of 4096 in memory, as `begin` is one.
            begin: first byte that is wanted.

        Raises:
            StorageIOError: the system reports an error. `StorageCorruptedError`: the file is short.
        """
        at = self._starts[chunk] + place * self._sizes[chunk] + begin
        view = record.data[begin:]
        self._move(os.preadv, view, at, "read")
        with self._counts:
            self.read_bytes += len(view)
        self._forget(at, len(view))

    def write(self, chunk: int, place: int, record: Bytes) -> None:
        """Write a whole record to a place.

        Raises:
            TierFullError: the disk is full. `StorageIOError`: the system reports an error.
        """
        at = self._starts[chunk] + place * self._sizes[chunk]
        self._move(os.pwritev, record.data, at, "written")
        self.written_bytes += len(record)

    def sync(self) -> None:
        """Bring what was written to the medium.

        Raises:
            StorageIOError: the system reports an error.
        """
        try:
            os.fdatasync(self._file)
        except OSError as error:
            raise disk_error(error, f"{self.path} cannot be synced") from error
        self._forget(0, 0)

    def close(self) -> None:
        """Close the file; calling it again is fine."""
        if self._file >= 0:
            os.close(self._file)
        self._file = -1

    def remove(self) -> None:
        """Close and remove the file."""
        self.close()
        self.path.unlink(missing_ok=True)

    def _forget(self, at: int, nbytes: int) -> None:
        """What went through the page cache is not wanted there again."""
        if not self.direct and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(self._file, at, nbytes, os.POSIX_FADV_DONTNEED)

    def _move(
        self,
        call: Callable[[int, list[memoryview], int], int],
        view: memoryview,
        at: int,
        verb: str,
    ) -> None:
        """All of a view, whatever pieces the system moves it in."""
        done = 0
        while done < len(view):
            try:
                moved = call(self._file, [view[done:]], at + done)
            except InterruptedError:
                continue
            except OSError as error:
                raise disk_error(error, f"{self.path} cannot be {verb}") from error
            if moved == 0:
                raise StorageCorruptedError(f"{self.path} ends where a chunk is to be {verb}")
            done += moved
            if done < len(view):
                done -= done % BLOCK  # direct I/O goes on at whole blocks


def _create(path: Path, head: Bytes, nbytes: int) -> None:
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.unlink(missing_ok=True)
        fresh.touch()
        extend(fresh, 0, nbytes)
        with fresh.open("r+b", buffering=0) as file:
            file.write(head.tobytes())
            os.fsync(file.fileno())
        fresh.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):
            fresh.unlink(missing_ok=True)
        raise disk_error(error, f"{path} cannot be made with {nbytes} bytes") from error


def _check(path: Path, head: Bytes, nbytes: int) -> None:
    try:
        with path.open("rb") as file:
            found = file.read(len(head))
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError as error:
        raise StorageCorruptedError(
            f"{path} is missing; restore a copy, or start anew with another path"
        ) from error
    except OSError as error:
        raise disk_error(error, f"{path} cannot be read") from error
    if not found.startswith(_MAGIC):
        raise ForeignStorageError(f"{path} is no file of optimizer states; use another path")
    if found != head.tobytes():
        raise ForeignStorageError(f"{path} holds the states of other parameters; use another path")
    if size < nbytes:
        raise StorageCorruptedError(
            f"{path} has {size} bytes of {nbytes}; restore a copy, or start anew with another path"
        )


def _open(path: Path, io: IoKind) -> tuple[int, bool]:
    if io not in IO_KINDS:
        raise BadInputError(f"io is {io!r}", fix=f"choose one of {', '.join(IO_KINDS)}")
    flags = os.O_RDWR | os.O_CLOEXEC
    if io != "buffered":
        file = _try_direct(path, flags)
        if file >= 0:
            return file, True
        if io == "direct":
            raise BadInputError(
                f"io is 'direct' and the file system of {path} has no direct I/O",
                fix="use io='auto'",
            )
        logger.info("%s has no direct I/O: the page cache is used", path)
    return _open_buffered(path, flags), False


def _open_readonly(path: Path) -> tuple[int, bool]:
    return _open_buffered(path, os.O_RDONLY | os.O_CLOEXEC), False


def _open_buffered(path: Path, flags: int) -> int:
    try:
        return os.open(path, flags)
    except OSError as error:
        raise disk_error(error, f"{path} cannot be opened") from error


def _try_direct(path: Path, flags: int) -> int:
    """A descriptor that can do direct I/O, -1 if there is none: some only tell when it is tried."""
    if not _DIRECT:
        return -1
    try:
        file = os.open(path, flags | _DIRECT)
    except OSError:
        return -1
    with mmap.mmap(-1, BLOCK) as block:
        try:
            if os.preadv(file, [block], 0) == BLOCK and os.pwritev(file, [block], 0) == BLOCK:
                return file
        except OSError:
            pass
    os.close(file)
    return -1
