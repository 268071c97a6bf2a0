from __future__ import annotations

import warnings

import pytest

from carousel.report.study.plots import (
    accuracy_dots,
    curves,
    gain_dots,
    save_study_plots,
    sweep_lines,
)
from carousel.report.study.results import StudyResults


@pytest.fixture(autouse=True)
def _no_warnings():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield


def words(figure) -> str:
    return " ".join(t.get_text() for t in figure.findobj(lambda o: hasattr(o, "get_text")))


def test_pictures_are_written_and_old_sweeps_go(results, swept, tmp_path):
    assert list(save_study_plots(swept, tmp_path)) == [
        "accuracy",
        "gain",
        "curves",
        "sweep_swap_ratio",
    ]
    assert (tmp_path / "sweep_swap_ratio.png").read_bytes().startswith(b"\x89PNG")
    assert list(save_study_plots(results, tmp_path)) == ["accuracy", "gain", "curves"]
    assert not (tmp_path / "sweep_swap_ratio.png").exists()


def test_dots_name_methods_and_bounds(results):
    text = words(accuracy_dots(results))
    for name in ("er", "der++", "naive", "joint", "no swap", "swap"):
        assert name in text.split(" ") or name in text
    axes = gain_dots(results).axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["er", "der++"]


def test_gain_is_drawn_where_it_is(results):
    axes = gain_dots(results).axes[0]
    means = [container.lines[0].get_xdata()[0] for container in axes.containers]
    assert means == pytest.approx([0.2, 0.2])


def test_curves_have_a_panel_a_method(results):
    figure = curves(results)
    assert [axes.get_title(loc="left") for axes in figure.axes] == ["er", "der++"]
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    assert labels == ["naive", "joint", "no swap", "swap"]


def test_sweeps_are_drawn_in_the_order_of_their_values(swept):
    axes = sweep_lines(swept, "swap_ratio").axes[0]
    swap, plain = axes.containers
    assert swap.lines[0].get_xdata().tolist() == [0.2, 0.8]
    assert swap.lines[0].get_ydata() == pytest.approx([0.55, 0.7])
    assert plain.lines[0].get_ydata() == pytest.approx([0.5, 0.5])


def test_values_that_are_no_numbers_become_ticks(run):
    runs = [run("er", True, 0, 0.5, point=(("gate", gate),)) for gate in ("random", "all")]
    axes = sweep_lines(StudyResults("t", runs, {}), "gate").axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["all", "random"]


@pytest.mark.parametrize("kind", ["nothing", "bounds", "no pairs"])
def test_what_is_missing_is_said(kind, results, run, tmp_path):
    runs = {
        "nothing": [run("er", True, 0, 0.5, state="missing", point=(("lr", 1),))],
        "bounds": [one for one in results.runs if one.swap is None],
        "no pairs": [one for one in results.runs if one.swap],
    }[kind]
    study = StudyResults("t", runs, {})
    save_study_plots(study, tmp_path)
    assert "no pair" in words(gain_dots(study))
