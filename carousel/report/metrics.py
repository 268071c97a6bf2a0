"""The figures of a continual-learning run, as pure functions of its accuracy matrix.

``matrix[i, j]`` is the accuracy (0..1) on the test set of experience ``j`` after training on
experience ``i``: (T, T) float64, filled above the diagonal too. A run that was cut short after
``k`` experiences is scored on ``matrix[:k, :k]``. Definitions follow Lopez-Paz and Ranzato,
"Gradient Episodic Memory" (2017), section 2, and Chaudhry et al., "Riemannian Walk" (2018),
section 4. "Forgetting" has two conventions: `forgetting` is best earlier minus last (Chaudhry
et al.), `forgetting_first_minus_last` is right after training minus last (Avalanche), which is
``-bwt``. All figures can be taken of a class-incremental and of a task-incremental matrix; see
`carousel.report.answers`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from carousel.errors import BadInputError

__all__ = [
    "Matrix",
    "Scores",
    "anytime_accuracy",
    "average_accuracy",
    "average_incremental_accuracy",
    "backward_transfer",
    "final_accuracy",
    "forgetting",
    "forgetting_first_minus_last",
    "forgetting_per_experience",
    "forward_transfer",
    "learning_accuracy",
    "score",
]

Matrix: TypeAlias = npt.NDArray[np.float64]
Counts: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Scores:
    """The figures that every table of the field needs; accuracies are in 0..1.

    Args:
        average_accuracy: mean of the last row.
        final_accuracy: last row pooled by test samples, so over all classes seen.
        average_incremental_accuracy: mean over experiences of the mean accuracy so far.
        forgetting: mean of best earlier minus last; above 0 means worse.
        bwt: backward transfer, mean of last minus right after training; below 0 means worse.
        fwt: forward transfer, None without the accuracies of the untrained model.
        learning_accuracy: mean accuracy on each experience right after training on it.
    """

    average_accuracy: float
    final_accuracy: float
    average_incremental_accuracy: float
    forgetting: float
    bwt: float
    fwt: float | None
    learning_accuracy: float


def score(matrix: Matrix, counts: Counts, initial: Matrix | None = None) -> Scores:
    """All figures at once.

    Args:
        matrix: (T, T) accuracies in 0..1.
        counts: (T,) test samples of each experience.
        initial: (T,) accuracies of the untrained model, for `Scores.fwt`.

    Raises:
        BadInputError: the shapes do not fit, or an accuracy lies outside 0..1.

    Example:
        >>> s = score(np.array([[0.9, 0.0], [0.5, 0.8]]), np.array([100, 300]))
        >>> round(s.average_accuracy, 3), round(s.final_accuracy, 3), round(s.forgetting, 3)
        (0.65, 0.725, 0.4)
    """
    _check(matrix, counts)
    return Scores(
        average_accuracy=average_accuracy(matrix),
        final_accuracy=final_accuracy(matrix, counts),
        average_incremental_accuracy=average_incremental_accuracy(matrix),
        forgetting=forgetting(matrix),
        bwt=backward_transfer(matrix),
        fwt=None if initial is None else forward_transfer(matrix, initial),
        learning_accuracy=learning_accuracy(matrix),
    )


def average_accuracy(matrix: Matrix) -> float:
    """Mean of the last row: every experience counts the same."""
    return float(matrix[-1].mean())


def final_accuracy(matrix: Matrix, counts: Counts) -> float:
    """Last row weighted by test samples: the accuracy over all classes seen."""
    return float(np.average(matrix[-1], weights=counts))


def average_incremental_accuracy(matrix: Matrix) -> float:
    """Mean over i of the mean accuracy on experiences 0..i after experience i."""
    return float(np.mean([matrix[i, : i + 1].mean() for i in range(len(matrix))]))


def learning_accuracy(matrix: Matrix) -> float:
    """Mean of the diagonal: how well each experience was learned (Riemer et al., ICLR 2019)."""
    return float(np.diagonal(matrix).mean())


def forgetting(matrix: Matrix) -> float:
    """Mean of `forgetting_per_experience`; 0 for a single experience."""
    per_experience = forgetting_per_experience(matrix)
    return float(per_experience.mean()) if len(per_experience) else 0.0


def forgetting_per_experience(matrix: Matrix) -> Matrix:
    """(T-1,) best accuracy at any earlier time minus the last, for all but the last experience.

    Below 0 where the last accuracy is the best one.
    """
    best: Matrix = matrix[:-1, :-1].max(axis=0, initial=0.0)
    return best - matrix[-1, :-1]


def forgetting_first_minus_last(matrix: Matrix) -> float:
    """Mean accuracy right after training minus the last: Avalanche's "forgetting", ``-bwt``."""
    return 0.0 - backward_transfer(matrix)


def backward_transfer(matrix: Matrix) -> float:
    """Mean of last accuracy minus the one right after training; 0 for a single experience."""
    if len(matrix) < 2:
        return 0.0
    return float((matrix[-1, :-1] - np.diagonal(matrix)[:-1]).mean())


def forward_transfer(matrix: Matrix, initial: Matrix) -> float:
    """Mean of the accuracy just before training minus the untrained model's.

    Args:
        matrix: (T, T) accuracies.
        initial: (T,) accuracies of the untrained model.

    Returns:
        The mean over experiences 1..T-1; 0 for a single experience.
    """
    if len(matrix) < 2:
        return 0.0
    return float((np.diagonal(matrix, offset=1) - initial[1:]).mean())


def anytime_accuracy(steps: Sequence[int], accuracies: Sequence[float]) -> float:
    """Area under the accuracy of a learner that may be asked at any time, per step.

    Each test stands for the steps since the one before it. With tests spread evenly over the
    stream this is their mean, and A_AUC of Koh et al., "Online Continual Learning on Class
    Incremental Blurry Task Configuration with Anytime Inference" (ICLR 2022), section 3.3.

    Args:
        steps: (k,) steps trained before each test, rising, the first above 0.
        accuracies: (k,) accuracy in 0..1 over the classes seen by then.

    Raises:
        BadInputError: the two differ in length, there are none, or steps do not rise.

    Example:
        >>> round(anytime_accuracy([10, 20, 30], [0.9, 0.6, 0.6]), 3)
        0.7
    """
    ends = np.asarray([0, *steps], dtype=np.int64)
    spans = ends[1:] - ends[:-1]
    if len(spans) == 0 or len(spans) != len(accuracies) or spans.min() < 1:
        raise BadInputError(
            f"there are tests after {list(steps)} steps and {len(accuracies)} accuracies",
            fix="give one accuracy for each number of steps, rising from 1",
        )
    return float(np.average(np.asarray(accuracies, dtype=np.float64), weights=spans))


def _check(matrix: Matrix, counts: Counts) -> None:
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1] or len(matrix) == 0:
        raise BadInputError(
            f"the accuracy matrix has shape {matrix.shape}",
            fix="give one row and one column an experience",
        )
    if counts.shape != (len(matrix),) or counts.min() < 0 or counts.sum() == 0:
        raise BadInputError(
            f"the test counts are {counts.tolist()}",
            fix=f"give {len(matrix)} counts that are not all 0",
        )
    if not ((matrix >= 0) & (matrix <= 1)).all():
        raise BadInputError(
            "the accuracy matrix holds values outside 0..1", fix="give accuracies as fractions"
        )
