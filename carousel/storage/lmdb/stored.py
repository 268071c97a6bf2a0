"""Questions about records that are stored already: are they the ones given, are they intact."""

from __future__ import annotations

import numpy as np

from carousel.errors import CorruptRecordError, StorageCorruptedError
from carousel.storage.codec import decode, decode_as
from carousel.storage.columns import Ids
from carousel.storage.creation import SAMPLES
from carousel.storage.index import Index
from carousel.storage.lmdb.environment import Environment
from carousel.storage.lmdb.put import Put
from carousel.storage.lmdb.reader import big_endian_keys
from carousel.storage.table import HEADER_BYTES, Buffer

__all__ = ["differing", "head", "is_damaged"]


def head(record: Buffer) -> bytes:
    """The header of a record; it holds the hash of all the rest, so equal ones mean equal records.

    Example:
        >>> head(bytes(100)) == bytes(64)
        True
    """
    return bytes(record[:HEADER_BYTES])


def differing(env: Environment, batch: Put, rows: Ids) -> dict[int, str | None]:
    """Ids whose stored record is not the one given, and what is wrong with it if it is damaged.

    Args:
        env: the environment.
        batch: records that were given.
        rows: which of them to look up; all are in the index.
    """
    differ: dict[int, str | None] = {}
    keys = big_endian_keys(batch.ids[rows])
    with env.read() as txn:
        for row, key in zip(rows.tolist(), keys, strict=True):
            view = txn.get(key, db=env.databases[SAMPLES])
            if view is None:
                differ[int(batch.ids[row])] = "the index knew it, the database does not"
            elif head(view) != head(batch.records[row]):
                differ[int(batch.ids[row])] = _damage(view)
    return differ


def is_damaged(env: Environment, index: Index, id_: int) -> bool:
    """Whether what is stored under an id now is damaged, or missing though the index knows it."""
    try:
        with env.read() as txn:
            view = txn.get(id_.to_bytes(8, "big"), db=env.databases[SAMPLES])
            if view is not None:
                decode_as(view, id_)
            return view is None and bool(index.contains(np.array([id_]))[0])
    except (CorruptRecordError, StorageCorruptedError):
        return True


def _damage(record: Buffer) -> str | None:
    try:
        decode(record)
    except CorruptRecordError as error:
        return str(error)
    return None
