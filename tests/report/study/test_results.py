from __future__ import annotations

import pytest

from carousel.report.study.results import lines_of, point_text


def test_one_line_a_method_between_the_bounds(results):
    lines = results.lines
    assert [line.strategy for line in lines] == ["naive", "er", "der++", "joint"]
    assert [line.bound for line in lines] == [True, False, False, True]
    der = lines[2]
    assert der.plain_mean().mean == pytest.approx(0.5)
    assert der.swapped_mean().mean == pytest.approx(0.7)
    assert der.gain().mean == pytest.approx(0.2)
    assert lines[0].plain_mean().mean == 0.25
    assert lines[0].gain() is None


def test_a_run_without_swaps_stands_beside_every_swept_line(swept):
    lines = swept.lines
    assert [line.point for line in lines] == [(("swap_ratio", 0.8),), (("swap_ratio", 0.2),)]
    assert [line.gain().mean for line in lines] == pytest.approx([0.2, 0.05])


def test_a_run_stands_beside_its_own_setting_only(run):
    size = {n: (("memory_size", n),) for n in (10, 20)}
    runs = [run("er", swap, 0, n / 100, point=size[n]) for n in (10, 20) for swap in (0, 1)]
    lines = lines_of([run("er", bool(r.swap), 0, 0.1, point=r.point) for r in runs])
    assert [len(line.plain) for line in lines] == [1, 1]
    assert [line.plain[0].point for line in lines] == [size[10], size[20]]


def test_runs_that_failed_leave_the_rest_of_their_line(run):
    lines = lines_of(
        [
            run("er", False, 0, 0.5, point=(("lr", 1),)),
            run("er", True, 0, 0.6, point=(("lr", 1),), state="failed"),
            run("er", True, 0, 0.6, point=(("lr", 2),)),
        ]
    )
    assert {line.point: (len(line.plain), len(line.swapped)) for line in lines} == {
        (("lr", 1),): (1, 0),
        (("lr", 2),): (0, 1),
    }


def test_curve_is_over_the_samples_seen(run):
    assert run("er", True, 0, 0.7).curve().tolist() == pytest.approx([1.0, 0.7])


def test_counts_of_done_and_failed(results, run):
    results.runs.append(run("er", True, 9, 0.0, state="failed", error="boom"))
    assert (results.done, len(results.failed)) == (18, 1)


def test_points_as_text():
    assert point_text((("gate", "all"), ("strategy.loss", "bce"))) == "gate=all, loss=bce"
