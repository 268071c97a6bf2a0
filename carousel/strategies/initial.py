"""The weights that a model started with, to train it from scratch again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

__all__ = ["InitialWeights"]


class InitialWeights:
    """Remembers a model's weights and buffers before training, and puts them back in place.

    A model that grows is remembered again each time: `put_back`, let it grow, `take`. What has
    grown since keeps its fresh values, so the rest stays as it was at the very start.

    Args:
        model: not trained yet.

    Example:
        >>> model = torch.nn.Linear(2, 1)
        >>> before = model.weight.clone()
        >>> initial = InitialWeights(model)
        >>> _ = model.weight.data.add_(1)
        >>> initial.put_back(model)
        >>> torch.equal(model.weight, before)
        True
    """

    def __init__(self, model: Module) -> None:
        self._values: dict[str, Tensor] = {}
        self.take(model)

    def take(self, model: Module) -> None:
        """Remember what the model holds now; nothing of it may have been trained."""
        self._values = {name: value.clone() for name, value in model.state_dict().items()}

    @torch.no_grad()
    def put_back(self, model: Module) -> None:
        """Make the model what it was; of tensors that have grown, the part that was there."""
        for name, value in model.state_dict().items():
            if name in self._values:
                first = self._values[name]
                value[tuple(slice(length) for length in first.shape)] = first.to(value.device)

    def state_dict(self) -> dict[str, Any]:
        """The values by name."""
        return dict(self._values)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Remember the values of a state."""
        self._values = {name: value.clone() for name, value in state.items()}
