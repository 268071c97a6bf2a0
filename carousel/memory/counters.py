"""What became of every swap that was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from enum import IntEnum
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Outcome", "SwapCounters", "Tally"]


class Outcome(IntEnum):
    """The end of one request; every request meets exactly one."""

    DONE = 0
    STALE = 1  # the slot changed, or the sample that came in was admitted meanwhile
    DUPLICATE = 2  # the slot had a request in flight already
    NO_CANDIDATE = 3  # storage holds no other sample of the class
    CORRUPT = 4  # the record was damaged or unfit, and so were those drawn instead
    IO_ERROR = 5  # storage could not be read or written, also after retries
    DROPPED_FULL = 6  # too many requests were in flight
    CANCELLED = 7  # the engine was closed or a worker failed before the swap was done


@dataclass(frozen=True, slots=True)
class SwapCounters:
    """Requests by outcome: ``requested`` is the sum of the others and of those in flight.

    Example:
        >>> SwapCounters(requested=3, done=2, stale=1).in_flight
        0
    """

    requested: int = 0
    done: int = 0
    stale: int = 0
    duplicate: int = 0
    no_candidate: int = 0
    corrupt: int = 0
    io_error: int = 0
    dropped_full: int = 0
    cancelled: int = 0

    @property
    def in_flight(self) -> int:
        """Requests whose outcome is not known yet."""
        ended = sum(count for name, count in self.as_dict().items() if name != "requested")
        return self.requested - ended

    def as_dict(self) -> dict[str, int]:
        """Plain integers by name, for logs and checkpoints."""
        return asdict(self)


class Tally:
    """Counts outcomes; only the training thread touches it."""

    def __init__(self) -> None:
        self.requested = 0
        self._counts = np.zeros(len(Outcome), np.int64)

    def add(self, outcome: Outcome, count: int) -> None:
        """Count `count` requests that ended the same way."""
        self._counts[outcome] += count

    def add_all(self, counts: npt.NDArray[np.int64]) -> None:
        """Add (8,) counts, one an outcome."""
        self._counts += counts

    @property
    def in_flight(self) -> int:
        """Requests whose outcome is not known yet."""
        return self.requested - int(self._counts.sum())

    def counters(self) -> SwapCounters:
        """The counts now."""
        by_name = {outcome.name.lower(): int(self._counts[outcome]) for outcome in Outcome}
        return SwapCounters(requested=self.requested, **by_name)

    def load(self, counts: Mapping[str, Any]) -> None:
        """Go on from what `SwapCounters.as_dict` gave."""
        self.requested = int(counts["requested"])
        for outcome in Outcome:
            self._counts[outcome] = int(counts[outcome.name.lower()])
