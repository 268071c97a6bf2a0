"""All files of a study's report, from its results."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from carousel.report.study.page import render_study
from carousel.report.study.plots import save_study_plots
from carousel.report.study.results import Line, StudyResults
from carousel.report.study.statistics import Interval
from carousel.report.study.tables import csv_text, latex_table, study_rows

__all__ = ["RESULTS", "results_json", "write_study"]

RESULTS = "results.json"


def write_study(results: StudyResults, folder: Path) -> None:
    """Write ``results.json``, ``results.csv``, ``table.tex``, pictures and ``report.html``.

    Args:
        results: of the study.
        folder: of the study; it exists.
    """
    _replace(folder / RESULTS, json.dumps(results_json(results), indent=2) + "\n")
    _replace(folder / "results.csv", csv_text(results))
    _replace(folder / "table.tex", latex_table(results))
    pictures = save_study_plots(results, folder)
    _replace(folder / "report.html", render_study(results, pictures))


def results_json(results: StudyResults) -> dict[str, Any]:
    """Everything as plain values; accuracies of `lines` and `runs` in 0..1, of `rows` in 100."""
    return {
        "title": results.title,
        "rows": study_rows(results),
        "lines": [_line(line) for line in results.lines],
        "settings": dict(results.settings),
        "environment": dict(results.environment),
        "runs": [{**asdict(run), "point": dict(run.point)} for run in results.runs],
    }


def _line(line: Line) -> dict[str, Any]:
    figures: dict[str, Callable[[], Interval | None]] = {
        "no_swap": line.plain_mean,
        "swap": line.swapped_mean,
        "gain": line.gain,
        "no_swap_forgetting": lambda: line.plain_mean("forgetting"),
        "swap_forgetting": lambda: line.swapped_mean("forgetting"),
    }
    return {
        "strategy": line.strategy,
        "point": dict(line.point),
        "seeds": sorted({run.seed for run in (*line.plain, *line.swapped)}),
        **{name: _interval(find()) for name, find in figures.items()},
    }


def _interval(found: Interval | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {
        "mean": found.mean,
        "low": found.low if found.known else None,
        "high": found.high if found.known else None,
        "count": found.count,
    }


def _replace(path: Path, content: str) -> None:
    temporary = path.with_name(path.name + ".tmp")
    temporary.write_text(content, encoding="utf-8")
    temporary.replace(path)
