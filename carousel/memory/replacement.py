"""Which stored sample comes in for one that leaves."""

from __future__ import annotations

from collections.abc import Container
from typing import Protocol

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
        excluded: tuple[Container[int], ...],
        rng: np.random.Generator,
    ) -> Ints:
        """A stored id for each label, `NO_CANDIDATE` where there is none.

        Args:
            tier: what may be drawn from.
            labels: (n,) class of each sample that leaves.
            excluded: ids that must not come in: residents, and those on their way.
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
        excluded: tuple[Container[int], ...],
        rng: np.random.Generator,
    ) -> Ints:
        """See `Replacement.draw`."""
        drawn = np.full(len(labels), NO_CANDIDATE)
        for label in np.unique(labels):
            rows = np.flatnonzero(labels == label)
            found = _draw_class(tier.ids_of(int(label)), len(rows), excluded, rng)
            drawn[rows[: len(found)]] = found
        return drawn


def make_replacement(kind: str | Replacement) -> Replacement:
    """The rule called ``"uniform"``, or `kind` itself when it is a rule already.

    Raises:
        BadInputError: no rule has this name.
    """
    if not isinstance(kind, str):
        return kind
    if kind != "uniform":
        raise BadInputError(f"replacement is {kind!r}", fix="use 'uniform' or a Replacement")
    return Uniform()


def _draw_class(
    candidates: Ints,
    count: int,
    excluded: tuple[Container[int], ...],
    rng: np.random.Generator,
) -> list[int]:
    """Up to `count` distinct allowed candidates, each equally likely."""
    taken: dict[int, None] = {}
    if len(candidates) == 0:
        return []
    # Most stored samples are allowed, so a few tries nearly always end it; each keeps the draw
    # uniform, because a try is accepted or thrown away without looking at anything but the id.
    for _ in range(_ROUNDS):
        tries = candidates[rng.integers(len(candidates), size=count - len(taken))]
        for sample in tries.tolist():
            if not any(sample in group for group in excluded):
                taken[sample] = None
        if len(taken) == count:
            return list(taken)
    rest = [
        sample
        for sample in candidates.tolist()
        if sample not in taken and not any(sample in group for group in excluded)
    ]
    missing = min(count - len(taken), len(rest))
    picks = rng.choice(len(rest), missing, replace=False) if missing else ()
    return [*taken, *(rest[pick] for pick in picks)]
