"""What the gain of a carousel depends on: swap ratio, storage, slots, and the gate.

Four sweeps of `carousel compare` on figlet-94 for ER and DER++ (``benchmarks/studies/
sensitivity.yaml``), one figure each: the share that swaps (0.2, 0.5, 0.8, 1), what storage may hold
(1.5, 2, 5 and 10 times the memory, and no limit), the slots, and who leaves. Of the expectations
about them it says which hold: at p = 0.2 at least 85 % of the gain at p = 1; with storage for half
of the stream at least 80 % of the gain with all; a gain that grows with storage.

Run it as ``python -m benchmarks.sensitivity [--json FILE] [--out FOLDER] [--jobs 2] [--seeds 0,1]
[--limit N] [--parts ratio,storage,slots,gate]``. What is done is skipped.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib as mpl
import numpy as np

from benchmarks._harness import Row, report
from benchmarks._study import (
    Results,
    line,
    parse_study_arguments,
    points,
    read_study_file,
    run_study,
    with_choices,
)

mpl.use("Agg")
import matplotlib.pyplot as plt

METHODS = ("er", "der++")
SLOTS = 500
STREAM = 34_000
"""Training images of figlet-94, about."""


class Sweep(NamedTuple):
    """Settings that differ, and what people call them.

    Args:
        key: of ``carousel train``.
        values: to train with; `base` is trained in the first sweep.
        base: what the setting is in the other sweeps.
        title: of the figure.
    """

    key: str
    values: tuple[Any, ...]
    base: Any
    title: str


SWEEPS = {
    "ratio": Sweep("swap_ratio", (0.2, 0.5, 0.8, 1.0), None, "share of replayed rows that swap"),
    "storage": Sweep(
        "storage_budget", (750, 1000, 2500, 5000, STREAM // 2), "all", "samples in storage"
    ),
    "slots": Sweep("memory_size", (190, 1000), SLOTS, "slots in RAM"),
    "gate": Sweep("gate", ("score", "entropy", "loss", "random"), "balanced", "who leaves"),
}


def main() -> None:
    """Run what is missing, then sum up."""
    choices = parse_study_arguments(__doc__, "runs/sensitivity", parts=tuple(SWEEPS))
    study = with_choices(read_study_file("sensitivity"), choices)
    results = {
        name: run_study({**study, sweep.key: list(sweep.values)}, choices.out, name, choices.jobs)
        for name, sweep in SWEEPS.items()
        if name in choices.parts or name == "ratio"
    }
    rows = [row for method in METHODS for row in method_rows(method, results)]
    if choices.limit is not None:
        rows = [replace(row, target=None, met=None) for row in rows]
    report(rows, "What the gain depends on", choices.json)
    for name in results:
        print(f"plot: {plot(name, results, choices.out.parent)}")


def gains(method: str, name: str, results: dict[str, Results]) -> dict[Any, float]:
    """Gain in points by value of the swept setting, that of the other sweeps included."""
    sweep = SWEEPS[name]
    found: dict[Any, float] = {}
    for value in sweep.values:
        one = line(results[name], method, **{sweep.key: value})
        if one is not None and one["gain"] is not None:
            found[value] = points(one["gain"])
    base = line(results["ratio"], method, swap_ratio=0.5)
    if sweep.base is not None and base is not None:
        found[sweep.base] = points(base["gain"])
    return found


def method_rows(method: str, results: dict[str, Results]) -> list[Row]:
    """Every gain, and whether what is expected of them holds."""
    rows = [
        Row(f"{method}: gain, {SWEEPS[name].key} = {value}", gain)
        for name in results
        for value, gain in gains(method, name, results).items()
    ]
    ratio = gains(method, "ratio", results)
    storage = gains(method, "storage", results) if "storage" in results else {}
    if ratio.keys() >= {0.2, 1.0}:
        share = ratio[0.2] / ratio[1.0]
        rows.append(Row.at_least(f"{method}: gain at p = 0.2 / at p = 1", share, 0.85))
    if storage.keys() >= {STREAM // 2, "all"}:
        share = storage[STREAM // 2] / storage["all"]
        rows.append(Row.at_least(f"{method}: gain with half the stream stored / all", share, 0.8))
    sizes = [storage[size] for size in (750, 1000, 2500, 5000) if size in storage]
    if len(sizes) > 1:
        least = float(np.diff(sizes).min())
        rows.append(Row.at_least(f"{method}: least step of the gain as storage grows", least, -1.0))
    return rows


def plot(name: str, results: dict[str, Results], folder: Path) -> Path:
    """The gain against the swept setting, a line a method."""
    sweep = SWEEPS[name]
    figure, axis = plt.subplots(figsize=(5, 3.5), layout="constrained")
    for method in METHODS:
        found = gains(method, name, results)
        order = sorted(found, key=lambda value: (isinstance(value, str), value))
        labels = [str(value) for value in order]
        axis.plot(labels, [found[value] for value in order], marker="o", label=method)
    axis.set(xlabel=sweep.title, ylabel="gain in final accuracy, points")
    axis.set_ylim(bottom=min(0.0, axis.get_ylim()[0]))
    axis.grid(alpha=0.3)
    axis.legend()
    path = folder / f"sensitivity_{name}.png"
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


if __name__ == "__main__":
    main()
