"""Cosines that restart: the closed form, PyTorch's own, and the optimizer's rates."""

import math

import pytest
import torch

from carousel.strategies.schedule import WarmRestarts, warm_restarts


def test_by_hand():
    """A warm-up epoch, then cycles of 1, 2 and 4 epochs; half way down a cosine is the middle."""
    rates = [warm_restarts(epoch) for epoch in range(9)]
    assert rates[0] == 0.1
    assert rates[1] == rates[2] == rates[4] == rates[8] == 1
    assert rates[3] == rates[6] == pytest.approx(0.505)
    assert rates[5] == pytest.approx(0.01 + 0.99 * (1 + math.sqrt(0.5)) / 2)
    assert rates[7] == pytest.approx(0.01 + 0.99 * (1 - math.sqrt(0.5)) / 2)


def test_it_is_pytorchs_schedule_behind_the_warm_up():
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.05)
    theirs = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, 1, 2, 0.0005)
    for epoch in range(1, 130):
        assert 0.05 * warm_restarts(epoch) == pytest.approx(optimizer.param_groups[0]["lr"])
        theirs.step()


@pytest.mark.parametrize("cycle", range(1, 9))
def test_the_last_epoch_of_a_cycle_is_the_lowest(cycle):
    rates = [warm_restarts(epoch) for epoch in range(2**cycle, 2 ** (cycle + 1))]
    assert rates == sorted(rates, reverse=True)
    assert rates[0] == 1
    assert 0.01 < rates[-1] < 0.52


def test_rates_of_each_group_and_what_a_checkpoint_keeps():
    optimizer = torch.optim.SGD([{"params": [torch.zeros(1)], "lr": 2.0}], lr=1.0)
    schedule = WarmRestarts(optimizer, warm_up=0.5, floor=0.2)
    optimizer.add_param_group({"params": [torch.zeros(1)], "lr": 4.0})
    schedule.start_epoch(0)
    assert [group["lr"] for group in optimizer.param_groups] == [1.0, 2.0]
    schedule.start_epoch(3)
    assert [group["lr"] for group in optimizer.param_groups] == pytest.approx([1.2, 2.4])
    again = WarmRestarts(optimizer, warm_up=0.5, floor=0.2)
    again.load_state_dict(schedule.state_dict())
    again.start_epoch(1)
    assert [group["lr"] for group in optimizer.param_groups] == [2.0, 4.0]
