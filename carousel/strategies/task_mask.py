"""Choosing among the classes of one task, when it is told which task a sample belongs to."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

__all__ = ["TaskClasses"]


class TaskClasses:
    """The classes that each task has had so far, and the mask over logits that follows.

    Example:
        >>> tasks = TaskClasses()
        >>> tasks.see(torch.tensor([0, 1, 2]), torch.tensor([0, 0, 1]))
        >>> tasks.mask(torch.ones(2, 3), torch.tensor([0, 1])).tolist()
        [[1.0, 1.0, -inf], [-inf, -inf, 1.0]]
    """

    def __init__(self) -> None:
        self._table = torch.zeros(0, 0, dtype=torch.bool)

    def see(self, labels: Tensor, tasks: Tensor) -> None:
        """Add the classes of samples with (n,) labels and (n,) task labels."""
        if len(labels) == 0:
            return
        shape = int(tasks.max()) + 1, int(labels.max()) + 1
        grown = _padded(self._table, max(shape[0], len(self._table)), shape[1])
        grown[tasks, labels] = True
        self._table = grown

    def mask(self, logits: Tensor, tasks: Tensor) -> Tensor:
        """(n, C) logits with minus infinity for classes of other tasks than a row's own.

        Args:
            logits: (n, C).
            tasks: (n,) task label of each row; a row of a task that was never met stays as it is.
        """
        table = self._table = self._table.to(logits.device)
        outputs = logits.shape[1]
        known = _padded(table, int(tasks.max()) + 1 if len(tasks) else 0, outputs)[tasks, :outputs]
        keep = known | ~known.any(dim=1, keepdim=True)
        return logits.masked_fill(~keep, -torch.inf)

    def state_dict(self) -> dict[str, Tensor]:
        """A (tasks, classes) bool table."""
        return {"table": self._table.cpu()}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Put a state back."""
        self._table = state["table"].clone()


def _padded(table: Tensor, rows: int, columns: int) -> Tensor:
    """A copy of at least this size."""
    missing = max(0, columns - table.shape[1]), max(0, rows - table.shape[0])
    return pad(table, (0, missing[0], 0, missing[1]))
