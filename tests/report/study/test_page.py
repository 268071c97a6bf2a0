from __future__ import annotations

import json
from html.parser import HTMLParser

import pytest

from carousel.report.study.results import StudyResults
from carousel.report.study.write import write_study


class Checker(HTMLParser):
    """Every tag closes, and nothing is loaded from elsewhere."""

    def __init__(self):
        super().__init__()
        self.open, self.images = [], 0

    def handle_starttag(self, tag, attrs):
        if tag == "img":
            assert dict(attrs)["src"].startswith("data:image/png;base64,")
            self.images += 1
        elif tag != "meta":
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def check(page: str) -> int:
    checker = Checker()
    checker.feed(page)
    assert checker.open == []
    assert "://" not in page
    return checker.images


@pytest.fixture
def page(results, run, tmp_path):
    error = "ValueError: <odd> & sudden"
    results.runs.append(run("er", True, 9, 0.0, state="failed", error=error, log="log.txt"))
    write_study(results, tmp_path)
    return tmp_path


def test_one_page_holds_everything(page):
    text = (page / "report.html").read_text()
    assert check(text) == 3
    for part in (
        "Comparison on &lt;b&gt;",
        "18 of 19 runs done, 4 seeds",
        "+20.0 ± 24.8",
        "failed: ValueError: &lt;odd&gt; &amp; sudden",
        "1 of its runs failed",
        "<td>epochs</td><td><code>3</code></td>",
        "<td>packages: torch</td>",
    ):
        assert part in text, part


def test_all_files_are_there_and_nothing_else(page):
    names = {path.name for path in page.iterdir()}
    assert names == {
        *("results.json", "results.csv", "table.tex", "report.html"),
        *("accuracy.png", "gain.png", "curves.png"),
    }


def test_json_holds_everything(page):
    found = json.loads((page / "results.json").read_text())
    assert set(found) == {"title", "rows", "lines", "settings", "environment", "runs"}
    er = found["lines"][1]
    assert er["gain"]["mean"] == pytest.approx(0.2)
    assert (er["strategy"], er["seeds"], er["gain"]["count"]) == ("er", [0, 1, 2], 3)
    assert found["lines"][0]["swap"] is None
    assert found["runs"][0]["summary"]["accuracy_matrix"] == [[1.0, 0.0], [0.5, 0.5]]


def test_a_single_seed_has_null_ends_in_json(swept, tmp_path):
    write_study(swept, tmp_path)
    found = json.loads((tmp_path / "results.json").read_text(), parse_constant=pytest.fail)
    assert found["lines"][0]["gain"]["low"] is None
    assert found["lines"][0]["point"] == {"swap_ratio": 0.8}


def test_a_study_of_which_nothing_is_done_has_a_page(run, tmp_path):
    write_study(StudyResults("t", [run("er", True, 0, 0.0, state="missing")], {}), tmp_path)
    text = (tmp_path / "report.html").read_text()
    check(text)
    assert "1 of its runs are missing" in text
    assert "0 of 1" in text
