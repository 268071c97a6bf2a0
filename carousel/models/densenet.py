"""Densely connected networks for small images (Huang et al. 2017)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["DenseNet", "densenet_bc_100_12"]

_BLOCKS = 3


def densenet_bc_100_12(input_shape: tuple[int, int, int], n_classes: int) -> DenseNet:
    """DenseNet-BC with 100 layers and growth 12: three blocks of 16 bottlenecked layers."""
    return DenseNet(input_shape, n_classes, layers=16, growth=12)


class DenseNet(nn.Module):
    """A 3x3 stem, three dense blocks with a halving of channels and image between them, logits.

    Every layer of a block sees the maps of all layers before it. This is the BC form: a 1x1
    convolution to 4 x growth channels before each 3x3 one, and half the channels after a block.

    Args:
        input_shape: (channels, height, width); an image too small to be halved stays as it is.
        n_classes: logits.
        layers: in each block.
        growth: channels that a layer adds.
    """

    def __init__(
        self, input_shape: tuple[int, int, int], n_classes: int, *, layers: int, growth: int
    ) -> None:
        super().__init__()
        size = min(input_shape[1:])
        channels = 2 * growth
        parts: list[nn.Module] = [nn.Conv2d(input_shape[0], channels, 3, padding=1, bias=False)]
        for number in range(_BLOCKS):
            for _ in range(layers):
                parts.append(_Layer(channels, growth))
                channels += growth
            if number < _BLOCKS - 1:
                parts.append(_transition(channels, halve=size >= 2))
                channels, size = channels // 2, size // 2
        self.features = nn.Sequential(*parts, nn.BatchNorm2d(channels), nn.ReLU(inplace=True))
        self.classifier = nn.Linear(channels, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) float to (N, n_classes) logits."""
        maps = self.features(x)
        logits: Tensor = self.classifier(maps.mean(dim=(2, 3)))
        return logits


class _Layer(nn.Module):
    """Bottleneck and 3x3 convolution; its maps are appended to those that came in."""

    def __init__(self, channels: int, growth: int) -> None:
        super().__init__()
        inner = 4 * growth
        self.new_maps = nn.Sequential(
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
            nn.Conv2d(channels, inner, 1, bias=False),
            nn.BatchNorm2d(inner),
            nn.ReLU(inplace=True),
            nn.Conv2d(inner, growth, 3, padding=1, bias=False),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat((x, self.new_maps(x)), dim=1)


def _transition(channels: int, *, halve: bool) -> nn.Sequential:
    layers = [
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
        nn.Conv2d(channels, channels // 2, 1, bias=False),
    ]
    return nn.Sequential(*layers, *([nn.AvgPool2d(2)] if halve else []))
