"""Setting the test samples of a data set apart."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from carousel.data.dataset import ArrayDataset
from carousel.data.split import cap_per_class, hold_out_groups, hold_out_samples
from carousel.data.stream import Split
from carousel.errors import BadInputError

__all__ = ["TEST_FRACTION", "Holdout", "Pool", "hold_out"]

TEST_FRACTION = 1 / 6

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class Pool:
    """Some rows of labelled arrays; the arrays are shared, not copied.

    Attributes:
        x: (n, C, H, W) samples.
        y: (n,) labels.
        group: (n,) groups, or None.
        rows: (k,) the rows that belong to the pool.
    """

    x: NDArray[Any]
    y: Rows
    group: Rows | None
    rows: Rows

    @property
    def labels(self) -> Rows:
        """(k,) labels of the pool."""
        return self.y[self.rows]

    def capped(self, limit: int, seed: int) -> Pool:
        """At most `limit` samples of each class."""
        return replace(self, rows=self.rows[cap_per_class(self.labels, limit, seed)])

    def cut(self, owners: Rows, experiences: int) -> tuple[Split, ...]:
        """Copy the samples of each experience out; ``owners[i]`` is the experience of row i."""
        return tuple(self._split(self.rows[owners == n], n) for n in range(experiences))

    def _split(self, rows: Rows, task: int) -> Split:
        labels = self.y[rows]
        classes = tuple(int(label) for label in np.unique(labels))
        return Split(torch.from_numpy(self.x[rows]), torch.from_numpy(labels), task, classes)


@dataclass(frozen=True)
class Holdout:
    """Samples to train on, samples to test on, and how they were told apart."""

    train: Pool
    test: Pool
    how: str

    def capped(self, limit: int | None, seed: int) -> Holdout:
        """At most `limit` training and so many test samples of each class; None for all."""
        if limit is None:
            return self
        if limit < 1:
            raise BadInputError(f"limit is {limit}", fix="give at least 1 sample a class")
        return Holdout(self.train.capped(limit, seed), self.test.capped(limit, seed), self.how)


def hold_out(
    dataset: ArrayDataset, seed: int, fraction: float, *, within_groups: bool = False
) -> Holdout:
    """Use the source's own test set, or hold out groups, or samples where there are no groups.

    Args:
        dataset: what to divide.
        seed: of the draw.
        fraction: share to hold out.
        within_groups: hold out samples of every group instead of whole groups.

    Raises:
        BadInputError: the fraction cannot be used, or a class has nothing to train on.
    """
    if not 0 < fraction < 1:
        raise BadInputError(f"test_fraction is {fraction}", fix="give a number between 0 and 1")
    held = _divide(dataset, seed, fraction, within_groups)
    lost = np.setdiff1d(np.arange(dataset.n_classes), held.train.labels)
    if lost.size:
        raise BadInputError(
            f"class {dataset.class_names[lost[0]]!r} of {dataset.name} is in held-out groups only",
            fix="use another split_seed, or give x_test and y_test",
        )
    return held


def _divide(dataset: ArrayDataset, seed: int, fraction: float, within_groups: bool) -> Holdout:
    x, y, group = dataset.x, dataset.y, dataset.group
    if dataset.x_test is not None and dataset.y_test is not None:
        own = Pool(dataset.x_test, dataset.y_test, dataset.group_test, _all(dataset.y_test))
        return Holdout(Pool(x, y, group, _all(y)), own, "given by the source")
    if group is None or len(np.unique(group)) < 2:
        train, test = hold_out_samples(y, fraction, seed)
        how = "held-out samples of each class"
    elif within_groups:
        train, test = hold_out_samples(group * dataset.n_classes + y, fraction, seed)
        how = "held-out samples of each group and class"
    else:
        train, test = hold_out_groups(group, fraction, seed)
        how = "held-out groups"
    return Holdout(Pool(x, y, group, train), Pool(x, y, group, test), how)


def _all(y: Rows) -> Rows:
    return np.arange(len(y), dtype=np.int64)
