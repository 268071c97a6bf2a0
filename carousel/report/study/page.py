"""The report of a study as one HTML file that needs nothing else, not even a network."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template

from carousel.report.html import document, figure, mapping, tile
from carousel.report.study.results import RunResult, StudyResults, point_text
from carousel.report.study.statistics import Interval
from carousel.report.study.tables import headings, rows_of
from carousel.report.words import percent_text, seconds_text

__all__ = ["render_study"]

_BODY = Template("""$notice
<div class="tiles">$tiles</div>
<h2>Result</h2>
<p class="sub">Accuracy over all classes and forgetting in per cent, gain in points: mean and 95 %
interval over seeds. Gains are paired by seed. Forgetting is without and with swapping. Time is a
run's.</p>
<div class="scroll">$table</div>
<h2>Pictures</h2>
<div class="figures">$figures</div>
<h2>Runs</h2>
<div class="scroll">$runs</div>
<h2>How it was run</h2>
$details""")


def render_study(results: StudyResults, plots: Mapping[str, tuple[str, Path]]) -> str:
    """The whole report; pictures are embedded.

    Args:
        results: of the study.
        plots: caption and PNG file by name, as `save_study_plots` returns them.
    """
    body = _BODY.substitute(
        notice=_notice(results),
        tiles="".join(tile(value, label) for value, label in _headlines(results)),
        table=_table(results),
        figures="".join(figure(caption, path) for caption, path in plots.values()),
        runs=_runs(results),
        details=mapping("Settings", results.settings) + mapping("Environment", results.environment),
    )
    seeds = len({run.seed for run in results.runs})
    subtitle = f"{results.done} of {len(results.runs)} runs done, {seeds} " + (
        "seed" if seeds == 1 else "seeds"
    )
    return document(results.title, subtitle, body)


def _notice(results: StudyResults) -> str:
    missing = len(results.runs) - results.done
    if not missing:
        return ""
    failed = len(results.failed)
    what = f"{failed} of its runs failed" if failed else f"{missing} of its runs are missing"
    return (
        f"<p><strong>This study is not complete:</strong> {what}; <code>carousel compare</code> "
        "with the same settings and folder goes on.</p>"
    )


def _headlines(results: StudyResults) -> list[tuple[str, str]]:
    gains = [(gain, line) for line in results.lines if (gain := line.gain()) is not None]
    if not gains:
        return [(f"{results.done} of {len(results.runs)}", "runs done")]
    best, line = max(gains, key=lambda pair: pair[0].mean)
    name = " ".join(filter(None, (line.strategy, point_text(line.point))))
    mean = sum(gain.mean for gain, _ in gains) / len(gains)
    return [
        (_points(best), f"largest gain by swapping: {name}"),
        (f"{100 * mean:+.1f}", "mean gain by swapping, points"),
        (f"{results.done} of {len(results.runs)}", "runs done"),
    ]


def _points(found: Interval) -> str:
    half = f" ± {100 * found.half:.1f}" if found.known else ""
    return f"{100 * found.mean:+.1f}{half}"


def _table(results: StudyResults) -> str:
    swept = bool(results.swept)
    head = "".join(f"<th>{escape(name)}</th>" for name in headings(swept))
    body = ""
    for strategy, setting, figures in rows_of(results):
        words = [strategy, *([setting] if swept else [])]
        cells = "".join(f"<td>{escape(word)}</td>" for word in words)
        cells += "".join(f'<td class="number">{escape(text)}</td>' for text in figures)
        body += f"<tr>{cells}</tr>"
    return f"<table><tr>{head}</tr>{body}</table>"


def _runs(results: StudyResults) -> str:
    head = "".join(
        f"<th>{name}</th>" for name in ("run", "seed", "final accuracy", "forgetting", "time", "")
    )
    return f"<table><tr>{head}</tr>{''.join(_run(run) for run in results.runs)}</table>"


def _run(run: RunResult) -> str:
    link = f'<a href="runs/{escape(run.name)}/report.html">{escape(run.name)}</a>'
    cells = f"<td>{link if run.state == 'done' else escape(run.name)}</td><td>{run.seed}</td>"
    if run.state == "done":
        figures = (
            percent_text(run.summary["final_accuracy"]),
            percent_text(run.summary.get("forgetting")),
            seconds_text(run.summary["seconds"]),
        )
        remark = "; ".join(run.summary.get("problems", []))
    else:
        figures, remark = ("", "", ""), run.error or "missing"
        remark = f"failed: {remark}" if run.state == "failed" else remark
    cells += "".join(f'<td class="number">{escape(text)}</td>' for text in figures)
    return f'<tr>{cells}<td class="remark">{escape(remark)}</td></tr>'
