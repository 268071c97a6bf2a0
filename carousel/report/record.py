"""What a report is made from: the measurements of one run, read back or still in memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from carousel.report.metrics import Matrix

__all__ = ["PHASES", "PLOT_NAMES", "RunRecord", "Sample", "current_history"]

PHASES = ("load", "replay", "swap", "step", "save", "evaluate")
"""Where the seconds of a run go; the first four are inside a training iteration."""

PLOT_NAMES = ("accuracy_matrix", "accuracy", "forgetting", "swaps", "time")
"""Pictures of a run, in reading order; each is a PNG file of this name."""

Sample: TypeAlias = Mapping[str, Any]
"""One line of ``metrics.jsonl``: an ``event`` name and its values."""


@dataclass(slots=True)
class RunRecord:
    """One run as its folder tells it.

    Args:
        name: name of the run folder.
        config: the resolved configuration.
        matrix: (T, T) accuracies in 0..1; NaN where a run was cut short.
        samples: lines of ``metrics.jsonl`` that still hold (see `current_history`).
        summary: ``summary.json``, empty while the run is not finished.
        environment: versions, threads, command.
        task_il: (T, T) accuracies of a learner that is told the experience; None where nobody
            measured them.
    """

    name: str
    config: Mapping[str, Any]
    matrix: Matrix
    samples: Sequence[Sample]
    summary: Mapping[str, Any] = field(default_factory=dict)
    environment: Mapping[str, Any] = field(default_factory=dict)
    task_il: Matrix | None = None

    @property
    def done(self) -> int:
        """Experiences that were trained and evaluated."""
        return int(np.isfinite(self.matrix).all(axis=1).sum())

    def progress(self) -> list[Sample]:
        """The samples taken while training, in order."""
        return [s for s in self.samples if s.get("event") == "progress"]


def current_history(lines: Sequence[Sample]) -> list[Sample]:
    """Drop what a killed run logged past the checkpoint from which it was resumed.

    A ``resume`` line states the ``iteration`` and the finished ``experiences`` at which training
    went on; everything before it that lies later in the run happened again.

    Example:
        >>> lines = [{"event": "progress", "iteration": i} for i in (10, 20, 30)]
        >>> lines += [{"event": "resume", "iteration": 20, "experiences": 0}]
        >>> [s["iteration"] for s in current_history(lines) if s["event"] == "progress"]
        [10, 20]
    """
    kept: list[Sample] = []
    for line in lines:
        if line.get("event") == "resume":
            kept = [old for old in kept if not _undone(old, line)]
        kept.append(line)
    return kept


def _undone(old: Sample, resume: Sample) -> bool:
    if old.get("event") == "experience":
        return int(old.get("experience", 0)) >= int(resume.get("experiences", 0))
    return int(old.get("iteration", 0)) > int(resume.get("iteration", 0))
