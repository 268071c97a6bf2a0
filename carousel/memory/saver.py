"""Saves the samples of an experience while training goes on."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable

from carousel.memory.intake import SampleBatch

__all__ = ["BackgroundSaver"]


class BackgroundSaver:
    """One thread that takes batches from an iterable and saves each.

    Holds one batch at a time: the tier's queue, when full, blocks the saver and nothing else. The
    iterable is read in the saver's thread.

    Args:
        save: saves one batch; may block.
    """

    def __init__(self, save: Callable[[SampleBatch], object]) -> None:
        self._save = save
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None

    @property
    def busy(self) -> bool:
        """True while batches are left to be saved."""
        return self._thread is not None and self._thread.is_alive()

    def start(self, batches: Iterable[SampleBatch]) -> None:
        """Save these batches in the background; waits first for those that came before."""
        self.wait()
        self._thread = threading.Thread(
            target=self._run, args=(batches,), name="carousel-save", daemon=True
        )
        self._thread.start()

    def wait(self, timeout: float | None = None) -> None:
        """Until every batch is handed to the tier; raises what went wrong on the way.

        Raises:
            TimeoutError: not done within `timeout` seconds.
        """
        if self._thread is not None:
            self._thread.join(timeout)
            if self._thread.is_alive():
                raise TimeoutError(f"samples are still being saved after {timeout:g} s")
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _run(self, batches: Iterable[SampleBatch]) -> None:
        try:
            for batch in batches:
                self._save(batch)
        except BaseException as error:  # sys.exit in a data set, too, must not end in silence
            self._error = error
