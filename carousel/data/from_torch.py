"""Reading any torch data set of ``(x, y)`` pairs into arrays, with or without ``targets``."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from carousel.data.dataset import as_array
from carousel.errors import BadInputError

__all__ = ["read_dataset"]


def read_dataset(dataset: Any, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Read every pair once.

    Args:
        dataset: has ``len()`` and ``[i]`` -> (x, y, ...); x is a PIL image, array or tensor, y an
            integer or a 0-d tensor.
        name: how messages call it.

    Returns:
        x (n, *shape) of the samples' own dtype, and y (n,).

    Raises:
        BadInputError: no length, no samples, no pairs, or samples of different shape.
    """
    try:
        count = len(dataset)
    except TypeError as error:
        raise BadInputError(
            f"{name} has no length", fix="give a map-style data set, not an iterable one"
        ) from error
    if count == 0:
        raise BadInputError(f"{name} is empty", fix="give at least one sample")
    first, _ = _pair(dataset, 0, name)
    x = np.empty((count, *first.shape), first.dtype)
    labels = []
    for row in range(count):
        sample, label = _pair(dataset, row, name)
        if sample.shape != first.shape or sample.dtype != first.dtype:
            raise BadInputError(
                f"{name}[{row}] is {sample.dtype} {sample.shape}, {name}[0] is "
                f"{first.dtype} {first.shape}",
                fix="bring all samples to one shape and dtype",
            )
        x[row] = sample
        labels.append(label)
    return x, as_array(labels)


def _pair(dataset: Any, row: int, name: str) -> tuple[NDArray[Any], NDArray[Any]]:
    item = dataset[row]
    if not isinstance(item, (tuple, list)) or len(item) < 2:
        raise BadInputError(
            f"{name}[{row}] is a {type(item).__name__}, not an (x, y) pair",
            fix="return a tuple of a sample and its label",
        )
    return as_array(item[0]), as_array(item[1])
