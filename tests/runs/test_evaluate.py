from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from carousel.data import Stream
from carousel.runs import evaluate
from carousel.runs.evaluate import accuracies, accuracy_seen, examine, split_sizes


class Knows(nn.Module):
    """Right for the classes it knows: the label is the brightest of the pixels."""

    def __init__(self, known: set[int]) -> None:
        super().__init__()
        self.known = known
        self.modes: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.modes.append(self.training)
        label = x.flatten(1).argmax(dim=1)
        guess = torch.where(torch.isin(label, torch.tensor(sorted(self.known))), label, 15)
        return nn.functional.one_hot(guess, 16).float()


@pytest.fixture
def stream():
    y = np.arange(96) % 6
    x = np.zeros((96, 1, 4, 4), np.uint8)
    x[np.arange(96), 0, y // 4, y % 4] = 255
    return Stream.from_arrays(x, y, experiences=3, seed=None)


def test_accuracy_by_experience(stream):
    row = accuracies(Knows({0, 1, 2}), stream, torch.device("cpu"))
    assert row.tolist() == [1.0, 0.5, 0.0]
    assert split_sizes(stream.test).tolist() == [len(split) for split in stream.test]


def test_the_mode_of_the_model_is_left_as_it_was(stream):
    model = Knows({0}).train()
    accuracies(model, stream, torch.device("cpu"))
    assert model.training
    assert not any(model.modes)
    model.eval()
    accuracies(model, stream, torch.device("cpu"))
    assert not model.training


def test_batches_do_not_matter(stream, monkeypatch):
    whole = accuracies(Knows({0, 3, 5}), stream, torch.device("cpu"))
    monkeypatch.setattr(evaluate, "_BATCH", 3)
    np.testing.assert_array_equal(accuracies(Knows({0, 3, 5}), stream, torch.device("cpu")), whole)


def test_a_user_may_stop_between_experiences(stream):
    def stop() -> None:
        raise KeyboardInterrupt

    model = Knows({0}).train()
    with pytest.raises(KeyboardInterrupt):
        accuracies(model, stream, torch.device("cpu"), between=stop)
    assert model.training


class Halves(nn.Module):
    """Sees only whether the brightest pixel is even or odd, and draws random numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.BatchNorm1d(2).eval()
        self.other = nn.Dropout()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        torch.rand(3)
        np.random.random()  # noqa: NPY002 - the global one is what must not change
        odd = x.flatten(1).argmax(dim=1) % 2
        return (torch.arange(6) % 2 == odd[:, None]).float() - 0.01 * torch.arange(6)


def test_a_learner_that_is_told_the_experience_chooses_among_its_classes(stream):
    answers = examine(Halves(), stream, torch.device("cpu"))
    assert answers.task_il.tolist() == [1.0, 1.0, 1.0]
    assert answers.class_il.tolist() == [1.0, 0.0, 0.0]


def test_accuracy_over_what_was_met_so_far(stream):
    device, model = torch.device("cpu"), Knows({0, 1, 2})
    found = [accuracy_seen(model, stream, device, count) for count in (1, 2, 3)]
    assert found == pytest.approx([1.0, 0.75, 0.5])


def test_testing_leaves_no_trace(stream):
    model = Halves()
    model.train()
    model.frozen.eval()
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    examine(model, stream, torch.device("cpu"))
    after = torch.rand(1), np.random.random()  # noqa: NPY002
    torch.manual_seed(0)
    np.random.seed(0)  # noqa: NPY002
    assert after == (torch.rand(1), np.random.random())  # noqa: NPY002
    assert (model.training, model.frozen.training, model.other.training) == (True, False, True)
