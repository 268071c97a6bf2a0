"""What swapping costs each of the seven methods: iteration time with it and without, p = 0.5.

A method trains on random pictures, 20 iterations with the carousel turning and 20 with it at
rest, in turns. Both sides are one training: the same weights at the same addresses, for two
trainings without swapping already differ by 1 to 2 %, from where their tensors happen to lie
(``--null`` swaps on neither side, and shows what is left of that). The cost of a turn is CPU time
of the training thread and the time it waited for a processor, as in `benchmarks.swap_overhead`;
to end what is in flight belongs to the turn. The first experience fills memory and storage, the
second is measured.
Run: ``python -m benchmarks.swap_overhead_seven [--json FILE] [--methods er,bic] [--blocks 60]``.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import nn

from benchmarks._harness import Row, report
from benchmarks.swap_overhead import SMALL, convolutions, ratio_row, thread_seconds
from carousel.data import Stream, to_benchmark
from carousel.strategies import CarMPlugin, make_strategy

CLASSES, A_CLASS = 50, 100
STEPS = 20
LIMIT = 1.03


@dataclass(frozen=True)
class Load:
    """How a method is trained.

    Args:
        batch_size: rows of the stream, or of the memory where there is no stream.
        rows: that go through the model a step, to find a model whose step takes long enough.
        options: of the method.
    """

    batch_size: int
    rows: int
    options: Mapping[str, Any]


LOADS = {
    "er": Load(64, 128, {"batch_size_mem": 64}),
    "tiny-er": Load(10, 20, {}),
    "icarl": Load(128, 128, {}),
    "bic": Load(128, 128, {}),
    "gdumb": Load(64, 64, {}),
    "der++": Load(32, 96, {}),
    "rm": Load(64, 64, {}),
}


def main() -> None:
    """Measure and report."""
    arguments = _parse_arguments()
    torch.set_num_threads(1)
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in arguments.methods:
            rows += measure(name, Path(folder) / name, arguments.blocks, null=arguments.null)
    report(rows, f"Swap overhead, p = 0.5, {arguments.blocks} paired turns", arguments.json)


def measure(name: str, folder: Path, blocks: int, *, null: bool = False) -> list[Row]:
    """The rows of one method; with `null` the carousel rests on both sides."""
    load = LOADS[name]
    stream = _stream()
    torch.manual_seed(0)
    model = convolutions(SMALL, _width_for(load.rows))
    turns = Turns([False, not null], blocks)
    strategy = make_strategy(
        name,
        load.options,
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), 1e-3),
        storage=folder,
        memory_size=SMALL.slots,
        transform=stream.transform,
        train_mb_size=load.batch_size,
        train_epochs=2,
        plugins=[turns],
    )
    first, second, *_ = to_benchmark(stream).train_stream
    with strategy.memory as memory:
        strategy.train(first)
        strategy.train_epochs = 1_000_000
        turns.memory = memory
        with suppress(_EnoughError):
            strategy.train(second)
        swaps = memory.carousel.stats().swaps
    off, on = turns.costs[:, 0], turns.costs[:, 1]
    return [
        Row(f"{name}: step without swapping, seconds", float(np.median(off))),
        ratio_row(f"{name}: iteration time, p = 0.5 / off", on / off, LIMIT),
        Row.at_least(f"{name}: done / requested", swaps.done / max(1, swaps.requested), 0.9),
    ]


class Turns(SupervisedPlugin):
    """Lets the carousel of a training turn and rest in turns, and takes the time.

    Args:
        sides: whether it turns, side by side; every block begins with another one.
        blocks: turns of each side, after one that does not count.

    Attributes:
        memory: of the training; None until turns begin.
        costs: (blocks, sides) seconds a step.
    """

    leaves_loss = True

    def __init__(self, sides: Sequence[bool], blocks: int) -> None:
        super().__init__()
        self.memory: CarMPlugin | None = None
        self.costs = np.zeros((blocks, len(sides)))
        self._sides = sides
        self._turn = -1  # the rest of an iteration, before the first turn
        self._steps = 0
        self._start = 0.0

    def after_training_iteration(self, *_: Any, **__: Any) -> None:
        """The end of a step, and perhaps of the turn."""
        if self.memory is None:
            return
        self._steps += 1
        if self._steps == STEPS or self._turn < 0:
            if self.memory.swaps:
                self.memory.carousel.end_experience()
            self._note((thread_seconds() - self._start) / STEPS)
            self._turn += 1
            self.memory.swaps = self._sides[self._side(self._turn)]
            self._steps = 0
            self._start = thread_seconds()

    def _note(self, cost: float) -> None:
        """What the turn cost; the first block does not count."""
        block = self._turn // len(self._sides) - 1
        if block >= 0:
            self.costs[block, self._side(self._turn)] = cost
        if self._turn == (len(self.costs) + 1) * len(self._sides) - 1:
            raise _EnoughError

    def _side(self, turn: int) -> int:
        block, place = divmod(turn, len(self._sides))
        return (block + place) % len(self._sides)


class _EnoughError(Exception):
    """Leaves the training loop."""


def _stream() -> Stream:
    count = CLASSES * A_CLASS
    labels = np.arange(count) % CLASSES
    images = SMALL.images(count, seed=1)
    return Stream.from_arrays(images, labels, experiences=2, seed=0, layout="NCHW")


def _width_for(rows: int) -> int:
    """The narrowest model whose step takes as long as in `benchmarks.swap_overhead`."""
    x = SMALL.images(rows, seed=0).float() / 255
    for width in range(2, 129, 2):
        model: nn.Module = convolutions(SMALL, width)
        costs = []
        for _ in range(8):
            start = thread_seconds()
            model(x).sum().backward()
            costs.append(thread_seconds() - start)
        if min(costs) >= 1.4 * SMALL.step_seconds:
            return width
    return 128


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument(
        "--methods", type=lambda text: text.split(","), default=list(LOADS), help="comma-separated"
    )
    parser.add_argument("--blocks", type=int, default=60, help="paired turns of each method")
    parser.add_argument(
        "--null", action="store_true", help="rest on both sides: the benchmark's own error"
    )
    return parser.parse_args()


if __name__ == "__main__":
    main()
