"""Means over seeds with their uncertainty, as pure functions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import inf, sqrt

import numpy as np
from scipy.stats import t as student

__all__ = ["CONFIDENCE", "Interval", "mean_interval", "paired_gain"]

CONFIDENCE = 0.95


@dataclass(frozen=True, slots=True)
class Interval:
    """A mean and the interval in which the true one lies with `CONFIDENCE`.

    Args:
        mean: of the values.
        half: half the width of the interval; infinite for a single value.
        count: number of values.
    """

    mean: float
    half: float
    count: int

    @property
    def low(self) -> float:
        """Lower end."""
        return self.mean - self.half

    @property
    def high(self) -> float:
        """Upper end."""
        return self.mean + self.half

    @property
    def known(self) -> bool:
        """Whether there were values enough for an interval."""
        return self.half < inf


def mean_interval(values: Sequence[float]) -> Interval | None:
    """Mean and its interval by Student's t with n - 1 degrees of freedom; None of nothing.

    Example:
        >>> found = mean_interval([0.5, 0.6, 0.7])
        >>> round(found.mean, 3), round(found.half, 3)
        (0.6, 0.248)
    """
    count = len(values)
    if not count:
        return None
    mean = float(np.mean(values))
    if count == 1:
        return Interval(mean, inf, 1)
    quantile = float(student.ppf(0.5 + CONFIDENCE / 2, count - 1))
    return Interval(mean, quantile * float(np.std(values, ddof=1)) / sqrt(count), count)


def paired_gain(treated: Mapping[int, float], plain: Mapping[int, float]) -> Interval | None:
    """Mean difference over the seeds that both have, with its interval.

    Pairs share class order and initial weights, so what a seed does to both drops out.

    Args:
        treated: value by seed.
        plain: value by seed.

    Example:
        >>> found = paired_gain({0: 0.9, 1: 0.7}, {0: 0.6, 1: 0.4, 2: 0.1})
        >>> round(found.mean, 3), found.count
        (0.3, 2)
    """
    seeds = sorted(treated.keys() & plain.keys())
    return mean_interval([treated[seed] - plain[seed] for seed in seeds])
