"""Residual networks for small images (He et al. 2016), in the two forms the field uses."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

__all__ = ["ResNet", "resnet32", "slim_resnet18"]


def slim_resnet18(input_shape: tuple[int, int, int], n_classes: int) -> ResNet:
    """Reduced ResNet-18: a third of the channels (20 to 160), as online continual learning uses.

    The network of Lopez-Paz and Ranzato 2017 (GEM), with a 3x3 stem.
    """
    return ResNet(input_shape, n_classes, widths=(20, 40, 80, 160), depth=2)


def resnet32(input_shape: tuple[int, int, int], n_classes: int) -> ResNet:
    """ResNet-32 for CIFAR: three stages of five blocks with 16, 32 and 64 channels.

    Shortcuts that change shape are projected (He et al.'s option B).
    """
    return ResNet(input_shape, n_classes, widths=(16, 32, 64), depth=5)


class ResNet(nn.Module):
    """A 3x3 stem, stages of basic blocks that halve the image, average pooling and linear logits.

    Args:
        input_shape: (channels, height, width).
        n_classes: logits.
        widths: channels of each stage; every stage but the first halves the image.
        depth: blocks in each stage.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        n_classes: int,
        *,
        widths: Sequence[int],
        depth: int,
    ) -> None:
        super().__init__()
        channels = widths[0]
        self.stem = nn.Sequential(
            nn.Conv2d(input_shape[0], channels, 3, padding=1, bias=False),
            nn.BatchNorm2d(channels),
            nn.ReLU(inplace=True),
        )
        blocks: list[nn.Module] = []
        for stage, width in enumerate(widths):
            for position in range(depth):
                stride = 2 if stage > 0 and position == 0 else 1
                blocks.append(_Block(channels, width, stride))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.classifier = nn.Linear(channels, n_classes)

    def forward(self, x: Tensor) -> Tensor:
        """(N, C, H, W) float to (N, n_classes) logits."""
        maps = self.blocks(self.stem(x))
        logits: Tensor = self.classifier(maps.mean(dim=(2, 3)))
        return logits


class _Block(nn.Module):
    """Two 3x3 convolutions and a shortcut, projected where the shape changes."""

    def __init__(self, channels: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels, width, 3, stride=stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels, width, 1, stride=stride, bias=False), nn.BatchNorm2d(width)
            )

    def forward(self, x: Tensor) -> Tensor:
        out = functional.relu(self.norm1(self.conv1(x)))
        out = self.norm2(self.conv2(out)) + self.shortcut(x)
        return functional.relu(out)
