"""Models by name, or by the path of a factory of the user's own."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import nn

from carousel.errors import BadInputError
from carousel.memory.names import lookup
from carousel.models.cnn import CNN
from carousel.models.densenet import densenet_bc_100_12
from carousel.models.mlp import MLP
from carousel.models.resnet import resnet18, resnet18_imagenet, resnet32, slim_resnet18

__all__ = ["MODELS", "InputShape", "ModelFactory", "list_models", "make_model"]

InputShape: TypeAlias = tuple[int, int, int]
"""(channels, height, width) of one image."""

ModelFactory: TypeAlias = Callable[[InputShape, int], nn.Module]
"""Takes the input shape and the number of classes; the model takes (N, C, H, W) float."""

MODELS: dict[str, ModelFactory] = {
    "mlp": MLP,
    "cnn": CNN,
    "slim-resnet18": slim_resnet18,
    "resnet32": resnet32,
    "resnet18": resnet18,
    "resnet18-imagenet": resnet18_imagenet,
    "densenet-bc-100-12": densenet_bc_100_12,
}
"""The models by name."""


def list_models() -> dict[str, str]:
    """Each model's name and what it is, in one line."""
    return {name: (model.__doc__ or "").split("\n", 1)[0] for name, model in MODELS.items()}


def make_model(
    name: str, input_shape: tuple[int, ...], n_classes: int, seed: int | None = None
) -> nn.Module:
    """Build a model with (N, n_classes) logits.

    Args:
        name: one of `list_models`, or ``"package.module:factory"``, a callable that takes
            ``(input_shape, n_classes)`` and returns a module.
        input_shape: (channels, height, width).
        n_classes: logits, at least 1.
        seed: repeats the initial weights and leaves torch's own generators as they were; None
            draws from them.

    Raises:
        BadInputError: unknown name (the nearest is suggested), a factory that cannot be imported
            or returns no module, or a shape that is no image.

    Example:
        >>> make_model("cnn", (1, 28, 28), 94, seed=0)(torch.zeros(2, 1, 28, 28)).shape
        torch.Size([2, 94])
    """
    factory = _import_factory(name) if ":" in name else lookup("model", name, MODELS)
    shape = _checked_shape(input_shape)
    if n_classes < 1:
        raise BadInputError(f"n_classes is {n_classes}", fix="give at least 1")
    if seed is None:
        model = _call(name, factory, shape, n_classes)
    else:
        with torch.random.fork_rng(devices=[]):
            torch.default_generator.manual_seed(seed)  # models are built on the CPU
            model = _call(name, factory, shape, n_classes)
    if not isinstance(model, nn.Module):
        raise BadInputError(
            f"model {name} built a {type(model).__name__}", fix="return a torch.nn.Module"
        )
    return model


def _checked_shape(shape: tuple[int, ...]) -> InputShape:
    if len(shape) != 3 or min(shape) < 1:
        raise BadInputError(
            f"input_shape is {tuple(shape)}", fix="give (channels, height, width) of an image"
        )
    channels, height, width = (int(size) for size in shape)
    return channels, height, width


def _call(name: str, factory: ModelFactory, shape: InputShape, n_classes: int) -> nn.Module:
    try:
        return factory(shape, n_classes)
    except TypeError as error:
        if name in MODELS:
            raise
        raise BadInputError(
            f"model {name!r} cannot be made ({error})",
            fix="give a factory that takes (input_shape, n_classes) and returns a torch.nn.Module",
        ) from error


def _import_factory(path: str) -> ModelFactory:
    module_name, _, attribute = path.partition(":")
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (ImportError, AttributeError, ValueError) as error:
        raise BadInputError(
            f"model {path!r} cannot be imported ({error})",
            fix="give package.module:factory, with the package on Python's path",
        ) from error
    if not callable(found):
        raise BadInputError(f"model {path!r} is a {type(found).__name__}", fix="name a callable")
    factory: ModelFactory = found
    return factory
