"""Chunks come in order, are written behind the caller, and errors stop everything but the past."""

import os
import threading

import numpy as np
import pytest

from carousel.errors import CorruptRecordError, StorageClosedError, StorageIOError, WorkerError
from carousel.offload.engine import Engine, Visit
from carousel.offload.places import Places
from carousel.offload.plan import ParamSpec, make_plan
from carousel.offload.record import RecordLayout, layout_of
from carousel.offload.ring import Ring
from carousel.offload.states_file import StatesFile

CHUNKS = 9


class Bench:
    """An engine on a file, whose chunks hold a number each."""

    def __init__(self, path, buffers=4, readers=2):
        plan = make_plan([ParamSpec((64 * CHUNKS,), "float32")], 64)
        self.layouts = [layout_of(c, masters=True, recoverable=True) for c in plan.chunks]
        sizes = [layout.nbytes for layout in self.layouts]
        self.file = StatesFile(path / "states-1.bin", plan.digest, sizes, create=True)
        self.places = Places(CHUNKS)
        self.ring = Ring(buffers, max(sizes))
        self.engine = Engine(
            self.file,
            self.places,
            self.layouts,
            plan.digest,
            self.ring,
            buffers=buffers,
            readers=readers,
        )

    def sweep(self, step, *, load=True, chunks=range(CHUNKS)):
        """Add 1 to every chunk, which holds its own number at first; returns what was there."""
        found = []
        self.engine.begin([Visit(chunk, load=load) for chunk in chunks])
        for chunk in chunks:
            buffer = self.engine.take()
            fields = self.ring.fields(buffer, self.layouts[chunk])
            if not load:
                fields["m"].fill_(chunk)
                fields["v"].zero_()
            found.append(float(fields["m"][0]))
            assert (fields["m"] == found[-1]).all()
            fields["m"].add_(1)
            self.engine.give(chunk, buffer, step)
        return found

    def close(self):
        self.engine.close()
        self.file.close()


@pytest.fixture(params=[(4, 2), (3, 1), (2, 1)], ids=str)
def bench(request, tmp_path):
    bench = Bench(tmp_path, *request.param)
    yield bench
    bench.close()


def test_every_step_sees_what_the_one_before_left(bench):
    assert bench.sweep(1, load=False) == list(range(CHUNKS))
    for step in range(2, 12):
        found = bench.sweep(step)
        assert found == [chunk + step - 1 for chunk in range(CHUNKS)]
        bench.engine.publish(lambda chunks: None)
    bench.engine.drain()


def test_few_chunks_in_a_large_ring_wait_for_their_own_writes(tmp_path):
    bench = Bench(tmp_path)
    bench.sweep(1, load=False, chunks=[0, 1])
    for step in range(2, 30):
        assert bench.sweep(step, chunks=[0, 1]) == [step - 1, step]
    bench.close()


def test_reading_ahead_is_kept_where_it_is_right_and_dropped_where_not(bench):
    bench.sweep(1, load=False)
    ahead = [Visit(chunk, load=True) for chunk in range(CHUNKS)]
    bench.engine.begin(ahead)
    assert bench.sweep(2)[:3] == [1, 2, 3]
    bench.engine.begin(ahead)
    assert bench.sweep(3, chunks=[4, 5]) == [6, 7]
    assert bench.sweep(4, chunks=[3, 4]) == [5, 7]


def test_a_commit_names_what_was_given_before_it(bench):
    bench.sweep(1, load=False)
    seen = []
    number = bench.engine.publish(seen.append)
    bench.sweep(2, chunks=[0, 3])
    bench.engine.wait_for(number)
    assert seen[0].places == (0,) * CHUNKS
    assert seen[0].steps == (1,) * CHUNKS
    bench.engine.wait_for(bench.engine.publish(seen.append))
    assert seen[1].places == (1, 0, 0, 1, 0, 0, 0, 0, 0)
    assert seen[1].steps == (2, 1, 1, 2, 1, 1, 1, 1, 1)


def test_several_steps_between_commits_leave_the_committed_place_alone(bench):
    bench.sweep(1, load=False)
    bench.engine.wait_for(bench.engine.publish(lambda chunks: None))
    for step in (2, 3, 4):
        bench.sweep(step)
    bench.engine.drain()
    assert all(bench.places.free(chunk) == 1 for chunk in range(CHUNKS))
    assert bench.places.newest(0) == (1, 4)


def test_nothing_is_written_after_a_commit_that_is_not_published_yet(bench):
    bench.sweep(1, load=False)
    bench.engine.drain()
    hold, entered = threading.Event(), threading.Event()

    def publish(_):
        entered.set()
        hold.wait(10)

    bench.engine.publish(publish)
    bench.engine.begin([Visit(0, load=True)])
    bench.engine.give(0, bench.engine.take(), 2)
    assert entered.wait(10)
    before = bench.file.written_bytes
    hold.set()
    bench.engine.drain()
    assert before == sum(layout.nbytes for layout in bench.layouts)
    assert bench.file.written_bytes > before


def test_an_error_of_the_writer_reaches_the_caller_and_no_commit_follows(bench, monkeypatch):
    bench.sweep(1, load=False)
    bench.engine.wait_for(bench.engine.publish(lambda chunks: None))
    published = []

    def fail(*_):
        raise OSError(5, "broken")

    monkeypatch.setattr(os, "pwritev", fail)

    def step():
        bench.sweep(2)
        bench.engine.wait_for(bench.engine.publish(published.append))

    with pytest.raises(StorageIOError):
        step()
    monkeypatch.undo()
    for _ in range(2):
        with pytest.raises(StorageIOError) as caught:
            bench.engine.check()
    assert caught.value.__notes__ == ["the optimizer cannot go on; resume from its last commit"]
    assert not published
    assert bench.places.newest(0)[1] == 1


def test_a_torn_record_reaches_the_caller(bench):
    bench.sweep(1, load=False)
    bench.engine.drain()
    record = np.zeros(bench.layouts[5].nbytes, np.uint8)
    with open(bench.file.path, "r+b") as file:
        file.seek(4096 + 5 * 2 * len(record) + 4096)
        file.write(b"\xff" * 100)
    with pytest.raises(CorruptRecordError, match=r"chunk 5 .* m fails"):
        bench.sweep(2)


def test_a_bug_in_a_commit_is_a_worker_error(bench):
    def fail(_):
        raise ZeroDivisionError

    with pytest.raises(WorkerError, match="ZeroDivisionError"):
        bench.engine.wait_for(bench.engine.publish(fail))


def test_closing_finishes_what_was_given(tmp_path):
    bench, seen = Bench(tmp_path), []
    bench.sweep(1, load=False)
    bench.engine.publish(seen.append)
    bench.engine.begin([Visit(chunk, load=True) for chunk in range(CHUNKS)])
    bench.close()
    assert seen[0].steps == (1,) * CHUNKS
    with pytest.raises(StorageClosedError):
        bench.engine.check()


def test_a_record_is_sealed_while_the_one_before_it_is_written(bench, monkeypatch):
    second, real_seal, real_write = threading.Event(), RecordLayout.seal, os.pwritev
    waited = []

    def seal(layout, record, plan, chunk, step):
        real_seal(layout, record, plan, chunk, step)
        if chunk == 1:
            second.set()

    def write(*args):
        waited.append(second.wait(10))
        return real_write(*args)

    monkeypatch.setattr(RecordLayout, "seal", seal)
    monkeypatch.setattr(os, "pwritev", write)
    bench.sweep(1, load=False, chunks=[0, 1])
    bench.engine.drain()
    assert waited == [True, True]


def test_an_error_in_sealing_is_the_callers_and_nothing_more_is_written(bench, monkeypatch):
    def fail(*_):
        raise ZeroDivisionError

    def step():
        bench.sweep(1, load=False)
        bench.engine.drain()

    monkeypatch.setattr(RecordLayout, "seal", fail)
    with pytest.raises(WorkerError, match="ZeroDivisionError"):
        step()
    assert bench.file.written_bytes == 0
