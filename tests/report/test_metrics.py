"""The metrics against a second, literal implementation of their definitions."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from carousel.errors import BadInputError
from carousel.report import metrics

HAND = np.array([[0.9, 0.1, 0.0], [0.6, 0.8, 0.2], [0.7, 0.5, 0.95]])
COUNTS = np.array([10, 30, 60])


def test_a_matrix_worked_out_by_hand():
    scores = metrics.score(HAND, COUNTS, initial=np.array([0.1, 0.05, 0.1]))
    assert scores.average_accuracy == pytest.approx((0.7 + 0.5 + 0.95) / 3)
    assert scores.final_accuracy == pytest.approx(0.07 + 0.15 + 0.57)
    assert scores.average_incremental_accuracy == pytest.approx((0.9 + 0.7 + 2.15 / 3) / 3)
    assert scores.forgetting == pytest.approx((0.2 + 0.3) / 2)
    assert scores.bwt == pytest.approx((-0.2 - 0.3) / 2)
    assert scores.fwt == pytest.approx(((0.1 - 0.05) + (0.2 - 0.1)) / 2)
    assert scores.learning_accuracy == pytest.approx((0.9 + 0.8 + 0.95) / 3)


def literal(rows, counts, initial):
    """Loops over Python lists, straight from the sentences of the definitions."""
    t = len(rows)
    last = rows[t - 1]
    aia = sum(sum(rows[i][j] for j in range(i + 1)) / (i + 1) for i in range(t)) / t
    forgotten, transfer, forward = [], [], []
    for j in range(t - 1):
        best = max(rows[i][j] for i in range(t - 1))
        forgotten.append(best - last[j])
        transfer.append(last[j] - rows[j][j])
        forward.append(rows[j][j + 1] - initial[j + 1])
    return {
        "average_accuracy": sum(last) / t,
        "final_accuracy": sum(a * n for a, n in zip(last, counts, strict=True)) / sum(counts),
        "average_incremental_accuracy": aia,
        "forgetting": sum(forgotten) / len(forgotten) if forgotten else 0.0,
        "bwt": sum(transfer) / len(transfer) if transfer else 0.0,
        "fwt": sum(forward) / len(forward) if forward else 0.0,
        "learning_accuracy": sum(rows[i][i] for i in range(t)) / t,
    }


accuracy = st.floats(0, 1, allow_nan=False)


@given(st.data())
def test_agrees_with_the_literal_definitions(data):
    t = data.draw(st.integers(1, 6))
    rows = data.draw(st.lists(st.lists(accuracy, min_size=t, max_size=t), min_size=t, max_size=t))
    counts = data.draw(st.lists(st.integers(1, 1000), min_size=t, max_size=t))
    initial = data.draw(st.lists(accuracy, min_size=t, max_size=t))
    got = metrics.score(np.array(rows), np.array(counts), np.array(initial))
    for name, value in literal(rows, counts, initial).items():
        assert getattr(got, name) == pytest.approx(value, abs=1e-12), name


def test_forgetting_is_best_minus_last_and_bwt_is_last_minus_first():
    # Accuracy on experience 0 rises after its own training and falls at the end: the two differ.
    rising = np.array([[0.5, 0, 0], [0.9, 0.5, 0], [0.6, 0.5, 0.5]])
    assert metrics.forgetting(rising) == pytest.approx((0.3 + 0.0) / 2)
    assert metrics.forgetting_first_minus_last(rising) == pytest.approx((-0.1 + 0.0) / 2)
    assert -metrics.backward_transfer(rising) == pytest.approx((-0.1 + 0.0) / 2)


def test_one_experience_forgets_nothing():
    scores = metrics.score(np.array([[0.4]]), np.array([7]), np.array([0.1]))
    assert (scores.forgetting, scores.bwt, scores.fwt) == (0.0, 0.0, 0.0)


@pytest.mark.parametrize(
    ("matrix", "counts"),
    [
        (np.zeros((2, 3)), np.array([1, 1])),
        (np.zeros((0, 0)), np.array([], dtype=int)),
        (np.zeros((2, 2)), np.array([1])),
        (np.zeros((2, 2)), np.array([0, 0])),
        (np.full((2, 2), 80.0), np.array([1, 1])),
        (np.full((1, 1), np.nan), np.array([1])),
    ],
)
def test_refuses_what_is_no_accuracy_matrix(matrix, counts):
    with pytest.raises(BadInputError):
        metrics.score(matrix, counts)


@given(st.lists(st.tuples(st.integers(1, 9), accuracy), min_size=1, max_size=20))
def test_anytime_accuracy_is_the_area_under_steps(tests):
    steps, area = [], 0.0
    for span, value in tests:
        steps.append((steps[-1] if steps else 0) + span)
        area += sum(value for _ in range(span))
    got = metrics.anytime_accuracy(steps, [value for _, value in tests])
    assert got == pytest.approx(area / steps[-1])


@given(st.integers(1, 9), st.lists(accuracy, min_size=1, max_size=20))
def test_anytime_accuracy_of_even_tests_is_their_mean(every, values):
    steps = [every * (i + 1) for i in range(len(values))]
    assert metrics.anytime_accuracy(steps, values) == pytest.approx(sum(values) / len(values))


@pytest.mark.parametrize(("steps", "values"), [([], []), ([5], [0.5, 0.5]), ([5, 5], [1, 1])])
def test_refuses_tests_that_are_no_course_of_a_run(steps, values):
    with pytest.raises(BadInputError, match="rising from 1"):
        metrics.anytime_accuracy(steps, values)
