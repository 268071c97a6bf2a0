"""Are our seven methods, without swapping, the methods of their papers?

Each is compared with a plain loop that was written from the paper by itself (`benchmarks.peers`:
no memory, plugin or strategy of ours), on the same stream, model, memory and settings: those of
``benchmarks/studies/accuracy_seven.yaml``. Final accuracy is over all test samples of all classes,
in points; ours has to be at most two points below.

Run it as ``python -m benchmarks.baseline_fidelity [--json FILE] [--out FOLDER] [--jobs 2]
[--seeds 0,1,2] [--limit N]``. It shares the folder of `benchmarks.accuracy_seven`, whose runs
without swapping are taken as they are; what is missing is trained.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks._harness import Row, report
from benchmarks._study import (
    Results,
    line,
    parse_study_arguments,
    points,
    read_study_file,
    run_study,
    with_choices,
)
from carousel.report.study.statistics import mean_interval, paired_gain

OWN: Mapping[str, Mapping[str, Any]] = {
    "der++": {"alpha": 0.2, "beta": 0.5},
    "bic": {"temperature": 2.0},
    "gdumb": {"cutmix_p": 0.5, "cutmix_alpha": 1.0, "clip": 10.0},
    "rm": {"cutmix_p": 0.5, "cutmix_alpha": 1.0},
}
"""Options of the methods as they are in our runs: our defaults."""

SEVEN = ("er", "tiny-er", "icarl", "bic", "gdumb", "der++", "rm")
_SHARED = ("lr", "optimizer", "momentum", "weight_decay", "epochs", "batch_size", "memory_size")


def main() -> None:
    """Run what is missing, then compare."""
    choices = parse_study_arguments(__doc__, "runs/accuracy_seven")
    study = with_choices({**read_study_file("accuracy_seven"), "swap": False}, choices)
    study |= {"bounds": False, "strategies": {name: study["strategies"][name] for name in SEVEN}}
    ours = run_study(study, choices.out / "figlet", "plain", choices.jobs)
    settings = [peer_setting(study, name, seed) for name in SEVEN for seed in study["seeds"]]
    peers = run_peers(settings, choices.out / "peers", choices.jobs)
    rows = [row for name in SEVEN for row in compare(name, ours, peers)]
    if choices.limit is not None:
        rows = [replace(row, target=None, met=None) for row in rows]
    report(rows, "Seven methods without swapping, and plain loops from their papers", choices.json)


def peer_setting(study: Mapping[str, Any], name: str, seed: int) -> dict[str, Any]:
    """The setting of a plain loop that equals our run."""
    run = {"momentum": 0.9, "weight_decay": 0.0, **study, **(study["strategies"][name] or {})}
    return {
        "strategy": name,
        "benchmark": run["benchmark"],
        "experiences": run["experiences"],
        "model": run["model"],
        "limit": run.get("limit"),
        **{key: run[key] for key in _SHARED},
        "batch_size_mem": run.get("batch_size_mem", run["batch_size"]),
        "seed": seed,
        "own": dict(OWN.get(name, {})),
    }


def run_peers(
    settings: list[dict[str, Any]], folder: Path, jobs: int
) -> dict[tuple[str, int], Results]:
    """The results of the plain loops by method and seed; a process each."""
    folder.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(jobs) as pool:
        results = list(pool.map(lambda setting: _peer(setting, folder), settings))
    return {
        (setting["strategy"], setting["seed"]): result
        for setting, result in zip(settings, results, strict=True)
        if result is not None
    }


def compare(name: str, ours: Results, peers: Mapping[tuple[str, int], Results]) -> list[Row]:
    """Both accuracies of a method and their difference."""
    found = line(ours, name)
    theirs = {seed: peer["final_accuracy"] for (who, seed), peer in peers.items() if who == name}
    if found is None or not theirs:
        return []
    runs = [run for run in ours["runs"] if run["strategy"] == name and run["state"] == "done"]
    own = {run["seed"]: run["summary"]["final_accuracy"] for run in runs if run["swap"] is False}
    gap = paired_gain(own, theirs)
    mean = mean_interval(list(theirs.values()))
    assert gap is not None
    assert mean is not None
    return [
        Row(f"{name}: ours", points(found["no_swap"])),
        Row(f"{name}: plain loop", 100 * mean.mean),
        Row.at_least(f"{name}: ours minus plain loop, {gap.count} seeds", 100 * gap.mean, -2.0),
        Row(f"{name}: half the 95 % interval of it", 100 * gap.half),
    ]


def _peer(setting: dict[str, Any], folder: Path) -> Results | None:
    limit = "" if setting["limit"] is None else f"-limit{setting['limit']}"
    target = folder / f"{setting['strategy']}-seed{setting['seed']}{limit}.json"
    result = _read(target, setting)
    if result is None:
        with tempfile.NamedTemporaryFile("w", suffix=".json") as source:
            json.dump(setting, source)
            source.flush()
            command = [sys.executable, "-m", "benchmarks.peers", source.name, str(target)]
            subprocess.run(command, env=os.environ | {"OMP_NUM_THREADS": "1"}, check=False)
        result = _read(target, setting)
    said = "failed" if result is None else f"{100 * result['final_accuracy']:.1f} %"
    print(f"plain loop of {setting['strategy']}, seed {setting['seed']}: {said}", flush=True)
    return result


def _read(path: Path, setting: Mapping[str, Any]) -> Results | None:
    try:
        result: Results = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return result if result["setting"] == setting else None


if __name__ == "__main__":
    main()
