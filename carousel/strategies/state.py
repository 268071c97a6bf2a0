"""States of models that grow, of their optimizers, and of the global random generators."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from avalanche.models import DynamicModule
from torch import Tensor
from torch.nn import Module

from carousel.errors import CheckpointError

__all__ = [
    "learner_state",
    "put_back_learner",
    "random_state",
    "set_random_state",
    "take_shapes",
]


def learner_state(strategy: Any, optimizer: dict[str, Any]) -> dict[str, Any]:
    """Model and optimizer of an Avalanche strategy; the optimizer's parameters by name.

    Args:
        strategy: whose state is wanted.
        optimizer: what is kept of its optimizer.
    """
    names = {id(p): name for name, p in (strategy.optimized_param_id or {}).items()}
    names |= {id(p): name for name, p in strategy.model.named_parameters()}
    return {
        "model": strategy.model.state_dict(),
        "optimizer": optimizer,
        "optimized": [
            [names.get(id(p), "") for p in group["params"]]
            for group in strategy.optimizer.param_groups
        ],
    }


def put_back_learner(strategy: Any, state: dict[str, Any], experiences: Sequence[Any]) -> None:
    """Grow the model as it was, and put its weights and the optimizer's state back.

    Args:
        strategy: not trained yet.
        state: of `learner_state`.
        experiences: of the stream, in order: a growing model adapts to them, one by one, until it
            has all that was saved.

    Raises:
        CheckpointError: the optimizer has other parameters.
        RuntimeError: the model has other parameters.
    """
    model = strategy.model.to(strategy.device)
    # Avalanche empties the optimizer the first time it makes it: let that be now
    if strategy.optimized_param_id is None:
        strategy.make_optimizer(reset_optimizer_state=True)
    _grow(strategy, state["model"], experiences)
    take_shapes(model, state["model"])
    model.load_state_dict(state["model"])
    _put_back_optimizer(strategy, state)


def put_back_model(model: Module, saved: dict[str, Tensor]) -> None:
    """Give a model, to be tested only, its saved weights; a head that grows has its saved size.

    Args:
        model: made as that which was saved.
        saved: its ``state_dict()``.

    Raises:
        RuntimeError: the model has other parameters.

    Example:
        >>> from avalanche.models import IncrementalClassifier
        >>> head, grown = IncrementalClassifier(4), IncrementalClassifier(4, 7)
        >>> put_back_model(head, grown.state_dict())
        >>> head(torch.zeros(1, 4)).shape
        torch.Size([1, 7])
    """
    if any(isinstance(module, DynamicModule) for module in model.modules()):
        take_shapes(model, saved)
    model.load_state_dict(saved)


def _grow(strategy: Any, saved: dict[str, Tensor], experiences: Sequence[Any]) -> None:
    training, strategy.is_training = strategy.is_training, True
    for experience in experiences:
        if saved.keys() <= strategy.model.state_dict().keys():
            break
        strategy.experience = experience
        strategy.model = strategy.model_adaptation()
    strategy.experience = None
    strategy.is_training = training


def take_shapes(model: Module, saved: dict[str, Tensor]) -> None:
    """Give tensors their saved shapes in place, so that the optimizer goes on to know them."""
    for name, module in model.named_modules():
        for key, tensor in (*module._parameters.items(), *module._buffers.items()):
            value = saved.get(f"{name}.{key}" if name else key)
            if tensor is None or value is None or tensor.shape == value.shape:
                continue
            tensor.data = tensor.data.new_empty(value.shape)
            if isinstance(module, torch.nn.Linear) and key == "weight":
                module.out_features, module.in_features = value.shape


def _put_back_optimizer(strategy: Any, state: dict[str, Any]) -> None:
    optimizer = strategy.optimizer
    parameters = dict(strategy.model.named_parameters())
    groups = state["optimized"]
    if len(groups) != len(optimizer.param_groups):
        raise CheckpointError(
            f"the optimizer has {len(optimizer.param_groups)} groups, and had {len(groups)}"
        )
    for group, names in zip(optimizer.param_groups, groups, strict=True):
        if all(name in parameters for name in names):
            group["params"] = [parameters[name] for name in names]
    optimizer.load_state_dict(_fitting(state["optimizer"], optimizer))
    strategy.optimized_param_id = parameters


def _fitting(saved: dict[str, Any], optimizer: Any) -> dict[str, Any]:
    """The saved state without that of parameters which grew after the last step.

    Avalanche drops it when it makes the optimizer next.
    """
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    numbers = [number for group in saved["param_groups"] for number in group["params"]]
    grown = {
        number
        for number, parameter in zip(numbers, parameters, strict=False)
        if not _fits(parameter, saved["state"].get(number, {}))
    }
    return {**saved, "state": {n: kept for n, kept in saved["state"].items() if n not in grown}}


def _fits(parameter: Tensor, kept: dict[str, Any]) -> bool:
    tensors = [value for value in kept.values() if isinstance(value, Tensor) and value.ndim]
    return all(value.shape == parameter.shape for value in tensors)


def random_state() -> dict[str, Any]:
    """The global generators of Python, numpy and torch: what models and transforms draw from."""
    kind, keys, *rest = np.random.get_state()  # noqa: NPY002 - the global one is meant
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": [kind, [int(key) for key in keys], *rest],
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def set_random_state(state: dict[str, Any]) -> None:
    """Let the global generators go on from `random_state`."""
    random.setstate(state["python"])
    kind, keys, *rest = state["numpy"]
    np.random.set_state((kind, np.array(keys, np.uint32), *rest))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])
