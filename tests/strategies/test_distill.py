"""The weight of distillation: what is understood, and what it amounts to."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from carousel.errors import BadInputError
from carousel.strategies.distill import parse_distill_weight, weights


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("original", "original"),
        ("incremental", "incremental"),
        (0, 0.0),
        (1, 1.0),
        (0.25, 0.25),
        ("0.25", 0.25),
    ],
)
def test_words_and_numbers_are_understood(given, meant):
    assert parse_distill_weight(given) == meant


@pytest.mark.parametrize("given", ["orginal", -0.1, 1.1, float("nan"), "nan", True, None, [0.5]])
def test_anything_else_is_refused(given):
    with pytest.raises(BadInputError, match=r"distill_weight is .*incremental"):
        parse_distill_weight(given)


def test_factors_by_hand():
    assert weights("original", 3, 4) is None
    assert weights("incremental", 3, 4) == (0.75, 0.25)
    assert weights(0.1, 3, 4) == (0.1, 0.9)
    assert weights(0.0, 3, 4) == (0.0, 1.0)


@given(st.integers(0, 100), st.integers(0, 100), st.floats(0, 1))
def test_factors_share_one(old, new, value):
    for weight in (value, "incremental"):
        distill, hard = weights(weight, old, old + new)
        assert distill + hard == pytest.approx(1)
        assert min(distill, hard) >= 0
        if old == 0:
            assert (distill, hard) == (0, 1)
