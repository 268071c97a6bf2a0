"""Finding out what a store holds, from its saved index or by a walk, and where its records lie."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lmdb
import numpy as np

from carousel.errors import StorageCorruptedError
from carousel.storage.codec import parse_headers
from carousel.storage.columns import Ids
from carousel.storage.creation import SAMPLES
from carousel.storage.index import Index
from carousel.storage.lmdb.environment import Environment
from carousel.storage.lmdb.index_file import (
    INDEX_FILE,
    Origin,
    Snapshot,
    load_snapshot,
    save_snapshot,
)
from carousel.storage.lmdb.pages import record_costs
from carousel.storage.lmdb.prefetch import ReadAhead
from carousel.storage.lmdb.reader import big_endian_keys
from carousel.storage.table import HEADER_BYTES

__all__ = ["Scan", "fill_index", "find_offsets", "map_base", "save_index", "scan_into"]

_CHUNK = 1024
_KEY_BYTES = 8


@dataclass(slots=True)
class Scan:
    """Outcome of a walk.

    Args:
        damaged: ids whose header is damaged or belongs to another id, and why.
        raw_bytes: bytes of all intact records.
        problems: why the walk ended before the last record.
    """

    damaged: dict[int, str]
    raw_bytes: int = 0
    problems: list[str] = field(default_factory=list)


def fill_index(env: Environment, index: Index) -> Scan:
    """Fill an empty index from the one that was saved, or else by a walk through the records.

    The owner removes the saved one, since what it writes next is not in it.
    """
    saved = load_snapshot(env.path, env.uuid, env.last_transaction)
    if saved is None:
        scan = scan_into(env, index)
    else:
        columns, raw_bytes = saved
        index.add(*columns)
        scan = Scan({}, raw_bytes)
    if not env.readonly:
        (env.path / INDEX_FILE).unlink(missing_ok=True)
    return scan


def save_index(env: Environment, index: Index, amplification: float, max_bytes: int | None) -> None:
    """Save the index of a store that is being closed, unless it has more than `max_bytes`."""
    env.sync()
    entries = index.entries()
    columns = Snapshot(
        entries.ids,
        entries.labels,
        entries.tasks,
        entries.lengths,
        index.lookup(entries.ids).offsets,
    )
    origin = Origin(env.uuid, env.last_transaction, int(index.total_length / amplification))
    save_snapshot(env.path, origin, columns, max_bytes)


def scan_into(env: Environment, index: Index) -> Scan:
    """Fill an empty index from the headers of all records.

    A reader takes what can be reached in a damaged file; the owner must not write to one.

    Raises:
        StorageCorruptedError: the tree of records is damaged, and the store is open for writing.
    """
    scan = Scan({})
    try:
        _walk(env, index, scan)
    except StorageCorruptedError as error:
        if not env.readonly:
            raise
        scan.problems.append(str(error))
    return scan


def _walk(env: Environment, index: Index, scan: Scan) -> None:
    base = map_base(env.data_path)
    with env.read() as txn, ReadAhead(env.data_path) as ahead:
        total = max(1, txn.stat(env.databases[SAMPLES])["entries"])
        done = 0
        ahead.advance(0)
        for keys, heads, sizes, addresses in _chunks(txn, env.databases[SAMPLES]):
            ids = np.frombuffer(b"".join(keys), ">i8").astype(np.int64)
            block = np.frombuffer(b"".join(heads), np.uint8).reshape(-1, HEADER_BYTES)
            columns = parse_headers(block)
            good = columns.intact & (columns.ids == ids) & (columns.lengths == sizes)
            for id_ in ids[~good].tolist():
                scan.damaged[id_] = "its header is damaged or that of another record"
            costs = record_costs(sizes, env.page_bytes)
            index.add(
                ids[good],
                columns.labels[good],
                columns.tasks[good],
                costs[good],
                _offsets(addresses, base, env.file_bytes)[good],
            )
            scan.raw_bytes += int(sizes[good].sum())
            done += len(keys)
            ahead.advance(done / total)


def find_offsets(env: Environment, ids: Ids) -> Ids:
    """Where records lie in the data file, -1 where that is unknown."""
    base = map_base(env.data_path)
    addresses = np.full(len(ids), -1, np.int64)
    if base >= 0:
        database = env.databases[SAMPLES]
        with env.read() as txn:
            for at, key in enumerate(big_endian_keys(ids)):
                view = txn.get(key, db=database)
                if view is not None:
                    addresses[at] = _address(view)
    return _offsets(addresses, base, env.file_bytes)


def map_base(data_path: Path) -> int:
    """Address that a file is mapped at in this process, -1 where the system does not tell."""
    try:
        status = data_path.stat()
        with open("/proc/self/maps") as maps:
            for line in maps:
                fields = line.split(maxsplit=5)
                if fields[4] == str(status.st_ino) and fields[2] == "00000000":
                    return int(fields[0].split("-")[0], 16)
    except (OSError, ValueError, IndexError):
        pass
    return -1


def _chunks(txn: Any, database: Any) -> Iterator[tuple[list[bytes], list[bytes], Ids, Ids]]:
    keys: list[bytes] = []
    heads: list[bytes] = []
    sizes: list[int] = []
    addresses: list[int] = []
    for key, value in txn.cursor(database).iternext():
        if len(key) != _KEY_BYTES:
            raise lmdb.CorruptedError(f"a record has a key of {len(key)} bytes")
        keys.append(bytes(key))
        heads.append(bytes(value[:HEADER_BYTES]).ljust(HEADER_BYTES, b"\0"))
        sizes.append(len(value))
        addresses.append(_address(value))
        if len(keys) == _CHUNK:
            yield keys, heads, np.array(sizes), np.array(addresses)
            keys, heads, sizes, addresses = [], [], [], []
    if keys:
        yield keys, heads, np.array(sizes), np.array(addresses)


def _address(view: Sequence[int]) -> int:
    return int(np.frombuffer(view, np.uint8).__array_interface__["data"][0])  # type: ignore[call-overload]


def _offsets(addresses: Ids, base: int, file_bytes: int) -> Ids:
    offsets = addresses - base
    known = (base >= 0) & (addresses >= 0) & (offsets >= 0) & (offsets < file_bytes)
    return np.where(known, offsets, -1)
