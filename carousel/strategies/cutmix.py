"""CutMix: a box of each image is another image's, and so is as much of its label."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from carousel.errors import BadInputError
from carousel.memory.seeds import generator, load_state, state_of

__all__ = ["CutMix", "Mixed", "cut_box", "mixed_loss"]

Loss = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, slots=True)
class Mixed:
    """A batch after CutMix.

    Attributes:
        x: (n, ..., H, W) mixed samples.
        partner: (n,) int64 row that each row's box is from.
        kept: share of the area that is a row's own, 0..1.
    """

    x: Tensor
    partner: Tensor
    kept: float


class CutMix:
    """Mixes a batch with a probability; one box and one permutation a batch.

    After Yun et al., "CutMix" (ICCV 2019), Section 3.1: the box covers 1 - lambda of the area,
    lambda from Beta(alpha, alpha), its centre is uniform, and the labels are weighted by the area
    that is left of it inside the image.

    Args:
        p: share of the batches that are mixed, 0..1.
        alpha: of the Beta distribution, above 0; 1 makes every size equally likely.
        seed: of its own random numbers.

    Raises:
        BadInputError: an argument is out of range.

    Example:
        >>> x = torch.stack([torch.zeros(1, 8, 8), torch.ones(1, 8, 8)])
        >>> mixed = CutMix(1.0, 1.0, seed=1)(x)
        >>> mixed.partner.tolist(), mixed.kept, mixed.x.mean((1, 2, 3)).tolist()
        ([1, 0], 0.625, [0.375, 0.625])
    """

    def __init__(self, p: float, alpha: float, *, seed: int) -> None:
        if not 0 <= p <= 1:
            raise BadInputError(f"cutmix_p is {p}", fix="give a number from 0 to 1")
        if not alpha > 0:
            raise BadInputError(f"cutmix_alpha is {alpha}", fix="give a number above 0")
        self.p = p
        self.alpha = alpha
        self._rng = generator(seed, "cutmix")

    def __call__(self, x: Tensor) -> Mixed | None:
        """Mix (n, ..., H, W) samples, which are left as they are; None if it is not their turn.

        Raises:
            BadInputError: the samples have no height and width.
        """
        if self.p > 0 and x.ndim < 3:
            raise BadInputError(
                f"CutMix cannot mix samples of shape {tuple(x.shape[1:])}", fix="give cutmix_p=0"
            )
        if self.p == 0 or self._rng.random() >= self.p:
            return None
        share = 1 - self._rng.beta(self.alpha, self.alpha)
        height, width = x.shape[-2:]
        rows, columns = cut_box(height, width, share, self._rng)
        partner = torch.from_numpy(self._rng.permutation(len(x))).to(x.device)
        mixed = x.clone()
        mixed[..., rows, columns] = x[..., rows, columns][partner]
        area = (rows.stop - rows.start) * (columns.stop - columns.start)
        return Mixed(mixed, partner, 1 - area / (height * width))

    def state_dict(self) -> dict[str, Any]:
        """Where its random numbers stand."""
        return {"rng": state_of(self._rng)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        load_state(self._rng, state["rng"])


def cut_box(height: int, width: int, share: float, rng: np.random.Generator) -> tuple[slice, slice]:
    """Rows and columns of a box with `share` of the area, cut at the image's edges.

    Args:
        height: of the image, in pixels.
        width: of the image, in pixels.
        share: of the area before it is cut, 0..1.
        rng: the centre is drawn from it.
    """
    side = share**0.5
    return _span(height, side, rng), _span(width, side, rng)


def mixed_loss(loss: Loss, logits: Tensor, labels: Tensor, mixed: Mixed) -> Tensor:
    """The loss against both labels of each row, weighted by area.

    Args:
        loss: of (n, C) logits and (n,) labels, a mean over the rows.
        logits: (n, C) for the mixed samples.
        labels: (n,) of the samples before mixing.
        mixed: what was done.
    """
    own, other = loss(logits, labels), loss(logits, labels[mixed.partner])
    return mixed.kept * own + (1 - mixed.kept) * other


def _span(length: int, side: float, rng: np.random.Generator) -> slice:
    size = int(length * side)
    start = int(rng.integers(length)) - size // 2
    return slice(max(start, 0), min(start + size, length))
