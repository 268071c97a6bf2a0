"""The thread that does the swaps' reading, so that training never waits for storage."""

from __future__ import annotations

import queue
import threading
import time
from collections import deque
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from carousel.memory.request import Asked, Request, Sealed, Swap
from carousel.memory.slab import Slab
from carousel.memory.swapper import Swapper

__all__ = ["CHUNK", "SwapWorker"]

CHUNK = 64
"""Most rows that are worked on at once."""

_MOST_FAILURES = 3
_HEAD_START_SECONDS = 0.0005
"""From waking to working. Training is then in its backward pass, which needs no interpreter lock;
every hand-over of that lock between the two costs training some 40 microseconds."""


class SwapWorker:
    """Takes requests, hands back swaps to publish, and survives whatever storage does.

    An unexpected error cancels the rows in hand and is kept for `take_error`; after more than
    3 of them the worker does nothing but cancel. The thread starts with the first request.

    Args:
        slab: where the spare rows come from.
        make_swapper: builds the work itself, given a sleep that ends early when closing.

    Attributes:
        swapper: the work itself; touched by other threads only while nothing is in flight.
        finished: swaps with their outcomes, for the training thread.
        starved: the worker waits for spare rows; see `spares_came`.
        failures: unexpected errors so far.
    """

    def __init__(
        self, slab: Slab, make_swapper: Callable[[Callable[[float], object]], Swapper]
    ) -> None:
        self._slab = slab
        self._stopping = threading.Event()
        self._space = threading.Event()
        self._inbox: queue.SimpleQueue[list[Asked] | None] = queue.SimpleQueue()
        self._backlog: deque[Request] = deque()
        self._chunk = max(1, min(CHUNK, slab.spares))
        self._thread: threading.Thread | None = None
        self._error: BaseException | None = None
        self.swapper = make_swapper(self._stopping.wait)
        self.finished: queue.SimpleQueue[Sealed] = queue.SimpleQueue()
        self.starved = False
        self.failures = 0

    def submit(self, asked: list[Asked]) -> None:
        """Hand over what some steps ask for, to be worked on together; never blocks."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="carousel-swap", daemon=True)
            self._thread.start()
        self._inbox.put(asked)

    def spares_came(self) -> None:
        """Tell a starved worker that rows were given back."""
        self._space.set()

    def take_error(self) -> BaseException | None:
        """The first unexpected error since this was last asked."""
        error, self._error = self._error, None
        return error

    def stop(self, timeout: float) -> bool:
        """Cancel what is queued, end what is in hand, and join; False when it is still blocked."""
        self._stopping.set()
        self._space.set()
        self._inbox.put(None)
        if self._thread is None:
            return True
        self._thread.join(timeout)
        return not self._thread.is_alive()

    def _run(self) -> None:
        ahead: Swap | None = None
        while True:
            request = self._next(wait=ahead is None)
            # Choosing the next chunk first starts its reading ahead while this one is copied.
            chosen = None if request is None else self._choose(request)
            if ahead is not None:
                self._fill(ahead)
                self.finished.put(ahead.sealed(self._slab))
            ahead = chosen
            if ahead is None and self._stopping.is_set():
                return

    def _next(self, *, wait: bool) -> Request | None:
        """The next chunk; None when there is none yet, or, if waiting, when it is time to stop."""
        while not self._backlog:
            try:
                entry = self._inbox.get(block=wait)
            except queue.Empty:
                return None
            if entry is None:
                return None
            if wait:
                time.sleep(_HEAD_START_SECONDS)
            requests = [request for asked in entry if (request := self._picked(asked))]
            if requests:
                self._backlog.extend(Request.joined(requests).pieces(self._chunk))
        return self._backlog.popleft()

    def _picked(self, asked: Asked) -> Request | None:
        try:
            return asked.picked()
        except BaseException as error:  # here and below: a dead thread is one that others wait for
            self._note(error)
        self.finished.put(Sealed.cancelled(asked.size))
        return None

    def _choose(self, request: Request) -> Swap:
        swap = Swap.of(request)
        if not self._gives_up:
            try:
                self.swapper.choose(swap)
            except BaseException as error:
                self._note(error)
                self.swapper.abandon(swap)
        return swap

    def _fill(self, swap: Swap) -> None:
        try:
            rows = self._spares(len(swap.done))
            if rows is None:
                self.swapper.abandon(swap)
            else:
                self.swapper.fill(swap, rows)
        except BaseException as error:
            self._note(error)
            self.swapper.abandon(swap)

    @property
    def _gives_up(self) -> bool:
        return self._stopping.is_set() or self.failures > _MOST_FAILURES

    def _note(self, error: BaseException) -> None:
        self.failures += 1
        self._error = self._error or error

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
