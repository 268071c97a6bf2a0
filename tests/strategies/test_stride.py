"""Which samples Rainbow Memory keeps."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from carousel.strategies.stride import stride_rows


def rng(seed=0):
    return np.random.default_rng(seed)


def test_strides_by_hand():
    """Class 0: 7 samples, class 4: 5; six slots are 3 each, every 2nd and every 1st."""
    labels = np.array([0, 4, 0, 4, 0, 0, 4, 0, 4, 0, 4, 0])
    unsure = np.array([0.9, 0.1, 0.5, 0.3, 0.1, 0.7, 0.0, 0.3, 0.9, 0.2, 0.5, 0.0])
    # class 0 from sure to unsure: rows 11 (.0), 4 (.1), 9 (.2), 7 (.3), 2, 5, 0: places 0, 2, 4
    # class 4: rows 6 (.0), 1 (.1), 3 (.3), 10, 8: places 0, 1, 2
    assert stride_rows(unsure, labels, 6, rng()).tolist() == sorted([11, 9, 2, 6, 1, 3])


def test_what_is_left_over_is_filled_at_random():
    """A class of one sample leaves two places to the other, whose strides are taken before."""
    labels = np.array([1] + [2] * 9)
    unsure = np.concatenate(([0.5], np.arange(9) / 10))
    picked = [stride_rows(unsure, labels, 6, rng(seed)).tolist() for seed in range(300)]
    assert all({0, 1, 4, 7} < set(rows) for rows in picked)
    fillers = np.bincount(
        [row for rows in picked for row in rows if row not in (0, 1, 4, 7)], minlength=10
    )[[2, 3, 5, 6, 8, 9]]
    # 600 places over 6 rows, 100 each: within four standard deviations
    assert abs(fillers - 100).max() < 4 * (300 * (1 / 3) * (2 / 3)) ** 0.5


def test_equal_uncertainty_is_a_balanced_random_choice():
    labels = np.repeat([0, 1, 2], 10)
    counts = np.zeros(30)
    for seed in range(400):
        rows = stride_rows(np.zeros(30), labels, 12, rng(seed))
        assert np.bincount(labels[rows]).tolist() == [4, 4, 4]
        counts[rows] += 1
    assert abs(counts - 160).max() < 4.5 * (400 * 0.4 * 0.6) ** 0.5


def test_fewer_slots_than_classes():
    rows = stride_rows(np.zeros(9), np.arange(9), 4, rng())
    assert len(set(rows.tolist())) == 4


@settings(max_examples=150, deadline=None)
@given(
    labels=st.lists(st.integers(0, 6), min_size=1, max_size=60), slots=st.integers(1, 40),
    seed=st.integers(0, 1000), levels=st.integers(1, 12),
)  # fmt: skip
def test_budget_and_balance(labels, slots, seed, levels):
    labels = np.array(labels)
    unsure = rng(seed).integers(levels, size=len(labels)) / levels
    rows = stride_rows(unsure, labels, slots, rng(seed))
    assert len(rows) == min(slots, len(labels))
    assert (np.diff(rows) > 0).all()
    classes, counts = np.unique(labels, return_counts=True)
    held = np.array([(labels[rows] == each).sum() for each in classes])
    assert (held >= np.minimum(counts, slots // len(classes))).all()


@pytest.mark.parametrize("slots", [4, 5])
def test_all_of_few(slots):
    assert stride_rows(np.zeros(4), np.arange(4), slots, rng()).tolist() == [0, 1, 2, 3]
