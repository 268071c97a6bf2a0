"""Right answers from logits: among all classes, and among those of a sample's own task.

Class-incremental ("class-IL"): nothing tells which experience a sample is from. Task-incremental
("task-IL"): that is told, and the choice is among the classes of the experience (van de Ven and
Tolias, "Three scenarios for continual learning", 2019). Both come from the same logits.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

__all__ = ["count_right"]


def count_right(logits: Tensor, labels: Tensor, among: Sequence[int] | None = None) -> int:
    """How many samples have their own class's logit as the largest.

    Args:
        logits: (n, C); C may be below the number of classes, as of a head that grows.
        labels: (n,) int64, on the device of the logits.
        among: classes to choose from, None for all. Those without a logit cannot be chosen.

    Example:
        >>> logits, labels = torch.tensor([[0.5, 0.1, 0.9], [0.5, 0.1, 0.9]]), torch.tensor([0, 2])
        >>> count_right(logits, labels), count_right(logits, labels, among=[0, 1])
        (1, 1)
    """
    if among is None:
        return int((logits.argmax(dim=1) == labels).sum())
    classes = torch.tensor([c for c in among if c < logits.shape[1]], device=logits.device)
    if len(classes) == 0:
        return 0
    chosen = classes[logits[:, classes].argmax(dim=1)]
    return int((chosen == labels).sum())
