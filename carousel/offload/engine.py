"""Threads that read chunks ahead of the kernel and write them behind it.

A buffer of the ring is free, being read, ready, with the caller, waiting to be written, or being
written; then it is free again. Jobs are read in order, and a job takes its buffer when it is its
turn, so the buffers that are out always hold the chunks that the caller asks for first. There is
one writer and it works in order: whatever was given after a commit is written after it, which is
what keeps the last recovery point whole.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from carousel.errors import (
    CarouselError,
    StorageClosedError,
    StorageCorruptedError,
    WorkerError,
)
from carousel.offload.places import Committed, Places
from carousel.offload.record import RecordLayout
from carousel.offload.ring import Ring
from carousel.offload.states_file import StatesFile

__all__ = ["Engine", "Visit"]


@dataclass(frozen=True, slots=True)
class Visit:
    """A chunk that passes through the ring.

    Args:
        chunk: its number.
        load: read its record; else the buffer's content does not matter.
    """

    chunk: int
    load: bool


@dataclass(frozen=True, slots=True)
class _Write:
    chunk: int
    buffer: int
    step: int


@dataclass(frozen=True, slots=True)
class _Publish:
    number: int
    job: Callable[[Committed], None]


class Engine:
    """Readers, a writer and the ring between them.

    Args:
        file: of the records.
        places: of the records in it.
        layouts: of the chunks.
        plan: digest of the plan.
        ring: the buffers.
        buffers: how many, at least one more than there are threads.
        readers: threads that read; one, where reads go through the page cache, whose read-ahead
            two interleaved readers break.

    Attributes:
        read_stall, commit_stall: seconds that the caller waited for a chunk, and for a commit.
        given_bytes: that are in the file, or on their way to it.
    """

    def __init__(
        self,
        file: StatesFile,
        places: Places,
        layouts: Sequence[RecordLayout],
        plan: str,
        ring: Ring,
        *,
        buffers: int,
        readers: int,
    ) -> None:
        self._file, self._places, self._layouts, self._plan = file, places, layouts, plan
        self._ring = ring
        self._turn = threading.Condition()
        self._free = deque(range(buffers))
        self._to_read: deque[Visit] = deque()
        self._planned: deque[Visit] = deque()
        self._ready: dict[int, int] = {}
        self._round = 0
        self._jobs: deque[_Write | _Publish] = deque()
        self._pending: dict[int, int] = {}
        self._busy = 0
        self._asked = self._published = 0
        self._failure: CarouselError | None = None
        self._closed = False
        self.read_stall = self.commit_stall = 0.0
        self.given_bytes = file.written_bytes
        loops = [self._read_loop] * readers + [self._write_loop]
        self._threads = [
            threading.Thread(target=loop, name="carousel-offload", daemon=True) for loop in loops
        ]
        for thread in self._threads:
            thread.start()

    def begin(self, visits: Sequence[Visit]) -> None:
        """Read these chunks in this order, as far as there are buffers.

        What was begun before and not taken goes on if it is the same, else it is dropped.
        """
        with self._turn:
            if list(self._planned) == list(visits):
                return
            self._drop()
            self._planned.extend(visits)
            self._to_read.extend(visits)
            self._turn.notify_all()

    def take(self) -> int:
        """The buffer of the next chunk, once it is there; to be given back by `give`.

        Raises:
            CarouselError: what a thread met; nothing goes on after that.
        """
        with self._turn:
            chunk = self._planned.popleft().chunk
            self.read_stall += self._wait(lambda: chunk in self._ready)
            return self._ready.pop(chunk)

    def give(self, chunk: int, buffer: int, step: int) -> None:
        """Write the buffer's record, seal it as of this step, and free the buffer."""
        with self._turn:
            self._pending[chunk] = self._pending.get(chunk, 0) + 1
            self.given_bytes += self._layouts[chunk].nbytes
            self._jobs.append(_Write(chunk, buffer, step))
            self._turn.notify_all()

    def publish(self, job: Callable[[Committed], None]) -> int:
        """Call `job` when all that was given is in the file; returns a number to wait for.

        Its argument says where the records are; when it returns they are the recovery point.
        """
        with self._turn:
            self._asked += 1
            self._jobs.append(_Publish(self._asked, job))
            self._turn.notify_all()
            return self._asked

    def wait_for(self, number: int) -> None:
        """Wait until this commit is published.

        Raises:
            CarouselError: what a thread met.
        """
        with self._turn:
            self.commit_stall += self._wait(lambda: self._published >= number)

    def drain(self) -> None:
        """Wait until all that was given is written and published.

        Raises:
            CarouselError: what a thread met.
        """
        with self._turn:
            self._wait(lambda: not self._jobs and not self._busy)

    def check(self) -> None:
        """Raise what a thread met."""
        with self._turn:
            self._raise()

    def close(self) -> None:
        """Write what was given, unless something failed, and end the threads."""
        with self._turn:
            self._drop()
            self._closed = True
            self._turn.notify_all()
        for thread in self._threads:
            thread.join()

    def _wait(self, over: Callable[[], bool]) -> float:
        start = time.perf_counter()
        while not over():
            self._raise()
            self._turn.wait()
        self._raise()
        return time.perf_counter() - start

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure
        if self._closed:
            raise StorageClosedError("the optimizer's storage was closed")

    def _drop(self) -> None:
        self._round += 1
        self._to_read.clear()
        self._planned.clear()
        self._free.extend(self._ready.values())
        self._ready.clear()

    def _read_loop(self) -> None:
        while True:
            with self._turn:
                while not self._closed and not self._may_read():
                    self._turn.wait()
                if self._closed:
                    return
                visit, buffer, turn = self._to_read.popleft(), self._free.popleft(), self._round
                self._turn.notify_all()  # the next reader may go on with the next chunk
            problem = self._attempt(lambda v=visit, b=buffer: self._read(v, b))  # type: ignore[misc]
            with self._turn:
                if turn != self._round:  # nobody wants it any more, whole or not
                    self._free.append(buffer)
                elif problem is not None:
                    self._fail(problem)
                else:
                    self._ready[visit.chunk] = buffer
                self._turn.notify_all()

    def _may_read(self) -> bool:
        return bool(self._to_read and self._free and not self._pending.get(self._to_read[0].chunk))

    def _read(self, visit: Visit, buffer: int) -> None:
        place, step = self._places.newest(visit.chunk)
        if not visit.load:
            return
        if place < 0:
            raise StorageCorruptedError(f"chunk {visit.chunk} of the states was never written")
        layout = self._layouts[visit.chunk]
        record = self._ring.record(buffer, layout)
        self._file.read(visit.chunk, place, record, layout.read_from)
        layout.check(record, self._plan, visit.chunk, step, names=layout.needed)

    def _write_loop(self) -> None:
        while True:
            with self._turn:
                while not self._jobs and not self._closed:
                    self._turn.wait()
                if not self._jobs:
                    return
                job, failed = self._jobs.popleft(), self._failure is not None
                self._busy += 1
            problem = None if failed else self._attempt(lambda j=job: self._do(j))  # type: ignore[misc]
            with self._turn:
                self._busy -= 1
                if problem is not None:
                    self._fail(problem)
                self._done(job)
                self._turn.notify_all()

    def _do(self, job: _Write | _Publish) -> None:
        if isinstance(job, _Publish):
            job.job(self._places.now())
            return
        layout = self._layouts[job.chunk]
        record = self._ring.record(job.buffer, layout)
        layout.seal(record, self._plan, job.chunk, job.step)
        self._file.write(job.chunk, self._places.free(job.chunk), record)

    def _done(self, job: _Write | _Publish) -> None:
        if isinstance(job, _Publish):
            if self._failure is None:
                self._places.commit()
                self._published = job.number
            return
        if self._failure is None:
            self._places.written(job.chunk, job.step)
        self._pending[job.chunk] -= 1
        self._free.append(job.buffer)

    def _fail(self, problem: CarouselError) -> None:
        if self._failure is None:
            self._failure = problem

    @staticmethod
    def _attempt(work: Callable[[], None]) -> CarouselError | None:
        try:
            work()
        except CarouselError as error:
            error.add_note("the optimizer cannot go on; resume from its last commit")
            return error
        except Exception as error:
            failure = WorkerError(f"a thread of the optimizer failed: {error!r}")
            failure.__cause__ = error
            return failure
        return None
