"""The delayed update: what it costs in loss in short runs, and what it saves in time.

Loss: a small character model on the standard library's sources, OneCycle to the given learning
rate, gradients clipped to 1. The same seeds, so the same weights and batches, with the update at
once and one step late; the loss on held-out text counts, means over the seeds. One delayed run is
also done by hand, torch's optimizer behind a queue of one gradient, and must end with the same
bits, or this fails.

Time: a pause stands for forward and backward on a device, as long as an update takes, since there
the host has nothing else to do. In turns, with medians of paired ratios, each turn with all that
it left to be applied and written. An update that passes through a file, and one in RAM.

Run: ``python -m benchmarks.offload_delay [--json FILE] [--folder FOLDER] [--parts loss,time]``.
A part ``long``, 3000 steps, runs only when it is named.
"""

from __future__ import annotations

import argparse
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from benchmarks._char_lm import CharLM, Text, loss_of, standard_library, validation_loss
from benchmarks._harness import Row, interleave, report
from benchmarks._offload import CHUNK, MI, model, wall_time
from benchmarks.swap_overhead import ratio_row
from carousel.offload import TieredAdamW
from carousel.report.study.statistics import mean_interval

Delay = Literal[0, 1]

FIRST = 40
"""The first step that is delayed."""

SEEDS = (0, 1, 2)
STEPS = 400

PARAMS = 8
"""Of 1 Mi elements each, where time counts."""

ITERATIONS = 24
"""Of a turn: a turn ends with an update that nothing hides, so it should not be short."""

BLOCKS = 11

RING_BYTES = 6 * (CHUNK * 12 + 4096)
"""The least budget: six buffers, and no states that stay in RAM."""


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to measure")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    choices = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", "delay=1", UserWarning)
    rows = []
    with tempfile.TemporaryDirectory(dir=choices.folder) as folder:
        for part in choices.parts.split(","):
            rows += (PARTS | LONG)[part](Path(folder))
    report(rows, "offload_delay", choices.json)


def losses(_: Path) -> list[Row]:
    """Short runs, which are where a delay is dear."""
    text = standard_library()
    check_against_a_queue(text)
    return loss_rows(text, 1e-3, STEPS, 1.02) + loss_rows(text, 3e-3, STEPS, None)


def long_losses(_: Path) -> list[Row]:
    """Longer runs, for which there is time only when they are asked for."""
    return loss_rows(standard_library(), 1e-3, 3000, 1.01)


def times(folder: Path) -> list[Row]:
    """Iterations with the update at once and one step late."""
    streamed: dict[str, Any] = {"durability": "process", "chunk_numel": CHUNK}
    copies = PARAMS * MI * 8
    """Of gradients and parameters: a delayed optimizer takes them out of its budget."""
    return time_rows(
        "states through a file",
        streamed | {"storage": folder / "at_once", "ram_budget": RING_BYTES},
        streamed | {"storage": folder / "late", "ram_budget": RING_BYTES + copies},
    ) + time_rows("states in RAM", {}, {})


# -- loss ----------------------------------------------------------------------------------------


def loss_rows(text: Text, lr: float, steps: int, bound: float | None) -> list[Row]:
    """Both kinds of training over the seeds."""
    at_once, late = (
        np.array([trained(text, seed, lr, steps, delay) for seed in SEEDS]) for delay in (0, 1)
    )
    label = f"lr {lr:g}, {steps} steps"
    metric, found = f"{label}: loss, one step late / at once", float(late.mean() / at_once.mean())
    each = mean_interval(list(late / at_once))
    assert each is not None
    return [
        Row(metric, found) if bound is None else Row.at_most(metric, found, bound),
        *(
            Row(f"{label}, seed {seed}: the same", float(ratio))
            for seed, ratio in zip(SEEDS, late / at_once, strict=True)
        ),
        Row(f"{label}: half the 95 % interval of the seeds' ratios", each.half),
        Row(f"{label}: loss at once", float(at_once.mean())),
        Row(f"{label}: loss one step late", float(late.mean())),
    ]


def trained(text: Text, seed: int, lr: float, steps: int, delay: Delay) -> float:
    """The loss on held-out text at the end of a run."""
    net = new_model(seed)
    with TieredAdamW(
        net.parameters(), lr=lr, clip_norm=1.0, delay=delay, delay_from=FIRST
    ) as optimizer:
        for step in scheduled(optimizer, lr, steps):
            net.zero_grad()
            loss_of(net, text.batch(seed, step)).backward()
            optimizer.step()
    return validation_loss(net, text)


def check_against_a_queue(text: Text, steps: int = 2 * FIRST) -> None:
    """Fail unless a delayed run ends with the bits of a queue of one gradient."""
    ours, theirs = new_model(0), new_model(0)
    with TieredAdamW(
        ours.parameters(), lr=1e-3, clip_norm=1.0, delay=1, delay_from=FIRST
    ) as optimizer:
        for step in scheduled(optimizer, 1e-3, steps):
            ours.zero_grad()
            loss_of(ours, text.batch(0, step)).backward()
            optimizer.step()
    queued(theirs, text, steps)
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        if not torch.equal(a, b):
            raise SystemExit("a delayed run and a queue of one gradient led to different values")


def queued(net: CharLM, text: Text, steps: int) -> None:
    """A delayed run by hand: each gradient is applied after the next one was computed."""
    params = list(net.parameters())
    optimizer = torch.optim.AdamW(params, lr=1e-3, fused=True)
    waiting: list[tuple[list[Tensor | None], dict[str, Any]]] = []
    for step in scheduled(optimizer, 1e-3, steps):
        net.zero_grad()
        loss_of(net, text.batch(0, step)).backward()
        clip_grad_norm_(params, 1.0)
        waiting.append(([param.grad for param in params], dict(optimizer.param_groups[0])))
        if len(waiting) > 1 or step + 1 < FIRST:
            apply(optimizer, *waiting.pop(0))
    apply(optimizer, *waiting.pop(0))


def apply(optimizer: Optimizer, grads: Sequence[Tensor | None], hyper: dict[str, Any]) -> None:
    """A step with these gradients and hyper-parameters instead of the present ones."""
    (group,) = optimizer.param_groups
    present = dict(group)
    group.update(hyper)
    for param, grad in zip(group["params"], grads, strict=True):
        param.grad = grad
    optimizer.step()
    group.update(present)


def scheduled(optimizer: Optimizer, lr: float, steps: int) -> Iterator[int]:
    """The numbers of the steps, with a schedule that goes on after each."""
    schedule = OneCycleLR(optimizer, max_lr=lr, total_steps=steps)
    for step in range(steps):
        yield step
        if step + 1 < steps:
            schedule.step()


def new_model(seed: int) -> CharLM:
    """Weights follow from the seed."""
    torch.manual_seed(seed)
    return CharLM()


# -- time ----------------------------------------------------------------------------------------


def time_rows(label: str, at_once: dict[str, Any], late: dict[str, Any]) -> list[Row]:
    """Iterations of a model on a device that does not exist."""
    with (
        TieredAdamW(model(PARAMS), **at_once) as now,
        TieredAdamW(model(PARAMS), delay=1, delay_from=1, **late) as later,
    ):
        update = typical_update(now)
        sides = {
            "now": wall_time(turn(now, update)),
            "later": wall_time(turn(later, update)),
            "alone": wall_time(turn(now, 0.0)),
        }
        costs = interleave(sides, BLOCKS, warm_up=2)
    ratios = costs["later"] / costs["now"]
    seconds = {name: float(np.median(cost)) / ITERATIONS for name, cost in costs.items()}
    return [
        ratio_row(f"{label}: iteration, one step late / at once", ratios, 0.65),
        Row(f"{label}: pause, seconds", update),
        Row(f"{label}: update alone, seconds", seconds["alone"]),
        Row(f"{label}: iteration at once, seconds", seconds["now"]),
        Row(f"{label}: iteration one step late, seconds", seconds["later"]),
    ]


def turn(optimizer: TieredAdamW, pause: float) -> Callable[[], None]:
    """Some iterations with gradients that are there after a pause, until all is written."""

    def run() -> None:
        for _ in range(ITERATIONS):
            time.sleep(pause)
            optimizer.step()
        optimizer.flush()

    return run


def typical_update(optimizer: TieredAdamW) -> float:
    """Seconds of an update with nothing to hide it."""
    work = wall_time(turn(optimizer, 0.0))
    work()
    return float(np.median([work() for _ in range(5)])) / ITERATIONS


PARTS: dict[str, Callable[[Path], list[Row]]] = {"loss": losses, "time": times}
LONG: dict[str, Callable[[Path], list[Row]]] = {"long": long_losses}


if __name__ == "__main__":
    main()
