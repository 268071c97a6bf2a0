"""The nearest mean: scores by hand, where features come from, and means that travel."""

import math

import pytest
import torch
from avalanche.models import IncrementalClassifier, MTSimpleMLP
from torch import nn

from carousel.errors import BadInputError
from carousel.strategies.nearest_mean import NEVER, NearestMean


def tiny(outputs=3):
    return nn.Sequential(nn.Identity(), nn.Linear(2, outputs))


def test_scores_by_hand():
    model = NearestMean(tiny())
    model.set_means(torch.tensor([[2.0, 0.0], [0.0, 0.5], [9.0, 9.0]]), torch.tensor([1, 1, 0]) > 0)
    scores = model.eval()(torch.tensor([[3.0, 3.0], [0.0, -4.0]]))
    half = -math.sqrt((1 - math.sqrt(0.5)) ** 2 + 0.5)
    expected = torch.tensor([[half, half, NEVER], [-math.sqrt(2), -2.0, NEVER]])
    assert torch.allclose(scores, expected, atol=1e-6)


def test_a_compiled_network_tells_its_features():
    net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))
    plain, compiled = NearestMean(net), NearestMean(torch.compile(net, backend="eager"))
    x = torch.randn(5, 4)
    assert torch.equal(compiled.features(x), plain.features(x))


def test_logits_in_training_and_before_there_are_means():
    model = NearestMean(tiny())
    x = torch.randn(4, 2)
    logits = model.net(x)
    assert torch.equal(model.eval()(x), logits)
    model.set_means(torch.eye(2), torch.tensor([True, True]))
    assert not torch.equal(model(x)[:, :2], logits[:, :2])
    assert torch.equal(model.train()(x), logits)


def test_classes_of_the_head_without_a_row_are_never_chosen():
    model = NearestMean(tiny(5))
    model.set_means(torch.eye(2), torch.tensor([True, True]))
    scores = model.eval()(torch.randn(6, 2))
    assert scores.shape == (6, 5)
    assert (scores[:, 2:] == NEVER).all()
    assert (scores[:, :2] >= -2).all()


class OutOfOrder(nn.Module):
    """Modules in another order than that in which they run."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.body = nn.Linear(2, 4)

    def forward(self, x):
        return self.head(self.body(x).relu())


class Grown(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 4)
        self.head = IncrementalClassifier(4, 3)

    def forward(self, x):
        return self.head(self.body(x).relu())


@pytest.mark.parametrize("kind", [OutOfOrder, Grown])
def test_features_go_into_the_last_linear_layer_to_run(kind):
    net = kind()
    x = torch.randn(5, 2)
    expected = nn.functional.normalize(net.body(x).relu(), dim=1)
    assert torch.allclose(NearestMean(net).features(x), expected)
    named = NearestMean(net, "body").features(x)
    assert torch.allclose(named, nn.functional.normalize(net.body(x), dim=1))
    called = NearestMean(net, lambda x: x * 2).features(x)
    assert torch.allclose(called, nn.functional.normalize(x, dim=1))


def test_features_are_those_of_evaluation():
    net = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.Linear(8, 3))
    model = NearestMean(net).train()
    x = torch.randn(6, 2)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert torch.equal(model.features(x), model.features(x))
    assert model.training
    assert net[2].training
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])
    assert not any(m._forward_pre_hooks or m._forward_hooks for m in model.modules())


def test_means_travel_and_keep_their_number():
    model = NearestMean(tiny())
    model.set_means(torch.eye(2), torch.tensor([True, False]))
    other = NearestMean(tiny())
    other.load_state_dict(model.state_dict())
    x = torch.randn(3, 2)
    assert torch.equal(other.eval()(x), model.eval()(x))
    fresh = NearestMean(tiny())
    other.load_state_dict(fresh.state_dict())  # back to logits
    assert torch.equal(other.eval()(x), fresh.net(x))


class Cosine(nn.Module):
    """Logits that no linear layer gives."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(2, 4)
        self.weight = nn.Parameter(torch.randn(3, 4))

    def forward(self, x):
        return self.body(x) @ self.weight.T


def test_models_that_need_features_say_so():
    with pytest.raises(BadInputError, match=r"last linear layer.*features="):
        NearestMean(Cosine()).features(torch.randn(2, 2))
    with pytest.raises(BadInputError, match="no linear layer"):
        NearestMean(nn.Conv2d(1, 3, 3))
    with pytest.raises(BadInputError, match=r"no module 'head'.*use one of 0, 1"):
        NearestMean(tiny(), "head")
    with pytest.raises(BadInputError, match="features is 3"):
        NearestMean(tiny(), 3)
    with pytest.raises(BadInputError, match="a head for each task"):
        NearestMean(MTSimpleMLP(input_size=4))
    assert NearestMean(Cosine(), "body").features(torch.randn(2, 2)).shape == (2, 4)
