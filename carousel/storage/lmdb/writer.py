"""A thread that commits what others queue, in groups, from a bounded queue."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from carousel.errors import StorageClosedError
from carousel.storage.lmdb.problems import raise_all

__all__ = ["GroupWriter", "Piece"]


class Piece(Protocol):
    """Something to write; its size decides how much of it is queued and grouped."""

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps in RAM."""
        ...

    def __len__(self) -> int:
        """Number of records."""
        ...


P = TypeVar("P", bound=Piece)


@dataclass(frozen=True, slots=True)
class WriterLimits:
    """Bounds of the queue and of one commit.

    Args:
        queue_bytes: bytes that may wait; one piece larger than that waits alone.
        group_bytes: bytes of one commit, unless a single piece has more.
        group_records: records of one commit, likewise.
    """

    queue_bytes: int = 4 << 20
    group_bytes: int = 1 << 20
    group_records: int = 256


class GroupWriter(Generic[P]):
    """Commits pieces in the order they came, several to a group, in a thread of its own.

    The thread starts with the first piece. An error of `commit` is kept and raised by the next
    `submit`, `flush` or `close`; the writer goes on with the next group, whatever it was.

    Args:
        commit: writes one group; called from the writer's thread only.
        limits: bounds of the queue and of a group.
        name: of the thread.
    """

    def __init__(
        self,
        commit: Callable[[Sequence[P]], None],
        *,
        limits: WriterLimits | None = None,
        name: str = "carousel-writer",
    ) -> None:
        self._commit = commit
        self._limits = limits or WriterLimits()
        self._name = name
        self._changed = threading.Condition()
        self._queue: deque[P] = deque()
        self._queued_bytes = 0
        self._busy_bytes = 0
        self._submitted = 0
        self._finished = 0
        self._closing = False
        self._errors: list[BaseException] = []
        self._thread: threading.Thread | None = None
        self.stall_seconds = 0.0

    @property
    def queued_bytes(self) -> int:
        """Bytes that wait or are being committed."""
        with self._changed:
            return self._queued_bytes + self._busy_bytes

    def submit(self, piece: P) -> None:
        """Queue a piece, waiting while the queue is full; the wait counts as `stall_seconds`.

        Raises:
            StorageClosedError: the writer was closed.
            Exception: what an earlier commit met; this piece is queued all the same.
        """
        with self._changed:
            self._wait_for_room(piece.nbytes)
            if self._closing:
                raise StorageClosedError("the storage was closed while a save waited")
            self._queue.append(piece)
            self._queued_bytes += piece.nbytes
            self._submitted += 1
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
                self._thread.start()
            self._changed.notify_all()
            self._raise_errors()

    def drain(self, timeout: float | None = None) -> None:
        """Wait until everything that was queued before this call is committed or has failed.

        Raises:
            TimeoutError: not done within `timeout` seconds.
        """
        with self._changed:
            target = self._submitted
            if not self._changed.wait_for(lambda: self._finished >= target, timeout):
                raise TimeoutError(f"saves were not committed within {timeout} seconds")

    def flush(self, timeout: float | None = None) -> None:
        """`drain`, then raise what the commits met since the last time."""
        self.drain(timeout)
        with self._changed:
            self._raise_errors()

    def close(self) -> None:
        """Commit what is queued, stop the thread, raise what was met; again is fine."""
        with self._changed:
            self._closing = True
            self._changed.notify_all()
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        with self._changed:
            self._raise_errors()

    def _run(self) -> None:
        while group := self._next_group():
            error: BaseException | None = None
            try:
                self._commit(group)
            except BaseException as caught:  # a dead thread would leave everyone waiting
                error = caught
            with self._changed:
                self._busy_bytes = 0
                self._finished += len(group)
                if error is not None:
                    self._keep(error)
                self._changed.notify_all()

    def _next_group(self) -> list[P]:
        with self._changed:
            self._changed.wait_for(lambda: self._queue or self._closing)
            group: list[P] = []
            records = size = 0
            while self._queue and (not group or self._fits(records, size, self._queue[0])):
                piece = self._queue.popleft()
                group.append(piece)
                records += len(piece)
                size += piece.nbytes
            self._queued_bytes -= size
            self._busy_bytes = size
            return group

    def _fits(self, records: int, size: int, piece: P) -> bool:
        limits = self._limits
        return (
            records + len(piece) <= limits.group_records
            and size + piece.nbytes <= limits.group_bytes
        )

    def _wait_for_room(self, nbytes: int) -> None:
        def room() -> bool:
            waiting = self._queued_bytes + self._busy_bytes
            return waiting == 0 or waiting + nbytes <= self._limits.queue_bytes or self._closing

        if not room():
            start = time.perf_counter()
            self._changed.wait_for(room)
            self.stall_seconds += time.perf_counter() - start

    def _keep(self, error: BaseException) -> None:
        if len(self._errors) < _KEPT_ERRORS:
            self._errors.append(error)

    def _raise_errors(self) -> None:
        errors, self._errors = self._errors, []
        raise_all(errors)


_KEPT_ERRORS = 16
