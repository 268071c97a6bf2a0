"""Random changes of training images, a batch at a time.

They change what a model is trained on, never what is stored or tested on. Every sample of a batch
has random numbers of its own, drawn for the whole batch at once from torch's global generator,
which a checkpoint saves and restores.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias, get_args

import torch
from torch import Tensor
from torch.nn import functional

from carousel.data.transform import ToModelInput
from carousel.errors import BadInputError

__all__ = ["AUGMENTATIONS", "Augmentation", "Augmented", "augment"]

Augmentation: TypeAlias = Literal["none", "crop", "crop-flip", "imagenet"]

AUGMENTATIONS: tuple[Augmentation, ...] = get_args(Augmentation)
"""The names that `augment` takes."""

_PAD = 4
_AREA = (0.08, 1.0)
_RATIO = (3 / 4, 4 / 3)
_TRIES = 10
_BRIGHTNESS = 63 / 255


def augment(x: Tensor, how: Augmentation) -> Tensor:
    """Change every image of a batch in its own random way.

    ``"crop"`` shifts by up to 4 pixels (an eighth of the side, where that is less) over a black
    border; ``"crop-flip"``, usual for CIFAR and Tiny-ImageNet, also mirrors every other image;
    ``"imagenet"`` takes 8 to 100 % of the area at an aspect of 3/4 to 4/3 and brings it back to
    full size, mirrors every other image and scales its brightness by 1 +- 63/255.

    Args:
        x: (n, C, H, W) raw images, uint8 or float.
        how: ``"none"`` gives `x` back.

    Returns:
        Images of the same shape, dtype and device.

    Raises:
        BadInputError: there is no such augmentation, or the samples are no images.

    Example:
        >>> x = torch.full((2, 1, 8, 8), 200, dtype=torch.uint8)
        >>> augment(x, "crop-flip").shape
        torch.Size([2, 1, 8, 8])
    """
    if how not in AUGMENTATIONS:
        raise BadInputError(f"augment is {how!r}", fix=f"use one of {', '.join(AUGMENTATIONS)}")
    if how == "none" or len(x) == 0:
        return x
    if x.ndim != 4:
        raise BadInputError(
            f"samples of shape {tuple(x.shape[1:])} are no images", fix='use augment="none"'
        )
    return _STEPS[how](x)


@dataclass(frozen=True)
class Augmented:
    """The transform of training samples: augmentation of the raw batch, then the usual one.

    Args:
        how: see `augment`.
        plain: the transform without augmentation, as in evaluation.

    Example:
        >>> Augmented("crop", ToModelInput())(torch.zeros(1, 8, 8, dtype=torch.uint8)).dtype
        torch.float32
    """

    how: Augmentation
    plain: ToModelInput

    batched: ClassVar[bool] = True

    def __call__(self, x: Tensor) -> Tensor:
        """Raw samples, (n, C, H, W) or one (C, H, W), as model input of the same shape."""
        if x.ndim == 3:
            return self.plain(augment(x.unsqueeze(0), self.how).squeeze(0))
        return self.plain(augment(x, self.how))


def _crop(x: Tensor) -> Tensor:
    """A window of full size from the padded image."""
    count, channels, height, width = x.shape
    pads = [min(_PAD, side // 8) for side in (height, width)]
    top, left = (torch.randint(0, 2 * pad + 1, (count,)).to(x.device) for pad in pads)
    padded = functional.pad(x, (pads[1], pads[1], pads[0], pads[0]))
    windows = padded.unfold(2, height, 1).unfold(3, width, 1)
    return windows[torch.arange(count, device=x.device), :, top, left].reshape(
        count, channels, height, width
    )


def _flip(x: Tensor) -> Tensor:
    mirrored = (torch.rand(len(x)) < 0.5).to(x.device)
    return torch.where(mirrored.reshape(-1, 1, 1, 1), x.flip(3), x)


def _crop_flip(x: Tensor) -> Tensor:
    return _flip(_crop(x))


def _imagenet(x: Tensor) -> Tensor:
    images = x if x.is_floating_point() else x.to(torch.float32)
    images = _flip(_resized_crop(images))
    low, high = 1 - _BRIGHTNESS, 1 + _BRIGHTNESS
    factor = torch.empty(len(x)).uniform_(low, high).to(x.device, images.dtype)
    images = images * factor.reshape(-1, 1, 1, 1)
    return images if x.is_floating_point() else images.round().clamp(0, 255).to(x.dtype)


def _resized_crop(x: Tensor) -> Tensor:
    """Boxes of random area and aspect, each enlarged to the size of the image (bilinear)."""
    heights, widths = _boxes(len(x), x.shape[2], x.shape[3])
    tops, lefts = (torch.rand(len(x)) * (1 - part) for part in (heights, widths))
    theta = torch.zeros(len(x), 2, 3)
    theta[:, 0, 0], theta[:, 1, 1] = widths, heights
    theta[:, 0, 2] = 2 * lefts + widths - 1
    theta[:, 1, 2] = 2 * tops + heights - 1
    grid = functional.affine_grid(theta.to(x.device, x.dtype), list(x.shape), align_corners=False)
    return functional.grid_sample(x, grid, padding_mode="border", align_corners=False)


def _boxes(count: int, height: int, width: int) -> tuple[Tensor, Tensor]:
    """(n,) heights and widths as shares of the image: the first of ten tries that fits, or all."""
    area = torch.empty(count, _TRIES).uniform_(*_AREA)
    low, high = torch.tensor(_RATIO).log().tolist()
    aspect = torch.empty(count, _TRIES).uniform_(low, high).exp()
    heights = (area / aspect * (width / height)).sqrt()
    widths = (area * aspect * (height / width)).sqrt()
    fits = (heights <= 1) & (widths <= 1)
    first = fits.to(torch.uint8).argmax(1, keepdim=True)
    none = ~fits.any(1)
    return tuple(  # type: ignore[return-value]
        side.gather(1, first).squeeze(1).masked_fill(none, 1.0) for side in (heights, widths)
    )


_STEPS: dict[str, Callable[[Tensor], Tensor]] = {
    "crop": _crop,
    "crop-flip": _crop_flip,
    "imagenet": _imagenet,
}
