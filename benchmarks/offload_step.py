"""What a step of `TieredAdamW` costs: in RAM, from storage, in bytes, and in RAM that it takes.

In RAM: the calling thread's CPU time against torch's fused kernel, and against torch's default for
the CPU. From storage: wall time against the slower of arithmetic alone (all in RAM) and moving
alone (the same engine, nothing computed), against one chunk after the other, and moving against
plain positional reads and writes of the same sizes by as many threads. All pairs run interleaved in
this process, and medians of the paired ratios count; RAM is that of a process of its own.

Run: ``python -m benchmarks.offload_step [--json FILE] [--plot FILE] [--parts ram,stream]``.
"""

from __future__ import annotations

import argparse
import gc
import tempfile
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import NamedTuple

import matplotlib as mpl
import numpy as np
import torch

from benchmarks._harness import Row, interleave, median_ratio, report
from benchmarks._offload import (
    TURN,
    cpu_time,
    model,
    move,
    one_by_one,
    plain_io,
    run_apart,
    stored,
    turn,
    wall_time,
)
from carousel.offload import OffloadStats, TieredAdamW
from carousel.storage.tier import Durability

mpl.use("Agg")
import matplotlib.pyplot as plt

LARGE = 48
"""Parameters of 1 Mi elements each, in RAM."""
SHARES = (0.0, 0.25, 0.5, 0.75)


def main() -> None:
    """Measure, print the table, write the JSON and the plot."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--plot", type=Path, help="also draw step time against budget")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated")
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to measure")
    choices = parser.parse_args()
    torch.set_num_threads(1)
    rows = []
    with tempfile.TemporaryDirectory(dir=choices.folder) as folder:
        for part in choices.parts.split(","):
            rows += PARTS[part](Path(folder), choices)
            gc.collect()
    report(rows, "offload_step", choices.json)


def in_ram(_: Path, __: argparse.Namespace) -> list[Row]:
    """All states in RAM: against torch fused, and torch as it comes."""
    ours, fused, plain = (model(LARGE) for _ in range(3))
    sides = {
        "ours": cpu_time(TieredAdamW(ours, lr=1e-3).step),
        "fused": cpu_time(torch.optim.AdamW(fused, lr=1e-3, fused=True).step),
        "default": cpu_time(torch.optim.AdamW(plain, lr=1e-3).step),
    }
    costs = interleave(sides, 9, warm_up=2)
    return [
        Row.at_most("in RAM: ours / torch fused", median_ratio(costs, "ours", "fused"), 1.10),
        Row.at_least("in RAM: torch default / ours", median_ratio(costs, "default", "ours"), 3.0),
    ]


def halves(_: Path, __: argparse.Namespace) -> list[Row]:
    """bf16 parameters with fp32 masters, all in RAM, against torch fused in fp32."""
    sides = {
        "ours": cpu_time(TieredAdamW(model(LARGE, torch.bfloat16), lr=1e-3).step),
        "fused": cpu_time(torch.optim.AdamW(model(LARGE), lr=1e-3, fused=True).step),
    }
    costs = interleave(sides, 9, warm_up=2)
    return [
        Row.at_most("bf16: ours / torch fused fp32", median_ratio(costs, "ours", "fused"), 1.55)
    ]


def streamed(folder: Path, _: argparse.Namespace) -> list[Row]:
    """States of four and eight times the budget."""
    rows = []
    for times in (4, 8):
        with stored(folder, times=times) as optimizer, ExitStack() as stack:
            resident = TieredAdamW(
                [p for g in optimizer.param_groups for p in g["params"]], lr=1e-3
            )
            raw = stack.enter_context(plain_io(folder, optimizer))
            works = {
                "stream": optimizer.step,
                "compute": resident.step,
                "io": partial(move, optimizer),
                "serial": partial(one_by_one, optimizer),
                "raw": raw,
            }
            sides = {name: wall_time(turn(work, optimizer)) for name, work in works.items()}
            costs = interleave(sides, 11, warm_up=2)
            longer = np.maximum(costs["compute"], costs["io"])
            found = float(np.median(costs["stream"] / longer))
            label = f"states {times}x the budget"
            rows += [
                Row.at_most(f"{label}: step / max(compute, io)", found, 1.15),
                Row.at_least(
                    f"{label}: serial / step", median_ratio(costs, "serial", "stream"), 1.4
                ),
                Row.at_least(f"{label}: io, plain / ours", median_ratio(costs, "raw", "io"), 0.9),
                Row(f"{label}: seconds a step", float(np.median(costs["stream"])) / TURN),
                Row(f"{label}: reads past the page cache", float(optimizer.stats().direct)),
            ]
    return rows


def moved_bytes(folder: Path, _: argparse.Namespace) -> list[Row]:
    """Bytes a parameter and step, nothing in RAM: at most 12 and 12 (DeepSpeed's NVMe: 16, 16)."""
    rows = []
    for dtype, read, written in ((torch.float32, 8, 12), (torch.bfloat16, 12, 12)):
        name = str(dtype).removeprefix("torch.")
        with stored(folder, dtype=dtype) as optimizer:
            found = moved(optimizer)
        rows += [
            Row.at_most(f"{name}: bytes read a parameter and step", found[0], read * 1.02),
            Row.at_most(f"{name}: bytes written a parameter and step", found[1], written * 1.02),
        ]
    return rows


def resident(_: Path, choices: argparse.Namespace) -> list[Row]:
    """RAM that an optimizer takes whose states are eight times the budget."""
    growth = run_apart(choices.folder, times=8)
    return [
        Row.at_most("8x budget: anonymous RAM over the budget, MiB", growth["anonymous"], 16),
        Row.at_most("8x budget: resident RAM over the budget, MiB", growth["resident"], 32),
    ]


def budgets(folder: Path, choices: argparse.Namespace) -> list[Row]:
    """What a larger budget saves: bytes read fall with it, and so does the step time.

    With a commit every step, what stays in RAM is written as often as the rest.
    """
    without = by_budget(folder, "ephemeral")
    committed = by_budget(folder, "process")
    if choices.plot is not None:
        draw({"no commits": without, "a commit every step": committed}, choices.plot)
    kept, read = without.kept, without.read
    off = max(
        abs(part / read[0] - (1 - share) / (1 - kept[0]))
        for part, share in zip(read, kept, strict=True)
    )
    rows = [
        Row.at_most("bytes read, off the line by, share of all", off, 0.03),
        Row.at_most("step with half in RAM / with none", without.half, 0.6),
        Row("the same with a commit every step", committed.half),
    ]
    return rows + [
        Row(f"seconds a step, {100 * share:.0f} % of the states in RAM, {label}", one)
        for label, found in (("no commits", without), ("commits", committed))
        for share, one in zip(found.kept, found.seconds, strict=True)
    ]


class ByBudget(NamedTuple):
    """What was found at `SHARES`: share kept, bytes read a parameter, seconds; and half to none."""

    kept: list[float]
    read: list[float]
    seconds: list[float]
    half: float


def by_budget(folder: Path, durability: Durability) -> ByBudget:
    """Steps with different budgets, in turns."""
    with ExitStack() as stack:
        found = {
            f"{share:g}": stack.enter_context(
                stored(folder / durability / f"{share:g}", share=share, durability=durability)
            )
            for share in SHARES
        }
        sides = {name: wall_time(turn(one.step, one)) for name, one in found.items()}
        costs = interleave(sides, 11, warm_up=2)
        return ByBudget(
            [one.stats().resident_fraction for one in found.values()],
            [moved(one)[0] for one in found.values()],
            [float(np.median(costs[name])) / TURN for name in found],
            median_ratio(costs, "0.5", "0"),
        )


def moved(optimizer: TieredAdamW, steps: int = 4) -> tuple[float, float]:
    """Bytes read and written a parameter and step."""

    def counters() -> OffloadStats:
        optimizer.step()  # afterwards as much is read ahead as at the other end
        optimizer.flush()
        return optimizer.stats()

    before = counters()
    for _ in range(steps - 1):
        optimizer.step()
    after = counters()
    numel = sum(param.numel() for group in optimizer.param_groups for param in group["params"])
    read, written = after.read_bytes - before.read_bytes, after.written_bytes - before.written_bytes
    return read / numel / steps, written / numel / steps


def draw(found: Mapping[str, ByBudget], path: Path) -> None:
    """Step time against the share of the states that stays in RAM."""
    figure, axes = plt.subplots(figsize=(5, 3.2), layout="constrained")
    for label, one in found.items():
        shares = [100 * share for share in one.kept]
        axes.plot(shares, [1000 * seconds for seconds in one.seconds], marker="o", label=label)
    axes.set(xlabel="states in RAM, %", ylabel="milliseconds a step", ylim=(0, None))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(path, dpi=150)
    plt.close(figure)


PARTS: dict[str, Callable[[Path, argparse.Namespace], list[Row]]] = {
    "ram": in_ram,
    "bf16": halves,
    "stream": streamed,
    "bytes": moved_bytes,
    "rss": resident,
    "budget": budgets,
}


if __name__ == "__main__":
    main()
