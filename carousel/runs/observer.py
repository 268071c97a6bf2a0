"""Avalanche plugins that watch a run: where time goes, how loss and swaps develop.

Avalanche calls whatever has a method of an event's name, so these need no base class.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter
from typing import Any

from torch import Tensor

from carousel.memory.counters import SwapCounters
from carousel.memory.stats import CarouselStats
from carousel.report.record import Sample
from carousel.runs.progress import RunProgress, Snapshot
from carousel.runs.totals import Totals
from carousel.storage.tier import TierStats

__all__ = ["Marker", "Observer", "carousel_sample"]

_SHOW_EVERY = 0.25
_LOG_EVERY = 0.5
_LOG_SHARE = 400
"""Samples are logged at most every 1/400 of the run so far, so that a log of a week stays small."""


class Marker:
    """Books the time since the last marker, event by event.

    Args:
        totals: to book in.
        phases: phase by name of the event; other events are left to the markers after it.
    """

    def __init__(self, totals: Totals, **phases: str) -> None:
        self._totals = totals
        self._phases = phases

    def before_training_exp(self, *_: Any, **__: Any) -> None:
        """An experience begins."""
        self._mark("before_training_exp")

    def before_training_iteration(self, *_: Any, **__: Any) -> None:
        """A batch of the stream was loaded."""
        self._mark("before_training_iteration")

    def after_forward(self, *_: Any, **__: Any) -> None:
        """The logits are there."""
        self._mark("after_forward")

    def after_training_iteration(self, *_: Any, **__: Any) -> None:
        """A step is done."""
        self._mark("after_training_iteration")

    def after_training_exp(self, *_: Any, **__: Any) -> None:
        """An experience ends."""
        self._mark("after_training_exp")

    def _mark(self, event: str) -> None:
        phase = self._phases.get(event)
        if phase is not None:
            self._totals.lap(phase)


class Observer:
    """Counts steps, and shows and logs samples.

    Args:
        totals: counts and seconds of the run.
        progress: shows where the run stands.
        log: takes a line of ``metrics.jsonl``.
        experiences: in the stream.
    """

    def __init__(
        self,
        totals: Totals,
        *,
        progress: RunProgress,
        log: Callable[[Sample], None],
        experiences: int,
    ) -> None:
        self._totals = totals
        self._progress = progress
        self._log = log
        self._experiences = experiences
        self._shown = self._logged = perf_counter()
        self._loss: Tensor | float = 0.0
        self._losses = 0

    def after_training_iteration(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Count the step; show and log now and then."""
        totals = self._totals
        totals.count_step(_stream_rows(strategy))
        self._loss = self._loss + strategy.loss.detach()
        self._losses += 1
        now = perf_counter()
        if now - self._shown >= _SHOW_EVERY:
            self._shown = now
            due = now - self._logged >= max(_LOG_EVERY, totals.seconds / _LOG_SHARE)
            self._sample(strategy, log=due, step=strategy.clock.train_epoch_iterations + 1)

    def after_training_epoch(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Log how an epoch ended, however short it was."""
        if self._losses:
            self._sample(strategy, log=True, step=strategy.clock.train_epoch_iterations)

    def _sample(self, strategy: Any, *, log: bool, step: int) -> None:
        stats = carousel_sample(strategy.memory)
        self._totals.see_ram(stats["ram_bytes"])
        snapshot = Snapshot(
            experience=strategy.clock.train_exp_counter,
            experiences=self._experiences,
            epoch=strategy.clock.train_exp_epochs,
            epochs=strategy.train_epochs,
            step=step,
            steps=len(strategy.dataloader),
            loss=float(self._loss) / self._losses,
            accuracy=_stream_accuracy(strategy),
            swaps_done=stats["swaps"]["done"],
            ram_bytes=stats["ram_bytes"],
            storage_bytes=stats["storage_bytes"],
            seconds=self._totals.seconds,
        )
        self._progress.update(snapshot)
        if log:
            self._logged = perf_counter()
            self._losses, self._loss = 0, 0.0
            self._log(_line(snapshot, stats, self._totals))


def carousel_sample(memory: Any) -> dict[str, Any]:
    """Swaps and bytes of a strategy's memory; zeros for a strategy without one.

    Args:
        memory: a `CarMPlugin`, or None.
    """
    if memory is None:
        stats = CarouselStats(SwapCounters(), TierStats())
    else:
        stats = memory.carousel.stats()
    return {
        "swaps": stats.swaps.as_dict(),
        "ram_bytes": stats.ram_bytes,
        "memory_slots": stats.slots,
        "memory_spares": stats.spares,
        "memory_filled": stats.filled,
        "storage_records": stats.storage.records,
        "storage_bytes": stats.storage.file_bytes,
        "storage_live_bytes": stats.storage.live_bytes,
        "save_stall_seconds": stats.storage.save_stall_seconds,
        "distinct_samples_replayed": stats.distinct_samples_replayed,
        "manager_seconds": stats.manager_seconds,
    }


def _line(snapshot: Snapshot, stats: dict[str, Any], totals: Totals) -> dict[str, Any]:
    return {
        "event": "progress",
        "iteration": totals.iterations,
        "experience": snapshot.experience,
        "epoch": snapshot.epoch,
        "seconds": snapshot.seconds,
        "loss": snapshot.loss,
        "accuracy": snapshot.accuracy,
        **stats,
        "times": dict(totals.times),
    }


def _stream_rows(strategy: Any) -> int:
    replayed = _replayed(strategy)
    return len(strategy.mb_y) - (0 if replayed is None else replayed.stop - replayed.start)


def _stream_accuracy(strategy: Any) -> float:
    right = strategy.mb_output.detach().argmax(dim=1) == strategy.mb_y
    replayed = _replayed(strategy)
    if replayed is not None:
        right = right[: replayed.start]
    return float(right.float().mean()) if len(right) else 0.0


def _replayed(strategy: Any) -> slice | None:
    rows: slice | None = strategy.memory.memory_rows if strategy.memory is not None else None
    return rows
