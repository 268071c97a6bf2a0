"""How unsure a model is, by the votes of perturbed copies."""

import numpy as np
import pytest
import torch
from torch import nn

from carousel.errors import BadInputError
from carousel.strategies.uncertainty import (
    evaluating,
    perturbed_uncertainty,
    vote_uncertainty,
)


def test_votes_by_hand():
    votes = torch.tensor([[1] * 12, [0, 1, 2] * 4, [5] * 9 + [1, 2, 3], list(range(12))])
    expected = [0, 1 - 4 / 12, 1 - 9 / 12, 1 - 1 / 12]
    assert vote_uncertainty(votes).tolist() == pytest.approx(expected)


def step(x, _):
    """The model says class x, so a sample of value v says v, v + 1, v + 2, ..."""
    step.calls += 1
    return x + (step.calls - 1) % 4


def predict(x, tasks):
    """Class 0 below 3, else its own value up to 9: the later copies of a 2 disagree."""
    classes = torch.where(x[:, 0] < 3, 0, x[:, 0]).clamp_max(9).long()
    return nn.functional.one_hot(classes, 10).float()


def test_a_constructed_model():
    """Of four copies v .. v + 3: 0 -> 0 0 0 3, 2 -> 0 3 4 5, 8 -> 8 9 9 9, 20 -> 9 9 9 9."""
    step.calls = 0
    batches = [(torch.tensor([[0], [2]]), torch.zeros(2)), (torch.tensor([[8], [20]]), None)]
    found = perturbed_uncertainty(batches, predict, step, copies=4, rng=np.random.default_rng(0))
    assert found.tolist() == [0.25, 0.75, 0.25, 0.0]
    assert len(perturbed_uncertainty([], predict, step, copies=4, rng=None)) == 0


def test_no_gradient_and_the_same_shape():
    model = nn.Linear(1, 2)
    seen = []

    def logits(x, _):
        seen.append(model(x.float()))
        return seen[-1]

    batches = [(torch.zeros(3, 1), torch.zeros(3))]
    perturbed_uncertainty(batches, logits, lambda x, _: x, copies=2, rng=None)
    assert not seen[0].requires_grad
    with pytest.raises(BadInputError, match=r"perturb made \(2, 1\) of \(3, 1\)"):
        perturbed_uncertainty(batches, logits, lambda x, _: x[1:], copies=2, rng=None)


def test_modes_come_back_as_they_were():
    model = nn.Sequential(nn.BatchNorm1d(2), nn.Dropout()).train()
    model[0].eval()
    with pytest.raises(RuntimeError, match="3 elements"), evaluating(model):
        model(torch.zeros(1, 3))
    with evaluating(model):
        assert not any(module.training for module in model.modules())
    assert [module.training for module in model.modules()] == [True, False, True]
