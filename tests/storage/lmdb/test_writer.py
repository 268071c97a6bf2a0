"""The writer commits in order, in bounded groups, from a bounded queue, and loses no error."""

import subprocess
import sys
import threading

import pytest

from carousel.errors import StorageClosedError, StorageIOError, TierFullError
from carousel.storage.lmdb.writer import GroupWriter, WriterLimits


class Note:
    def __init__(self, name, nbytes=10, records=1):
        self.name, self.nbytes, self.records = name, nbytes, records

    def __len__(self):
        return self.records


class Recorder:
    """A commit that can be held and told to fail."""

    def __init__(self):
        self.groups = []
        self.gate = threading.Event()
        self.gate.set()
        self.entered = threading.Event()
        self.failures = {}

    def __call__(self, group):
        self.entered.set()
        assert self.gate.wait(30)
        names = [piece.name for piece in group]
        for name in names:
            if name in self.failures:
                raise self.failures.pop(name)
        self.groups.append(names)

    @property
    def names(self):
        return [name for group in self.groups for name in group]


@pytest.fixture
def recorder():
    return Recorder()


def test_pieces_are_committed_in_order_and_close_drains(recorder):
    writer = GroupWriter(recorder)
    for i in range(500):
        writer.submit(Note(i))
    writer.close()
    assert recorder.names == list(range(500))
    writer.close()


def test_no_thread_before_the_first_piece_and_none_after_close(recorder):
    before = threading.active_count()
    writer = GroupWriter(recorder)
    assert threading.active_count() == before
    writer.submit(Note(0))
    writer.close()
    assert threading.active_count() == before


def test_groups_keep_to_records_and_bytes(recorder):
    writer = GroupWriter(recorder, limits=WriterLimits(10_000, 100, 4))
    recorder.gate.clear()
    writer.submit(Note("first"))
    assert recorder.entered.wait(30)
    for name, nbytes, records in [
        ("a", 60, 1),
        ("b", 40, 1),
        ("c", 1, 1),
        ("d", 1, 3),
        ("e", 1, 1),
        ("huge", 500, 9),
        ("f", 1, 1),
    ]:
        writer.submit(Note(name, nbytes, records))
    recorder.gate.set()
    writer.close()
    assert recorder.groups == [["first"], ["a", "b"], ["c", "d"], ["e"], ["huge"], ["f"]]


def test_a_full_queue_blocks_and_the_wait_is_counted(recorder):
    writer = GroupWriter(recorder, limits=WriterLimits(100, 100, 100))
    recorder.gate.clear()
    writer.submit(Note("a", 60))
    writer.submit(Note("b", 40))
    assert writer.queued_bytes == 100
    assert writer.stall_seconds == 0
    done = threading.Event()

    def third():
        writer.submit(Note("c", 1))
        done.set()

    thread = threading.Thread(target=third)
    thread.start()
    assert not done.wait(0.05)
    assert writer.queued_bytes == 100
    recorder.gate.set()
    assert done.wait(30)
    thread.join()
    writer.close()
    assert writer.stall_seconds > 0
    assert recorder.names == ["a", "b", "c"]


def test_one_piece_larger_than_the_queue_waits_alone(recorder):
    writer = GroupWriter(recorder, limits=WriterLimits(100, 100, 100))
    for name in "abc":
        writer.submit(Note(name, 1000))
    writer.close()
    assert recorder.groups == [["a"], ["b"], ["c"]]


def test_an_error_surfaces_once_and_the_writer_goes_on(recorder):
    recorder.failures["bad"] = TierFullError("full")
    writer = GroupWriter(recorder)
    writer.submit(Note("bad"))
    writer.drain()
    with pytest.raises(TierFullError):
        writer.flush()
    writer.flush()
    writer.submit(Note("good"))
    writer.close()
    assert recorder.names == ["good"]


@pytest.mark.parametrize("surface", ["submit", "flush", "close"])
def test_an_error_surfaces_at_the_next_call(recorder, surface):
    recorder.failures["bad"] = StorageIOError("broken")
    writer = GroupWriter(recorder)
    writer.submit(Note("bad"))
    writer.drain()
    calls = {
        "submit": lambda: writer.submit(Note("x")),
        "flush": writer.flush,
        "close": writer.close,
    }
    with pytest.raises(StorageIOError):
        calls[surface]()
    writer.close()
    assert recorder.names == (["x"] if surface == "submit" else [])


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_the_writer_outlives_what_would_end_a_thread(recorder, kind):
    recorder.failures["bad"] = kind("out")
    writer = GroupWriter(recorder)
    writer.submit(Note("bad"))
    with pytest.raises(kind):
        writer.flush(30)
    writer.submit(Note("good"))
    writer.close()
    assert recorder.names == ["good"]


def test_a_full_tier_does_not_hide_a_graver_error(recorder):
    writer = GroupWriter(recorder, limits=WriterLimits(1000, 1, 1))
    recorder.failures |= {0: TierFullError("full"), 1: StorageIOError("broken")}
    recorder.gate.clear()
    for i in range(2):
        writer.submit(Note(i, nbytes=2))
    recorder.gate.set()
    with pytest.raises(StorageIOError) as caught:
        writer.flush()
    assert caught.value.__notes__ == ["and then: TierFullError: full"]
    writer.close()


def test_several_errors_are_raised_as_one_with_notes(recorder):
    writer = GroupWriter(recorder, limits=WriterLimits(1000, 1, 1))
    recorder.gate.clear()
    for i in range(40):
        recorder.failures[i] = StorageIOError(f"broken {i}")
        writer.submit(Note(i, nbytes=2))
    recorder.gate.set()
    with pytest.raises(StorageIOError, match="broken 0") as caught:
        writer.flush()
    assert caught.value.__notes__[0].endswith("broken 1")
    assert len(caught.value.__notes__) == 15
    writer.close()


def test_flush_gives_up_after_its_timeout(recorder):
    writer = GroupWriter(recorder)
    recorder.gate.clear()
    writer.submit(Note("a"))
    with pytest.raises(TimeoutError):
        writer.flush(timeout=0.01)
    recorder.gate.set()
    writer.flush(timeout=30)
    writer.close()


def test_flush_waits_only_for_what_came_before(recorder):
    writer = GroupWriter(recorder)
    stop = threading.Event()

    def feed():
        while not stop.is_set():
            writer.submit(Note("more"))

    thread = threading.Thread(target=feed)
    thread.start()
    for _ in range(20):
        writer.flush(timeout=30)
    stop.set()
    thread.join()
    writer.close()


def test_closing_frees_who_waits(recorder):
    writer = GroupWriter(recorder, limits=WriterLimits(10, 10, 10))
    recorder.gate.clear()
    writer.submit(Note("a"))
    outcome = []

    def late():
        try:
            writer.submit(Note("b"))
        except StorageClosedError as error:
            outcome.append(error)

    waiting = threading.Thread(target=late)
    closing = threading.Thread(target=writer.close)
    waiting.start()
    closing.start()
    waiting.join()
    recorder.gate.set()
    closing.join()
    assert len(outcome) == 1
    assert recorder.names == ["a"]
    with pytest.raises(StorageClosedError):
        writer.submit(Note("c"))


def test_the_interpreter_ends_with_pieces_queued():
    code = (
        "import time\n"
        "from carousel.storage.lmdb.writer import GroupWriter\n"
        "class Note:\n"
        "    nbytes = 1\n"
        "    def __len__(self): return 1\n"
        "GroupWriter(lambda group: time.sleep(3600)).submit(Note())\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)
