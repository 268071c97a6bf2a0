"""Gains over all seeds of the central table, those that were trained later included.

Reads ``docs/results/accuracy_seven.csv`` and ``accuracy_seven_more_seeds.csv``, and trains nothing.
Run: ``python -m benchmarks.accuracy_seven_pooled [--json FILE]``.
"""

from __future__ import annotations

import csv
from collections import defaultdict
from pathlib import Path

from benchmarks._harness import Row, parse_arguments, report
from carousel.report.study.statistics import mean_interval, paired_gain

RESULTS = Path(__file__).parents[1] / "docs" / "results"

BySeed = dict[int, float]


def main() -> None:
    """Read, sum up, print."""
    arguments = parse_arguments(__doc__)
    first, later = read("accuracy_seven.csv"), read("accuracy_seven_more_seeds.csv")
    rows = []
    for name in sorted({strategy for strategy, _ in later}):
        plain, treated = (first[name, swap] | later[name, swap] for swap in ("off", "on"))
        rows += gain_rows(name, plain, treated)
    report(rows, "Gains over all seeds", arguments.json)


def read(name: str) -> dict[tuple[str, str], BySeed]:
    """Final accuracies by seed, of every method without and with swapping."""
    found: dict[tuple[str, str], BySeed] = defaultdict(dict)
    with (RESULTS / name).open(newline="") as file:
        for run in csv.DictReader(file):
            found[run["strategy"], run["swap"]][int(run["seed"])] = float(run["final_accuracy"])
    return found


def gain_rows(name: str, plain: BySeed, treated: BySeed) -> list[Row]:
    """Levels, the gain with its interval, and the worst seed."""
    levels = {"no swap": plain, "p = 0.5": treated}
    gain = paired_gain(treated, plain)
    assert gain is not None
    rows = []
    for label, values in levels.items():
        level = mean_interval(list(values.values()))
        assert level is not None
        rows.append(Row(f"{name}, {label}: final accuracy", 100 * level.mean))
    worst = min(treated[seed] - plain[seed] for seed in plain)
    return [
        *rows,
        Row(f"{name}: gain, mean of {gain.count} seeds", 100 * gain.mean),
        Row(f"{name}: gain, lower end of the 95 % interval", 100 * gain.low),
        Row(f"{name}: gain, upper end of the 95 % interval", 100 * gain.high),
        Row(f"{name}: gain of the worst seed", 100 * worst),
    ]


if __name__ == "__main__":
    main()
