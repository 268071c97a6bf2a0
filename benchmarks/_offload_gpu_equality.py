"""The update by way of the device against that of the CPU, from the same gradients, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks._harness import Row
from benchmarks._offload_gpu import Scale, UnequalError, gradients, parameters, same
from benchmarks._offload_gpu_link import watching
from carousel.offload import TieredAdamW

STEPS = 6
LATE = 10_000_000
"""Cycles for which the device does nothing before it makes gradients, so that they are late."""


@dataclass(frozen=True)
class Case:
    """One way to train.

    Args:
        dtype: of the parameters.
        options: of the optimizer on the device.
        scaled: a ``GradScaler`` is used, and two steps overflow.
        own_stream: all is done under a stream of the caller's.
    """

    dtype: torch.dtype
    options: dict[str, Any] = field(default_factory=dict)
    scaled: bool = False
    own_stream: bool = False


CASES = {
    "fp32": Case(torch.float32),
    "bf16": Case(torch.bfloat16),
    "bf16, few buckets": Case(torch.bfloat16, {"chunk_numel": 1 << 16}),
    "bf16, no masters": Case(torch.bfloat16, {"master": "none"}),
    "bf16, clipped": Case(torch.bfloat16, {"clip_norm": 1.0}),
    "bf16, a stream of the caller's": Case(torch.bfloat16, own_stream=True),
    "fp16, GradScaler, overflows": Case(torch.float16, scaled=True),
}


def equality(scale: Scale, folder: Path) -> Iterator[Row]:  # noqa: ARG001 - all is in RAM
    """A row for each case.

    Raises:
        UnequalError: values were not the same in one of them.
    """
    unequal = []
    for name, case in CASES.items():
        found = equal(case, scale)
        yield Row.at_least(f"{name}: parameters and states are the same", float(found), 1)
        if not found:
            unequal.append(name)
    if unequal:
        raise UnequalError(f"not the same as on the CPU: {', '.join(unequal)}")


def equal(case: Case, scale: Scale) -> bool:
    """Whether the same training there and here leads to the same values after every step."""
    here = parameters(scale.numel, case.dtype, "cpu")
    there = parameters(scale.numel, case.dtype, scale.device)
    plain = {name: value for name, value in case.options.items() if name != "clip_norm"}
    with (
        TieredAdamW(_groups(here), **plain) as reference,
        watching(),
        _stream(case, scale),
        TieredAdamW(_groups(there), **case.options) as ours,
    ):
        steps = _Steps(case, scale.device), _Steps(case, "cpu")
        found = True
        for step in range(STEPS):
            if scale.on_gpu:
                torch.cuda._sleep(LATE)  # type: ignore[no-untyped-call]
            gradients(there, step)
            overflow = case.scaled and step in {1, 4}
            if overflow:
                there[0].grad = torch.full_like(there[0], torch.inf)
            steps[0].take(ours)
            seen = [param.detach().clone() for param in there]
            _hand_over(there, here)  # after the step, for clipping is done in place
            steps[1].take(reference)
            found = found and same(seen, here)
        return found and _same_state(ours.state_dict(), reference.state_dict())


class _Steps:
    """Takes steps, through a scaler where there is one."""

    def __init__(self, case: Case, device: str) -> None:
        self._scaler = None
        if case.scaled:
            self._scaler = torch.amp.GradScaler(device.partition(":")[0], init_scale=256.0)
            self._scaler.scale(torch.ones((), device=device))  # its scale is made here

    def take(self, optimizer: TieredAdamW) -> None:
        if self._scaler is None:
            optimizer.step()
            return
        self._scaler.step(optimizer)
        self._scaler.update()


def _stream(case: Case, scale: Scale) -> AbstractContextManager[Any]:
    if not (case.own_stream and scale.on_gpu):
        return nullcontext()
    stream = torch.cuda.Stream(scale.device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(stream.device))
    return torch.cuda.stream(stream)


def _groups(params: Sequence[nn.Parameter]) -> list[dict[str, Any]]:
    return [
        {"params": params[:3], "lr": 3e-3},
        {"params": params[3:], "lr": 1e-3, "weight_decay": 0.1, "betas": (0.8, 0.95)},
    ]


def _hand_over(there: Sequence[nn.Parameter], here: Sequence[nn.Parameter]) -> None:
    for source, param in zip(there, here, strict=True):
        param.grad = None if source.grad is None else source.grad.cpu()


def _same_state(a: dict[str, Any], b: dict[str, Any]) -> bool:
    kept: list[list[Tensor]] = []
    for state in (a, b):
        values = [v for one in state["state"].values() for v in one.values()]
        kept.append(values + list(state.get("masters", {}).values()))
    return len(kept[0]) == len(kept[1]) and same(*kept)
