"""Updates within backward: an iteration against the slower of model and disk, and what it saves.

A chain of layers whose states all go through a file, in batches for which forward and backward take
about as long as moving the states. In turns, with medians of paired ratios: forward and backward
alone, moving alone (the same engine, nothing computed), the arithmetic of the update alone (all in
RAM), and iterations with updates in backward and in `step`. A turn is several iterations, and what
they left to be written. Both kinds of training end with the same bits, or it fails.

Import time is what `TieredAdamW` takes once torch is there, in processes of their own, which also
count the processes that were started: a compiler would be one.

Run: ``python -m benchmarks.offload_backward [--json FILE] [--folder FOLDER]``.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks._harness import Row, interleave, median_ratio, report
from benchmarks._offload import CHUNK, TURN, move, turn, wall_time
from carousel.offload import TieredAdamW

WIDTH, LAYERS = 1024, 24
RING = 6
"""Buffers, for a sixteenth of the states; nothing else of them is in RAM."""

BLOCKS = 11


def main() -> None:
    """Measure, print the table, write the JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--folder", type=Path, default=Path(), help="on the disk to measure")
    choices = parser.parse_args()
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(dir=choices.folder) as folder:
        rows = overlap(Path(folder))
    report(rows + importing(), "offload_backward", choices.json)


def overlap(folder: Path) -> list[Row]:
    """How much of the disk's time is hidden, and of the gradients' RAM saved."""
    with ExitStack() as stack:
        within = stack.enter_context(training(folder / "within", "backward"))
        after, moved = (
            stack.enter_context(training(folder / name, "step")) for name in ("after", "moved")
        )
        alone, resident = chain(), chain()
        data = batch_for(alone, moved)
        forward_and_backward(resident, data)
        works = {
            "backward": turn(partial(iterate, *within, data), within[1]),
            "step": turn(partial(iterate, *after, data), after[1]),
            "compute": turn(partial(forward_and_backward, alone, data)),
            "io": turn(partial(move, moved[1]), moved[1]),
            "update": turn(TieredAdamW(resident.parameters(), lr=1e-5).step),
        }
        sides = {name: wall_time(work) for name, work in works.items()}
        queued: list[float] = []
        sides["backward"] = noting(sides["backward"], _queued_seconds, queued)
        stalled: list[float] = []
        sides["backward"] = noting(
            sides["backward"], lambda: within[1].stats().read_stall_seconds, stalled
        )
        costs = interleave(sides, BLOCKS, warm_up=2)
        check_equal(within, after)
        alive = gradients_alive(*within, data)
    longer = np.maximum(costs["compute"], costs["io"])
    busy = costs["compute"] + costs["update"]
    seconds = {name: float(np.median(cost)) / TURN for name, cost in costs.items()}
    return [
        Row.at_most(
            "iteration / max(forward + backward, io)",
            float(np.median(costs["backward"] / longer)),
            1.20,
        ),
        Row("the same with updates in step", float(np.median(costs["step"] / longer))),
        Row(
            "iteration / (forward + backward + update)", float(np.median(costs["backward"] / busy))
        ),
        Row("iteration, updates in backward / in step", median_ratio(costs, "backward", "step")),
        Row("forward + backward alone, seconds", seconds["compute"]),
        Row("io alone, seconds", seconds["io"]),
        Row("arithmetic of the update alone, seconds", seconds["update"]),
        Row("iteration, seconds", seconds["backward"]),
        Row("of it waited for chunks, seconds", float(np.median(stalled)) / TURN),
        Row("of it waited for a processor, seconds", float(np.median(queued)) / TURN),
        Row("rows of a batch", float(len(data))),
        Row("gradients alive at a time, share of all", alive),
    ]


def importing() -> list[Row]:
    """What it costs to have the optimizer once torch is there."""
    found = [_child() for _ in range(8)][1:]  # the first may have to write bytecode
    return [
        Row.at_most(
            "import over torch, seconds", float(np.median([one["seconds"] for one in found])), 0.2
        ),
        Row.at_most(
            "processes started by import and a step", max(one["started"] for one in found), 0
        ),
    ]


@contextmanager
def training(
    folder: Path, update_in: Literal["step", "backward"]
) -> Iterator[tuple[nn.Sequential, TieredAdamW]]:
    """A model and its optimizer, all of whose states are in a file.

    Args:
        folder: for the file.
        update_in: as for the optimizer.
    """
    net = chain()
    with TieredAdamW(
        net.parameters(),
        lr=1e-5,
        ram_budget=RING * (CHUNK * 12 + 4096),
        storage=folder,
        durability="process",
        chunk_numel=CHUNK,
        ring=RING,
        update_in=update_in,
    ) as optimizer:
        iterate(net, optimizer, torch.zeros(1, WIDTH))
        yield net, optimizer


def chain() -> nn.Sequential:
    """Layers of 1 Mi parameters; always the same ones."""
    torch.manual_seed(0)
    layers = (nn.Sequential(nn.Linear(WIDTH, WIDTH, bias=False), nn.Tanh()) for _ in range(LAYERS))
    return nn.Sequential(*layers)


def batch_for(net: nn.Sequential, moved: tuple[nn.Sequential, TieredAdamW]) -> Tensor:
    """(rows, width) fp32, so many rows that the model takes as long as the disk."""
    data = torch.randn(2048, WIDTH, generator=torch.Generator().manual_seed(1))
    io = _typical(turn(partial(move, moved[1]), moved[1]))
    few, many = 64, 512
    short, long = (
        _typical(turn(partial(forward_and_backward, net, data[:rows]))) for rows in (few, many)
    )
    rows = few + (io - short) * (many - few) / (long - short)
    return data[: int(min(max(rows, 8), len(data)))]


def iterate(net: nn.Sequential, optimizer: TieredAdamW, data: Tensor) -> None:
    """One iteration of training."""
    forward_and_backward(net, data)
    optimizer.step()


def forward_and_backward(net: nn.Sequential, data: Tensor) -> None:
    """The model's part of an iteration."""
    net.zero_grad()
    (net(data) ** 2).mean().backward()


def noting(
    work: Callable[[], float], clock: Callable[[], float], notes: list[float]
) -> Callable[[], float]:
    """The same work, with what another clock says of it noted."""

    def run() -> float:
        before = clock()
        cost = work()
        notes.append(clock() - before)
        return cost

    return run


def check_equal(*trainings: tuple[nn.Sequential, TieredAdamW]) -> None:
    """Fail unless parameters and states are the same, bit for bit."""
    (one, ours), (other, theirs) = trainings
    for a, b in zip(one.parameters(), other.parameters(), strict=True):
        mine, reference = (
            optimizer._book.states_of([number_of(optimizer, param)], optimizer.state)[0][param]
            for optimizer, param in ((ours, a), (theirs, b))
        )
        if not torch.equal(a, b) or any(not torch.equal(mine[n], reference[n]) for n in mine):
            raise SystemExit("updates in backward and in step led to different values")


def number_of(optimizer: TieredAdamW, param: Tensor) -> int:
    """A parameter's place among the optimizer's."""
    return [other is param for other in optimizer._book.roster.params].index(True)


def gradients_alive(net: nn.Sequential, optimizer: TieredAdamW, data: Tensor) -> float:
    """Gradients that exist at a time within backward, at most, as a share of all of them."""
    params = list(net.parameters())
    seen: list[int] = []

    def count(_: Tensor) -> None:
        seen.append(sum(param.numel() for param in params if param.grad is not None))

    for param in params:
        param.register_post_accumulate_grad_hook(count)  # type: ignore[no-untyped-call]
    iterate(net, optimizer, data)
    return max(seen) / sum(param.numel() for param in params)


def _queued_seconds() -> float:
    """Seconds for which this thread could have run and others did; Linux only."""
    return int(Path("/proc/thread-self/schedstat").read_text().split()[1]) / 1e9


def _typical(work: Callable[[], None]) -> float:
    run = wall_time(work)
    run()
    return float(np.median([run() for _ in range(3)]))


_CHILD = """
import json, sys, time
import torch
started = []
names = ("subprocess.Popen", "os.exec", "os.fork", "os.posix_spawn", "os.spawn", "os.system")
sys.addaudithook(lambda event, _: started.append(event) if event in names else None)
begin = time.perf_counter()
from carousel.offload import TieredAdamW
seconds = time.perf_counter() - begin
weight = torch.nn.Parameter(torch.ones(3))
optimizer = TieredAdamW([weight], update_in="backward")
weight.sum().backward()
optimizer.step()
print(json.dumps({"seconds": seconds, "started": len(started)}))
"""


def _child() -> dict[str, float]:
    done = subprocess.run([sys.executable, "-c", _CHILD], check=True, capture_output=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


if __name__ == "__main__":
    main()
