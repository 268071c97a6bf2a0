"""What the parts of `benchmarks.offload_gpu` share: sizes, parameters, gradients, and waiting."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

__all__ = ["FULL", "SMOKE", "Scale", "UnequalError", "gradients", "parameters", "same"]
__all__ += ["seconds_of", "sync"]


@dataclass(frozen=True)
class Scale:
    """How large everything is.

    Args:
        device: of the model.
        width, layers, heads, vocabulary, context: of the GPT.
        batches: sequences of a step; each size is measured.
        steps: that are timed.
        numel: elements of the parameters whose values are compared.
        many: elements of the parameters whose traffic is watched.
        stored: elements of the parameters whose states are on storage, at most.
        stored_seconds: that a step may spend on the disk; the states are fewer where it is slow.
        long: steps of the allocator's check.
        threads: of the kernel, where its speed is probed; the last is used elsewhere.
        probe: bytes of a transfer that is timed.
        small_device: bytes of the device in which the largest model is looked for.
        deepest: layers that are tried there, at most.
    """

    device: str
    width: int
    layers: int
    heads: int
    vocabulary: int
    context: int
    batches: tuple[int, ...]
    steps: int
    numel: int
    many: int
    stored: int
    stored_seconds: float
    long: int
    threads: tuple[int, ...]
    probe: int
    small_device: int
    deepest: int

    @property
    def on_gpu(self) -> bool:
        """Whether there are streams to look at."""
        return self.device != "cpu"


_CORES = os.cpu_count() or 1

FULL = Scale(
    device="cuda:0",
    width=2048,
    layers=24,
    heads=16,
    vocabulary=50_304,
    context=1024,
    batches=(2, 8, 24),
    steps=3,
    numel=1 << 24,
    many=1 << 28,
    stored=1_300_000_000,
    stored_seconds=2.0,
    long=100,
    threads=(min(8, _CORES), min(16, _CORES)),
    probe=1 << 28,
    small_device=6 << 30,
    deepest=64,
)

SMOKE = Scale(
    device="cpu",
    width=64,
    layers=2,
    heads=2,
    vocabulary=256,
    context=32,
    batches=(1, 2),
    steps=2,
    numel=1 << 17,
    many=1 << 16,
    stored=1 << 20,
    stored_seconds=1.0,
    long=8,
    threads=(1,),
    probe=1 << 20,
    small_device=0,
    deepest=2,
)


class UnequalError(Exception):
    """Values that had to be the same were not."""


def parameters(numel: int, dtype: torch.dtype, device: str) -> list[nn.Parameter]:
    """The same ones always: large and small, odd and even; their elements are `numel` or more."""
    rows = math.isqrt(numel // 4)
    shapes = [(rows, rows)] * 4 + [(4 * rows + 1,), (1001,), (7,), (1,)]
    numbers = torch.Generator().manual_seed(0)
    made = [torch.randn(shape, generator=numbers).to(device, dtype) for shape in shapes]
    return [nn.Parameter(values) for values in made]


def gradients(params: Sequence[nn.Parameter], step: int) -> None:
    """Give parameters the gradients of a step, made where they are; now and then one has none."""
    numbers = torch.Generator(params[0].device).manual_seed(1000 + step)
    for number, param in enumerate(params):
        grad = torch.randn(param.shape, generator=numbers, device=param.device)
        param.grad = None if (step + number) % 5 == 4 else grad.to(param.dtype)


def same(a: Sequence[Tensor], b: Sequence[Tensor]) -> bool:
    """Whether all values are equal, wherever they are."""
    return all(torch.equal(x.cpu(), y.cpu()) for x, y in zip(a, b, strict=True))


def sync(scale: Scale) -> None:
    """Wait for the device."""
    if scale.on_gpu:
        torch.cuda.synchronize()


def seconds_of(work: Callable[[], object], scale: Scale, repeats: int = 3) -> float:
    """The least seconds of some work, the device's part included."""
    best = float("inf")
    for _ in range(repeats):
        sync(scale)
        start = time.perf_counter()
        work()
        sync(scale)
        best = min(best, time.perf_counter() - start)
    return best
