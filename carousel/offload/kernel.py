"""The arithmetic: torch's own fused AdamW for the CPU, on slices of parameters.

It is at the speed of memory, and on slices that begin at multiples of 64 elements it gives the
same bits as on the whole, so there is nothing to gain by another one in fp32.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

__all__ = ["Operands", "fused_update"]


@dataclass(slots=True)
class Operands:
    """Slices that one call updates; all of one dtype, one-dimensional, in the same order.

    `steps` are the Adam steps of the slices' parameters, this one included; `vmax` is empty
    without amsgrad.
    """

    params: list[Tensor] = field(default_factory=list)
    grads: list[Tensor] = field(default_factory=list)
    m: list[Tensor] = field(default_factory=list)
    v: list[Tensor] = field(default_factory=list)
    vmax: list[Tensor] = field(default_factory=list)
    steps: list[Tensor] = field(default_factory=list)


def fused_update(operands: Operands, group: Mapping[str, Any], grad_scale: Tensor | None) -> None:
    """Update parameters and states in place.

    Args:
        operands: slices of parameters of one group.
        group: its hyper-parameters, as in ``torch.optim.AdamW``; tensors among them may be on any
            device.
        grad_scale: what gradients are divided by first, in place; of a ``GradScaler``.
    """
    call = torch._fused_adamw_ if group["decoupled_weight_decay"] else torch._fused_adam_
    beta1, beta2 = (float(beta) for beta in group["betas"])
    call(
        operands.params,
        operands.grads,
        operands.m,
        operands.v,
        operands.vmax,
        operands.steps,
        amsgrad=group["amsgrad"],
        lr=float(group["lr"]),
        beta1=beta1,
        beta2=beta2,
        weight_decay=group["weight_decay"],
        eps=group["eps"],
        maximize=group["maximize"],
        grad_scale=grad_scale,
    )
