"""The learning rate of GDumb and Rainbow Memory: a warm-up epoch, then cosines that restart."""

from __future__ import annotations

from math import cos, pi
from typing import Any

from torch.optim import Optimizer

__all__ = ["WarmRestarts", "warm_restarts"]


def warm_restarts(epoch: int, *, warm_up: float = 0.1, floor: float = 0.01) -> float:
    """Share of the full learning rate in an epoch.

    SGDR (Loshchilov and Hutter, 2017) by epochs as GDumb uses it (Prabhu et al., 2020, Section
    4): epoch 0 at `warm_up`, then cosines from 1 to nearly `floor` over 1, 2, 4, 8, ... epochs.
    A cycle is complete after 2, 4, 8, 16, ... epochs in all.

    Args:
        epoch: from 0.
        warm_up: share in epoch 0.
        floor: share that the cosines fall to.

    Example:
        >>> [round(warm_restarts(epoch), 4) for epoch in range(8)]
        [0.1, 1.0, 1.0, 0.505, 1.0, 0.855, 0.505, 0.155]
    """
    if epoch == 0:
        return warm_up
    length = 1 << (epoch.bit_length() - 1)  # cycle k is the epochs 2**k to 2**(k + 1) - 1
    return floor + (1 - floor) * (1 + cos(pi * (epoch - length) / length)) / 2


class WarmRestarts:
    """Sets the learning rates of an optimizer by `warm_restarts`.

    The rates that the optimizer has now are the full ones.

    Args:
        optimizer: whose param groups are set.
        warm_up: see `warm_restarts`.
        floor: see `warm_restarts`.

    Example:
        >>> import torch
        >>> optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.05)
        >>> schedule = WarmRestarts(optimizer)
        >>> schedule.start_epoch(3)
        >>> round(optimizer.param_groups[0]["lr"], 6)
        0.02525
    """

    def __init__(self, optimizer: Optimizer, *, warm_up: float = 0.1, floor: float = 0.01) -> None:
        self._optimizer = optimizer
        self._warm_up = warm_up
        self._floor = floor
        self._full = [float(group["lr"]) for group in optimizer.param_groups]

    def start_epoch(self, epoch: int) -> None:
        """Set the rates of this epoch."""
        groups = self._optimizer.param_groups
        self._full += [float(group["lr"]) for group in groups[len(self._full) :]]
        share = warm_restarts(epoch, warm_up=self._warm_up, floor=self._floor)
        for group, full in zip(groups, self._full, strict=True):
            group["lr"] = full * share

    def state_dict(self) -> dict[str, Any]:
        """The full rates; the optimizer's own state holds those of the moment."""
        return {"full": list(self._full)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put the full rates back."""
        self._full = [float(rate) for rate in state["full"]]
