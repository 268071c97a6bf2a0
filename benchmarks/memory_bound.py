"""Does a memory of 100 samples stay small when one data set after the other goes through it?

Eight data sets of 5,000 float32 images (3, 32, 32), 59 MiB each, are made, shown to the memory and
dropped. Every side runs in a process of its own; the growth is that of the anonymous memory
(``Anonymous`` of ``/proc/self/smaps_rollup``) from after the imports to after the last data set,
so it includes all that the memory itself needs. Ours saves everything to storage, gives slots, and
swaps for 50 steps a data set.

Run it as ``python -m benchmarks.memory_bound [--json FILE]``.
"""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import tempfile
import warnings
import weakref
from collections.abc import Callable, Iterator
from importlib.util import find_spec
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor

from benchmarks._harness import Row, parse_arguments, report

DATA_SETS = 8
SAMPLES = 5_000
CLASSES = 5
SLOTS = 100
STEPS = 50
LIMIT_MIB = 10.0
BUFFERS = ("ReservoirSamplingBuffer", "ExperienceBalancedBuffer", "ClassBalancedBuffer")

Side = Callable[[int, Tensor, Tensor], None]


def main() -> None:
    """Measure all sides and report."""
    arguments = parse_arguments(__doc__)
    ours = run_apart("carousel")
    rows = [
        Row.at_most("carousel: growth of anonymous memory, MiB", ours["growth"], LIMIT_MIB),
        Row.at_most("carousel: data sets still alive", ours["alive"], 0),
        Row("carousel: samples in storage", ours["stored"]),
    ]
    for buffer in BUFFERS if find_spec("avalanche") else ():
        theirs = run_apart(buffer)
        rows.append(Row(f"Avalanche {buffer}: growth, MiB", theirs["growth"]))
        rows.append(Row(f"Avalanche {buffer}: data sets still alive", theirs["alive"]))
    report(rows, f"{DATA_SETS} data sets through {SLOTS} samples", arguments.json)


def run_apart(side: str) -> dict[str, float]:
    """Measure one side in a fresh process."""
    code = f"from benchmarks.memory_bound import measure; measure({side!r})"
    command = [sys.executable, "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode:
        raise RuntimeError(f"{side} failed:\n{result.stderr}")
    figures: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return figures


def measure(name: str) -> None:
    """Show all data sets to one side and print the figures as JSON."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        side, finish = _carousel(folder) if name == "carousel" else _avalanche(name)
        before = anonymous_mib()
        alive = [_show(side, number) for number in range(DATA_SETS)]
        gc.collect()
        figures = {
            "growth": anonymous_mib() - before,
            "alive": sum(reference() is not None for reference in alive),
            "stored": finish(),
        }
    print(json.dumps(figures))


def anonymous_mib() -> float:
    """Anonymous memory of this process, which no page cache is counted in."""
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("Anonymous:"))


def _show(side: Side, number: int) -> weakref.ref[Tensor]:
    generator = torch.Generator().manual_seed(number)
    x = torch.rand(SAMPLES, 3, 32, 32, generator=generator)
    y = number * CLASSES + torch.randint(CLASSES, (SAMPLES,), generator=generator)
    side(number, x, y)
    return weakref.ref(x)


def _carousel(folder: str) -> tuple[Side, Callable[[], int]]:
    import numpy as np

    from carousel.memory import Carousel, SampleBatch

    memory = Carousel(SLOTS, folder + "/db", swap_ratio=0.5, seed=0)

    def batches(x: Tensor, y: Tensor, first: int) -> Iterator[SampleBatch]:
        for start in range(0, SAMPLES, 256):
            part = slice(start, min(start + 256, SAMPLES))
            ids = np.arange(first + part.start, first + part.stop)
            yield SampleBatch(ids, y[part], None, {"x": x[part]})

    def show(number: int, x: Tensor, y: Tensor) -> None:
        first = memory.reserve("memory_bound", number, SAMPLES)
        memory.save_in_background(batches(x, y, first))
        for _ in range(STEPS):
            replay = memory.sample(32)
            memory.observe(replay, torch.randn(len(replay), DATA_SETS * CLASSES))
            memory.step()
        memory.end_experience()
        ids = np.arange(first, first + SAMPLES)
        memory.admit(ids, y, fetch=lambda rows: {"x": x[torch.from_numpy(rows)]})

    def finish() -> int:
        with memory:
            return memory.tier.stats().records

    return show, finish


def _avalanche(name: str) -> tuple[Side, Callable[[], int]]:
    from avalanche.benchmarks.utils import as_classification_dataset
    from avalanche.training import storage_policy
    from torch.utils.data import TensorDataset

    buffer: Any = getattr(storage_policy, name)(max_size=SLOTS)

    def show(number: int, x: Tensor, y: Tensor) -> None:
        data = TensorDataset(x, y)
        data.targets = y  # type: ignore[attr-defined]
        experience = SimpleNamespace(
            dataset=as_classification_dataset(data), current_experience=number
        )
        buffer.post_adapt(None, experience)

    return show, lambda: len(buffer.buffer)


if __name__ == "__main__":
    main()
