"""The correction by hand and against another optimizer, and the model that carries it."""

import numpy as np
import pytest
import torch
from avalanche.models import IncrementalClassifier
from scipy.optimize import minimize
from torch import nn

from carousel.errors import BadInputError
from carousel.strategies.bias import BiasCorrected, BiasFit, Line, correct


def test_only_the_new_classes_are_corrected():
    logits = torch.tensor([[1.0, -2.0, 3.0, 0.5], [0.0, 4.0, -1.0, 2.0]])
    corrected = correct(logits, torch.tensor([1, 3]), torch.tensor(0.5), torch.tensor(-0.25))
    expected = [[1.0, -1.25, 3.0, 0.0], [0.0, 1.75, -1.0, 0.75]]
    assert corrected.tolist() == expected


def biased(samples=60, classes=5, new=(3, 4), seed=0):
    """Balanced samples whose new classes get too large logits."""
    rng = np.random.default_rng(seed)
    labels = np.arange(samples) % classes
    logits = rng.normal(0, 1, (samples, classes))
    logits[np.arange(samples), labels] += 1.5
    logits[:, list(new)] = 2.0 * logits[:, list(new)] + 1.0
    return torch.tensor(logits, dtype=torch.float32), torch.tensor(labels), torch.tensor(new)


def independent(logits, labels, new, l2):
    """The same convex problem in numpy, solved by another method."""
    o, y = logits.double().numpy(), labels.numpy()
    is_new = np.isin(np.arange(o.shape[1]), new.numpy())

    def loss(line):
        q = np.where(is_new, line[0] * o + line[1], o)
        top = q.max(1, keepdims=True)
        log_sum = top[:, 0] + np.log(np.exp(q - top).sum(1))
        return (log_sum - q[np.arange(len(y)), y]).mean() + l2 / 2 * line[1] ** 2

    return minimize(loss, [1.0, 0.0], method="Nelder-Mead", options={"xatol": 1e-7, "fatol": 1e-12})


@pytest.mark.parametrize(("optimizer", "lr"), [("sgd", 0.1), ("adam", 0.05)])
@pytest.mark.parametrize("l2", [0.0, 0.1, 2.0])
def test_the_line_is_the_best_one(optimizer, lr, l2):
    logits, labels, new = biased()
    fit = BiasFit(optimizer=optimizer, lr=lr, l2=l2)
    line = fit(logits, labels, new, epochs=500)
    best = independent(logits, labels, new, l2)
    assert [line.alpha, line.beta] == pytest.approx(best.x.tolist(), abs=2e-3)
    assert line.alpha < 0.9
    assert line.beta < 0


def test_the_penalty_is_on_the_offset_alone():
    logits, labels, new = biased()
    weak, strong = (BiasFit(l2=l2, lr=0.02)(logits, labels, new, epochs=500) for l2 in (0.0, 10.0))
    assert abs(strong.beta) < 0.1 * abs(weak.beta)
    assert abs(strong.alpha - 1) > 0.1


@pytest.mark.parametrize("count", [63, 64, 65, 66, 129])
def test_no_number_of_samples_throws_the_line_off(count):
    """Two samples over a batch of 64 once did, for half of a stream."""
    rng = np.random.default_rng(count)
    new = torch.arange(60, 66)
    labels = torch.from_numpy(np.arange(count) % 66)
    logits = torch.from_numpy(rng.normal(0, 3, (count, 66))).float()
    logits[torch.arange(count), labels] += 6
    logits[:, new] += 6
    line = BiasFit()(logits, labels, new, epochs=200)
    best = independent(logits, labels, new, 0.1)
    assert [line.alpha, line.beta] == pytest.approx(best.x.tolist(), abs=0.02)


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"optimizer": "lion"}, "bias_optimizer is 'lion'"),
        ({"lr": 0.0}, "bias_lr is 0.0"),
        ({"lr": float("nan")}, "bias_lr is nan"),
        ({"l2": -0.1}, "bias_l2 is -0.1"),
    ],
)
def test_values_out_of_range_are_refused(options, match):
    with pytest.raises(BadInputError, match=match):
        BiasFit(**options)


def test_training_sees_plain_logits_and_evaluation_corrected_ones():
    model = BiasCorrected(nn.Identity())
    x = torch.tensor([[1.0, 2.0, 3.0, 9.0]])
    assert torch.equal(model.eval()(x), x)  # nothing was learned yet
    model.begin(torch.tensor([2, 0]))
    model.begin(torch.tensor([1]))
    model.apply_line(Line(2.0, -0.5))
    assert model.train()(x).tolist() == [[1.0, 2.0, 3.0, -1000.0]]
    assert model.eval()(x).tolist() == [[1.0, 3.5, 3.0, -1000.0]]
    model.begin(torch.tensor([3]))  # the latest correction is over
    assert torch.equal(model.eval()(x), x)
    assert list(model.parameters()) == []


def test_outputs_of_unseen_classes_take_no_part_in_the_softmax():
    model = BiasCorrected(nn.Identity())
    model.begin(torch.tensor([0, 2]))
    x = torch.tensor([[1.0, 50.0, 2.0]], requires_grad=True)
    loss = nn.functional.cross_entropy(model(x), torch.tensor([0]))
    assert loss.item() == pytest.approx(np.log1p(np.exp(1.0)), abs=1e-6)
    loss.backward()
    assert x.grad[0, 1] == 0


def test_a_checkpoint_puts_back_lists_of_another_length():
    model = BiasCorrected(nn.Linear(4, 6))
    model.begin(torch.tensor([4, 1]))
    model.begin(torch.tensor([0, 2, 5]))
    model.apply_line(Line(0.25, -1.0))
    fresh = BiasCorrected(nn.Linear(4, 6))
    fresh.load_state_dict(model.state_dict())
    x = torch.randn(3, 4)
    assert torch.equal(fresh.eval()(x), model.eval()(x))
    assert fresh.seen.tolist() == [4, 1, 0, 2, 5]
    with pytest.raises(RuntimeError, match=r"net\.weight"):
        BiasCorrected(nn.Linear(4, 7)).load_state_dict(model.state_dict())


def test_a_growing_head_grows_inside():
    class Experience:
        classes_in_this_experience = (0, 1, 2)
        dataset = ()

    model = BiasCorrected(nn.Sequential(nn.Linear(4, 8), IncrementalClassifier(8, 2)))
    model.begin(torch.tensor([0, 1]))
    assert model(torch.zeros(1, 4)).shape == (1, 2)
    model.net[1].adaptation(Experience())
    model.begin(torch.tensor([2]))
    assert model(torch.zeros(1, 4)).shape == (1, 3)
