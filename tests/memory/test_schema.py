"""Schemas: what a sample looks like, conversions that keep every bit, stores tied to one."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from carousel.errors import BadInputError, SchemaMismatchError
from carousel.memory.convert import TORCH_DTYPES, check_labels, to_numpy, to_tensor
from carousel.memory.schema import META_KEY, Schema, check_store_schema, stored_schema
from carousel.storage.record import ENCODED, FieldSpec

IMAGES = torch.arange(2 * 3 * 4 * 4, dtype=torch.uint8).reshape(2, 3, 4, 4)


def ints(*values):
    return np.array(values, np.int64)


def test_a_schema_is_read_from_the_first_batch():
    schema = Schema.of({"x": IMAGES, "logits": np.zeros((2, 10), np.float32)})
    assert schema.fields == (
        FieldSpec("x", "uint8", (3, 4, 4)),
        FieldSpec("logits", "float32", (10,)),
    )
    assert schema.names == ("x", "logits")
    assert schema.nbytes == 48 + 40
    assert Schema.of({"x": IMAGES[:0], "logits": torch.zeros(0, 10)}) == schema


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("shape", [(), (0,), (5,), (2, 3, 4)])
def test_every_dtype_goes_to_records_and_back_bit_for_bit(dtype, shape):
    torch_dtype = TORCH_DTYPES[dtype]
    values = torch.empty((3, *shape), dtype=torch_dtype)
    raw = to_numpy(values).reshape(-1).view(np.uint8)
    raw[:] = np.random.default_rng(0).integers(0, 2 if dtype == "bool" else 256, len(raw))

    schema = Schema.of({"x": values})
    schema.validate({"x": values})
    records = schema.to_records(ints(1, 2, 3), ints(0, 0, 1), ints(0, 0, 0), {"x": values})
    assert records.layout == schema.fields == (FieldSpec("x", dtype, shape),)

    slots = schema.empty(3)
    schema.views(slots)["x"][...] = records.fields["x"]
    assert slots["x"].dtype == torch_dtype
    assert to_numpy(slots["x"]).tobytes() == to_numpy(values).tobytes()


def test_what_is_contiguous_is_not_copied():
    schema = Schema.of({"x": IMAGES})
    records = schema.to_records(ints(0, 1), ints(0, 0), ints(0, 0), {"x": IMAGES})
    assert np.shares_memory(records.fields["x"], IMAGES.numpy())
    array = np.zeros((2, 3), np.float32)
    assert np.shares_memory(to_tensor(array).numpy(), array)
    halves = torch.zeros(3, dtype=torch.bfloat16)
    to_numpy(halves)[:] = 0x3F80
    assert halves.tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=">f4").reshape(2, 3),
        np.arange(6, dtype=np.float32).reshape(2, 3)[::-1, ::-1],
        np.frombuffer(np.arange(6, dtype=np.float32).tobytes(), np.float32).reshape(2, 3),
        np.arange(12, dtype=np.float32).reshape(2, 6)[:, ::2],
    ],
    ids=["big-endian", "negative strides", "read-only", "strided"],
)
def test_odd_arrays_keep_their_values(array):
    schema = Schema.of({"x": array})
    assert schema.validate({"x": array}) == 2
    assert to_tensor(array).tolist() == array.tolist()
    records = schema.to_records(ints(0, 1), ints(0, 0), ints(0, 0), {"x": array})
    assert records.fields["x"].flags.c_contiguous
    assert records.fields["x"].tolist() == array.tolist()


def test_tensors_with_a_graph_or_lazy_conjugation_are_plain_records():
    values = torch.ones(2, 2, dtype=torch.complex64, requires_grad=True).conj() * 1j
    array = to_numpy(values.conj())
    assert array.tolist() == [[-1j, -1j], [-1j, -1j]]


@pytest.mark.parametrize(
    ("batch", "message"),
    [
        (
            {"x": IMAGES[:, :1]},
            r"field x is uint8 \(1, 4, 4\) a sample, expected uint8 \(3, 4, 4\)",
        ),
        ({"x": IMAGES.float()}, r"field x is float32 \(3, 4, 4\)"),
        ({"x": IMAGES, "y": IMAGES}, r"fields \['x', 'y'\], expected \['x'\]"),
        ({}, r"fields \[\], expected \['x'\]"),
        ({"x": IMAGES[0, 0, 0]}, r"field x is uint8 \(\)"),
    ],
)
def test_a_sample_of_another_kind_is_refused_and_named(batch, message):
    with pytest.raises(SchemaMismatchError, match=message):
        Schema.of({"x": IMAGES}).validate(batch)


def test_rows_must_agree_and_none_is_fine():
    schema = Schema.of({"x": IMAGES, "y": torch.zeros(2)})
    assert schema.validate({"x": IMAGES, "y": torch.zeros(2)}) == 2
    assert schema.validate({"x": IMAGES[:0], "y": torch.zeros(0)}) == 0
    with pytest.raises(BadInputError, match="rows"):
        schema.validate({"x": IMAGES, "y": torch.zeros(3)})


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({}, "no fields"),
        ({"": IMAGES}, "called ''"),
        ({"ä" * 17: IMAGES}, "1 to 32 bytes"),
        ({"x": torch.zeros(2, *[1] * 9)}, "at most 8 dimensions"),
        ({"x": torch.tensor(3)}, "single value"),
        ({"x": torch.zeros(2, dtype=torch.float8_e4m3fn)}, "float8"),
        ({"x": np.array(["a", "b"])}, "dtype str"),
        ({"x": np.array([object()])}, "dtype object"),
        ({"x": [b"jpeg"]}, "encoded bytes"),
    ],
)
def test_what_cannot_be_a_schema_is_refused(fields, message):
    with pytest.raises(BadInputError, match=message):
        Schema.of(fields)


def test_field_names_are_used_once():
    with pytest.raises(BadInputError, match="use each name once"):
        Schema((FieldSpec("x", "uint8"), FieldSpec("x", "int64")))


def test_encoded_images_pass_as_they_came():
    schema = Schema((FieldSpec("x", "uint8", (3, 4, 4)), FieldSpec("z", "float32")))
    batch = {"x": [b"one", b"two!"], "z": torch.zeros(2)}
    assert schema.validate(batch) == 2
    schema.check_finite(batch)
    records = schema.to_records(ints(5, 6), ints(0, 1), ints(0, 0), batch)
    assert records.layout == (FieldSpec("x", ENCODED), FieldSpec("z", "float32"))
    assert records.fields["x"] == [b"one", b"two!"]


def test_encoded_values_are_only_for_images():
    schema = Schema((FieldSpec("z", "float32", (4,)),))
    with pytest.raises(SchemaMismatchError, match="field z is encoded images"):
        schema.validate({"z": [b"bytes"]})
    with pytest.raises(BadInputError, match="field x is a list"):
        Schema.of({"x": IMAGES}).validate({"x": [1, 2]})


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), float("-inf")])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_nan_and_infinity_name_the_first_bad_row(bad, dtype):
    values = torch.zeros(5, 2, 3, dtype=dtype)
    schema = Schema.of({"x": values})
    schema.check_finite({"x": values})
    values[2, 1, 1] = bad
    values[4, 0, 0] = bad
    with pytest.raises(BadInputError, match="field x holds NaN or infinity in row 2"):
        schema.check_finite({"x": values})


def test_finite_values_are_never_refused():
    largest = torch.full((4, 5), torch.finfo(torch.float64).max, dtype=torch.float64)
    Schema.of({"x": largest}).check_finite({"x": largest})  # though their sum is infinite
    Schema.of({"x": IMAGES}).check_finite({"x": IMAGES})
    empty = torch.zeros(0, 3)
    Schema.of({"x": empty}).check_finite({"x": empty})
    values = torch.tensor([[0j], [complex("nan")]])
    with pytest.raises(BadInputError, match="row 1"):
        Schema.of({"x": values}).check_finite({"x": values})


field_specs = st.builds(
    FieldSpec,
    st.text(min_size=1, max_size=8),
    st.sampled_from(sorted(TORCH_DTYPES)),
    st.lists(st.integers(0, 9), max_size=8).map(tuple),
)


@given(st.lists(field_specs, min_size=1, max_size=4, unique_by=lambda spec: spec.name))
def test_json_round_trip(fields):
    schema = Schema(tuple(fields))
    assert Schema.from_json(schema.to_json()) == schema
    assert Schema.from_json(schema.to_json().encode()) == schema


@pytest.mark.parametrize("text", ["", "{", "3", "[[1]]", '[["x", "uint8"]]', '[["x", "uint8", 3]]'])
def test_json_of_something_else_is_refused(text):
    with pytest.raises(BadInputError, match="a schema reads"):
        Schema.from_json(text)


class MetaOnly:
    """The part of a tier that keeps small values."""

    def __init__(self):
        self.meta = {}

    def get_meta(self, key):
        return self.meta.get(key)

    def put_meta(self, items):
        self.meta.update(items)


def test_a_store_is_tied_to_the_first_schema():
    tier, schema = MetaOnly(), Schema.of({"x": IMAGES})
    check_store_schema(tier, schema)
    check_store_schema(tier, schema)
    kept = dict(tier.meta)
    with pytest.raises(SchemaMismatchError, match=r"holds samples with x uint8 \(3, 4, 4\)"):
        check_store_schema(tier, Schema.of({"x": IMAGES.float()}))
    assert tier.meta == kept
    assert Schema.from_json(kept[META_KEY]) == stored_schema(tier) == schema


def test_a_store_that_was_emptied_takes_another_schema():
    tier, other = MetaOnly(), Schema.of({"x": IMAGES.float()})
    assert stored_schema(tier) is None
    check_store_schema(tier, Schema.of({"x": IMAGES}))
    tier.put_meta({META_KEY: b""})
    assert stored_schema(tier) is None
    check_store_schema(tier, other)
    assert stored_schema(tier) == other


def test_labels_become_int64_on_the_cpu():
    for labels in (torch.tensor([0, 5], dtype=torch.int32), np.array([0, 5], np.uint8), [0, 5]):
        checked = check_labels(labels, n_classes=6)
        assert checked.dtype == np.int64
        assert checked.tolist() == [0, 5]
    assert check_labels([]).shape == (0,)


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, -1, -2], "row 1 is -1: use labels from 0 to 9"),
        ([3, 4, 10], "row 2 is 10"),
        ([0.5], "float64"),
        ([True], "bool"),
        ([[1]], r"shape \(1, 1\)"),
        (torch.tensor(3), r"shape \(\)"),
        (np.array([2**63], np.uint64), "row 0"),
    ],
)
def test_bad_labels_are_refused(labels, message):
    with pytest.raises(BadInputError, match=message):
        check_labels(labels, n_classes=10)
