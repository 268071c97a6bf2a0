"""Testing a model on the experiences of a stream."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import Module

from carousel.data import Split, Stream
from carousel.report.metrics import Matrix

__all__ = ["accuracies", "test_counts"]

_BATCH = 512


def accuracies(
    model: Module,
    stream: Stream,
    device: torch.device,
    *,
    between: Callable[[], None] | None = None,
) -> Matrix:
    """Accuracy on the test samples of every experience, learned or not yet.

    The choice is among all classes of the stream: nothing tells the model which experience a
    sample is from.

    Args:
        model: gives logits (n, C); left in the mode in which it was found.
        stream: whose test samples are used.
        device: on which the model is.
        between: called between experiences, to let a user stop.

    Returns:
        (T,) float64 in 0..1; 0 for an experience without test samples.
    """
    was_training = model.training
    model.eval()
    try:
        row = []
        for split in stream.test:
            row.append(_accuracy(model, split, stream.transform, device))
            if between is not None:
                between()
        return np.array(row, dtype=np.float64)
    finally:
        model.train(was_training)


def test_counts(splits: Sequence[Split]) -> npt.NDArray[np.int64]:
    """(T,) number of test samples of each experience."""
    return np.array([len(split) for split in splits], dtype=np.int64)


@torch.no_grad()
def _accuracy(
    model: Module, split: Split, transform: Callable[[Tensor], Tensor], device: torch.device
) -> float:
    right = 0
    for start in range(0, len(split), _BATCH):
        x = transform(split.x[start : start + _BATCH].to(device))
        y = split.y[start : start + _BATCH].to(device)
        right += int((model(x).argmax(dim=1) == y).sum())
    return right / max(len(split), 1)
