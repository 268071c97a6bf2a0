import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carousel.data.split import cap_per_class, deal, hold_out_groups, hold_out_samples
from carousel.errors import BadInputError


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 12), min_size=2, max_size=80).filter(lambda g: len(set(g)) > 1),
    st.floats(0.01, 0.99),
    st.integers(0, 5),
)
def test_groups_stay_whole_and_every_row_has_one_side(group, fraction, seed):
    group = np.array(group)
    train, test = hold_out_groups(group, fraction, seed)
    assert sorted([*train, *test]) == list(range(len(group)))
    assert len(train)
    assert len(test)
    assert not set(group[train]) & set(group[test])


@settings(deadline=None)
@given(
    st.lists(st.integers(0, 6), min_size=1, max_size=80),
    st.floats(0.01, 0.99),
    st.integers(0, 5),
)
def test_every_stratum_gives_its_share(strata, fraction, seed):
    strata = np.array(strata)
    train, test = hold_out_samples(strata, fraction, seed)
    assert sorted([*train, *test]) == list(range(len(strata)))
    for stratum, size in zip(*np.unique(strata, return_counts=True), strict=True):
        held = (strata[test] == stratum).sum()
        assert held == (0 if size == 1 else min(max(round(fraction * size), 1), size - 1))


def test_the_seed_decides_and_nothing_else():
    group = np.repeat(np.arange(60), 3)
    first, again, other = (hold_out_groups(group, 1 / 6, seed)[1] for seed in (0, 0, 1))
    assert first.tolist() == again.tolist()
    assert first.tolist() != other.tolist()
    assert len(first) == 30


@settings(deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 9))
def test_cap_keeps_at_most_limit_of_each_class(y, limit):
    y = np.array(y)
    kept = cap_per_class(y, limit, seed=0)
    assert (np.diff(kept) > 0).all()
    for label, size in zip(*np.unique(y, return_counts=True), strict=True):
        assert (y[kept] == label).sum() == min(size, limit)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(1, 40), st.one_of(st.none(), st.integers(0, 3)))
def test_dealing_drops_nothing_and_is_even(count, experiences, seed):
    items = np.arange(count) + 5
    if experiences > count:
        with pytest.raises(BadInputError, match=f"experiences is {experiences}"):
            deal(items, experiences, seed, "classes")
        return
    hands = deal(items, experiences, seed, "classes")
    sizes = [len(hand) for hand in hands]
    assert sorted(np.concatenate(hands)) == items.tolist()
    assert max(sizes) - min(sizes) <= 1


def test_without_seed_the_order_is_natural():
    assert np.concatenate(deal(np.arange(10), 3, None, "classes")).tolist() == list(range(10))
