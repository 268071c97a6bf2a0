"""A state_dict checked against an optimizer, before anything of it is taken."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from carousel.errors import BadInputError
from carousel.offload.sources import MASTER

__all__ = ["MASTERS", "Loaded", "check_state_dict", "whole_or_not"]

MASTERS = "masters"
"""Key of a state_dict under which the fp32 masters are; torch takes no notice of it."""


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a state_dict holds.

    Args:
        groups: hyper-parameters of each group, without ``params``.
        state: by number of the parameter: torch's names to tensors, and ``master``.
        steps: Adam's step of each parameter that has states; fp32, no dimensions.
    """

    groups: list[dict[str, Any]]
    state: dict[int, dict[str, Any]]
    steps: dict[int, Tensor]


def check_state_dict(state_dict: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> Loaded:
    """Take a state_dict of this optimizer, or of torch's Adam or AdamW, apart.

    Args:
        state_dict: with ``state`` and ``param_groups``; ``step`` may be an int.
        groups: of the optimizer that is to have it.

    Raises:
        BadInputError: it is of other groups or parameters, or lacks a part.
    """
    saved = state_dict["param_groups"]
    counts = [len(group["params"]) for group in saved]
    have = [len(group["params"]) for group in groups]
    if counts != have:
        raise BadInputError(
            f"the state_dict has groups of {counts} parameters and the optimizer of {have}",
            fix="make the optimizer with the same groups",
        )
    ids = [number for group in saved for number in group["params"]]
    params = [param for group in groups for param in group["params"]]
    amsgrad = [bool(group.get("amsgrad")) for group in saved for _ in group["params"]]
    state: dict[int, dict[str, Any]] = {}
    steps: dict[int, Tensor] = {}
    for number, (key, param) in enumerate(zip(ids, params, strict=True)):
        kept = dict(state_dict["state"].get(key) or {})
        if not kept:
            continue
        _check_parts(kept, param, number, amsgrad[number])
        master = state_dict.get(MASTERS, {}).get(key)
        if master is not None:
            kept[MASTER] = master
        steps[number] = torch.tensor(float(kept["step"]), dtype=torch.float32, device="cpu")
        state[number] = kept
    plain = [{k: v for k, v in group.items() if k != "params"} for group in saved]
    return Loaded(plain, state, steps)


@contextmanager
def whole_or_not(optimizer: Optimizer) -> Iterator[None]:
    """If the block fails, the optimizer's groups and state are what they were."""
    groups, state = [dict(group) for group in optimizer.param_groups], optimizer.state
    try:
        yield
    except BaseException:
        for group, before in zip(optimizer.param_groups, groups, strict=True):
            group.clear()
            group.update(before)
        optimizer.state = state
        raise


def _check_parts(kept: Mapping[str, Any], param: Tensor, number: int, amsgrad: bool) -> None:
    names = ["exp_avg", "exp_avg_sq"] + ["max_exp_avg_sq"] * amsgrad
    for name in names:
        value = kept.get(name)
        if not isinstance(value, Tensor) or "step" not in kept:
            raise BadInputError(
                f"the state of parameter {number} has no {name} or no step",
                fix="give a state_dict of Adam or AdamW",
            )
        if value.shape != param.shape:
            raise BadInputError(
                f"{name} of parameter {number} has shape {tuple(value.shape)} and the parameter "
                f"{tuple(param.shape)}",
                fix="load it into an optimizer of the same model",
            )
