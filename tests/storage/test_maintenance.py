import subprocess
import sys

import numpy as np
import pytest

from carousel.errors import BadInputError, StorageCorruptedError, StorageLockedError, TierFullError
from carousel.storage.lmdb.tier import LMDBTier
from carousel.storage.maintenance import compact, forget, kind_of, open_store, verify_store
from carousel.storage.plain.file_tier import FileTier
from carousel.storage.plain.memory_tier import MemoryTier
from carousel.storage.record import FieldSpec, RecordBatch

TIERS = {"lmdb": LMDBTier, "files": FileTier}


def batch(ids, size=3072, labels=None, tasks=None):
    """Samples that say who they are: the bytes of b'<id>;' over and over."""
    ids = np.asarray(ids, np.int64)
    rows = [np.frombuffer((pattern(i) * size)[:size], np.uint8) for i in ids.tolist()]
    return RecordBatch(
        ids,
        ids % 4 if labels is None else labels,
        ids % 2 if tasks is None else tasks,
        (FieldSpec("x", "uint8", (size,)),),
        {"x": np.stack(rows)},
    )


def pattern(id_):
    return b"sample %05d;" % id_


def traces(folder, ids):
    """Which ids have left bytes of their payload anywhere below a folder."""
    content = b"".join(path.read_bytes() for path in folder.rglob("*") if path.is_file())
    return [id_ for id_ in ids if pattern(id_) in content]


def fill(tier, n, size=3072):
    for start in range(0, n, 50):
        tier.put_many(batch(range(start, min(n, start + 50)), size))
    tier.flush()


@pytest.mark.parametrize("kind", TIERS)
def test_verify_finds_a_flipped_byte_by_path(tmp_path, kind):
    folder = tmp_path / "store"
    with TIERS[kind](folder) as tier:
        fill(tier, 120)
    assert kind_of(folder) == kind
    steps = []
    report = verify_store(folder, lambda done, total: steps.append((done, total)))
    assert report.ok
    assert (report.checked, steps[-1]) == (120, (120, 120))
    path = folder / "data.mdb" if kind == "lmdb" else next((folder / "1").glob("77.*"))
    content = bytearray(path.read_bytes())
    content[content.index(pattern(77) * 20) + 100] ^= 1
    path.write_bytes(content)
    report = verify_store(folder)
    assert report.corrupt.keys() == {77}
    with open_store(folder) as tier:
        assert not tier.contains(np.array([77]))[0]
        assert tier.quarantined().keys() == {77}
    assert verify_store(folder).ok


def test_verify_of_lmdb_looks_at_the_tree_too(tmp_path, monkeypatch):
    with LMDBTier(tmp_path / "s") as tier:
        fill(tier, 10)
        monkeypatch.setattr(
            "carousel.storage.lmdb.store.lmdb_verify", lambda path: [f"page 7 of {path} is odd"]
        )
        report = verify_store(tier)
    assert not report.ok
    assert report.problems == [f"page 7 of {tmp_path / 's'} is odd"]


def test_verify_reads_a_store_that_another_process_owns(tmp_path):
    with owned_elsewhere(tmp_path / "s"):
        report = verify_store(tmp_path / "s")
        assert report.ok
        assert report.checked == 3


def test_a_place_without_a_store_is_bad_input(tmp_path):
    for call in (verify_store, compact, open_store):
        with pytest.raises(BadInputError, match="holds no storage"):
            call(tmp_path)
        with pytest.raises(BadInputError, match="is not a folder"):
            call(tmp_path / "nowhere")


@pytest.mark.parametrize("rule", ["fifo", "class-reservoir", "reject"])
def test_a_store_is_cared_for_whatever_its_rule_and_goes_on_as_before(tmp_path, rule):
    with LMDBTier(tmp_path / "s", eviction=rule, budget=60) as tier:
        fill(tier, 60, size=40)
    with open_store(tmp_path / "s") as tier:
        assert forget(tier, labels=[1]) == 15
        with pytest.raises(TierFullError):
            fill(tier, 76, size=40)
    with LMDBTier(tmp_path / "s", eviction=rule, budget=60) as tier:
        fill(tier, 75, size=40)
        assert tier.stats().records == 60


@pytest.mark.parametrize("kind", ["memory", "lmdb", "files"])
def test_forgetting_by_id_class_task_and_all(tmp_path, kind):
    tier = MemoryTier() if kind == "memory" else TIERS[kind](tmp_path / "s")
    fill(tier, 40, size=64)
    steps = []
    assert forget(tier, ids=[0, 1, 99], progress=lambda *step: steps.append(step)) == 2
    assert steps == [(3, 3)]
    assert forget(tier, labels={3}) == 10
    assert set(tier.class_counts()) == {0, 1, 2}
    assert forget(tier, tasks=[0]) == 19
    assert (tier.entries().tasks == 1).all()
    tier.hide_from(0)
    assert forget(tier, everything=True) == 9
    assert len(tier.entries()) == 0
    with pytest.raises(BadInputError, match="nothing to forget"):
        forget(tier)
    tier.close()


@pytest.mark.parametrize("kind", ["memory", "lmdb", "files"])
def test_what_is_still_queued_is_forgotten_too(tmp_path, kind):
    tier = MemoryTier() if kind == "memory" else TIERS[kind](tmp_path / "s")
    for start in range(0, 200, 20):
        tier.put_many(batch(range(start, start + 20), size=64))
    assert forget(tier, labels=[2]) == 50
    tier.flush()
    assert 2 not in tier.class_counts()
    tier.close()


def test_a_damaged_sample_leaves_nothing_when_it_is_forgotten(tmp_path):
    folder = tmp_path / "s"
    with LMDBTier(folder) as tier:
        fill(tier, 30)
    content = bytearray((folder / "data.mdb").read_bytes())
    content[content.index(pattern(7) * 20) + 100] ^= 1
    (folder / "data.mdb").write_bytes(content)
    with LMDBTier(folder) as tier:
        verify_store(tier)
        assert tier.quarantined().keys() == {7}
        forget(tier, ids=[7])
        assert tier.quarantined() == {}
    compact(folder)
    assert traces(folder, [7]) == []


@pytest.mark.parametrize("size", [24, 300, 3072, 9000])
def test_forgotten_bytes_are_gone_after_compaction_and_all_else_is_there(tmp_path, size):
    folder = tmp_path / "store"
    ids = list(range(300))
    with LMDBTier(folder) as tier:
        fill(tier, 300, size)
        tier.put_meta({"schema": b"kept"})
        tier.reserve_ids(700)
        forget(tier, labels=[1])
        forget(tier, ids=range(200, 220))
    gone = [i for i in ids if i % 4 == 1 or 200 <= i < 220]
    # Without this the test could not fail: deleted bytes do stay behind in an LMDB file.
    assert traces(folder, gone)
    steps = []
    report = compact(folder, lambda *step: steps.append(step))
    assert traces(folder, gone) == []
    assert not (folder / "index.bin").exists()
    assert report.after_bytes < report.before_bytes
    assert report.after_bytes == (folder / "data.mdb").stat().st_size
    kept = [i for i in ids if i not in gone]
    assert steps[-1] == (len(kept), len(kept))
    with LMDBTier(folder) as tier:
        assert tier.entries().ids.tolist() == kept
        assert tier.get_meta("schema") == b"kept"
        assert tier.high_water == 1000
        assert verify_store(tier).ok
        for record in tier.get_many(np.array(kept)):
            assert record.fields["x"].tobytes() == (pattern(record.id) * size)[:size]
        tier.put_many(batch([1, 2000], size))
        tier.flush()
        assert tier.contains(np.array([1, 2000])).tolist() == [False, True]
    assert not list(folder.glob(".*"))


def test_files_of_forgotten_samples_are_gone_at_once(tmp_path):
    folder = tmp_path / "store"
    with FileTier(folder) as tier:
        fill(tier, 100)
        forget(tier, labels=[0])
        assert traces(folder, range(0, 100, 4)) == []
    before = (folder / "journal.jsonl").stat().st_size
    report = compact(folder)
    assert (folder / "journal.jsonl").stat().st_size < before
    assert report.after_bytes < report.before_bytes
    with FileTier(folder) as tier:
        assert len(tier.entries()) == 75
        assert tier.verify().ok


class owned_elsewhere:
    """Another process has a store of three samples open."""

    code = """
import sys
import numpy as np
from carousel.storage.lmdb.tier import LMDBTier
from carousel.storage.record import FieldSpec, RecordBatch
ids = np.arange(3)
layout = (FieldSpec("x", "uint8", (2,)),)
if sys.argv[2] == "write":
    tier = LMDBTier(sys.argv[1])
    tier.put_many(RecordBatch(ids, ids, ids, layout, {"x": np.zeros((3, 2), np.uint8)}))
    tier.flush()
else:
    tier = LMDBTier(sys.argv[1], readonly=True)
print("ready", flush=True)
sys.stdin.read()
tier.close()
"""

    def __init__(self, folder, how="write"):
        self.command = [sys.executable, "-c", self.code, str(folder), how]

    def __enter__(self):
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(self.command, stdin=pipe, stdout=pipe, text=True)
        assert self.process.stdout.readline() == "ready\n"
        return self.process.pid

    def __exit__(self, *_):
        self.process.communicate()


def test_a_store_in_use_is_not_compacted(tmp_path):
    folder = tmp_path / "s"
    with owned_elsewhere(folder) as pid:
        before = (folder / "data.mdb").read_bytes()
        with pytest.raises(StorageLockedError) as caught:
            compact(folder)
        assert caught.value.owner_pid == pid
        assert (folder / "data.mdb").read_bytes() == before
    with owned_elsewhere(folder, "read"), pytest.raises(StorageLockedError, match="being read"):
        compact(folder)
    with LMDBTier(folder) as tier:
        with pytest.raises(BadInputError, match="open in this process"):
            compact(folder)
        tier.put_many(batch([50]))
        tier.flush()
    compact(folder)
    assert verify_store(folder).checked == 4


def test_a_failed_compaction_leaves_the_store_as_it_was(tmp_path, monkeypatch):
    folder = tmp_path / "s"
    with LMDBTier(folder) as tier:
        fill(tier, 50)
    before = (folder / "data.mdb").read_bytes()
    monkeypatch.setattr("carousel.storage.maintenance.free_bytes", lambda _: 1000)
    with pytest.raises(TierFullError, match="needs"):
        compact(folder)
    monkeypatch.undo()

    def stop(*_):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        compact(folder, stop)
    assert (folder / "data.mdb").read_bytes() == before
    assert not (folder / ".compact").exists()
    assert verify_store(folder).checked == 50


def test_a_truncated_store_is_not_touched(tmp_path):
    folder = tmp_path / "s"
    with LMDBTier(folder) as tier:
        fill(tier, 50)
    content = (folder / "data.mdb").read_bytes()[:40_000]
    (folder / "data.mdb").write_bytes(content)
    with pytest.raises(StorageCorruptedError):
        compact(folder)
    assert "was cut short" in verify_store(folder).problems[0]
    assert (folder / "data.mdb").read_bytes() == content
