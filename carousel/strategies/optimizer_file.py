"""An optimizer's state in a checkpoint; in a file beside it where it is too large for RAM.

An optimizer with ``export`` streams its state into ``optimizer-<number>-<checksum>.pt``, and the
checkpoint names that file. The checksum in the name lets a checkpoint be replaced by one of the
same number: at every moment the file that the one on disk names is there.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import torch
from xxhash import xxh3_64

from carousel.errors import CheckpointError, StorageError

__all__ = ["drop_unnamed", "find_optimizer", "keep_optimizer"]

_NAME = re.compile(r"optimizer-(\d{12})-[0-9a-f]{16}\.pt")
_BLOCK = 1 << 20
_FILE = "file"


def keep_optimizer(optimizer: Any, folder: Path, number: int) -> dict[str, Any]:
    """What a checkpoint holds of an optimizer: its state, or the name of the file that does.

    Args:
        optimizer: of torch, perhaps with ``export(path)``.
        folder: of the checkpoints; made when needed.
        number: of the checkpoint.

    Raises:
        CheckpointError: the file cannot be written.
    """
    if not hasattr(optimizer, "export"):
        state: dict[str, Any] = optimizer.state_dict()
        return state
    folder.mkdir(parents=True, exist_ok=True)
    fresh = folder / f".optimizer-{number}.tmp"
    try:
        optimizer.export(fresh)
        path = folder / f"optimizer-{number:012d}-{_digest(fresh)}.pt"
        fresh.replace(path)
    except (OSError, StorageError) as error:
        fresh.unlink(missing_ok=True)
        raise CheckpointError(f"the optimizer's state cannot be written: {error}") from error
    return {_FILE: path.name}


def find_optimizer(saved: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The state_dict that `keep_optimizer` kept; its tensors are read when they are used.

    Raises:
        CheckpointError: the file is missing or damaged.
    """
    if _FILE not in saved:
        return saved
    path = folder / saved[_FILE]
    try:
        if not _NAME.fullmatch(path.name) or _digest(path) not in path.name:
            raise CheckpointError(f"{path} is damaged: its checksum does not match")
        state: dict[str, Any] = torch.load(path, mmap=True, weights_only=True)
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error}") from error
    return state


def drop_unnamed(folder: Path, saved: dict[str, Any]) -> None:
    """Remove files that no checkpoint names.

    Args:
        folder: of the checkpoints.
        saved: of `keep_optimizer`, in the checkpoint that was written last.
    """
    kept = {path.name.removeprefix("checkpoint-")[:12] for path in folder.glob("checkpoint-*.pt")}
    newest = _NAME.fullmatch(saved.get(_FILE, ""))
    for path in list(folder.glob("optimizer-*.pt")):
        match = _NAME.fullmatch(path.name)
        if match is None or path.name == saved.get(_FILE):
            continue
        if match[1] not in kept or (newest is not None and match[1] == newest[1]):
            path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    digest = xxh3_64()
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
    return digest.hexdigest()
