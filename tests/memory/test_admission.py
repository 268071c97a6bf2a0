"""Admission rules: budgets, balance, odds, and that samples which stay keep their slots."""

from __future__ import annotations

from collections import Counter, deque
from io import BytesIO
from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from carousel.errors import BadInputError
from carousel.memory.admission import (
    ADMISSIONS,
    Assignment,
    ClassBalanced,
    Greedy,
    Reservoir,
    Ring,
    SlotState,
    make_admission,
)
from carousel.memory.admission.quota import first_of_each, water_fill
from carousel.memory.seeds import generator


class Memory:
    """Slots that carry out plans, and check what every plan must respect."""

    def __init__(self, rule, capacity):
        self.rule = rule
        empty = np.full(capacity, -1, np.int64)
        self.slots = SlotState(empty.copy(), empty.copy(), empty.copy(), capacity)

    def feed(self, ids, labels):
        ids, labels = np.asarray(ids, np.int64), np.asarray(labels, np.int64)
        plan = self.rule.plan(self.slots, ids, labels, np.zeros(len(ids), np.int64))
        self.apply(plan, ids, labels)
        return plan

    def apply(self, plan, ids, labels):
        assert len(plan.slots) == len(plan.rows) == len(plan)
        assert len(np.unique(plan.slots)) == len(plan.slots)
        assert (np.diff(plan.rows) > 0).all()
        assert not set(plan.slots.tolist()) & set(plan.freed.tolist())
        assert (plan.slots < self.slots.capacity).all()
        assert (self.slots.labels[plan.freed] >= 0).all()
        for column, values in ((self.slots.labels, labels), (self.slots.ids, ids)):
            column[plan.freed] = -1
            column[plan.slots] = values[plan.rows]
        held = self.ids
        assert len(held) <= self.slots.capacity
        assert len(set(held)) == len(held)

    @property
    def ids(self):
        return self.slots.ids[self.slots.filled].tolist()

    @property
    def sizes(self):
        return Counter(self.slots.labels[self.slots.filled].tolist())


def rules():
    return {
        "random": ClassBalanced,
        "last": lambda rng: ClassBalanced(rng, order="last"),
        "reservoir": Reservoir,
        "ring": lambda rng: Ring(),
        "ring-3": lambda rng: Ring(per_class=3),
        "greedy": Greedy,
    }


batches_of_labels = st.lists(st.lists(st.integers(0, 6), max_size=30), min_size=1, max_size=8)


@pytest.mark.parametrize("name", rules())
@settings(max_examples=60, deadline=None)
@given(batches=batches_of_labels, capacity=st.integers(1, 25), seed=st.integers(0, 5))
def test_every_plan_keeps_the_budget_and_moves_nothing_that_stays(name, batches, capacity, seed):
    memory, first = Memory(rules()[name](generator(seed, "admission")), capacity), 0
    for labels in batches:
        before = dict(zip(memory.slots.ids.tolist(), range(capacity), strict=True))
        memory.feed(range(first, first + len(labels)), labels)
        first += len(labels)
        after = dict(zip(memory.slots.ids.tolist(), range(capacity), strict=True))
        stayed = (set(before) & set(after)) - {-1}
        assert all(before[sample] == after[sample] for sample in stayed)
        if name not in ("ring", "ring-3", "greedy"):
            assert len(memory.ids) == min(first, capacity)


@settings(max_examples=100, deadline=None)
@given(batches=batches_of_labels, capacity=st.integers(1, 25), last=st.booleans())
def test_class_sizes_differ_by_at_most_one_where_supply_allows(batches, capacity, last):
    order = "last" if last else "random"
    memory, first = Memory(ClassBalanced(generator(0, "admission"), order), capacity), 0
    for labels in batches:
        supply = memory.sizes + Counter(labels)
        memory.feed(range(first, first + len(labels)), labels)
        first += len(labels)
        # a class below the largest one by more than one has given all it had
        largest = max(memory.sizes.values(), default=0)
        for label, count in supply.items():
            assert memory.sizes[label] >= min(count, largest - 1)


def test_ten_experiences_share_500_slots():
    memory = Memory(ClassBalanced(generator(0, "admission")), 500)
    for experience in range(10):
        labels = np.repeat(np.arange(10) + 10 * experience, 300)
        memory.feed(np.arange(3000) + 3000 * experience, labels)
        sizes = memory.sizes.values()
        assert sum(sizes) == 500
        assert len(sizes) == 10 * (experience + 1)
        assert max(sizes) - min(sizes) <= 1


def test_room_that_a_small_class_cannot_use_goes_to_the_others():
    memory = Memory(ClassBalanced(generator(0, "admission")), 30)
    memory.feed(range(102), [0] * 2 + [1] * 50 + [2] * 50)
    assert memory.sizes == {0: 2, 1: 14, 2: 14}


def test_more_classes_than_slots_still_keeps_the_budget():
    memory = Memory(ClassBalanced(generator(0, "admission")), 5)
    memory.feed(range(40), np.repeat(np.arange(8), 5))
    assert sorted(memory.sizes.values()) == [1] * 5


def test_order_last_is_the_papers_er():
    """The last m of each new class; old classes drop from the front (against plain lists)."""
    memory = Memory(ClassBalanced(generator(0, "admission"), order="last"), 24)
    expected, first = {}, 0
    for experience in range(4):  # 2, 4, 6, 8 classes: 24 divides evenly by all
        share = 24 // (2 * (experience + 1))
        labels = np.tile([2 * experience, 2 * experience + 1], 20)
        ids = np.arange(40) + first
        memory.feed(ids, labels)
        expected = {label: kept[-share:] for label, kept in expected.items()}
        for label in set(labels.tolist()):
            expected[label] = ids[labels == label][-share:].tolist()
        first += 40
        assert sorted(memory.ids) == sorted(chain(*expected.values()))


def test_a_swapped_slot_keeps_its_place_in_the_order():
    memory = Memory(ClassBalanced(generator(0, "admission"), order="last"), 4)
    memory.feed([0, 1, 2, 3], [0, 0, 0, 0])
    memory.slots.ids[:] = [90, 80, 70, 60]  # swaps exchange samples, not ages
    memory.feed([10, 11, 12], [1, 1, 1])
    assert set(memory.ids) == {70, 60, 11, 12}


def test_a_class_that_returns_is_a_uniform_sample_of_all_its_samples():
    """Chi-square over 60 samples that came in three batches: each is kept 10 times of 60."""
    counts = np.zeros(60)
    for seed in range(3000):
        memory = Memory(ClassBalanced(generator(seed, "admission")), 20)
        memory.feed(range(1000, 1050), [1] * 50)
        memory.feed(range(30), [0] * 30)
        memory.feed(range(2000, 2010), [1] * 10)
        memory.feed(range(30, 40), [0] * 10)
        memory.feed(range(40, 60), [0] * 20)
        assert memory.sizes == {0: 10, 1: 10}
        kept = [sample for sample in memory.ids if sample < 60]
        counts[kept] += 1
    assert_uniform(counts, 3000 * 10 / 60)


def test_reservoir_odds_are_even_whatever_the_batches():
    counts = np.zeros(40)
    for seed in range(4000):
        memory = Memory(Reservoir(generator(seed, "admission")), 8)
        cuts = np.random.default_rng(seed).integers(0, 41, 3)
        for rows in np.split(np.arange(40), np.sort(cuts)):
            memory.feed(rows, np.zeros(len(rows)))
        assert len(memory.ids) == 8
        counts[memory.ids] += 1
    assert_uniform(counts, 4000 * 8 / 40)


def assert_uniform(counts, expected):
    """Chi-square with a limit at about p = 0.001 (normal approximation of the quantile)."""
    freedom = len(counts) - 1
    statistic = float(((counts - expected) ** 2 / expected).sum())
    assert statistic < freedom + 3.1 * np.sqrt(2 * freedom) + 4


def test_reservoir_in_batches_is_algorithm_r_sample_by_sample():
    """Same draws, same memory: later samples of a batch push earlier ones out."""
    for seed in range(50):
        memory = Memory(Reservoir(generator(seed, "admission")), 5)
        rng, slots, first = generator(seed, "admission"), {}, 0
        for size in (3, 10, 1, 25):
            draws = rng.integers(0, first + np.arange(size), endpoint=True)
            for offset, draw in enumerate(draws.tolist()):
                sample = first + offset
                if sample < 5:
                    slots[sample] = sample
                elif draw < 5:
                    slots[draw] = sample
            memory.feed(np.arange(size) + first, np.zeros(size))
            first += size
            assert memory.slots.ids.tolist() == [slots.get(slot, -1) for slot in range(5)]


def test_ring_is_a_fifo_of_m_samples_a_class():
    rng, memory = np.random.default_rng(0), Memory(Ring(per_class=3), 30)
    buffers = [deque(maxlen=3) for _ in range(5)]
    for step in range(40):
        labels = rng.integers(0, 5, 7)
        ids = np.arange(7) + 7 * step
        memory.feed(ids, labels)
        for sample, label in zip(ids.tolist(), labels.tolist(), strict=True):
            buffers[label].append(sample)
        assert sorted(memory.ids) == sorted(chain(*buffers))


def test_ring_shrinks_as_classes_come_and_lends_nothing():
    memory = Memory(Ring(), 12)
    memory.feed(range(20), [0] * 20)
    assert memory.ids == list(range(8, 20))
    memory.feed(range(20, 22), [1] * 2)
    assert memory.sizes == {0: 6, 1: 2}
    assert sorted(memory.ids) == [*range(14, 20), 20, 21]


def test_ring_with_more_classes_than_slots_keeps_the_newest_classes():
    memory = Memory(Ring(), 3)
    for label in range(6):
        memory.feed([label], [label])
    assert sorted(memory.ids) == [3, 4, 5]


@pytest.mark.parametrize("name", rules())
def test_resident_and_repeated_ids_are_not_admitted_twice(name):
    memory = Memory(rules()[name](generator(0, "admission")), 6)
    memory.feed([1, 2, 3], [0, 1, 0])
    plan = memory.feed([1, 2, 3, 4, 4], [0, 1, 0, 1, 1])
    assert plan.rows.tolist() == [3]
    assert sorted(memory.ids) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", rules())
def test_an_empty_batch_changes_nothing(name):
    memory = Memory(rules()[name](generator(0, "admission")), 6)
    assert len(memory.feed([], [])) == 0
    memory.feed(range(20), [0, 1] * 10)
    before = memory.slots.ids.copy()
    plan = memory.feed([], [])
    assert (len(plan), len(plan.freed)) == (0, 0)
    assert (memory.slots.ids == before).all()


@pytest.mark.parametrize("name", ["random", "last", "reservoir", "ring"])
def test_an_empty_batch_shrinks_a_memory_that_lost_capacity(name):
    memory = Memory(rules()[name](generator(0, "admission")), 20)
    memory.feed(range(100), [0, 1] * 50)
    memory.slots.capacity = 10
    plan = memory.feed([], [])
    assert len(plan.freed) == 10
    if name != "reservoir":
        assert memory.sizes == {0: 5, 1: 5}


@pytest.mark.parametrize("name", rules())
def test_a_restored_rule_goes_on_as_the_first_would(name):
    rng = np.random.default_rng(4)
    memory = Memory(rules()[name](generator(0, "admission")), 15)
    for step in range(5):
        memory.feed(np.arange(10) + 10 * step, rng.integers(0, 4, 10))

    other = Memory(rules()[name](generator(77, "other")), 15)
    other.rule.load_state_dict(through_a_file(memory.rule.state_dict()))
    other.slots.ids[:] = memory.slots.ids
    other.slots.labels[:] = memory.slots.labels
    for step in range(5, 12):
        labels = rng.integers(0, 6, 10)
        memory.feed(np.arange(10) + 10 * step, labels)
        other.feed(np.arange(10) + 10 * step, labels)
        assert (memory.slots.ids == other.slots.ids).all()


def through_a_file(state):
    file = BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def test_a_seed_repeats_and_another_differs():
    held = []
    for seed in (1, 1, 2):
        memory = Memory(ClassBalanced(generator(seed, "admission")), 20)
        memory.feed(range(200), [0, 1] * 100)
        held.append(memory.ids)
    assert held[0] == held[1] != held[2]


@given(
    supply=st.lists(st.integers(0, 40), min_size=1, max_size=12),
    budget=st.integers(1, 120),
    seed=st.integers(0, 3),
)
def test_water_fill_is_the_fairest_share(supply, budget, seed):
    supply = np.array(supply)
    target = water_fill(supply, budget, supply // 2, np.random.default_rng(seed))
    assert target.sum() == min(budget, supply.sum())
    assert (target <= supply).all()
    short = target < supply
    if short.any():
        assert target[short].min() >= target.max() - 1


def test_a_remainder_stays_with_the_classes_that_hold_it():
    held = np.array([3, 4, 3, 4, 3])
    for seed in range(20):
        target = water_fill(held + 10, 17, held, np.random.default_rng(seed))
        assert target.tolist() == held.tolist()


def test_first_of_each_takes_the_smallest_keys_of_each_class():
    codes, key = np.array([0, 1, 0, 1, 0, 2]), np.array([5, 1, 3, 0, 4, 9])
    assert first_of_each(codes, np.array([2, 1, 0]), key).tolist() == [2, 3, 4]


def test_rules_by_name():
    rng = generator(0, "admission")
    for name in ADMISSIONS:
        make_admission(name, rng).plan(
            Memory(None, 3).slots, np.arange(2), np.zeros(2, np.int64), np.zeros(2, np.int64)
        )
    ring = Ring(per_class=2)
    assert make_admission(ring, rng) is ring


def test_samples_are_counted_beyond_what_numpy_draws_from():
    rule = ClassBalanced(generator(0, "admission"))
    memory = Memory(rule, 4)
    memory.feed(range(8), [0] * 8)
    rule.load_state_dict({**rule.state_dict(), "seen": {0: 3 * 10**9}})
    memory.feed(range(8, 50), [0] * 42)
    assert (memory.slots.ids < 8).all()


NONE = np.empty(0, np.int64)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "a NoneType"),
        (Assignment(np.array([0, 0]), np.array([0, 1]), NONE), "slots twice"),
        (Assignment(np.array([0, 1]), np.array([2, 2]), NONE), "rows twice"),
        (Assignment(np.array([9]), np.array([0]), NONE), "slots beyond the 5"),
        (Assignment(np.array([-1]), np.array([0]), NONE), "slots beyond the 5"),
        (Assignment(np.array([0]), np.array([8]), NONE), "rows beyond the 4"),
        (Assignment(np.array([0, 1]), np.array([0]), NONE), "2 slots for 1 rows"),
        (Assignment(np.array([0]), np.array([0]), np.array([0])), "frees and fills"),
        (Assignment(np.array([0.0]), np.array([0]), NONE), "no list of whole numbers"),
        (Assignment(np.array([0]), np.array([3]), NONE), "a sample twice"),
    ],
)
def test_plans_of_a_rule_of_ones_own_are_checked(answer, message):
    class Own:
        def plan(self, slots, ids, labels, tasks):
            return answer

        def state_dict(self):
            return {"own": 1}

        def load_state_dict(self, state):
            self.state = state

    own = Own()
    memory = Memory(make_admission(own, generator(0, "admission")), 5)
    memory.slots.ids[4], memory.slots.labels[4] = 13, 0
    with pytest.raises(BadInputError, match=message):
        memory.feed([10, 11, 12, 13], [0, 0, 0, 0])
    answer = Assignment(np.array([1]), np.array([2]), np.array([4]))
    assert memory.feed([10, 11, 12, 13], [0, 0, 0, 0]) is answer
    memory.rule.load_state_dict(memory.rule.state_dict())
    assert own.state == {"own": 1}


def test_bad_rules_are_refused():
    rng = generator(0, "admission")
    with pytest.raises(BadInputError, match="did you mean reservoir"):
        make_admission("resevoir", rng)
    with pytest.raises(BadInputError, match="admission is a int"):
        make_admission(3, rng)
    with pytest.raises(BadInputError, match="order is 'first'"):
        ClassBalanced(rng, order="first")
    with pytest.raises(BadInputError, match="per_class is 0"):
        Ring(per_class=0)


def reference_greedy(stream, capacity):
    """Algorithm 1 of GDumb with lists; who of the largest class leaves is left open."""
    counts, seen = Counter(), set()
    for label in stream:
        seen.add(label)
        if counts[label] < capacity / len(seen):
            if sum(counts.values()) >= capacity:
                counts[max(sorted(counts), key=counts.__getitem__)] -= 1
            counts[label] += 1
    return +counts


class TestGreedy:
    def memory(self, capacity, seed=0):
        return Memory(make_admission("greedy", generator(seed, "admission")), capacity)

    def test_a_stream_counted_by_hand(self):
        memory, first = self.memory(6), 0
        for label, expected in [
            ([0] * 7, {0: 6}),  # one class, share 6: the seventh stays out
            ([1], {0: 5, 1: 1}),  # share 3
            ([1, 1, 1], {0: 3, 1: 3}),  # the fourth of class 1 finds its share full
            ([0], {0: 3, 1: 3}),
            ([2], {0: 2, 1: 3, 2: 1}),  # share 2; of two largest the lower label gives
            ([2, 2], {0: 2, 1: 2, 2: 2}),
            ([0, 1, 2], {0: 2, 1: 2, 2: 2}),
            ([3], {0: 1, 1: 2, 2: 2, 3: 1}),  # share 1.5
            ([3, 3], {0: 1, 1: 1, 2: 2, 3: 2}),
            ([0], {0: 2, 1: 1, 2: 1, 3: 2}),
        ]:
            memory.feed(range(first, first + len(label)), label)
            first += len(label)
            assert memory.sizes == expected

    @settings(max_examples=150, deadline=None)
    @given(batches=batches_of_labels, capacity=st.integers(1, 25), seed=st.integers(0, 5))
    def test_batches_give_what_the_algorithm_gives_sample_by_sample(self, batches, capacity, seed):
        memory, stream = self.memory(capacity, seed), []
        for labels in batches:
            before = memory.sizes
            memory.feed(range(len(stream), len(stream) + len(labels)), labels)
            stream += labels
            assert memory.sizes == reference_greedy(stream, capacity)
            share = -(-capacity // max(1, len(set(stream[: len(stream) - len(labels)]))))
            assert all(memory.sizes[each] <= max(before[each], share) for each in set(stream))

    def test_it_is_balanced_at_the_end_of_a_long_stream(self):
        memory = self.memory(50)
        for experience in range(5):
            labels = np.repeat([2 * experience, 2 * experience + 1], 200)
            memory.feed(np.arange(400) + 400 * experience, labels)
            assert set(memory.sizes.values()) <= {
                50 // (2 * experience + 2),
                -(-50 // (2 * experience + 2)),
            }
        assert len(memory.sizes) == 10

    def test_whoever_leaves_is_drawn_evenly(self):
        stayed = Counter()
        for seed in range(1000):
            memory = self.memory(8, seed)
            memory.feed(range(8), [0] * 8)
            memory.feed(range(8, 12), [1] * 4)
            stayed.update(sample for sample in memory.ids if sample < 8)
        counts = np.array([stayed[sample] for sample in range(8)])
        assert counts.sum() == 4000
        assert ((counts - 500) ** 2 / 250).sum() < 35  # p about 1e-4

    def test_it_shrinks_from_the_largest_class(self):
        memory = self.memory(12)
        memory.feed(range(12), [0] * 7 + [1] * 3 + [2] * 2)
        assert memory.sizes == {0: 7, 1: 3, 2: 2}
        memory.slots.capacity = 6
        plan = memory.rule.plan(memory.slots, NONE, NONE, NONE)
        assert Counter(memory.slots.labels[plan.freed].tolist()) == {0: 5, 1: 1}

    def test_samples_that_are_here_are_not_offered_twice(self):
        memory = self.memory(4)
        memory.feed(range(2), [0, 0])
        assert len(memory.feed([0, 1, 5, 5], [0, 0, 0, 0])) == 1

    def test_it_goes_on_from_its_state(self):
        whole, parts = self.memory(10, 7), self.memory(10, 7)
        for memory in (whole, parts):
            memory.feed(range(30), [0, 1, 2] * 10)
            memory.feed([99], [9])
        parts.rule = make_admission("greedy", generator(0, "other"))
        parts.rule.load_state_dict(through_a_file(whole.rule.state_dict()))
        for memory in (whole, parts):
            memory.feed(range(100, 140), [3, 4, 0, 9] * 10)
        assert whole.ids == parts.ids

    def test_classes_that_were_seen_count_though_they_left(self):
        memory = self.memory(2)
        memory.feed(range(6), [0, 1, 2, 3, 0, 1])
        assert len(memory.rule.state_dict()["seen"]) == 4
        assert len(memory.ids) == 2
