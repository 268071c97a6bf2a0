"""The step schedule: the rate of every epoch, anew in every experience, and after a restart."""

from __future__ import annotations

import pytest
import torch
from avalanche.training.plugins import SupervisedPlugin

from carousel.data import load_stream, to_benchmark
from carousel.errors import BadInputError
from carousel.models import make_model
from carousel.strategies import make_strategy
from carousel.strategies.checkpoint import RunCheckpoint
from carousel.strategies.milestones import StepSchedule


class Rates(SupervisedPlugin):
    """Notes the rate of every step, and stops after some of them."""

    def __init__(self, stop_after=None):
        super().__init__()
        self.seen = []
        self.stop_after = stop_after

    def before_update(self, strategy, **_):
        (rate,) = {group["lr"] for group in strategy.optimizer.param_groups}
        self.seen.append(rate)

    def after_training_iteration(self, strategy, **_):
        if len(self.seen) == self.stop_after:
            raise KeyboardInterrupt


@pytest.fixture(scope="module")
def experiences():
    stream = load_stream("split-digits", experiences=2, limit=16)
    return list(to_benchmark(stream, augment="crop").train_stream)


def learner(schedule, *plugins):
    model = make_model("mlp", (1, 8, 8), 10, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), 0.5, momentum=0.9)
    return make_strategy(
        "naive",
        model=model,
        optimizer=optimizer,
        train_mb_size=40,  # two steps an epoch
        train_epochs=4,
        plugins=[schedule, *plugins],
    )


def train(strategy, experiences):
    for experience in experiences:
        strategy.train(experience)


def test_the_rate_falls_at_the_milestones_of_every_experience(experiences):
    rates = Rates()
    strategy = learner(StepSchedule((1, 3), 0.5), rates)
    for experience in experiences:
        strategy.train(experience)
        assert strategy.optimizer.param_groups[0]["lr"] == 0.5
    assert rates.seen == [0.5, 0.5, 0.25, 0.25, 0.25, 0.25, 0.125, 0.125] * 2


@pytest.mark.parametrize("steps", [1, 4, 5, 8, 11])
def test_a_run_goes_on_at_the_rate_it_had_bit_for_bit(experiences, tmp_path, steps):
    torch.manual_seed(0)
    whole = learner(StepSchedule((1, 3), 0.1))
    train(whole, experiences)

    torch.manual_seed(0)
    checkpoint = RunCheckpoint(tmp_path, every=1)
    cut = learner(StepSchedule((1, 3), 0.1), checkpoint, Rates(stop_after=steps))
    with pytest.raises(KeyboardInterrupt):
        train(cut, experiences)

    torch.manual_seed(99)
    checkpoint, rates = RunCheckpoint(tmp_path, every=1), Rates()
    resumed = learner(StepSchedule((1, 3), 0.1), checkpoint, rates)
    position = checkpoint.restore(resumed, experiences)
    train(resumed, experiences[position.experiences :])
    assert len(rates.seen) == 16 - steps
    for one, other in zip(whole.model.parameters(), resumed.model.parameters(), strict=True):
        assert torch.equal(one, other)


@pytest.mark.parametrize(
    ("milestones", "gamma", "words"),
    [
        ((3, 1), 0.1, "lr_milestones is 3,1"),
        ((1, 1), 0.1, "each once"),
        ((0, 1), 0.1, "from 1 on"),
        ((1,), 0.0, "lr_gamma is 0.0"),
        ((1,), float("nan"), "lr_gamma is nan"),
    ],
)
def test_what_is_no_schedule_is_refused(milestones, gamma, words):
    with pytest.raises(BadInputError, match=words):
        StepSchedule(milestones, gamma)
