"""Who may write a storage folder, and how the last owner left it.

The owner holds a POSIX record lock on ``owner.lock``. The system drops it with the process, so a
killed owner leaves nothing stale behind, and a forked child does not inherit it. It is dropped too
when the process closes any descriptor of that file, so the owner must not open it again.

``carousel.json`` is for people, and for the question whether a mode that does not survive power
loss was closed.
"""

from __future__ import annotations

import fcntl
import json
import os
import socket
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

import psutil

from carousel.errors import StorageIOError, StorageLockedError, UncleanStorageError
from carousel.storage.disk import sync_folder
from carousel.storage.durability import Durability, survives_power_loss

__all__ = ["Marker", "OwnerLock", "boot_id", "read_marker", "refuse_unclean", "write_marker"]

MARKER = "carousel.json"
LOCK = "owner.lock"


@dataclass(frozen=True, slots=True)
class Marker:
    """What ``carousel.json`` says.

    Args:
        uuid: name of the storage, given when it was made.
        durability: the mode it was last opened for writing with.
        boot: identity of the system's boot at that time.
        clean: whether it was closed since.
        format: version of the folder's layout.
    """

    uuid: str
    durability: Durability
    boot: str
    clean: bool
    format: int = 1


class OwnerLock:
    """The right to write a folder, for the life of the process or until `release`.

    Raises:
        StorageLockedError: another process has it; the error holds its process id.
        StorageIOError: the file system has no locks.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / LOCK
        self._pid = os.getpid()
        self._file = -1
        while self._file < 0:
            self._file = self._acquire()

    def release(self) -> None:
        """Give the right back and remove the file."""
        if self._file >= 0 and self._pid == os.getpid():
            if self._is_current(self._file):
                self._path.unlink(missing_ok=True)
            os.close(self._file)
        self._file = -1

    def _acquire(self) -> int:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            owner = _owner(os.pread(file, 256, 0))
            os.close(file)
            if isinstance(error, BlockingIOError | PermissionError):
                raise self._locked(owner) from None
            raise StorageIOError(f"{self._path} cannot be locked: {error}") from error
        if not self._is_current(file):
            os.close(file)
            return -1
        # The lock holds without a name in it, as on a disk that is full.
        with suppress(OSError):
            os.ftruncate(file, 0)
            os.pwrite(file, f"{os.getpid()} {socket.gethostname()}\n".encode(), 0)
        return file

    def _is_current(self, file: int) -> bool:
        # The last owner may have removed the file between our open and our lock, or someone the
        # folder, and then it was made anew.
        try:
            return os.path.samestat(os.fstat(file), self._path.stat())
        except FileNotFoundError:
            return False

    def _locked(self, owner: tuple[int, str] | None) -> StorageLockedError:
        who = f"process {owner[0]} on {owner[1]}" if owner else "another process"
        return StorageLockedError(
            f"{self._path.parent} is being written by {who}; wait for it to end, "
            "open it read-only, or use another path",
            owner[0] if owner else None,
        )


def read_marker(folder: Path) -> Marker | None:
    """The folder's marker, None when there is none that can be read."""
    try:
        return Marker(**json.loads((folder / MARKER).read_text()))
    except (OSError, ValueError, TypeError):
        return None


def write_marker(folder: Path, marker: Marker) -> None:
    """Replace the marker in one step that survives power loss; nothing to do if it says so."""
    if read_marker(folder) == marker:
        return
    fresh = folder / f"{MARKER}.new"
    with fresh.open("w") as file:
        json.dump(asdict(marker), file, indent=1)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(folder / MARKER)
    sync_folder(folder)


def refuse_unclean(folder: Path, marker: Marker) -> None:
    """Refuse what an unsafe mode may have left half-written.

    Raises:
        UncleanStorageError: ``process`` and the machine went down, or ``ephemeral`` and the
            process did, before the storage was closed.
    """
    if marker.clean or survives_power_loss(marker.durability):
        return
    if marker.durability == "process" and marker.boot == boot_id():
        return
    end = "machine went down" if marker.durability == "process" else "process ended"
    raise UncleanStorageError(
        f"{folder} was written with durability {marker.durability!r} and the {end} before it was "
        "closed, so what it holds cannot be trusted; start anew with another path"
    )


def boot_id() -> str:
    """What stays the same until the machine is started again."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return f"boot-{round(psutil.boot_time(), -1):.0f}"


def _owner(raw: bytes) -> tuple[int, str] | None:
    words = raw.decode(errors="replace").split()
    if len(words) >= 1 and words[0].isdigit():
        return int(words[0]), words[1] if len(words) > 1 else "this machine"
    return None
