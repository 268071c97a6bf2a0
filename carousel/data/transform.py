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
        mean: of each channel after scaling, or empty for no normalisation; one value serves
            data of any shape.
        std: of each channel after scaling.

    Example:
        >>> ToModelInput()(torch.full((2, 1, 4, 4), 255, dtype=torch.uint8)).max().item()
        1.0
    """

    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()

    batched: ClassVar[bool] = True

    @classmethod
    def normalizing(cls, x: Tensor) -> ToModelInput:
        """The transform that gives `x`, (n, *shape), mean 0 and deviation 1 in each channel."""
        plain = cls()
        axes = (0, 2, 3) if x.ndim == 4 else tuple(range(x.ndim))
        total, squares, count = torch.zeros(()), torch.zeros(()), 0
        for part in torch.split(x, _CHUNK):
            scaled = plain(part).double()
            total = total + scaled.sum(axes)
            squares = squares + scaled.square().sum(axes)
            count += scaled.numel() // max(scaled.sum(axes).numel(), 1)
        mean = total / count
        std = (squares / count - mean.square()).clamp_min(0).sqrt().clamp_min(1e-3)
        return cls(tuple(mean.reshape(-1).tolist()), tuple(std.reshape(-1).tolist()))

    def __call__(self, x: Tensor) -> Tensor:
        """Raw samples, (n, *shape) or (*shape), as float32 of the same shape."""
        scaled = x.to(torch.float32)
        if x.dtype == torch.uint8:
            scaled = scaled / 255
        if not self.mean:
            return scaled
        shape = (-1, 1, 1) if len(self.mean) > 1 else (1,)
        mean, std = (torch.tensor(v, device=x.device).reshape(shape) for v in (self.mean, self.std))
        return (scaled - mean) / std
