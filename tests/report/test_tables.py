from __future__ import annotations

from io import StringIO

import numpy as np
from rich.console import Console

from carousel.report.tables import OUTCOMES, matrix_table, summary_view


def text_of(renderable, width: int = 100) -> str:
    console = Console(width=width, record=True, force_terminal=False, file=StringIO())
    console.print(renderable)
    return console.export_text()


def test_the_summary_says_what_the_carousel_did(finished_run):
    text = text_of(summary_view(finished_run.summary))
    for words in ("final accuracy", "33 done", "of 40 asked", "1,234", "586 KiB", "1,400 samples"):
        assert words in text, words
    for outcome in OUTCOMES.values():
        assert outcome in text or outcome == "swapped"


def test_only_what_there_is_is_told(finished_run):
    summary = finished_run.summary
    assert "Carousel" not in text_of(summary_view({**summary, "memory_slots": 0}))
    assert "asked" not in text_of(summary_view({**summary, "swapping": False}))
    idle = {**dict.fromkeys(summary["swaps"], 0), "requested": 9, "no_candidate": 9}
    small = {**summary, "swaps": idle, "storage_records": 500}
    assert "everything fits in RAM: nothing to swap" in text_of(summary_view(small))
    large = {**small, "storage_records": 501}
    assert "0 done" in text_of(summary_view(large))
    assert "1.00 MiB" in text_of(summary_view({**summary, "ram_bytes_peak": 2**20}))


def test_an_unfinished_matrix_has_empty_cells():
    matrix = np.full((2, 2), np.nan)
    matrix[0] = [1.0, 0.25]
    text = text_of(matrix_table(matrix))
    assert "100" in text
    assert "25" in text
    assert "nan" not in text


def test_a_wide_matrix_fits_a_terminal():
    text = text_of(matrix_table(np.eye(40)), width=80)
    assert "…" in text
    assert max(len(line.rstrip()) for line in text.splitlines()) <= 80
