"""Reading by the batch: rows outside of the destination, damage, plans kept between batches."""

import numpy as np
import pytest

from carousel.storage.codec import encode_batch
from carousel.storage.lmdb.reader import Destination, Layouts, big_endian_keys
from carousel.storage.record import ENCODED, FieldSpec, RecordBatch
from carousel.storage.tier import ReadStatus

FIELDS = {
    "small": FieldSpec("small", "float16", (5,)),
    "large": FieldSpec("large", "uint8", (70_000,)),
    "flag": FieldSpec("flag", "bool"),
    "none": FieldSpec("none", "int32", (0,)),
    "bytes": FieldSpec("bytes", ENCODED),
}


class Broken(Exception):
    pass


class Damaged(Exception):
    pass


class Records(dict):
    """Stands in for a transaction: values by key; an exception as value is raised."""

    def get(self, key, default=None, database=None):
        value = super().get(key, default)
        if isinstance(value, Exception):
            raise value
        return None if value is None else memoryview(value)


def values(spec, count):
    if spec.dtype == ENCODED:
        return [b"e" * row for row in range(count)]
    rng = np.random.default_rng(len(spec.name))
    return rng.integers(0, 2 if spec.dtype == "bool" else 200, (count, *spec.shape)).astype(
        spec.dtype
    )


def stored(names, count=6, first=0):
    ids = np.arange(first, first + count)
    layout = tuple(FIELDS[name] for name in names)
    fields = {name: values(FIELDS[name], count) for name in names}
    records = encode_batch(RecordBatch(ids, ids, ids, layout, fields))
    keys = big_endian_keys(ids)
    return Records({key: bytes(record) for key, record in zip(keys, records, strict=True)}), fields


def read(records, ids, out, rows, layouts=None):
    destination = Destination(out, layouts or Layouts())
    status = destination.read(records, None, np.asarray(ids), np.asarray(rows), (Damaged, Broken))
    return status, destination


def empty(name, rows):
    spec = FIELDS[name]
    if spec.dtype == ENCODED:
        return np.empty(rows, object)
    return np.zeros((rows, *spec.shape), spec.dtype)


@pytest.mark.parametrize(
    "names",
    [
        ["small"],
        ["large"],
        ["flag"],
        ["none"],
        ["small", "large"],
        ["small", "large", "flag", "none"],
        ["small", "bytes", "large"],
    ],
)
def test_any_choice_of_fields_lands_in_its_rows(names):
    every = list(FIELDS)
    for kept in (names, every, every[::-1]):
        records, fields = stored(kept)
        out = {name: empty(name, 10) for name in names}
        rows = np.array([7, 0, 9, 3, 1, 2])
        status, _ = read(records, [3, 1, 5, 0, 4, 2], out, rows)
        assert (status == ReadStatus.OK).all()
        for name in names:
            for row, id_ in zip(rows, [3, 1, 5, 0, 4, 2], strict=True):
                assert np.array_equal(out[name][row], fields[name][id_])
        assert not any(out[name][8].any() for name in names if name != "bytes")


@pytest.mark.parametrize("row", [-1, 10, 2**40, -(2**63)])
@pytest.mark.parametrize("name", ["small", "large", "bytes"])
def test_a_row_outside_of_the_destination_writes_nothing(row, name):
    records, _ = stored([name])
    out = {name: empty(name, 10)}
    before = out[name].copy()
    with pytest.raises(IndexError):
        read(records, [0, 1], out, [2, row])
    assert np.array_equal(out[name], before)


def test_each_row_has_its_own_outcome():
    records, _ = stored(["small"])
    other, _ = stored(["flag"], count=1, first=20)
    records.update(other)
    records[big_endian_keys(np.array([1]))[0]] = Damaged("page 7")
    records[big_endian_keys(np.array([2]))[0]] = Broken("disk")
    records[big_endian_keys(np.array([3]))[0]] = b"short"
    out = {"small": empty("small", 8)}
    status, destination = read(records, [0, 1, 2, 3, 4, 20, 99], out, range(7))
    assert [ReadStatus(s).name for s in status] == [
        "OK",
        "CORRUPT",
        "IO_ERROR",
        "CORRUPT",
        "OK",
        "LAYOUT",
        "MISSING",
    ]
    assert destination.damaged.keys() == {1, 3}
    assert destination.damaged[1] == "page 7"
    assert destination.io_errors == 1


@pytest.mark.parametrize("names", [["small"], ["small", "bytes"], ["large"], ["small", "flag"]])
def test_every_flipped_byte_of_the_header_is_noticed_also_with_a_known_plan(names):
    records, _ = stored(names)
    key = big_endian_keys(np.array([1]))[0]
    whole = records[key]
    layouts = Layouts()
    out = {"small": empty("small", 2)} if "small" in names else {"large": empty("large", 2)}
    assert not read(records, [0, 1], out, [0, 1], layouts)[0].any()
    for at in range(min(110, len(whole))):
        records[key] = whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :]
        for ids in ([0, 1], [1, 0], [1]):
            status, _ = read(records, ids, out, range(len(ids)), layouts)
            assert status[ids.index(1)] == ReadStatus.CORRUPT, at
            assert sum(status > 0) == 1


def test_plans_do_not_mix_destinations_up():
    records, fields = stored(["small", "flag"])
    layouts = Layouts()
    for shape, dtype, expected in [
        ((5,), np.float16, ReadStatus.OK),
        ((5,), np.uint16, ReadStatus.LAYOUT),
        ((4,), np.float16, ReadStatus.LAYOUT),
        ((5,), np.float16, ReadStatus.OK),
    ]:
        out = {"small": np.zeros((3, *shape), dtype)}
        assert read(records, [2], out, [1], layouts)[0].tolist() == [expected]
    strided = {"small": np.zeros((5, 3), np.float16).T}
    assert read(records, [2], strided, [1], layouts)[0].tolist() == [ReadStatus.OK]
    assert np.array_equal(strided["small"][1], fields["small"][2])


def test_plans_are_bounded():
    records, _ = stored(["small"])
    layouts = Layouts()
    for rows in range(600):
        read(records, [0], {"small": np.zeros((1, 5, rows), np.float16)}, [0], layouts)
    assert len(layouts._plans) <= 256


def test_keys_ascend_with_ids():
    ids = np.array([0, 1, 255, 256, 2**31, 2**63 - 1])
    keys = big_endian_keys(ids)
    assert keys == sorted(keys)
    assert [int.from_bytes(key, "big") for key in keys] == ids.tolist()
    assert big_endian_keys(ids[:0]) == []
