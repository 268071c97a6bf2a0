import copy
import re
import runpy
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch

from carousel.errors import (
    BadInputError,
    CheckpointError,
    SchemaMismatchError,
    StorageClosedError,
)
from carousel.memory import Carousel, SampleBatch
from carousel.memory.checkpoint import load_checkpoint, save_checkpoint
from carousel.memory.machine import MachineMemory
from carousel.memory.pressure import PressureWatch
from carousel.memory.replay import Replay
from carousel.storage import LMDBTier, MemoryTier

EXAMPLE = Path(__file__).parents[2] / "examples" / "plain_torch_loop.py"


@pytest.fixture
def make_memory(broken_tier):
    made = []

    def make(slots=20, storage=None, **options):
        storage = MemoryTier() if storage is None else storage
        memory = Carousel(slots, storage, **{"seed": 3, "swap_ratio": 0.5, **options})
        made.append(memory)
        return memory

    yield make
    for memory in made:
        memory.close()


def run_experiences(memory, coded, experiences, start=0, steps=12, per_experience=60):
    """A stream; returns the ids in memory after every step."""
    history = []
    for experience in range(start, experiences):
        first = memory.reserve("run", experience, per_experience)
        ids = np.arange(first, first + per_experience)
        memory.save_in_background(
            SampleBatch(part, coded.labels(part), coded.tasks(part), coded.fields(part))
            for part in np.array_split(ids, 7)
        )
        history += coded.train(memory, steps)
        memory.end_experience()
        coded.admit(memory, ids)
    return history


# -- the training loop -------------------------------------------------------------------------


@pytest.mark.parametrize("sync", [True, False])
def test_a_stream_of_experiences(tmp_path, make_memory, coded, sync):
    memory = make_memory(storage=tmp_path / "db", sync=sync)
    run_experiences(memory, coded, 6)
    stats = memory.stats()
    assert stats.filled == 20
    assert stats.storage.records == 360
    assert stats.swaps.in_flight == 0
    assert stats.swaps.done > 0
    counts = np.bincount(memory.sample(20).labels.numpy())
    assert counts.max() - counts.min() <= 1
    entries = memory.tier.entries()
    assert entries.ids.tolist() == list(range(360))


def test_samples_are_uniform_and_without_repeats(make_memory, coded):
    memory = make_memory(swap=False)
    ids = coded.save(memory, 60)
    coded.admit(memory, ids)
    counts = np.zeros(60)
    for _ in range(4000):
        drawn = memory.sample(5).ids
        assert len(set(drawn)) == 5
        counts[drawn] += 1
    counts = counts[counts > 0]
    assert len(counts) == 20
    assert ((counts - 1000) ** 2 / 1000).sum() < 50  # chi-square, 19 degrees, p about 1e-4


def test_a_memory_that_is_not_full_gives_what_it_has(make_memory, coded):
    memory = make_memory()
    assert len(memory.sample(8)) == 0
    assert memory.filled == 0
    assert memory.stats().swaps.requested == 0
    memory.observe(memory.sample(8), torch.empty(0, 5))
    memory.step()
    coded.admit(memory, coded.save(memory, 3))
    replay = memory.sample(8)
    assert len(replay) == 3
    coded.check(replay)
    assert memory.filled_slots().tolist() == [0, 1, 2]


def test_every_row_carries_what_a_swap_needs(make_memory, coded):
    memory = make_memory(sync=True, swap_ratio=1)
    coded.admit(memory, coded.save(memory, 100))
    memory.end_experience()
    replay = memory.sample(6)
    memory.observe(replay, torch.zeros(6, 5))
    memory.step()
    again = memory.sample_slots(replay.slots)
    assert (again.generations == replay.generations + 1).all()
    assert (again.ids != replay.ids).all()
    assert again.labels.equal(replay.labels)
    memory.observe(replay, torch.zeros(6, 5))
    assert memory.stats().swaps.stale == 0
    memory.step()
    assert memory.stats().swaps.stale == 6


def test_without_swapping_nothing_is_asked(make_memory, coded):
    for options in ({"swap": False}, {"swap_ratio": 0}):
        memory = make_memory(**options)
        coded.admit(memory, coded.save(memory, 100))
        history = coded.train(memory, 10)
        assert all(ids == history[0] for ids in history)
        assert memory.stats().swaps.requested == 0
        assert memory.stats().spares == 0


@pytest.mark.parametrize("gate", ["balanced", "score", "entropy", "loss", "random", "all"])
def test_every_gate_asks_for_its_share(make_memory, coded, gate):
    memory = make_memory(gate=gate, swap_ratio=1 if gate == "all" else 0.55)
    coded.admit(memory, coded.save(memory, 100))
    coded.train(memory, 10)
    memory.flush()
    assert memory.stats().swaps.requested == 10 * (16 if gate == "all" else 9)


def test_a_gate_of_ones_own_runs_where_it_is_called(make_memory, coded):
    threads = set()

    def gate(batch):
        threads.add(threading.current_thread())
        return torch.arange(len(batch)) < 3

    memory = make_memory(gate=gate)
    coded.admit(memory, coded.save(memory, 100))
    coded.train(memory, 10)
    memory.flush()
    assert threads == {threading.main_thread()}
    assert memory.stats().swaps.requested == 30


def test_replayed_samples_are_counted_once(make_memory, coded):
    memory = make_memory(sync=True, swap_ratio=1)
    coded.admit(memory, coded.save(memory, 100))
    memory.end_experience()
    seen = set()
    for _ in range(40):
        replay = memory.sample(10)
        seen |= set(replay.ids.tolist())
        memory.observe(replay, torch.zeros(10, 5))
        memory.step()
    assert memory.stats().distinct_samples_replayed == len(seen) > 40


# -- what arrives ------------------------------------------------------------------------------


def test_reserved_ids_are_the_same_after_a_restart(tmp_path, coded):
    path = tmp_path / "db"
    with Carousel(20, path) as memory:
        assert memory.reserve("a", 0, 10) == 0
        assert memory.reserve("a", 1, 5) == 10
        assert memory.reserve("b", 0, 7) == 15
    with Carousel(20, path) as memory:
        assert memory.reserve("a", 1, 5) == 10
        assert memory.reserve("b", 1, 7) == 22
        with pytest.raises(BadInputError, match="has 6 samples, and had 10"):
            memory.reserve("a", 0, 6)


def test_presenting_samples_again_changes_nothing(make_memory, coded):
    memory = make_memory()
    ids = np.arange(memory.reserve("run", 0, 60), 60)
    for _ in range(2):
        memory.save(ids, coded.labels(ids), coded.tasks(ids), **coded.fields(ids))
        memory.end_experience()
        coded.admit(memory, ids)
        assert memory.stats().storage.records == 60
        held = memory.sample(20).ids
        assert len(set(held.tolist())) == 20


def test_only_admitted_rows_are_fetched_in_batches(make_memory, coded):
    memory = make_memory(slots=600)
    ids = coded.save(memory, 2000)
    asked = []

    def fetch(rows):
        asked.append(rows)
        return coded.fields(ids[rows])

    admitted = memory.admit(ids, coded.labels(ids), coded.tasks(ids), fetch=fetch)
    rows = np.concatenate(asked)
    assert sorted(ids[rows].tolist()) == sorted(admitted.tolist())
    assert len(rows) == 600
    assert max(len(part) for part in asked) <= 256


def test_background_saves_end_before_the_experience_does(make_memory, coded):
    memory = make_memory()
    go_on = threading.Event()
    ids = np.arange(memory.reserve("run", 0, 40), 40)

    def batches():
        for part in np.array_split(ids, 4):
            yield SampleBatch(part, coded.labels(part), coded.tasks(part), coded.fields(part))
            go_on.wait()

    memory.save_in_background(batches())
    assert memory.stats().storage.records <= 20
    go_on.set()
    memory.end_experience()
    assert memory.stats().storage.records == 40
    memory.save_in_background([])


def test_an_error_in_the_background_surfaces_at_the_end_of_the_experience(make_memory, coded):
    memory = make_memory()
    ids = np.arange(10)

    def batches():
        yield SampleBatch(ids, coded.labels(ids), coded.tasks(ids), coded.fields(ids))
        yield SampleBatch(ids + 10, [-1] * 10, None, coded.fields(ids))

    memory.save_in_background(batches())
    with pytest.raises(BadInputError, match="the label of row 0 is -1"):
        memory.end_experience()
    memory.end_experience()


SAMPLES = {"x": torch.zeros(2, 4), "digest": torch.zeros(2)}


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda m: m.save(None, [0, -1], **SAMPLES), BadInputError, "row 1 is -1"),
        (lambda m: m.save(None, [0], **SAMPLES), BadInputError, "1 labels"),
        (lambda m: m.save([3, 3], [0, 1], **SAMPLES), BadInputError, "given twice"),
        (lambda m: m.save([-1, 3], [0, 1], **SAMPLES), BadInputError, "negative"),
        (lambda m: m.save([2**63 - 1, 3], [0, 1], **SAMPLES), BadInputError, "too large"),
        (lambda m: m.save(None, [0, 1], x=torch.zeros(2, 5)), SchemaMismatchError, "fields"),
        (
            lambda m: m.save(None, [0, 1], **{**SAMPLES, "x": torch.zeros(2, 5)}),
            SchemaMismatchError,
            r"field x is float32 \(5,\)",
        ),
        (
            lambda m: m.save(None, [0, 1], **{**SAMPLES, "x": torch.full((2, 4), np.nan)}),
            BadInputError,
            "NaN",
        ),
        (
            lambda m: m.admit(np.arange(2), [0, 1], fetch=lambda rows: {"x": torch.zeros(1, 4)}),
            SchemaMismatchError,
            "fields",
        ),
        (
            lambda m: m.admit(
                np.arange(2), [0, 1], fetch=lambda rows: {k: v[:1] for k, v in SAMPLES.items()}
            ),
            BadInputError,
            "fetch",
        ),
        (
            lambda m: m.observe(m.sample(2), torch.zeros(3, 2)),
            BadInputError,
            "logits have shape .* for 0",
        ),
        (lambda m: m.sample(-1), BadInputError, "-1 samples"),
        (
            lambda m: m.observe(m.sample(2), torch.zeros(0)),
            BadInputError,
            "logits have shape .* for 0",
        ),
    ],
)
def test_bad_input_is_named_and_changes_nothing(make_memory, call, error, message):
    memory = make_memory()
    memory.save(None, [0, 1], **SAMPLES)
    with pytest.raises(error, match=message):
        call(memory)
    memory.end_experience()
    assert memory.stats().storage.records == 2
    assert memory.filled == 0


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"slots": 0}, "memory_size"),
        ({"slots": "9999 GiB"}, "memory_size"),
        ({"swap_ratio": 1.5}, "swap_ratio is 1.5"),
        ({"gate": "balancd"}, "did you mean balanced"),
        ({"gate": "all"}, "gate 'all'"),
        ({"admission": "rings"}, "did you mean ring"),
        ({"replacement": "near"}, "replacement is 'near'"),
        ({"replacement": None}, "replacement is None"),
        ({"publish_every": 0}, "publish_every is 0"),
        ({"seed": -1}, "seed"),
        ({"pressure": True, "sync": True}, "pressure"),
        ({"storage_budget": 5}, "storage_budget"),
    ],
)
def test_a_bad_argument_is_refused(make_memory, options, message):
    with pytest.raises(BadInputError, match=message):
        make_memory(**options)


def test_a_bad_argument_leaves_no_storage_behind(tmp_path):
    with pytest.raises(BadInputError):
        Carousel(20, tmp_path / "db", swap_ratio=2)
    assert not (tmp_path / "db").exists()


def test_a_storage_of_other_samples_is_refused(tmp_path):
    path = tmp_path / "db"
    with Carousel(20, path) as memory:
        memory.save(None, [0], x=torch.zeros(1, 4))
    with Carousel(20, path) as memory:
        assert str(memory.schema) == "x float32 (4,)"
        with pytest.raises(SchemaMismatchError):
            memory.save(None, [0], x=torch.zeros(1, 5))


def test_a_byte_budget_is_kept(make_memory, coded):
    memory = make_memory(slots="64KiB", swap_ratio=1)
    coded.admit(memory, coded.save(memory, 1000))
    coded.train(memory, 20)
    memory.flush()
    stats = memory.stats()
    assert 80 < stats.slots < 64 * 1024 / coded.schema.nbytes
    assert stats.filled == stats.slots
    per_sample = coded.schema.nbytes
    assert (stats.slots + stats.spares) * per_sample + 40 * stats.slots <= 64 * 1024


# -- checkpoints -------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["memory", "lmdb"])
def test_a_resumed_sync_run_repeats_the_whole_one_bit_for_bit(tmp_path, coded, kind):
    def storage(name):
        return MemoryTier() if kind == "memory" else LMDBTier(tmp_path / name, sync=True)

    def memory_on(tier):
        return Carousel(20, tier, seed=3, swap_ratio=0.7, sync=True)

    with storage("whole") as tier, memory_on(tier) as memory:
        whole = run_experiences(memory, coded, 5)
        whole_stats = memory.stats()

    tier = storage("parts")
    with memory_on(tier) as memory:
        parts = run_experiences(memory, coded, 2)
        save_checkpoint(tmp_path / "memory.pt", memory.state_dict())
        run_experiences(memory, coded, 4, start=2)  # goes on, and is killed
    if kind == "lmdb":
        tier.close()
        tier = storage("parts")
    with memory_on(tier) as memory:
        memory.load_state_dict(load_checkpoint(tmp_path / "memory.pt"))
        parts += run_experiences(memory, coded, 5, start=2)
        stats = memory.stats()
    tier.close()

    assert parts == whole
    assert stats.swaps == whole_stats.swaps
    assert stats.staleness == whole_stats.staleness
    assert stats.distinct_samples_replayed == whole_stats.distinct_samples_replayed


def test_residents_that_are_not_stored_travel_in_the_checkpoint(make_memory, coded):
    tier = MemoryTier(budget=25, eviction="fifo")
    memory = make_memory(storage=tier, sync=True, admission="ring")
    ids = coded.save(memory, 40)
    coded.admit(memory, ids[:20])
    coded.train(memory, 1)
    state = copy.deepcopy(memory.state_dict())
    assert len(state["core"]["slots"]["absent"]) > 0
    before = memory.sample_slots(memory.filled_slots())
    kept = before.ids.tolist(), before.generations.tolist()

    other = make_memory(storage=tier, sync=True, admission="ring")
    other.load_state_dict(state)
    after = other.sample_slots(other.filled_slots())
    assert (after.ids.tolist(), after.generations.tolist()) == kept
    coded.check(after)
    assert other.stats().restore_losses == 0


def test_what_came_after_the_checkpoint_is_hidden_until_it_comes_again(make_memory, coded):
    tier = MemoryTier()
    memory = make_memory(storage=tier, sync=True, swap_ratio=1)
    coded.admit(memory, coded.save(memory, 40))
    state = memory.state_dict()
    later = coded.save(memory, 40)

    memory.load_state_dict(state)
    seen = {sample for ids in coded.train(memory, 60) for sample in ids}
    assert seen == set(range(40))
    memory.save(later, coded.labels(later), coded.tasks(later), **coded.fields(later))
    seen = {sample for ids in coded.train(memory, 60) for sample in ids}
    assert seen & set(later.tolist())


def test_lost_residents_are_not_replaced_by_what_came_later(make_memory, coded):
    tier = MemoryTier()
    memory = make_memory(storage=tier, sync=True, swap_ratio=1)
    coded.admit(memory, coded.save(memory, 40))
    state = memory.state_dict()
    coded.save(memory, 400)
    tier.delete_many(memory.sample(20).ids[:15])
    memory.load_state_dict(state)
    assert memory.stats().restore_losses == 15
    assert memory.filled > 5
    assert memory.sample(20).ids.max() < 40


def test_a_checkpoint_while_swaps_are_in_flight_counts_them_as_cancelled(
    make_memory, broken_tier, coded
):
    memory = make_memory(storage=broken_tier, swap_ratio=1)
    coded.admit(memory, coded.save(memory, 100))
    broken_tier.open.clear()
    coded.train(memory, 1)
    state = memory.state_dict()
    broken_tier.open.set()
    memory.load_state_dict(state)
    swaps = memory.stats().swaps
    assert (swaps.requested, swaps.cancelled, swaps.in_flight) == (16, 16, 0)
    coded.train(memory, 5)


def test_a_state_of_another_kind_is_refused(make_memory, coded):
    memory = make_memory()
    coded.admit(memory, coded.save(memory, 60))
    state = memory.state_dict()
    with pytest.raises(CheckpointError, match="format"):
        memory.load_state_dict({**state, "format": 99})
    with pytest.raises(CheckpointError, match="20 slots and the memory 30"):
        make_memory(slots=30).load_state_dict(state)
    for key in state:
        with pytest.raises(CheckpointError, match=key):
            memory.load_state_dict({k: v for k, v in state.items() if k != key})
    for nothing in (None, [], {}):
        with pytest.raises(CheckpointError):
            memory.load_state_dict(nothing)
    assert memory.filled == 20


def test_a_storage_that_is_another_one_or_lost_everything_is_refused(make_memory, coded):
    tier = MemoryTier()
    memory = make_memory(storage=tier, sync=True)
    coded.admit(memory, coded.save(memory, 60))
    state = memory.state_dict()
    other = make_memory(storage=MemoryTier(), sync=True)
    coded.save(other, 60)
    with pytest.raises(BadInputError, match="not the one that the checkpoint was made with: put"):
        other.load_state_dict(state)
    tier.delete_many(np.arange(60))
    with pytest.raises(BadInputError, match="is empty and the checkpoint names 20"):
        memory.load_state_dict(state)


def test_a_closed_memory_and_a_negative_number_are_refused(make_memory, coded):
    memory = make_memory()
    ids = coded.save(memory, 20)
    coded.admit(memory, ids)
    with pytest.raises(BadInputError, match="-1 samples"):
        memory.sample(-1)
    memory.close()
    for use in (
        lambda: memory.sample(4),
        lambda: memory.sample_slots(np.arange(4)),
        lambda: coded.save(memory, 4),
        lambda: coded.admit(memory, ids),
        lambda: memory.reserve("run", 0, 3),
        memory.step,
    ):
        with pytest.raises(StorageClosedError, match="was closed; use it before close"):
            use()
    memory.close()


def test_an_empty_memory_has_a_state_too(make_memory):
    memory = make_memory()
    memory.load_state_dict(memory.state_dict())
    assert memory.filled == 0


# -- the machine and the end -------------------------------------------------------------------


def test_under_memory_pressure_slots_are_given_back_and_taken_again(make_memory, coded):
    machine = {"available": 90}
    memory = make_memory(slots=400, swap_ratio=1, pressure=True)
    memory._settings.watch.__init__(
        interval_s=0, read=lambda: MachineMemory(100 * 1000, machine["available"] * 1000)
    )
    coded.admit(memory, coded.save(memory, 2000))
    coded.train(memory, 5)
    whole = memory.stats()
    assert (whole.slots, whole.filled) == (400, 400)

    machine["available"] = 1
    coded.train(memory, 3)
    memory.end_experience()
    few = memory.stats()
    assert few.slots < 400
    assert few.filled <= few.slots
    assert few.ram_bytes < whole.ram_bytes
    counts = np.bincount(memory.sample(400).labels.numpy())
    assert counts.max() - counts.min() <= 1
    coded.train(memory, 20)

    machine["available"] = 90
    coded.train(memory, 2)
    coded.admit(memory, coded.save(memory, 1000))
    coded.train(memory, 5)
    memory.flush()
    assert memory.stats().filled == 400
    assert memory.stats().swaps.in_flight == 0


def test_pressure_is_not_watched_by_default(make_memory):
    assert make_memory()._settings.watch is None
    assert isinstance(make_memory(pressure=True)._settings.watch, PressureWatch)


def test_close_leaves_nothing_alive(tmp_path, coded):
    threads = set(threading.enumerate())
    memory = Carousel(20, tmp_path / "db", swap_ratio=1)
    coded.admit(memory, coded.save(memory, 100))
    memory.end_experience()
    coded.train(memory, 20)
    assert set(threading.enumerate()) > threads
    memory.close()
    memory.close()
    assert set(threading.enumerate()) == threads
    open_files = [file.path for file in psutil.Process().open_files()]
    assert not [path for path in open_files if str(tmp_path) in path]
    with Carousel(20, tmp_path / "db") as again:
        assert again.stats().storage.records == 100


def test_a_tier_that_was_given_stays_open(coded):
    with MemoryTier() as tier:
        with Carousel(20, tier) as memory:
            coded.save(memory, 10)
        assert tier.stats().records == 10


LEFT_OPEN = """
import sys, time, torch
from carousel.memory import Carousel, SampleBatch

def batches():
    for start in range(0, 1000, 50):
        time.sleep(0.01)
        yield SampleBatch(None, torch.zeros(50, dtype=torch.long), None, {"x": torch.rand(50, 8)})

memory = Carousel(20, sys.argv[1], swap_ratio=1)
x, y = torch.rand(100, 8), torch.zeros(100, dtype=torch.long)
memory.admit(memory.save(None, y, x=x), y, fetch=lambda rows: {"x": x[rows]})
memory.save_in_background(batches())
memory.observe(memory.sample(8), torch.zeros(8, 1))
"""


def test_a_program_that_forgets_to_close_ends_and_loses_nothing(tmp_path):
    path = tmp_path / "db"
    root = Path(__file__).parents[2]
    subprocess.run([sys.executable, "-c", LEFT_OPEN, path], check=True, timeout=60, cwd=root)
    with Carousel(20, path) as memory:
        assert memory.stats().storage.records == 1100


def test_a_memory_that_cannot_be_built_leaves_the_storage_unlocked(tmp_path):
    path = tmp_path / "db"
    with Carousel(20, path) as memory:
        memory.save(None, [0], x=torch.zeros(1, 4000))
    with pytest.raises(BadInputError, match="too little for one sample"):
        Carousel("1KiB", path)
    with Carousel(20, path) as memory:
        assert memory.stats().storage.records == 1


def test_the_example_runs_and_swaps(capsys):
    assert len(EXAMPLE.read_text().splitlines()) < 30
    runpy.run_path(str(EXAMPLE), run_name="__main__")
    printed = capsys.readouterr().out
    assert float(re.search(r"accuracy ([\d.]+)", printed)[1]) > 0.8
    assert int(re.search(r"done=(\d+)", printed)[1]) > 100


class TestForget:
    @pytest.fixture
    def memory(self, coded):
        with Carousel(20, MemoryTier(), swap_ratio=1, gate="all", seed=0, sync=True) as memory:
            ids = coded.save(memory, 200)
            memory.end_experience()
            coded.admit(memory, ids)
            coded.train(memory, 10)
            yield memory

    @pytest.mark.parametrize("named", [{"labels": [2]}, {"tasks": [1]}, {"ids": range(0, 200, 3)}])
    def test_leaves_nothing_in_slots_spares_and_storage(self, memory, coded, named):
        everything = np.arange(200)
        gone = np.isin(everything, list(named.get("ids", ())))
        gone |= np.isin(coded.labels(everything), named.get("labels", ()))
        gone |= np.isin(coded.tasks(everything), named.get("tasks", ()))
        assert memory.forget(**named) == gone.sum()
        assert memory.tier.contains(everything).tolist() == (~gone).tolist()
        coded.train(memory, 20)
        assert not gone[memory.sample(20).ids].any()
        payloads = {x.tobytes() for x in coded.fields(everything[gone])["x"].numpy()}
        rows = memory._core.slab.arrays["x"]
        assert not payloads & {row.tobytes() for row in rows}

    def test_frees_slots_for_the_next_admission(self, memory, coded):
        memory.forget(labels=[2])
        assert memory.filled == 16
        coded.admit(memory, coded.save(memory, 100))
        assert memory.filled == 20

    def test_nothing_named(self, memory):
        with pytest.raises(BadInputError, match="nothing to forget"):
            memory.forget()
        assert memory.filled == 20


def test_batches_of_one_step_join_with_every_slot_once(make_memory, coded):
    memory = make_memory()
    run_experiences(memory, coded, 1)
    first, second = memory.sample(15), memory.sample(15)
    replay, rows = Replay.joined([first, second])
    slots, ids = (
        np.concatenate([getattr(drawn, name) for drawn in (first, second)])
        for name in ("slots", "ids")
    )
    assert len(set(slots)) < 30  # some were drawn twice
    assert sorted(replay.slots) == sorted(set(slots))
    assert np.array_equal(replay.slots, slots[rows])
    assert np.array_equal(replay.ids, ids[rows])
    assert np.array_equal(replay.labels.numpy(), coded.labels(replay.ids))
    memory.observe(replay, torch.zeros(len(replay), 10))
    memory.end_experience()
    swaps = memory.stats().swaps
    assert swaps.duplicate == 0
    assert swaps.done > 0
