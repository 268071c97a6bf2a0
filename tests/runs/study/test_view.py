from __future__ import annotations

import io

from rich.console import Console

from carousel.runs.study.view import LiveView, PlainView, SilentView, make_view
from carousel.runs.study.watch import Standing


def console(terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=100, color_system=None)


def test_the_view_fits_the_output():
    assert isinstance(make_view(console(True), quiet=True), SilentView)
    assert isinstance(make_view(console(True), quiet=False), LiveView)
    assert isinstance(make_view(console(False), quiet=False), PlainView)


def test_plain_lines_count_the_runs():
    output = console(False)
    view = PlainView(output)
    view.begin(2, 4)
    view.show({"er": Standing(1, 5, 0.5)})
    view.ended("er with swaps, seed 1: final accuracy 50.0 %", 3)
    view.close()
    assert output.file.getvalue().splitlines() == [
        "4 runs, 2 of them done already",
        "[3/4] er with swaps, seed 1: final accuracy 50.0 %",
    ]


def test_a_terminal_shows_the_runs_under_way():
    output = console(True)
    view = LiveView(output)
    view.begin(0, 4)
    view.show(
        {"er, seed 1": Standing(1, 5, 0.5), "naive, seed 1": Standing(), "x": Standing(5, 5, 0.1)}
    )
    view.ended("er, seed 0: done", 1)
    view.close()
    view.close()
    text = output.file.getvalue()
    for part in (
        "experience 2/5",
        "accuracy 50.0 %",
        "experience 1",
        "finishing",
        "1/4",
        "er, seed 0: done",
    ):
        assert part in text, part
