"""Logits stored with a sample: their record, and the distance of a model from them, by hand."""

import pytest
import torch
from avalanche.models import IncrementalClassifier, MultiHeadClassifier
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import mse_loss

from carousel.strategies.dark import fill_values, logit_mse, stored_logits
from carousel.strategies.dark_update import some_of_each


def test_the_distance_by_hand():
    """((1-3)^2 + (2-2)^2 + (0-4)^2 + (5-5)^2) / 4: the mean over batch and logits."""
    now = torch.tensor([[1.0, 2.0], [0.0, 5.0]])
    then = torch.tensor([[3.0, 2.0], [4.0, 5.0]])
    assert logit_mse(now, then, torch.tensor([2, 2], dtype=torch.int32)).item() == 5.0


def test_a_grown_head_is_compared_in_the_width_of_then():
    """Row 0 was stored with one output, row 1 with three: (1 + 4 + 9 + 16) / 4."""
    now = torch.tensor([[1.0, 100.0, 100.0, 100.0], [2.0, 3.0, 4.0, 100.0]])
    then = torch.tensor([[2.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    width = torch.tensor([1, 3], dtype=torch.int32)
    assert logit_mse(now, then, width).item() == pytest.approx((1 + 4 + 9 + 16) / 4)


def test_what_a_head_fills_in_is_not_compared():
    now, then = torch.tensor([[1.0, 7.0, 2.0]]), torch.tensor([[0.0, -1000.0, 0.0]])
    width = torch.tensor([3])
    assert logit_mse(now, then, width, unused=(-1000.0,)).item() == 2.5
    assert logit_mse(now, then, width).item() > 1e5


def test_nothing_to_compare_costs_nothing_and_has_a_gradient():
    now = torch.ones(2, 3, requires_grad=True)
    loss = logit_mse(now, torch.zeros(2, 3), torch.zeros(2, dtype=torch.int32))
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(now.grad, torch.zeros(2, 3))


@settings(max_examples=40, deadline=None)
@given(rows=st.integers(1, 9), outputs=st.integers(1, 7), room=st.integers(0, 3))
def test_with_a_fixed_head_it_is_the_plain_mean_square(rows, outputs, room):
    """Also when records have more room than the model has outputs; gradients as well."""
    now = torch.randn(rows, outputs, requires_grad=True)
    then = torch.randn(rows, outputs)
    fields = stored_logits(then, outputs + room)
    assert fields["logits"].shape == (rows, outputs + room)
    assert fields["logits"].dtype == torch.float32
    assert fields["width"].dtype == torch.int32
    assert torch.equal(fields["logits"][:, :outputs], then)
    mine = logit_mse(now, fields["logits"], fields["width"])
    torch.testing.assert_close(mine, mse_loss(now, then))
    (gradient,) = torch.autograd.grad(mine, now, retain_graph=True)
    torch.testing.assert_close(gradient, torch.autograd.grad(mse_loss(now, then), now)[0])


def test_heads_of_avalanche_tell_what_they_fill_in():
    growing = torch.nn.Sequential(torch.nn.Linear(4, 4), IncrementalClassifier(4, mask_value=-9))
    assert fill_values(growing) == (-9.0,)
    assert fill_values(IncrementalClassifier(4, masking=False)) == ()
    assert fill_values(MultiHeadClassifier(4)) == (-1000.0,)


@settings(max_examples=40, deadline=None)
@given(labels=st.lists(st.integers(0, 4), max_size=40), most=st.integers(1, 9))
def test_some_of_each_class(labels, most):
    import numpy as np

    y = torch.tensor(labels, dtype=torch.int64)
    rows = some_of_each(y, most, np.random.default_rng(0))
    assert rows.tolist() == sorted(set(rows.tolist()))
    for label in range(5):
        assert int((y[rows] == label).sum()) == min(most, labels.count(label))


def test_the_choice_within_a_class_is_uniform():
    import numpy as np

    rng, counts = np.random.default_rng(0), np.zeros(10)
    for _ in range(2000):
        counts[some_of_each(torch.tensor([0, 1] * 5), 2, rng).numpy()] += 1
    # 2 of 5: within five standard errors of 800
    assert abs(counts - 800).max() < 5 * (2000 * 0.4 * 0.6) ** 0.5
