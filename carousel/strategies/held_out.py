"""A small balanced validation set that is taken from the stream and kept out of training.

BiC (Wu et al., "Large Scale Incremental Learning", CVPR 2019, section 4.2) learns its correction
on it. The set owns its samples: they are never stored, so that no swap can bring one of them into
training.
"""

from __future__ import annotations

from fractions import Fraction
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from carousel.errors import BadInputError
from carousel.memory.admission.quota import first_of_each
from carousel.strategies.raw import RawSource

__all__ = ["HeldOut", "parse_share", "samples_a_class"]

Ints = npt.NDArray[np.int64]

_LEAST_SLOTS = 2
"""A class needs one slot for training and one for validation."""


def parse_share(value: float) -> Fraction:
    """The share of the memory that is held out.

    Raises:
        BadInputError: it is not above 0 and at most a half.
    """
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= 0.5:
        raise BadInputError(f"validation is {value!r}", fix="give a number above 0, at most 0.5")
    return Fraction(repr(value)) if isinstance(value, float) else Fraction(value)


def samples_a_class(slots: int, classes: int, share: Fraction) -> int:
    """Validation samples of each class: its part of the share of all slots, but at least one.

    Raises:
        BadInputError: there are fewer than two slots a class.

    Example:
        >>> samples_a_class(2000, 50, Fraction(1, 10)), samples_a_class(20, 10, Fraction(1, 10))
        (4, 1)
    """
    if slots < _LEAST_SLOTS * classes:
        raise BadInputError(
            f"the memory has {slots} slots for {classes} classes, and BiC needs two a class, "
            "one to train on and one to validate on",
            fix=f"give memory_size {_LEAST_SLOTS * classes} or more",
        )
    return max(1, int(slots * share) // classes)


class HeldOut:
    """Raw samples with their labels and ids, in RAM, at most so many a class as `take` was told.

    Attributes:
        ids: (n,) int64, as the memory numbers the samples of the stream.
        labels: (n,) int64.
        x: (n, *shape) raw samples on the CPU; None before the first.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> from carousel.strategies.raw import raw_source
        >>> data = TensorDataset(torch.arange(8.0), torch.tensor([0, 0, 0, 0, 1, 1, 1, 1]))
        >>> held_out, rng = HeldOut(), np.random.default_rng(0)
        >>> rows = held_out.choose(np.arange(8), raw_source(data).labels, 1, rng)
        >>> held_out.take(raw_source(data), rows, np.arange(8))
        >>> held_out.labels.tolist()
        [0, 1]
    """

    def __init__(self) -> None:
        self.ids: Ints = np.zeros(0, np.int64)
        self.labels = torch.zeros(0, dtype=torch.int64)
        self.x: Tensor | None = None

    def __len__(self) -> int:
        return len(self.ids)

    def shrink(self, per_class: int, rng: np.random.Generator) -> None:
        """Let random samples go, until each class has at most `per_class`."""
        if self.x is None:
            return
        _, codes, counts = np.unique(self.labels.numpy(), return_inverse=True, return_counts=True)
        kept = first_of_each(codes, np.minimum(counts, per_class), rng.random(len(codes)))
        self.ids = self.ids[kept]
        self.labels, self.x = self.labels[kept], self.x[kept]

    def choose(self, ids: Ints, labels: Tensor, per_class: int, rng: np.random.Generator) -> Tensor:
        """Which samples of an experience to hold out.

        Those that are held out already, so that an experience can be given again, and random ones
        that bring each of its classes to `per_class`, or to half of what there is of the class.

        Args:
            ids: (n,) of the experience.
            labels: (n,) int64 labels.
            per_class: samples a class.
            rng: chooses.

        Returns:
            (k,) int64 rows, ascending.
        """
        held = np.isin(ids, self.ids)
        free = np.flatnonzero(~held)
        classes, codes, supply = np.unique(labels.numpy(), return_inverse=True, return_counts=True)
        have = (self.labels.numpy()[:, None] == classes).sum(0)
        wanted = np.clip(np.minimum(per_class, supply // 2) - have, 0, None)
        drawn = first_of_each(codes[free], wanted, rng.random(len(free)))
        return torch.from_numpy(np.sort(np.concatenate([np.flatnonzero(held), free[drawn]])))

    def take(self, source: RawSource, rows: Tensor, ids: Ints) -> None:
        """Keep copies of the (k,) rows of a source with (n,) ids, where they are not held yet."""
        rows = rows[torch.from_numpy(~np.isin(ids[rows.numpy()], self.ids))]
        if len(rows) == 0:
            return
        x = source.rows(rows)
        self.x = x if self.x is None else torch.cat((self.x, x))
        self.labels = torch.cat((self.labels, source.labels[rows]))
        self.ids = np.concatenate([self.ids, ids[rows.numpy()]])

    def state_dict(self) -> dict[str, Any]:
        """The samples themselves: they are nowhere else."""
        return {"ids": torch.from_numpy(self.ids.copy()), "labels": self.labels, "x": self.x}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Hold what was held."""
        self.ids, self.labels, self.x = state["ids"].numpy().copy(), state["labels"], state["x"]
