"""Tables for the terminal, from a summary or an accuracy matrix."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from rich.console import Group, RenderableType
from rich.style import Style
from rich.table import Table
from rich.text import Text

from carousel.report.metrics import Matrix
from carousel.report.words import bytes_text, count_text, percent_text, seconds_text

__all__ = ["OUTCOMES", "carousel_rows", "matrix_table", "pairs_table"]
__all__ += ["score_rows", "summary_view", "swap_rows"]

OUTCOMES = {
    "done": "swapped",
    "stale": "slot had changed",
    "duplicate": "already asked for",
    "no_candidate": "no other sample of the class",
    "corrupt": "record failed its checksum",
    "io_error": "storage error",
    "dropped_full": "queue was full",
    "cancelled": "cancelled",
}
"""Every swap outcome that adds up to ``requested``, in words."""

WIDEST = 12
"""Columns of the matrix that fit a terminal; more are shown as the first and the last ones."""


def summary_view(summary: Mapping[str, Any]) -> RenderableType:
    """What `carousel train` prints at its end."""
    matrix = np.asarray(summary["accuracy_matrix"], dtype=np.float64)
    parts: list[RenderableType] = [
        Text("Accuracy matrix", style="bold"),
        Text("row: after training on; column: tested on; in %", style="dim"),
        matrix_table(matrix),
        "",
        pairs_table("Result", score_rows(summary)),
    ]
    if rows := carousel_rows(summary):
        parts += ["", pairs_table("Carousel", rows)]
    return Group(*parts)


def matrix_table(matrix: Matrix) -> Table:
    """The accuracy matrix in per cent, shaded; row = after training on, column = tested on."""
    table = _table(None)
    table.add_column("", justify="right", style="bold")
    columns = _shown(matrix.shape[1])
    for column in columns:
        table.add_column("…" if column is None else str(column + 1), justify="right")
    table.add_column("mean seen", justify="right", style="bold")
    for row in range(len(matrix)):
        cells = [_cell(matrix[row, c], seen=c <= row) if c is not None else "" for c in columns]
        seen = matrix[row, : row + 1].mean() * 100
        table.add_row(str(row + 1), *cells, f"{seen:.1f}" if np.isfinite(seen) else "")
    return table


def pairs_table(title: str, rows: Sequence[tuple[str, str, str]]) -> Table:
    """Name, value and a remark a row."""
    table = _table(title)
    table.add_column("", no_wrap=True)
    table.add_column("", justify="right", style="bold", no_wrap=True)
    table.add_column("", style="dim")
    table.show_header = False
    for row in rows:
        table.add_row(*row)
    return table


def score_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """The accuracies and the pace of a run, each with what it means."""
    rows = [
        ("final accuracy", "final_accuracy", "over all classes seen"),
        ("average accuracy", "average_accuracy", "mean of the last row"),
        ("incremental accuracy", "average_incremental_accuracy", "mean over experiences"),
        ("forgetting", "forgetting", "best earlier minus last; 0 is best"),
        ("backward transfer", "bwt", "last minus just learned"),
        ("forward transfer", "fwt", "just before learning minus the untrained model"),
        ("learning accuracy", "learning_accuracy", "right after learning"),
        ("anytime accuracy", "anytime_accuracy", "mean over the run, over the classes seen so far"),
        ("task-incremental", "task_il_average_accuracy", "average accuracy, told the experience"),
    ]
    always = ("fwt",)
    rows = [row for row in rows if row[1] in always or summary.get(row[1]) is not None]
    table = [(name, percent_text(summary.get(key)), remark) for name, key, remark in rows]
    pace = f"{summary['samples_per_second']:,.0f} stream samples a second of training"
    return [*table, ("time", seconds_text(summary["seconds"]), pace)]


def carousel_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """What the carousel did: swaps by outcome, bytes, stalls, distinct samples.

    Nothing for a strategy without a memory.
    """
    slots = summary.get("memory_slots", 0)
    if not slots:
        return []
    records = summary.get("storage_records", 0)
    live = bytes_text(summary["storage_live_bytes"])
    most = summary.get("ram_bytes_peak", summary["ram_bytes"])
    return [
        *swap_rows(summary),
        ("memory", bytes_text(most), f"most RAM, for {count_text(slots)} samples"),
        (
            "storage",
            bytes_text(summary["storage_bytes"]),
            f"{count_text(records)} samples on disk, {live} live",
        ),
        (
            "distinct samples replayed",
            count_text(summary["distinct_samples_replayed"]),
            f"out of a memory of {count_text(slots)}",
        ),
        ("save stalls", seconds_text(summary["save_stall_seconds"]), "training waited to save"),
    ]


def swap_rows(summary: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    """Swaps by outcome; nothing where swapping was off."""
    swaps = summary["swaps"]
    if not summary.get("swapping", True):
        return []
    if not swaps["done"] and 0 < summary.get("storage_records", 0) <= summary["memory_slots"]:
        return [("swaps", "none", "everything fits in RAM: nothing to swap")]
    done, requested = count_text(swaps["done"]), count_text(swaps["requested"])
    outcomes = [
        (f"  {name.replace('_', ' ')}", count_text(swaps[name]), words)
        for name, words in OUTCOMES.items()
        if name != "done" and swaps.get(name)
    ]
    return [("swaps", f"{done} done", f"of {requested} asked"), *outcomes]


def _table(title: str | None) -> Table:
    return Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)


def _shown(columns: int) -> list[int | None]:
    if columns <= WIDEST:
        return list(range(columns))
    head: list[int | None] = [*range(WIDEST // 2)]
    return [*head, None, *range(columns - WIDEST // 2, columns)]


def _cell(accuracy: float, *, seen: bool) -> Text:
    if not np.isfinite(accuracy):
        return Text("")
    if not seen:
        return Text(f"{accuracy * 100:.0f}", style="dim")
    shade = round(255 - 190 * float(accuracy))
    light = accuracy < 0.55
    style = Style(bgcolor=f"rgb({shade},{min(255, shade + 35)},255)", color=_ink(light))
    return Text(f"{accuracy * 100:3.0f}", style=style)


def _ink(light: bool) -> str:
    return "black" if light else "white"
