from __future__ import annotations

import numpy as np
import pytest

from carousel.report import metrics
from carousel.report.record import PHASES, RunRecord
from carousel.report.tables import OUTCOMES


@pytest.fixture
def finished_run() -> RunRecord:
    """A small run of three experiences with every kind of line in it."""
    matrix = np.array([[0.9, 0.0, 0.1], [0.6, 0.8, 0.0], [0.7, 0.5, 0.95]])
    counts = np.array([10, 30, 60])
    scores = metrics.score(matrix, counts)
    swaps = dict.fromkeys(OUTCOMES, 1) | {"done": 33, "requested": 40}
    samples = []
    for step in range(9):
        experience = step // 3
        samples.append(
            {
                "event": "progress",
                "iteration": step * 10,
                "experience": experience,
                "epoch": 0,
                "seconds": step * 0.5,
                "loss": 1 / (step + 1),
                "accuracy": 0.5,
                "swaps": {"requested": step * 5, "done": step * 4},
                "ram_bytes": 32_000,
                "storage_bytes": 65_536 * step,
                "storage_live_bytes": 50_000 * step,
            }
        )
        if step % 3 == 2:
            times = dict.fromkeys(PHASES, 0.25)
            samples.append(
                {"event": "experience", "experience": experience, "iteration": 0, "times": times}
            )
    summary = {
        "final_accuracy": scores.final_accuracy,
        "average_accuracy": scores.average_accuracy,
        "average_incremental_accuracy": scores.average_incremental_accuracy,
        "forgetting": scores.forgetting,
        "bwt": scores.bwt,
        "fwt": None,
        "accuracy_matrix": matrix.tolist(),
        "swaps": swaps,
        "memory_slots": 500,
        "ram_bytes": 32_000,
        "storage_bytes": 600_000,
        "storage_live_bytes": 400_000,
        "storage_records": 1_400,
        "save_stall_seconds": 0.0,
        "distinct_samples_replayed": 1_234,
        "seconds": 12.0,
        "samples_per_second": 900.0,
    }
    config = {"strategy": "er", "benchmark": "split-digits", "model": "<script>alert(1)</script>"}
    return RunRecord("a-run", config, matrix, samples, summary, {"python": "3.11"})
