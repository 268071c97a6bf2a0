import mmap

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from carousel.memory.convert import TORCH_DTYPES
from carousel.memory.replay import ReplayBuffers
from carousel.memory.schema import Schema
from carousel.memory.slab import EMPTY, Slab
from carousel.storage import FieldSpec


def ints(*values):
    return np.array(values, np.int64)


def gathered(slab, slots):
    out = slab.schema.empty(len(slots))
    slab.gather(slab.table[slots], out)
    return out


def rows_in_use(slab):
    return sorted([*slab.table.tolist(), *slab._free])


@pytest.mark.parametrize("dtype", TORCH_DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (2, 0), (2, 2)])
def test_every_dtype_and_shape_comes_back_bit_for_bit(dtype, shape):
    schema = Schema((FieldSpec("x", dtype, shape),))
    slab = Slab(schema, slots=4, spares=2)
    raw = torch.randint(0, 255, (3, *shape, 16), dtype=torch.uint8)
    width = torch.empty(0, dtype=TORCH_DTYPES[dtype]).element_size()
    x = (raw[..., :width] % 2).contiguous() if dtype == "bool" else raw[..., :width].contiguous()
    x = x.view(TORCH_DTYPES[dtype]).reshape(3, *shape)
    slots = ints(2, 0, 3)
    slab.write(slots, {"x": x}, slots + 10, slots, slots)
    back = gathered(slab, slots)["x"]
    assert back.dtype == x.dtype
    assert back.shape == x.shape
    assert back.contiguous().view(torch.uint8).equal(x.contiguous().view(torch.uint8))


def test_numpy_views_are_the_rows_themselves(coded):
    slab = Slab(coded.schema, 4, 2)
    rows = slab.take_spares(2)
    fields = coded.fields([7, 8])
    for name, array in slab.arrays.items():
        array[rows] = fields[name].numpy()
    coded.fill_slab(slab, ints(0, 1, 2, 3))
    labels = coded.labels([0, 3])
    columns = np.stack([rows, ints(7, 8), labels, ints(1, 2), slab.generations[[0, 3]] + 1])
    slab.publish(ints(0, 3), columns, [0, 3], [7, 8], slab.table[[0, 3]].tolist())
    assert torch.equal(gathered(slab, ints(0, 3))["x"], fields["x"])
    assert slab.ids.tolist() == [7, 1, 2, 8]
    assert slab.tasks.tolist() == [1, 1, 2, 2]
    slab.residents.refresh()
    assert [sample for sample in range(9) if sample in slab.residents] == [1, 2, 7, 8]
    assert rows_in_use(slab) == list(range(6))


def test_spares_are_given_all_or_none(coded):
    slab = Slab(coded.schema, 4, 3)
    assert slab.take_spares(4) is None
    rows = slab.take_spares(3)
    assert sorted(rows.tolist()) == [4, 5, 6]
    assert slab.take_spares(1) is None
    slab.give_back(rows.tolist())
    assert slab.free_rows == 3


OPERATIONS = st.lists(
    st.tuples(
        st.sampled_from(["write", "release", "publish", "move", "capacity"]),
        st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True),
    ),
    max_size=25,
)


@settings(max_examples=120, deadline=None)
@given(operations=OPERATIONS)
def test_any_sequence_of_changes_keeps_slots_whole(operations):
    """Against a plain dict: contents, the lookup of ids, and no row used twice or lost."""
    schema = Schema.of({"x": torch.empty(0, 5, dtype=torch.int64)})
    slab, model, fresh = Slab(schema, 8, 4), {}, 100
    before = slab.generations.copy()
    for name, listed in operations:
        slots = ints(*(slot for slot in listed if slot < slab.capacity))
        filled = ints(*(slot for slot in slots if slot in model))
        if name == "write":
            ids = np.arange(fresh, fresh + len(slots))
            slab.write(slots, {"x": torch.from_numpy(ids).repeat(5, 1).T}, ids, ids % 3, ids % 2)
            model |= dict(zip(slots.tolist(), ids.tolist(), strict=True))
        elif name == "release":
            slab.release(slots)
            for slot in slots.tolist():
                model.pop(slot, None)
        elif name == "publish" and len(filled):
            rows = slab.take_spares(len(filled))
            ids = np.arange(fresh, fresh + len(filled))
            slab.arrays["x"][rows] = ids[:, None]
            columns = [rows, ids, slab.labels[filled], ids % 2, slab.generations[filled] + 1]
            leaving, freed_rows = slab.ids[filled].tolist(), slab.table[filled].tolist()
            slab.publish(filled, np.stack(columns), leaving, ids.tolist(), freed_rows)
            model |= dict(zip(filled.tolist(), ids.tolist(), strict=True))
        elif name == "move" and len(filled):
            empty = ints(*(slot for slot in range(slab.capacity) if slot not in model))
            count = min(len(filled), len(empty))
            slab.move(filled[:count], empty[:count])
            for source, target in zip(filled[:count].tolist(), empty.tolist(), strict=False):
                model[target] = model.pop(source)
        elif name == "capacity":
            capacity = listed[0] + 1
            slab.release(np.arange(capacity, 8))
            slab.set_capacity(capacity)
            model = {slot: sample for slot, sample in model.items() if slot < capacity}
        fresh += 10
        held = ints(*sorted(model))
        assert gathered(slab, held)["x"].tolist() == [[model[int(slot)]] * 5 for slot in held]
        assert slab.filled == len(model)
        slab.residents.refresh()
        assert {i for i in range(fresh) if i in slab.residents} == set(model.values())
        assert set(np.flatnonzero(slab.ids != EMPTY)) == set(model)
        assert rows_in_use(slab) == list(range(12))
        assert (slab.generations >= before).all()
        before = slab.generations.copy()


def test_a_change_of_a_slot_raises_its_generation(coded):
    slab = Slab(coded.schema, 3, 1)
    coded.fill_slab(slab, ints(0, 1, 2))
    before = slab.generations.copy()
    slab.write(ints(1), coded.fields([4]), ints(4), coded.labels([4]), coded.tasks([4]))
    slab.release(ints(2))
    assert slab.generations[0] == before[0]
    assert (slab.generations[1:] > before[1:]).all()


def test_closed_slots_give_their_pages_back_and_open_again():
    page = mmap.PAGESIZE
    schema = Schema.of({"x": torch.empty(0, page // 4, dtype=torch.uint8)})  # 4 rows a page
    slab = Slab(schema, slots=64, spares=8)
    slots = np.arange(64)
    x = torch.arange(64, dtype=torch.uint8)[:, None].repeat(1, page // 4)
    slab.write(slots, {"x": x}, slots, slots, slots)
    whole = slab.nbytes
    # let the tail of memory be in use by early slots, so that closing has to move samples
    slab.move(slots[:0], slots[:0])
    slab.table[:] = slab.table[::-1].copy()
    slab.arrays["x"][slab.table] = x.numpy()

    slab.release(np.arange(16, 64))
    slab.set_capacity(16)
    assert torch.equal(gathered(slab, slots[:16])["x"], x[:16])
    assert whole - slab.nbytes == 48 // 4 * page
    assert not slab.arrays["x"][-48:].any(), "given back pages read as zero"

    slab.set_capacity(64)
    assert slab.nbytes == whole
    slab.write(slots[16:], {"x": x[16:]}, slots[16:], slots[16:], slots[16:])
    assert torch.equal(gathered(slab, slots)["x"], x)


def test_batches_are_gathered_into_two_buffers_in_turn(coded):
    slab = Slab(coded.schema, 8, 2)
    coded.fill_slab(slab, np.arange(8))
    buffers = ReplayBuffers(coded.schema)
    buffers.gather(slab, np.arange(8))
    batches = [buffers.gather(slab, np.arange(start, start + 3)) for start in range(4)]
    places = [batch.x.data_ptr() for batch in batches]
    assert places[0] == places[2]
    assert places[1] == places[3]
    assert places[0] != places[1]
    coded.check(batches[3])
    coded.check(batches[2])
