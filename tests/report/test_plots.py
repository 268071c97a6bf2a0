from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from carousel.report.plots import PLOTS, accuracy_curve, forgetting_bars, save_plots
from carousel.report.record import PLOT_NAMES, RunRecord


def test_every_plot_is_a_picture_with_something_in_it(finished_run, tmp_path):
    paths = save_plots(finished_run, tmp_path)
    assert tuple(paths) == tuple(PLOTS) == PLOT_NAMES
    for path in paths.values():
        pixels = np.asarray(Image.open(path).convert("L"))
        assert min(pixels.shape) > 300
        assert (pixels < 128).sum() > 100


def test_an_empty_run_still_draws(tmp_path):
    run = RunRecord("r", {}, np.full((4, 4), np.nan), [])
    assert set(save_plots(run, tmp_path)) == set(PLOTS)


def test_a_long_run_draws_without_numbers_in_the_cells(finished_run, tmp_path):
    finished_run.matrix = np.eye(30)
    assert not PLOTS["accuracy_matrix"][1](finished_run).axes[0].texts


def test_the_lines_show_the_matrix(finished_run):
    axes = accuracy_curve(finished_run).axes[0]
    mean = axes.lines[-1].get_ydata()
    assert list(mean) == pytest.approx([0.9, 0.7, 2.15 / 3])
    assert list(axes.lines[0].get_ydata()) == pytest.approx([0.9, 0.6, 0.7])


def test_the_lines_show_what_else_was_measured(finished_run):
    finished_run.task_il = np.full((3, 3), 0.9)
    ends = {"event": "experience", "times": {}}
    tests = [(5, 0.2), (10, 0.6), (15, 0.4), (40, 0.9)]
    finished_run.samples = [
        *({**ends, "experience": i, "iteration": 10 * (i + 1)} for i in range(2)),
        *({"event": "anytime", "iteration": i, "accuracy_seen": a} for i, a in tests),
    ]
    lines = {line.get_label(): line for line in accuracy_curve(finished_run).axes[0].lines}
    assert list(lines["told the experience"].get_ydata()) == pytest.approx([0.9] * 3)
    assert list(lines["at any time"].get_xdata()) == pytest.approx([0.5, 1.0, 1.5])
    assert list(lines["at any time"].get_ydata()) == pytest.approx([0.2, 0.6, 0.4])


def test_the_bars_are_the_forgetting(finished_run):
    bars = forgetting_bars(finished_run).axes[0].patches
    assert [bar.get_height() for bar in bars] == pytest.approx([0.2, 0.3])


@pytest.mark.parametrize("lost", [0.0, 0.004, 0.021, 0.06, 0.2, 0.83, -0.01, -0.4])
def test_the_ticks_of_the_forgetting_are_different_whole_per_cents(finished_run, lost):
    finished_run.matrix = np.array([[0.5, 0.0, 0.0], [0.5, 0.5, 0.0], [0.5 - lost, 0.5, 0.9]])
    if lost < 0:
        finished_run.matrix[0, 0] = 0.5
    figure = forgetting_bars(finished_run)
    figure.canvas.draw()
    labels = [label.get_text() for label in figure.axes[0].get_yticklabels()]
    assert len(labels) == len(set(labels)) >= 4
    ticks = figure.axes[0].get_yticks() * 100
    assert ticks == pytest.approx(np.round(ticks))


def test_no_display_is_touched(finished_run):
    for _, draw in PLOTS.values():
        assert draw(finished_run).canvas.manager is None
