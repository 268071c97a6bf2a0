from __future__ import annotations

import csv
import io

import pytest
from rich.console import Console

from carousel.report.study.results import StudyResults
from carousel.report.study.tables import csv_text, latex_table, study_rows, study_table


def test_the_terminal_table_fits_80_columns(results, swept):
    console = Console(width=80, file=io.StringIO())
    console.print(study_table(results))
    text = console.file.getvalue()
    assert "50.0 ± 24.8  70.0 ± 49.7  +20.0 ± 24.8  25.0 → 25.0  12 s" in text
    assert "…" not in text
    console.print(study_table(swept))
    assert "swap_ratio=0.2" in console.file.getvalue()


def test_a_single_seed_has_no_interval(swept):
    console = Console(width=100, file=io.StringIO())
    console.print(study_table(swept))
    assert "+20.0" in console.file.getvalue()
    assert "±" not in console.file.getvalue()
    assert "forgetting in %, gain in points" in " ".join(console.file.getvalue().split())


def test_the_interval_is_explained_where_there_is_one(results):
    console = Console(width=100, file=io.StringIO())
    console.print(study_table(results))
    assert "± is the 95 % interval over seeds" in " ".join(console.file.getvalue().split())


def test_csv_has_a_row_a_run(results, swept, run):
    results.runs.append(run("er", True, 9, 0.0, state="failed", error='it said, "no"'))
    rows = list(csv.DictReader(io.StringIO(csv_text(results))))
    assert len(rows) == 19
    assert rows[1]["final_accuracy"] == "0.7"
    assert (rows[1]["swap"], rows[4]["swap"], rows[1]["swaps_done"]) == ("on", "", "3")
    assert rows[-1]["state"] == "failed"
    assert rows[-1]["error"] == 'it said, "no"'
    assert rows[-1]["final_accuracy"] == ""
    rows = list(csv.DictReader(io.StringIO(csv_text(swept))))
    assert [row["swap_ratio"] for row in rows] == ["", "0.8", "0.2"]


def test_latex_by_hand(results):
    lines = latex_table(results).splitlines()
    assert lines[2] == r"\begin{tabular}{lrrrrr}"
    assert lines[4] == r"Method & No swap & Swap & Gain & Forgetting & Time \\"
    assert lines[6] == r"naive & $25.0 \pm 0.0$ &  &  & $25.0$ & 12 s \\"
    assert lines[8] == (
        r"der++ & $50.0 \pm 24.8$ & $70.0 \pm 49.7$ & $+20.0 \pm 24.8$"
        r" & $25.0 \to 25.0$ & 12 s \\"
    )


def test_latex_names_are_escaped(run):
    point = (("swap_ratio", r"50%_&#$x^{~\}"),)
    text = latex_table(StudyResults("t", [run("a_b", True, 0, 0.5, point=point)], {}))
    assert r"a\_b & swap\_ratio=50\%\_\&\#\$x\textasciicircum{}\{" in text
    assert r"\textasciitilde{}\textbackslash{}\}" in text


def test_rows_as_benchmarks_write_them(results):
    rows = {row["metric"]: row["value"] for row in study_rows(results)}
    assert rows["er: gain"] == pytest.approx(20)
    assert rows["er: no swap: final accuracy"] == 50
    assert rows["der++: gain, lower end of the 95 % interval"] == pytest.approx(
        20 - 24.84, abs=0.01
    )
    assert rows["joint: final accuracy"] == 75
    assert all(set(row) == {"metric", "value", "target", "met"} for row in study_rows(results))
