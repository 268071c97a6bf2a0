"""The examples run as they stand, in a folder of their own, and are short enough to read."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

EXAMPLES = sorted((Path(__file__).parents[2] / "examples").glob("*.py"))
MOST_LINES = 39


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_runs_and_tells_its_accuracy(path, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    runpy.run_path(str(path), run_name="__main__")
    said = capsys.readouterr().out
    lines = [line for line in said.splitlines() if "accuracy" in line]
    number, percent = re.findall(r"(\d+\.\d+)( ?%)?", lines[-1])[-1]
    assert 0.5 < float(number) / (100 if percent else 1) <= 1, said


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_short(path):
    assert len(path.read_text().splitlines()) <= MOST_LINES
