"""The index as a file beside the data, so that a store that was closed opens without a scan.

It is written at a clean close and counts only for the very transaction it was written after.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from carousel.storage.columns import Ids

__all__ = ["INDEX_FILE", "Origin", "Snapshot", "load_snapshot", "save_snapshot"]

INDEX_FILE = "index.bin"
_MAGIC = b"CMX1"
_HEAD_BYTES = len(_MAGIC) + 8
_WIDTHS: tuple[type[np.signedinteger], ...] = (np.int8, np.int16, np.int32)


class Snapshot(NamedTuple):
    """Columns of an index, (n,) int64 each, ascending by id."""

    ids: Ids
    labels: Ids
    tasks: Ids
    lengths: Ids
    offsets: Ids


class Origin(NamedTuple):
    """What a saved index belongs to.

    Args:
        store: the store's uuid.
        transaction: the last one, which the index describes.
        raw_bytes: bytes of all records without their pages.
    """

    store: str
    transaction: int
    raw_bytes: int


def save_snapshot(
    folder: Path, origin: Origin, columns: Snapshot, max_bytes: int | None = None
) -> bool:
    """Write the file in one step, unless it has more than `max_bytes`; returns whether it did."""
    narrow = [_narrow(column) for column in columns]
    head = {**origin._asdict(), "dtypes": [column.dtype.str for column in narrow]}
    body = json.dumps(head).encode() + b"\n" + b"".join(column.tobytes() for column in narrow)
    if max_bytes is not None and _HEAD_BYTES + len(body) > max_bytes:
        return False
    fresh = folder / f"{INDEX_FILE}.new"
    with fresh.open("wb") as file:
        file.write(_MAGIC + xxh3_64_intdigest(body).to_bytes(8, "little"))
        file.write(body)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(folder / INDEX_FILE)
    return True


def load_snapshot(folder: Path, store: str, transaction: int) -> tuple[Snapshot, int] | None:
    """The columns and `raw_bytes`, None when none was saved after this transaction."""
    try:
        raw = (folder / INDEX_FILE).read_bytes()
        digest = int.from_bytes(raw[len(_MAGIC) : _HEAD_BYTES], "little")
        if not raw.startswith(_MAGIC) or digest != xxh3_64_intdigest(raw[_HEAD_BYTES:]):
            return None
        end = raw.index(b"\n", _HEAD_BYTES) + 1
        head = json.loads(raw[_HEAD_BYTES:end])
        if (head["store"], head["transaction"]) != (store, transaction):
            return None
        return _columns(raw[end:], head["dtypes"]), int(head["raw_bytes"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _columns(raw: bytes, dtypes: list[str]) -> Snapshot:
    kinds = [np.dtype(name) for name in dtypes]
    count = len(raw) // sum(kind.itemsize for kind in kinds)
    columns, at = [], 0
    for kind in kinds:
        columns.append(np.frombuffer(raw, kind, count, at).astype(np.int64))
        at += count * kind.itemsize
    return Snapshot(*columns)


def _narrow(column: Ids) -> npt.NDArray[np.signedinteger]:
    low, high = (int(column.min()), int(column.max())) if len(column) else (0, 0)
    for width in _WIDTHS:
        if np.iinfo(width).min <= low and high <= np.iinfo(width).max:
            return column.astype(width)
    return column
