"""The table of a study: for the terminal, as CSV, and as LaTeX."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from math import inf
from typing import Any

from rich.table import Table

from carousel.report.study.results import Line, StudyResults, point_text
from carousel.report.study.statistics import Interval, mean_interval
from carousel.report.words import seconds_text

__all__ = ["COLUMNS", "csv_text", "latex_table", "rows_of", "study_rows", "study_table"]

COLUMNS = ("no swap", "swap", "gain", "forgetting", "time")
"""Headings of the figures of a line, see `rows_of`."""

_UNITS = "accuracy over all classes and forgetting in %, gain in points"
_SPREAD = "; ± is the 95 % interval over seeds"

_CSV = ("strategy", "swap", "seed", "state", "run")
_LATEX = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    **{character: "\\" + character for character in "&%$#_{}"},
}


def rows_of(results: StudyResults, *, sign: str = "±") -> list[tuple[str, str, tuple[str, ...]]]:
    """Method, setting and the figures under `COLUMNS`, as text; accuracies in per cent.

    Args:
        results: of the study.
        sign: between a mean and half its interval.
    """
    return [(line.strategy, point_text(line.point), _figures(line, sign)) for line in results.lines]


def study_table(results: StudyResults) -> Table:
    """What `carousel compare` prints at its end."""
    table = Table(
        title=results.title,
        title_justify="left",
        title_style="bold",
        caption=_UNITS,
        caption_justify="left",
        box=None,
        pad_edge=False,
    )
    swept, rows = bool(results.swept), rows_of(results)
    if any("±" in text for _, _, figures in rows for text in figures):
        table.caption = _UNITS + _SPREAD
    table.add_column("strategy", no_wrap=True)
    if swept:
        table.add_column("setting")
    for heading in COLUMNS:
        style = "bold" if heading == "gain" else ""
        table.add_column(heading, justify="right", no_wrap=True, style=style)
    for strategy, setting, figures in rows:
        table.add_row(strategy, *([setting] if swept else []), *figures)
    return table


def csv_text(results: StudyResults) -> str:
    """One row a run; accuracies in 0..1, empty where there is no figure."""
    names = list(dict.fromkeys(name for run in results.runs for name in _scalars(run.summary)))
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*_CSV, *results.swept, *names, "error"])
    swap = {None: "", True: "on", False: "off"}
    for run in results.runs:
        point, figures = dict(run.point), _scalars(run.summary)
        writer.writerow(
            [
                *(run.strategy, swap[run.swap], run.seed, run.state, run.name),
                *(point.get(key, "") for key in results.swept),
                *(figures.get(name, "") for name in names),
                run.error,
            ]
        )
    return text.getvalue()


def latex_table(results: StudyResults) -> str:
    """A table for a paper, with rules of the package booktabs."""
    swept = bool(results.swept)
    heads = ["Method", *(["Setting"] if swept else []), *(name.capitalize() for name in COLUMNS)]
    body = [
        [_escape(strategy), *([_escape(setting)] if swept else []), *map(_latex_figure, figures)]
        for strategy, setting, figures in rows_of(results)
    ]
    columns = "l" * (1 + swept) + "r" * len(COLUMNS)
    return "\n".join(
        [
            "% \\usepackage{booktabs}; accuracy and forgetting in per cent, gain in points,",
            "% mean and 95 % interval (Student's t) over seeds; gains are paired by seed.",
            rf"\begin{{tabular}}{{{columns}}}",
            r"\toprule",
            " & ".join(heads) + r" \\",
            r"\midrule",
            *(" & ".join(row) + r" \\" for row in body),
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def study_rows(results: StudyResults) -> list[dict[str, Any]]:
    """Figures as benchmarks write them: metric, value, target and whether it was met."""
    rows: list[dict[str, Any]] = []
    for line in results.lines:
        name = " ".join(filter(None, (line.strategy, point_text(line.point))))
        figures: list[tuple[str, Interval | None]] = [
            ("final accuracy" if line.bound else "no swap: final accuracy", line.plain_mean()),
            ("swap: final accuracy", line.swapped_mean()),
            ("gain", line.gain()),
        ]
        for what, found in figures:
            if found is None:
                continue
            ends = [(", lower end of the 95 % interval", found.low)] if found.known else []
            ends += [(", upper end of the 95 % interval", found.high)] if found.known else []
            rows += [
                {"metric": f"{name}: {what}{end}", "value": 100 * value}
                for end, value in [("", found.mean), *ends]
            ]
    return [row | {"target": None, "met": None} for row in rows]


def _figures(line: Line, sign: str) -> tuple[str, ...]:
    gain = line.gain()
    seconds = [float(run.summary["seconds"]) for run in (*line.plain, *line.swapped)]
    mean = mean_interval(seconds)
    return (
        _percent(line.plain_mean(), sign),
        _percent(line.swapped_mean(), sign),
        _percent(gain, sign, signed=True),
        _forgetting(line),
        "" if mean is None else seconds_text(mean.mean),
    )


def _forgetting(line: Line) -> str:
    """Means without and with swapping; their intervals are in the results file."""
    found = (line.plain_mean("forgetting"), line.swapped_mean("forgetting"))
    return " → ".join(f"{100 * one.mean:.1f}" for one in found if one)


def _percent(found: Interval | None, sign: str, *, signed: bool = False) -> str:
    if found is None:
        return ""
    mean = f"{100 * found.mean:+.1f}" if signed else f"{100 * found.mean:.1f}"
    return mean if found.half == inf else f"{mean} {sign} {100 * found.half:.1f}"


def _latex_figure(text: str) -> str:
    if not text or text[-1].isalpha():
        return text
    number = text.replace("±", r"\pm").replace("→", r"\to")
    return f"${number}$"


def _escape(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in text)


def _scalars(summary: Any) -> dict[str, Any]:
    """The figures of a summary that fit one cell; swaps by outcome are spread out."""
    flat: dict[str, Any] = {}
    for key, value in summary.items():
        if key in ("strategy", "seed"):
            continue
        if isinstance(value, bool | int | float | str):
            flat[key] = value
        elif key == "swaps":
            flat |= {f"swaps_{name}": count for name, count in value.items()}
    return flat


def headings(swept: bool) -> Sequence[str]:
    """All headings of the table."""
    return ("strategy", *(("setting",) if swept else ()), *COLUMNS)
