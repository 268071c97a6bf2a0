"""A full disk and a full map: a typed error, old data intact, and saving goes on after eviction.

The disk is a small tmpfs in a namespace of its own; without the right to make one this is skipped.
"""

import pytest

SETUP = """
import numpy as np, os, sys
from carousel.errors import TierFullError, StorageError
from carousel.storage import LMDBTier
from carousel.storage.record import FieldSpec, RecordBatch
LAYOUT = (FieldSpec("x", "uint8", (3072,)),)
disk = sys.argv[1]
def batch(start, count):
    ids = np.arange(start, start + count)
    x = np.random.default_rng(start).integers(0, 256, (count, 3072), np.uint8)
    return RecordBatch(ids, ids % 5, ids * 0, LAYOUT, {"x": x})
def check(tier):
    entries = tier.entries()
    out = {"x": np.zeros((len(entries), 3072), np.uint8)}
    status = tier.get_into(entries.ids, out, np.arange(len(entries)))
    assert not status.any(), status
    for i, id_ in enumerate(entries.ids.tolist()):
        start = id_ // 64 * 64
        assert np.array_equal(out["x"][i], batch(start, 64).fields["x"][id_ - start])
    return len(entries)
def fill_disk(tier):
    for start in range(0, 64 * 1000, 64):
        try:
            tier.put_many(batch(start, 64))
        except TierFullError:
            return start
    raise AssertionError("the disk never filled")
"""

CASES = {
    "eviction_makes_room": """
tier = LMDBTier(disk + "/db", durability=mode, sync=True)
start = fill_disk(tier)
before = check(tier)
assert before >= 1000, before
size = os.stat(disk + "/db/data.mdb").st_size
for start in range(start + 64, start + 64 * 30, 64):
    tier.put_many(batch(start, 64))
assert tier.contains(np.arange(start, start + 64)).any()
assert tier.stats().evicted > 0
assert check(tier) > before // 2
assert os.stat(disk + "/db/data.mdb").st_size <= size + (1 << 20)
assert tier.verify().ok
tier.close()
tier = LMDBTier(disk + "/db", sync=True)
check(tier)
tier.close()
""",
    "deleting_makes_room": """
tier = LMDBTier(disk + "/db", durability=mode, sync=True, eviction="reject")
start = fill_disk(tier)
before = check(tier)
assert tier.delete_many(np.arange(0, 600)) == 600
tier.put_many(batch(start + 64, 64))
tier.put_many(batch(start + 128, 64))
assert tier.contains(np.arange(start + 64, start + 192)).all()
assert check(tier) == before - 600 + 128
tier.close()
""",
    "room_on_the_disk_again": """
ballast = disk + "/ballast"
with open(ballast, "wb") as file:
    file.write(bytes(10 << 20))
tier = LMDBTier(disk + "/db", durability=mode, sync=True)
start = fill_disk(tier)
before = check(tier)
os.unlink(ballast)
for start in range(start + 64, start + 64 * 20, 64):
    tier.put_many(batch(start, 64))
assert tier.stats().evicted == 0
assert check(tier) == before + 64 * 19
tier.close()
""",
    "the_writer_thread_says_so": """
tier = LMDBTier(disk + "/db", durability=mode)
error = None
for start in range(0, 64 * 1000, 64):
    try:
        tier.put_many(batch(start, 64))
    except TierFullError as caught:
        error = caught
        break
assert error is not None and "full" in str(error)
try:
    tier.flush()
except TierFullError:
    pass
tier.put_many(batch(1 << 20, 64))
tier.flush()
check(tier)
tier.close()
""",
    "preallocated_never_fills": """
tier = LMDBTier(disk + "/db", durability=mode, sync=True, budget="4MiB", preallocate=True)
with open(disk + "/ballast", "wb") as file:
    try:
        while True:
            file.write(bytes(1 << 16))
            file.flush()
    except OSError:
        pass
for start in range(0, 64 * 100, 64):
    tier.put_many(batch(start, 64))
assert check(tier) > 500
assert tier.verify().ok
""",
    "a_store_opens_on_a_full_disk": """
tier = LMDBTier(disk + "/db", durability="durable", sync=True)
for start in range(0, 64 * 20, 64):
    tier.put_many(batch(start, 64))
tier.close()
try:
    with open(disk + "/ballast", "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))
except OSError:
    pass
tier = LMDBTier(disk + "/db", durability="bounded", sync=True)
assert check(tier) == 64 * 20
try:
    tier.put_many(batch(1 << 20, 64))
except TierFullError:
    pass
tier.put_many(batch(1 << 21, 64))
check(tier)
tier.close()
""",
    "no_room_to_begin_with": """
try:
    with open(disk + "/ballast", "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))
except OSError:
    pass
try:
    LMDBTier(disk + "/db", durability=mode)
    raise AssertionError("opened on a full disk")
except TierFullError:
    pass
""",
}


@pytest.mark.parametrize("mode", ["bounded", "process"])
@pytest.mark.parametrize("case", CASES)
def test_a_full_disk(small_disk, case, mode):
    size = "16m" if case == "room_on_the_disk_again" else "8m"
    small_disk(f"{SETUP}\nmode = {mode!r}\n{CASES[case]}", size)
