"""What swapping costs each of the seven methods: iteration time with it and without, p = 0.5.

Every method trains twice on the same random pictures, once with the carousel turning and once
with it at rest, in turns of 20 iterations; both sides save the same samples. The cost of a turn
is CPU time of the training thread and the time it waited for a processor, as in
`benchmarks.swap_overhead`. The first experience fills memory and storage, the second is measured.
Run: ``python -m benchmarks.swap_overhead_seven [--json FILE] [--methods er,bic] [--blocks 60]``.
"""

from __future__ import annotations

import argparse
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from avalanche.training.plugins import SupervisedPlugin
from torch import nn

from benchmarks._harness import Row, interleave, report
from benchmarks.swap_overhead import SMALL, convolutions, ratio_row, thread_seconds
from carousel.data import Stream, to_benchmark
from carousel.strategies import make_strategy

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
            rows += measure(name, Path(folder), arguments.blocks)
    report(rows, f"Swap overhead, p = 0.5, {arguments.blocks} paired blocks", arguments.json)


def measure(name: str, folder: Path, blocks: int) -> list[Row]:
    """The rows of one method."""
    load = LOADS[name]
    width = _width_for(load.rows)  # one for both sides, or the models would differ
    with ExitStack() as stack:
        sides = {
            kind: stack.enter_context(Side(name, load, width, folder / f"{name}-{kind}", swap=swap))
            for kind, swap in (("off", False), ("on", True))
        }
        costs = interleave({kind: side.block for kind, side in sides.items()}, blocks)
        swaps = sides["on"].strategy.memory.carousel.stats().swaps
    return [
        Row(f"{name}: step without swapping, seconds", float(np.median(costs["off"]))),
        ratio_row(f"{name}: iteration time, p = 0.5 / off", costs["on"] / costs["off"], LIMIT),
        Row.at_least(f"{name}: done / requested", swaps.done / max(1, swaps.requested), 0.9),
    ]


class Side(threading.Thread):
    """A strategy that trains in a thread of its own, and only when it is its turn.

    Args:
        name: of the method.
        load: how it is trained.
        width: of the model.
        folder: of its storage.
        swap: whether the carousel turns.
    """

    def __init__(self, name: str, load: Load, width: int, folder: Path, *, swap: bool) -> None:
        super().__init__(daemon=True)
        stream = _stream()
        torch.manual_seed(0)
        model = convolutions(SMALL, width)
        self.turns = Turns()
        self.strategy = make_strategy(
            name,
            load.options,
            model=model,
            optimizer=torch.optim.SGD(model.parameters(), 1e-3),
            storage=folder,
            memory_size=SMALL.slots,
            swap=swap,
            transform=stream.transform,
            train_mb_size=load.batch_size,
            train_epochs=2,
            plugins=[self.turns],
        )
        self._experiences = to_benchmark(stream).train_stream
        self._failure: BaseException | None = None

    def __enter__(self) -> Side:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.turns.enough = True
        self.turns.go.release()
        self.join()
        self.strategy.memory.close()

    def block(self) -> float:
        """Seconds a step, over a turn."""
        self.turns.go.release()
        self.turns.done.acquire()
        if self._failure is not None:
            raise self._failure
        return self.turns.cost

    def run(self) -> None:
        """Train until there were enough turns."""
        torch.set_num_threads(1)
        self.turns.go.acquire()
        try:
            self.strategy.train(self._experiences[0])
            self.strategy.train_epochs = 1_000_000
            self.turns.measuring = True
            self.strategy.train(self._experiences[1])
        except _EnoughError:
            pass
        except BaseException as error:
            self._failure = error
            self.turns.done.release()


class Turns(SupervisedPlugin):
    """Lets a strategy train a turn, and wait for the next one."""

    leaves_loss = True

    def __init__(self) -> None:
        super().__init__()
        self.go, self.done = threading.Semaphore(0), threading.Semaphore(0)
        self.cost = 0.0
        self.measuring = self.enough = False
        self._steps = 0
        self._start = 0.0

    def after_training_iteration(self, *_: Any, **__: Any) -> None:
        """The end of a step, and perhaps of the turn."""
        if not self.measuring:
            return
        self._steps += 1
        if self._steps < STEPS:
            return
        self.cost = (thread_seconds() - self._start) / STEPS
        self.done.release()
        self.go.acquire()
        if self.enough:
            raise _EnoughError
        self._steps = 0
        self._start = thread_seconds()


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
    return parser.parse_args()


if __name__ == "__main__":
    main()
