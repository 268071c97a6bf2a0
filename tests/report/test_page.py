from __future__ import annotations

import re
from html.parser import HTMLParser

import numpy as np

from carousel.report.page import render_page
from carousel.report.plots import save_plots
from carousel.report.record import RunRecord


class Balance(HTMLParser):
    """Checks that what is opened is closed, in order."""

    VOID = frozenset({"meta", "img", "br"})

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attrs):
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check_html(page: str) -> None:
    parser = Balance()
    parser.feed(page)
    assert parser.open == []


def test_the_page_stands_alone_and_says_it_all(finished_run, tmp_path):
    page = render_page(finished_run, save_plots(finished_run, tmp_path))
    check_html(page)
    assert page.count("data:image/png;base64,") == 5
    assert not re.search(r'(src|href)="(?!data:)', page)
    for words in ("79.0 %", "swaps of 40 asked", "31.2 KiB", "1,234", "split-digits", "python"):
        assert words in page, words


def test_values_are_escaped(finished_run, tmp_path):
    page = render_page(finished_run, {})
    assert "<script>" not in page


def test_settings_and_packages_are_tables(finished_run):
    finished_run.config = {"limit": None, "sync": False, "logger": [], "lr": 0.1}
    finished_run.environment = {"packages": {"torch": "2", "wandb": None}, "command": ["a", "b"]}
    page = render_page(finished_run, {})
    for row in ("limit -", "sync no", "logger -", "lr 0.1", "packages: torch 2"):
        name, value = row.rsplit(" ", 1)
        assert f"<td>{name}</td><td><code>{value}</code></td>" in page, row
    assert "<code>a b</code>" in page
    assert "None" not in page


def test_a_run_without_a_memory_has_no_carousel(finished_run):
    finished_run.summary = {**finished_run.summary, "memory_slots": 0}
    page = render_page(finished_run, {})
    assert "carousel did" not in page
    assert "swaps" not in page
    assert "storage" not in page


def test_an_unfinished_run_says_so(tmp_path):
    page = render_page(RunRecord("r", {}, np.full((3, 3), np.nan), []), {})
    check_html(page)
    assert "not finished" in page
    assert "nan" not in page
