"""The report of a run as one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from string import Template

import numpy as np

from carousel.report.plots import PLOTS
from carousel.report.record import RunRecord
from carousel.report.tables import carousel_rows, score_rows, swap_rows
from carousel.report.words import bytes_text, percent_text, seconds_text

__all__ = ["render_page"]

_PAGE = Template("""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>$title</title>
<style>
:root { --ink: #1f2933; --muted: #64707d; --line: #e4e7eb; --panel: #f7f9fb; --accent: #2f6db3; }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 2rem 1.25rem 4rem; max-width: 68rem; color: var(--ink);
  background: #fff; font: 16px/1.5 system-ui, sans-serif; }
h1 { margin: 0; font-size: 1.6rem; }
h2 { margin: 2.5rem 0 .75rem; font-size: 1.15rem; }
p.sub { margin: .25rem 0 0; color: var(--muted); }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(9.5rem, 1fr)); gap: .75rem;
  margin-top: 1.5rem; }
.tile { padding: .8rem 1rem; background: var(--panel); border-radius: .5rem; }
.tile b { display: block; font-size: 1.45rem; font-variant-numeric: tabular-nums; }
.tile span { color: var(--muted); font-size: .85rem; }
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(28rem, 1fr)); gap: 1rem; }
@media (max-width: 32rem) { .figures { grid-template-columns: 1fr; } }
figure { margin: 0; }
figure img { width: 100%; height: auto; border: 1px solid var(--line); border-radius: .5rem; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; }
th, td { padding: .3rem .7rem; text-align: left; border-bottom: 1px solid var(--line); }
table.matrix th, table.matrix td { text-align: right; border: 0; padding: .25rem .5rem; }
table.matrix td.ahead { color: var(--muted); }
td.number { text-align: right; font-weight: 600; white-space: nowrap; }
td.remark { color: var(--muted); }
details { margin-top: 1rem; }
summary { cursor: pointer; color: var(--accent); }
code { font-size: .9em; overflow-wrap: anywhere; }
</style>
</head>
<body>
<h1>$heading</h1>
<p class="sub">$subtitle</p>
$notice
<div class="tiles">$tiles</div>
<h2>Accuracy matrix</h2>
<p class="sub">Accuracy in per cent: row = after training on, column = tested on. Grey cells are
experiences not yet learned.</p>
<div class="scroll">$matrix</div>
<h2>Pictures</h2>
<div class="figures">$figures</div>
$tables
<h2>How it was run</h2>
$details
</body>
</html>
""")


def render_page(run: RunRecord, plots: Mapping[str, Path]) -> str:
    """The whole report; pictures are embedded.

    Args:
        run: the measurements.
        plots: PNG files by name, as `save_plots` returns them.
    """
    config = run.config
    what = f"{config.get('strategy', '?')} on {config.get('benchmark', '?')}"
    return _PAGE.substitute(
        title=escape(f"{what} · carousel"),
        heading=escape(what),
        subtitle=escape(f"run {run.name}"),
        notice=_notice(run),
        tiles="".join(_tile(value, label) for value, label in _headlines(run)),
        matrix=_matrix(run),
        figures="".join(_figure(PLOTS[name][0], path) for name, path in plots.items()),
        tables=_tables(run),
        details=_mapping("Configuration", config) + _mapping("Environment", run.environment),
    )


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


def _tile(value: str, label: str) -> str:
    return f'<div class="tile"><b>{escape(value)}</b><span>{escape(label)}</span></div>'


def _figure(caption: str, path: Path) -> str:
    data = b64encode(path.read_bytes()).decode("ascii")
    return f'<figure><img alt="{escape(caption)}" src="data:image/png;base64,{data}"></figure>'


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


def _flat(values: Mapping[str, object]) -> list[tuple[str, object]]:
    """One row a value; those of a mapping inside follow its name."""
    rows: list[tuple[str, object]] = []
    for key, value in values.items():
        if isinstance(value, Mapping) and value:
            rows += [(f"{key}: {name}", inner) for name, inner in _flat(value)]
        else:
            rows.append((str(key), value))
    return rows


def _value_text(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, list | tuple):
        return " ".join(str(part) for part in value) or "-"
    return "-" if value is None or value == {} else str(value)


def _mapping(title: str, values: Mapping[str, object]) -> str:
    if not values:
        return ""
    cells = "".join(
        f"<tr><td>{escape(key)}</td><td><code>{escape(_value_text(value))}</code></td></tr>"
        for key, value in _flat(values)
    )
    return f"<details><summary>{escape(title)}</summary><table>{cells}</table></details>"
