"""Before a run: where it lives, whether it starts, goes on or is done, and what must not be there.

Everything here only looks; nothing is created or removed before `Launch.clear_the_way`.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from carousel.errors import BadInputError, ForeignStorageError
from carousel.runs.config import TrainConfig, resolve_config
from carousel.runs.folder import RUNS, RunFolder, default_run_path, run_suffix
from carousel.storage.creation import DATA
from carousel.storage.lmdb.registry import is_open
from carousel.storage.owner import MARKER, OwnerLock

__all__ = ["MAY_CHANGE", "Launch", "plan_launch"]

MAY_CHANGE = {"device", "checkpoint_every", "logger", "data_root", "out"}
"""Settings that a resumed run may have anew; all others decide its result."""

_STORE_FILES = ("data.mdb", "lock.mdb", MARKER)


@dataclass(slots=True)
class Launch:
    """What is about to happen.

    Args:
        config: the settings, those of the run folder when it goes on.
        folder: of the run.
        storage: folder of the samples.
        action: ``"start"``, ``"resume"``, or ``"show"`` a finished run.
        fresh: discard what is there.
        notes: lines for the user.
    """

    config: TrainConfig
    folder: RunFolder
    storage: Path
    action: Literal["start", "resume", "show"]
    fresh: bool = False
    notes: list[str] = field(default_factory=list)

    def clear_the_way(self) -> None:
        """Discard an earlier run and its samples, where ``--fresh`` asked for it."""
        if self.fresh:
            _discard_store(self.storage)
            self.folder.clear()

    def require_storage(self) -> None:
        """Refuse to go on when the samples that the checkpoints name are not there.

        Raises:
            BadInputError: the storage is gone; nothing was made in its place.
        """
        going_on = self.action == "resume" and any(self.folder.checkpoints.glob("*.pt"))
        if going_on and not (self.storage / DATA).is_file():
            raise BadInputError(
                f"the storage of the run, {self.storage}, is gone",
                fix="put it back, or discard the run with --fresh",
            )


def plan_launch(
    *,
    file: Mapping[str, Any] | None = None,
    command_line: Mapping[str, Any] | None = None,
    resume: bool = False,
    fresh: bool = False,
) -> Launch:
    """Decide where the run lives and what it does.

    Args:
        file: keys of the configuration file.
        command_line: keys given on the command line.
        resume: go on with what is there.
        fresh: discard what is there.

    Raises:
        BadInputError: a setting is unusable, the folders are not free, or a resumed run was
            started with other settings.
        ForeignStorageError: the storage folder holds something else.
    """
    if resume and fresh:
        raise BadInputError(
            "--resume and --fresh are both given", fix="go on with a run, or discard it"
        )
    config = resolve_config(file=file, command_line=command_line)
    folder = _locate(config, {**(file or {}), **(command_line or {})}, resume)
    _check_place(folder.path, "--out")
    if resume and folder.started:
        return _resumed(folder, {**(file or {}), **(command_line or {})})
    storage = config.storage or folder.storage
    notes = [f"nothing to resume in {folder.path}: starting there"] if resume else []
    if not folder.empty and not (fresh and folder.started):
        _refuse_folder(folder)
    _check_place(storage, "--storage")
    _check_store(storage, resume=resume, fresh=fresh)
    _check_not_of_another_run(storage, folder)
    return Launch(config, folder, storage, "start", fresh, notes)


def _locate(config: TrainConfig, given: Mapping[str, Any], resume: bool) -> RunFolder:
    if config.out is not None:
        return RunFolder(config.out)
    if resume:
        pattern = f"*-{run_suffix(config.strategy, config.benchmark)}"
        for path in sorted(RUNS.glob(pattern), reverse=True):
            folder = RunFolder(path)
            if folder.started and not _changes(folder.read_config(), given, folder):
                return folder
    return RunFolder(default_run_path(config.strategy, config.benchmark))


def _resumed(folder: RunFolder, given: Mapping[str, Any]) -> Launch:
    saved = folder.read_config()
    changes = _changes(saved, given, folder)
    if changes:
        key, was, now = changes[0]
        raise BadInputError(
            f"{key} is {now} and the run in {folder.path} was started with {was}",
            fix=f"leave {key} out to resume, or give another --out",
        )
    fresh_values = {key: given[key] for key in MAY_CHANGE & given.keys()}
    config = resolve_config(file=_flat(saved), command_line=fresh_values)
    storage = config.storage or folder.storage
    action: Literal["show", "resume"] = "show" if folder.finished else "resume"
    if action == "resume":
        _check_unowned(storage)
    return Launch(config, folder, storage, action)


def _changes(
    saved: TrainConfig, given: Mapping[str, Any], folder: RunFolder
) -> list[tuple[str, object, object]]:
    """What was asked for and is not how the run was started: key, value then, value now."""
    wanted = resolve_config(file={key: value for key, value in given.items() if value is not None})
    before, now = _flat(saved), _flat(wanted)
    for flat in (before, now):
        flat["storage"] = Path(flat.get("storage", folder.storage)).resolve()
    keys = [key.replace("-", "_") if not key.startswith("strategy.") else key for key in given]
    return [
        (key, before.get(key), now[key])
        for key in keys
        if key in now and key not in MAY_CHANGE and before.get(key) != now[key]
    ]


def _flat(config: TrainConfig) -> dict[str, Any]:
    flat = config.model_dump(exclude={"options"}, exclude_none=True)
    return flat | {f"strategy.{name}": value for name, value in config.options.items()}


def _refuse_folder(folder: RunFolder) -> None:
    if folder.started:
        state = "a finished run" if folder.finished else "a run that was cut short"
        raise BadInputError(
            f"{folder.path} holds {state}", fix="give --resume, --fresh or another --out"
        )
    raise BadInputError(
        f"{folder.path} holds other files", fix="give a folder that is empty or not there as --out"
    )


def _check_place(path: Path, flag: str) -> None:
    """The path is a folder, or one can be made there."""
    existing = path
    while not existing.exists() and existing != existing.parent:
        existing = existing.parent
    if not existing.is_dir():
        raise BadInputError(
            f"{flag} {path} leads through the file {existing}", fix=f"give a folder as {flag}"
        )
    if not os.access(existing, os.W_OK | os.X_OK):
        raise BadInputError(
            f"{flag} {path} cannot be written", fix=f"give a writable folder as {flag}"
        )


def _check_store(storage: Path, *, resume: bool, fresh: bool) -> None:
    content = {entry.name for entry in storage.iterdir()} if storage.is_dir() else set()
    if not content:
        return
    if MARKER not in content:
        raise ForeignStorageError(
            f"--storage {storage} holds files that Carousel did not make: "
            "give a folder that is empty or not there"
        )
    if not (fresh or resume):
        raise BadInputError(
            f"--storage {storage} holds samples already",
            fix="give --resume, --fresh or another --storage",
        )
    _check_unowned(storage)


def _check_not_of_another_run(storage: Path, folder: RunFolder) -> None:
    """Samples of one run are neither erased nor mixed with those of another one."""
    if not (storage / DATA).exists():
        return
    out = folder.path.resolve()
    for parent in storage.resolve().parents:
        other = RunFolder(parent)
        if not out.is_relative_to(parent) and other.started and other.checkpoints.is_dir():
            raise BadInputError(
                f"--storage {storage} belongs to the run in {parent}",
                fix=f"give another --storage, or --out {parent} to go on with that run",
            )


def _check_unowned(storage: Path) -> None:
    if is_open(storage):
        raise BadInputError(f"{storage} is open in this process", fix="close it first")
    if (storage / MARKER).is_file():
        OwnerLock(storage).release()


def _discard_store(storage: Path) -> None:
    if not storage.is_dir():
        return
    lock = OwnerLock(storage)
    try:
        for name in _STORE_FILES:
            (storage / name).unlink(missing_ok=True)
        shutil.rmtree(storage / ".new", ignore_errors=True)
    finally:
        lock.release()
