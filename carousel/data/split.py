"""Who is trained on, who is tested on, and in which experience: pure functions on row numbers.

Every function is a function of its arguments and its seed alone.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from carousel.errors import BadInputError

__all__ = ["cap_per_class", "deal", "generator", "hold_out_groups", "hold_out_samples"]

Rows = NDArray[np.int64]


def hold_out_groups(group: Rows, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Set whole groups apart for testing.

    Args:
        group: (n,) group of each sample; at least two groups.
        fraction: share of the groups, 0 < fraction < 1; at least one group, never all.
        seed: of the draw.

    Returns:
        Training rows and test rows, both ascending.

    Example:
        >>> train, test = hold_out_groups(np.array([0, 0, 1, 1, 2, 2]), 1 / 3, seed=0)
        >>> len(train), len(test)
        (4, 2)
    """
    groups = np.unique(group)
    count = min(max(1, round(fraction * len(groups))), len(groups) - 1)
    held = generator(seed).permutation(groups)[:count]
    tested = np.isin(group, held)
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def hold_out_samples(strata: Rows, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Set the same share of every stratum (a class, or a class within a group) apart for testing.

    At least one sample of every stratum that has two, none of a stratum that has one.

    Args:
        strata: (n,) non-negative stratum of each sample.
        fraction: share of each stratum, 0 < fraction < 1.
        seed: of the draw.

    Returns:
        Training rows and test rows, both ascending.
    """
    order, place, size = _places(strata, seed)
    wanted = np.clip(np.rint(fraction * size), 1, size - 1)
    tested = np.zeros(len(strata), bool)
    tested[order] = place < wanted
    return np.flatnonzero(~tested), np.flatnonzero(tested)


def cap_per_class(y: Rows, limit: int, seed: int) -> Rows:
    """Rows of at most `limit` samples of each class, drawn by `seed`, ascending."""
    order, place, _ = _places(y, seed)
    return np.sort(order[place < limit])


def deal(items: Rows, experiences: int, seed: int | None, what: str) -> list[Rows]:
    """Deal classes or groups to experiences; none is dropped, counts differ by at most one.

    Args:
        items: (k,) what to deal.
        experiences: how many hands, 1..k.
        seed: shuffles before dealing; None keeps the given order.
        what: how messages call the items.

    Raises:
        BadInputError: fewer items than experiences, or no experience.

    Example:
        >>> [len(hand) for hand in deal(np.arange(10), 3, None, "classes")]
        [4, 3, 3]
    """
    if not 1 <= experiences <= len(items):
        raise BadInputError(
            f"experiences is {experiences} and there are {len(items)} {what}",
            fix=f"give a number from 1 to {len(items)}",
        )
    if seed is not None:
        items = generator(seed).permutation(items)
    return list(np.array_split(items, experiences))


def _places(strata: Rows, seed: int) -> tuple[Rows, Rows, Rows]:
    """Shuffled rows sorted by stratum, the place of each in its stratum, the stratum's size."""
    shuffled = generator(seed).permutation(len(strata))
    order = shuffled[np.argsort(strata[shuffled], kind="stable")]
    _, first, counts = np.unique(strata[order], return_index=True, return_counts=True)
    place = np.arange(len(strata)) - np.repeat(first, counts)
    return order, place, np.repeat(counts, counts)


def generator(seed: int) -> np.random.Generator:
    """``numpy.random.default_rng(seed)``, and bad input for a negative seed."""
    if seed < 0:
        raise BadInputError(f"a seed is {seed}", fix="give 0 or a positive number")
    return np.random.default_rng(seed)
