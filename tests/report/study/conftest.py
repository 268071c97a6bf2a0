from __future__ import annotations

import pytest

from carousel.report.study.results import RunResult, StudyResults


def make_run(strategy, swap, seed, final, *, point=(), state="done", **further) -> RunResult:
    """A run of two experiences that ends with this accuracy."""
    summary = {
        "strategy": strategy,
        "seed": seed,
        "final_accuracy": final,
        "forgetting": 0.25,
        "accuracy_matrix": [[1.0, 0.0], [2 * final - 0.5, 0.5]],
        "test_samples": [10, 10],
        "seconds": 12.0,
        "swaps": {"requested": 4, "done": 3},
        "swapping": bool(swap),
    }
    kind = {None: "", True: "-swap", False: "-plain"}[swap]
    name = f"{strategy}{kind}-seed{seed}-{abs(hash(point)) % 1000}"
    done = summary if state == "done" else {}
    return RunResult(name, strategy, swap, seed, tuple(point), state, done, **further)


@pytest.fixture
def run():
    return make_run


@pytest.fixture
def results() -> StudyResults:
    """Two methods with both bounds over three seeds; er gains 0.2 and der++ 0.1, 0.2, 0.3."""
    runs = []
    for seed in range(3):
        runs += [
            make_run("er", False, seed, 0.5),
            make_run("er", True, seed, 0.7),
            make_run("der++", False, seed, 0.4 + 0.1 * seed),
            make_run("der++", True, seed, 0.5 + 0.2 * seed),
            make_run("joint", None, seed, 0.75),
            make_run("naive", None, seed, 0.25),
        ]
    return StudyResults("Comparison on <b>", runs, {"epochs": 3}, {"packages": {"torch": "2"}})


@pytest.fixture
def swept() -> StudyResults:
    """Swap ratios 0.2 and 0.8 beside one run without swaps, one seed."""
    runs = [make_run("er", False, 0, 0.5)]
    runs += [make_run("er", True, 0, 0.5 + p / 4, point=(("swap_ratio", p),)) for p in (0.8, 0.2)]
    return StudyResults("Sweep", runs, {})
