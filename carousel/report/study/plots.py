"""The pictures of a study, all with intervals; `save_study_plots` writes them as PNG."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from carousel.report.canvas import BLUE, DPI, INK, MUTED, ORANGE, canvas, nothing, tidy
from carousel.report.study.results import Line, RunResult, StudyResults, point_text
from carousel.report.study.statistics import Interval, mean_interval

__all__ = ["accuracy_dots", "curves", "gain_dots", "save_study_plots", "sweep_lines"]

_WIDTH = 7.6
_APART = 0.13
"""Between the dots of a line, so that their intervals can be told apart."""
_COLOURS = [BLUE, ORANGE, "#4a9a68", "#7d62a5", "#c8504f", "#5aa9b5", "#c9b458", INK]


def save_study_plots(results: StudyResults, folder: Path) -> dict[str, tuple[str, Path]]:
    """Draw what the results allow into ``folder``; pictures of an earlier report go.

    Args:
        results: of the study.
        folder: of the pictures.

    Returns:
        Caption and path by name, in reading order.
    """
    figures = {
        "accuracy": ("Final accuracy with and without swapping", accuracy_dots(results)),
        "gain": ("Gain by swapping", gain_dots(results)),
        "curves": ("Accuracy over experiences", curves(results)),
    }
    for key in results.swept:
        name = key.removeprefix("strategy.")
        figures[f"sweep_{name}"] = (f"Final accuracy by {name}", sweep_lines(results, key))
    for old in folder.glob("sweep_*.png"):
        old.unlink()
    written = {}
    for name, (caption, figure) in figures.items():
        path = folder / f"{name}.png"
        figure.savefig(path, dpi=DPI)
        written[name] = caption, path
    return written


def accuracy_dots(results: StudyResults) -> Figure:
    """Mean final accuracy a line, bounds as vertical lines where there is one of each."""
    lines = [line for line in results.lines if not line.bound]
    bounds = [line for line in results.lines if line.bound]
    single = len({line.strategy for line in bounds}) == len(bounds)
    if not lines or not single:
        lines, bounds = results.lines, []
    figure, axes = canvas("Final accuracy", (_WIDTH, 1.6 + 0.42 * max(len(lines), 1)))
    if not lines:
        return nothing(figure, axes, "no run is done")
    for row, line in enumerate(lines):
        plain, swapped = line.plain_mean(), line.swapped_mean()
        _dot(axes, plain, row - _APART, ORANGE)
        _dot(axes, swapped, row + _APART, BLUE)
    for line in bounds:
        mean = line.plain_mean()
        assert mean is not None
        axes.axvline(mean.mean, color=INK, linewidth=1, linestyle=(0, (4, 3)), zorder=0.9)
        axes.annotate(
            line.strategy,
            (mean.mean, 1.0),
            xycoords=("data", "axes fraction"),
            xytext=(0, 3),
            textcoords="offset points",
            ha="center",
            color=MUTED,
            fontsize=9,
        )
    _rows(axes, lines)
    axes.set_xlim(0, 1.02)
    axes.xaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    handles = [
        axes.plot([], [], "o", color=colour, label=label)[0]
        for colour, label in ((ORANGE, "no swap"), (BLUE, "swap"))
    ]
    figure.legend(handles=handles, frameon=False, loc="outside upper right", ncols=2, fontsize=9)
    return figure


def gain_dots(results: StudyResults) -> Figure:
    """Paired gain a line, with its interval."""
    lines = [line for line in results.lines if line.gain() is not None]
    figure, axes = canvas("Gain by swapping, in points", (_WIDTH, 1.6 + 0.42 * max(len(lines), 1)))
    if not lines:
        return nothing(figure, axes, "no pair of runs is done")
    axes.axvline(0, color=INK, linewidth=1)
    for row, line in enumerate(lines):
        gain = line.gain()
        assert gain is not None
        _dot(axes, gain, row, BLUE if gain.mean >= 0 else ORANGE)
    _rows(axes, lines)
    axes.xaxis.set_major_formatter(lambda value, _: f"{100 * value:+.0f}" if value else "0")
    axes.margins(x=0.12)
    return figure


def curves(results: StudyResults) -> Figure:
    """Accuracy over the classes seen, a panel a method; its bands are intervals."""
    methods = list(dict.fromkeys(line.strategy for line in results.lines if not line.bound))
    bounds = [line for line in results.lines if line.bound]
    panels: list[str | None] = [*methods] if methods else [None]
    columns = min(3, len(panels))
    rows = ceil(len(panels) / columns)
    figure = Figure(
        figsize=(max(_WIDTH, 3.6 * columns), 0.7 + 3.0 * rows),
        layout="constrained",
        facecolor="white",
    )
    figure.suptitle(
        "Accuracy over experiences", x=0.02, ha="left", color=INK, fontsize=12, fontweight="bold"
    )
    shared: Axes | None = None
    for number, method in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1, sharex=shared, sharey=shared)
        shared = shared or axes
        tidy(axes)
        axes.set_title(method or "bounds", loc="left", fontsize=10, color=INK)
        for line, style in zip(bounds, ((0, (1, 2)), (0, (4, 3))), strict=False):
            _curve(axes, line.plain, line.strategy, MUTED, style, band=False)
        lines = [line for line in results.lines if line.strategy == method]
        _method_curves(axes, lines)
        if results.done:
            axes.legend(frameon=False, fontsize=8, loc="best")
        if number + columns >= len(panels):
            axes.set_xlabel("experiences learned")
    assert shared is not None
    shared.set_ylim(0, 1.02)
    shared.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    shared.xaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    return figure


def sweep_lines(results: StudyResults, key: str) -> Figure:
    """Final accuracy against a swept setting, a line a method and values of other sweeps."""
    groups = _groups(results, key)
    name = key.removeprefix("strategy.")
    figure, axes = canvas(f"Final accuracy by {name}", (_WIDTH, 4.4))
    if not groups:
        return nothing(figure, axes, "no run of this sweep is done")
    values = _ordered({dict(line.point)[key] for lines in groups.values() for line in lines})
    numeric = all(_number(value) for value in values)
    for (label, lines), colour in zip(groups.items(), _cycle(len(groups)), strict=True):
        ordered = sorted(lines, key=lambda line: values.index(dict(line.point)[key]))
        at = [values.index(dict(line.point)[key]) for line in ordered]
        where = [float(values[index]) if numeric else float(index) for index in at]
        swapped = [line.swapped_mean() for line in ordered]
        plain = [line.plain_mean() for line in ordered]
        _series(axes, where, swapped, label=f"{label}, swap", color=colour)
        dashes = (0, (4, 3))
        _series(axes, where, plain, label=f"{label}, no swap", color=colour, linestyle=dashes)
    if not numeric:
        axes.set_xticks(range(len(values)), [str(value) for value in values])
    axes.set_xlabel(name)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    axes.set_ylim(bottom=0)
    figure.legend(frameon=False, loc="outside right upper", fontsize=9)
    return figure


def _dot(axes: Axes, found: Interval | None, row: float, colour: str) -> None:
    if found is None:
        return
    half = found.half if found.known else None
    axes.errorbar(
        found.mean, row, xerr=half, fmt="o", color=colour, capsize=3, elinewidth=1.6, zorder=3
    )


def _rows(axes: Axes, lines: Sequence[Line]) -> None:
    axes.set_yticks(range(len(lines)), [_label(line) for line in lines])
    axes.set_ylim(len(lines) - 0.5, -0.5)
    axes.grid(visible=False, axis="y")


def _label(line: Line) -> str:
    return "\n".join(filter(None, (line.strategy, point_text(line.point))))


def _method_curves(axes: Axes, lines: Sequence[Line]) -> None:
    shades = colormaps["viridis"](np.linspace(0.15, 0.85, len(lines)))
    plain: dict[tuple[str, ...], Line] = {}
    for line in lines:
        plain.setdefault(tuple(run.name for run in line.plain), line)
    for line in plain.values():
        label = "no swap" if len(plain) == 1 else f"no swap, {point_text(line.point)}"
        _curve(axes, line.plain, label, ORANGE, "-")
    for line, shade in zip(lines, shades, strict=True):
        label = "swap" if len(lines) == 1 else point_text(line.point)
        _curve(axes, line.swapped, label, BLUE if len(lines) == 1 else shade, "-")


def _curve(
    axes: Axes,
    runs: Sequence[RunResult],
    label: str,
    colour: Any,
    style: Any,
    *,
    band: bool = True,
) -> None:
    if not runs:
        return
    found = [run.curve() for run in runs]
    length = min(len(curve) for curve in found)
    points = [mean_interval([float(curve[i]) for curve in found]) for i in range(length)]
    steps = np.arange(1, length + 1)
    means = np.array([point.mean for point in points if point])
    axes.plot(steps, means, color=colour, linestyle=style, linewidth=1.8, marker=".", label=label)
    halves = np.array([point.half for point in points if point])
    if band and np.isfinite(halves).all():
        low, high = np.clip(means - halves, 0, 1), np.clip(means + halves, 0, 1)
        axes.fill_between(steps, low, high, color=colour, alpha=0.15, linewidth=0)


def _groups(results: StudyResults, key: str) -> dict[str, list[Line]]:
    """Lines that differ in one setting only, by what they share."""
    groups: dict[str, list[Line]] = {}
    for line in results.lines:
        if key not in dict(line.point):
            continue
        rest = point_text(tuple(pair for pair in line.point if pair[0] != key))
        groups.setdefault(", ".join(filter(None, (line.strategy, rest))), []).append(line)
    return groups


def _series(
    axes: Axes,
    where: Sequence[float],
    found: Sequence[Interval | None],
    **style: Any,
) -> None:
    there = [(x, point) for x, point in zip(where, found, strict=True) if point]
    if not there:
        return
    halves = [point.half if point.known else 0.0 for _, point in there]
    axes.errorbar(
        [x for x, _ in there],
        [point.mean for _, point in there],
        yerr=halves if any(halves) else None,
        marker="o",
        markersize=4,
        capsize=3,
        **style,
    )


def _ordered(values: set[Any]) -> list[Any]:
    if all(_number(value) for value in values):
        return sorted(values)
    return sorted(values, key=str)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _cycle(count: int) -> list[str]:
    return [_COLOURS[index % len(_COLOURS)] for index in range(count)]
