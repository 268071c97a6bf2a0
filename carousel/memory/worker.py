"""The thread that does the swaps' reading, so that training never waits for storage."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from carousel.memory.slab import Slab
from carousel.memory.swapper import CHUNK, Request, Swap, Swapper

__all__ = ["SwapWorker"]

_MOST_FAILURES = 3


class SwapWorker:
    """Takes requests, hands back swaps to publish, and survives whatever storage does.

    An unexpected error cancels the requests in hand and is kept for `take_error`; after more
    than 3 of them the worker does nothing but cancel. The thread starts with the first request.

    Args:
        slab: where the spare rows come from.
        make_swapper: builds the work itself, given a sleep that ends early when closing.

    Attributes:
        finished: swaps with their outcomes, for the training thread.
        swapper: the work itself; touched by other threads only while nothing is in flight.
    """

    def __init__(
        self, slab: Slab, make_swapper: Callable[[Callable[[float], object]], Swapper]
    ) -> None:
        self._slab = slab
        self._stopping = threading.Event()
        self._space = threading.Event()
        self._inbox: queue.SimpleQueue[Request | None] = queue.SimpleQueue()
        self._backlog: deque[Request] = deque()
        self._chunk = max(1, min(CHUNK, slab.spares))
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._failures = 0
        self.swapper = make_swapper(self._stopping.wait)
        self.finished: queue.SimpleQueue[Swap] = queue.SimpleQueue()
        self.starved = False

    @property
    def failures(self) -> int:
        """Unexpected errors so far."""
        return self._failures

    def submit(self, request: Request) -> None:
        """Hand over a request; never blocks."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="carousel-swap", daemon=True)
            self._thread.start()
        self._inbox.put(request)

    def spares_came(self) -> None:
        """Tell a starved worker that rows were given back."""
        self._space.set()

    def take_error(self) -> Exception | None:
        """The first unexpected error since this was last asked."""
        error, self._error = self._error, None
        return error

    def stop(self, timeout: float) -> bool:
        """Cancel what is queued, end what is in hand, and join; False when it is still blocked."""
        self._stopping.set()
        self._space.set()
        self._inbox.put(None)
        if self._thread is not None:
            self._thread.join(timeout)
            return not self._thread.is_alive()
        return True

    def _run(self) -> None:
        ahead: Swap | None = None
        while True:
            request = self._next(wait=ahead is None)
            # Choosing the next chunk first starts its reading ahead while this one is copied.
            chosen = None if request is None else self._choose(request)
            if ahead is not None:
                self._fill(ahead)
                self.finished.put(ahead)
            ahead = chosen
            if ahead is None and self._stopping.is_set():
                return

    def _next(self, *, wait: bool) -> Request | None:
        """The next chunk; None when there is none yet, or, if waiting, when it is time to stop."""
        if not self._backlog:
            try:
                request = self._inbox.get(block=wait)
            except queue.Empty:
                return None
            if request is None:
                return None
            self._backlog.extend(request.pieces(self._chunk))
        return self._backlog.popleft()

    def _choose(self, request: Request) -> Swap:
        swap = Swap.of(request)
        if self._gives_up:
            self.swapper.abandon(swap)
            return swap
        try:
            self.swapper.choose(swap)
        except Exception as error:
            self._note(error, swap)
        return swap

    def _fill(self, swap: Swap) -> None:
        try:
            rows = self._spares(len(swap.done))
            if rows is None:
                self.swapper.abandon(swap)
            else:
                self.swapper.fill(swap, rows)
        except Exception as error:
            self._note(error, swap)

    @property
    def _gives_up(self) -> bool:
        return self._stopping.is_set() or self._failures > _MOST_FAILURES

    def _note(self, error: Exception, swap: Swap) -> None:
        self._failures += 1
        self._error = self._error or error
        self.swapper.abandon(swap)

    def _spares(self, count: int) -> npt.NDArray[np.int64] | None:
        """Rows to fill, as soon as the training thread has published enough; None when closing."""
        while True:
            self._space.clear()
            if self._gives_up:
                return None
            self.starved = True
            rows = self._slab.take_spares(count)
            if rows is not None:
                self.starved = False
                return rows
            self._space.wait()
