"""Tests while an experience is being learned: a learner may be asked at any time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from carousel.data import Stream
from carousel.report.record import Sample
from carousel.runs.evaluate import accuracy_seen
from carousel.runs.totals import Totals

__all__ = ["AnytimeTest"]


class AnytimeTest:
    """Plugin that tests the model every so many steps of the run, on what was met so far.

    Belongs before the checkpoint, which then holds the test of its own step.

    Args:
        every: steps from one test to the next; None for never.
        stream: whose test samples are used: those of the experiences begun so far.
        totals: of the run; takes the accuracy and the time.
        log: takes a line of ``metrics.jsonl``.
    """

    def __init__(
        self, every: int | None, stream: Stream, totals: Totals, log: Callable[[Sample], None]
    ) -> None:
        self._every = every
        self._stream = stream
        self._totals = totals
        self._log = log

    def after_training_iteration(self, strategy: Any, *_: Any, **__: Any) -> None:
        """Test if it is time."""
        totals = self._totals
        if self._every is None or totals.iterations % self._every:
            return
        number = strategy.clock.train_exp_counter
        accuracy = accuracy_seen(strategy.model, self._stream, strategy.device, number + 1)
        totals.see_accuracy(accuracy)
        totals.lap("evaluate")
        self._log(
            {
                "event": "anytime",
                "iteration": totals.iterations,
                "experience": number,
                "seconds": totals.seconds,
                "accuracy_seen": accuracy,
            }
        )
