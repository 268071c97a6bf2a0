"""How pictures look: colours, and axes without clutter. Drawn without a display."""

from __future__ import annotations

from matplotlib.axes import Axes
from matplotlib.figure import Figure

__all__ = ["canvas", "nothing", "tidy"]

INK, MUTED, GRID = "#1f2933", "#7b8794", "#e4e7eb"
BLUE, ORANGE, GREEN, RED, PURPLE, SAND = (
    "#2f6db3",
    "#e0873a",
    "#4a9a68",
    "#c8504f",
    "#7d62a5",
    "#c9b458",
)
DPI = 130


def canvas(title: str, size: tuple[float, float]) -> tuple[Figure, Axes]:
    """A figure with a title and one pair of axes; the size is in inches."""
    figure = Figure(figsize=size, layout="constrained", facecolor="white")
    figure.suptitle(title, x=0.02, ha="left", color=INK, fontsize=12, fontweight="bold")
    axes = figure.add_subplot()
    tidy(axes)
    return figure, axes


def tidy(axes: Axes) -> None:
    """Take away all lines but a light grid."""
    axes.spines[["top", "right", "left", "bottom"]].set_visible(False)
    axes.grid(color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(colors=MUTED, labelcolor=INK, length=0)
    axes.xaxis.label.set_color(INK)
    axes.yaxis.label.set_color(INK)


def nothing(figure: Figure, axes: Axes, why: str) -> Figure:
    """Say in the picture why there is none."""
    axes.set_axis_off()
    axes.text(0.5, 0.5, why, ha="center", va="center", color=MUTED, transform=axes.transAxes)
    return figure
