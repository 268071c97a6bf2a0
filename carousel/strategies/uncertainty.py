"""How unsure a model is of samples: whether it changes its mind when they are perturbed."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import Module

from carousel.errors import BadInputError

__all__ = ["Perturbation", "evaluating", "perturbed_uncertainty", "vote_uncertainty"]

Perturbation: TypeAlias = Callable[[Tensor, np.random.Generator], Tensor]
"""From raw samples (n, *shape) and a source of chance to perturbed ones, of the same shape."""


def vote_uncertainty(predictions: Tensor) -> Tensor:
    """1 - votes of the most frequent class / A, for (n, A) predicted classes.

    Bang et al., "Rainbow Memory" (CVPR 2021), Section 4.1.

    Returns:
        (n,) float64, 0 (all agree) to 1 - 1/A (each says something else).

    Example:
        >>> vote_uncertainty(torch.tensor([[3, 3, 3, 3], [0, 1, 1, 2]])).tolist()
        [0.0, 0.5]
    """
    copies = predictions.shape[1]
    agreeing = (predictions[:, :, None] == predictions[:, None, :]).sum(2)
    return 1 - agreeing.amax(1).double() / copies


@torch.no_grad()
def perturbed_uncertainty(
    batches: Iterable[tuple[Tensor, Tensor]],
    predict: Callable[[Tensor, Tensor], Tensor],
    perturb: Perturbation,
    *,
    copies: int,
    rng: np.random.Generator,
) -> Tensor:
    """`vote_uncertainty` of samples over perturbed copies of them.

    Args:
        batches: raw samples (n, *shape) and their (n,) task labels, batch by batch.
        predict: logits (n, C) of raw samples with task labels, by a model in evaluation mode.
        perturb: gives one perturbed copy of a batch.
        copies: of each sample; A in the paper.
        rng: what is drawn by `perturb`.

    Returns:
        (total,) float64 on the CPU, in order.

    Raises:
        BadInputError: `perturb` changes the shape.
    """
    found = [torch.zeros(0, dtype=torch.float64)]
    for x, tasks in batches:
        votes = [predict(_perturbed(perturb, x, rng), tasks).argmax(1) for _ in range(copies)]
        found.append(vote_uncertainty(torch.stack(votes, 1)).cpu())
    return torch.cat(found)


@contextmanager
def evaluating(model: Module) -> Iterator[None]:
    """The model in evaluation mode; each of its parts is put back as it was."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def _perturbed(perturb: Perturbation, x: Tensor, rng: np.random.Generator) -> Tensor:
    copy = perturb(x, rng)
    if copy.shape != x.shape:
        raise BadInputError(
            f"perturb made {tuple(copy.shape)} of {tuple(x.shape)}",
            fix="let it give as many samples of the same shape",
        )
    return copy
