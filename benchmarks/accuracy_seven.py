"""The central table: final accuracy of seven methods with a carousel and without.

Two studies of `carousel compare`: figlet-94 with p = 0.5, in the settings of
``benchmarks/studies/accuracy_seven.yaml``, with the bounds `naive` and `joint`; and glyph-94 with
p = 1 (``accuracy_seven_glyph.yaml``), where the largest gain of the CarM paper, 28.4 points, is to
be reached. Runs of one seed share class order and initial weights; gains are means over such
pairs with a 95 % t-interval. A method whose gain over three seeds is under five points gets seven.

Run it as ``python -m benchmarks.accuracy_seven [--json FILE] [--out FOLDER] [--jobs 2]
[--seeds 0,1,2] [--methods icarl,bic] [--limit N] [--parts figlet,glyph]``. What is done is
skipped, so an interrupted study goes on. With ``--limit`` figures have no targets: they were set
for all of the data.
"""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Callable, Iterable
from dataclasses import replace
from math import isfinite
from typing import Any

import numpy as np

from benchmarks._harness import Row, report
from benchmarks._study import (
    Results,
    line,
    only,
    parse_study_arguments,
    points,
    read_study_file,
    run_study,
    with_choices,
)

SEVEN = ("er", "tiny-er", "icarl", "bic", "gdumb", "der++", "rm")
SURELY = ("er", "bic", "der++", "rm", "gdumb")
"""Methods whose gain has to be above 0 with 95 % confidence."""

HEADLINE = 28.4
"""Largest gain of the CarM paper, in points."""

FEW, MANY = 5.0, 7
"""A method that gains less than so many points gets so many seeds."""


def main() -> None:
    """Run what is missing, then sum up."""
    choices = parse_study_arguments(__doc__, "runs/accuracy_seven", parts=tuple(PARTS))
    rows = [row for part in choices.parts for row in PARTS[part](choices)]
    if choices.limit is not None:
        rows = [replace(row, target=None, met=None) for row in rows]
    report(rows, "Seven methods with a carousel", choices.json)


def figlet_rows(choices: Namespace) -> list[Row]:
    """The central table, with more seeds for those that gain little."""
    study = with_choices(read_study_file("accuracy_seven"), choices)
    results = run_study(study, choices.out / "figlet", "study", choices.jobs)
    small = [name for name in SEVEN if points(_gain(results, name)) < FEW]
    if small and choices.seeds is None:
        study = with_more_seeds(study, small)
        results = run_study(study, choices.out / "figlet", "study", choices.jobs)
    rows = [row for name in ("naive", *SEVEN, "joint") for row in level_rows(results, name)]
    return rows + gain_rows(results)


def with_more_seeds(study: dict[str, Any], names: Iterable[str]) -> dict[str, Any]:
    """The study with seven seeds for some methods."""
    more = only(study, names, seeds=list(range(MANY)))["strategies"]
    bounds = {name: {**(study["strategies"][name] or {})} for name in ("naive", "joint")}
    kept = {name: {"seeds": study["seeds"], **own} for name, own in bounds.items()}
    return {**study, "strategies": {**study["strategies"], **more, **kept}}


def level_rows(results: Results, name: str) -> list[Row]:
    """Accuracy without and with swapping, and forgetting."""
    found = line(results, name)
    if found is None:
        return []
    kinds = [("no_swap", "no swap"), ("swap", "p = 0.5")]
    if found["swap"] is None:
        kinds = [("no_swap", "")]
    return [
        row
        for key, label in kinds
        for row in (
            Row(_name(name, label, "final accuracy"), points(found[key])),
            Row(_name(name, label, "forgetting"), points(found[f"{key}_forgetting"])),
        )
    ]


def gain_rows(results: Results) -> list[Row]:
    """The gain of every method against its target, and their mean."""
    rows, means = [], []
    for name in SEVEN:
        gain = _gain(results, name)
        if gain is None:
            continue
        low = points(gain, "low")
        means.append(points(gain))
        bound = 0.0 if name in SURELY else -1.0
        rows += [
            Row(f"{name}: gain, mean of {gain['count']} seeds", means[-1]),
            Row(
                f"{name}: gain, lower end of the 95 % interval",
                low,
                f"> {bound:g}",
                isfinite(low) and low > bound,
            ),
            Row(f"{name}: gain, upper end of the 95 % interval", points(gain, "high")),
        ]
    if len(means) == len(SEVEN):
        rows.append(Row.at_least("mean gain over the seven", float(np.mean(means)), 10.0))
    return rows


def glyph_rows(choices: Namespace) -> list[Row]:
    """The gains on glyph-94 at p = 1, and the largest of them."""
    study = with_choices(read_study_file("accuracy_seven_glyph"), choices)
    results = run_study(study, choices.out / "glyph", "study", choices.jobs)
    rows, means = [], []
    for found in results["lines"]:
        name = f"{found['strategy']}, {found['point']['epochs']} epochs"
        gain = found["gain"]
        if gain is None:
            continue
        means.append(points(gain))
        rows += [
            Row(f"glyph-94, {name}, no swap: final accuracy", points(found["no_swap"])),
            Row(f"glyph-94, {name}, p = 1: final accuracy", points(found["swap"])),
            Row(f"glyph-94, {name}: gain, mean of {gain['count']} seeds", means[-1]),
            Row(
                f"glyph-94, {name}: gain, lower end of the 95 % interval",
                points(gain, "low"),
            ),
        ]
    if means:
        rows.append(Row.at_least("glyph-94: largest gain, p = 1", max(means), HEADLINE))
    return rows


def _gain(results: Results, name: str) -> dict[str, Any] | None:
    found = line(results, name)
    return None if found is None else found["gain"]


PARTS: dict[str, Callable[[Namespace], list[Row]]] = {"figlet": figlet_rows, "glyph": glyph_rows}


def _name(method: str, label: str, figure: str) -> str:
    return f"{method}{f', {label}' if label else ''}: {figure}"


if __name__ == "__main__":
    main()
