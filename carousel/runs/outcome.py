"""What a run leaves behind: its summary and its report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import numpy.typing as npt

from carousel.memory.stats import CarouselStats
from carousel.report import metrics
from carousel.report.metrics import Matrix
from carousel.report.page import render_page
from carousel.report.plots import save_plots
from carousel.runs.config import TrainConfig
from carousel.runs.folder import RunFolder, write_atomically
from carousel.runs.results import Results
from carousel.runs.totals import Totals

__all__ = ["problems_of", "summarize", "write_report"]


def summarize(
    config: TrainConfig,
    *,
    results: Results,
    counts: npt.NDArray[np.int64],
    stats: Mapping[str, Any],
    totals: Totals,
    problems: list[str],
) -> dict[str, Any]:
    """The content of ``summary.json``.

    Args:
        config: resolved settings.
        results: accuracies after each experience.
        counts: (T,) test samples.
        stats: swaps and bytes, see `carousel_sample`.
        totals: seconds, steps, samples.
        problems: what went wrong without stopping the run.
    """
    untrained = results.untrained
    scores = _scores(results.class_il, counts, untrained.class_il)
    told = _scores(results.task_il, counts, untrained.task_il)
    anytime = None if config.eval_every is None else totals.anytime_accuracy(scores.final_accuracy)
    return {
        "strategy": config.strategy,
        "benchmark": config.benchmark,
        "seed": config.seed,
        **asdict(scores),
        "anytime_accuracy": anytime,
        **{f"task_il_{name}": value for name, value in asdict(told).items()},
        "accuracy_matrix": results.class_il.tolist(),
        "task_il_accuracy_matrix": results.task_il.tolist(),
        "test_samples": counts.tolist(),
        **stats,
        "ram_bytes_peak": max(totals.ram_bytes_peak, stats["ram_bytes"]),
        "swapping": stats["memory_slots"] > 0 and config.swap_ratio > 0 and not config.no_swap,
        "iterations": totals.iterations,
        "seconds": totals.seconds,
        "samples_per_second": totals.samples_per_second,
        "times": dict(totals.times),
        "problems": problems,
    }


def _scores(matrix: Matrix, counts: npt.NDArray[np.int64], untrained: Matrix) -> metrics.Scores:
    known = np.isfinite(untrained).all()
    return metrics.score(matrix, counts, untrained if known else None)


def problems_of(stats: CarouselStats | None, error: Exception | None) -> list[str]:
    """What a user should know although the run ended well, a sentence each."""
    problems = [] if error is None else [f"the memory reported {type(error).__name__}: {error}"]
    if stats is None:
        return problems
    if stats.storage_full:
        problems.append("storage was full: some samples were not saved")
    if stats.ram_only:
        problems.append("storage failed: training went on without swaps")
    if stats.storage.corrupt:
        problems.append(f"{stats.storage.corrupt} records were corrupt and set aside")
    if stats.restore_losses:
        problems.append(f"{stats.restore_losses} samples of the memory were lost in a resume")
    return problems


def write_report(folder: RunFolder, summary: Mapping[str, Any] | None = None) -> None:
    """Draw the pictures and write ``report.html`` from the files of the folder.

    Args:
        folder: of the run.
        summary: to show when ``summary.json`` is not written yet.

    Raises:
        BadInputError: there is no run in the folder.
    """
    record = folder.record()
    if summary is not None:
        record.summary = summary
    pictures = save_plots(record, folder.path)
    write_atomically(folder.report_file, render_page(record, pictures))
