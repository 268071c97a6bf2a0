"""Does the carousel pay? Final accuracy of experience replay with swapping and without.

Parts: ``figlet`` (figlet-94, 10 experiences, 500 slots, p = 0.5 and 1, and 5,000 slots without
swapping), ``glyph`` (glyph-94, 10 experiences, 500 slots, p = 1) and ``digits`` (split-digits, 5
experiences, 20 slots, p = 0.5 and 1). A three-block CNN is trained by AdamW (1e-3) with 64 rows of
the stream and 64 of the memory a step (on the digits 32, and the 20 there are). Runs of one seed
share class order and initial weights, and gains are means over such pairs with a 95 % t-interval.
Final accuracy is over all test samples of all classes, in points of 100.

Run it as ``python -m benchmarks.accuracy_er [--json FILE] [--parts figlet,glyph,digits]
[--seeds 0,1,2] [--jobs 2] [--results FOLDER] [--limit N]``. Every run is a process of its own with
one torch thread, and leaves a small JSON file in the results folder: a study that was interrupted
goes on with what is missing. A run takes about two minutes on figlet-94, four on glyph-94. With
``--limit`` figures have no targets: they were set for all of the data.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from scipy.stats import t as student

from benchmarks._er_run import Setting
from benchmarks._harness import Row, report

Result = dict[str, Any]
Results = dict[tuple[str, int, float, int], Result]  # by benchmark, slots, swap ratio and seed

PARTS: dict[str, tuple[Setting, Sequence[tuple[int, float]]]] = {
    # what all runs of a part share, then (slots, swap ratio) of each kind; the first is plain ER
    "figlet": (
        Setting("figlet-94", 500, 0.0, seed=0, epochs=3),
        [(500, 0.0), (500, 0.5), (500, 1.0), (5000, 0.0)],
    ),
    "glyph": (Setting("glyph-94", 500, 0.0, seed=0, epochs=4), [(500, 0.0), (500, 1.0)]),
    "digits": (
        # 16 steps an experience, as 4 epochs of 64 would give, are too few to wear out 20 samples
        Setting("split-digits", 20, 0.0, seed=0, epochs=10, experiences=5, batch_size=32),
        [(20, 0.0), (20, 0.5), (20, 1.0)],
    ),
}
"""The studies. All settings of a part but slots, ratio and seed are equal."""

LEAST_GAIN = {"figlet": 10.0, "glyph": 28.4, "digits": 0.0}
"""Points that the mean gain of a part has to reach; 28.4 is the headline of the CarM paper."""


class Gain(NamedTuple):
    """Paired difference of final accuracies, in points: mean and half the 95 % interval."""

    mean: float
    half: float


def main() -> None:
    """Run what is missing, then sum up."""
    arguments = _parse_arguments()
    arguments.results.mkdir(parents=True, exist_ok=True)
    settings = [
        replace(base, memory_size=slots, swap_ratio=ratio, seed=seed, limit=arguments.limit)
        for part in arguments.parts
        for base, kinds in [PARTS[part]]
        for seed in arguments.seeds
        for slots, ratio in kinds
    ]
    failed = _run_missing(settings, arguments.results, arguments.jobs)
    results = {
        (setting.benchmark, setting.memory_size, setting.swap_ratio, setting.seed): result
        for setting in settings
        if (result := _read(setting, arguments.results)) is not None
    }
    rows = [row for part in arguments.parts for row in _rows(part, results, arguments.seeds)]
    if arguments.limit is not None:
        rows = [replace(row, target=None, met=None) for row in rows]
    report(rows, f"ER with a carousel, {len(arguments.seeds)} paired seeds", arguments.json)
    if results:
        print(f"plot: {_plot(results, arguments.results / 'accuracy_er.png')}")
    if failed:
        raise SystemExit(f"{len(failed)} runs failed: {', '.join(failed)}")


def _parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help="comma-separated")
    parser.add_argument("--seeds", type=_integers, default=[0, 1, 2], help="comma-separated")
    parser.add_argument("--jobs", type=int, default=2, help="runs at the same time")
    parser.add_argument(
        "--results", type=Path, default=Path("runs/accuracy_er"), help="folder of the single runs"
    )
    parser.add_argument("--limit", type=int, help="samples of a class, for a quick look")
    return parser.parse_args()


def _parts(text: str) -> list[str]:
    parts = text.split(",")
    unknown = [part for part in parts if part not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"unknown part {unknown[0]}: use {', '.join(PARTS)}")
    return parts


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def _read(setting: Setting, folder: Path) -> Result | None:
    """The result of a run, None when there is none or it was made with other settings."""
    try:
        result: Result = json.loads((folder / f"{setting.name}.json").read_text())
    except (OSError, ValueError):
        return None
    return result if result.get("setting") == asdict(setting) else None


def _run_missing(settings: Iterable[Setting], folder: Path, jobs: int) -> list[str]:
    """Train what has no result yet; returns the names of runs that failed."""
    missing = [setting for setting in settings if _read(setting, folder) is None]
    failed: list[str] = []
    progress = Progress(
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn()
    )
    with progress, ThreadPoolExecutor(max(1, jobs)) as pool:
        task = progress.add_task("training", total=len(missing))
        waiting = {pool.submit(_train, setting, folder): setting for setting in missing}
        try:
            for future in as_completed(waiting):
                setting, error = waiting[future], future.result()
                result = _read(setting, folder)
                failed += [] if result else [setting.name]
                progress.print(_line(setting, result, error))
                progress.advance(task)
        except KeyboardInterrupt:  # runs under way got it too; those that wait shall not start
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return failed


def _line(setting: Setting, result: Result | None, error: str) -> str:
    if result is None:
        return f"{setting.name} failed:\n{error}"
    return f"{setting.name}: {100 * result['final_accuracy']:.1f} % in {result['seconds']:.0f} s"


def _train(setting: Setting, folder: Path) -> str:
    """One run in its own process; returns the end of what it said on stderr."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as source:
        json.dump(asdict(setting), source)
        source.flush()
        done = subprocess.run(
            [
                sys.executable,
                "-m",
                "benchmarks._er_run",
                source.name,
                str(folder / f"{setting.name}.json"),
            ],
            env=os.environ | {"OMP_NUM_THREADS": "1"},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
    return "\n".join(done.stderr.splitlines()[-5:])


def _rows(part: str, results: Results, seeds: Sequence[int]) -> list[Row]:
    base, kinds = PARTS[part]

    def of(slots: int, ratio: float) -> list[Result | None]:
        return [results.get((base.benchmark, slots, ratio, seed)) for seed in seeds]

    rows = []
    for slots, ratio in kinds:
        rows += _level(
            base.benchmark, slots, ratio, [result for result in of(slots, ratio) if result]
        )
    largest = max(slots for slots, _ in kinds)
    for slots, ratio in kinds:
        if ratio == 0:
            continue
        name = f"{base.benchmark}: EM {slots}, p = {ratio:g}"
        gain = _gain(of(slots, ratio), of(slots, 0.0))
        if gain is not None:
            rows += _gain_rows(name, gain, LEAST_GAIN[part])
        gain = _gain(of(slots, ratio), of(largest, 0.0)) if largest > slots else None
        if gain is not None:
            rows.append(Row.at_least(f"{name} minus EM {largest} without", gain.mean, -2.0))
    return rows


def _level(benchmark: str, slots: int, ratio: float, results: Sequence[Result]) -> list[Row]:
    if not results:
        return []
    name = f"{benchmark}: EM {slots}, {f'p = {ratio:g}' if ratio else 'no swap'}"
    rows = [
        Row(f"{name}: final accuracy", 100 * _mean(results, "final_accuracy")),
        Row(f"{name}: forgetting", 100 * _mean(results, "forgetting")),
    ]
    if ratio:
        done = [r["swaps"]["done"] / max(1, r["swaps"]["requested"]) for r in results]
        rows.append(Row(f"{name}: swaps done / requested", float(np.mean(done))))
    return rows


def _mean(results: Sequence[Result], key: str) -> float:
    return float(np.mean([result[key] for result in results]))


def _gain(ours: Sequence[Result | None], plain: Sequence[Result | None]) -> Gain | None:
    """Gain over the seeds of which both runs are there; a single pair has no interval."""
    points = np.array(
        [
            100 * (one["final_accuracy"] - other["final_accuracy"])
            for one, other in zip(ours, plain, strict=True)
            if one and other
        ]
    )
    if len(points) < 2:
        return Gain(float(points[0]), float("inf")) if len(points) else None
    quantile = float(student.ppf(0.975, len(points) - 1))
    return Gain(float(points.mean()), quantile * float(points.std(ddof=1)) / len(points) ** 0.5)


def _gain_rows(name: str, gain: Gain, least: float) -> list[Row]:
    lower = gain.mean - gain.half
    return [
        Row.at_least(f"{name}: gain, mean", gain.mean, least),
        Row(f"{name}: gain, lower end of the 95 % interval", lower, "> 0", lower > 0),
        Row(f"{name}: gain, upper end of the 95 % interval", gain.mean + gain.half),
    ]


def _plot(results: Results, path: Path) -> Path:
    """Accuracy over the classes seen so far, after each experience, mean over seeds."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt

    benchmarks = list(dict.fromkeys(key[0] for key in results))
    figure, axes = plt.subplots(
        1, len(benchmarks), figsize=(5 * len(benchmarks), 4), squeeze=False, layout="constrained"
    )
    for axis, benchmark in zip(axes[0], benchmarks, strict=True):
        kinds = dict.fromkeys(key[1:3] for key in results if key[0] == benchmark)
        for slots, ratio in kinds:
            curves = np.array(
                [_curve(r) for key, r in results.items() if key[:3] == (benchmark, slots, ratio)]
            )
            steps = np.arange(1, curves.shape[1] + 1)
            label = f"EM {slots}, {f'p = {ratio:g}' if ratio else 'no swap'}"
            (line,) = axis.plot(steps, curves.mean(axis=0), marker="o", label=label)
            axis.fill_between(
                steps, curves.min(axis=0), curves.max(axis=0), color=line.get_color(), alpha=0.15
            )
        axis.set(title=benchmark, xlabel="experiences learned", ylabel="accuracy, %")
        axis.set_ylim(bottom=0)
        axis.set_xticks(steps)
        axis.grid(alpha=0.3)
        axis.legend()
    figure.savefig(path, dpi=120)
    plt.close(figure)
    return path


def _curve(result: Result) -> list[float]:
    matrix, counts = np.array(result["accuracy_matrix"]), np.array(result["test_counts"])
    return [
        100 * float(np.average(row[: step + 1], weights=counts[: step + 1]))
        for step, row in enumerate(matrix)
    ]


if __name__ == "__main__":
    main()
