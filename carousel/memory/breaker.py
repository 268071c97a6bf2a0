"""Keeps a broken disk from being asked again and again."""

from __future__ import annotations

__all__ = ["Breaker"]

_FAILURES_TO_OPEN = 3
_FIRST_PAUSE = 8
_LONGEST_PAUSE = 256


class Breaker:
    """Opens after 3 failures in a row; then one attempt in 8, 16, ... 256 is let through.

    It counts attempts, not seconds, so that a run in sync mode repeats.

    Example:
        >>> breaker = Breaker()
        >>> for _ in range(3):
        ...     breaker.failed()
        >>> breaker.is_open, breaker.allows()
        (True, False)
    """

    def __init__(self) -> None:
        self._failures = 0
        self._pause = _FIRST_PAUSE
        self._refused = 0

    @property
    def is_open(self) -> bool:
        """True while storage is taken to be broken, and only RAM is used."""
        return self._failures >= _FAILURES_TO_OPEN

    def allows(self) -> bool:
        """Whether to try now; refusals count towards the next probe."""
        if not self.is_open:
            return True
        if self._refused < self._pause:
            self._refused += 1
            return False
        return True

    def failed(self) -> None:
        """An attempt failed, its retries too."""
        if self.is_open:
            self._pause = min(2 * self._pause, _LONGEST_PAUSE)
        self._refused = 0
        self._failures += 1

    def succeeded(self) -> None:
        """An attempt worked: storage is back."""
        self._failures = 0
        self._refused = 0
        self._pause = _FIRST_PAUSE
