"""What swapping costs training: iteration time with the carousel turning and with it at rest.

Both sides replay and save the same samples; "off" does not swap. One torch thread. The cost of a
block of steps is the training thread's CPU time and the time it waited for a processor; blocks
of all sides take turns. Run: ``python -m benchmarks.swap_overhead [--json FILE]``.
"""

from __future__ import annotations

import ctypes
import os
import tempfile
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from benchmarks._harness import Row, interleave, parse_arguments, report
from carousel.memory import Carousel, SampleBatch
from carousel.storage import LMDBTier

CLASSES = 50


@dataclass(frozen=True)
class Task:
    """Samples and a model.

    Args:
        shape: of a sample, uint8.
        slots: samples in memory.
        stored: samples in storage before training.
        new: rows of the stream a step.
        replayed: rows of the memory a step.
        step_seconds: the model is the narrowest one whose step takes at least so long.
    """

    shape: tuple[int, int, int]
    slots: int
    stored: int
    new: int
    replayed: int
    step_seconds: float

    def images(self, count: int, seed: int) -> Tensor:
        """Random samples (count, *shape) uint8."""
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, 256, (count, *self.shape), dtype=torch.uint8, generator=generator)


SMALL = Task(shape=(3, 32, 32), slots=500, stored=5000, new=64, replayed=64, step_seconds=0.010)
LARGE = Task(shape=(3, 224, 224), slots=100, stored=1000, new=8, replayed=8, step_seconds=0.024)


class Learner:
    """A replay loop around one carousel, trained a block of steps at a time."""

    def __init__(self, task: Task, memory: Carousel, width: int) -> None:
        self.task = task
        self.memory = memory
        self.steps = 0
        torch.manual_seed(0)
        self.model = convolutions(task, width)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-3)
        self.stream = task.images(task.new, seed=7)
        self.labels = torch.arange(task.new) % CLASSES
        fill(task, memory)

    def step(self) -> None:
        """One training step with replay."""
        replay = self.memory.sample(self.task.replayed)
        x = torch.cat([self.stream, replay.x]).float().div_(255)
        logits = self.model(x)
        loss = cross_entropy(logits, torch.cat([self.labels, replay.labels]))
        self.optimizer.zero_grad()
        self.memory.observe(replay, logits[self.task.new :])
        loss.backward()
        self.optimizer.step()
        self.memory.step()
        self.steps += 1

    def save(self) -> None:
        """Every side saves as many samples a block, in the background."""
        x = self.task.images(self.task.new, seed=self.steps)
        self.memory.save_in_background([SampleBatch(None, self.labels, None, {"x": x})])

    def block(self, steps: int, cost: Callable[[], float]) -> float:
        """Seconds a step, by the clock `cost`."""
        self.save()
        start = cost()
        for _ in range(steps):
            self.step()
        spent = cost() - start
        self.memory.end_experience()
        return spent / steps


def main() -> None:
    """Measure and report."""
    arguments = parse_arguments(__doc__)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        rows = [*warm(Path(folder)), *slow_tier(Path(folder)), *cold(Path(folder))]
    report(rows, "Swap overhead", arguments.json)


# -- the three measurements --------------------------------------------------------------------


def warm(folder: Path, blocks: int = 120, steps: int = 20) -> list[Row]:
    """3 KB samples from a warm storage at p = 0.5 and 1."""
    with ExitStack() as stack:
        width = width_for(SMALL)

        def learner(name: str, **options: object) -> Learner:
            memory = stack.enter_context(Carousel(SMALL.slots, folder / name, seed=0, **options))
            return Learner(SMALL, memory, width)

        sides = {
            "off": learner("off", swap=False),
            "half": learner("half", swap_ratio=0.5),
            "all": learner("all", swap_ratio=1),
        }
        wall: dict[str, list[float]] = {name: [] for name in sides}

        def block(name: str) -> float:
            start = time.perf_counter()
            spent = sides[name].block(steps, thread_seconds)
            wall[name].append((time.perf_counter() - start) / steps)
            return spent

        costs = interleave({name: lambda name=name: block(name) for name in sides}, blocks)
        stats = {name: side.memory.stats() for name, side in sides.items()}
        manager = {name: stats[name].manager_seconds / sides[name].steps for name in sides}

    step = float(np.median(costs["off"]))
    rows = [
        Row.at_least("model step, seconds", step, SMALL.step_seconds),
        ratio_row("iteration time, p = 0.5 / off", costs["half"] / costs["off"], 1.02),
        ratio_row("iteration time, p = 1 / off", costs["all"] / costs["off"], 1.05),
    ]
    for name, p, least in (("half", "0.5", 0.9), ("all", "1", 0.8)):
        swaps = stats[name].swaps
        rows.append(Row.at_least(f"done / requested, p = {p}", swaps.done / swaps.requested, least))
        added = (manager[name] - manager["off"]) / step
        rows.append(Row.at_most(f"manager time a step that swaps add, p = {p}", added, 0.015))
        ratios = np.array(wall[name][1:]) / np.array(wall["off"][1:])
        rows.append(Row(f"wall time with end of block, p = {p} / off", float(np.median(ratios))))
    rows.append(Row("manager time a step with the gather, p = 0.5", manager["half"] / step))
    return rows


class SlowTier(LMDBTier):
    """Reads take as long as it is told."""

    seconds = 0.0

    def get_into(
        self,
        ids: npt.NDArray[np.int64],
        out: dict[str, npt.NDArray[np.generic]],
        rows: npt.NDArray[np.int64],
    ) -> npt.NDArray[np.uint8]:
        """See `LMDBTier.get_into`."""
        time.sleep(self.seconds)
        return super().get_into(ids, out, rows)


def slow_tier(folder: Path, blocks: int = 60, steps: int = 6) -> list[Row]:
    """How much of what sync swapping costs is gone when it is asynchronous; wall time."""
    with ExitStack() as stack:
        width = width_for(SMALL)

        def learner(name: str, **options: object) -> Learner:
            tier = stack.enter_context(SlowTier(folder / f"slow-{name}"))
            memory = stack.enter_context(Carousel(SMALL.slots, tier, seed=0, **options))
            learner = Learner(SMALL, memory, width)
            tier.seconds = 0.8 * SMALL.step_seconds
            return learner

        sides = {
            "off": learner("off", swap=False),
            "sync": learner("sync", sync=True),
            "async": learner("async"),
        }
        costs = interleave(
            {
                name: lambda s=side: s.block(steps, time.perf_counter)
                for name, side in sides.items()
            },
            blocks,
        )
    sync, threaded = costs["sync"] / costs["off"] - 1, costs["async"] / costs["off"] - 1
    removed = 1 - float(np.median(threaded)) / float(np.median(sync))
    return [
        Row.at_least("overhead of sync swapping from a slow tier", float(np.median(sync)), 0.3),
        Row.at_least("share of it that async removes", removed, 0.8),
    ]


def cold(folder: Path, blocks: int = 90, steps: int = 10) -> list[Row]:
    """150 KB samples, the page cache dropped before every block."""
    with ExitStack() as stack:
        width = width_for(LARGE)

        def learner(name: str, **options: object) -> Learner:
            path = folder / f"cold-{name}"
            memory = stack.enter_context(
                Carousel(LARGE.slots, path, seed=0, swap_ratio=1, **options)
            )
            return Learner(LARGE, memory, width)

        sides = {"off": learner("off", swap=False), "on": learner("on")}

        def block(name: str) -> float:
            drop_cache(folder / f"cold-{name}" / "data.mdb")
            return sides[name].block(steps, thread_seconds)

        before = bytes_read()
        costs = interleave({name: lambda name=name: block(name) for name in sides}, blocks)
        read = bytes_read() - before
        swaps = sides["on"].memory.stats().swaps
    size = int(np.prod(LARGE.shape))
    return [
        Row("cold: model step, seconds", float(np.median(costs["off"]))),
        ratio_row("iteration time, cold 150 KB samples / off", costs["on"] / costs["off"], 1.05),
        Row.at_least("cold: done / requested", swaps.done / swaps.requested, 0.8),
        Row(
            "cold: bytes read from the medium / bytes swapped in", read / max(1, swaps.done * size)
        ),
    ]


# -- parts ---------------------------------------------------------------------------------------


def convolutions(task: Task, width: int) -> nn.Module:
    """Three strided convolutions and a head."""
    layers: list[nn.Module] = []
    channels = task.shape[0]
    for depth in (1, 2, 4):
        layers += [nn.Conv2d(channels, depth * width, 3, stride=2, padding=1), nn.ReLU()]
        channels = depth * width
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, CLASSES)
    )


def width_for(task: Task) -> int:
    """The narrowest model whose step takes as long as the task says, here."""
    x = task.images(task.new + task.replayed, seed=0).float() / 255
    for width in range(2, 65, 2):
        model = convolutions(task, width)
        costs = []
        for _ in range(12):
            start = thread_seconds()
            model(x).sum().backward()
            costs.append(thread_seconds() - start)
        if min(costs) >= 1.4 * task.step_seconds:  # a busy machine shows more than it is
            return width
    return 64


def fill(task: Task, memory: Carousel) -> None:
    """Store the samples, and give slots to some."""
    labels = torch.arange(task.stored) % CLASSES
    images = task.images(task.stored, seed=1)
    ids = np.arange(memory.reserve("benchmark", 0, task.stored), task.stored)
    for part in torch.arange(task.stored).split(250):
        memory.save(ids[part.numpy()], labels[part], x=images[part])
    memory.end_experience()
    memory.admit(ids, labels, fetch=lambda rows: {"x": images[rows]})


def thread_seconds() -> float:
    """CPU time of this thread and time it was ready but had to wait for a processor."""
    with open(f"/proc/self/task/{threading.get_native_id()}/schedstat") as file:
        running, waiting, _ = file.read().split()
    return (int(running) + int(waiting)) * 1e-9


def bytes_read() -> int:
    """Bytes that this process made the medium deliver."""
    for line in Path("/proc/self/io").read_text().splitlines():
        name, value = line.split(": ")
        if name == "read_bytes":
            return int(value)
    return 0


def drop_cache(path: Path) -> None:
    """Take a mapped file out of the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith(str(path)):
            first, last = (int(part, 16) for part in line.split()[0].split("-"))
            libc.madvise(ctypes.c_void_p(first), ctypes.c_size_t(last - first), 4)  # DONTNEED
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(handle)


def ratio_row(metric: str, ratios: npt.NDArray[np.float64], bound: float) -> Row:
    """The median of paired ratios and its 95 % interval against a bound.

    Met when the interval is at or under the bound and at most 0.02 wide, or when the median is
    under it by more than the interval's width.
    """
    median, low, high = median_interval(ratios)
    width = high - low
    met = (high <= bound and width <= 0.02) or median < bound - width
    return Row(f"{metric} (95 %: {low:.3f} to {high:.3f})", median, f"<= {bound:g}", bool(met))


def median_interval(values: npt.NDArray[np.float64]) -> tuple[float, float, float]:
    """Median and its distribution-free 95 % interval, from order statistics."""
    ordered = np.sort(values)
    half = 0.98 * np.sqrt(len(ordered))
    low = max(0, int(np.floor(len(ordered) / 2 - half)))
    high = min(len(ordered) - 1, int(np.ceil(len(ordered) / 2 + half)) - 1)
    return float(np.median(ordered)), float(ordered[low]), float(ordered[high])


if __name__ == "__main__":
    main()
