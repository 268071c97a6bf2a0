"""A set of ids as ranges behaves like a set."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from carousel.storage.tombstones import Tombstones

groups = st.lists(st.lists(st.integers(0, 80), max_size=20), max_size=6)


@given(groups)
def test_it_holds_what_was_put_in_and_survives_as_bytes(parts):
    gone, expected = Tombstones(), set()
    for part in parts:
        gone = gone.with_ids(np.array(part, np.int64))
        expected |= set(part)
    ids = np.arange(82)
    for same in (gone, Tombstones.from_bytes(gone.to_bytes())):
        assert set(ids[same.contains(ids)].tolist()) == expected
    starts, ends = gone.bounds[:, 0], gone.bounds[:, 1]
    assert (starts < ends).all()
    assert (starts[1:] > ends[:-1]).all(), "ranges that touch are one"


def test_adding_leaves_the_old_set_alone():
    old = Tombstones().with_ids(np.array([1]))
    old.with_ids(np.array([2]))
    assert old.contains(np.array([1, 2])).tolist() == [True, False]


def test_a_whole_class_costs_one_range():
    assert len(Tombstones().with_ids(np.arange(10**6)).to_bytes()) == 16
