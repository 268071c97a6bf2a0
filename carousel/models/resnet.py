"""Residual networks (He et al. 2016), in the forms that continual learning uses."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.nn import functional

__all__ = ["ResNet", "resnet18", "resnet18_imagenet", "resnet32", "slim_resnet18"]


def slim_resnet18(input_shape: tuple[int, int, int], n_classes: int) -> ResNet:
    """Reduced ResNet-18: a third of the channels (20 to 160), as online continual learning uses.

    The network of Lopez-Paz and Ranzato 2017 (GEM), with a 3x3 stem.
    """
    return ResNet(input_shape, n_classes, widths=(20, 40, 80, 160), depth=2)


def resnet18(input_shape: tuple[int, int, int], n_classes: int) -> ResNet:
    """ResNet-18 for small images: 64 to 512 channels, with a 3x3 stem that keeps the size."""
    return ResNet(input_shape, n_classes, widths=(64, 128, 256, 512), depth=2)


def resnet18_imagenet(input_shape: tuple[int, int, int], n_classes: int) -> ResNet:
    """ResNet-18 for ImageNet: a 7x7 stem of stride 2 and pooling leave a quarter of the size.

    The CarM authors' code trains it on 32x32 images as well, where little of the image is left.
    """
    return ResNet(input_shape, n_classes, widths=(64, 128, 256, 512), depth=2, large_stem=True)


def resnet32(input_shape: tuple[int, int, int], n_classes: int) -> ResNet:
    """ResNet-32 for CIFAR: three stages of five blocks with 16, 32 and 64 channels.

    Shortcuts that change shape are projected (He et al.'s option B).
    """
    return ResNet(input_shape, n_classes, widths=(16, 32, 64), depth=5)


class ResNet(nn.Module):
    """A stem, stages of basic blocks that halve the image, average pooling and linear logits.

    Args:
        input_shape: (channels, height, width).
        n_classes: logits.
        widths: channels of each stage; every stage but the first halves the image.
        depth: blocks in each stage.
        large_stem: 7x7 with stride 2 and 3x3 pooling with stride 2, in place of 3x3.
    """

    def __init__(
        self,
        input_shape: tuple[int, int, int],
        n_classes: int,
        *,
        widths: Sequence[int],
        depth: int,
        large_stem: bool = False,
    ) -> None:
        super().__init__()
        channels = widths[0]
        self.stem = _stem(input_shape[0], channels, large=large_stem)
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


def _stem(inputs: int, channels: int, *, large: bool) -> nn.Sequential:
    size, stride = (7, 2) if large else (3, 1)
    layers: list[nn.Module] = [
        nn.Conv2d(inputs, channels, size, stride=stride, padding=size // 2, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(inplace=True),
    ]
    if large:
        layers.append(nn.MaxPool2d(3, stride=2, padding=1))
    return nn.Sequential(*layers)


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
