"""Operations on batches of images (n, C, H, W) with values 0..1, each image at its own strength."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import pi
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn.functional import affine_grid, avg_pool2d, grid_sample

__all__ = ["AFFINE", "PIXELWISE", "shrink", "warp", "with_saturation"]

Affine: TypeAlias = Callable[[Tensor, float], Tensor]
"""(n, 2, 3) maps from places in the result to places in the image, both -1..1, from (n,) levels
-1..1 and height / width."""
Pixelwise: TypeAlias = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(n, C, H, W) from images, levels (n, 1, 1, 1) of -1..1, and places (n, 2) of 0..1."""

_MOST_SHIFT = 1 / 3
_MOST_SHEAR = 0.3
_MOST_TURN = pi / 6
_MOST_SHRINK = 0.5
_MOST_LIGHT = 0.9
_MOST_BITS = 4
_MOST_CUT = 0.5


def shift_x(level: Tensor, _: float) -> Tensor:
    """Sideways, by up to a third."""
    return _identity_but(level, {(0, 2): 2 * _MOST_SHIFT * level})


def shift_y(level: Tensor, _: float) -> Tensor:
    """Up or down, by up to a third."""
    return _identity_but(level, {(1, 2): 2 * _MOST_SHIFT * level})


def shear_x(level: Tensor, aspect: float) -> Tensor:
    """Rows slide over each other."""
    return _identity_but(level, {(0, 1): _MOST_SHEAR * level * aspect})


def shear_y(level: Tensor, aspect: float) -> Tensor:
    """Columns slide over each other."""
    return _identity_but(level, {(1, 0): _MOST_SHEAR * level / aspect})


def rotate(level: Tensor, aspect: float) -> Tensor:
    """Around the middle, by up to 30 degrees."""
    turn = _MOST_TURN * level
    cos, sin = turn.cos(), turn.sin()
    values = {(0, 0): cos, (0, 1): -sin * aspect, (1, 0): sin / aspect, (1, 1): cos}
    return _identity_but(level, values)


def shrink(level: Tensor, _: float) -> Tensor:
    """Smaller, to down to two thirds."""
    factor = 1 + _MOST_SHRINK * level.abs()
    return _identity_but(level, {(0, 0): factor, (1, 1): factor})


def warp(images: Tensor, kinds: Sequence[Affine], kind: Tensor, level: Tensor) -> Tensor:
    """Move the pixels of each image; what comes in from outside is 0.

    Args:
        images: (n, C, H, W).
        kinds: of movements.
        kind: (n,) int64 which of them each image gets.
        level: (n,) how strong, -1..1.
    """
    aspect = images.shape[2] / images.shape[3]
    maps = torch.stack([each(level, aspect) for each in kinds])
    grid = affine_grid(maps[kind, torch.arange(len(kind))], list(images.shape), align_corners=False)
    return grid_sample(images, grid, align_corners=False)


def brightness(x: Tensor, level: Tensor, _: Tensor) -> Tensor:
    """Lighter or darker."""
    return _clamped(x * (1 + _MOST_LIGHT * level))


def contrast(x: Tensor, level: Tensor, _: Tensor) -> Tensor:
    """Away from or towards the image's mean."""
    return _apart(x, x.mean((1, 2, 3), keepdim=True), level)


def sharpness(x: Tensor, level: Tensor, _: Tensor) -> Tensor:
    """Away from or towards the mean of the neighbouring pixels."""
    return _apart(x, avg_pool2d(x, 3, 1, 1, count_include_pad=False), level)


def saturation(x: Tensor, level: Tensor, _: Tensor) -> Tensor:
    """Away from or towards grey."""
    return _apart(x, x.mean(1, keepdim=True), level)


def posterize(x: Tensor, level: Tensor, _: Tensor) -> Tensor:
    """Fewer values: down to 4 of 8 bits."""
    step = 2 ** (_MOST_BITS * level.abs()).round()
    return (x * 255 / step).floor() * step / 255


def solarize(x: Tensor, level: Tensor, _: Tensor) -> Tensor:
    """Invert what is brighter than a threshold, which falls with the level."""
    return torch.where(x > 1 - level.abs(), 1 - x, x)


def cut_out(x: Tensor, level: Tensor, centre: Tensor) -> Tensor:
    """Blacken a box around the place, up to half as high and wide as the image."""
    half = _MOST_CUT * level.abs() / 2
    near = [
        ((torch.arange(length, device=x.device) + 0.5) / length - centre[:, axis, None]).abs()
        for axis, length in enumerate(x.shape[2:])
    ]
    inside = (near[0][:, None, :, None] <= half) & (near[1][:, None, None, :] <= half)
    return x.masked_fill(inside, 0)


AFFINE: tuple[Affine, ...] = (shift_x, shift_y, shear_x, shear_y, rotate)
PIXELWISE: tuple[Pixelwise, ...] = (
    brightness,
    contrast,
    sharpness,
    posterize,
    solarize,
    cut_out,
)


def with_saturation(operations: tuple[Pixelwise, ...]) -> tuple[Pixelwise, ...]:
    """These, and the one that only colours have."""
    return (*operations, saturation)


def _identity_but(level: Tensor, values: dict[tuple[int, int], Tensor]) -> Tensor:
    maps = torch.eye(2, 3, device=level.device).repeat(len(level), 1, 1)
    for (row, column), value in values.items():
        maps[:, row, column] = value
    return maps


def _apart(x: Tensor, middle: Tensor, level: Tensor) -> Tensor:
    return _clamped(middle + (1 + _MOST_LIGHT * level) * (x - middle))


def _clamped(x: Tensor) -> Tensor:
    return x.clamp(0, 1)
