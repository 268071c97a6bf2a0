"""Work on a thread of its own, in order, close behind the thread that hands it in."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor

__all__ = ["Behind"]


class Behind:
    """Does what it is handed, in order, at most so much behind.

    After a job that failed no other is done until its error was raised.

    Args:
        limit: no job is taken while the sizes of those that are not done exceed it.

    Example:
        >>> done = []
        >>> behind = Behind(limit=10)
        >>> for number in range(3):
        ...     behind.hand(8, lambda number=number: done.append(number))
        >>> behind.wait()
        >>> behind.close()
        >>> done
        [0, 1, 2]
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="carousel-offload-behind")
        self._jobs: deque[tuple[int, Future[None]]] = deque()
        self._pending = 0
        self._failed = False

    def hand(self, size: int, job: Callable[[], None]) -> None:
        """Have a job done, when there is room for it.

        Args:
            size: of the job, in whatever `limit` counts.
            job: is called on the thread.

        Raises:
            BaseException: what an earlier job raised; this one is not done.
        """
        while self._jobs and (self._pending > self.limit or self._jobs[0][1].done()):
            self._take_first()
        self._jobs.append((size, self._pool.submit(self._do, job)))
        self._pending += size

    def wait(self) -> None:
        """Wait until all that was handed in is done.

        Raises:
            BaseException: what a job raised, the first of them; nothing is under way then either.
        """
        problem: BaseException | None = None
        while self._jobs:
            try:
                self._take_first()
            except BaseException as error:
                problem = problem or error
        self._failed = False
        if problem is not None:
            raise problem

    def close(self) -> None:
        """Do what was handed in and end the thread; calling it again is fine."""
        self._pool.shutdown(wait=True)

    def _take_first(self) -> None:
        size, job = self._jobs[0]
        try:
            job.result()
        finally:
            if job.done():  # an interrupt of the waiting leaves it where it is
                self._jobs.popleft()
                self._pending -= size

    def _do(self, job: Callable[[], None]) -> None:
        if self._failed:
            return
        try:
            job()
        except BaseException:
            self._failed = True
            raise
