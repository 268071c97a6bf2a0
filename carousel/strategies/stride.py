"""Rainbow Memory's choice of samples: from sure to unsure, at even strides within each class."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["stride_rows"]

Ints = npt.NDArray[np.int64]
Reals = npt.NDArray[np.float64]


def stride_rows(uncertainty: Reals, labels: Ints, slots: int, rng: np.random.Generator) -> Ints:
    """The rows that get a slot; Bang et al., "Rainbow Memory" (CVPR 2021), Section 4.1.

    With C classes each has m = slots // C places. A class with N samples is sorted by
    uncertainty, and every (N // m)-th is taken from the surest on, m in all; all of them if there
    are no more than m. Slots that are left are filled with other samples at random. Equally
    uncertain samples are in random order, so that equal uncertainties everywhere give a random
    choice balanced over the classes.

    Args:
        uncertainty: (n,) of each candidate.
        labels: (n,) of each candidate.
        slots: places in all.
        rng: orders what is equal and fills what is left.

    Returns:
        (min(n, slots),) int64 rows, ascending.

    Example:
        >>> rng = np.random.default_rng(0)
        >>> stride_rows(np.array([0.5, 0.1, 0.3, 0.2]), np.zeros(4, np.int64), 2, rng).tolist()
        [1, 2]
    """
    if len(labels) <= slots:
        return np.arange(len(labels))
    order = np.lexsort((rng.random(len(labels)), uncertainty, labels))
    _, counts = np.unique(labels, return_counts=True)
    rank = np.arange(len(labels)) - np.repeat(np.cumsum(counts) - counts, counts)
    places = slots // len(counts)
    step = np.repeat(np.maximum(counts // max(places, 1), 1), counts)
    taken = (rank % step == 0) & (rank // step < places)
    rest = rng.choice(order[~taken], slots - int(taken.sum()), replace=False)
    return np.sort(np.concatenate((order[taken], rest)))
