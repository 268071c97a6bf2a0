"""A small convolutional network, quick on one core."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

__all__ = ["CNN"]


class CNN(nn.Module):
    """Three blocks of 3x3 convolution (24, 32, 48), batch norm, ReLU and pooling, then linear.

    A block pools while at least 2x2 pixels are left, so that any input works.

    Args:
        input_shape: (channels, height, width).
        n_classes: logits.
        widths: channels of each block.

    Example:
        >>> import torch
        >>> CNN((1, 8, 8), 10)(torch.zeros(4, 1, 8, 8)).shape
        torch.Size([4, 10])
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        n_classes: int,
        widths: Sequence[int] = (24, 32, 48),
    ) -> None:
        super().__init__()
        channels, height, width = input_shape
        layers: list[nn.Module] = []
        for out in widths:
            layers += [
                nn.Conv2d(channels, out, 3, padding=1, bias=False),
                nn.BatchNorm2d(out),
                nn.ReLU(inplace=True),
            ]
            channels = out
            if min(height, width) >= 2:
                layers.append(nn.MaxPool2d(2))
                height, width = height // 2, width // 2
        self.features = nn.Sequential(*layers, nn.Flatten())
        self.classifier = nn.Linear(channels * height * width, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) float to (N, n_classes) logits."""
        logits: Tensor = self.classifier(self.features(x))
        return logits
