"""How a layout becomes bytes: the field table of a record, and where each value lies.

The table is, for each field: three bytes (length of the name, length of the dtype, number of
dimensions), the name, the dtype, one u32 per dimension; then zeros to a multiple of 8 bytes.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from typing import Any, TypeAlias

import numpy as np
from xxhash import xxh3_64_intdigest

from carousel.errors import CorruptRecordError, SchemaMismatchError
from carousel.storage.record import ENCODED, MAX_ID, FieldSpec, Layout, RecordBatch, numpy_dtype

__all__ = [
    "HEADER_BYTES",
    "MAGIC",
    "MAX_RECORD_BYTES",
    "VERSION",
    "Buffer",
    "TableInfo",
    "check_batch",
    "parse_table",
    "record_nbytes",
    "table_info",
]

HEADER_BYTES = 64
MAX_RECORD_BYTES = 0xFFFF_FFFF
MAGIC = b"CMR1"
VERSION = 1

Buffer: TypeAlias = bytes | bytearray | memoryview

_MAX_DIMS = 8
_MAX_NAME = 32


@dataclass(frozen=True, slots=True)
class TableInfo:
    """What a layout means for the bytes of its records.

    Args:
        layout: the fields, in order.
        table: the field table as stored, padded to a multiple of 8 bytes.
        fingerprint: xxh3-64 of the table.
        nbytes: bytes of each field's value, 0 for an encoded one.
        encoded: positions of the encoded fields.
        payload: offset of the first value in a record.
    """

    layout: Layout
    table: bytes
    fingerprint: int
    nbytes: tuple[int, ...]
    encoded: tuple[int, ...]
    payload: int

    @property
    def prelude(self) -> int:
        """The first 8 bytes of every record of this layout, as a little-endian integer."""
        head = struct.pack("<4sBBH", MAGIC, VERSION, len(self.layout), 0)
        return int.from_bytes(head, "little")

    @property
    def fixed_length(self) -> int | None:
        """Bytes of a whole record, None when an encoded field makes them vary."""
        return None if self.encoded else self.payload + sum(self.nbytes)

    def spans(self, record: Buffer) -> list[tuple[int, int]]:
        """Offset and length of every field's value in one record."""
        sizes = list(self.nbytes)
        if self.encoded:
            start = HEADER_BYTES + len(self.table)
            lengths = struct.unpack_from(f"<{len(self.encoded)}I", record, start)
            for position, length in zip(self.encoded, lengths, strict=True):
                sizes[position] = length
        return list(zip(accumulate(sizes, initial=self.payload), sizes, strict=False))


@lru_cache(maxsize=256)
def table_info(layout: Layout) -> TableInfo:
    """Validate a layout and lay out its records.

    Raises:
        SchemaMismatchError: a name, dtype or shape cannot be stored.
    """
    if len({spec.name for spec in layout}) != len(layout) or len(layout) > 255:
        raise SchemaMismatchError(
            f"the layout has {len(layout)} fields, some with the same name or too many",
            fix="give at most 255 fields with different names",
        )
    parts = [_table_row(spec) for spec in layout]
    table = b"".join(parts)
    table += b"\0" * (-len(table) % 8)
    encoded = tuple(at for at, spec in enumerate(layout) if spec.dtype == ENCODED)
    payload = HEADER_BYTES + len(table) + 4 * len(encoded)
    nbytes = tuple(spec.nbytes for spec in layout)
    if payload + sum(nbytes) > MAX_RECORD_BYTES:
        raise SchemaMismatchError(
            f"one record would take {payload + sum(nbytes)} bytes", fix="stay under 4 GiB a sample"
        )
    return TableInfo(layout, table, xxh3_64_intdigest(table), nbytes, encoded, payload)


@lru_cache(maxsize=256)
def parse_table(table: bytes, count: int) -> TableInfo:
    """The layout that a stored field table describes.

    Raises:
        CorruptRecordError: the bytes are no table that this version writes.
    """
    specs, at = [], 0
    try:
        for _ in range(count):
            name_length, dtype_length, dims = struct.unpack_from("<BBB", table, at)
            at += 3
            name = table[at : at + name_length].decode()
            at += name_length
            dtype = table[at : at + dtype_length].decode()
            at += dtype_length
            specs.append(FieldSpec(name, dtype, struct.unpack_from(f"<{dims}I", table, at)))
            at += 4 * dims
        info = table_info(tuple(specs))
    except (struct.error, UnicodeDecodeError, SchemaMismatchError) as error:
        raise CorruptRecordError(f"the field table cannot be read: {error}") from error
    if info.table != table:
        raise CorruptRecordError("the field table is not as this version writes it")
    return info


def record_nbytes(layout: Layout) -> int | None:
    """Bytes of one record of this layout, None when it has an encoded field."""
    return table_info(layout).fixed_length


def check_batch(batch: RecordBatch) -> TableInfo:
    """Check that a batch's columns and arrays fit together and with its layout.

    Raises:
        SchemaMismatchError: names the field, what came and what was expected.
    """
    info = table_info(batch.layout)
    count = len(batch.ids)
    for name in ("ids", "labels", "tasks"):
        column = getattr(batch, name)
        if column.dtype != np.int64 or column.shape != (count,):
            raise SchemaMismatchError(
                f"{name} are {column.dtype} of shape {column.shape}",
                fix=f"give int64 of shape ({count},)",
            )
    if count and int(batch.ids.min()) < 0:
        raise SchemaMismatchError(f"id {int(batch.ids.min())} is negative", fix="ids start at 0")
    if len(batch) and int(batch.ids.max()) > MAX_ID:
        raise SchemaMismatchError(
            f"id {int(batch.ids.max())} is too large", fix=f"ids go up to {MAX_ID}"
        )
    names = {spec.name for spec in batch.layout}
    if set(batch.fields) != names:
        raise SchemaMismatchError(
            f"the batch has fields {sorted(batch.fields)}, its layout {sorted(names)}",
            fix="give one array for every field of the layout and no other",
        )
    for spec in batch.layout:
        _check_field(spec, batch.fields[spec.name], count)
    return info


def _table_row(spec: FieldSpec) -> bytes:
    name, dtype = spec.name.encode(), spec.dtype.encode()
    fix = "see FieldSpec for what can be stored"
    if not 1 <= len(name) <= _MAX_NAME or not 1 <= len(dtype) <= 255:
        raise SchemaMismatchError(f"a field is called {spec.name!r} with {spec.dtype!r}", fix=fix)
    if len(spec.shape) > _MAX_DIMS or any(not 0 <= size <= 0xFFFF_FFFF for size in spec.shape):
        raise SchemaMismatchError(f"field {spec.name!r} has shape {spec.shape}", fix=fix)
    if spec.dtype == ENCODED and spec.shape:
        raise SchemaMismatchError(f"encoded field {spec.name!r} has a shape", fix="give ()")
    if spec.dtype != ENCODED:
        _field_dtype(spec)
    lengths = struct.pack("<BBB", len(name), len(dtype), len(spec.shape))
    return lengths + name + dtype + struct.pack(f"<{len(spec.shape)}I", *spec.shape)


def _field_dtype(spec: FieldSpec) -> np.dtype[np.generic]:
    try:
        dtype = numpy_dtype(spec.dtype)
    except (TypeError, ValueError, SyntaxError) as error:
        raise SchemaMismatchError(
            f"field {spec.name!r} has dtype {spec.dtype!r}", fix="give the name of a numpy dtype"
        ) from error
    if dtype.fields is not None or dtype.subdtype is not None or dtype.itemsize == 0:
        raise SchemaMismatchError(
            f"field {spec.name!r} has the compound dtype {spec.dtype!r}",
            fix="make one field of each part",
        )
    return dtype


def _check_field(spec: FieldSpec, values: Any, count: int) -> None:
    if spec.dtype == ENCODED:
        if len(values) != count or not all(isinstance(value, bytes) for value in values):
            raise SchemaMismatchError(
                f"encoded field {spec.name!r} does not have {count} bytes objects",
                fix="give one bytes object a sample",
            )
        return
    expected = (count, *spec.shape)
    dtype = _field_dtype(spec)
    if not isinstance(values, np.ndarray) or values.shape != expected or values.dtype != dtype:
        got = f"{getattr(values, 'dtype', type(values))} {getattr(values, 'shape', '')}"
        raise SchemaMismatchError(
            f"field {spec.name!r} is {got}", fix=f"give {dtype} of shape {expected}"
        )
