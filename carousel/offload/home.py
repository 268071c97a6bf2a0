"""The folder of an optimizer: its commit log and the file that its states stream through."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from carousel.errors import BadInputError, StorageCorruptedError
from carousel.offload.commit import Commit, CommitLog
from carousel.offload.plan import Plan
from carousel.offload.states_file import IoKind, StatesFile
from carousel.offload.wear import Wear
from carousel.storage.creation import DATA, LOCK, own_folder
from carousel.storage.durability import Durability, survives_power_loss
from carousel.storage.lmdb.index_file import INDEX_FILE
from carousel.storage.owner import MARKER

__all__ = ["Home", "has_states_file", "plan_of"]

_FILE = re.compile(r"states-(\d+)\.bin(\.new)?")
_OURS = (DATA, LOCK, MARKER, INDEX_FILE)


class Home:
    """A folder that one optimizer owns.

    Args:
        folder: made when missing.
        durability: what a commit survives; ``ephemeral``: there are no commits.
        io: how the states' file is read and written.
        write_limit: bytes that may be written to it in all, None for no limit.
        ranks: whether it is of one of several ranks; see `CommitLog`.

    Attributes:
        wear: what was written to it.

    Raises:
        BadInputError: an option or the path cannot be used.
        StorageLockedError, StorageError: see `CommitLog`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        durability: Durability,
        io: IoKind,
        write_limit: int | None = None,
        ranks: bool = False,
    ) -> None:
        self.folder = folder
        self.durability: Durability = durability
        self._io: IoKind = io
        self.wear = Wear(write_limit)
        self._log = CommitLog(folder, durability, ranks=ranks)

    @staticmethod
    def clear(folder: Path) -> None:
        """Remove what an optimizer left in a folder, whatever state it is in.

        A folder without a file of states is left alone: it may hold samples.

        Raises:
            StorageLockedError: it is in use.
        """
        if not has_states_file(folder):
            return
        owner = own_folder(folder)
        try:
            for path in list(folder.iterdir()):
                if path.name in _OURS or _FILE.fullmatch(path.name):
                    path.unlink()
        finally:
            owner.release()

    @property
    def recoverable(self) -> bool:
        """Whether there are commits."""
        return self.durability != "ephemeral"

    @property
    def synced(self) -> bool:
        """Whether a commit has to survive power loss."""
        return survives_power_loss(self.durability)

    def require_empty(self) -> None:
        """Refuse a folder that holds something.

        Raises:
            BadInputError: it does.
        """
        if not self._log.empty:
            raise BadInputError(
                f"{self.folder} holds the states of an earlier run, or samples",
                fix="use TieredAdamW.resume, fresh=True to discard it, or another path",
            )
        self.keep_only(None)

    @property
    def newest(self) -> int:
        """See `CommitLog.newest`."""
        return self._log.newest

    def require(self, number: int) -> None:
        """Refuse a commit that is neither the newest one nor the one before.

        Raises:
            StorageCorruptedError: it is not there.
        """
        if not self._log.has(number):
            raise StorageCorruptedError(
                f"{self.folder} is at commit {self._log.newest} and another rank's newest is "
                f"{number}; restore copies of the same moment"
            )

    def go_back_to(self, number: int) -> None:
        """See `CommitLog.go_back_to`."""
        self._log.go_back_to(number)

    def read(self) -> tuple[Plan, dict[str, Any], Commit]:
        """The newest commit with its plan, and the plan's options.

        Raises:
            BadInputError: there is none. `StorageCorruptedError`: it cannot be read.
        """
        return plan_of(self._log.read(), self.folder)

    def make_file(self, plan: Plan, sizes: Sequence[int]) -> StatesFile:
        """A new file for the records of a plan, beside the one in use.

        Raises:
            TierFullError: the disk has no room.
        """
        path = self.folder / f"states-{1 + max(self._numbers(), default=0)}.bin"
        places = 2 if self.recoverable else 1
        return StatesFile(path, plan.digest, sizes, places=places, io=self._io, create=True)

    def open_file(self, commit: Commit, sizes: Sequence[int]) -> StatesFile:
        """The file that a commit names.

        Raises:
            StorageCorruptedError, ForeignStorageError: it is not what was committed.
        """
        if not _FILE.fullmatch(commit.file):
            raise StorageCorruptedError(f"the commit in {self.folder} names no states' file")
        return StatesFile(self.folder / commit.file, commit.plan, sizes, io=self._io)

    def publish(self, commit: Commit, plan: dict[str, Any] | None) -> None:
        """See `CommitLog.publish`."""
        self._log.publish(commit, plan)

    def keep_only(self, name: str | None) -> None:
        """Remove states' files that no commit names."""
        for path in list(self.folder.iterdir()):
            if _FILE.fullmatch(path.name) and path.name != name:
                path.unlink(missing_ok=True)

    def close(self) -> None:
        """Give the folder back."""
        self._log.close()

    def _numbers(self) -> list[int]:
        names = (_FILE.fullmatch(path.name) for path in self.folder.iterdir())
        return [int(match[1]) for match in names if match]


def has_states_file(folder: Path) -> bool:
    """Whether an optimizer's file is in a folder, whatever state it is in."""
    return folder.is_dir() and any(_FILE.fullmatch(path.name) for path in folder.iterdir())


def plan_of(
    found: tuple[dict[str, Any], Commit] | None, folder: Path
) -> tuple[Plan, dict[str, Any], Commit]:
    """A commit that was found, with its plan and the plan's options.

    Args:
        found: by `read_commit`.
        folder: what to call it in an error.

    Raises:
        BadInputError: nothing was found. `StorageCorruptedError`: it cannot be read.
    """
    if found is None:
        raise BadInputError(
            f"{folder} holds no commit of an optimizer",
            fix="check the path, or start with TieredAdamW(...)",
        )
    saved, commit = found
    try:
        plan = Plan.from_json(saved)
    except (KeyError, TypeError, ValueError) as error:
        raise StorageCorruptedError(f"the plan in {folder} cannot be read") from error
    if plan.digest != commit.plan or len(commit.chunks.places) != len(plan.chunks):
        raise StorageCorruptedError(f"plan and commit in {folder} do not belong together")
    return plan, saved["options"], commit
