"""The teacher is frozen, and comes back bit for bit, also when the model has grown since."""

import pytest
import torch
from avalanche.models import IncrementalClassifier
from torch import nn

from carousel.errors import CheckpointError
from carousel.strategies.teacher import Teacher


class Experience:
    def __init__(self, *classes):
        self.classes_in_this_experience = list(classes)
        self.dataset = ()


def growing():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), IncrementalClassifier(8, 2)
    )


def grow(model, *classes):
    model[-1].adaptation(Experience(*classes))


def test_nobody_at_first():
    teacher = Teacher()
    assert not teacher.known
    with pytest.raises(RuntimeError, match="no teacher"):
        teacher(torch.ones(1, 4))
    other = Teacher()
    other.take(growing())
    other.load_state_dict(teacher.state_dict(), like=growing())
    assert not other.known


def test_frozen_while_the_model_learns():
    model = growing()
    grow(model, 0, 1)
    teacher = Teacher()
    teacher.take(model)
    x = torch.randn(16, 4)
    before = teacher(x)
    assert torch.equal(before, model.eval()(x))
    optimizer = torch.optim.SGD(model.train().parameters(), 0.1)
    for _ in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean() + teacher(x).square().mean()
        loss.backward()
        optimizer.step()
    assert torch.equal(teacher(x), before)  # no dropout, no running statistics, no weights
    assert not teacher(x).requires_grad
    assert not torch.equal(model.eval()(x), before)
    assert model.training is False
    assert next(model.parameters()).requires_grad


def test_taking_leaves_the_model_as_it_was():
    model = growing()
    model.train()
    Teacher().take(model)
    assert model.training
    assert all(p.requires_grad for p in model.parameters())


def test_comes_back_bit_for_bit_into_a_model_that_has_grown():
    model = growing()
    grow(model, 0, 1)
    with torch.no_grad():
        model[1].running_mean += 1
    teacher = Teacher()
    teacher.take(model)
    x = torch.randn(5, 4)
    state = teacher.state_dict()
    grow(model, 4)
    with torch.no_grad():
        model[0].weight += 1
    restored = Teacher()
    restored.load_state_dict(state, like=model)
    assert torch.equal(restored(x), teacher(x))
    assert restored(x).shape == (5, 2)
    assert model(x).shape == (5, 5)  # the model itself is left alone
    assert all(not p.requires_grad for p in restored._model.parameters())


def test_another_model_is_refused():
    teacher = Teacher()
    teacher.take(growing())
    with pytest.raises(CheckpointError, match="not like the one"):
        Teacher().load_state_dict(teacher.state_dict(), like=nn.Linear(4, 2))


class KeepsFeatures(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head, self.kept = nn.Linear(4, 8), nn.Linear(8, 3), {}

    def forward(self, x):
        self.kept["features"] = self.body(x)
        return self.head(self.kept["features"])


def with_hooks(norm):
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 3))
    norm(model[0])
    return model


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "make",
    [
        KeepsFeatures,
        lambda: with_hooks(nn.utils.weight_norm),
        lambda: with_hooks(nn.utils.spectral_norm),
        lambda: with_hooks(nn.utils.parametrizations.weight_norm),
    ],
)
def test_models_that_keep_tensors_of_the_last_forward_pass(make):
    torch.manual_seed(0)
    model, teacher, x = make(), Teacher(), torch.randn(16, 4)
    model(x).sum().backward()
    teacher.take(model)
    before = model.eval()(x)
    assert torch.equal(teacher(x), before)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1)
    assert torch.equal(teacher(x), before)
    again = Teacher()
    again.load_state_dict(teacher.state_dict(), like=model)
    assert torch.equal(again(x), before)
