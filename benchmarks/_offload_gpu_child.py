"""The process in which a part of `benchmarks.offload_gpu` runs; torch is imported only there."""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

__all__ = ["Order", "has_gpu", "run_part"]


@dataclass(frozen=True)
class Order:
    """What to run.

    Args:
        work: ``module:function``.
        folder: to work in.
        smoke: small sizes, on the CPU.
    """

    work: str
    folder: str
    smoke: bool


def run_part(order: Order, pipe: Connection) -> None:
    """Run it, and send every row as it comes and None at the end."""
    import torch

    from benchmarks._offload_gpu import FULL, SMOKE

    scale = SMOKE if order.smoke else FULL
    torch.set_num_threads(scale.threads[-1])
    module, name = order.work.split(":")
    for row in getattr(importlib.import_module(module), name)(scale, Path(order.folder)):
        pipe.send(row)
    pipe.send(None)


def has_gpu() -> bool:
    """Whether there is a CUDA device."""
    import torch

    return torch.cuda.is_available()
