"""The commands and examples of the documents run as they stand."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from carousel.cli.app import app

ROOT = Path(__file__).parents[2]


def blocks(document: str, language: str) -> list[str]:
    text = (ROOT / document).read_text()
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(document: str) -> list[list[str]]:
    """The command lines of `carousel` in a document, without comments."""
    lines = [line for block in blocks(document, "console") for line in block.splitlines()]
    words = [shlex.split(line[2:], comments=True) for line in lines if line.startswith("$ ")]
    return [line[1:] for line in words if line[:1] == ["carousel"]]


def documents() -> list[str]:
    """All that tell commands to type."""
    every = ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
    return [document for document in every if commands(document)]


@pytest.fixture
def own_files(tmp_path, monkeypatch):
    """A working folder with data of the reader's own, as the page on data has them."""
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (60, 8, 8), dtype=np.uint8), np.arange(60) % 6
    np.savez("mine.npz", x=x, y=y)
    for number, (picture, label) in enumerate(zip(x, y, strict=True)):
        folder = Path("photos", f"class{label}")
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture).save(folder / f"{number}.png")


@pytest.mark.parametrize("document", documents())
@pytest.mark.usefixtures("own_files")
def test_commands_of_a_document_run_in_order(document):
    for line in commands(document):
        result = CliRunner().invoke(app, line)
        assert result.exit_code == 0, f"carousel {shlex.join(line)}\n{result.output}"


def test_python_of_the_readme_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("README.md", "python")
    exec(compile(code, "README.md", "exec"), {"__name__": "readme"})
    assert "done=" in capsys.readouterr().out


def test_links_of_the_documents_lead_somewhere():
    for document in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\((?!https?:|#)([^)#]+)", document.read_text()):
            assert (document.parent / target).exists(), f"{document.name} links to {target}"
