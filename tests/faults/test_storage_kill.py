"""kill -9 at random moments: nothing acknowledged is lost, and every record passes its checksum.

The children import neither torch nor Avalanche, so that many of them fit into a minute.
"""

import random
import subprocess
import sys
import threading

import numpy as np
import pytest

from carousel.errors import UncleanStorageError
from carousel.storage import LMDBTier
from carousel.storage.tier import ReadStatus

SAVE = """
import os, sys
import numpy as np
from carousel.storage import LMDBTier
from carousel.storage.record import FieldSpec, RecordBatch
path, mode, first, budget = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
layout = (FieldSpec("x", "uint8", (600, 8)),)
tier = LMDBTier(path, durability=mode, budget=budget or None, eviction="fifo")
rng = np.random.default_rng(first)
start = max(first, tier.high_water)
while True:
    count = int(rng.integers(1, 120))
    ids = np.arange(start, start + count)
    x = np.tile(ids.astype("<i8").view(np.uint8).reshape(count, 1, 8), (1, 600, 1))
    tier.put_many(RecordBatch(ids, ids % 7, ids % 3, layout, {"x": x}))
    if rng.random() < 0.3:
        stored = tier.entries().ids
        tier.delete_many(rng.choice(stored, min(3, len(stored))))
    tier.flush()
    os.write(1, b"%d\\n" % (start + count))
    start += count
"""


def kill_at_a_random_moment(path, mode, first, budget, moments):
    """Let a child save, kill it, and return the id after the last one it acknowledged."""
    child = subprocess.Popen(
        [sys.executable, "-c", SAVE, str(path), mode, str(first), budget], stdout=subprocess.PIPE
    )
    lines = moments.randint(0, 6)
    acknowledged = b""
    for _ in range(lines):
        acknowledged = child.stdout.readline() or acknowledged
    timer = threading.Timer(
        moments.uniform(0, 0.02) if lines else moments.uniform(0, 0.4), child.kill
    )
    timer.start()
    rest = child.stdout.read().split(b"\n")
    timer.join()
    child.wait()
    child.stdout.close()
    # The last piece may be half a line.
    complete = [line for line in rest[:-1] if line]
    last = complete[-1] if complete else acknowledged
    return int(last or first)


@pytest.mark.parametrize(
    ("mode", "budget", "kills"),
    [("durable", "", 10), ("bounded", "", 12), ("process", "", 12), ("process", "1MiB", 16)],
)
def test_nothing_acknowledged_is_lost(tmp_path, mode, budget, kills):
    moments = random.Random(f"{mode}{budget}")
    path = tmp_path / "db"
    end = 0
    for _ in range(kills):
        end = max(end, kill_at_a_random_moment(path, mode, end, budget, moments))
        with LMDBTier(path, durability=mode, budget=budget or None, eviction="fifo") as tier:
            entries = tier.entries()
            out = {"x": np.zeros((len(entries), 600, 8), np.uint8)}
            status = tier.get_into(entries.ids, out, np.arange(len(entries)))
            assert (status == ReadStatus.OK).all()
            assert (out["x"].reshape(len(entries), -1).view("<i8") == entries.ids[:, None]).all()
            assert np.array_equal(entries.labels, entries.ids % 7)
            assert tier.quarantined() == {}
            assert tier.high_water >= end
            if not budget:
                gone = tier._store.ledger._tombstones.contains(np.arange(end))
                kept = np.flatnonzero(~gone)
                assert tier.contains(kept).all()
            end = tier.high_water
            assert tier.verify().ok
    assert end > 10 * kills


def test_an_ephemeral_store_is_refused_after_a_kill(tmp_path):
    moments = random.Random(1)
    path = tmp_path / "db"
    while kill_at_a_random_moment(path, "ephemeral", 0, "", moments) == 0:
        if (path / "carousel.json").exists():
            break
    with pytest.raises(UncleanStorageError, match="start anew with another path"):
        LMDBTier(path, durability="ephemeral")


READ_ON = """
import sys, time
from carousel.storage import LMDBTier
tier = LMDBTier(sys.argv[1], readonly=True)
with tier._store.env.read() as txn:
    print("open", flush=True)
    time.sleep(3600)
"""


def test_a_killed_reader_does_not_hold_pages_for_ever(tmp_path):
    with LMDBTier(tmp_path / "db", durability="process"):
        pass
    reader = subprocess.Popen(
        [sys.executable, "-c", READ_ON, str(tmp_path / "db")], stdout=subprocess.PIPE
    )
    assert reader.stdout.readline() == b"open\n"
    reader.kill()
    reader.wait()
    reader.stdout.close()
    with LMDBTier(tmp_path / "db", durability="process") as tier:
        assert str(reader.pid) not in tier._store.env._env.readers()


ENDINGS = {
    "without_close": "",
    "by_an_error": "raise RuntimeError('ended')",
    "by_sys_exit": "sys.exit(3)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_an_interpreter_that_ends_commits_what_was_queued(tmp_path, ending):
    code = SAVE.replace("while True:", "for _ in range(5):").replace("tier.flush()", "pass")
    code += f"\n{ENDINGS[ending]}\n"
    child = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "db"), "process", "0", ""],
        check=False,
        capture_output=True,
        timeout=60,
    )
    saved = int(child.stdout.split()[-1])
    with LMDBTier(tmp_path / "db", durability="process", eviction="fifo") as tier:
        gone = tier._store.ledger._tombstones.contains(np.arange(saved))
        assert len(tier.entries()) == saved - gone.sum()
    assert not (tmp_path / "db" / "owner.lock").exists()
