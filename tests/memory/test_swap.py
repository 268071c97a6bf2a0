import threading
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carousel.errors import WorkerError
from carousel.memory.counters import Outcome
from carousel.memory.replacement import Uniform
from carousel.memory.slab import EMPTY, Slab
from carousel.memory.swap import SwapEngine
from carousel.storage import MemoryTier


@dataclass
class Rig:
    """An engine on a filled slab, with more samples in its tier."""

    coded: object
    slab: Slab
    tier: MemoryTier
    engine: SwapEngine

    def ask(self, slots):
        slots = np.asarray(slots, np.int64)
        self.engine.request(slots, self.slab.generations[slots], self.slab.labels[slots])

    def check(self):
        """Sound at any time: contents, lookup, rows, counters."""
        slab = self.slab
        filled = np.flatnonzero(slab.ids != EMPTY)
        ids = slab.ids[filled]
        assert len(np.unique(ids)) == len(ids)
        assert slab.filled == len(filled)
        assert slab.labels[filled].tolist() == self.coded.labels(ids).tolist()
        assert slab.tasks[filled].tolist() == self.coded.tasks(ids).tolist()
        out = slab.schema.empty(len(filled))
        slab.gather(slab.table[filled], out)
        assert out["x"].equal(self.coded.fields(ids)["x"])
        assert self.engine.counters.in_flight == self.engine.in_flight

    def histogram(self):
        return np.bincount(self.slab.labels[self.slab.labels >= 0]).tolist()


@pytest.fixture
def make_rig(coded):
    made = []

    def make(slots=20, spares=8, stored=200, tier=None, resident_from=0, seed=0, **options):
        tier = tier or MemoryTier()
        ids = coded.fill_tier(tier, stored)
        slab = Slab(coded.schema, slots, spares)
        coded.fill_slab(slab, ids[resident_from : resident_from + slots])
        engine = SwapEngine(slab, tier, Uniform(), rng=np.random.default_rng(seed), **options)
        rig = Rig(coded, slab, tier, engine)
        made.append(rig)
        return rig

    yield make
    for rig in made:
        rig.engine.close()


both_modes = pytest.mark.parametrize("sync", [True, False])


@both_modes
def test_a_swap_brings_another_sample_of_the_class(make_rig, sync):
    rig = make_rig(sync=sync)
    before, histogram = rig.slab.ids.copy(), rig.histogram()
    rig.ask([3, 4, 11])
    assert (rig.slab.ids == before).all(), "nothing is visible before a step boundary"
    rig.engine.step()
    rig.engine.drain()
    assert np.flatnonzero(rig.slab.ids != before).tolist() == [3, 4, 11]
    assert rig.histogram() == histogram
    assert rig.slab.generations[[3, 4, 11]].tolist() == [2, 2, 2]
    assert rig.engine.counters.done == 3
    rig.check()


@both_modes
def test_memory_and_classes_stay_as_they_are_over_many_commits(make_rig, sync):
    rig = make_rig(slots=40, stored=400, sync=sync)
    histogram = rig.histogram()
    rng = np.random.default_rng(3)
    for _ in range(150):
        rig.ask(rng.choice(40, 12, replace=False))
        rig.engine.step()
        assert rig.histogram() == histogram
        rig.check()
    rig.engine.flush()
    rig.check()
    counters = rig.engine.counters
    assert counters.in_flight == 0
    assert counters.done > 0
    assert rig.slab.free_rows == rig.slab.spares


def test_sync_mode_repeats_with_its_seed(make_rig):
    def run(seed):
        rig = make_rig(sync=True, seed=seed)
        history = []
        for step in range(60):
            rig.ask(np.arange(step % 7, 20, 3))
            rig.engine.step()
            history.append(rig.slab.ids.tolist())
        return history

    assert run(4) == run(4)
    assert run(4) != run(5)


def test_one_request_a_slot_is_in_flight(make_rig):
    rig = make_rig()
    for slots in ([5, 6], [6, 7], [8, 8]):
        rig.ask(slots)
    while rig.engine._worker.finished.qsize() < 3:
        pass
    rig.engine.step()
    counters = rig.engine.counters
    assert (counters.requested, counters.done, counters.duplicate) == (6, 4, 2)
    rig.check()
    rig.ask([5, 6, 7, 8])
    rig.engine.drain()
    assert rig.engine.counters.done == 8


def test_a_slot_that_changed_before_the_request_is_stale(make_rig):
    rig = make_rig(sync=True)
    slots = np.array([1, 2])
    old = rig.slab.generations[slots].copy()
    rig.slab.release(slots[:1])
    rig.engine.request(slots, old, rig.slab.labels[slots])
    rig.engine.step()
    assert rig.engine.counters.stale == 1
    assert rig.engine.counters.done == 1


def test_a_slot_that_changes_while_its_swap_is_in_flight_keeps_the_change(make_rig, coded):
    rig = make_rig()
    rig.ask([0, 1])
    while rig.engine._worker.finished.qsize() == 0:
        pass
    newcomer = np.array([500])
    rig.slab.write(
        np.array([1]),
        coded.fields(newcomer),
        newcomer,
        coded.labels(newcomer),
        coded.tasks(newcomer),
    )
    rig.engine.step()
    assert rig.slab.ids[1] == 500
    assert (rig.engine.counters.done, rig.engine.counters.stale) == (1, 1)
    rig.check()
    assert rig.slab.free_rows == rig.slab.spares


def test_a_sample_that_moves_to_another_slot_while_its_swap_is_in_flight_stays(make_rig):
    rig = make_rig()
    rig.slab.release(np.array([2]))
    rig.ask([1])
    while rig.engine._worker.finished.qsize() == 0:
        pass
    rig.slab.move(np.array([1]), np.array([2]))
    rig.engine.step()
    assert rig.slab.ids[[1, 2]].tolist() == [EMPTY, 1]
    assert rig.engine.counters.stale == 1
    rig.check()


def test_a_sample_that_moves_to_another_row_while_its_swap_is_in_flight_stays(make_rig):
    rig = make_rig(spares=2)
    rig.ask([0, 1])  # they get the last rows, which go when there are fewer slots
    rig.engine.drain()
    before = rig.slab.ids[:2].tolist()
    rig.slab.release(np.array([18, 19]))
    rig.ask([0])
    while rig.engine._worker.finished.qsize() == 0:
        pass
    rig.slab.set_capacity(18)
    rig.engine.step()
    assert rig.slab.ids[:2].tolist() == before
    assert rig.engine.counters.stale == 1
    rig.check()


def test_a_sample_that_is_admitted_while_it_is_on_its_way_is_not_there_twice(make_rig, coded):
    rig = make_rig(slots=5, stored=10)  # each class has one resident and one other sample
    rig.ask([0])
    while rig.engine._worker.finished.qsize() == 0:
        pass
    coming = np.array([5])
    rig.slab.write(
        np.array([3]), coded.fields(coming), coming, coded.labels(coming), coded.tasks(coming)
    )
    rig.engine.step()
    assert rig.engine.counters.stale == 1
    rig.check()


@both_modes
def test_a_class_without_other_samples_has_no_candidate(make_rig, sync):
    rig = make_rig(slots=20, stored=20, sync=sync)
    rig.ask(np.arange(20))
    rig.engine.drain()
    assert rig.engine.counters.no_candidate == 20
    assert rig.slab.ids.tolist() == list(range(20))


def test_requests_beyond_the_queue_are_dropped(make_rig, broken_tier):
    rig = make_rig(tier=broken_tier, queue_rows=10)
    broken_tier.open.clear()
    rig.ask(np.arange(10))
    rig.ask([11, 12])
    assert rig.engine.counters.dropped_full == 2
    broken_tier.open.set()
    rig.engine.drain()
    assert rig.engine.counters.done == 10


def test_few_spares_only_slow_the_worker(make_rig):
    rig = make_rig(slots=20, spares=1, stored=300)
    for _ in range(5):
        rig.ask(np.arange(20))
        rig.engine.drain()
    assert rig.engine.counters.done == 100
    rig.check()


def test_publication_waits_for_its_step(make_rig):
    rig = make_rig(publish_every=4, spares=40)
    before = rig.slab.ids.copy()
    rig.ask([0, 1])
    while rig.engine._worker.finished.qsize() == 0:
        pass
    for _ in range(3):
        rig.engine.step()
        assert (rig.slab.ids == before).all()
    rig.engine.step()
    assert (rig.slab.ids[:2] != before[:2]).all()
    assert rig.engine.staleness[4] == 2


@pytest.mark.parametrize(
    ("slots", "sync", "every"), [(999, False, 1), (1000, False, 4), (1000, True, 1)]
)
def test_large_memories_publish_every_fourth_step(make_rig, slots, sync, every):
    rig = make_rig(slots=slots, stored=1500, spares=64, sync=sync)
    assert rig.engine._publish_every == every


@both_modes
def test_close_cancels_and_joins(make_rig, broken_tier, sync):
    rig = make_rig(tier=broken_tier, sync=sync, spares=4)
    broken_tier.open.clear()
    rig.ask(np.arange(12))
    if not sync:
        broken_tier.reading.wait()
    broken_tier.open.set()
    rig.engine.close()
    rig.engine.close()
    rig.ask([0, 1])
    counters = rig.engine.counters
    assert counters.in_flight == 0
    assert counters.done + counters.cancelled == counters.requested == 14
    assert counters.cancelled >= 2
    assert not [thread for thread in threading.enumerate() if thread.name == "carousel-swap"]
    rig.check()


def test_drain_has_a_timeout(make_rig, broken_tier):
    rig = make_rig(tier=broken_tier)
    broken_tier.open.clear()
    rig.ask([0])
    with pytest.raises(TimeoutError, match="1 swaps"):
        rig.engine.drain(timeout=0.05)
    broken_tier.open.set()
    rig.engine.drain()


def test_ids_in_flight_are_pinned_and_let_go(make_rig, broken_tier):
    rig = make_rig(tier=broken_tier)
    broken_tier.open.clear()
    rig.ask(np.arange(6))
    broken_tier.reading.wait()
    assert broken_tier._index.pinned_mask(np.arange(200)).sum() == 6
    broken_tier.open.set()
    rig.engine.flush()
    assert broken_tier._index.pinned_mask(np.arange(200)).sum() == 0


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.lists(st.integers(0, 11), max_size=12)),
        st.tuples(st.just("ask-old"), st.lists(st.integers(0, 11), max_size=4)),
        st.tuples(st.just("step"), st.just([])),
        st.tuples(st.just("drain"), st.just([])),
        st.tuples(st.just("write"), st.lists(st.integers(0, 11), max_size=3, unique=True)),
        st.tuples(st.just("release"), st.lists(st.integers(0, 11), max_size=2, unique=True)),
        st.tuples(st.just("delete"), st.lists(st.integers(0, 59), max_size=8, unique=True)),
    ),
    max_size=30,
)


@settings(
    max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(operations=OPERATIONS, sync=st.booleans(), queue_rows=st.sampled_from([4, 1024]))
def test_every_request_is_counted_once(make_rig, operations, sync, queue_rows):
    rig = make_rig(slots=12, stored=60, sync=sync, queue_rows=queue_rows)
    old = rig.slab.generations.copy()
    fresh, asked = 1000, 0
    for name, listed in operations:
        slots = np.array(listed, np.int64)
        if name == "ask":
            rig.ask(slots)
            asked += len(slots)
        elif name == "ask-old":
            rig.engine.request(slots, old[slots], rig.slab.labels[slots])
            asked += len(slots)
        elif name == "write":
            ids = np.arange(fresh, fresh + len(slots))
            fresh += len(slots)
            labels, tasks = rig.coded.labels(ids), rig.coded.tasks(ids)
            rig.slab.write(slots, rig.coded.fields(ids), ids, labels, tasks)
        elif name == "release":
            rig.slab.release(slots)
        elif name == "delete":
            rig.tier.delete_many(slots)
        else:
            getattr(rig.engine, name)()
        rig.check()
        assert rig.engine.counters.requested == asked
    rig.engine.close()
    rig.check()
    assert rig.engine.counters.in_flight == 0
    assert rig.slab.free_rows == rig.slab.spares


def test_no_row_is_ever_torn(make_rig):
    """The worker at full speed, gathers and admissions at full speed: every byte is checked."""
    rig = make_rig(slots=64, spares=64, stored=1000)
    rng = np.random.default_rng(1)
    out = rig.slab.schema.empty(64)
    everything = np.arange(64)
    step = rows = 0
    while rows < 90_000 or rig.engine.counters.done < 4_000:
        step += 1
        ids = rig.slab.ids.copy()
        rig.slab.gather(rig.slab.table, out)
        expected = rig.coded.fields(ids)
        assert out["x"].equal(expected["x"])
        assert out["digest"].equal(expected["digest"])
        rows += 64
        rig.ask(rng.permutation(everything)[:40])
        if step % 10 == 0:  # an update of the memory by its admission rule
            slots = rng.choice(64, 4, replace=False)
            candidates = np.setdiff1d(rig.tier.ids_of(0), rig.slab.ids)
            fresh = rng.choice(candidates, 4, replace=False)
            rig.slab.write(
                slots,
                rig.coded.fields(fresh),
                fresh,
                rig.coded.labels(fresh),
                rig.coded.tasks(fresh),
            )
        rig.engine.step()
    rig.engine.flush()
    assert rig.engine.counters.in_flight == 0
    rig.check()


def test_the_sum_of_outcomes_includes_every_kind():
    names = {outcome.name.lower() for outcome in Outcome}
    assert names == {
        "done",
        "stale",
        "duplicate",
        "no_candidate",
        "corrupt",
        "io_error",
        "dropped_full",
        "cancelled",
    }


def test_small_requests_go_to_the_worker_together(make_rig):
    rig = make_rig(slots=320, stored=900, spares=64)  # 20 rows are worth a hand-over
    for step in range(3):
        rig.ask(np.arange(6) + 6 * step)
        rig.engine.step()
    assert rig.engine._worker._thread is None, "18 rows of three steps wait"
    rig.ask(np.arange(18, 24))
    while rig.engine._worker.finished.qsize() == 0:
        pass
    rig.engine.step()
    assert rig.engine.counters.done == 24
    assert rig.engine.staleness[:5].tolist() == [0, 6, 6, 6, 6]
    rig.check()


def test_a_large_request_is_sent_at_once(make_rig):
    rig = make_rig(slots=320, stored=900, spares=64)
    rig.ask(np.arange(20))
    while rig.engine._worker.finished.qsize() == 0:
        pass
    rig.engine.step()
    assert rig.engine.counters.done == 20


def test_a_small_request_is_sent_with_that_of_the_fourth_step(make_rig):
    rig = make_rig(slots=320, stored=900, spares=64)
    for step in range(3):
        rig.ask([step])
        rig.engine.step()
    assert rig.engine._worker._thread is None
    rig.ask([3])
    assert rig.engine._worker._thread is not None, "before the step ends, and before backward"
    rig.engine.drain()
    assert rig.engine.counters.done == 4


def test_a_small_request_is_sent_though_no_other_step_asks(make_rig):
    rig = make_rig(slots=320, stored=900, spares=64)
    rig.ask([0])
    for _ in range(4):
        assert rig.engine._worker._thread is None
        rig.engine.step()
    while rig.engine._worker.finished.qsize() == 0:
        pass
    rig.engine.step()
    assert rig.engine.counters.done == 1


def test_what_waits_is_drained_and_cancelled_as_what_is_in_flight(make_rig):
    rig = make_rig(slots=320, stored=900, spares=64)
    rig.ask([1, 2])
    assert rig.engine.in_flight == 2
    rig.engine.drain()
    assert rig.engine.counters.done == 2
    rig.ask([1, 2, 3])
    rig.engine.close()
    assert (rig.engine.counters.cancelled, rig.engine.in_flight) == (3, 0)


def test_a_gate_that_fails_cancels_its_own_step_of_those_that_travel_together(make_rig):
    rig = make_rig(slots=320, stored=900, spares=64)
    rig.ask([1, 2])
    slots = np.array([3, 4, 5])
    columns = slots, rig.slab.generations[slots], rig.slab.labels[slots]
    rig.engine.request(*columns, pick=lambda: np.array([0]), size=2)  # announced two
    rig.ask([6])
    rig.engine.drain()
    assert (rig.engine.counters.done, rig.engine.counters.cancelled) == (3, 2)
    assert rig.engine.worker_failures == 1
    with pytest.raises(WorkerError, match="chose 1 rows instead of 2"):
        rig.engine.flush()
    rig.check()
