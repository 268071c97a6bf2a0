from __future__ import annotations

import numpy as np

from carousel.report.record import RunRecord, current_history


def progress(iteration: int, experience: int = 0):
    return {"event": "progress", "iteration": iteration, "experience": experience}


def test_resuming_forgets_what_happens_again():
    lines = [
        progress(10),
        {"event": "experience", "experience": 0, "iteration": 10},
        progress(20, 1),
        {"event": "experience", "experience": 1, "iteration": 20},
        progress(30, 2),
        {"event": "resume", "iteration": 15, "experiences": 1},
        progress(20, 1),
    ]
    kept = current_history(lines)
    assert [s["iteration"] for s in kept if s["event"] == "progress"] == [10, 20]
    assert [s["experience"] for s in kept if s["event"] == "experience"] == [0]


def test_two_resumes_in_a_row():
    lines = [progress(10), {"event": "resume", "iteration": 10, "experiences": 0}, progress(20)]
    lines += [{"event": "resume", "iteration": 0, "experiences": 0}, progress(5)]
    kept = current_history(lines)
    assert [s["iteration"] for s in kept if s["event"] == "progress"] == [5]


def test_done_counts_whole_rows():
    matrix = np.full((3, 3), np.nan)
    matrix[0] = 0.5
    assert RunRecord("r", {}, matrix, []).done == 1
