"""Herding: the order in which the samples of a class speak for its mean.

Algorithm 4 of "iCaRL: Incremental Classifier and Representation Learning" (Rebuffi et al., CVPR
2017), as its authors run it: by accumulated weights after Welling, "Herding Dynamical Weights to
Learn" (ICML 2009), on features of length 1.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

__all__ = ["herd"]

Floats: TypeAlias = npt.NDArray[np.float64]

_LEAST_STEPS = 1000
_STEPS_A_PICK = 10


def herd(features: Tensor, count: int) -> Tensor:
    """The samples of one class that stand for it best, the most important first.

    With d the features and mu their mean, both of length 1, and w = mu at first: pick the sample
    with the largest w.d, add mu - d to w, and so on. A sample may be picked again, which moves w
    but keeps its rank; picking ends with `count` distinct samples. Where it keeps to fewer than
    that (equal samples: only the first of them is ever picked), it ends after max(1000, 10 count)
    picks, and those never picked follow by their last w.d; the authors keep fewer then.

    Args:
        features: (n, d) floats of one class, of any length.
        count: samples to pick; all n at most.

    Returns:
        (min(count, n),) int64 distinct rows on the CPU, in order of their first pick. The first k
        of them are what a smaller count would give, but for those that were never picked.

    Example:
        >>> herd(torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 1.0]]), 2).tolist()
        [1, 0]
    """
    rows = normalize(features.detach().cpu().double(), dim=1)
    mean = normalize(rows.mean(0), dim=0)
    count = min(count, len(rows))
    order, scores = _picks(rows.numpy(), mean.numpy(), count)
    if len(order) < count:
        scores[order] = -np.inf
        order += np.argsort(-scores, kind="stable")[: count - len(order)].tolist()
    return torch.tensor(order, dtype=torch.int64)


def _picks(rows: Floats, mean: Floats, count: int) -> tuple[list[int], Floats]:
    """Distinct rows in order of their first pick, and w.d of all rows in the end."""
    weight = mean.copy()
    scores = rows @ weight
    picks: dict[int, None] = {}
    for _ in range(max(_LEAST_STEPS, _STEPS_A_PICK * count)):
        if len(picks) == count:
            break
        best = int(scores.argmax())
        picks.setdefault(best)
        weight += mean - rows[best]
        np.matmul(rows, weight, out=scores)
    return list(picks), scores
