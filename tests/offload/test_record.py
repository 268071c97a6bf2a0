"""A record is what was written, or known not to be."""

import numpy as np
import pytest

from carousel.errors import CorruptRecordError
from carousel.offload.plan import Chunk
from carousel.offload.record import BLOCK, layout_of

PLAN = "ab" * 16


def layout(dtype="float32", numel=1500, amsgrad=False, **options):
    kinds = {"masters": True, "recoverable": True} | options
    return layout_of(Chunk(0, dtype, amsgrad, numel, ()), **kinds)


def sealed(shape, step=3):
    record = np.random.default_rng(0).integers(0, 256, shape.nbytes, np.uint8)
    shape.seal(record, PLAN, 0, step)
    return record


@pytest.mark.parametrize(
    ("options", "names", "read", "dtype"),
    [
        ({}, ["param", "m", "v"], 8192, "float32"),
        ({"recoverable": False}, ["m", "v"], 0, "float32"),
        ({"amsgrad": True}, ["param", "m", "v", "vmax"], 8192, "float32"),
        ({"dtype": "bfloat16", "recoverable": False}, ["param", "m", "v"], 0, "float32"),
        ({"dtype": "bfloat16", "masters": False}, ["param", "m", "v"], 4096, "bfloat16"),
        ({"dtype": "float64"}, ["param", "m", "v"], 12288, "float64"),
    ],
)
def test_fields_by_kind(options, names, read, dtype):
    shape = layout(**options)
    assert [part.name for part in shape.fields] == names
    assert (shape.read_from, shape.dtype) == (read, dtype)
    assert all(part.offset % BLOCK == 0 for part in shape.fields)
    assert shape.nbytes % BLOCK == 0
    assert shape.trailer >= shape.fields[-1].offset + shape.fields[-1].nbytes


def test_what_was_sealed_is_taken_back():
    shape = layout()
    shape.check(sealed(shape), PLAN, 0, 3, names=["param", "m", "v"])


@pytest.mark.parametrize("part", ["param", "m", "v", "trailer"])
def test_a_changed_byte_shows(part):
    shape = layout()
    record = sealed(shape)
    offsets = {field.name: field.offset + field.nbytes - 1 for field in shape.fields}
    record[{**offsets, "trailer": shape.trailer + 30}[part]] ^= 1
    with pytest.raises(CorruptRecordError, match="torn"):
        shape.check(record, PLAN, 0, 3, names=["param", "m", "v"])


def test_a_field_that_was_not_read_is_not_checked():
    shape = layout()
    record = sealed(shape)
    record[0] ^= 1
    shape.check(record, PLAN, 0, 3, names=shape.needed)


@pytest.mark.parametrize(
    ("plan", "chunk", "step", "words"),
    [("cd" * 16, 0, 3, "another plan"), (PLAN, 1, 3, "another plan"), (PLAN, 0, 4, "of step 3")],
)
def test_a_record_in_another_ones_place_shows(plan, chunk, step, words):
    shape = layout()
    with pytest.raises(CorruptRecordError, match=words):
        shape.check(sealed(shape), plan, chunk, step, names=shape.needed)


def test_a_place_that_was_never_written_shows():
    shape = layout()
    with pytest.raises(CorruptRecordError):
        shape.check(np.zeros(shape.nbytes, np.uint8), PLAN, 0, 0, names=shape.needed)
