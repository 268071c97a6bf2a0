"""What else may lie at a storage path: a typed error that says what to do, and never a crash.

Each case runs in a process of its own, so that a SIGBUS would fail the case and not the suite.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import lmdb
import numpy as np
import pytest

from carousel.errors import BadInputError, UncleanStorageError
from carousel.storage import LMDBTier
from carousel.storage.owner import refuse_unclean
from carousel.storage.record import FieldSpec, RecordBatch

LAYOUT = (FieldSpec("x", "uint8", (3072,)),)

OPEN_AND_READ = """
import sys
import numpy as np
from carousel.errors import CarouselError
from carousel.storage import LMDBTier
try:
    with LMDBTier(sys.argv[1], **eval(sys.argv[2])) as tier:
        ids = tier.entries().ids
        out = {"x": np.zeros((len(ids), 3072), np.uint8)}
        status = tier.get_into(ids, out, np.arange(len(ids)))
        print("read", int((status == 0).sum()), "of", len(ids))
except CarouselError as error:
    print(type(error).__name__, str(error))
"""


def batch(ids):
    ids = np.asarray(ids, np.int64)
    x = np.random.default_rng(0).integers(0, 256, (len(ids), 3072), np.uint8)
    return RecordBatch(ids, ids % 5, ids * 0, LAYOUT, {"x": x})


def attempt(path, **options):
    """What opening and reading everything comes to, in a child that must end by itself."""
    child = subprocess.run(
        [sys.executable, "-c", OPEN_AND_READ, str(path), repr(options)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert child.returncode == 0, f"ended with {child.returncode}: {child.stderr}"
    return child.stdout.strip()


@pytest.fixture
def store(tmp_path):
    """A folder with 200 records, closed."""
    path = tmp_path / "db"
    with LMDBTier(path, durability="process") as tier:
        tier.put_many(batch(range(200)))
    return path


def used_bytes(data):
    env = lmdb.open(str(data.parent), readonly=True, lock=False)
    used = (env.info()["last_pgno"] + 1) * 4096
    env.close()
    return used


def test_the_untouched_store_reads(store):
    assert attempt(store) == "read 200 of 200"
    assert attempt(store, readonly=True) == "read 200 of 200"


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.3, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("readonly", [False, True])
def test_a_truncated_file(store, share, readonly):
    data = store / "data.mdb"
    os.truncate(data, int(used_bytes(data) * share))
    outcome = attempt(store, readonly=readonly)
    assert outcome.startswith("StorageCorruptedError")
    assert "start anew with another path" in outcome


def test_every_truncation_at_the_end_is_an_error_and_never_a_crash(store):
    data = store / "data.mdb"
    os.truncate(data, used_bytes(data) - 1)
    assert attempt(store).startswith("StorageCorruptedError")


@pytest.mark.parametrize("damage", ["first", "second", "both", "all", "noise"])
@pytest.mark.parametrize("ours", [True, False])
def test_damaged_meta_pages(store, damage, ours):
    data = store / "data.mdb"
    raw = bytearray(data.read_bytes())
    ranges = {
        "first": (0, 4096),
        "second": (4096, 8192),
        "both": (0, 8192),
        "all": (0, len(raw)),
        "noise": (0, len(raw)),
    }
    start, end = ranges[damage]
    raw[start:end] = os.urandom(end - start) if damage == "noise" else bytes(end - start)
    data.write_bytes(raw)
    if not ours:
        (store / "carousel.json").unlink()
    expected = "StorageCorruptedError" if ours else "ForeignStorageError"
    assert attempt(store).startswith(expected)


def test_fields_of_the_meta_pages_at_random(store):
    """Whatever a meta page says, the outcome is a reading or a typed error."""
    data = store / "data.mdb"
    clean = data.read_bytes()
    rng = np.random.default_rng(5)
    for _ in range(6):
        raw = bytearray(clean)
        for page in (0, 4096):
            at = page + int(rng.integers(16, 152))
            raw[at] ^= int(rng.integers(1, 256))
        data.write_bytes(raw)
        attempt(store)


def test_a_zero_length_file(store, tmp_path):
    os.truncate(store / "data.mdb", 0)
    assert attempt(store).startswith("StorageCorruptedError")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "data.mdb").touch()
    assert attempt(tmp_path / "other").startswith("ForeignStorageError")


def test_a_missing_data_file(store):
    (store / "data.mdb").unlink()
    assert attempt(store).startswith("StorageCorruptedError")


def test_a_missing_or_unreadable_marker_is_made_anew(store):
    (store / "carousel.json").write_text("not json")
    assert attempt(store) == "read 200 of 200"
    (store / "carousel.json").unlink()
    assert attempt(store) == "read 200 of 200"
    assert json.loads((store / "carousel.json").read_text())["format"] == 1


def test_a_database_of_someone_else(tmp_path):
    for name, databases in (("plain", 0), ("named", 4)):
        env = lmdb.open(str(tmp_path / name), max_dbs=databases, map_size=1 << 20)
        database = env.open_db(b"meta") if databases else None
        with env.begin(write=True, db=database) as txn:
            txn.put(b"key", b"value")
        env.close()
        assert attempt(tmp_path / name).startswith("ForeignStorageError")
        env = lmdb.open(str(tmp_path / name), max_dbs=databases)
        with env.begin(db=env.open_db(b"meta") if databases else None) as txn:
            assert txn.get(b"key") == b"value"
        env.close()


def test_a_database_of_another_engine_or_a_newer_version(tmp_path, store):
    env = lmdb.open(str(tmp_path / "newer"), map_size=1 << 20, lib_version=1)
    env.close()
    outcome = attempt(tmp_path / "newer")
    assert outcome.startswith(("ForeignStorageError", "StorageCorruptedError"))
    env = lmdb.open(str(store), max_dbs=4, map_size=1 << 22)
    with env.begin(write=True, db=env.open_db(b"meta")) as txn:
        txn.put(b"carousel", b'{"format": 99, "uuid": "x"}')
    env.close()
    outcome = attempt(store)
    assert outcome.startswith("ForeignStorageError")
    assert "99" in outcome


def test_a_path_that_is_a_file_or_leads_through_one(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    for path in (tmp_path / "file", tmp_path / "file" / "below" / "it"):
        with pytest.raises(BadInputError, match="through a file"):
            LMDBTier(path)
    assert (tmp_path / "file").read_text() == "not a folder"


def test_missing_parents_are_made(tmp_path):
    assert attempt(tmp_path / "a" / "b" / "c") == "read 0 of 0"


@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs /proc")
def test_a_path_that_cannot_be_written():
    with pytest.raises(BadInputError, match="cannot be written"):
        LMDBTier("/proc/self/carousel-storage")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission(store):
    store.chmod(0o500)
    try:
        with pytest.raises(BadInputError, match="read-only"):
            LMDBTier(store)
    finally:
        store.chmod(0o700)


@pytest.mark.parametrize(
    ("durability", "boot", "clean", "refused"),
    [
        ("durable", "same", False, False),
        ("durable", "other", False, False),
        ("bounded", "other", False, False),
        ("process", "same", False, False),
        ("process", "other", False, True),
        ("process", "other", True, False),
        ("ephemeral", "same", False, True),
        ("ephemeral", "other", False, True),
        ("ephemeral", "other", True, False),
    ],
)
def test_what_an_unsafe_mode_left_unclosed_is_refused(store, durability, boot, clean, refused):
    marker = json.loads((store / "carousel.json").read_text())
    marker |= {"durability": durability, "clean": clean}
    if boot == "other":
        marker["boot"] = "another boot"
    (store / "carousel.json").write_text(json.dumps(marker))
    if not refused:
        with LMDBTier(store) as tier:
            assert tier.verify().checked == 200
        return
    for readonly in (False, True):
        with pytest.raises(UncleanStorageError, match="start anew with another path"):
            LMDBTier(store, readonly=readonly)


@pytest.mark.parametrize("durability", ["process", "ephemeral"])
def test_an_unsafe_mode_is_marked_while_open_and_cleared_by_closing(tmp_path, durability):
    tier = LMDBTier(tmp_path / "db", durability=durability)
    marker = tmp_path / "db" / "carousel.json"
    assert json.loads(marker.read_text())["clean"] is False
    tier.put_many(batch(range(10)))
    tier.close()
    assert json.loads(marker.read_text())["clean"] is True
    with LMDBTier(tmp_path / "db", durability="durable") as tier:
        assert len(tier.entries()) == 10


def test_a_marker_of_a_mode_that_does_not_exist_yet(store):
    marker = json.loads((store / "carousel.json").read_text()) | {"colour": "red"}
    (store / "carousel.json").write_text(json.dumps(marker))
    assert attempt(store) == "read 200 of 200"


def test_the_refusal_names_the_mode(tmp_path):
    with LMDBTier(tmp_path / "db", durability="ephemeral"):
        from carousel.storage.owner import read_marker

        marker = read_marker(tmp_path / "db")
    assert marker is not None
    with pytest.raises(UncleanStorageError, match="ephemeral"):
        refuse_unclean(tmp_path / "db", marker)
