"""Right answers among all classes and among those of a task, against a loop over samples."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from carousel.report.answers import count_right

LOGITS = torch.tensor([[3.0, 1.0, 2.0], [0.0, 1.0, 5.0], [9.0, 8.0, 7.0]])


# the largest: class 0 of row 0, class 2 of row 1, class 0 of row 2; the labels are 0, 1, 2
@pytest.mark.parametrize(
    ("among", "right"), [(None, 1), ([0, 1, 2], 1), ([0, 1], 2), ([2], 1), ([1], 1), ([], 0)]
)
def test_worked_out_by_hand(among, right):
    assert count_right(LOGITS, torch.tensor([0, 1, 2]), among) == right


def test_a_class_that_the_head_does_not_have_yet_is_never_right():
    logits = torch.tensor([[1.0, 0.0]])
    assert count_right(logits, torch.tensor([2]), among=[2, 3]) == 0
    assert count_right(logits, torch.tensor([2])) == 0


def literal(rows, labels, among):
    right = 0
    for row, label in zip(rows, labels, strict=True):
        choices = [c for c in range(len(row)) if among is None or c in among]
        best = max(choices, key=lambda c: row[c], default=None)
        right += best == label
    return right


@given(st.data())
def test_agrees_with_a_loop(data):
    classes = data.draw(st.integers(1, 6))
    n = data.draw(st.integers(0, 8))
    # distinct logits: ties are broken by torch as it likes
    rows = [data.draw(st.permutations(range(classes))) for _ in range(n)]
    labels = data.draw(st.lists(st.integers(0, 7), min_size=n, max_size=n))
    among = data.draw(st.none() | st.lists(st.integers(0, 7), unique=True))
    logits = torch.tensor(rows, dtype=torch.float32).reshape(n, classes)
    got = count_right(logits, torch.tensor(labels, dtype=torch.int64), among)
    assert got == literal(rows, labels, among)
