"""A loss that is no number ends the training, before it reaches weights, memory or checkpoint."""

from __future__ import annotations

from math import isfinite

import torch
from torch import Tensor

from carousel.errors import DivergedError

__all__ = ["LossWatch"]

EVERY = 50
"""Steps between two looks at the loss on a device that works ahead of Python."""


class LossWatch:
    """Looks at the loss of every step of one experience.

    On the CPU at once, so that the step of a bad loss is not taken. Elsewhere reading a number
    stalls the device, so losses are kept and looked at together; `check` looks at what is left.

    Args:
        device: that trains.
        experience: number of the experience, from 0, for the message.
    """

    def __init__(self, device: torch.device, experience: int) -> None:
        self._every = 1 if device.type == "cpu" else EVERY
        self._experience = experience
        self._kept: list[Tensor] = []
        self._last = 0

    def see(self, loss: Tensor, iteration: int) -> None:
        """The next step has this loss.

        Args:
            loss: () float.
            iteration: number of the step in the run, from 1.

        Raises:
            DivergedError: it is NaN or infinite, or one that was kept is.
        """
        if self._every == 1:
            value = loss.item()
            if not isfinite(value):
                raise DivergedError(value, self._experience, iteration)
            return
        self._kept.append(loss.detach())
        self._last = iteration
        if len(self._kept) == self._every:
            self.check()

    def check(self) -> None:
        """Look at all losses that were kept.

        Raises:
            DivergedError: names the first that is NaN or infinite.
        """
        if not self._kept:
            return
        kept, self._kept = torch.stack(self._kept).cpu(), []
        bad = (~kept.isfinite()).nonzero()
        if len(bad):
            first = int(bad[0])
            iteration = self._last - len(kept) + 1 + first
            raise DivergedError(float(kept[first]), self._experience, iteration)
