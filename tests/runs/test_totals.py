from __future__ import annotations

import pytest

from carousel.report.record import PHASES
from carousel.runs import totals as module
from carousel.runs.totals import Totals


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands until it is moved."""
    now = [100.0]
    monkeypatch.setattr(module, "perf_counter", lambda: now[0])
    return now


def test_every_lap_is_booked_once(clock):
    totals = Totals()
    clock[0] += 1
    totals.lap("load")
    clock[0] += 2
    totals.lap("step")
    clock[0] += 4
    totals.restart()
    clock[0] += 8
    totals.lap("evaluate")
    assert totals.times["load"] == 1
    assert totals.times["step"] == 2
    assert totals.times["evaluate"] == 8
    assert totals.seconds == 15


def test_samples_a_second_leave_testing_out(clock):
    totals = Totals()
    assert totals.samples_per_second == 0
    totals.count_step(30)
    totals.count_step(10)
    clock[0] += 4
    totals.lap("step")
    clock[0] += 100
    totals.lap("evaluate")
    assert totals.samples_per_second == 10
    assert totals.iterations == 2


def test_seconds_of_an_experience(clock):
    totals = Totals()
    clock[0] += 5
    totals.lap("step")
    totals.begin_experience()
    clock[0] += 3
    totals.lap("step")
    assert totals.of_experience() == dict.fromkeys(PHASES, 0.0) | {"step": 3.0}


def test_a_resumed_run_goes_on_counting(clock):
    first = Totals()
    first.begin_experience()
    first.count_step(8)
    clock[0] += 3
    first.lap("step")
    saved = {**first.state, "times": dict(first.times), "before": dict(first.state["before"])}
    clock[0] += 1000  # killed, and started again later
    second = Totals()
    second.load(saved)
    clock[0] += 2
    second.count_step(8)
    second.lap("step")
    assert second.times["step"] == 5
    assert second.of_experience()["step"] == 5
    assert second.seconds == 5
    assert second.state["iterations"] == 2
    assert second.state["samples"] == 16


def test_the_peak_of_the_memory_survives_a_resume():
    totals, again = Totals(), Totals()
    for count in (5, 9, 3):
        totals.see_ram(count)
    again.see_ram(4)
    again.load(totals.state)
    assert (totals.ram_bytes_peak, again.ram_bytes_peak) == (9, 9)
    before = {key: value for key, value in totals.state.items() if key != "ram_bytes_peak"}
    again.load(before)
    assert again.ram_bytes_peak == 9
