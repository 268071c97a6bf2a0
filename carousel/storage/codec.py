"""Records as bytes: a 64-byte header, a field table, the payload; every byte under a checksum.

Byte order is little-endian. The header is

====== ===== ==============================================================
offset bytes what
====== ===== ==============================================================
0      4     magic ``CMR1``
4      1     format version, 1
5      1     number of fields
6      2     zero
8      8     xxh3-64 of everything from byte 16 to the end
16     8     id
24     8     label
32     8     fingerprint: xxh3-64 of the field table
40     8     task
48     4     bytes of the field table
52     4     bytes of the whole record
56     8     check word of the header without the hash, so a scan needs no payload
====== ===== ==============================================================

The field table names each field, its dtype and shape, and is the same for all records of one
layout. After it come one u32 length per encoded field, then the values in the table's order.
"""

from __future__ import annotations

import mmap
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from carousel.errors import CorruptRecordError, SchemaMismatchError
from carousel.storage.record import ENCODED, FieldSpec, Record, RecordBatch, numpy_dtype
from carousel.storage.table import (
    HEADER_BYTES,
    MAGIC,
    MAX_RECORD_BYTES,
    VERSION,
    Buffer,
    TableInfo,
    check_batch,
    parse_table,
    record_nbytes,
)

__all__ = [
    "HEADER_BYTES",
    "HeaderColumns",
    "check_batch",
    "decode",
    "decode_as",
    "encode_batch",
    "parse_headers",
    "read_table",
    "record_nbytes",
]

_LAYOUT = struct.Struct("<5xB26xQ8xI")
_DTYPE = np.dtype(
    {
        "names": ["prelude", "hash", "id", "label", "layout", "task", "table", "length", "check"],
        "formats": ["<u8", "<u8", "<i8", "<i8", "<u8", "<i8", "<u4", "<u4", "<u8"],
        "offsets": [0, 8, 16, 24, 32, 40, 48, 52, 56],
        "itemsize": HEADER_BYTES,
    }
)
_LARGE_BLOCK = 1 << 18
_MULTIPLIER = 0x9E37_79B9_7F4A_7C15


@dataclass(slots=True)
class HeaderColumns:
    """Headers of n records, column by column; only rows with `intact` mean anything."""

    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    tasks: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]
    hashes: npt.NDArray[np.uint64]
    intact: npt.NDArray[np.bool_]


def encode_batch(batch: RecordBatch) -> list[memoryview]:
    """Encode n samples; the arrays are copied, so the caller may reuse them at once.

    Records of fixed-size fields share one (n, record bytes) array.

    Raises:
        SchemaMismatchError: the arrays do not have the layout they state, or a record would be
            larger than 4 GiB.

    Example:
        >>> one = np.zeros(1, np.int64)
        >>> batch = RecordBatch(one, one, one, (FieldSpec("x", "uint8", (2,)),),
        ...                     {"x": np.array([[7, 8]], np.uint8)})
        >>> decode(encode_batch(batch)[0]).fields["x"].tolist()
        [7, 8]
    """
    info = check_batch(batch)
    count = len(batch)
    if count == 0:
        return []
    records = _variable_records(batch, info) if info.encoded else _fixed_records(batch, info)
    for record in records:
        digest = xxh3_64_intdigest(record[16:])
        record[8:16] = digest.to_bytes(8, "little")
    return records


def decode(record: Buffer) -> Record:
    """Check every byte of a record and return its fields as fresh arrays and bytes.

    Raises:
        CorruptRecordError: anything at all is wrong with the bytes.
    """
    view = memoryview(record).cast("B")
    columns = _checked_header(view)
    info = read_table(view)
    fields: dict[str, npt.NDArray[np.generic] | bytes] = {}
    for spec, (offset, length) in zip(info.layout, info.spans(view), strict=True):
        value = bytes(view[offset : offset + length])
        if spec.dtype == ENCODED:
            fields[spec.name] = value
        else:
            flat = np.frombuffer(bytearray(value), np.uint8)
            fields[spec.name] = _typed(flat, spec)
    return Record(columns[0], columns[1], columns[2], info.layout, fields)


def decode_as(record: Buffer, id_: int) -> Record:
    """`decode` a record and make sure that it is the one of this id.

    Raises:
        CorruptRecordError: the bytes are damaged, or the record belongs to another id.
    """
    found = decode(record)
    if found.id != id_:
        raise CorruptRecordError(f"the record stored as {id_} is that of {found.id}")
    return found


def parse_headers(headers: npt.NDArray[np.uint8]) -> HeaderColumns:
    """Read and check (n, 64) header bytes at once, for a scan that leaves payloads alone."""
    rows = np.ascontiguousarray(headers).view(_DTYPE).reshape(-1)
    magic = int.from_bytes(struct.pack("<4sB", MAGIC, VERSION), "little")
    intact = (rows["prelude"] & np.uint64(0xFF_FFFF_FFFF)) == magic
    intact &= rows["check"] == _check_word(rows)
    return HeaderColumns(
        ids=rows["id"].astype(np.int64),
        labels=rows["label"].astype(np.int64),
        tasks=rows["task"].astype(np.int64),
        lengths=rows["length"].astype(np.int64),
        hashes=rows["hash"].astype(np.uint64),
        intact=intact,
    )


def read_table(record: Buffer) -> TableInfo:
    """Layout of a record whose checksums were found right.

    Raises:
        CorruptRecordError: the table does not parse or does not fit the record's length.
    """
    count, fingerprint, table_bytes = _LAYOUT.unpack_from(record)
    info = parse_table(bytes(record[HEADER_BYTES : HEADER_BYTES + table_bytes]), count)
    if info.fingerprint != fingerprint or info.payload > len(record):
        raise CorruptRecordError("the field table does not match its fingerprint")
    offset, length = info.spans(record)[-1] if info.layout else (info.payload, 0)
    if offset + length != len(record):
        raise CorruptRecordError("the fields do not fill the record")
    return info


def _fixed_records(batch: RecordBatch, info: TableInfo) -> list[memoryview]:
    count, length = len(batch), info.payload + sum(info.nbytes)
    block = _block(count, length)
    lengths = np.full(count, length, np.int64)
    block[:, :HEADER_BYTES] = _headers(batch, info, lengths)
    block[:, HEADER_BYTES : info.payload] = np.frombuffer(info.table, np.uint8)
    offset = info.payload
    for spec, nbytes in zip(info.layout, info.nbytes, strict=True):
        if nbytes:
            block[:, offset : offset + nbytes] = _as_bytes(batch.fields[spec.name], count, nbytes)
        offset += nbytes
    flat = memoryview(block.data).cast("B", (count * length,))
    return [flat[start : start + length] for start in range(0, count * length, length)]


def _block(count: int, length: int) -> npt.NDArray[np.uint8]:
    # A large block comes from the system itself, which has it back when the last record is
    # written: the heaps of many threads would each keep some megabytes for the next time.
    size = count * length
    if size < _LARGE_BLOCK:
        return np.empty((count, length), np.uint8)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return np.frombuffer(pages, np.uint8).reshape(count, length)


def _variable_records(batch: RecordBatch, info: TableInfo) -> list[memoryview]:
    count = len(batch)
    columns: list[Sequence[Any]] = []
    for spec, nbytes in zip(info.layout, info.nbytes, strict=True):
        values = batch.fields[spec.name]
        columns.append(
            values if spec.dtype == ENCODED else list(_as_bytes(values, count, nbytes))  # type: ignore[arg-type]
        )
    sizes = np.array([[len(value) for value in column] for column in columns], np.int64)
    lengths = info.payload + sizes.sum(0)
    if int(lengths.max()) > MAX_RECORD_BYTES:
        raise SchemaMismatchError(
            f"one record would take {int(lengths.max())} bytes", fix="stay under 4 GiB a sample"
        )
    headers = _headers(batch, info, lengths)
    encoded_sizes = np.ascontiguousarray(sizes[list(info.encoded)].T.astype("<u4"))
    records = []
    for row in range(count):
        parts = [headers[row].tobytes(), info.table, encoded_sizes[row].tobytes()]
        parts.extend(column[row] for column in columns)
        records.append(memoryview(bytearray().join(parts)))
    return records


def _headers(
    batch: RecordBatch, info: TableInfo, lengths: npt.NDArray[np.int64]
) -> npt.NDArray[np.uint8]:
    rows = np.zeros(len(batch), _DTYPE)
    rows["prelude"] = info.prelude
    rows["id"] = batch.ids
    rows["label"] = batch.labels
    rows["layout"] = info.fingerprint
    rows["task"] = batch.tasks
    rows["table"] = len(info.table)
    rows["length"] = lengths
    rows["check"] = _check_word(rows)
    return rows.view(np.uint8).reshape(len(batch), HEADER_BYTES)


def _check_word(rows: npt.NDArray[np.void]) -> npt.NDArray[np.uint64]:
    # Each step is a bijection of the running word, so a change in any one word always shows.
    words = np.ascontiguousarray(rows).view("<u8").reshape(-1, HEADER_BYTES // 8)
    state = np.zeros(len(words), np.uint64)
    for column in (0, 2, 3, 4, 5, 6):
        state = (state ^ words[:, column]) * np.uint64(_MULTIPLIER)
        state ^= state >> np.uint64(32)
    return state


def _checked_header(view: memoryview) -> tuple[int, int, int]:
    if len(view) < HEADER_BYTES:
        raise CorruptRecordError(f"the record has {len(view)} bytes, less than a header")
    columns = parse_headers(np.frombuffer(view[:HEADER_BYTES], np.uint8).reshape(1, -1))
    if not columns.intact[0]:
        raise CorruptRecordError("the header fails its check word")
    if int(columns.lengths[0]) != len(view):
        raise CorruptRecordError(f"the record has {len(view)} bytes, not {columns.lengths[0]}")
    if xxh3_64_intdigest(view[16:]) != int(columns.hashes[0]):
        raise CorruptRecordError("the record fails its checksum")
    return int(columns.ids[0]), int(columns.labels[0]), int(columns.tasks[0])


def _as_bytes(values: Any, count: int, nbytes: int) -> npt.NDArray[np.uint8]:
    if nbytes == 0:
        return np.empty((count, 0), np.uint8)
    flat = np.ascontiguousarray(values).reshape(count, -1)
    return flat.view(np.uint8).reshape(count, nbytes)


def _typed(flat: npt.NDArray[np.uint8], spec: FieldSpec) -> npt.NDArray[np.generic]:
    dtype = numpy_dtype(spec.dtype)
    if flat.size == 0:
        return np.empty(spec.shape, dtype)
    return flat.view(dtype).reshape(spec.shape)
