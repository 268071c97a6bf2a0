"""What a run has used up so far: seconds by phase, steps, samples. Survives a resume."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter
from typing import Any

from carousel.report.record import PHASES

__all__ = ["TRAINING_PHASES", "Totals"]

TRAINING_PHASES = tuple(phase for phase in PHASES if phase != "evaluate")
"""Phases that count for the samples a second: all but testing."""


class Totals:
    """Counts, and a stopwatch whose every lap goes to a phase.

    Attributes:
        state: all of it as plain values, always up to date, so that a checkpoint may hold it.
    """

    def __init__(self) -> None:
        self.times = dict.fromkeys(PHASES, 0.0)
        self._before = dict(self.times)
        self.state: dict[str, Any] = {
            "times": self.times,
            "before": self._before,
            "iterations": 0,
            "samples": 0,
            "seconds": 0.0,
            "ram_bytes_peak": 0,
            "tested_area": 0.0,
            "tested_until": 0,
        }
        self._earlier = 0.0
        self._start = self._last = perf_counter()

    @property
    def iterations(self) -> int:
        """Training steps so far."""
        return int(self.state["iterations"])

    @property
    def seconds(self) -> float:
        """Wall time of the run, over all its sessions."""
        return self._earlier + perf_counter() - self._start

    @property
    def samples_per_second(self) -> float:
        """Stream samples a second of training, testing left out."""
        training = sum(self.times[phase] for phase in TRAINING_PHASES)
        return int(self.state["samples"]) / training if training else 0.0

    @property
    def ram_bytes_peak(self) -> int:
        """Most RAM that the memory was seen to hold."""
        return int(self.state["ram_bytes_peak"])

    def see_ram(self, count: int) -> None:
        """The memory holds so many bytes now."""
        self.state["ram_bytes_peak"] = max(self.ram_bytes_peak, count)

    def count_step(self, samples: int) -> None:
        """One more training step, on so many samples of the stream."""
        self.state["iterations"] += 1
        self.state["samples"] += samples

    def see_accuracy(self, accuracy: float) -> None:
        """The model was tested now: it stands for the steps since it was tested last."""
        self.state["tested_area"] += accuracy * (self.iterations - self.state["tested_until"])
        self.state["tested_until"] = self.iterations

    def anytime_accuracy(self, last: float) -> float:
        """`carousel.report.metrics.anytime_accuracy` of all tests, and of one now that gave this.

        Only the area so far is kept, however long the run.
        """
        rest = last * (self.iterations - self.state["tested_until"])
        return float(self.state["tested_area"] + rest) / max(self.iterations, 1)

    def restart(self) -> None:
        """Let the next lap begin now; what went before belongs to no phase."""
        self._last = perf_counter()

    def lap(self, phase: str) -> None:
        """Book the time since the last lap."""
        now = perf_counter()
        self.times[phase] += now - self._last
        self._last = now
        self.state["seconds"] = self._earlier + now - self._start

    def begin_experience(self) -> None:
        """What is booked from here on belongs to the next experience."""
        self._before.update(self.times)

    def of_experience(self) -> dict[str, float]:
        """Seconds by phase of the experience at hand."""
        return {phase: self.times[phase] - self._before[phase] for phase in PHASES}

    def load(self, state: Mapping[str, Any]) -> None:
        """Go on from the `state` of an earlier session."""
        self.times.update(state["times"])
        self._before.update(state["before"])
        for key in ("iterations", "samples", "seconds"):
            self.state[key] = state[key]
        for key in ("tested_area", "tested_until"):
            self.state[key] = state.get(key, 0)
        self.see_ram(int(state.get("ram_bytes_peak", 0)))
        self._earlier = float(state["seconds"])
        self._start = self._last = perf_counter()
