"""Studies of `carousel compare` as benchmarks: run what is missing, read what was found."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import yaml

__all__ = ["STUDIES", "line", "only", "parse_study_arguments", "points", "read_study_file"]
__all__ += ["run_study", "with_choices"]

STUDIES = Path(__file__).parent / "studies"
"""The settings of the studies, written before their first seed."""

Results = dict[str, Any]


def run_study(study: Mapping[str, Any], out: Path, name: str, jobs: int) -> Results:
    """Train the runs of a study that have no result yet, and return its ``results.json``.

    Studies may share a folder, and then share runs: what one found is kept as ``<name>.json``.

    Args:
        study: settings, as in a file for ``carousel compare --config``.
        out: folder of the study.
        name: of this study.
        jobs: runs at a time.
    """
    out.mkdir(parents=True, exist_ok=True)
    source = out.parent / f"{out.name}-{name}.yaml"
    source.write_text(yaml.safe_dump(dict(study), sort_keys=False))
    command = [sys.executable, "-m", "carousel", "compare", "--config", str(source)]
    done = subprocess.run([*command, "--out", str(out), "--jobs", str(jobs)], check=False)
    if done.returncode > 1:  # 1: a run failed, and the results say which
        raise SystemExit(done.returncode)
    text = (out / "results.json").read_text()
    (out.parent / f"{out.name}-{name}.json").write_text(text)
    results: Results = json.loads(text)
    return results


def read_study_file(name: str) -> dict[str, Any]:
    """A study of the folder `STUDIES`."""
    study: dict[str, Any] = yaml.safe_load((STUDIES / f"{name}.yaml").read_text())
    return study


def line(results: Results, strategy: str, **point: Any) -> Results | None:
    """The line of a method at a setting of the sweep, None when no run of it is done."""
    for found in results["lines"]:
        if found["strategy"] == strategy and found["point"] == point:
            line: Results = found
            return line
    return None


def points(interval: Mapping[str, Any] | None, key: str = "mean") -> float:
    """An accuracy of an interval in points of 100; NaN where there is none."""
    value = None if interval is None else interval[key]
    return float("nan") if value is None else 100 * float(value)


def parse_study_arguments(
    description: str | None, out: str, parts: tuple[str, ...] = ()
) -> argparse.Namespace:
    """The command line of a study: where to, how many at a time, and what of it.

    Args:
        description: of the benchmark.
        out: folder of the runs, by default.
        parts: names for ``--parts``, if the study has some; all are run by default.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--json", type=Path, help="also write the rows to this file")
    parser.add_argument("--out", type=Path, default=Path(out), help="folder of the runs")
    parser.add_argument("--jobs", type=int, default=2, help="runs at a time")
    parser.add_argument("--seeds", type=_integers, help="comma-separated; those of the study")
    parser.add_argument("--methods", type=_list, help="comma-separated; those of the study")
    parser.add_argument("--limit", type=int, help="samples of a class, for a quick look")
    if parts:
        parser.add_argument(
            "--parts", type=_names(parts), default=list(parts), help="comma-separated"
        )
    return parser.parse_args()


def _names(known: tuple[str, ...]) -> Callable[[str], list[str]]:
    def parse(text: str) -> list[str]:
        for name in text.split(","):
            if name not in known:
                raise argparse.ArgumentTypeError(f"unknown {name}: use {', '.join(known)}")
        return text.split(",")

    return parse


def _list(text: str) -> list[str]:
    return text.split(",")


def _integers(text: str) -> list[int]:
    return [int(number) for number in text.split(",")]


def with_choices(study: Mapping[str, Any], choices: argparse.Namespace) -> dict[str, Any]:
    """The study with the seeds, the limit and the methods of the command line, if given.

    Methods that were asked for by name are trained alone, without the bounds.
    """
    changed = dict(study)
    if choices.seeds is not None:
        changed["seeds"] = list(choices.seeds)
    if choices.limit is not None:
        changed["limit"] = choices.limit
    if choices.methods is not None:
        changed = {**only(changed, choices.methods), "bounds": False}
    return changed


def only(study: Mapping[str, Any], names: Iterable[str], **own: Any) -> dict[str, Any]:
    """The study of some of its methods, with further settings for each."""
    methods = {name: {**(study["strategies"][name] or {}), **own} for name in names}
    return {**study, "strategies": methods}
