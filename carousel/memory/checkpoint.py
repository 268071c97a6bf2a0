"""Checkpoints on disk: one file each, written whole or not at all, checked when read."""

from __future__ import annotations

import io
import os
import re
import struct
from pathlib import Path
from typing import Any

import torch
import xxhash

from carousel.errors import CheckpointError
from carousel.storage.disk import sync_folder

__all__ = ["latest_checkpoint", "load_checkpoint", "newest_checkpoint", "save_checkpoint"]
__all__ += ["save_numbered"]

_TRAILER = struct.Struct("<8sQQ")  # magic, bytes before the trailer, their xxh3
_MAGIC = b"CRSLCKP1"
_NAME = re.compile(r"checkpoint-(\d{12})\.pt")


def save_checkpoint(path: str | Path, state: dict[str, Any]) -> None:
    """Write a state to a file that is at every moment the old one or the new one, whole.

    Args:
        path: the file; its folder must exist.
        state: plain types (dict, list, tuple, str, numbers, None) and tensors, nested.

    Raises:
        CheckpointError: the file cannot be written.

    Example:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "memory.pt"
        >>> save_checkpoint(path, {"step": 3, "weights": torch.ones(2)})
        >>> load_checkpoint(path)["step"]
        3
    """
    path = Path(path)
    buffer = io.BytesIO()
    torch.save(state, buffer)
    data = buffer.getbuffer()
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            file.write(_TRAILER.pack(_MAGIC, len(data), xxhash.xxh3_64_intdigest(data)))
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except OSError as error:
        temporary.unlink(missing_ok=True)
        raise CheckpointError(f"checkpoint {path} cannot be written: {error}") from error


def load_checkpoint(path: str | Path) -> dict[str, Any]:
    """Read what `save_checkpoint` wrote; nothing in the file is executed.

    Raises:
        CheckpointError: the file is missing, truncated, changed, or no checkpoint.
    """
    path = Path(path)
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CheckpointError(f"checkpoint {path} cannot be read: {error}") from error
    data = _checked(path, memoryview(content))
    try:
        state = torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except Exception as error:
        raise CheckpointError(f"checkpoint {path} holds something else: {error}") from error
    if not isinstance(state, dict):
        raise CheckpointError(f"checkpoint {path} holds a {type(state).__name__}, not a state")
    return state


def save_numbered(folder: str | Path, number: int, state: dict[str, Any], keep: int = 2) -> Path:
    """Write ``checkpoint-<number>.pt`` into a folder and remove all but the `keep` newest.

    Args:
        folder: created when absent.
        number: rises from one checkpoint to the next, such as the step.
        state: as for `save_checkpoint`.
        keep: how many stay; two, so that a damaged newest has one to fall back on.

    Raises:
        CheckpointError: the file cannot be written.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"checkpoint-{number:012d}.pt"
    save_checkpoint(path, state)
    for old in _numbered(folder)[keep:]:
        old.unlink(missing_ok=True)
    return path


def latest_checkpoint(folder: str | Path) -> tuple[Path, dict[str, Any]] | None:
    """The newest checkpoint of `save_numbered` that is whole, and its state; None without any.

    Raises:
        CheckpointError: there are checkpoints, and none of them is whole.
    """
    failure: CheckpointError | None = None
    for path in _numbered(Path(folder)):
        try:
            return path, load_checkpoint(path)
        except CheckpointError as error:
            failure = failure or error
    if failure is not None:
        raise failure
    return None


def newest_checkpoint(folder: str | Path) -> Path | None:
    """The newest file of `save_numbered`, not looked into; None if there is none."""
    return next(iter(_numbered(Path(folder))), None)


def _checked(path: Path, content: memoryview) -> memoryview:
    size = len(content) - _TRAILER.size
    if size >= 0:
        magic, length, digest = _TRAILER.unpack(content[size:])
        whole = magic == _MAGIC and length == size
        if whole and digest == xxhash.xxh3_64_intdigest(content[:size]):
            return content[:size]
    raise CheckpointError(f"checkpoint {path} is damaged: its checksum does not match")


def _numbered(folder: Path) -> list[Path]:
    """The numbered checkpoints of a folder, newest first."""
    if not folder.is_dir():
        return []
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), reverse=True)
