"""Threads that read chunks ahead of the kernel and write them behind it.

A buffer of the ring is free, being read, ready, with the caller, being sealed, or being written;
then it is free again. Jobs are read in order, and a job takes its buffer when it is its
turn, so the buffers that are out always hold the chunks that the caller asks for first. There is
one writer and it works in order: whatever was given after a commit is written after it, which is
what keeps the last recovery point whole. Another thread computes the checksums of the next record
meanwhile, so the disk does not wait for them.

Everybody waits for one kind of news, and only those are woken whom it concerns: a thread that wakes
up takes the interpreter's lock from the one that works.
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


@dataclass(slots=True, eq=False)
class _Write:
    chunk: int
    buffer: int
    step: int
    sealed: bool = False


@dataclass(frozen=True, slots=True)
class _Publish:
    number: int
    job: Callable[[Committed], None]


class Engine:
    """Readers, a writer with a sealer before it, and the ring between them.

    Args:
        file: of the records.
        places: of the records in it.
        layouts: of the chunks.
        plan: digest of the plan.
        ring: the buffers.
        buffers: how many, at least one more than there are threads that read and write.
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
        self._turn = threading.Lock()
        self._news = [threading.Condition(self._turn) for _ in range(4)]
        self._for_readers, self._for_sealer, self._for_writer, self._for_caller = self._news
        self._free = deque(range(buffers))
        self._to_read: deque[Visit] = deque()
        self._planned: deque[Visit] = deque()
        self._ready: dict[int, int] = {}
        self._round = 0
        self._to_seal: deque[_Write] = deque()
        self._jobs: deque[_Write | _Publish] = deque()
        self._pending: dict[int, int] = {}
        self._busy = 0
        self._asked = self._published = 0
        self._failure: CarouselError | None = None
        self._closed = False
        self.read_stall = self.commit_stall = 0.0
        self.given_bytes = file.written_bytes
        loops = [self._read_loop] * readers + [self._seal_loop, self._write_loop]
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
            self._for_readers.notify()

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
            job = _Write(chunk, buffer, step)
            self._to_seal.append(job)
            self._jobs.append(job)
            self._for_sealer.notify()

    def publish(self, job: Callable[[Committed], None]) -> int:
        """Call `job` when all that was given is in the file; returns a number to wait for.

        Its argument says where the records are; when it returns they are the recovery point.
        """
        with self._turn:
            self._asked += 1
            self._jobs.append(_Publish(self._asked, job))
            self._for_writer.notify()
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
            for news in self._news:
                news.notify_all()
        for thread in self._threads:
            thread.join()

    def _wait(self, over: Callable[[], bool]) -> float:
        start = time.perf_counter()
        while not over():
            self._raise()
            self._for_caller.wait()
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
                    self._for_readers.wait()
                if self._closed:
                    return
                visit, buffer, turn = self._to_read.popleft(), self._free.popleft(), self._round
                if self._may_read():
                    self._for_readers.notify()
            problem = self._attempt(lambda v=visit, b=buffer: self._read(v, b))  # type: ignore[misc]
            with self._turn:
                if turn != self._round:  # nobody wants it any more, whole or not
                    self._free.append(buffer)
                elif problem is not None:
                    self._fail(problem)
                else:
                    self._ready[visit.chunk] = buffer
                    self._for_caller.notify_all()

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

    def _seal_loop(self) -> None:
        while True:
            with self._turn:
                while not self._to_seal and not self._closed:
                    self._for_sealer.wait()
                if not self._to_seal:
                    return
                job, failed = self._to_seal.popleft(), self._failure is not None
            problem = None if failed else self._attempt(lambda j=job: self._seal(j))  # type: ignore[misc]
            with self._turn:
                if problem is not None:
                    self._fail(problem)
                job.sealed = True
                self._for_writer.notify()

    def _seal(self, job: _Write) -> None:
        layout = self._layouts[job.chunk]
        layout.seal(self._ring.record(job.buffer, layout), self._plan, job.chunk, job.step)

    def _write_loop(self) -> None:
        while True:
            with self._turn:
                while not self._may_write() and (self._jobs or not self._closed):
                    self._for_writer.wait()
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
                if self._may_read():
                    self._for_readers.notify()
                if isinstance(job, _Publish) or not self._jobs:
                    self._for_caller.notify_all()

    def _may_write(self) -> bool:
        """Whether the first job can be done: in order, and sealed."""
        if not self._jobs:
            return False
        first = self._jobs[0]
        return isinstance(first, _Publish) or first.sealed

    def _do(self, job: _Write | _Publish) -> None:
        if isinstance(job, _Publish):
            job.job(self._places.now())
            return
        record = self._ring.record(job.buffer, self._layouts[job.chunk])
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
        self._for_caller.notify_all()

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
