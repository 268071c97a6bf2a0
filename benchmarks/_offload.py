"""What benchmarks of `carousel.offload` share: models, an optimizer with a file, and its parts."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from carousel.offload import TieredAdamW
from carousel.offload.engine import Visit
from carousel.offload.ring import anonymous
from carousel.storage.tier import Durability

__all__ = ["MI", "cpu_time", "model", "move", "one_by_one", "plain_io", "run_apart", "stored"]
__all__ += ["TURN", "turn", "wall_time"]

MI = 1 << 20
COUNT = 24
"""Parameters of 1 Mi elements, from storage."""

CHUNK = 256 << 10

TURN = 4
"""Steps or iterations of one side before the next has its turn."""


def model(count: int, dtype: torch.dtype = torch.float32) -> list[nn.Parameter]:
    """Parameters of 1 Mi elements with gradients."""
    made = [nn.Parameter(torch.randn(1024, 1024).to(dtype)) for _ in range(count)]
    for param in made:
        param.grad = torch.randn(1024, 1024).to(dtype)
    return made


def cpu_time(work: Callable[[], object]) -> Callable[[], float]:
    """Some work that returns the seconds of CPU it took on this thread."""
    return _timed(work, time.thread_time)


def wall_time(work: Callable[[], object]) -> Callable[[], float]:
    """Some work that returns the seconds it took."""
    return _timed(work, time.perf_counter)


def _timed(work: Callable[[], object], clock: Callable[[], float]) -> Callable[[], float]:
    def run() -> float:
        start = clock()
        work()
        return clock() - start

    return run


def turn(work: Callable[[], object], optimizer: TieredAdamW | None = None) -> Callable[[], None]:
    """Some steps or iterations, and what they left to be written."""

    def run() -> None:
        for _ in range(TURN):
            work()
        if optimizer is not None:
            optimizer.flush()

    return run


@contextmanager
def stored(
    folder: Path,
    *,
    times: int = 0,
    share: float = 0.0,
    dtype: torch.dtype = torch.float32,
    durability: Durability = "process",
) -> Iterator[TieredAdamW]:
    """An optimizer with states in a file, after its first step.

    Args:
        folder: for the file.
        times: states are so many times the budget; 0: `share` says how much stays in RAM.
        share: of the states that stays in RAM.
        dtype: of the parameters.
        durability: of its commits.
    """
    half = dtype != torch.float32
    states = COUNT * MI * (12 if half else 8)
    beside = 6 * (CHUNK * 12 + 4096) + (CHUNK * 4 if half else 0)
    with TieredAdamW(
        model(COUNT, dtype),
        lr=1e-3,
        ram_budget=states // times if times else int(share * states) + beside,
        storage=folder / "states",
        fresh=True,
        durability=durability,
        chunk_numel=CHUNK,
    ) as optimizer:
        optimizer.step()
        yield optimizer


def move(optimizer: TieredAdamW) -> None:
    """What a step moves, with nothing computed."""
    book = optimizer._book
    for _ in book.begin(_visits(optimizer)):
        pass
    book.commit_if_due(optimizer.param_groups, optimizer.state)
    book.read_ahead()


def one_by_one(optimizer: TieredAdamW) -> None:
    """A step that reads a chunk, updates it and writes it before it reads the next."""
    book, groups, state = optimizer._book, optimizer.param_groups, optimizer.state
    update = book.prepare(groups, state)
    update.active.update(book.activate(range(len(book.roster.params)), state))
    book.steps += 1
    for visit in _visits(optimizer):
        book.apply(update, book.shelf.states.sweep([visit], book.steps))
        book.shelf.states.flush()
    book.commit_if_due(groups, state)
    book.shelf.states.flush()


def _visits(optimizer: TieredAdamW) -> list[Visit]:
    chunks = len(optimizer._book.shelf.states.plan.chunks)
    return [Visit(chunk, load=True) for chunk in range(chunks)]


@contextmanager
def plain_io(folder: Path, optimizer: TieredAdamW) -> Iterator[Callable[[], None]]:
    """The sizes that `move` moves, by two threads that read and one that writes, nothing else."""
    states = optimizer._book.shelf.states
    chunks = range(states.room.pinned, len(states.plan.chunks))
    nbytes, skip = states.room.buffer_bytes, states.room.layouts[0].read_from
    readers = [anonymous(nbytes), anonymous(nbytes)]
    source = anonymous(nbytes)
    path = folder / "plain"
    file = os.open(path, os.O_RDWR | os.O_CREAT | getattr(os, "O_DIRECT", 0))

    def read(part: Sequence[int], buffer: npt.NDArray[np.uint8]) -> None:
        for chunk in part:
            os.preadv(file, [memoryview(buffer)[skip:]], chunk * nbytes + skip)

    def write() -> None:
        for chunk in chunks:
            os.pwrite(file, source, chunk * nbytes)

    def run() -> None:
        works = [
            threading.Thread(target=read, args=(chunks[0::2], readers[0])),
            threading.Thread(target=read, args=(chunks[1::2], readers[1])),
            threading.Thread(target=write),
        ]
        for work in works:
            work.start()
        for work in works:
            work.join()

    try:
        write()
        yield run
    finally:
        os.close(file)
        path.unlink()


def run_apart(folder: Path, times: int) -> dict[str, float]:
    """RAM that an optimizer takes beyond its budget, MiB, in a process of its own.

    Args:
        folder: on the disk to use.
        times: states are so many times the budget.

    Returns:
        ``anonymous`` and ``resident``, each at its peak.
    """
    code = f"from benchmarks._offload import grow; grow({str(folder)!r}, {times})"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def grow(folder: str, times: int) -> None:
    """Measure this process, and print what `run_apart` returns."""
    torch.set_num_threads(1)
    params = model(COUNT)
    torch.optim.AdamW([model(1)[0]], fused=True).step()
    budget = COUNT * MI * 8 // times
    before, peak, over = _memory(), _memory(), threading.Event()

    def watch() -> None:
        while not over.wait(0.01):
            for name, value in _memory().items():
                peak[name] = max(peak[name], value)

    watcher = threading.Thread(target=watch)
    watcher.start()
    with (
        tempfile.TemporaryDirectory(dir=folder) as path,
        TieredAdamW(params, ram_budget=budget, storage=path, durability="process") as optimizer,
    ):
        for _ in range(6):
            optimizer.step()
    over.set()
    watcher.join()
    print(json.dumps({name: (peak[name] - before[name] - budget) / MI for name in peak}))


def _memory() -> dict[str, int]:
    """Bytes of this process: anonymous memory, and all that is resident."""
    names = {"Anonymous:": "anonymous", "Rss:": "resident"}
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()[1:]
    fields = [line.split() for line in lines]
    return {names[one[0]]: int(one[1]) << 10 for one in fields if one[0] in names}
