"""A fully connected network."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from math import prod

from torch import Tensor, nn

__all__ = ["MLP"]


class MLP(nn.Module):
    """Fully connected: input, one hidden layer of 100, logits (784-100-10 on MNIST).

    Args:
        input_shape: (channels, height, width).
        n_classes: logits.
        hidden: sizes of the hidden layers.

    Example:
        >>> sum(p.numel() for p in MLP((1, 28, 28), 10).parameters())
        79510
    """

    def __init__(
        self, input_shape: tuple[int, int, int], n_classes: int, hidden: Sequence[int] = (100,)
    ) -> None:
        super().__init__()
        sizes = [prod(input_shape), *hidden]
        layers: list[nn.Module] = [nn.Flatten()]
        for fan_in, fan_out in pairwise(sizes):
            layers += [nn.Linear(fan_in, fan_out), nn.ReLU(inplace=True)]
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(sizes[-1], n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) float to (N, n_classes) logits."""
        logits: Tensor = self.classifier(self.features(x))
        return logits
