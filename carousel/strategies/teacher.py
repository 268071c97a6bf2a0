"""The model as it was: a frozen copy that a method distils from."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module

from carousel.errors import CheckpointError
from carousel.strategies.state import take_shapes

__all__ = ["Teacher"]


class Teacher:
    """A copy of a model in evaluation mode whose weights never change; nobody at first.

    Its state travels in a checkpoint, and is put back into a copy of the model of that run, which
    may have grown in the meantime.

    Example:
        >>> model = torch.nn.Linear(2, 3)
        >>> teacher = Teacher()
        >>> teacher.take(model)
        >>> x, before = torch.ones(1, 2), model(torch.ones(1, 2))
        >>> _ = torch.nn.init.zeros_(model.weight)
        >>> torch.equal(teacher(x), before), teacher(x).requires_grad
        (True, False)
    """

    def __init__(self) -> None:
        self._model: Module | None = None

    @property
    def known(self) -> bool:
        """Whether there is a model to learn from."""
        return self._model is not None

    def take(self, model: Module) -> None:
        """Copy the model as it is now; the copy replaces the last one."""
        copy = _copy(model)
        copy.zero_grad(set_to_none=True)
        self._model = copy.requires_grad_(False).eval()

    @torch.no_grad()
    def __call__(self, x: Tensor) -> Tensor:
        """What the copied model gives for a batch: logits (n, C) with the C it had.

        Raises:
            RuntimeError: no model was taken.
        """
        if self._model is None:
            raise RuntimeError("there is no teacher yet: ask `known` first")
        logits: Tensor = self._model(x)
        return logits

    def state_dict(self) -> dict[str, Any]:
        """The copy's weights and buffers; ``{"model": None}`` if there is none."""
        return {"model": None if self._model is None else dict(self._model.state_dict())}

    def load_state_dict(self, state: dict[str, Any], *, like: Module) -> None:
        """Be the saved copy again, bit for bit.

        Args:
            state: of `state_dict`.
            like: a model of the same kind on the device to use, of any size it has grown to.

        Raises:
            CheckpointError: the model is of another kind.
        """
        if state["model"] is None:
            self._model = None
            return
        copy = _copy(like)
        take_shapes(copy, state["model"])
        try:
            copy.load_state_dict(state["model"])
        except RuntimeError as error:
            raise CheckpointError(f"the model is not like the one distilled from: {error}") from (
                error
            )
        self.take(copy)


def _copy(model: Module) -> Module:
    """A deep copy; what the last forward pass left behind in a module is copied as plain values.

    Such tensors (features that a network keeps, weights that a normalisation computed) belong to
    a graph, and those torch refuses to copy.
    """
    left = [value for module in model.modules() for value in _tensors(vars(module))]
    return deepcopy(model, {id(value): value.detach().clone() for value in left})


def _tensors(value: Any) -> Iterator[Tensor]:
    """Tensors of a graph, in containers too."""
    if isinstance(value, Tensor):
        if not value.is_leaf:
            yield value
    elif isinstance(value, dict | list | tuple):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _tensors(part)
