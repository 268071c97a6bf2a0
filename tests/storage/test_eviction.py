import json
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from carousel.errors import BadInputError
from carousel.storage.eviction import ClassReservoir, Fifo, Limits, Reject, make_eviction
from carousel.storage.index import Index

RULES = ["class-reservoir", "fifo", "reject"]


def feed(index, rule, ids, labels, limits, lengths=1):
    """One group commit: plan, evict, store. Returns the plan."""
    ids, labels = np.asarray(ids, np.int64), np.asarray(labels, np.int64)
    lengths = np.broadcast_to(np.asarray(lengths, np.int64), ids.shape)
    plan = rule.plan(index, labels, lengths, limits)
    assert index.contains(plan.evict).all()
    assert len(np.unique(plan.evict)) == len(plan.evict)
    index.remove(plan.evict)
    kept = plan.accept
    index.add(ids[kept], labels[kept], ids[kept] * 0, lengths[kept])
    return plan


def stream(labels, rule, limits, batch=16, lengths=1):
    index = Index()
    lengths = np.broadcast_to(lengths, len(labels))
    for start in range(0, len(labels), batch):
        end = min(len(labels), start + batch)
        part = slice(start, end)
        feed(index, rule, np.arange(start, end), labels[part], limits, lengths[part])
    return index


@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=80),
    lengths=st.lists(st.integers(1, 40), min_size=80, max_size=80),
    records=st.one_of(st.none(), st.integers(1, 30)),
    size=st.one_of(st.none(), st.integers(5, 400)),
    batch=st.integers(1, 20),
    name=st.sampled_from(RULES),
    pins=st.lists(st.integers(0, 79), max_size=10),
    seed=st.integers(0, 5),
)
@settings(max_examples=200, deadline=None)
def test_limits_hold_at_every_commit_and_pinned_ids_stay(
    labels, lengths, records, size, batch, name, pins, seed
):
    index, rule, limits = Index(), make_eviction(name, seed), Limits(records, size)
    pins = np.array(pins, np.int64)
    index.pin(pins)
    ids, labels, lengths = np.arange(len(labels)), np.array(labels), np.array(lengths)
    for start in range(0, len(ids), batch):
        part = slice(start, start + batch)
        held = pins[index.contains(pins)]
        feed(index, rule, ids[part], labels[part], limits, lengths[: len(ids)][part])
        assert records is None or len(index) <= records
        assert size is None or index.total_length <= size
        assert index.contains(held).all()


@pytest.mark.parametrize("limits", [Limits(max_records=23), Limits(max_bytes=23 * 4096)])
@pytest.mark.parametrize("classes", [1, 3, 5, 23, 40])
def test_with_enough_supply_classes_differ_by_at_most_one_and_no_place_is_wasted(limits, classes):
    labels = np.random.default_rng(classes).permutation(np.arange(classes * 60) % classes)
    index = stream(labels, ClassReservoir(3), limits, lengths=4096)
    counts = [index.class_counts().get(c, 0) for c in range(classes)]
    assert sum(counts) == 23
    assert max(counts) - min(counts) <= 1


def test_classes_stay_equal_when_they_come_one_after_the_other():
    labels = np.repeat(np.arange(7), 100)
    index = stream(labels, ClassReservoir(0), Limits(max_records=50))
    assert sorted(index.class_counts().values()) == [7] * 6 + [8]


def test_a_scarce_class_leaves_its_places_to_the_others():
    labels = np.r_[np.zeros(3, int), np.ones(100, int), np.full(100, 2)]
    index = stream(labels, ClassReservoir(0), Limits(max_records=23))
    assert index.class_counts() == {0: 3, 1: 10, 2: 10}


def chi_square_p(labels, keep, limits, batch, repetitions):
    """How likely the survivors of class 0 are, were they a uniform choice of its arrivals."""
    arrivals = np.flatnonzero(labels == 0)
    kept = np.zeros(len(labels))
    for seed in range(repetitions):
        ids = stream(labels, ClassReservoir(seed), limits, batch).ids_of(0)
        assert len(ids) == keep
        kept[ids] += 1
    n = len(arrivals)
    expected = repetitions * keep / n
    # Counts of a draw without replacement vary less than those of a multinomial.
    statistic = ((kept[arrivals] - expected) ** 2).sum() / expected * (n - 1) / (n - keep)
    return chi2.sf(statistic, n - 1)


@pytest.mark.parametrize(("batch", "repetitions"), [(1, 150), (7, 500), (64, 500)])
def test_survivors_of_one_class_are_uniform_over_arrival_order(batch, repetitions):
    labels = np.zeros(60, int)
    assert chi_square_p(labels, 15, Limits(max_records=15), batch, repetitions) > 0.01


def test_survivors_are_uniform_also_after_later_classes_took_their_share():
    labels = np.repeat([0, 1, 2, 3], 40)
    assert chi_square_p(labels, 5, Limits(max_records=20), 32, 500) > 0.01


def test_survivors_are_uniform_in_interleaved_classes_under_a_byte_limit():
    assert chi_square_p(np.arange(60) % 2, 6, Limits(max_bytes=12), 9, 500) > 0.01


def test_a_newcomer_of_a_class_at_its_share_enters_with_probability_q_over_seen():
    entered = 0
    for seed in range(2000):
        rule, index = ClassReservoir(seed), Index()
        feed(index, rule, np.arange(29), np.zeros(29, int), Limits(max_records=6))
        entered += int(feed(index, rule, [29], [0], Limits(max_records=6)).accept[0])
    assert abs(entered / 2000 - 6 / 30) < 0.03


def test_arrivals_are_counted_beyond_what_numpy_draws_from():
    rule, index = ClassReservoir(0), Index()
    limits = Limits(max_records=6)
    feed(index, rule, np.arange(6), np.zeros(6, int), limits)
    rule.load_state_dict({**rule.state_dict(), "seen": [[0, 3 * 10**9]]})
    feed(index, rule, np.arange(6, 60), np.zeros(54, int), limits)
    assert len(index) == 6
    assert rule.state_dict()["seen"] == [[0, 3 * 10**9 + 54]]


def test_a_class_above_its_share_loses_random_unpinned_records():
    lost = Counter()
    for seed in range(600):
        rule, index = ClassReservoir(seed), Index()
        limits = Limits(max_records=10)
        index.pin(np.array([0, 1]))
        feed(index, rule, np.arange(10), np.zeros(10, int), limits)
        plan = feed(index, rule, np.arange(10, 15), np.ones(5, int), limits)
        assert plan.accept.all()
        lost.update(plan.evict.tolist())
    assert lost.keys() == set(range(2, 10))
    expected = 600 * 5 / 8
    assert all(abs(count - expected) < 4.5 * np.sqrt(expected * 3 / 8) for count in lost.values())


def test_more_classes_than_places_take_part_in_a_fair_lottery():
    kept = np.zeros(20)
    for seed in range(400):
        index = stream(np.arange(100) % 20, ClassReservoir(seed), Limits(max_records=5), batch=20)
        assert max(index.class_counts().values()) == 1
        kept[list(index.class_counts())] += 1
    assert abs(kept - 100).max() < 4.5 * np.sqrt(400 * 0.25 * 0.75)


def test_hidden_records_count_and_may_leave():
    rule, index, limits = ClassReservoir(0), Index(), Limits(max_records=10)
    feed(index, rule, np.arange(10), np.zeros(10, int), limits)
    index.hide_from(0)
    feed(index, rule, np.arange(10, 15), np.ones(5, int), limits)
    assert len(index) == 10
    assert index.class_counts() == {1: 5}


def test_when_everything_is_pinned_newcomers_stay_outside():
    for rule in (ClassReservoir(0), Fifo()):
        index, limits = Index(), Limits(max_records=4)
        feed(index, rule, np.arange(4), np.zeros(4, int), limits)
        index.pin(np.arange(4))
        plan = feed(index, rule, [5], [1], limits)
        assert not plan.accept.any()
        assert len(plan.evict) == 0


@pytest.mark.parametrize("name", RULES)
def test_a_record_larger_than_the_budget_makes_the_tier_full_but_not_its_neighbours(name):
    plan = feed(Index(), make_eviction(name), [0, 1], [0, 0], Limits(max_bytes=10), [5, 11])
    assert plan.full
    assert plan.accept.tolist() == [True, False]


def test_fifo_keeps_the_latest():
    index = stream(np.zeros(100, int), Fifo(), Limits(max_records=7), batch=33)
    assert index.ids_of(0).tolist() == list(range(93, 100))
    index = stream(np.zeros(50, int), Fifo(), Limits(max_bytes=100), batch=8, lengths=30)
    assert index.ids_of(0).tolist() == [47, 48, 49]


def test_reject_keeps_the_first_and_says_that_it_is_full():
    index, rule = Index(), Reject()
    assert not feed(index, rule, np.arange(5), np.zeros(5, int), Limits(max_records=7)).full
    plan = feed(index, rule, np.arange(5, 10), np.zeros(5, int), Limits(max_records=7))
    assert plan.full
    assert index.ids_of(0).tolist() == list(range(7))


def test_a_rule_goes_on_from_its_state_as_if_it_had_never_stopped():
    limits = Limits(max_records=12)
    labels = np.random.default_rng(1).integers(0, 4, 200)
    ids = np.arange(200)
    index, rule = Index(), ClassReservoir(7)
    feed(index, rule, ids[:100], labels[:100], limits)
    resumed = ClassReservoir(99)
    resumed.load_state_dict(json.loads(json.dumps(rule.state_dict())))
    once = rule.plan(index, labels[100:], labels[100:] * 0 + 1, limits)
    again = resumed.plan(index, labels[100:], labels[100:] * 0 + 1, limits)
    assert np.array_equal(once.accept, again.accept)
    assert np.array_equal(once.evict, again.evict)
    assert rule.state_dict() == resumed.state_dict()


def test_the_state_of_another_rule_is_refused():
    with pytest.raises(BadInputError, match="'fifo', not 'reject'"):
        Reject().load_state_dict(Fifo().state_dict())


def test_a_forgotten_class_starts_anew():
    rule, index, limits = ClassReservoir(0), Index(), Limits(max_records=4)
    feed(index, rule, np.arange(400), np.zeros(400, int), limits)
    index.remove(index.ids_of(0))
    rule.forget([0])
    assert rule.state_dict()["seen"] == []


def test_an_unknown_rule_is_refused():
    with pytest.raises(BadInputError, match="lifo"):
        make_eviction("lifo")
