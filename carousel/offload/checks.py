"""What the optimizer refuses, before anything is changed."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from carousel.errors import BadInputError

__all__ = [
    "check_devices",
    "check_gradients",
    "check_hyper_parameters",
    "check_parameter",
    "clip",
    "plain_group",
    "refuse_scaled",
    "values_of",
]

_DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
_DEVICES = ("cpu", "cuda")
_HALVES = (torch.bfloat16, torch.float16)


def check_hyper_parameters(values: Mapping[str, Any]) -> None:
    """Refuse what ``torch.optim.AdamW`` refuses, and what needs a GPU's graphs.

    Raises:
        BadInputError: names the value.
    """
    for name in ("lr", "eps", "weight_decay"):
        if not float(values[name]) >= 0:
            raise BadInputError(f"{name} is {values[name]}", fix="give a number of at least 0")
    betas = values["betas"]
    if len(betas) != 2 or not all(0 <= float(beta) < 1 for beta in betas):
        raise BadInputError(f"betas are {betas}", fix="give two numbers from 0, below 1")
    for name in ("capturable", "differentiable"):
        if values.get(name):
            raise BadInputError(f"{name} is True", fix="use torch.optim.AdamW for that")


def check_parameter(param: Any) -> None:
    """Refuse a parameter that has no plain memory to update.

    Raises:
        BadInputError: it is sparse, complex, not contiguous, neither on the CPU nor on a CUDA
            device, or no tensor.
    """
    if not isinstance(param, Tensor):
        raise BadInputError(f"a parameter is a {type(param).__name__}", fix="give tensors")
    if param.layout != torch.strided:
        raise BadInputError(f"{_what(param)} is sparse", fix="use torch.optim.SparseAdam for it")
    if param.dtype not in _DTYPES:
        kinds = ", ".join(str(dtype).removeprefix("torch.") for dtype in _DTYPES)
        raise BadInputError(f"{_what(param)} has dtype {param.dtype}", fix=f"use one of {kinds}")
    if param.device.type not in _DEVICES:
        raise BadInputError(
            f"{_what(param)} is on {param.device}", fix="move the model to the CPU or a CUDA device"
        )
    if not param.is_contiguous():
        raise BadInputError(
            f"{_what(param)} is not contiguous",
            fix="set param.data = param.data.contiguous() before making the optimizer",
        )


def check_devices(params: Sequence[Tensor]) -> None:
    """Refuse parameters on several devices.

    Raises:
        BadInputError: names two of the devices.
    """
    names = list(dict.fromkeys(str(param.device) for param in params))
    if len(names) > 1:
        raise BadInputError(
            f"parameters are on {names[0]} and on {names[1]}",
            fix="make one optimizer for each device",
        )


def check_gradients(groups: Sequence[Mapping[str, Any]], device: torch.device) -> bool:
    """Whether any parameter has a gradient; all of them can be used.

    Args:
        groups: of the optimizer.
        device: where the parameters were when it was made.

    Raises:
        BadInputError: one of them cannot, or its parameter cannot any more.
    """
    found = False
    for group in groups:
        for param in group["params"]:
            if param.grad is not None:
                check_parameter(param)
                _check_gradient(param, device)
                found = True
    return found


def clip(params: Sequence[Tensor], limit: float | None, grad_scale: Tensor | None) -> None:
    """Clip the norm of all gradients, in place.

    Args:
        params: of the optimizer.
        limit: of the norm, None for none.
        grad_scale: what gradients are still to be divided by.

    Raises:
        BadInputError: they are.
    """
    refuse_scaled(limit, grad_scale)
    if limit is not None:
        clip_grad_norm_([param for param in params if param.grad is not None], limit)


def refuse_scaled(limit: float | None, grad_scale: Tensor | None) -> None:
    """Refuse to clip what is still to be divided by a scale.

    Raises:
        BadInputError: there is a limit and a scale.
    """
    if limit is not None and grad_scale is not None:
        raise BadInputError(
            "clip_norm is given and the gradients are scaled",
            fix="call scaler.unscale_(optimizer) before scaler.step(optimizer)",
        )


def _check_gradient(param: Tensor, device: torch.device) -> None:
    """Refuse a gradient that does not belong to its parameter, or a parameter that has moved.

    Raises:
        BadInputError: it is sparse, or of another shape, dtype or device.
    """
    grad = param.grad
    assert grad is not None
    if grad.layout != torch.strided:
        raise BadInputError(
            f"the gradient of {_what(param)} is sparse", fix="use torch.optim.SparseAdam for it"
        )
    if grad.shape != param.shape:
        raise BadInputError(
            f"the gradient of {_what(param)} has shape {tuple(grad.shape)}",
            fix="give one of its shape",
        )
    wider = param.dtype in _HALVES and grad.dtype == torch.float32 and device.type == "cpu"
    if grad.dtype != param.dtype and not wider:
        raise BadInputError(
            f"the gradient of {_what(param)} has dtype {grad.dtype}, the parameter {param.dtype}",
            fix="cast the gradient",
        )
    if grad.device != param.device:
        raise BadInputError(
            f"the gradient of {_what(param)} is on {grad.device}", fix=f"move it to {param.device}"
        )
    if param.device != device:
        raise BadInputError(
            f"{_what(param)} is on {param.device} and was on {device}",
            fix="move the model first, then make the optimizer",
        )


def _what(param: Tensor) -> str:
    """Its name in an error; made only then, for every step checks every parameter."""
    return f"a parameter of shape {tuple(param.shape)}"


def plain_group(group: Mapping[str, Any], count: int) -> dict[str, Any]:
    """A group's hyper-parameters as plain types, for the commit record.

    Args:
        group: of the optimizer.
        count: of its parameters.

    Raises:
        BadInputError: a value is nothing that can be written down.
    """
    kept = {name: _plain(name, value) for name, value in group.items() if name != "params"}
    return {**kept, "count": count}


_HYPER = ("lr", "betas", "eps", "weight_decay", "amsgrad", "maximize", "decoupled_weight_decay")


def values_of(group: Mapping[str, Any]) -> dict[str, Any]:
    """What the kernel takes from a group, as it is now."""
    values = {name: group[name] for name in _HYPER}
    return {**values, "lr": float(values["lr"]), "betas": tuple(map(float, values["betas"]))}


def _plain(name: str, value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, Tensor) and value.numel() == 1:
        return value.item()
    if isinstance(value, Iterable):
        return [_plain(name, item) for item in value]
    raise BadInputError(
        f"a parameter group has {name} of type {type(value).__name__}",
        fix="keep plain values in groups, or set durability='ephemeral'",
    )
