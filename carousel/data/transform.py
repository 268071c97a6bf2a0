"""From samples as they are stored to what a model takes, a batch at a time."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

__all__ = ["ToModelInput"]

_CHUNK = 4096


@dataclass(frozen=True)
class ToModelInput:
    """uint8 pixels to float32 in 0..1, then optionally normalised by channel.

    The memory stores raw samples; this runs after the gather, on a whole batch and on its
    device. It also takes a single sample, so that it can stand in an Avalanche transform group;
    ``batched`` tells code that knows it to apply it once a batch instead of once a sample.

    Args:
        mean: (C,) of each channel after scaling, or empty for no normalisation.
        std: (C,) of each channel after scaling.

    Example:
        >>> ToModelInput()(torch.full((2, 1, 4, 4), 255, dtype=torch.uint8)).max().item()
        1.0
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    batched: ClassVar[bool] = True

    @classmethod
    def normalizing(cls, x: Tensor) -> ToModelInput:
        """The transform that gives `x`, (n, C, H, W), mean 0 and deviation 1 in each channel."""
        plain = cls()
        total = squares = torch.zeros(x.shape[1], dtype=torch.float64)
        for part in torch.split(x, _CHUNK):
            scaled = plain(part).double()
            total = total + scaled.sum((0, 2, 3))
            squares = squares + scaled.square().sum((0, 2, 3))
        count = x.numel() // x.shape[1]
        mean = total / count
        std = (squares / count - mean.square()).clamp_min(0).sqrt().clamp_min(1e-3)
        return cls(tuple(mean.tolist()), tuple(std.tolist()))

    def __call__(self, x: Tensor) -> Tensor:
        """Raw samples, (n, C, H, W) or (C, H, W), as float32 of the same shape."""
        scaled = x.to(torch.float32)
        if x.dtype == torch.uint8:
            scaled = scaled / 255
        if not self.mean:
            return scaled
        mean, std = (
            torch.tensor(values, device=x.device).reshape(-1, 1, 1)
            for values in (self.mean, self.std)
        )
        return (scaled - mean) / std
