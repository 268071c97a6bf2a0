"""One owner a folder: a second one is refused at once with the owner's pid, readers are let in."""

import os
import signal
import subprocess
import sys
import threading

import numpy as np
import pytest

from carousel.errors import StorageLockedError
from carousel.storage import LMDBTier
from carousel.storage.owner import OwnerLock
from carousel.storage.record import FieldSpec, RecordBatch

LAYOUT = (FieldSpec("x", "uint8", (3072,)),)

OWN = """
import sys
import numpy as np
from carousel.storage import LMDBTier
from carousel.storage.record import FieldSpec, RecordBatch
tier = LMDBTier(sys.argv[1], durability="process")
def put(start, count):
    ids = np.arange(start, start + count)
    x = np.full((count, 3072), start % 251, np.uint8)
    tier.put_many(RecordBatch(ids, ids, ids, (FieldSpec("x", "uint8", (3072,)),), {"x": x}))
    tier.flush()
put(0, 10)
print("ready", flush=True)
for line in sys.stdin:
    start, count = map(int, line.split())
    put(start, count)
    print("done", flush=True)
tier.close()
"""


@pytest.fixture
def owner(tmp_path):
    """A process that owns the folder and saves on request."""
    child = subprocess.Popen(
        [sys.executable, "-c", OWN, str(tmp_path / "db")],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdout.readline() == "ready\n"
    yield child
    child.kill()
    child.wait()
    child.stdin.close()
    child.stdout.close()


def ask(owner, start, count):
    owner.stdin.write(f"{start} {count}\n")
    owner.stdin.flush()
    assert owner.stdout.readline() == "done\n"


def test_a_second_owner_is_refused_without_waiting_and_told_the_pid(owner, tmp_path):
    refused = threading.Event()
    errors = []

    def attempt():
        try:
            LMDBTier(tmp_path / "db")
        except StorageLockedError as error:
            errors.append(error)
        refused.set()

    thread = threading.Thread(target=attempt)
    thread.start()
    assert refused.wait(20), "opening waits for the owner"
    thread.join()
    assert errors[0].owner_pid == owner.pid
    assert str(owner.pid) in str(errors[0])
    ask(owner, 100, 10)


def test_readers_see_what_the_owner_commits_also_when_its_map_grows(owner, tmp_path):
    with LMDBTier(tmp_path / "db", readonly=True) as reader:
        assert len(reader.entries()) == 10
        ask(owner, 1000, 500)
        out = {"x": np.zeros((20, 3072), np.uint8)}
        ids = np.r_[np.arange(10), np.arange(1000, 1010)]
        assert not reader.get_into(ids, out, np.arange(20)).any()
        assert (out["x"][10:] == 1000 % 251).all()
    with LMDBTier(tmp_path / "db", readonly=True) as reader:
        assert len(reader.entries()) == 510


def test_the_lock_of_a_killed_owner_is_no_obstacle(owner, tmp_path):
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    assert (tmp_path / "db" / "owner.lock").exists()
    with LMDBTier(tmp_path / "db", durability="process") as tier:
        assert len(tier.entries()) == 10


def test_a_reader_of_a_folder_without_owner_needs_no_lock(tmp_path):
    with LMDBTier(tmp_path / "db"):
        pass
    with LMDBTier(tmp_path / "db", readonly=True):
        assert not (tmp_path / "db" / "owner.lock").exists()


def test_closing_removes_the_lock_file(tmp_path):
    with LMDBTier(tmp_path / "db"):
        assert (tmp_path / "db" / "owner.lock").read_text().split()[0] == str(os.getpid())
    assert not (tmp_path / "db" / "owner.lock").exists()


def test_a_lock_file_that_is_removed_by_a_closing_owner_is_made_anew(tmp_path):
    """Many processes take and give back the lock; never two have it at once."""
    code = (
        "import sys, os\n"
        "from pathlib import Path\n"
        "from carousel.errors import StorageLockedError\n"
        "from carousel.storage.owner import OwnerLock\n"
        "folder = Path(sys.argv[1])\n"
        "for _ in range(300):\n"
        "    try:\n"
        "        lock = OwnerLock(folder)\n"
        "    except StorageLockedError:\n"
        "        continue\n"
        "    inside = os.open(folder / 'inside', os.O_CREAT | os.O_EXCL)\n"
        "    os.close(inside)\n"
        "    os.unlink(folder / 'inside')\n"
        "    lock.release()\n"
    )
    children = [subprocess.Popen([sys.executable, "-c", code, str(tmp_path)]) for _ in range(3)]
    assert [child.wait(timeout=60) for child in children] == [0, 0, 0]


def test_the_lock_file_may_hold_anything(tmp_path):
    (tmp_path / "owner.lock").write_bytes(b"\xff\xfe nonsense" * 100)
    lock = OwnerLock(tmp_path)
    assert (tmp_path / "owner.lock").read_text().startswith(f"{os.getpid()} ")
    lock.release()


def test_saves_of_the_owner_are_intact_after_reading_beside_it(owner, tmp_path):
    reader = LMDBTier(tmp_path / "db", readonly=True)
    for start in range(1000, 3000, 500):
        ask(owner, start, 200)
        reader.get_many(np.arange(10))
    reader.close()
    owner.stdin.close()
    assert owner.wait(timeout=30) == 0
    with LMDBTier(tmp_path / "db") as tier:
        assert tier.verify().ok
        ids = np.array([5000], np.int64)
        x = np.zeros((1, 3072), np.uint8)
        tier.put_many(RecordBatch(ids, ids, ids, LAYOUT, {"x": x}))
        tier.flush()
        assert len(tier.entries()) == 10 + 4 * 200 + 1
