"""Which stored sample comes in for one that leaves."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol, cast

import numpy as np
import numpy.typing as npt

from carousel.errors import BadInputError
from carousel.storage.tier import StorageTier

__all__ = ["NO_CANDIDATE", "Replacement", "Uniform", "make_replacement"]

Ints = npt.NDArray[np.int64]

NO_CANDIDATE = -1
"""The id that a draw gives for a sample that nothing can replace."""

_ROUNDS = 4


class Replacement(Protocol):
    """Chooses replacements; called by one thread at a time."""

    def draw(
        self,
        tier: StorageTier,
        labels: Ints,
        excluded: Container[int],
        rng: np.random.Generator,
    ) -> Ints:
        """A stored id for each label, `NO_CANDIDATE` where there is none.

        Args:
            tier: what may be drawn from.
            labels: (n,) class of each sample that leaves.
            excluded: ids that must not come in: residents, and those on their way; asked by
                ``in``.
            rng: the only source of chance, so that a seed repeats the draws.

        Returns:
            (n,) distinct ids of the same classes, but for `NO_CANDIDATE`.
        """
        ...


class Uniform:
    """Uniform among the stored samples of the same class that are not excluded, without repeats.

    The paper's rule (Lee et al., CarM, DAC 2022, section 3), except that samples which are in
    memory already are never drawn again.

    Example:
        >>> make_replacement("uniform")
        Uniform()
    """

    def __repr__(self) -> str:
        return "Uniform()"

    def draw(
        self,
        tier: StorageTier,
        labels: Ints,
        excluded: Container[int],
        rng: np.random.Generator,
    ) -> Ints:
        """See `Replacement.draw`."""
        classes, codes = np.unique(labels, return_inverse=True)
        stored = [tier.ids_of(label) for label in classes.tolist()]
        pools = [stored[code] for code in codes.tolist()]
        sizes = np.array([len(pool) for pool in pools], np.int64)
        drawn: dict[int, int] = {}
        left = np.flatnonzero(sizes).tolist()
        # Most stored samples are allowed, so a few tries nearly always end it; each keeps the
        # draw uniform, because a try is accepted or thrown away by its id alone.
        for _ in range(_ROUNDS):
            if not left:
                break
            missed = []
            for row, pick in zip(left, rng.integers(sizes[left]).tolist(), strict=True):
                sample = pools[row].item(pick)
                if sample in drawn or sample in excluded:
                    missed.append(row)
                else:
                    drawn[sample] = row
            left = missed
        for code in sorted({int(codes[row]) for row in left}):
            rows = [row for row in left if codes[row] == code]
            drawn |= _draw_rest(stored[code], rows, drawn, excluded, rng)
        ids = np.full(len(labels), NO_CANDIDATE)
        ids[list(drawn.values())] = list(drawn)
        return ids


def make_replacement(kind: str | Replacement) -> Replacement:
    """The rule called ``"uniform"``, or `kind` itself when it is a rule already.

    Raises:
        BadInputError: no rule has this name.
    """
    if callable(getattr(kind, "draw", None)):
        return cast(Replacement, kind)
    if kind != "uniform":
        raise BadInputError(f"replacement is {kind!r}", fix="use 'uniform' or a Replacement")
    return Uniform()


def _draw_rest(
    candidates: Ints,
    rows: list[int],
    drawn: Container[int],
    excluded: Container[int],
    rng: np.random.Generator,
) -> dict[int, int]:
    """A row by id for as many rows as there are allowed candidates, by looking at all of them."""
    allowed = [
        sample for sample in candidates.tolist() if sample not in drawn and sample not in excluded
    ]
    count = min(len(rows), len(allowed))
    if count == 0:
        return {}
    served = rng.choice(rows, count, replace=False).tolist()
    picks = rng.choice(allowed, count, replace=False).tolist()
    return dict(zip(picks, served, strict=True))
