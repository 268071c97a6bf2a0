"""What a study found: one result a run, and one line a method and setting."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import numpy as np

from carousel.report.metrics import Matrix
from carousel.report.study.statistics import Interval, mean_interval, paired_gain

__all__ = ["Line", "Point", "RunResult", "StudyResults", "lines_of", "point_text"]

Point: TypeAlias = tuple[tuple[str, Any], ...]
"""Values of the swept settings, by name, sorted."""


@dataclass(frozen=True, slots=True)
class RunResult:
    """One run of a study.

    Args:
        name: of its folder.
        strategy: that learned.
        swap: whether it swapped; None for a strategy without a memory.
        seed: of everything random.
        point: the swept settings.
        state: how far it came.
        summary: ``summary.json`` of its folder; empty unless it is done.
        error: why it failed, one line.
        log: file with the details.
    """

    name: str
    strategy: str
    swap: bool | None
    seed: int
    point: Point
    state: Literal["done", "failed", "missing"]
    summary: Mapping[str, Any] = field(default_factory=dict)
    error: str = ""
    log: str = ""

    def curve(self) -> Matrix:
        """(T,) accuracy over the classes seen so far, after each experience."""
        matrix = np.asarray(self.summary["accuracy_matrix"], dtype=np.float64)
        counts = np.asarray(self.summary["test_samples"], dtype=np.float64)
        steps = range(1, len(matrix) + 1)
        return np.array([np.average(matrix[i - 1, :i], weights=counts[:i]) for i in steps])


@dataclass(frozen=True, slots=True)
class Line:
    """A method at one setting, with and without swapping.

    Args:
        strategy: its name.
        point: the swept settings.
        plain: finished runs without swapping, or those of a strategy without a memory.
        swapped: finished runs with swapping.
        bound: whether the strategy has no memory.
    """

    strategy: str
    point: Point
    plain: tuple[RunResult, ...]
    swapped: tuple[RunResult, ...]
    bound: bool

    def plain_mean(self, key: str = "final_accuracy") -> Interval | None:
        """Mean of a figure of the summaries without swapping."""
        return mean_interval(list(by_seed(self.plain, key).values()))

    def swapped_mean(self, key: str = "final_accuracy") -> Interval | None:
        """Mean of a figure of the summaries with swapping."""
        return mean_interval(list(by_seed(self.swapped, key).values()))

    def gain(self, key: str = "final_accuracy") -> Interval | None:
        """With swapping minus without, paired by seed."""
        return paired_gain(by_seed(self.swapped, key), by_seed(self.plain, key))


@dataclass(frozen=True, slots=True)
class StudyResults:
    """Everything that a report of a study shows.

    Args:
        title: what was compared.
        runs: all of the grid, in its order.
        settings: of the study, as its file gives them.
        environment: versions, command, machine.
    """

    title: str
    runs: Sequence[RunResult]
    settings: Mapping[str, Any]
    environment: Mapping[str, Any] = field(default_factory=dict)

    @property
    def lines(self) -> list[Line]:
        """One line a method and setting, bounds at the ends."""
        return lines_of(self.runs)

    @property
    def done(self) -> int:
        """Runs that ended well."""
        return sum(run.state == "done" for run in self.runs)

    @property
    def failed(self) -> list[RunResult]:
        """Runs that did not."""
        return [run for run in self.runs if run.state == "failed"]

    @property
    def swept(self) -> list[str]:
        """Names of the settings that differ between lines."""
        return sorted({key for run in self.runs for key, _ in run.point})


def lines_of(runs: Iterable[RunResult]) -> list[Line]:
    """Group runs by method and setting.

    A run without swapping has no settings of the swaps: it stands beside every line whose other
    settings it shares. Lower bound first, upper bound last.
    """
    finished = [run for run in runs if run.state == "done"]
    keys = dict.fromkeys((r.strategy, r.point) for r in finished if r.swap is not False)
    for run in finished:
        beside = (_part_of(run.point, point) for name, point in keys if name == run.strategy)
        if not any(beside):
            keys[run.strategy, run.point] = None
    lines = [_line(strategy, point, finished) for strategy, point in keys]
    place = {"naive": -1, "joint": 1}
    return sorted(lines, key=lambda line: place.get(line.strategy, 0))


def point_text(point: Point) -> str:
    """Settings as people write them: ``gate=all, swap_ratio=0.2``."""
    return ", ".join(f"{key.removeprefix('strategy.')}={value}" for key, value in point)


def by_seed(runs: Iterable[RunResult], key: str) -> dict[int, float]:
    """A figure of the summaries by seed, where there is one."""
    return {run.seed: float(run.summary[key]) for run in runs if run.summary.get(key) is not None}


def _line(strategy: str, point: Point, runs: Sequence[RunResult]) -> Line:
    own = [run for run in runs if run.strategy == strategy]
    bound = any(run.swap is None for run in own)
    return Line(
        strategy,
        point,
        plain=tuple(r for r in own if not r.swap and _part_of(r.point, point)),
        swapped=tuple(r for r in own if r.swap and r.point == point),
        bound=bound,
    )


def _part_of(small: Point, large: Point) -> bool:
    return all(pair in large for pair in small)
