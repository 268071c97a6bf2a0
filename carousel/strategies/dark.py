"""Logits that are stored with a sample ("dark knowledge"), and how far a model is from them now.

After Buzzega et al., "Dark Experience for General Continual Learning: a Strong, Simple Baseline",
NeurIPS 2020, section 3.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import Module
from torch.nn.functional import pad

__all__ = ["LOGIT_FIELDS", "fill_values", "logit_mse", "stored_logits"]

LOGIT_FIELDS = ("logits", "width")
"""The fields of a record that `stored_logits` gives."""


def stored_logits(logits: Tensor, width: int) -> dict[str, Tensor]:
    """The fields under which logits are stored beside their sample.

    Args:
        logits: (n, C) of any device, C at most `width`.
        width: outputs a record has room for.

    Returns:
        ``logits`` (n, width) float32 with zeros behind the C that there are, and ``width`` (n,)
        int32, all C.

    Example:
        >>> fields = stored_logits(torch.ones(1, 2), width=3)
        >>> fields["logits"].tolist(), fields["width"].tolist()
        ([[1.0, 1.0, 0.0]], [2])
    """
    values = logits.detach().to("cpu", torch.float32)
    count, outputs = values.shape
    return {
        "logits": pad(values, (0, width - outputs)) if outputs < width else values.contiguous(),
        "width": torch.full((count,), outputs, dtype=torch.int32),
    }


def logit_mse(
    logits: Tensor, stored: Tensor, width: Tensor, *, unused: Sequence[float] = ()
) -> Tensor:
    """Mean squared distance between logits now and logits then, over rows and outputs.

    A row is compared in the outputs that its model had when its logits were taken: a head that
    has grown since is free in the others. With a fixed head that is all of them.

    Args:
        logits: (n, C) now.
        stored: (n, W) float32 then.
        width: (n,) int32, how many of the W are logits; 0 for a sample that has none.
        unused: values that stand for "no output", see `fill_values`; not compared either.

    Returns:
        A scalar; 0 if there is nothing to compare.

    Example:
        >>> now, then = torch.tensor([[1.0, 2.0, 9.0]]), torch.tensor([[1.0, 0.0, 0.0]])
        >>> logit_mse(now, then, torch.tensor([2])).item()
        2.0
    """
    columns = min(logits.shape[1], stored.shape[1])
    target = stored[:, :columns].to(logits.device, logits.dtype, non_blocking=True)
    width = width.to(logits.device, non_blocking=True)
    compared = torch.arange(columns, device=logits.device) < width.unsqueeze(1)
    for value in unused:
        compared &= target != value
    squares = (logits[:, :columns] - target).square().masked_fill(~compared, 0)
    return squares.sum() / compared.sum().clamp(min=1)


def fill_values(model: Module) -> tuple[float, ...]:
    """What heads of Avalanche give for outputs whose class no experience has had yet.

    Example:
        >>> from avalanche.models import IncrementalClassifier
        >>> fill_values(IncrementalClassifier(4)), fill_values(torch.nn.Linear(4, 2))
        ((-1000.0,), ())
    """
    heads: list[Any] = [module for module in model.modules() if hasattr(module, "mask_value")]
    return tuple({float(head.mask_value) for head in heads if head.masking})
