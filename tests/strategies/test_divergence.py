"""A loss that is NaN or infinite stops the training before it does harm."""

from __future__ import annotations

import pickle

import pytest
import torch
from torch import nn

from carousel.errors import DivergedError
from carousel.storage import MemoryTier
from carousel.strategies import ER, CarMPlugin, RunCheckpoint
from carousel.strategies.divergence import EVERY, LossWatch

NAN, INF = float("nan"), float("inf")


class BadAfter(nn.Module):
    """A cross-entropy that ends in NaN or infinity after so many good steps."""

    def __init__(self, good: int, value: float) -> None:
        super().__init__()
        self.good, self.value = good, value

    def forward(self, logits, y):
        self.good -= 1
        loss = nn.functional.cross_entropy(logits, y)
        return loss if self.good >= 0 else loss * self.value


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_training_stops_before_the_step_of_the_bad_loss(helpers, stream, tmp_path, value):
    model = helpers.model()
    checkpoint = RunCheckpoint(tmp_path, every=1)
    weights = []

    class Keep:
        def after_training_iteration(self, strategy, *_, **__):
            weights.append({k: v.clone() for k, v in strategy.model.state_dict().items()})

    with CarMPlugin(20, MemoryTier(), seed=0, sync=True) as memory:
        er = ER(
            model=model,
            optimizer=helpers.sgd(model),
            memory=memory,
            plugins=[Keep(), checkpoint],
        )
        er.train(stream[0])
        done = er.clock.train_iterations
        er._criterion = BadAfter(2, value)
        with pytest.raises(DivergedError) as raised:
            er.train(stream[1])
        error = raised.value
        assert (error.experience, error.iteration) == (1, done + 3)
        assert str(error).startswith(f"the loss is {value} in experience 2, iteration {done + 3}:")
        for name, tensor in model.state_dict().items():
            assert torch.equal(tensor, weights[-1][name]), name
        saved = sorted(tmp_path.glob("*.pt"))[-1]
        learner = torch.load(saved, weights_only=True)["learner"]
        for name, tensor in learner["model"].items():
            assert torch.equal(tensor, weights[-1][name]), name
        memory.carousel.flush()
        assert memory.carousel.stats().filled == 20
        assert not memory.carousel.tier.verify().corrupt


def far_device():
    """What a device is asked for; losses themselves stay where the test can make them."""
    return torch.device("meta")


def test_elsewhere_losses_are_looked_at_together():
    watch = LossWatch(far_device(), experience=0)
    losses = [torch.tensor(1.0)] * (EVERY - 1)
    losses[7] = torch.tensor(NAN)
    for number, loss in enumerate(losses, start=101):
        watch.see(loss, number)
    with pytest.raises(DivergedError) as raised:
        watch.see(torch.tensor(2.0), 100 + EVERY)
    assert raised.value.iteration == 108


def test_what_is_left_is_looked_at_when_asked():
    watch = LossWatch(far_device(), experience=4)
    watch.see(torch.tensor(1.0), 1)
    watch.check()
    watch.check()
    watch.see(torch.tensor(INF), 2)
    with pytest.raises(DivergedError, match="experience 5, iteration 2"):
        watch.check()


def test_no_checkpoint_is_written_of_a_loss_that_was_not_looked_at(helpers, stream, tmp_path):
    model = helpers.model()
    checkpoint = RunCheckpoint(tmp_path)
    with CarMPlugin(20, MemoryTier(), seed=0) as memory:
        er = ER(model=model, optimizer=helpers.sgd(model), memory=memory, plugins=[checkpoint])
        er.train(stream[0])
        before = sorted(path.name for path in tmp_path.iterdir())
        er._watch = LossWatch(far_device(), experience=0)
        er._watch.see(torch.tensor(NAN), 9)
        with pytest.raises(DivergedError):
            checkpoint.save(er)
        assert sorted(path.name for path in tmp_path.iterdir()) == before


def test_the_error_passes_between_processes():
    error = DivergedError(INF, 1, 20, "run/checkpoints/20.pt")
    again = pickle.loads(pickle.dumps(error))
    assert str(again) == str(error)
    assert "last checkpoint run/checkpoints/20.pt" in str(again)
