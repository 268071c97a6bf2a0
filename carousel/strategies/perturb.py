"""Random perturbations of images, whole batches at a time, in plain torch."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from carousel.errors import BadInputError
from carousel.strategies.image_ops import AFFINE, PIXELWISE, shrink, warp, with_saturation

__all__ = ["RandomPerturbation", "check_images"]

_CHANNELS = (1, 3)


class RandomPerturbation:
    """Two of twelve operations on each image, as RandAugment does it.

    After Cubuk et al., "RandAugment" (2020), with which Rainbow Memory perturbs samples (Bang et
    al., CVPR 2021): every image draws its operations and how strong each one is. The twelve: shift
    and shear in either direction, rotate, brightness, contrast, sharpness, posterize, solarize,
    cut a box out, and saturation, in whose place images of one channel shrink. Nothing is
    mirrored, which would make other digits or letters of some.

    Args:
        operations: on each image, one after the other.
        strength: of the strongest, 0..1: 1 shifts by up to a third, rotates by 30 degrees,
            changes light by 90 %, and cuts out half of the height and width.

    Raises:
        BadInputError: an argument is out of range.

    Example:
        >>> x = torch.randint(0, 256, (5, 3, 8, 8), dtype=torch.uint8)
        >>> y = RandomPerturbation()(x, np.random.default_rng(0))
        >>> y.shape, y.dtype
        (torch.Size([5, 3, 8, 8]), torch.uint8)
    """

    def __init__(self, operations: int = 2, strength: float = 0.5) -> None:
        if operations < 1:
            raise BadInputError(f"operations is {operations}", fix="give at least 1")
        if not 0 <= strength <= 1:
            raise BadInputError(f"strength is {strength}", fix="give a number from 0 to 1")
        self.operations = operations
        self.strength = strength

    def __call__(self, x: Tensor, rng: np.random.Generator) -> Tensor:
        """Perturbed copies of (n, *shape) raw images, in the same layout and dtype.

        Floating-point images are taken to span the range of values in the batch.

        Raises:
            BadInputError: they are no images, see `check_images`.
        """
        check_images(tuple(x.shape[1:]), x.dtype)
        low, high = _range(x)
        images = (_channels_first(x).to(torch.float32) - low) / (high - low)
        for _ in range(self.operations):
            images = self._one_each(images, rng)
        images = images.clamp_(0, 1) * (high - low) + low
        if x.dtype == torch.uint8:
            images = images.round_()
        return _as_before(images, x).to(x.dtype)

    def _one_each(self, images: Tensor, rng: np.random.Generator) -> Tensor:
        """One operation on each of (n, C, H, W) images with values 0..1."""
        count, device = len(images), images.device
        pixelwise = with_saturation(PIXELWISE) if images.shape[1] == 3 else PIXELWISE
        affine = AFFINE if images.shape[1] == 3 else (*AFFINE, shrink)
        chosen = torch.from_numpy(rng.integers(len(affine) + len(pixelwise), size=count)).to(device)
        signed = self.strength * rng.uniform(-1, 1, count)
        level = torch.from_numpy(signed).to(device, torch.float32)
        centre = torch.from_numpy(rng.random((count, 2))).to(device, torch.float32)
        out = images.clone()
        moved = (chosen < len(affine)).nonzero().squeeze(1)
        if len(moved):
            out[moved] = warp(images[moved], affine, chosen[moved], level[moved])
        for number, operation in enumerate(pixelwise, start=len(affine)):
            rows = (chosen == number).nonzero().squeeze(1)
            if len(rows):
                out[rows] = operation(images[rows], level[rows, None, None, None], centre[rows])
        return out


def check_images(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Whether samples of this kind can be perturbed.

    Args:
        shape: of a raw sample: (C, H, W) or (H, W, C) with one or three channels; of bytes also
            (H, W).
        dtype: uint8 or floating point.

    Raises:
        BadInputError: they are no images; says what to give instead.
    """
    planes = len(shape) == 3 and (shape[0] in _CHANNELS or shape[-1] in _CHANNELS)
    if dtype == torch.uint8 and (planes or len(shape) == 2):
        return
    if dtype.is_floating_point and planes:
        return
    raise BadInputError(
        f"samples are {str(dtype).removeprefix('torch.')} {shape}, which are no images with one "
        "or three channels",
        fix="give perturb=, from a batch (n, *shape) and a numpy random generator to a perturbed "
        "copy of it",
    )


def _range(x: Tensor) -> tuple[float, float]:
    if x.dtype == torch.uint8:
        return 0.0, 255.0
    low, high = x.aminmax()
    return float(low), float(high) if high > low else float(low) + 1


def _channels_last(shape: torch.Size) -> bool:
    return len(shape) == 4 and shape[1] not in _CHANNELS


def _channels_first(x: Tensor) -> Tensor:
    if x.ndim == 3:
        return x[:, None]
    return x.permute(0, 3, 1, 2) if _channels_last(x.shape) else x


def _as_before(images: Tensor, x: Tensor) -> Tensor:
    if x.ndim == 3:
        return images[:, 0]
    return images.permute(0, 2, 3, 1) if _channels_last(x.shape) else images
