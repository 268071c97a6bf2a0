import threading

import pytest

from carousel.memory.intake import SampleBatch
from carousel.memory.saver import BackgroundSaver


def batches(count):
    return [SampleBatch(None, [number]) for number in range(count)]


def saver_threads():
    return [thread for thread in threading.enumerate() if thread.name == "carousel-save"]


def test_all_batches_are_saved_in_order():
    saved = []
    saver = BackgroundSaver(lambda batch: saved.append(batch.labels[0]))
    saver.start(batches(20))
    saver.wait()
    saver.start(batches(3))
    saver.wait()
    assert saved == [*range(20), *range(3)]
    assert not saver.busy
    assert not saver_threads()


def test_it_holds_one_batch_at_a_time():
    """Back-pressure: while the tier blocks, nothing more is read from the stream."""
    room, taken = threading.Semaphore(0), []

    def stream():
        for batch in batches(10):
            taken.append(batch)
            yield batch

    saver = BackgroundSaver(lambda batch: room.acquire())
    saver.start(stream())
    for step in range(10):
        assert len(taken) <= step + 1
        room.release()
    saver.wait()
    assert len(taken) == 10


def test_the_caller_goes_on_meanwhile():
    go_on = threading.Event()
    saver = BackgroundSaver(lambda batch: go_on.wait())
    saver.start(batches(2))
    assert saver.busy
    with pytest.raises(TimeoutError, match="still being saved"):
        saver.wait(timeout=0.02)
    go_on.set()
    saver.wait()


@pytest.mark.parametrize("kind", [ValueError, SystemExit])
@pytest.mark.parametrize("where", ["save", "stream"])
def test_an_error_surfaces_at_wait_once(where, kind):
    def stream():
        yield from batches(2)
        if where == "stream":
            raise kind("bad stream")

    def save(batch):
        if where == "save":
            raise kind("bad save")

    saver = BackgroundSaver(save)
    saver.start(stream())
    with pytest.raises(kind, match=f"bad {where}"):
        saver.wait()
    saver.wait()
    saver.start(batches(0))
    saver.wait()
