import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carousel.errors import BadInputError
from carousel.memory.replacement import NO_CANDIDATE, Uniform, make_replacement


class Stored:
    """The only part of a tier that a draw looks at."""

    def __init__(self, by_label):
        self._by_label = {label: np.array(ids, np.int64) for label, ids in by_label.items()}

    def ids_of(self, label):
        return self._by_label.get(label, np.empty(0, np.int64))


def chi_square_is_plausible(counts):
    """Against uniform; the bound is five standard deviations of the statistic."""
    counts = np.asarray(counts, float)
    expected = counts.mean()
    statistic = ((counts - expected) ** 2 / expected).sum()
    free = len(counts) - 1
    return statistic < free + 5 * np.sqrt(2 * free)


@settings(max_examples=200, deadline=None)
@given(
    stored=st.dictionaries(st.integers(0, 4), st.sets(st.integers(0, 60), max_size=30)),
    labels=st.lists(st.integers(0, 5), max_size=40),
    excluded=st.sets(st.integers(0, 400)),
    seed=st.integers(0, 2**32),
)
def test_draws_are_allowed_distinct_and_as_many_as_possible(stored, labels, excluded, seed):
    by_label = {label: sorted(label * 100 + i for i in ids) for label, ids in stored.items()}
    rng = np.random.default_rng(seed)
    drawn = Uniform().draw(Stored(by_label), np.array(labels, np.int64), excluded, rng)
    found = [int(sample) for sample in drawn if sample != NO_CANDIDATE]
    assert len(set(found)) == len(found)
    assert not set(found) & excluded
    for label in set(labels):
        allowed = set(by_label.get(label, [])) - excluded
        got = [int(drawn[i]) for i, asked in enumerate(labels) if asked == label]
        assert len([sample for sample in got if sample != NO_CANDIDATE]) == min(
            len(allowed), len(got)
        )
        assert set(got) - {NO_CANDIDATE} <= allowed


@pytest.mark.parametrize("share_excluded", [0.1, 0.5, 0.95])
def test_every_allowed_sample_is_equally_likely(share_excluded):
    ids = np.arange(200)
    excluded = set(ids[: int(200 * share_excluded)].tolist())
    rng = np.random.default_rng(1)
    counts = np.zeros(200)
    for _ in range(4000):
        drawn = Uniform().draw(Stored({0: ids}), np.zeros(5, np.int64), excluded, rng)
        counts[drawn] += 1
    assert counts[list(excluded)].sum() == 0
    assert chi_square_is_plausible(np.delete(counts, list(excluded)))


def test_the_last_candidate_is_found():
    excluded = set(range(9_999))
    rng = np.random.default_rng(0)
    drawn = Uniform().draw(Stored({3: np.arange(10_000)}), np.array([3, 3]), excluded, rng)
    assert sorted(drawn.tolist()) == [NO_CANDIDATE, 9_999]


def test_the_same_seed_draws_the_same():
    labels = np.random.default_rng(5).integers(0, 3, 50)
    tier = Stored({label: np.arange(label * 1000, label * 1000 + 300) for label in range(3)})
    draws = [
        Uniform().draw(tier, labels, {1, 2, 1005}, np.random.default_rng(9)).tolist()
        for _ in range(2)
    ]
    assert draws[0] == draws[1]


def test_rules_by_name():
    rule = Uniform()
    assert make_replacement(rule) is rule
    assert isinstance(make_replacement("uniform"), Uniform)
    with pytest.raises(BadInputError, match="replacement is 'nearest'"):
        make_replacement("nearest")
