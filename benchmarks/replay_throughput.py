"""Samples per second of our ER beside a bare torch loop and beside Avalanche's Replay.

All sides train the same model on the same tensors: 32 samples of the stream and 32 of a memory of
200 a step, plain SGD, one torch thread, no evaluator. The bare loop is what one would write by
hand: a random permutation of the tensors an epoch, a preallocated memory tensor, `index_select`.
The others train on the experiences of `nc_benchmark`, whose mini-batches carry task labels, as most
programs for Avalanche do; the newer `benchmark_from_datasets`, whose data sets are nested less
deeply, is reported beside it.

Throughput is rows of the stream and the memory trained on a second of CPU time of the process
within epochs (Avalanche's loader gives fewer than 32 memory rows at the end of each pass over the
memory). A block is a few epochs of each side. Samples are saved once and before the clock starts,
so saving is not in these figures.

Run it as ``python -m benchmarks.replay_throughput [--json FILE]``.
"""

from __future__ import annotations

import copy
import tempfile
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from avalanche.benchmarks import benchmark_from_datasets, nc_benchmark
from avalanche.benchmarks.utils import as_classification_dataset
from avalanche.models import SlimResNet18
from avalanche.training.plugins import SupervisedPlugin
from avalanche.training.supervised import Replay
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from benchmarks._harness import Row, interleave, parse_arguments, report
from carousel.strategies import ER, CarMPlugin

BATCH = 32
MEMORY = 200
LR = 0.01


class EpochClock(SupervisedPlugin):
    """CPU seconds of the process within training epochs."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def before_training_epoch(self, *_: Any, **__: Any) -> None:
        """Start."""
        self._start = time.process_time()

    def after_training_epoch(self, *_: Any, **__: Any) -> None:
        """Stop."""
        self.seconds += time.process_time() - self._start


class RowCounter(SupervisedPlugin):
    """Rows that the model was trained on."""

    def __init__(self) -> None:
        super().__init__()
        self.rows = 0

    def after_forward(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Count the mini-batch."""
        self.rows += len(strategy.mb_y)


class SavedFirst(SupervisedPlugin):
    """Waits for the saves of an experience before its first epoch."""

    def __init__(self, memory: CarMPlugin) -> None:
        super().__init__()
        self.memory = memory

    def before_training_exp(self, *_: Any, **__: Any) -> None:
        """Wait."""
        self.memory.carousel.flush()


def mlp() -> nn.Module:
    """784-100-10."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 100), nn.ReLU(), nn.Linear(100, 10))


def make_data(shape: tuple[int, ...], samples: int) -> list[tuple[Tensor, Tensor]]:
    """Two experiences of five classes each, random floats."""
    rng = torch.Generator().manual_seed(0)
    x = torch.randn(2, samples, *shape, generator=rng)
    y = torch.randint(0, 5, (2, samples), generator=rng) + torch.tensor([[0], [5]])
    return list(zip(x, y, strict=True))


def experiences_of(data: list[tuple[Tensor, Tensor]], *, old_family: bool) -> Any:
    """The data for Avalanche."""
    if old_family:
        x, y = (torch.cat(parts) for parts in zip(*data, strict=True))
        whole = _with_targets(x, y)
        return nc_benchmark(
            whole, whole, n_experiences=2, task_labels=False, shuffle=False
        ).train_stream
    sets = [as_classification_dataset(_with_targets(x, y)) for x, y in data]
    return benchmark_from_datasets(train=sets, test=sets).train_stream


def _with_targets(x: Tensor, y: Tensor) -> TensorDataset:
    tensors = TensorDataset(x, y)
    tensors.targets = y.tolist()
    return tensors


def avalanche_side(strategy: Any, clock: EpochClock, experiences: Any) -> Callable[[], float]:
    """Trains on the first experience now, on the second one a block; seconds a row."""
    strategy.train(experiences[0], eval_streams=[])
    counter = RowCounter()
    strategy.plugins.insert(0, counter)
    strategy.train(experiences[1], eval_streams=[])
    strategy.plugins.remove(counter)

    def block() -> float:
        before = clock.seconds
        strategy.train(experiences[1], eval_streams=[])
        return (clock.seconds - before) / counter.rows

    return block


def our_side(
    model: nn.Module, experiences: Any, epochs: int, storage: Any, *, swap: bool
) -> Callable[[], float]:
    """Our ER."""
    clock = EpochClock()
    memory = CarMPlugin(MEMORY, storage, swap_ratio=0.5, swap=swap, seed=0)
    strategy = ER(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), LR),
        memory=memory,
        train_mb_size=BATCH,
        train_epochs=epochs,
        plugins=[SavedFirst(memory), clock],
    )
    return avalanche_side(strategy, clock, experiences)


def their_side(model: nn.Module, experiences: Any, epochs: int) -> Callable[[], float]:
    """Avalanche's Replay."""
    clock = EpochClock()
    strategy = Replay(
        model=model,
        optimizer=torch.optim.SGD(model.parameters(), LR),
        criterion=nn.CrossEntropyLoss(),
        mem_size=MEMORY,
        train_mb_size=BATCH,
        train_epochs=epochs,
        evaluator=None,
        plugins=[clock],
    )
    return avalanche_side(strategy, clock, experiences)


def bare_side(
    model: nn.Module, data: list[tuple[Tensor, Tensor]], epochs: int
) -> Callable[[], float]:
    """A loop by hand; seconds a row."""
    (old_x, old_y), (x, y) = data
    memory_x, memory_y = old_x[:MEMORY].clone(), old_y[:MEMORY].clone()
    optimizer = torch.optim.SGD(model.parameters(), LR)
    criterion = nn.CrossEntropyLoss()
    slots = len(memory_y)

    def block() -> float:
        start = time.process_time()
        for _ in range(epochs):
            for rows in torch.randperm(len(x)).split(BATCH):
                replayed = torch.randperm(slots)[:BATCH]
                batch_x = torch.cat((x.index_select(0, rows), memory_x.index_select(0, replayed)))
                batch_y = torch.cat((y.index_select(0, rows), memory_y.index_select(0, replayed)))
                optimizer.zero_grad()
                criterion(model(batch_x), batch_y).backward()
                optimizer.step()
        steps = -(-len(x) // BATCH)
        return (time.process_time() - start) / (epochs * (len(x) + steps * BATCH))

    model.train()
    return block


def measure(
    model: nn.Module,
    data: list[tuple[Tensor, Tensor]],
    *,
    old_family: bool,
    epochs: int,
    blocks: int,
) -> dict[str, float]:
    """Median throughput of our ER without and with swaps over that of the others."""
    experiences = experiences_of(data, old_family=old_family)
    with tempfile.TemporaryDirectory() as still, tempfile.TemporaryDirectory() as riding:
        costs = interleave(
            {
                "bare": bare_side(copy.deepcopy(model), data, epochs),
                "ours": our_side(copy.deepcopy(model), experiences, epochs, still, swap=False),
                "swaps": our_side(copy.deepcopy(model), experiences, epochs, riding, swap=True),
                "theirs": their_side(copy.deepcopy(model), experiences, epochs),
            },
            blocks,
        )
    return {
        f"{ours} / {others}": float(np.median(costs[others] / costs[ours]))
        for ours in ("ours", "swaps")
        for others in ("bare", "theirs")
    }


def rows_of(name: str, ratios: dict[str, float], bare: float, theirs: float) -> list[Row]:
    """The table's rows for one model."""
    return [
        Row.at_least(f"{name}: our ER / bare torch loop", ratios["ours / bare"], bare),
        Row.at_least(f"{name}: our ER / Avalanche Replay", ratios["ours / theirs"], theirs),
        Row(f"{name}: our ER swapping half / bare torch loop", ratios["swaps / bare"]),
        Row(f"{name}: our ER swapping half / Avalanche Replay", ratios["swaps / theirs"]),
    ]


def main() -> None:
    """Measure both models."""
    arguments = parse_arguments(__doc__)
    warnings.filterwarnings("ignore")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    vectors, images = make_data((784,), 1600), make_data((3, 32, 32), MEMORY)
    small = measure(mlp(), vectors, old_family=True, epochs=2, blocks=40)
    newer = measure(mlp(), vectors, old_family=False, epochs=2, blocks=40)
    large = measure(SlimResNet18(nclasses=10), images, old_family=True, epochs=1, blocks=7)
    rows = [
        *rows_of("MLP 784-100-10", small, 0.85, 2.0),
        Row("MLP, benchmark_from_datasets: our ER / bare torch loop", newer["ours / bare"]),
        Row("MLP, benchmark_from_datasets: our ER / Avalanche Replay", newer["ours / theirs"]),
        *rows_of("SlimResNet18 32x32", large, 0.97, 0.97),
    ]
    report(rows, "Throughput of experience replay (more than 1: ours is faster)", arguments.json)


if __name__ == "__main__":
    main()
