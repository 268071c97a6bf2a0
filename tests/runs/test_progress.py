from __future__ import annotations

from dataclasses import replace
from io import StringIO

from rich.console import Console

from carousel.report.words import seconds_text
from carousel.runs.progress import LiveProgress, PlainProgress, Silence, Snapshot, make_progress

SNAPSHOT = Snapshot(1, 5, 2, 4, 30, 60, 0.4321, 0.875, 1234, 2048, 3 * 2**20, 75.0)


def test_the_view_fits_the_output():
    terminal = Console(file=StringIO(), force_terminal=True)
    pipe = Console(file=StringIO(), force_terminal=False)
    assert isinstance(make_progress(terminal, quiet=False), LiveProgress)
    assert isinstance(make_progress(pipe, quiet=False), PlainProgress)
    assert isinstance(make_progress(terminal, quiet=True), Silence)


def test_plain_lines_say_where_the_run_stands():
    out = StringIO()
    progress = PlainProgress(Console(file=out, width=40), every=0)
    progress.update(SNAPSHOT)
    progress.learned(1, 5, 0.9, 3.25)
    progress.close()
    first, second = out.getvalue().splitlines()
    assert first == (
        "experience 2/5, epoch 3/4, step 30/60: loss 0.432 · batch accuracy 87.5 % · 1,234 swaps · "
        "RAM 2.00 KiB · storage 3.00 MiB"
    )
    assert second == "experience 2/5 learned in 3.25 s: accuracy 90.0 % over the classes seen"


def test_a_strategy_without_a_memory_shows_none():
    out = StringIO()
    bare = replace(SNAPSHOT, ram_bytes=0, storage_bytes=0, swaps_done=0)
    PlainProgress(Console(file=out, width=40), every=0).update(bare)
    assert out.getvalue().endswith("batch accuracy 87.5 %\n")


def test_lines_of_the_live_view_fit_a_terminal():
    large = replace(SNAPSHOT, swaps_done=123_456_789, ram_bytes=2**36, seconds=1e6, loss=123.4)
    lines = [f"{seconds_text(large.seconds)} · {large.learning()}", large.memory()]
    assert max(map(len, lines)) < 80


def test_plain_lines_are_rare():
    out = StringIO()
    progress = PlainProgress(Console(file=out), every=3600)
    for _ in range(100):
        progress.update(SNAPSHOT)
    assert out.getvalue() == ""


def test_the_live_view_shows_bars_and_takes_them_away():
    out = StringIO()
    progress = LiveProgress(Console(file=out, force_terminal=True, width=100))
    progress.note("hello [not markup]")
    progress.update(SNAPSHOT)
    progress.learned(1, 5, 0.9, 3.0)
    progress.close()
    progress.close()
    text = out.getvalue()
    assert "hello [not markup]" in text
    assert "epoch 3/4" in text
    assert "1 min 15 s" in text
    assert "learned in 3.00 s" in text
