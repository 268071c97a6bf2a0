"""A GPT in 16 bits: device memory and speed under several optimizers, and the largest that fits."""

from __future__ import annotations

import gc
import importlib.util
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks._harness import Row
from benchmarks._offload_gpu import Scale, sync
from carousel.offload import TieredAdamW

GIB = 1 << 30


def sweep(scale: Scale, folder: Path) -> Iterator[Row]:  # noqa: ARG001 - all is in RAM
    """Peak memory and tokens a second, by optimizer and batch, and what they are to each other."""
    found: dict[tuple[str, int], Measured] = {}
    millions = _millions(scale, scale.layers)
    yield Row("parameters, millions", millions)
    for name, make in updaters(scale).items():
        for batch, measured in _measured(name, make, scale):
            found[name, batch] = measured
            yield Row(f"{name}, batch {batch}: tokens/s", measured.speed)
            if scale.on_gpu:
                yield Row(f"{name}, batch {batch}: GiB at most", measured.peak / GIB)
    for batch in scale.batches:
        of_batch = {name: one for (name, size), one in found.items() if size == batch}
        for row in _compared(of_batch, millions * 1e6, scale):
            yield replace(row, metric=f"batch {batch}: {row.metric}")


def largest(scale: Scale, folder: Path) -> Iterator[Row]:  # noqa: ARG001 - all is in RAM
    """Parameters of the deepest GPT that takes two steps in a small device."""
    if scale.on_gpu:
        share = scale.small_device / torch.cuda.get_device_properties(scale.device).total_memory
        torch.cuda.set_per_process_memory_fraction(share, scale.device)
    theirs = _deepest(scale, OnDevice, scale.deepest)
    yield Row("torch, on the device: parameters, millions", _millions(scale, theirs))
    most = _deepest(scale, NoUpdate, scale.deepest)  # the device holds nothing of the states
    yield Row("forward and backward alone: parameters, millions", _millions(scale, most))
    ours = next(deep for deep in range(most, 0, -1) if _trains(scale, TieredAdamW, deep))
    yield Row("ours, in RAM: parameters, millions", _millions(scale, ours))
    yield Row("ours / torch", _millions(scale, ours) / _millions(scale, theirs))


class GPT(nn.Module):
    """Decoder-only, pre-norm, no dropout; 1.3 billion parameters at full scale.

    Args:
        scale: of it.
    """

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        self.embed = nn.Embedding(scale.vocabulary, scale.width)
        self.place = nn.Embedding(scale.context, scale.width)
        self.blocks = nn.ModuleList(Block(scale) for _ in range(scale.layers))
        self.norm = nn.LayerNorm(scale.width)

    def forward(self, tokens: Tensor) -> Tensor:
        """The loss of guessing each next token; tokens (batch, context)."""
        x: Tensor = self.embed(tokens) + self.place.weight
        for block in self.blocks:
            x = block(x)
        logits = F.linear(self.norm(x[:, :-1]), self.embed.weight)
        loss: Tensor = F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        return loss


class Block(nn.Module):
    """Attention and a perceptron."""

    def __init__(self, scale: Scale) -> None:
        super().__init__()
        width, self.heads = scale.width, scale.heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(batch, context, width) to the same."""
        parts = self.mix(self.before(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(seen.transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.between(x))))


class NoUpdate:
    """Takes the gradients and does nothing with them: what the model alone needs.

    Args:
        params: 16-bit.
    """

    def __init__(self, params: list[nn.Parameter]) -> None:
        pass

    def step(self) -> None:
        """Do nothing."""


class OnDevice:
    """torch's fused AdamW on fp32 masters, all on the device: what there is without offloading.

    An optimizer a parameter, so that one fp32 gradient is alive at a time.

    Args:
        params: 16-bit.
    """

    def __init__(self, params: list[nn.Parameter]) -> None:
        self._params = params
        self._masters = [nn.Parameter(p.detach().float()) for p in params]
        self._each = [torch.optim.AdamW([m], fused=True) for m in self._masters]

    @torch.no_grad()
    def step(self) -> None:
        """Take a step, and free the gradients."""
        for param, master, one in zip(self._params, self._masters, self._each, strict=True):
            assert param.grad is not None
            master.grad, param.grad = param.grad.float(), None
            one.step()
            master.grad = None
            param.copy_(master)


Make = Callable[[list[nn.Parameter]], Any]

ALONE, TORCH, OURS = "forward and backward alone", "torch, on the device", "ours, in RAM"
TORCHAO, PAGED = "torchao, offloaded, 16-bit states", "bitsandbytes, paged"


def updaters(scale: Scale) -> dict[str, Make]:
    """Makers of what is compared; those that are not installed are left out."""
    made: dict[str, Make] = {ALONE: NoUpdate, TORCH: OnDevice, OURS: TieredAdamW}
    if scale.on_gpu and importlib.util.find_spec("torchao"):
        made[TORCHAO] = _torchao
    if scale.on_gpu and importlib.util.find_spec("bitsandbytes"):
        made[PAGED] = _paged
    return made


def _torchao(params: list[nn.Parameter]) -> Any:
    from torchao.optim import CPUOffloadOptimizer

    return CPUOffloadOptimizer(params, torch.optim.AdamW, offload_gradients=False, fused=True)


def _paged(params: list[nn.Parameter]) -> Any:
    import bitsandbytes

    return bitsandbytes.optim.PagedAdamW32bit(params)


class Step:
    """An iteration of training.

    Args:
        net: the model.
        optimizer: of it.
    """

    def __init__(self, net: GPT, optimizer: Any) -> None:
        self._held: tuple[GPT, Any] | None = (net, optimizer)

    def __call__(self, tokens: Tensor) -> None:
        """Train on (batch, context) tokens."""
        assert self._held is not None
        net, optimizer = self._held
        net(tokens).backward()
        optimizer.step()
        for param in net.parameters():
            param.grad = None

    def end(self) -> None:
        """Hold nothing any more."""
        assert self._held is not None
        (_, optimizer), self._held = self._held, None
        if hasattr(optimizer, "close"):
            optimizer.close()


@contextmanager
def _training(scale: Scale, make: Make) -> Iterator[Step]:
    """An iteration of a new GPT; nothing of it is left on the device afterwards."""
    _clean(scale)
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)  # made in 16 bits: in 32 it would not fit
    try:
        with torch.device(scale.device):
            net = GPT(scale)
    finally:
        torch.set_default_dtype(before)
    step = Step(net, make(list(net.parameters())))
    del net
    try:
        yield step
    finally:
        step.end()
        _clean(scale)


@dataclass(frozen=True)
class Measured:
    """What an optimizer needs with one size of batch.

    Args:
        speed: tokens a second.
        peak: bytes of the device, at most.
    """

    speed: float
    peak: float


def _measured(name: str, make: Make, scale: Scale) -> Iterator[tuple[int, Measured]]:
    """By size of batch, up to the first for which there is no room."""
    with _training(scale, make) as step:
        for batch in scale.batches:
            try:
                yield batch, _measure(step, batch, scale)
            except torch.OutOfMemoryError:
                print(f"  {name}: no room for batches of {batch}")
                return


def _measure(step: Step, batch: int, scale: Scale) -> Measured:
    tokens = _tokens(batch, scale)
    step(tokens)
    sync(scale)
    if scale.on_gpu:
        torch.cuda.reset_peak_memory_stats()
    start = time.perf_counter()
    for _ in range(scale.steps):
        step(tokens)
    sync(scale)
    seconds = time.perf_counter() - start
    peak = torch.cuda.max_memory_allocated() if scale.on_gpu else 0
    return Measured(batch * scale.context * scale.steps / seconds, float(peak))


def _compared(found: dict[str, Measured], numel: float, scale: Scale) -> Iterator[Row]:
    """Ours against the others, with one size of batch."""
    ours = found.get(OURS)
    if ours is None:
        return
    if scale.on_gpu and TORCH in found:
        saved = (found[TORCH].peak - ours.peak) / numel
        yield Row.at_least("bytes a parameter saved over torch", saved, 12)
    if scale.on_gpu and ALONE in found:
        yield Row.at_most(
            "memory / forward and backward alone", ours.peak / found[ALONE].peak, 1.05
        )
    for name in (ALONE, TORCH, PAGED):
        if name in found:
            yield Row(f"tokens/s, ours / {name}", ours.speed / found[name].speed)
    if TORCHAO in found:
        ratio = ours.speed / found[TORCHAO].speed
        yield Row.at_least(f"tokens/s, ours / {TORCHAO}", ratio, 1.0)


def _deepest(scale: Scale, make: Make, most: int) -> int:
    """Layers with which it trains: the most, up to a limit."""
    low, high = 1, most + 1
    while high - low > 1:
        middle = (low + high) // 2
        if _trains(scale, make, middle):
            low = middle
        else:
            high = middle
    return low


def _trains(scale: Scale, make: Make, layers: int) -> bool:
    """Whether there is room for two steps."""
    try:
        with _training(replace(scale, layers=layers), make) as step:
            for _ in range(2):
                step(_tokens(1, scale))
            sync(scale)
    except torch.OutOfMemoryError:
        return False
    finally:
        _clean(scale)
    return True


def _tokens(batch: int, scale: Scale) -> Tensor:
    return torch.randint(scale.vocabulary, (batch, scale.context), device=scale.device)


def _millions(scale: Scale, layers: int) -> float:
    with torch.device("meta"):
        net = GPT(replace(scale, layers=layers))
    return sum(param.numel() for param in net.parameters()) / 1e6


def _clean(scale: Scale) -> None:
    gc.collect()
    if scale.on_gpu:
        torch.cuda.empty_cache()
