import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carousel.data import ArrayDataset, class_incremental, domain_incremental, make_stream
from carousel.errors import BadInputError


def numbered(y, **fields):
    """A data set whose every sample is its own number."""
    x = np.arange(len(y), dtype=np.float32)[:, None]
    return ArrayDataset.of(x, y, **fields)


def numbers(splits):
    return [int(value) for split in splits for value in split.x[:, 0, 0, 0]]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 8), min_size=2, max_size=60),
    st.integers(1, 9),
    st.integers(0, 3),
)
def test_every_sample_appears_exactly_once_by_class(labels, experiences, seed):
    kinds, counts = np.unique(labels, return_counts=True)
    if counts.min() < 2 or experiences > len(kinds):
        return
    stream = class_incremental(numbered(labels), experiences, seed=seed)
    assert sorted(numbers((*stream.train, *stream.test))) == list(range(len(labels)))
    classes = [label for split in stream.train for label in split.classes]
    assert sorted(classes) == list(range(len(kinds)))


@settings(deadline=None, max_examples=60)
@given(st.integers(2, 40), st.integers(1, 6), st.integers(0, 3))
def test_every_sample_appears_exactly_once_by_domain(groups, experiences, seed):
    if experiences > groups:
        return
    group = np.arange(groups * 12) % groups
    data = numbered(np.arange(groups * 12) // groups % 3, group=group)
    stream = domain_incremental(data, experiences, seed=seed)
    assert sorted(numbers((*stream.train, *stream.test))) == list(range(len(data)))
    seen = [set(group[numbers([split])]) for split in stream.train]
    assert sum(map(len, seen)) == len(set.union(*seen))
    assert max(map(len, seen)) - min(map(len, seen)) <= 1


def test_no_held_out_group_is_trained_on():
    group = np.arange(240) % 24
    data = numbered(np.arange(240) // 24 % 5, group=group)
    for make in (class_incremental, domain_incremental):
        stream = make(data, 3)
        assert stream.meta["test_set"] == "held-out groups"
        trained, tested = (set(group[numbers(part)]) for part in (stream.train, stream.test))
        assert not trained & tested
        assert len(tested) == 4


def test_few_groups_are_tested_on_their_own_samples():
    group = np.arange(120) % 4
    stream = domain_incremental(numbered(np.arange(120) // 4 % 3, group=group), 4)
    for split, tested in zip(stream.train, stream.test, strict=True):
        assert set(group[numbers([split])]) == set(group[numbers([tested])])
        assert split.classes == (0, 1, 2)


def test_a_test_set_follows_its_own_groups_or_is_dealt_evenly():
    x, y, group = np.zeros((40, 1)), np.arange(40) % 2, np.arange(40) // 10
    test = {"x_test": np.arange(20.0)[:, None], "y_test": np.arange(20) % 2}
    stream = domain_incremental(ArrayDataset.of(x, y, group=group, **test), 4)
    assert [len(split) for split in stream.test] == [5, 5, 5, 5]
    assert sorted(numbers(stream.test)) == list(range(20))
    own = ArrayDataset.of(x, y, group=group, **test, group_test=np.arange(20) // 5)
    stream = domain_incremental(own, 4, seed=None)
    assert [numbers([split]) for split in stream.test] == [
        list(range(start, start + 5)) for start in range(0, 20, 5)
    ]


def test_a_limit_leaves_the_test_samples_with_their_domain():
    group = np.arange(400) % 4
    data = numbered(np.arange(400) // 4 % 2, group=group)
    whole, small = domain_incremental(data, 4), domain_incremental(data, 4, limit=12)
    for split in range(4):
        for part in ("train", "test"):
            kept = numbers([getattr(small, part)[split]])
            assert set(kept) < set(numbers([getattr(whole, part)[split]]))
    assert sum(map(len, small.train)) == sum(map(len, small.test)) == 24


def test_natural_order():
    stream = make_stream(numbered(np.arange(60) % 6), 3, seed=None)
    assert [split.classes for split in stream.train] == [(0, 1), (2, 3), (4, 5)]


def test_the_default_number_of_experiences_fits_the_data():
    assert len(make_stream(numbered(np.arange(60) % 3)).train) == 3
    assert len(make_stream(numbered(np.arange(60) % 10)).train) == 5


def test_meta_is_plain_json():
    data = numbered(np.arange(60) % 6, meta={"license": "mine"})
    meta = make_stream(data, 3, seed=2).meta
    assert json.loads(json.dumps(meta)) == meta
    assert meta["license"] == "mine"
    assert (meta["scenario"], meta["seed"], meta["split_seed"]) == ("class", 2, 0)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"experiences": 0}, "experiences is 0"),
        ({"experiences": 7}, "from 1 to 6"),
        ({"scenario": "domain"}, "has no groups"),
        ({"scenario": "online"}, "online"),
        ({"test_fraction": 0}, "test_fraction is 0"),
        ({"test_fraction": 1.0}, "test_fraction is 1"),
        ({"limit": 0}, "limit is 0"),
        ({"seed": -1}, "seed is -1"),
        ({"split_seed": -2}, "seed is -2"),
    ],
)
def test_bad_arguments(arguments, words):
    with pytest.raises(BadInputError, match=words):
        make_stream(numbered(np.arange(60) % 6), **arguments)


def test_a_class_that_only_held_out_groups_have_is_bad_input():
    data = numbered([0, 0, 1, 1, 2, 2], group=[0, 0, 1, 1, 2, 2])
    with pytest.raises(BadInputError, match="held-out groups only"):
        class_incremental(data, 2)


def test_an_experience_without_test_samples_is_bad_input():
    with pytest.raises(BadInputError, match="0 test samples"):
        class_incremental(numbered([0, 1, 1, 1]), 2)
