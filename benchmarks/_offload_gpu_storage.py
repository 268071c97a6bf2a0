"""States of a model on a device that are beyond the budget, and a kill while they are written."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks._harness import Row, interleave
from benchmarks._offload import move, wall_time
from benchmarks._offload_gpu import Scale, UnequalError, gradients, parameters, same, sync
from benchmarks._offload_gpu_machine import disk_rate
from carousel.offload import TieredAdamW

RECORD = 12
"""Bytes of the states of a 16-bit parameter; as many are read and written a step."""

SHARE = 4 / 15.6
"""The budget over the states."""

BLOCKS = 5
ANNOUNCED = 3
"""Steps after which the process is killed."""


def storage(scale: Scale, folder: Path) -> Iterator[Row]:
    """What a step takes, and what is there after a kill.

    Raises:
        UnequalError: what was recovered is not what was.
    """
    yield from recovered(scale, folder / "killed")
    yield from streamed(scale, folder)


def streamed(scale: Scale, folder: Path) -> Iterator[Row]:
    """A step with states on storage against the longer of its arithmetic and its traffic."""
    rate = disk_rate(folder, scale.probe)
    numel = int(min(scale.stored, rate * scale.stored_seconds / (2 * RECORD)))
    params = parameters(numel, torch.bfloat16, scale.device)
    gradients(params, 0)
    for param in params:
        param.grad = torch.ones_like(param) if param.grad is None else param.grad
    budget = int(RECORD * numel * SHARE)
    with (
        _stored(params, folder / "states", budget) as ours,
        TieredAdamW(params, lr=1e-5) as in_ram,
    ):
        works: dict[str, Callable[[], object]] = {
            "ours": partial(_take, ours, scale),
            "compute": partial(_take, in_ram, scale),
            "io": partial(_move, ours),
        }
        works["ours"]()  # masters are made, and there is something to read
        sides = {name: wall_time(work) for name, work in works.items()}
        costs = interleave(sides, BLOCKS)
    longer = np.maximum(costs["compute"], costs["io"])
    yield Row("states, GB", RECORD * numel / 1e9)
    yield Row.at_most("step / max(compute, io)", float(np.median(costs["ours"] / longer)), 1.15)
    for name, cost in costs.items():
        yield Row(f"{name}, seconds", float(np.median(cost)))


def recovered(scale: Scale, folder: Path) -> Iterator[Row]:
    """Kill a process within its steps, and go on from what is there.

    Raises:
        UnequalError: it is not the parameters and states of the step that it says.
    """
    processes = multiprocessing.get_context("fork")  # nobody here has used the device yet
    here, there = processes.Pipe(duplex=False)
    victim = processes.Process(target=train_until_killed, args=(scale, folder, there))
    victim.start()
    there.close()
    announced = 0
    while announced < ANNOUNCED:
        announced = here.recv()
    victim.kill()
    victim.join()
    params = parameters(scale.numel, torch.bfloat16, scale.device)
    with TieredAdamW.resume(params, folder, ram_budget=_budget(scale)) as optimizer:
        steps = optimizer.stats().steps
        again, reference = _reference(scale, steps)
        found = same(params, again) and _same_state(optimizer, folder.parent, reference)
    reference.close()
    yield Row.at_most("steps announced and lost by a kill", max(0, announced - steps), 1)
    yield Row.at_least("recovered parameters and states are the same", float(found), 1)
    if not found:
        raise UnequalError(f"what was recovered is not what was after step {steps}")


def train_until_killed(scale: Scale, folder: Path, pipe: Connection) -> None:
    """Take steps, and say so after each; it ends by itself if nobody kills it."""
    params = parameters(scale.numel, torch.bfloat16, scale.device)
    with _stored(params, folder, _budget(scale)) as optimizer:
        for step in range(50 * ANNOUNCED):
            gradients(params, step)
            optimizer.step()
            pipe.send(step + 1)


def _reference(scale: Scale, steps: int) -> tuple[list[nn.Parameter], TieredAdamW]:
    """The same training, with nobody killed and all in RAM."""
    params = parameters(scale.numel, torch.bfloat16, scale.device)
    optimizer = TieredAdamW(params, lr=1e-5)
    for step in range(steps):
        gradients(params, step)
        optimizer.step()
    return params, optimizer


def _same_state(optimizer: TieredAdamW, folder: Path, reference: TieredAdamW) -> bool:
    """Whether states beyond the budget are those of another optimizer."""
    optimizer.export(folder / "exported")
    mine = torch.load(folder / "exported", mmap=True, weights_only=True)["state"]
    theirs: dict[int, dict[str, Any]] = reference.state_dict()["state"]
    return mine.keys() == theirs.keys() and all(
        same(list(mine[key].values()), [theirs[key][name] for name in mine[key]]) for key in mine
    )


def _stored(params: list[nn.Parameter], folder: Path, budget: int) -> TieredAdamW:
    return TieredAdamW(params, lr=1e-5, ram_budget=budget, storage=folder, durability="process")


def _budget(scale: Scale) -> int:
    return int(RECORD * scale.numel * SHARE)


def _take(optimizer: TieredAdamW, scale: Scale) -> None:
    optimizer.step()
    optimizer.flush()
    sync(scale)


def _move(optimizer: TieredAdamW) -> None:
    move(optimizer)
    optimizer.flush()
