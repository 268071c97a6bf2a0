"""The codec returns what it was given bit by bit, and every damaged byte is noticed."""

from __future__ import annotations

import struct

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from xxhash import xxh3_64_intdigest

from carousel.errors import CorruptRecordError, SchemaMismatchError
from carousel.storage.codec import (
    HEADER_BYTES,
    decode,
    encode_batch,
    parse_headers,
    record_nbytes,
)
from carousel.storage.record import ENCODED, FieldSpec, RecordBatch, numpy_dtype

DTYPES = [
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint16",
    "int32",
    "int64",
    "uint64",
    "float16",
    "bfloat16",
    "float32",
    "float64",
    "complex64",
    "complex128",
    "S5",
]
SHAPES = [(), (0,), (1,), (3,), (2, 0, 4), (2, 3), (3, 5, 7), (1, 1, 1, 1, 1, 1, 1, 2)]


def batch_of(layout, fields, *, first=0, labels=None, tasks=None):
    count = len(next(iter(fields.values()))) if fields else 1
    return RecordBatch(
        np.arange(first, first + count, dtype=np.int64),
        np.arange(count, dtype=np.int64) if labels is None else labels,
        np.zeros(count, np.int64) if tasks is None else tasks,
        tuple(layout),
        fields,
    )


def random_bits(rng, dtype, shape):
    nbytes = int(np.prod(shape)) * dtype.itemsize
    raw = rng.integers(0, 2 if dtype == np.bool_ else 256, nbytes, dtype=np.uint8)
    return raw.view(dtype).reshape(shape) if nbytes else np.empty(shape, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_every_dtype_and_shape_returns_bit_by_bit(dtype, shape):
    rng = np.random.default_rng(len(shape))
    array = random_bits(rng, numpy_dtype(dtype), (3, *shape))
    layout = (FieldSpec("x", dtype, shape),)
    for row, record in enumerate(encode_batch(batch_of(layout, {"x": array}, first=7))):
        back = decode(record)
        value = back.fields["x"]
        assert (back.id, back.label, back.layout) == (7 + row, row, layout)
        assert value.dtype == numpy_dtype(dtype)
        assert value.shape == shape
        assert value.tobytes() == array[row].tobytes()


def test_nan_payloads_and_negative_zero_keep_their_bits():
    bits = np.array([[0x7FC01234, 0xFFC00001, 0x80000000, 0x7F800001]], np.uint32)
    record = encode_batch(
        batch_of([FieldSpec("x", "float32", (4,))], {"x": bits.view(np.float32)})
    )[0]
    assert decode(record).fields["x"].view(np.uint32).tolist() == bits[0].tolist()


def test_several_fields_encoded_bytes_and_metadata_travel_together():
    layout = (
        FieldSpec("image", ENCODED),
        FieldSpec("logits", "float32", (3,)),
        FieldSpec("meta", ENCODED),
        FieldSpec("weight", "float16"),
    )
    fields = {
        "image": [b"\x89PNG" + bytes(9), b"", b"\xff\xd8" * 100],
        "logits": np.arange(9, dtype=np.float32).reshape(3, 3),
        "meta": [b"{}", b'{"a": 1}', b""],
        "weight": np.array([1, 2, 3], np.float16),
    }
    for row, record in enumerate(encode_batch(batch_of(layout, fields))):
        back = decode(record)
        assert back.fields["image"] == fields["image"][row]
        assert back.fields["meta"] == fields["meta"][row]
        assert back.fields["logits"].tolist() == fields["logits"][row].tolist()
        assert back.fields["weight"].shape == ()
        assert back.fields["weight"] == fields["weight"][row]


def test_a_record_without_fields_and_an_empty_batch():
    assert decode(encode_batch(batch_of([], {}))[0]).fields == {}
    empty = batch_of([FieldSpec("x", "uint8", (2,))], {"x": np.empty((0, 2), np.uint8)})
    assert encode_batch(empty) == []


def test_a_50_megabyte_sample():
    array = np.random.default_rng(0).integers(0, 256, (1, 50_000_000), np.uint8)
    record = encode_batch(batch_of([FieldSpec("x", "uint8", (50_000_000,))], {"x": array}))[0]
    assert np.array_equal(decode(record).fields["x"], array[0])


def test_strided_and_reversed_arrays_are_taken_as_they_look():
    base = np.arange(48, dtype=np.int32).reshape(2, 4, 6)
    array = base[:, ::-1, ::2]
    records = encode_batch(batch_of([FieldSpec("x", "int32", (4, 3))], {"x": array}))
    assert decode(records[1]).fields["x"].tolist() == array[1].tolist()


def test_the_caller_may_reuse_its_arrays():
    array = np.ones((2, 4), np.uint8)
    records = encode_batch(batch_of([FieldSpec("x", "uint8", (4,))], {"x": array}))
    array[:] = 9
    assert decode(records[0]).fields["x"].tolist() == [1, 1, 1, 1]


def test_extreme_ids_labels_and_tasks():
    ids = np.array([0, 2**62 - 1], np.int64)
    ends = np.array([-(2**63), 2**63 - 1], np.int64)
    batch = RecordBatch(ids, ends, ends[::-1].copy(), (), {})
    back = [decode(record) for record in encode_batch(batch)]
    assert [(r.id, r.label, r.task) for r in back] == list(
        zip(ids.tolist(), ends.tolist(), ends[::-1].tolist(), strict=True)
    )


@pytest.mark.parametrize("encoded", [False, True])
def test_every_single_byte_flip_is_noticed(encoded):
    layout = (FieldSpec("x", "uint8", (40,)), FieldSpec("m", ENCODED))[: 1 + encoded]
    fields = {"x": np.arange(40, dtype=np.uint8)[None], "m": [b"bytes"]}
    record = encode_batch(batch_of(layout, {spec.name: fields[spec.name] for spec in layout}))[0]
    for at in range(len(record)):
        for bit in range(8):
            damaged = bytearray(record)
            damaged[at] ^= 1 << bit
            with pytest.raises(CorruptRecordError):
                decode(damaged)


def test_truncated_and_extended_records_are_noticed():
    record = encode_batch(batch_of([FieldSpec("x", "uint8", (40,))], {"x": np.ones((1, 40), "u1")}))
    whole = bytes(record[0])
    for length in range(len(whole)):
        with pytest.raises(CorruptRecordError):
            decode(whole[:length])
    with pytest.raises(CorruptRecordError):
        decode(whole + b"\0")


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=300))
def test_random_bytes_never_crash(raw):
    with pytest.raises(CorruptRecordError):
        decode(raw)


@settings(deadline=None, max_examples=300)
@given(count=st.integers(0, 255), table=st.binary(max_size=120), body=st.binary(max_size=60))
def test_a_nonsense_table_under_right_checksums_never_crashes(count, table, body):
    with pytest.raises(CorruptRecordError):
        decode(forge(count, table + b"\1", body))


def test_headers_are_parsed_and_checked_in_one_go():
    array = np.zeros((5, 8), np.uint8)
    labels, tasks = np.arange(5)[::-1].copy(), np.full(5, 3)
    records = encode_batch(
        batch_of(
            [FieldSpec("x", "uint8", (8,))], {"x": array}, first=10, labels=labels, tasks=tasks
        )
    )
    heads = np.stack([np.frombuffer(record[:HEADER_BYTES], np.uint8) for record in records])
    heads[2, 24] ^= 1
    columns = parse_headers(heads)
    assert columns.intact.tolist() == [True, True, False, True, True]
    assert columns.ids.tolist() == [10, 11, 12, 13, 14]
    assert columns.labels[columns.intact].tolist() == [4, 3, 1, 0]
    assert set(columns.tasks.tolist()) == {3}
    assert set(columns.lengths.tolist()) == {len(records[0])}


def test_the_size_of_a_record_is_known_beforehand():
    layout = (FieldSpec("x", "uint8", (32, 32, 3)),)
    record = encode_batch(batch_of(layout, {"x": np.zeros((1, 32, 32, 3), np.uint8)}))[0]
    assert record_nbytes(layout) == len(record)
    assert len(record) <= 4080, "a CIFAR image fits one page of LMDB"
    assert record_nbytes((FieldSpec("x", ENCODED),)) is None


@pytest.mark.parametrize(
    ("layout", "fields"),
    [
        ([FieldSpec("x", "uint8", (2,))], {"x": np.zeros((1, 3), np.uint8)}),
        ([FieldSpec("x", "uint8", (2,))], {"x": np.zeros((1, 2), np.int8)}),
        ([FieldSpec("x", "uint8", (2,))], {"y": np.zeros((1, 2), np.uint8)}),
        ([FieldSpec("x", "uint8", (2,))], {"x": [b"ab"]}),
        ([FieldSpec("x", ENCODED)], {"x": np.zeros((1, 2), np.uint8)}),
        ([FieldSpec("x", ENCODED, (2,))], {"x": [b"ab"]}),
        ([FieldSpec("x", "object")], {"x": np.zeros(1, object)}),
        ([FieldSpec("x", "i4,f4")], {"x": np.zeros(1, "i4,f4")}),
        ([FieldSpec("x", "no such")], {"x": np.zeros(1)}),
        ([FieldSpec("", "uint8")], {"": np.zeros(1, np.uint8)}),
        ([FieldSpec("x" * 33, "uint8")], {"x" * 33: np.zeros(1, np.uint8)}),
        ([FieldSpec("x", "uint8", (1,) * 9)], {"x": np.zeros((1,) * 10, np.uint8)}),
        ([FieldSpec("x", "uint8")] * 2, {"x": np.zeros(1, np.uint8)}),
        ([FieldSpec("x", "uint8", (2**32 - 1,))], {"x": np.zeros((1, 2), np.uint8)}),
    ],
)
def test_arrays_that_do_not_fit_their_layout_are_refused(layout, fields):
    with pytest.raises(SchemaMismatchError):
        encode_batch(batch_of(layout, fields))


@pytest.mark.parametrize(
    "change",
    [
        {"ids": np.array([-1])},
        {"ids": np.array([0.0])},
        {"labels": np.zeros(2, np.int64)},
        {"tasks": np.zeros(1, np.int32)},
    ],
)
def test_columns_of_the_wrong_kind_are_refused(change):
    columns = {name: np.zeros(1, np.int64) for name in ("ids", "labels", "tasks")} | change
    with pytest.raises(SchemaMismatchError):
        encode_batch(RecordBatch(**columns, layout=(), fields={}))


def forge(count, table, body):
    """A record whose checksums are right and whose table is whatever was given."""
    record = bytearray(bytes(encode_batch(batch_of([], {}))[0][:HEADER_BYTES]) + table + body)
    record[5] = count
    struct.pack_into("<Q", record, 32, xxh3_64_intdigest(table))
    struct.pack_into("<II", record, 48, len(table), len(record))
    state = 0
    for word in (0, 2, 3, 4, 5, 6):
        state ^= struct.unpack_from("<Q", record, 8 * word)[0]
        state = state * 0x9E37_79B9_7F4A_7C15 % 2**64
        state ^= state >> 32
    struct.pack_into("<Q", record, 56, state)
    struct.pack_into("<Q", record, 8, xxh3_64_intdigest(bytes(record[16:])))
    return bytes(record)


def test_the_forge_makes_records_that_decode():
    table = struct.pack("<BBB", 1, 5, 0) + b"xuint8"
    table += b"\0" * (-len(table) % 8)
    assert decode(forge(1, table, b"\x2a")).fields["x"] == 42
