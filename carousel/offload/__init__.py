"""Optimizer states in RAM up to a budget and on storage beyond it.

Example:
    >>> import torch
    >>> from carousel.offload import TieredAdamW
    >>> weight = torch.nn.Parameter(torch.ones(3))
    >>> optimizer = TieredAdamW([weight], lr=0.1)
    >>> weight.sum().backward()
    >>> optimizer.step()
    >>> [round(value, 4) for value in weight.tolist()]
    [0.899, 0.899, 0.899]
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carousel.lazy import lazy_names

if TYPE_CHECKING:
    from carousel.offload.optim import TieredAdamW
    from carousel.offload.stats import OffloadStats

__all__ = ["OffloadStats", "TieredAdamW"]

__getattr__, __dir__ = lazy_names(__name__, {"optim": ("TieredAdamW",), "stats": ("OffloadStats",)})
