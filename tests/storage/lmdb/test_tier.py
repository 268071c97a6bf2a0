"""The default tier: exact, bounded, shared within a process, safe to pickle and to fork."""

import contextlib
import gc
import logging
import os
import pickle
import shutil
import subprocess
import sys
import threading

import lmdb
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carousel.errors import (
    BadInputError,
    DuplicateIdError,
    SchemaMismatchError,
    StorageClosedError,
    StorageError,
    TierFullError,
)
from carousel.storage import LMDBTier
from carousel.storage.lmdb import scan
from carousel.storage.lmdb.index_file import INDEX_FILE
from carousel.storage.record import ENCODED, FieldSpec, RecordBatch
from carousel.storage.tier import ReadStatus

PIXELS = (FieldSpec("x", "uint8", (32, 32, 3)),)


@pytest.fixture
def make(tmp_path):
    made = []

    def make(name="db", **options):
        options.setdefault("durability", "process")
        made.append(LMDBTier(tmp_path / name, **options))
        return made[-1]

    yield make
    for tier in made:
        tier.close()


def pixels(ids, salt=0):
    shape = (len(ids), 32, 32, 3)
    rng = np.random.default_rng(salt)
    x = rng.integers(0, 256, shape, np.uint8)
    x.reshape(len(ids), -1)[:, :8] = np.asarray(ids).astype("<i8").reshape(-1, 1).view(np.uint8)
    return x


def batch(ids, labels=None, salt=0, layout=PIXELS, fields=None):
    ids = np.asarray(ids, np.int64)
    labels = ids % 10 if labels is None else np.broadcast_to(labels, ids.shape)
    return RecordBatch(
        ids,
        np.array(labels, np.int64),
        ids % 3,
        layout,
        {"x": pixels(ids, salt)} if fields is None else fields,
    )


def sized(ids, nbytes):
    """Records of about one size, incompressible and different from each other."""
    ids = np.asarray(ids, np.int64)
    payload = np.random.default_rng(int(ids[0])).integers(0, 256, (len(ids), nbytes), np.uint8)
    layout = (FieldSpec("x", "uint8", (nbytes,)),)
    return batch(ids, layout=layout, fields={"x": payload})


def save(tier, ids):
    tier.put_many(batch(ids))
    tier.flush()


def read(tier, ids, shape=(32, 32, 3)):
    out = {"x": np.zeros((len(ids), *shape), np.uint8)}
    status = tier.get_into(np.asarray(ids), out, np.arange(len(ids)))
    return status, out["x"]


def store_by_hand(tier, id_, change):
    """Change the stored bytes of one record behind the tier's back."""
    env = tier._store.env
    key = id_.to_bytes(8, "big")
    with env.write() as txn:
        value = bytearray(txn.get(key, db=env.databases[b"samples"]))
        change(value)
        txn.put(key, bytes(value), db=env.databases[b"samples"])


def test_samples_come_back_bit_by_bit_in_any_order(make):
    tier = make()
    sent = batch(range(1000))
    tier.put_many(sent)
    tier.flush()
    order = np.random.default_rng(0).permutation(1000)
    status, x = read(tier, order)
    assert (status == ReadStatus.OK).all()
    assert np.array_equal(x, sent.fields["x"][order])
    tier.close()
    tier = make()
    status, x = read(tier, order)
    assert np.array_equal(x, sent.fields["x"][order])
    entries = tier.entries()
    assert np.array_equal(entries.ids, sent.ids)
    assert np.array_equal(entries.labels, sent.labels)
    assert np.array_equal(entries.tasks, sent.tasks)


def test_layouts_may_be_mixed_and_a_subset_of_fields_asked_for(make):
    tier = make()
    full = (*PIXELS, FieldSpec("logits", "float16", (10,)), FieldSpec("meta", ENCODED))
    logits = np.random.default_rng(0).normal(size=(3, 10)).astype(np.float16)
    tier.put_many(batch(range(5)))
    tier.put_many(
        batch(
            range(5, 8),
            layout=full,
            fields={"x": pixels(range(5, 8)), "logits": logits, "meta": [b"a", b"", b"ccc"]},
        )
    )
    tier.put_many(
        batch([8], layout=(FieldSpec("x", "uint8", (2,)),), fields={"x": np.ones((1, 2), "u1")})
    )
    tier.flush()
    ids = np.arange(9)
    status, x = read(tier, ids)
    assert status.tolist() == [0] * 8 + [ReadStatus.LAYOUT]
    assert np.array_equal(x[5:8], pixels(range(5, 8)))
    out = {"logits": np.zeros((9, 10), np.float16), "meta": np.empty(9, object)}
    status = tier.get_into(ids, out, ids)
    assert status.tolist() == [ReadStatus.LAYOUT] * 5 + [0] * 3 + [ReadStatus.LAYOUT]
    assert np.array_equal(out["logits"][5:8], logits)
    assert out["meta"][5:8].tolist() == [b"a", b"", b"ccc"]


def test_destinations_need_not_be_contiguous(make):
    tier = make()
    sent = batch(range(4))
    tier.put_many(sent)
    tier.flush()
    out = np.zeros((4, 3, 32, 32), np.uint8).transpose(0, 2, 3, 1)
    status = tier.get_into(sent.ids, {"x": out}, np.arange(4))
    assert (status == 0).all()
    assert np.array_equal(out, sent.fields["x"])


def test_a_large_sample_and_empty_values(make):
    tier = make()
    layout = (FieldSpec("x", "uint8", (50_000_000,)), FieldSpec("none", "float32", (0, 3)))
    big = np.random.default_rng(0).integers(0, 256, (1, 50_000_000), np.uint8)
    tier.put_many(
        batch([7], layout=layout, fields={"x": big, "none": np.empty((1, 0, 3), np.float32)})
    )
    tier.flush()
    status, x = read(tier, [7], (50_000_000,))
    assert status.tolist() == [ReadStatus.OK]
    assert np.array_equal(x, big)


def test_nothing_half_valid_is_queued(make):
    tier = make()
    bad = batch(range(10))
    bad.fields["x"] = bad.fields["x"][:9]
    with pytest.raises(SchemaMismatchError):
        tier.put_many(bad)
    tier.flush()
    assert tier.stats().records == 0


def test_1000_flipped_bytes_are_all_found_set_aside_and_never_served(make, tmp_path):
    tier = make()
    sent = batch(range(1100))
    tier.put_many(sent)
    tier.flush()
    rng = np.random.default_rng(0)
    hit = rng.permutation(1100)[:1000]

    def flip(value):
        value[rng.integers(len(value))] ^= 1 << int(rng.integers(8))

    for id_ in hit.tolist():
        store_by_hand(tier, id_, flip)
    status, x = read(tier, np.arange(1100))
    whole = np.setdiff1d(np.arange(1100), hit)
    assert (status[hit] == ReadStatus.CORRUPT).all()
    assert (status[whole] == ReadStatus.OK).all()
    assert np.array_equal(x[whole], sent.fields["x"][whole])
    assert sorted(tier.quarantined()) == sorted(hit.tolist())
    assert all(tier.quarantined().values())
    assert tier.stats().corrupt == 1000
    tier.close()
    tier = make()
    assert sorted(tier.quarantined()) == sorted(hit.tolist())
    assert tier.entries().ids.tolist() == whole.tolist()
    assert (read(tier, hit)[0] == ReadStatus.MISSING).all()
    assert tier.verify().ok


def test_damaged_headers_are_found_when_the_store_is_opened(make):
    tier = make()
    tier.put_many(batch(range(20)))
    tier.flush()

    def flip(value):
        value[20] ^= 4

    store_by_hand(tier, 5, flip)
    store_by_hand(tier, 6, lambda value: value.__delitem__(slice(30, None)))
    tier.close()
    (tier.path / INDEX_FILE).unlink()
    tier = make()
    assert sorted(tier.quarantined()) == [5, 6]
    assert len(tier.entries()) == 18


@pytest.mark.parametrize("saved", ["used", "missing", "damaged", "older"])
def test_a_closed_store_opens_with_its_index_or_by_a_scan(make, saved, monkeypatch):
    tier = make()
    tier.put_many(batch(range(300)))
    tier.flush()
    before, places = tier.entries(), tier._store.index.lookup(np.arange(300))
    tier.close()
    index = tier.path / INDEX_FILE
    raw = index.read_bytes()
    if saved == "missing":
        index.unlink()
    if saved == "damaged":
        index.write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    if saved == "older":
        tier = make()
        assert not index.exists()
        tier.put_many(batch(range(300, 310)))
        tier.delete_many(np.arange(300, 310))
        tier.close()
        index.write_bytes(raw)
    scans = []
    walk = scan.scan_into
    monkeypatch.setattr(scan, "scan_into", lambda *args: scans.append(args) or walk(*args))
    tier = make()
    assert len(scans) == (saved != "used")
    after, found = tier.entries(), tier._store.index.lookup(np.arange(300))
    for name in after.__slots__:
        assert np.array_equal(getattr(after, name), getattr(before, name))
    assert np.array_equal(found.offsets, places.offsets)
    assert tier.stats().space_amplification == pytest.approx(4160 / 3160, abs=0.01)


def test_a_record_under_another_id_is_not_served(make):
    tier = make()
    tier.put_many(batch(range(3)))
    tier.flush()
    other = {}
    store_by_hand(tier, 1, lambda value: other.update(value=bytes(value)))
    store_by_hand(tier, 2, lambda value: value.__setitem__(slice(None), other["value"]))
    assert read(tier, [2])[0].tolist() == [ReadStatus.CORRUPT]
    assert tier.get_many(np.array([2])) == [None]


def test_a_record_that_was_written_anew_meanwhile_is_not_set_aside(make):
    tier = make()
    tier.put_many(batch(range(3)))
    tier.flush()
    tier._store.note_damage({1: "what a reader saw a moment ago", 77: "evicted meanwhile"})
    assert tier.quarantined() == {}
    assert tier.contains(np.array([1])).all()


def test_verify_compares_the_records_with_the_index(make):
    tier = make()
    tier.put_many(batch(range(5)))
    tier.flush()
    index = tier._store.index
    index.remove(np.array([2]))
    index.add(np.array([2]), np.array([9]), np.array([2]), np.array([4160]))
    report = tier.verify()
    assert not report.ok
    assert "record 2" in report.problems[0]


def test_verify_reads_every_byte(make):
    tier = make()
    tier.put_many(batch(range(300)))
    tier.flush()
    report = tier.verify()
    assert (report.checked, report.ok) == (300, True)
    store_by_hand(tier, 123, lambda value: value.__setitem__(-1, value[-1] ^ 1))
    report = tier.verify()
    assert list(report.corrupt) == [123]
    assert not report.ok
    assert tier.verify().ok


def test_a_set_aside_sample_may_be_presented_again(make):
    tier = make()
    tier.put_many(batch(range(3)))
    tier.flush()
    store_by_hand(tier, 1, lambda value: value.__setitem__(100, value[100] ^ 1))
    assert read(tier, [1])[0].tolist() == [ReadStatus.CORRUPT]
    tier.put_many(batch(range(3)))
    tier.flush()
    assert read(tier, [1])[0].tolist() == [ReadStatus.OK]
    tier.close()
    assert make().quarantined() == {}


def test_the_same_sample_again_is_shown_and_another_one_refused(make):
    tier = make()
    tier.put_many(batch(range(20)))
    tier.flush()
    tier.hide_from(10)
    assert sum(tier.class_counts().values()) == 10
    commits = tier.stats().commits
    tier.put_many(batch(range(5, 15), salt=0, fields={"x": pixels(range(20))[5:15]}))
    tier.flush()
    assert tier.stats().commits == commits
    assert sum(tier.class_counts().values()) == 15
    tier.put_many(batch([3, 50], salt=1))
    with pytest.raises(DuplicateIdError, match="3"):
        tier.flush()
    assert tier.contains(np.array([3, 50])).tolist() == [True, True]
    assert np.array_equal(read(tier, [3])[1][0], pixels(range(20))[3])
    changed_label = batch([4], labels=9, fields={"x": pixels(range(20))[4:5]})
    tier.put_many(changed_label)
    with pytest.raises(DuplicateIdError):
        tier.flush()


def test_deleted_samples_stay_out_also_those_that_were_evicted(make, caplog):
    tier = make(budget=10, eviction="fifo", sync=True)
    tier.put_many(batch(range(15)))
    assert tier.entries().ids.tolist() == list(range(5, 15))
    assert tier.delete_many(np.array([2, 7, 99])) == 1
    tier.close()
    tier = make(budget=100, eviction="fifo", sync=True)
    with caplog.at_level(logging.WARNING, "carousel.storage"):
        tier.put_many(batch(range(15)))
    assert tier.entries().ids.tolist() == [i for i in range(15) if i not in (2, 7)]
    assert "2 samples were deleted before" in caplog.text


def test_ids_rise_and_are_never_given_twice(make):
    tier = make()
    assert tier.reserve_ids(10) == 0
    assert tier.reserve_ids(0) == 10
    tier.put_many(batch([30]))
    tier.flush()
    assert tier.high_water == 31
    assert tier.reserve_ids(5) == 31
    tier.close()
    tier = make()
    assert tier.high_water == 36
    with pytest.raises(BadInputError):
        tier.reserve_ids(-1)


def test_small_values_are_kept_beside_the_records(make):
    tier = make()
    tier.put_meta({"schema": b"{}", "state": b"mine"})
    tier.close()
    tier = make()
    assert tier.get_meta("schema") == b"{}"
    assert tier.get_meta("state") == b"mine"
    assert tier.get_meta("other") is None
    assert tier.reserve_ids(1) == 0


@pytest.mark.parametrize("nbytes", [100, 1900, 2040, 3072, 20_000])
@pytest.mark.parametrize("eviction", ["class-reservoir", "fifo"])
def test_a_byte_budget_is_never_exceeded_also_on_the_way(make, nbytes, eviction):
    budget = 1 << 21
    tier = make(budget=f"{budget}B", eviction=eviction, sync=True)
    count = min(2500, 2 * budget // nbytes // 8)
    for start in range(0, 8 * count, count):
        tier.put_many(sized(range(start, start + count), nbytes))
        stats = tier.stats()
        assert stats.file_bytes <= budget
        assert stats.live_bytes <= 0.85 * budget
    tier.close()
    assert sum(file.stat().st_size for file in tier.path.iterdir()) <= budget
    tier = make(budget=f"{budget}B", eviction=eviction, sync=True)
    assert stats.evicted > 0
    assert stats.live_bytes >= 0.5 * budget
    assert tier.verify().ok
    assert len(tier.entries()) == stats.records


@settings(
    deadline=None,
    max_examples=12,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(
    budget=st.integers(512 << 10, 2 << 20),
    sizes=st.lists(st.integers(0, 100_000), min_size=5, max_size=25),
    repeat=st.integers(1, 4),
)
def test_any_mix_of_sizes_keeps_the_budget(tmp_path_factory, budget, sizes, repeat):
    path = tmp_path_factory.mktemp("mixed") / "db"
    with LMDBTier(path, budget=f"{budget}B", durability="ephemeral", sync=True) as tier:
        for start, nbytes in enumerate(sizes * repeat):
            try:
                tier.put_many(sized([start], nbytes))
            except TierFullError:
                assert nbytes > budget // 17 - 10_000
            stats = tier.stats()
            assert stats.file_bytes <= budget
            assert stats.live_bytes <= 0.85 * budget
        entries = tier.entries()
        assert all(record is not None for record in tier.get_many(entries.ids))
        assert tier.verify().ok


def test_readers_without_a_gap_do_not_keep_a_small_budget_full(make):
    tier = make(budget="600KiB")
    done = threading.Event()

    def read_on():
        while not done.is_set():
            with tier._store.env.read():
                done.wait(0.002)

    readers = [threading.Thread(target=read_on) for _ in range(3)]
    for reader in readers:
        reader.start()
    try:
        for start in range(0, 4000, 10):
            tier.put_many(sized(range(start, start + 10), 64))
            tier.put_meta({"at": str(start).encode()})
        tier.flush()
    finally:
        done.set()
        for reader in readers:
            reader.join()
    assert tier.stats().evicted > 0
    assert tier.get_meta("at") == b"3990"


def test_a_budget_of_records_is_never_exceeded(make):
    tier = make(budget=100, sync=True)
    for start in range(0, 700, 70):
        tier.put_many(batch(range(start, start + 70)))
        assert tier.stats().records <= 100
    assert tier.stats().records == 100
    assert set(tier.class_counts().values()) == {10}


def test_a_full_tier_that_evicts_nothing_says_so_and_goes_on(make):
    tier = make(budget="1MiB", eviction="reject")
    tier.put_many(batch(range(150)))
    tier.flush()
    with pytest.raises(TierFullError):
        save(tier, range(150, 200))
    tier._store.drain()
    with contextlib.suppress(TierFullError):
        tier.flush()
    stored = tier.entries().ids
    assert 150 < len(stored) < 200
    assert (read(tier, stored)[0] == ReadStatus.OK).all()
    tier.delete_many(stored[:50])
    tier.put_many(batch(range(1000, 1040)))
    tier.flush()
    assert tier.contains(np.arange(1000, 1040)).all()


@pytest.mark.parametrize("nbytes", [70_000, 2 << 20])
def test_a_sample_of_a_large_part_of_the_budget_is_refused_alone(make, nbytes):
    tier = make(budget="1MiB")
    tier.put_many(batch(range(10)))
    tier.put_many(sized([100], nbytes))
    with pytest.raises(TierFullError):
        tier.flush()
    assert tier.entries().ids.tolist() == list(range(10))


@pytest.mark.parametrize("sync", [False, True])
def test_what_earlier_saves_met_costs_later_ones_nothing(make, sync):
    tier = make(budget="1MiB", sync=sync)
    with contextlib.suppress(TierFullError):  # at once when in sync, else at the next call
        tier.put_many(sized([100], 2 << 20))
    saves = [batch(range(5)), batch(range(5), labels=7)]  # the second is refused
    saves += [sized(range(start, start + 100), 300) for start in range(200, 500, 100)]
    for save in saves:
        with contextlib.suppress(TierFullError, DuplicateIdError):
            tier.put_many(save)
    with contextlib.suppress(TierFullError, DuplicateIdError):
        tier.flush()
    assert tier.contains(np.arange(200, 500)).all()
    assert tier.contains(np.arange(5)).all()


def test_pinned_records_are_not_evicted(make):
    tier = make(budget=50, eviction="fifo", sync=True)
    tier.put_many(batch(range(50)))
    tier.pin(np.arange(5))
    tier.put_many(batch(range(50, 95)))
    assert tier.contains(np.arange(5)).all()
    tier.unpin(np.arange(5))
    tier.put_many(batch(range(100, 110)))
    assert not tier.contains(np.arange(5)).any()


def test_the_eviction_rule_goes_on_where_it_was(make):
    def feed(tier, start):
        tier.put_many(batch(range(start, start + 60), labels=0))

    straight = make("straight", budget=40, sync=True, seed=3)
    for start in range(0, 600, 60):
        feed(straight, start)
    broken = make("broken", budget=40, sync=True, seed=3)
    for start in range(0, 600, 60):
        feed(broken, start)
        broken.close()
        broken = make("broken", budget=40, sync=True, seed=77)
    assert broken.entries().ids.tolist() == straight.entries().ids.tolist()


def test_a_failed_commit_changes_nothing(make, monkeypatch):
    tier = make(budget=40, sync=True)
    tier.put_many(batch(range(40)))
    before, state = tier.entries().ids.tolist(), tier._store.ledger._eviction.state_dict()

    def refuse(txn):
        raise OSError("broken")

    monkeypatch.setattr(tier._store.ledger, "_check_size", refuse)
    with pytest.raises(OSError, match="broken"):
        tier.put_many(batch(range(40, 80)))
    monkeypatch.undo()
    assert tier.entries().ids.tolist() == before
    assert tier._store.ledger._eviction.state_dict() == state
    assert (read(tier, before)[0] == ReadStatus.OK).all()
    assert tier.high_water == 40
    tier.put_many(batch(range(40, 80)))


def test_without_a_budget_the_map_grows_while_others_read(make, monkeypatch):
    monkeypatch.setattr("carousel.storage.lmdb.environment._FIRST_MAP", 1 << 20)
    tier = make()
    tier.put_many(batch(range(50)))
    tier.flush()
    stop, errors = threading.Event(), []

    def keep_reading():
        while not stop.is_set():
            status, _ = read(tier, np.arange(50))
            if status.any():
                errors.append(status)

    readers = [threading.Thread(target=keep_reading) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(1000, 5000, 500):
        tier.put_many(batch(range(start, start + 500)))
    tier.flush()
    stop.set()
    for reader in readers:
        reader.join()
    assert errors == []
    assert tier.stats().file_bytes >= 16 << 20
    assert tier.verify().ok


def test_saving_blocks_at_the_queue_bound_and_counts_it(make, monkeypatch):
    tier = make(budget="4MiB", eviction="fifo")
    store = tier._store
    gate = threading.Event()
    write = store.ledger.write_group

    def slow(puts):
        assert gate.wait(30)
        write(puts)

    monkeypatch.setattr(store.ledger, "write_group", slow)
    thread = threading.Thread(target=tier.put_many, args=(batch(range(500)),))
    thread.start()
    thread.join(0.1)
    assert thread.is_alive()
    assert 0 < tier.stats().queued_bytes <= (4 << 20) // 16
    gate.set()
    thread.join()
    tier.flush()
    assert tier.stats().save_stall_seconds > 0
    assert tier.stats().records == 500


def test_sync_mode_has_no_thread_and_has_committed_on_return(make):
    before = threading.active_count()
    tier = make(sync=True)
    tier.put_many(batch(range(300)))
    assert threading.active_count() == before
    assert tier.contains(np.arange(300)).all()


def test_no_read_transaction_is_left_open(make):
    tier = make()
    tier.put_many(batch(range(100)))
    tier.flush()
    for _ in range(5):
        read(tier, np.arange(100))
        tier.get_many(np.arange(5))
        tier.stats()
    readers = tier._store.env._env.readers()
    assert all(line.split()[-1] == "-" for line in readers.splitlines()[1:]), readers


def test_steady_replacement_keeps_the_file_small(make):
    tier = make(budget=256, eviction="fifo", sync=True)
    tier.put_many(batch(range(256)))
    filled = tier.stats().live_bytes
    for start in range(256, 6 * 256, 32):
        tier.put_many(batch(range(start, start + 32)))
        read(tier, tier.entries().ids)
    assert tier.stats().live_bytes <= 1.1 * filled


def test_two_handles_share_one_store_also_through_a_link(make, tmp_path):
    tier = make()
    (tmp_path / "link").symlink_to(tmp_path / "db", target_is_directory=True)
    second = make("link")
    tier.put_many(batch(range(10)))
    tier.flush()
    assert second.contains(np.arange(10)).all()
    tier.close()
    assert (read(second, np.arange(10))[0] == ReadStatus.OK).all()
    with pytest.raises(StorageClosedError):
        tier.stats()
    second.close()
    assert not (tmp_path / "db" / "owner.lock").exists()


def test_handles_must_agree_on_how_the_store_is_open(make):
    make()
    for other in ({"durability": "durable"}, {"budget": "1MiB"}, {"sync": True}):
        with pytest.raises(BadInputError, match="open in this process"):
            make(**other)
    reader = make(readonly=True)
    with pytest.raises(BadInputError, match="reading only"):
        reader.put_many(batch([1]))


def test_closing_commits_ends_the_thread_and_may_be_repeated(make):
    before = threading.active_count()
    tier = make()
    tier.put_many(batch(range(1000)))
    tier.close()
    tier.close()
    assert threading.active_count() == before
    with pytest.raises(StorageClosedError):
        tier.put_many(batch([1]))
    with pytest.raises(StorageClosedError):
        read(tier, [1])
    assert len(make().entries()) == 1000


def test_a_handle_that_was_pickled_opens_when_used(make):
    tier = make()
    tier.put_many(batch(range(10)))
    tier.flush()
    copy = pickle.loads(pickle.dumps(tier))
    assert copy._held is None
    assert (read(copy, np.arange(10))[0] == ReadStatus.OK).all()
    tier.close()
    assert (read(copy, np.arange(10))[0] == ReadStatus.OK).all()
    copy.close()


READ_IN_CHILD = """
import pickle, sys
import numpy as np
from carousel.errors import BadInputError
from carousel.storage.lmdb.index_file import INDEX_FILE
from carousel.storage.record import RecordBatch
tier = pickle.load(sys.stdin.buffer)
out = {"x": np.zeros((10, 32, 32, 3), np.uint8)}
status = tier.get_into(np.arange(10), out, np.arange(10))
one = np.ones(1, np.int64)
try:
    tier.put_many(RecordBatch(one, one, one, (), {}))
    wrote = True
except BadInputError:
    wrote = False
sys.stdout.buffer.write(pickle.dumps((status.tolist(), out["x"], tier.readonly, wrote)))
tier.close()
"""


def test_a_process_that_got_the_handle_reads_beside_the_owner(make):
    tier = make()
    sent = batch(range(10))
    tier.put_many(sent)
    tier.flush()
    child = subprocess.run(
        [sys.executable, "-c", READ_IN_CHILD],
        input=pickle.dumps(tier),
        stdout=subprocess.PIPE,
        check=True,
        timeout=60,
    )
    status, x, readonly, wrote = pickle.loads(child.stdout)
    assert status == [0] * 10
    assert np.array_equal(x, sent.fields["x"])
    assert (readonly, wrote) == (True, False)


def in_fork(work):
    """Run `work` in a forked child and return what it returned or raised."""
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            outcome = work()
        except BaseException as error:
            outcome = error
        os.write(send, pickle.dumps(outcome))
        os._exit(0)
    os.close(send)
    with os.fdopen(receive, "rb") as pipe:
        outcome = pickle.loads(pipe.read())
    os.waitpid(child, 0)
    return outcome


def test_a_forked_child_gets_typed_errors_and_leaves_the_parent_alone(make):
    tier = make()
    tier.put_many(batch(range(100)))
    tier.flush()
    lock = tier.path / "owner.lock"
    for work in (
        lambda: read(tier, np.arange(10)),
        lambda: tier.put_many(batch([500])),
        lambda: LMDBTier(tier.path),
        lambda: LMDBTier(tier.path, readonly=True),
    ):
        assert isinstance(in_fork(work), StorageError)

    def drop():
        nonlocal tier
        tier.close()
        del tier
        gc.collect()

    assert in_fork(drop) is None
    assert lock.exists()
    tier.put_many(batch(range(100, 300)))
    tier.flush()
    assert tier.verify().ok
    assert tier.stats().records == 300


def test_a_fork_while_others_write_and_read(make):
    tier = make()
    tier.put_many(batch(range(50)))
    stop = threading.Event()

    def busy():
        start = 1000
        while not stop.is_set():
            tier.put_many(batch(range(start, start + 20)))
            read(tier, np.arange(50))
            start += 20

    thread = threading.Thread(target=busy)
    thread.start()
    for _ in range(10):
        assert isinstance(in_fork(tier.stats), StorageError)
    stop.set()
    thread.join()
    tier.flush()
    assert tier.verify().ok


def test_a_forked_child_may_open_another_store(make, tmp_path):
    make()

    def work():
        with LMDBTier(tmp_path / "other", sync=True) as other:
            other.put_many(batch(range(10)))
            return other.stats().records

    assert in_fork(work) == 10
    assert len(make("other").entries()) == 10


def test_prefetch_knows_where_records_lie(make):
    tier = make()
    tier.put_many(batch(range(500)))
    tier.flush()
    data = (tier.path / "data.mdb").read_bytes()
    for fresh in (False, True):
        if fresh:
            tier.close()
            tier = make()
        found = tier._store.index.lookup(np.arange(500))
        if (found.offsets < 0).all():
            pytest.skip("this system does not tell where a file is mapped")
        for id_ in range(0, 500, 50):
            start = int(found.offsets[id_])
            assert pixels(range(500))[id_].tobytes() in data[start : start + 8192]
    tier.prefetch(np.array([1, 2, 10**9]))


def test_wasteful_sample_sizes_are_warned_about_once(make, caplog):
    tier = make(sync=True)
    with caplog.at_level(logging.WARNING, "carousel.storage"):
        tier.put_many(sized(range(100), 4096))
        tier.put_many(sized(range(100, 200), 4096))
    assert caplog.text.count("times their size") == 1
    assert tier.stats().space_amplification > 1.5


def test_small_samples_waste_room_without_a_warning(make, caplog):
    tier = make(sync=True)
    with caplog.at_level(logging.INFO, "carousel.storage"):
        tier.put_many(sized(range(100), 64))
    assert tier.stats().space_amplification > 1.5
    levels = [r.levelno for r in caplog.records if "times their size" in r.message]
    assert levels == [logging.INFO]


@pytest.mark.parametrize(
    "options",
    [
        {"durability": "sometimes"},
        {"budget": "100KiB"},
        {"budget": "much"},
        {"eviction": "random"},
        {"budget": 100, "preallocate": True},
    ],
)
def test_bad_options_are_refused_by_name(make, options):
    with pytest.raises(BadInputError):
        make(**options)
    make()


def test_a_folder_that_was_removed_while_open_can_be_made_anew(tmp_path):
    """Also where the new folder gets the number of the old one in the file system."""
    made = []
    for _ in range(5):
        shutil.rmtree(tmp_path / "db", ignore_errors=True)
        (tmp_path / "db").mkdir()
        made.append(LMDBTier(tmp_path / "db", durability="process"))
        assert len(made[-1].entries()) == 0
        save(made[-1], range(5))
    marker = (tmp_path / "db" / "carousel.json").read_text()
    for tier in made[:-1]:
        with contextlib.suppress(StorageError):
            tier.close()
    # What was there before touches neither the lock nor the marker of what is there now.
    assert (tmp_path / "db" / "owner.lock").exists()
    assert (tmp_path / "db" / "carousel.json").read_text() == marker
    made[-1].close()
    with LMDBTier(tmp_path / "db") as tier:
        assert len(tier.entries()) == 5


def test_a_folder_that_was_removed_gives_typed_errors(make, tmp_path):
    tier = make()
    save(tier, range(5))
    shutil.rmtree(tmp_path / "db")
    assert (read(tier, range(5))[0] == ReadStatus.OK).all()  # its file is still open
    for call in (lambda: save(tier, range(5, 10)), tier.stats, tier.close):
        with contextlib.suppress(StorageError):
            call()
    assert not (tmp_path / "db").exists()


def test_a_medium_that_fails_at_the_end_does_not_keep_the_folder(make, tmp_path):
    tier = make()
    save(tier, range(5))
    env = tier._store.env

    class Dying:
        def __getattr__(self, name):
            return getattr(inner, name)

        def sync(self, force):
            raise lmdb.DiskError("the medium is gone")

    inner, env._env = env._env, Dying()
    with pytest.raises(StorageError, match="gone"):
        tier.close()
    with LMDBTier(tmp_path / "db", durability="process") as again:
        assert len(again.entries()) == 5
