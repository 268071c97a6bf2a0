from __future__ import annotations

from math import inf, sqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carousel.report.study.statistics import mean_interval, paired_gain

T_975_2 = 4.302652729911275  # Student's t, 97.5 %, 2 degrees of freedom: any table


def test_interval_of_three_values_by_hand():
    found = mean_interval([1.0, 2.0, 3.0])
    assert (found.mean, found.count) == (2.0, 3)
    assert found.half == pytest.approx(T_975_2 / sqrt(3))
    assert (found.low, found.high) == (2 - found.half, 2 + found.half)


def test_nothing_has_no_mean_and_one_value_no_interval():
    assert mean_interval([]) is None
    found = mean_interval([0.5])
    assert (found.mean, found.half, found.known) == (0.5, inf, False)


def test_gain_is_paired_by_seed_so_what_a_seed_does_to_both_drops_out():
    plain, treated = {0: 0.1, 1: 0.5, 2: 0.9}, {0: 0.2, 1: 0.7, 2: 1.2}
    found = paired_gain(treated, plain)
    assert found.mean == pytest.approx(0.2)
    assert found.half == pytest.approx(T_975_2 * 0.1 / sqrt(3))


def test_seeds_without_a_partner_do_not_count():
    assert paired_gain({0: 0.5, 7: 0.0}, {0: 0.25, 1: 0.9}).mean == 0.25
    assert paired_gain({0: 0.5}, {1: 0.5}) is None


def test_the_interval_holds_the_true_mean_19_times_in_20():
    rng = np.random.default_rng(0)
    draws = rng.normal(3.0, 2.0, (2000, 5))
    held = sum(found.low <= 3 <= found.high for found in map(mean_interval, draws))
    assert 0.935 < held / 2000 < 0.965


@given(st.lists(st.floats(-1, 1), min_size=2, max_size=8), st.floats(-5, 5))
def test_the_interval_moves_with_the_values(values, shift):
    one, other = mean_interval(values), mean_interval([v + shift for v in values])
    assert other.mean == pytest.approx(one.mean + shift, abs=1e-9)
    assert other.half == pytest.approx(one.half, abs=1e-9)
