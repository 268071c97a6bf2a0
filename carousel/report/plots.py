"""The pictures of a run, drawn without a display; `save_plots` writes them all as PNG."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, MaxNLocator, PercentFormatter

from carousel.report import metrics
from carousel.report.canvas import (
    BLUE,
    DPI,
    GREEN,
    GRID,
    INK,
    MUTED,
    ORANGE,
    PURPLE,
    RED,
    SAND,
    canvas,
    nothing,
    tidy,
)
from carousel.report.record import PHASES, RunRecord, Sample

__all__ = [
    "PLOTS",
    "accuracy_curve",
    "accuracy_matrix",
    "forgetting_bars",
    "save_plots",
    "swaps_and_bytes",
    "time_split",
]

PHASE_COLOURS = dict(zip(PHASES, (SAND, ORANGE, RED, BLUE, PURPLE, GREEN), strict=True))
_LEAST_RANGE = 0.06
MOST_ANNOTATED = 12
"""Largest accuracy matrix whose cells carry their number."""


def accuracy_matrix(run: RunRecord) -> Figure:
    """Heat map of the matrix: one row after each experience, one column a test set."""
    total = len(run.matrix)
    side = min(8.5, 2.8 + 0.55 * total)
    figure, axes = canvas("Accuracy matrix", (side + 0.8, side))
    image = axes.imshow(run.matrix * 100, cmap="YlGnBu", vmin=0, vmax=100)
    axes.set_xlabel("tested on experience")
    axes.set_ylabel("after training on experience")
    axes.grid(visible=False)
    ticks = range(0, total, max(1, total // 12))
    axes.set_xticks(ticks, [str(t + 1) for t in ticks])
    axes.set_yticks(ticks, [str(t + 1) for t in ticks])
    axes.tick_params(length=0)
    if total <= MOST_ANNOTATED:
        _annotate(axes, run.matrix * 100)
    bar = figure.colorbar(image, ax=axes, shrink=0.85, format=PercentFormatter(decimals=0))
    bar.outline.set_visible(False)
    return figure


def accuracy_curve(run: RunRecord) -> Figure:
    """Accuracy on each experience and the mean over those seen, after each experience.

    Also, where they were measured, the mean when the experience is told, and the tests between.
    """
    figure, axes = canvas("Accuracy over experiences", (7.2, 4.2))
    done = run.done
    steps = np.arange(1, done + 1)
    for column in range(done):
        label = "each experience" if column == 0 else None
        axes.plot(
            steps[column:],
            run.matrix[column:done, column],
            color=MUTED,
            alpha=0.45,
            linewidth=1.2,
            marker=".",
            label=label,
        )
    if run.task_il is not None:
        told = [run.task_il[i, : i + 1].mean() for i in range(done)]
        axes.plot(steps, told, color=ORANGE, linestyle=(0, (4, 3)), label="told the experience")
    where, anytime = _tests_between(run)
    if where:
        axes.plot(where, anytime, color=GREEN, linewidth=1.2, label="at any time")
    seen = [run.matrix[i, : i + 1].mean() for i in range(done)]
    axes.plot(steps, seen, color=BLUE, linewidth=2.4, marker="o", label="mean of those seen")
    axes.set_ylim(-0.02, 1.02)
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))
    _count_axis(axes, "experiences trained on", len(run.matrix))
    if where:
        axes.set_xlim(left=0)
    axes.legend(frameon=False, loc="lower left")
    return figure


def forgetting_bars(run: RunRecord) -> Figure:
    """Best earlier accuracy minus the last, for each experience, with the mean."""
    figure, axes = canvas("Forgetting by experience", (7.2, 3.8))
    done = run.done
    if done < 2:
        return nothing(figure, axes, "needs two experiences")
    lost = metrics.forgetting_per_experience(run.matrix[:done, :done])
    where = np.arange(1, done)
    colours = [RED if value > 0 else GREEN for value in lost]
    axes.bar(where, lost, width=0.62, color=colours)
    mean = float(lost.mean())
    axes.axhline(0, color=INK, linewidth=0.8)
    axes.axhline(mean, color=INK, linewidth=1.2, linestyle=(0, (4, 3)), label=f"mean {mean:.1%}")
    _percent_axis(axes, min(0.0, float(lost.min())), max(0.0, float(lost.max())))
    axes.set_ylabel("best earlier minus last")
    _count_axis(axes, "experience", done - 1)
    axes.set_xlim(0.4, done - 0.4)
    axes.legend(frameon=False, loc="upper right")
    return figure


def swaps_and_bytes(run: RunRecord) -> Figure:
    """Swaps asked for and done, and the bytes held in RAM and in storage, over time."""
    samples = run.progress()
    figure, (upper, lower) = _pair("Swaps and bytes over time", (7.2, 5.6))
    if not samples:
        return nothing(figure, upper, "no samples were logged")
    seconds = [float(s["seconds"]) for s in samples]
    requested = [int(s["swaps"]["requested"]) for s in samples]
    completed = [int(s["swaps"]["done"]) for s in samples]
    upper.plot(seconds, requested, color=MUTED, alpha=0.4, linewidth=5, label="requested")
    upper.plot(seconds, completed, color=ORANGE, linewidth=2.2, label="done")
    upper.yaxis.set_major_formatter(EngFormatter(sep=""))
    upper.set_ylabel("swaps so far")
    upper.legend(frameon=False, loc="upper left")
    top = max(int(s["storage_bytes"]) + int(s["ram_bytes"]) for s in samples)
    unit, divisor = _unit(top)
    for key, colour, label in (
        ("storage_bytes", PURPLE, "storage file"),
        ("storage_live_bytes", GREEN, "storage, live"),
        ("ram_bytes", BLUE, "memory in RAM"),
    ):
        values = [int(s[key]) / divisor for s in samples]
        lower.plot(seconds, values, color=colour, linewidth=2, label=label)
    lower.set_ylim(bottom=0)
    lower.set_ylabel(unit)
    lower.set_xlabel("seconds of the run (a vertical line starts an experience)")
    lower.legend(frameon=False, loc="best")
    _mark_experiences(samples, (upper, lower))
    figure.align_ylabels()
    return figure


def time_split(run: RunRecord) -> Figure:
    """Seconds of each experience by phase, as stacked bars."""
    rows = [s for s in run.samples if s.get("event") == "experience"]
    height = min(9.0, 2.0 + 0.36 * max(len(rows), 1))
    figure, axes = canvas("Where the time went", (7.2, height))
    if not rows:
        return nothing(figure, axes, "no experience was finished")
    labels = [f"{int(s['experience']) + 1}" for s in rows]
    left = np.zeros(len(rows))
    for phase in PHASES:
        values = np.array([float(s["times"].get(phase, 0.0)) for s in rows])
        axes.barh(labels, values, left=left, height=0.66, color=PHASE_COLOURS[phase], label=phase)
        left += values
    axes.invert_yaxis()
    axes.set_ylabel("experience")
    axes.set_xlabel("seconds")
    axes.grid(visible=False, axis="y")
    figure.legend(
        *axes.get_legend_handles_labels(),
        frameon=False,
        loc="outside upper right",
        ncols=len(PHASES),
        handlelength=1.0,
        columnspacing=1.2,
        fontsize=9,
    )
    return figure


PLOTS: dict[str, tuple[str, Callable[[RunRecord], Figure]]] = {
    "accuracy_matrix": ("Accuracy matrix", accuracy_matrix),
    "accuracy": ("Accuracy over experiences", accuracy_curve),
    "forgetting": ("Forgetting", forgetting_bars),
    "swaps": ("Swaps and bytes over time", swaps_and_bytes),
    "time": ("Time split", time_split),
}
"""File name without ``.png``, caption and drawing function of every plot, in reading order."""


def save_plots(run: RunRecord, folder: Path) -> dict[str, Path]:
    """Draw every plot into ``folder`` and return the path of each by name.

    A plot for which the run has no data yet says so in the picture.
    """
    written: dict[str, Path] = {}
    for name, (_, draw) in PLOTS.items():
        path = folder / f"{name}.png"
        draw(run).savefig(path, dpi=DPI)
        written[name] = path
    return written


def _tests_between(run: RunRecord) -> tuple[list[float], list[float]]:
    """Where tests lie, 1 being the end of the first experience, and the accuracy of each."""
    ends = [0] + [int(s["iteration"]) for s in run.samples if s.get("event") == "experience"]
    tests = [s for s in run.samples if s.get("event") == "anytime" and s["iteration"] <= ends[-1]]
    where = np.interp([s["iteration"] for s in tests], ends, np.arange(len(ends)))
    return where.tolist(), [float(s["accuracy_seen"]) for s in tests]


def _pair(title: str, size: tuple[float, float]) -> tuple[Figure, tuple[Axes, Axes]]:
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    figure.suptitle(title, x=0.02, ha="left", color=INK, fontsize=12, fontweight="bold")
    upper = figure.add_subplot(2, 1, 1)
    lower = figure.add_subplot(2, 1, 2, sharex=upper)
    upper.tick_params(labelbottom=False)
    tidy(upper)
    tidy(lower)
    return figure, (upper, lower)


def _annotate(axes: Axes, percent: metrics.Matrix) -> None:
    for (row, column), value in np.ndenumerate(percent):
        if np.isfinite(value):
            colour = "white" if value > 55 else INK
            axes.text(
                column, row, f"{value:.0f}", ha="center", va="center", color=colour, fontsize=9
            )


def _percent_axis(axes: Axes, low: float, high: float) -> None:
    """Whole per cents from low to high, over a range that makes 1 % look as little as it is."""
    missing = max(0.0, _LEAST_RANGE - (high - low))
    low, high = low - (missing if high == 0 else 0), high + (0 if high == 0 else missing)
    edge = 0.18 * (high - low)
    axes.set_ylim(low - (edge if low < 0 else edge / 6), high + (edge if high > 0 else edge / 6))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10]))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0, decimals=0))


def _count_axis(axes: Axes, label: str, last: int) -> None:
    axes.set_xlabel(label)
    axes.set_xlim(0.8, max(last, 1) + 0.2)
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))


def _mark_experiences(samples: Sequence[Sample], panels: Sequence[Axes]) -> None:
    for axes in panels:
        axes.grid(visible=False, axis="x")
    previous = samples[0]["experience"]
    for sample in samples:
        if sample["experience"] != previous:
            previous = sample["experience"]
            for axes in panels:
                axes.axvline(float(sample["seconds"]), color=GRID, linewidth=1.4, zorder=0.9)


def _unit(top: int) -> tuple[str, int]:
    units = ("bytes", "KiB", "MiB", "GiB", "TiB")
    power = next((p for p in range(len(units)) if top < 2 * 1024 ** (p + 1)), len(units) - 1)
    return units[power], 1024**power
