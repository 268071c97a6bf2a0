"""What the page on data and its example promise."""

import re
import runpy
from pathlib import Path

import pytest

from carousel.data import list_benchmarks

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "data.md"


@pytest.mark.filterwarnings("ignore")
def test_the_example_learns_without_forgetting():
    example = runpy.run_path(str(ROOT / "examples" / "own_data.py"))
    assert example["main"]() > 0.9


def test_the_python_blocks_of_the_page_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(blocks) >= 4
    names = {"__name__": "page"}
    for block in blocks:
        exec(block, names)


def test_the_page_names_every_benchmark_with_its_facts():
    page = PAGE.read_text()
    for info in list_benchmarks():
        row = re.search(rf"^\| `{info.name}` .*$", page, re.MULTILINE).group()
        channels, height, width = info.shape
        colour = "grey" if channels == 1 else "colour"
        assert f"| {info.samples:,} {colour}, {height}x{width} |" in row
        assert f"| {info.n_classes} | {info.experiences} |" in row


@pytest.mark.parametrize("name", ["figlet", "glyph"])
def test_the_page_gives_the_reference_hashes(name):
    from importlib import import_module

    source = import_module(f"carousel.data.sources.{name}")
    assert f"`{source._REFERENCE[:12]}`" in PAGE.read_text()
