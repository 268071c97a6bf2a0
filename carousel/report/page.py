"""The report of a run as one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template

import numpy as np

from carousel.report.html import document, figure, mapping, tile
from carousel.report.plots import PLOTS
from carousel.report.record import RunRecord
from carousel.report.tables import carousel_rows, score_rows, swap_rows
from carousel.report.words import bytes_text, percent_text, seconds_text

__all__ = ["render_page"]

_BODY = Template("""$notice
<div class="tiles">$tiles</div>
<h2>Accuracy matrix</h2>
<p class="sub">Accuracy in per cent: row = after training on, column = tested on. Grey cells are
experiences not yet learned.</p>
<div class="scroll">$matrix</div>
<h2>Pictures</h2>
<div class="figures">$figures</div>
$tables
<h2>How it was run</h2>
$details""")


def render_page(run: RunRecord, plots: Mapping[str, Path]) -> str:
    """The whole report; pictures are embedded.

    Args:
        run: the measurements.
        plots: PNG files by name, as `save_plots` returns them.
    """
    config = run.config
    what = f"{config.get('strategy', '?')} on {config.get('benchmark', '?')}"
    body = _BODY.substitute(
        notice=_notice(run),
        tiles="".join(tile(value, label) for value, label in _headlines(run)),
        matrix=_matrix(run),
        figures="".join(figure(PLOTS[name][0], path) for name, path in plots.items()),
        tables=_tables(run),
        details=mapping("Configuration", config) + mapping("Environment", run.environment),
    )
    return document(what, f"run {run.name}", body)


def _headlines(run: RunRecord) -> list[tuple[str, str]]:
    summary = run.summary
    if not summary:
        return [(f"{run.done} of {len(run.matrix)}", "experiences done")]
    swaps = [(count, f"swaps {remark}") for name, count, remark in swap_rows(summary)[:1]]
    tiers = [
        (bytes_text(summary.get("ram_bytes_peak", summary["ram_bytes"])), "memory in RAM, at most"),
        (bytes_text(summary["storage_bytes"]), "storage on disk"),
    ]
    return [
        (percent_text(summary["final_accuracy"]), "final accuracy, all classes"),
        (percent_text(summary["average_accuracy"]), "average accuracy"),
        (percent_text(summary["forgetting"]), "forgetting"),
        *(swaps + tiers if summary.get("memory_slots") else []),
        (seconds_text(summary["seconds"]), "run time"),
    ]


def _notice(run: RunRecord) -> str:
    if run.summary:
        return ""
    return (
        "<p><strong>This run is not finished.</strong> What follows is what it measured so "
        "far; <code>carousel train --resume --out DIR</code> goes on.</p>"
    )


def _tables(run: RunRecord) -> str:
    if not run.summary:
        return ""
    did = carousel_rows(run.summary)
    return f"<h2>Result</h2>{_rows(score_rows(run.summary))}" + (
        f"<h2>What the carousel did</h2>{_rows(did)}" if did else ""
    )


def _matrix(run: RunRecord) -> str:
    total = len(run.matrix)
    head = "".join(f"<th>{column + 1}</th>" for column in range(total))
    body = "".join(
        f"<tr><th>{row + 1}</th>{''.join(_cell(v, c <= row) for c, v in enumerate(values))}</tr>"
        for row, values in enumerate(run.matrix)
    )
    return f'<table class="matrix"><tr><th></th>{head}</tr>{body}</table>'


def _cell(accuracy: float, seen: bool) -> str:
    if not np.isfinite(accuracy):
        return "<td></td>"
    text = f"{accuracy * 100:.0f}"
    if not seen:
        return f'<td class="ahead">{text}</td>'
    ink = "#fff" if accuracy > 0.55 else "inherit"
    back = f"rgba(47, 109, 179, {0.08 + 0.92 * accuracy:.2f})"
    return f'<td style="background: {back}; color: {ink}">{text}</td>'


def _rows(rows: Sequence[tuple[str, str, str]]) -> str:
    cells = "".join(
        f'<tr><td>{escape(name)}</td><td class="number">{escape(value)}</td>'
        f'<td class="remark">{escape(remark)}</td></tr>'
        for name, value, remark in rows
    )
    return f"<table>{cells}</table>"
