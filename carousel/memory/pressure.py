"""Watching the machine's memory: how many slots to hold while other programs need room."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from carousel.errors import BadInputError
from carousel.memory.machine import MachineMemory, read_memory

__all__ = ["PressureWatch"]

_log = logging.getLogger(__name__)

_STEP = 16
"""Changes are in sixteenths of the memory, so that a trickle does not move samples all the time."""


class PressureWatch:
    """Says how many slots to hold: fewer while the machine is short of memory, all again later.

    Below `low` slots are given back until `high` would be free again; above `high` they return as
    far as `high` stays free. Between the two nothing changes, so it does not swing.

    Args:
        low: share of all memory that must stay available, from 0 to 1.
        high: share at which slots return; above `low`.
        floor: share of the slots that is never given back.
        interval_s: seconds between two looks at the machine.
        read: how to look; the default asks psutil and the control group.
        clock: seconds that only rise.

    Raises:
        BadInputError: the shares are out of order, or the interval is negative.

    Example:
        >>> watch = PressureWatch(read=lambda: MachineMemory(total=1000, available=50))
        >>> watch.target(active=160, maximum=160, slot_bytes=1)
        10
    """

    def __init__(
        self,
        low: float = 0.1,
        high: float = 0.2,
        *,
        floor: float = 1 / 16,
        interval_s: float = 1.0,
        read: Callable[[], MachineMemory] = read_memory,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        if not 0 < low < high < 1:
            raise BadInputError(f"low is {low} and high {high}", fix="use 0 < low < high < 1")
        if not 0 < floor <= 1:
            raise BadInputError(f"floor is {floor}", fix="give a number above 0 and up to 1")
        if interval_s < 0:
            raise BadInputError(f"interval_s is {interval_s}", fix="give seconds of at least 0")
        self._low, self._high, self._floor = low, high, floor
        self._interval = interval_s
        self._read, self._clock = read, clock
        self._next_look = float("-inf")

    def target(self, active: int, maximum: int, slot_bytes: int) -> int:
        """How many slots to hold from now on; `active` when all is well or it is too early to look.

        Args:
            active: slots in use now.
            maximum: slots that the user asked for.
            slot_bytes: RAM that one slot gives back.
        """
        now = self._clock()
        if now < self._next_look:
            return active
        self._next_look = now + self._interval
        memory = self._read()
        wanted = self._wanted(memory, active, maximum, slot_bytes)
        if wanted != active:
            self._report(active, wanted, maximum, memory)
        return wanted

    def _wanted(self, memory: MachineMemory, active: int, maximum: int, slot_bytes: int) -> int:
        # slots whose bytes stand between what is free and what should be; negative: missing
        room = int((memory.available - self._high * memory.total) // max(1, slot_bytes))
        step = max(1, maximum // _STEP)
        if memory.available < self._low * memory.total:
            least = min(active, max(1, round(self._floor * maximum)))
            return max(least, active + room // step * step)
        if active + room >= maximum:
            return maximum
        return active + max(0, room) // step * step

    def _report(self, active: int, wanted: int, maximum: int, memory: MachineMemory) -> None:
        share = memory.available / max(1, memory.total)
        verb = "gives back" if wanted < active else "takes again"
        _log.warning(
            "%.0f%% of the memory is available: the carousel %s %d slots and holds %d of %d",
            100 * share,
            verb,
            abs(wanted - active),
            wanted,
            maximum,
        )
