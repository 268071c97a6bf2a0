import threading

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carousel.errors import BadInputError, StorageClosedError, StorageIOError
from carousel.memory import Carousel
from carousel.memory.machine import MachineMemory
from carousel.memory.pressure import PressureWatch
from carousel.storage import MemoryTier


@pytest.fixture
def make_memory(broken_tier):
    made = []

    def make(slots=20, storage=None, **options):
        storage = MemoryTier() if storage is None else storage
        memory = Carousel(slots, storage, **{"seed": 3, "sync": True, **options})
        made.append(memory)
        return memory

    yield make
    for memory in made:
        memory.close()


def retain(memory, coded, ids):
    ids = np.asarray(ids, np.int64)
    return memory.retain(
        ids, coded.labels(ids), coded.tasks(ids), fetch=lambda rows: coded.fields(ids[rows])
    )


def held(memory):
    return sorted(memory.residents().ids.tolist())


# -- looking -----------------------------------------------------------------------------------


def test_residents_and_peek_tell_what_is_held_and_count_nothing(make_memory, coded):
    memory = make_memory()
    assert len(memory.residents()) == 0
    assert memory.peek(np.empty(0, np.int64)) == {}
    coded.admit(memory, coded.save(memory, 12))
    residents = memory.residents()
    assert residents.slots.tolist() == memory.filled_slots().tolist()
    assert residents.labels.tolist() == coded.labels(residents.ids).tolist()
    assert residents.tasks.tolist() == coded.tasks(residents.ids).tolist()
    expected = coded.fields(residents.ids[::-1])
    found = memory.peek(residents.slots[::-1])
    assert all(torch.equal(found[name], expected[name]) for name in expected)
    found["x"].zero_()
    coded.check(memory.sample_slots(residents.slots))
    assert memory.stats().distinct_samples_replayed == 12
    residents.ids[:] = 0
    assert len(set(held(memory))) == 12


@pytest.mark.parametrize("slots", [[12], [-1], [99]])
def test_peeking_where_nothing_is(make_memory, coded, slots):
    memory = make_memory()
    with pytest.raises(BadInputError, match="no sample"):
        memory.peek(np.array(slots))
    coded.admit(memory, coded.save(memory, 12))
    with pytest.raises(BadInputError, match="no sample"):
        memory.peek(np.array(slots))


def test_slots_and_capacity_before_and_after_the_first_sample(make_memory, coded):
    counted, sized = make_memory(20), make_memory("64KiB")
    assert (counted.slots, counted.capacity) == (20, 20)
    assert (sized.slots, sized.capacity) == (None, None)
    coded.save(sized, 5)
    assert sized.slots == sized.capacity == sized.stats().slots > 80


# -- read ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [True, False])
def test_samples_are_read_from_slots_and_storage(tmp_path, make_memory, coded, sync):
    memory = make_memory(storage=tmp_path / "db", sync=sync)
    ids = coded.save(memory, 600)
    coded.admit(memory, ids)
    wanted = np.concatenate([ids[::-1], [700, -1, ids[3], 999]])
    fields, found = memory.read(wanted)
    assert found.tolist() == [True] * 600 + [False, False, True, False]
    expected = coded.fields(wanted)
    for name, values in fields.items():
        assert torch.equal(values[found], expected[name][found])
        assert not values[~torch.from_numpy(found)].any()
    assert memory.stats().distinct_samples_replayed == 0
    assert memory.stats().swaps.requested == 0
    fields["x"].zero_()
    coded.check(memory.sample(20))


def test_residents_that_storage_lost_are_read_from_their_slots(make_memory, coded):
    memory = make_memory(storage=MemoryTier(budget=25, eviction="fifo"))
    ids = coded.save(memory, 20)
    coded.admit(memory, ids)
    coded.save(memory, 25)
    fields, found = memory.read(ids)
    assert found.all()
    assert torch.equal(fields["x"], coded.fields(ids)["x"])


def test_what_is_damaged_is_not_found_and_zero(make_memory, coded, broken_tier):
    memory = make_memory(storage=broken_tier)
    ids = coded.save(memory, 10)
    broken_tier.damage(ids[3:5])
    fields, found = memory.read(ids)
    assert np.flatnonzero(~found).tolist() == [3, 4]
    assert not fields["x"][3:5].any()


def test_reading_before_there_is_anything(make_memory):
    fields, found = make_memory().read(np.arange(3))
    assert fields == {}
    assert found.tolist() == [False] * 3


# -- revise --------------------------------------------------------------------------------------


def check_digests(memory, ids, digests):
    """Storage and slots hold these digests, and x as it was."""
    fields, found = memory.read(ids)
    assert found.all()
    assert torch.equal(fields["digest"], digests)
    out = {"digest": np.zeros(len(ids), np.float32)}
    memory.tier.get_into(ids, out, np.arange(len(ids)))
    assert out["digest"].tolist() == digests.tolist()


@pytest.mark.parametrize("sync", [True, False])
def test_revised_fields_are_new_in_slots_and_storage(tmp_path, make_memory, coded, sync):
    memory = make_memory(storage=tmp_path / "db", sync=sync, swap_ratio=1)
    ids = coded.save(memory, 300)
    coded.admit(memory, ids)
    memory.observe(memory.sample(16), torch.zeros(16, 5))
    values = torch.arange(300.0) / 7
    assert memory.revise(np.r_[ids, 999], digest=torch.cat([values, torch.ones(1)])) == 300
    check_digests(memory, ids, values)
    replay = memory.sample_slots(memory.filled_slots())
    assert replay.fields["digest"].tolist() == values[replay.ids].tolist()
    assert torch.equal(replay.x, coded.fields(replay.ids)["x"])
    # what swaps in later is what was revised
    for _ in range(10):
        memory.observe(memory.sample(16), torch.zeros(16, 5))
        memory.step()
    memory.flush()
    replay = memory.sample_slots(memory.filled_slots())
    assert replay.fields["digest"].tolist() == values[replay.ids].tolist()
    # the same content again is nothing new
    memory.save(ids, coded.labels(ids), coded.tasks(ids), x=coded.fields(ids)["x"], digest=values)
    memory.flush()
    assert memory.stats().storage.records == 300


def test_a_swap_under_way_does_not_bring_the_old_values(make_memory, coded, broken_tier):
    memory = make_memory(storage=broken_tier, sync=False, swap_ratio=1, gate="all")
    ids = coded.save(memory, 60)
    coded.admit(memory, ids)
    memory.end_experience()
    broken_tier.open.clear()
    broken_tier.reading.clear()
    memory.observe(memory.sample(20), torch.zeros(20, 5))
    assert broken_tier.reading.wait(5)
    threading.Timer(0.05, broken_tier.open.set).start()
    values = torch.arange(60.0)
    assert memory.revise(ids, digest=values) == 60
    memory.step()
    memory.flush()
    replay = memory.sample_slots(memory.filled_slots())
    assert replay.fields["digest"].tolist() == values[replay.ids].tolist()
    assert memory.stats().swaps.done == 20


def test_a_resident_that_storage_lost_comes_back_to_it_revised(make_memory, coded):
    tier = MemoryTier(budget=25, eviction="fifo")
    memory = make_memory(storage=tier)
    ids = coded.save(memory, 20)
    coded.admit(memory, ids)
    later = coded.save(memory, 25)
    values = torch.arange(20.0)
    assert memory.revise(ids, digest=values) == 20
    retain(memory, coded, later[:20])
    memory.end_experience()
    stored = ids[tier.contains(ids)]
    assert len(stored) == 20
    check_digests(memory, stored, values[stored])


def test_a_failing_storage_leaves_slots_and_records_as_one(make_memory, coded, monkeypatch):
    memory = make_memory(sync=True)
    ids = coded.save(memory, 40)
    coded.admit(memory, ids)
    tier, revise = memory.tier, memory.tier.revise_many

    def half(ids, fields):
        revise(ids[:20], {name: value[:20] for name, value in fields.items()})
        raise StorageIOError("the disk is gone")

    monkeypatch.setattr(tier, "revise_many", half)
    with pytest.raises(StorageIOError):
        memory.revise(ids, digest=torch.arange(40.0))
    monkeypatch.undo()
    expected = coded.fields(ids)["digest"]
    expected[:20] = torch.arange(20.0)
    check_digests(memory, ids, expected)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"other": torch.zeros(3)}, "'other'"),
        ({"digest": torch.zeros(3, 2)}, "field digest"),
        ({"digest": torch.zeros(3, dtype=torch.float64)}, "field digest"),
        ({"digest": torch.zeros(2)}, "3 rows"),
        ({"digest": torch.tensor([0.0, float("nan"), 0.0])}, "NaN"),
        ({"x": [b"1", b"2", b"3"]}, "tensors or arrays"),
    ],
)
def test_values_that_do_not_fit_change_nothing(make_memory, coded, fields, message):
    memory = make_memory()
    ids = coded.save(memory, 3)
    coded.admit(memory, ids)
    with pytest.raises(BadInputError, match=message):
        memory.revise(ids, **fields)
    with pytest.raises(BadInputError, match="given twice"):
        memory.revise(ids[[0, 0]], digest=torch.zeros(2))
    check_digests(memory, ids, coded.fields(ids)["digest"])


def test_revising_nothing(make_memory, coded):
    memory = make_memory()
    assert memory.revise(np.arange(3), digest=torch.zeros(3)) == 0
    ids = coded.save(memory, 3)
    assert memory.revise(ids) == 0
    assert memory.revise(ids[:0], digest=torch.zeros(0)) == 0
    assert memory.revise(ids + 50, digest=torch.zeros(3)) == 0


# -- retain ------------------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [True, False])
def test_retain_holds_exactly_these(make_memory, coded, sync):
    memory = make_memory(sync=sync)
    ids = coded.save(memory, 100)
    coded.admit(memory, ids)
    before = memory.residents()
    generations = memory.sample_slots(before.slots).generations.copy()
    stay = before.ids[::2]
    fresh = np.setdiff1d(ids, before.ids)[:7]
    came = retain(memory, coded, np.concatenate([fresh, stay]))
    assert sorted(came) == sorted(fresh)
    assert held(memory) == sorted([*stay, *fresh])
    replay = memory.sample_slots(memory.filled_slots())
    coded.check(replay)
    where = dict(zip(replay.ids.tolist(), replay.slots.tolist(), strict=True))
    assert [where[i] for i in stay.tolist()] == before.slots[::2].tolist()
    now = dict(zip(replay.slots.tolist(), replay.generations.tolist(), strict=True))
    kept = before.slots[::2].tolist()
    assert [now[s] for s in kept] == generations[::2].tolist()
    changed = [s for s in now if s not in kept]
    old = dict(zip(before.slots.tolist(), generations.tolist(), strict=True))
    assert all(now[s] > old[s] for s in changed)


def test_retain_nothing_empties_the_memory(make_memory, coded):
    memory = make_memory()
    assert len(retain(memory, coded, [])) == 0
    coded.admit(memory, coded.save(memory, 30))
    assert len(retain(memory, coded, [])) == 0
    assert memory.filled == 0


def test_retain_as_the_first_call_fetches_in_batches(make_memory, coded):
    memory = make_memory(slots=600)
    ids = np.arange(600)
    asked = []

    def fetch(rows):
        asked.append(len(rows))
        return coded.fields(ids[rows])

    memory.retain(ids, coded.labels(ids), coded.tasks(ids), fetch=fetch)
    assert asked == [1, 256, 256, 88]
    coded.check(memory.sample(600))


def test_retain_writes_back_what_storage_does_not_hold(make_memory, coded):
    tier = MemoryTier(budget=25, eviction="fifo")
    memory = make_memory(storage=tier)
    ids = coded.save(memory, 20)
    coded.admit(memory, ids)
    later = coded.save(memory, 25)
    assert not tier.contains(ids).any()
    retain(memory, coded, later[:20])
    memory.end_experience()
    assert tier.contains(ids).sum() == 20


def test_swaps_to_slots_that_leave_become_stale(make_memory, coded):
    memory = make_memory(swap_ratio=1)
    ids = coded.save(memory, 100)
    coded.admit(memory, ids)
    memory.end_experience()
    replay = memory.sample(20)
    memory.observe(replay, torch.zeros(20, 5))
    others = np.setdiff1d(ids, replay.ids)[:20]
    retain(memory, coded, others)
    memory.step()
    assert held(memory) == sorted(others.tolist())
    assert memory.stats().swaps.stale == 20


def test_retain_beside_swaps_in_flight_keeps_ids_distinct(make_memory, coded, broken_tier):
    memory = make_memory(storage=broken_tier, sync=False, swap_ratio=1, gate="all")
    ids = coded.save(memory, 100)
    coded.admit(memory, ids)
    memory.end_experience()
    broken_tier.open.clear()
    broken_tier.reading.clear()
    memory.observe(memory.sample(20), torch.zeros(20, 5))
    assert broken_tier.reading.wait(5)
    stay = memory.residents().ids[:10]
    chosen = np.concatenate([stay, np.setdiff1d(ids, memory.residents().ids)[:10]])
    retain(memory, coded, chosen)
    broken_tier.open.set()
    memory.flush()
    replay = memory.sample_slots(memory.filled_slots())
    assert len(set(replay.ids.tolist())) == 20
    assert set(chosen[10:].tolist()) <= set(replay.ids.tolist())
    coded.check(replay)


def test_too_many_are_refused_and_nothing_changes(make_memory, coded):
    memory = make_memory()
    with pytest.raises(BadInputError, match="21 samples are to be held in 20 slots"):
        retain(memory, coded, range(21))
    coded.admit(memory, coded.save(memory, 30))
    before = held(memory)
    with pytest.raises(BadInputError, match="given twice"):
        retain(memory, coded, [3, 3])
    memory.resize(20)
    with pytest.raises(BadInputError, match="21 samples"):
        retain(memory, coded, range(21))
    assert held(memory) == before


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    rounds=st.lists(
        st.tuples(st.lists(st.integers(0, 59), unique=True, max_size=12), st.integers(1, 12)),
        min_size=1,
        max_size=5,
    )
)
def test_whatever_is_retained_is_what_is_held(coded, rounds):
    with Carousel(12, MemoryTier(), seed=0, sync=True, swap_ratio=1) as memory:
        coded.save(memory, 60)
        for wanted, capacity in rounds:
            memory.resize(capacity)
            chosen = wanted[:capacity]
            retain(memory, coded, chosen)
            residents = memory.residents()
            assert sorted(residents.ids.tolist()) == sorted(chosen)
            assert residents.slots.max(initial=0) < capacity
            replay = memory.sample(12)
            coded.check(replay)
            counts = np.bincount(coded.labels(chosen), minlength=5).tolist()
            memory.observe(replay, torch.zeros(len(replay), 5))
            memory.step()
            after = memory.residents()
            assert np.bincount(after.labels, minlength=5).tolist() == counts
            assert len(set(after.ids.tolist())) == len(after)


@pytest.mark.parametrize("sync", [True, False])
def test_greedy_balances_a_stream_while_swaps_go_on(make_memory, coded, sync):
    memory = make_memory(sync=sync, admission="greedy", swap_ratio=1)
    for _ in range(6):
        ids = coded.save(memory, 30)
        coded.admit(memory, ids)
        memory.end_experience()
        coded.train(memory, 4)
        assert np.bincount(memory.residents().labels).tolist() == [4] * 5
    memory.resize(10)
    assert np.bincount(memory.residents().labels).tolist() == [2] * 5


# -- resize ------------------------------------------------------------------------------------


def test_a_smaller_memory_admits_and_retains_within_it(make_memory, coded):
    memory = make_memory()
    ids = coded.save(memory, 200)
    coded.admit(memory, ids[:100])
    memory.resize(10)
    assert (memory.capacity, memory.slots, memory.filled) == (10, 20, 10)
    assert np.bincount(memory.residents().labels).tolist() == [2] * 5
    coded.check(memory.sample(20))
    coded.admit(memory, ids[100:])
    assert memory.filled == 10
    assert memory.residents().slots.max() < 10
    with pytest.raises(BadInputError, match="11 samples"):
        retain(memory, coded, range(11))
    memory.resize(20)
    coded.admit(memory, ids[:100])
    assert memory.filled == 20
    coded.check(memory.sample(20))


@pytest.mark.parametrize("size", [20, "64KiB"])
def test_a_size_given_before_the_first_sample_is_remembered(make_memory, coded, size):
    memory = make_memory(size)
    memory.resize(7)
    assert memory.capacity == 7
    coded.admit(memory, coded.save(memory, 50))
    assert memory.filled == memory.capacity == memory.stats().slots == 7


def test_bytes_that_hold_fewer_slots_than_were_asked_for(make_memory, coded):
    memory = make_memory("64KiB")
    memory.resize(10_000)
    coded.save(memory, 1)
    assert memory.capacity == memory.slots < 10_000


@pytest.mark.parametrize("slots", [0, -3, 21])
def test_sizes_out_of_range(make_memory, slots):
    with pytest.raises(BadInputError, match=f"resized to {slots} slots"):
        make_memory().resize(slots)


def test_a_resized_memory_resumes_bit_for_bit(make_memory, coded):
    def first_half(memory):
        ids = coded.save(memory, 100)
        coded.admit(memory, ids)
        memory.resize(12)
        coded.train(memory, 5, rows=6)

    def second_half(memory):
        history = coded.train(memory, 10, rows=6)
        coded.admit(memory, np.arange(100))
        memory.resize(8)
        return history, memory.residents().ids.tolist(), coded.train(memory, 5, rows=6)

    whole = make_memory(swap_ratio=0.5)
    first_half(whole)
    expected = second_half(whole)

    tier = MemoryTier()
    first_half(first := make_memory(storage=tier, swap_ratio=0.5))
    state = first.state_dict()
    resumed = make_memory(storage=tier, swap_ratio=0.5)
    resumed.load_state_dict(state)
    assert resumed.capacity == 12
    assert second_half(resumed) == expected


def test_a_state_without_samples_carries_its_size(make_memory):
    tier = MemoryTier()
    memory = make_memory(storage=tier)
    memory.resize(5)
    other = make_memory(storage=tier)
    other.load_state_dict(memory.state_dict())
    assert other.capacity == 5


def test_the_memory_grows_back_to_the_size_it_was_given(make_memory, coded):
    memory = make_memory(32, sync=False, pressure=True)
    coded.admit(memory, coded.save(memory, 200))
    machine = MachineMemory(total=2**30, available=2**30)
    watch = PressureWatch(read=lambda: machine, interval_s=0)
    object.__setattr__(memory._settings, "watch", watch)
    memory.resize(20)
    memory.step()
    assert memory.capacity == 20
    machine = MachineMemory(total=2**30, available=2**20)
    memory.step()
    short = memory.capacity
    assert short < 20
    memory.resize(16)
    assert memory.capacity == min(short, 16)
    machine = MachineMemory(total=2**30, available=2**30)
    memory.step()
    assert memory.capacity == 16


# -- rules -------------------------------------------------------------------------------------


def test_rules_are_taken_over_before_the_first_replay(make_memory, coded):
    memory, plain = make_memory(), make_memory(admission="reservoir", gate="random")
    memory.use(admission="reservoir", gate="random")
    histories = []
    for each in (memory, plain):
        coded.admit(each, coded.save(each, 100))
        histories.append(coded.train(each, 10))
    assert histories[0] == histories[1]
    with pytest.raises(BadInputError, match="after samples were replayed"):
        memory.use(admission="ring")


def test_rules_that_do_not_exist(make_memory):
    memory = make_memory()
    with pytest.raises(BadInputError, match="did you mean ring"):
        memory.use(gate="random", admission="rign")
    with pytest.raises(BadInputError, match="gate 'all'"):
        memory.use(gate="all")


def test_a_closed_memory_says_so(make_memory):
    memory = make_memory()
    memory.close()
    for call in (lambda: memory.resize(3), lambda: memory.use(gate="random")):
        with pytest.raises(StorageClosedError):
            call()
