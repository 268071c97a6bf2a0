"""Models of a user's own that go wrong, for the processes of a study to import."""

from __future__ import annotations

import os
import signal

import torch
from torch import Tensor, nn


def dies(shape: tuple[int, int, int], n_classes: int) -> nn.Module:
    """As when the system runs out of memory."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError


class Moody(nn.Module):
    """Learns, but with seed 1 fails in its first step."""

    def __init__(self, shape: tuple[int, int, int], n_classes: int) -> None:
        super().__init__()
        self.bad = torch.initial_seed() == 1
        self.body = nn.Sequential(nn.Flatten(), nn.Linear(shape[1] * shape[2], n_classes))

    def forward(self, x: Tensor) -> Tensor:
        if self.bad and self.training:
            raise RuntimeError("not\ntoday")
        return self.body(x)


def moody(shape: tuple[int, int, int], n_classes: int) -> nn.Module:
    return Moody(shape, n_classes)
