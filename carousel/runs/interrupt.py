"""Ctrl-C and SIGTERM: the step ends, a checkpoint is written, then the run stops."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

__all__ = ["RunInterrupted", "StopRequest", "stop_on_signals"]


class RunInterrupted(KeyboardInterrupt):
    """The run was asked to stop and did so at the end of a step.

    Args:
        signum: the signal that asked.
    """

    def __init__(self, signum: int) -> None:
        super().__init__(signum)
        self.signum = signum


class StopRequest:
    """Remembers that somebody asked the run to stop."""

    def __init__(self) -> None:
        self._signum: int | None = None

    def ask(self, signum: int) -> None:
        """Ask the run to stop at the end of its step."""
        self._signum = signum

    @property
    def asked(self) -> bool:
        """Somebody did."""
        return self._signum is not None

    def obey(self) -> None:
        """Stop here if somebody asked.

        Raises:
            RunInterrupted: somebody did.
        """
        if self._signum is not None:
            raise RunInterrupted(self._signum)


@contextmanager
def stop_on_signals() -> Iterator[StopRequest]:
    """Turn the first SIGINT or SIGTERM into a request; the second one acts as it always did.

    Outside the main thread, where Python has no signals, nothing is changed, and a signal that
    is ignored, as SIGINT is in a job that a script put into the background, stays ignored.
    """
    request = StopRequest()
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    before: dict[signal.Signals, Any] = {}

    def remember(signum: int, _frame: FrameType | None) -> None:
        request.ask(signum)
        signal.signal(signum, before[signal.Signals(signum)])

    for number in (signal.SIGINT, signal.SIGTERM):
        if signal.getsignal(number) != signal.SIG_IGN:
            before[number] = signal.signal(number, remember)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
