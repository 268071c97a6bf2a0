"""What every tier must do, whatever keeps the bytes. One suite, run over all of them."""

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carousel.errors import (
    BadInputError,
    DuplicateIdError,
    SchemaMismatchError,
    StorageClosedError,
    TierFullError,
)
from carousel.storage import open_tier
from carousel.storage.record import ENCODED, FieldSpec, RecordBatch
from carousel.storage.tier import ReadStatus, StorageTier

LAYOUT = (
    FieldSpec("x", "uint8", (6, 5, 3)),
    FieldSpec("logits", "float32", (4,)),
    FieldSpec("raw", ENCODED),
)


def build(kind, path, **options):
    return open_tier(None if kind == "memory" else path, kind, **options)


@pytest.fixture(params=["memory", "files", "lmdb"])
def kind(request):
    return request.param


@pytest.fixture
def make(kind, tmp_path):
    made = []

    def make(path="store", **options):
        made.append(build(kind, tmp_path / path, **options))
        return made[-1]

    yield make
    for tier in made:
        tier.close()


def as_array(ids):
    return np.asarray(ids, np.int64)


def batch(ids, labels=0, tasks=0, salt=0):
    """Samples whose content follows from the id, so that any mix-up shows."""
    ids = as_array(ids)
    n = len(ids)
    pixels = (np.arange(90).reshape(1, 6, 5, 3) * 7 + ids.reshape(-1, 1, 1, 1) * 3 + salt) % 251
    return RecordBatch(
        ids=ids,
        labels=np.broadcast_to(as_array(labels), n).copy(),
        tasks=np.broadcast_to(as_array(tasks), n).copy(),
        layout=LAYOUT,
        fields={
            "x": pixels.astype(np.uint8),
            "logits": np.stack([ids + i / 8 for i in range(4)], axis=1).astype(np.float32),
            "raw": [b"bytes of %d" % id_ for id_ in ids.tolist()],
        },
    )


def put(tier, *args, **kwargs):
    tier.put_many(batch(*args, **kwargs))
    tier.flush()


def buffers(n):
    return {"x": np.zeros((n, 6, 5, 3), np.uint8), "logits": np.zeros((n, 4), np.float32)}


def test_it_is_a_storage_tier(make):
    assert isinstance(make(), StorageTier)


def test_what_was_put_is_read_back_bit_for_bit(make):
    tier = make()
    ids = np.arange(70)
    sent = batch(ids, labels=ids % 3, tasks=ids % 2)
    tier.put_many(sent)
    tier.flush()
    out, rows = buffers(100), np.arange(70)[::-1].copy()
    assert (tier.get_into(ids, out, rows) == ReadStatus.OK).all()
    assert np.array_equal(out["x"][rows], sent.fields["x"])
    assert np.array_equal(out["logits"][rows], sent.fields["logits"])
    assert not out["x"][70:].any()
    record = tier.get_many(as_array([33]))[0]
    assert (record.id, record.label, record.task) == (33, 0, 1)
    assert record.layout == LAYOUT
    assert record.fields["raw"] == b"bytes of 33"


def test_the_arrays_may_be_reused_as_soon_as_put_returns(make):
    tier = make()
    sent = batch(range(50))
    before = sent.fields["x"].copy()
    tier.put_many(sent)
    sent.fields["x"][:] = 0
    tier.flush()
    out = buffers(50)
    tier.get_into(sent.ids, out, np.arange(50))
    assert np.array_equal(out["x"], before)


def test_rows_that_cannot_be_read_say_why(make):
    tier = make()
    put(tier, [1, 2])
    ids, rows = as_array([1, 9, 2]), np.arange(3)
    assert tier.get_into(ids, buffers(3), rows).tolist() == [0, ReadStatus.MISSING, 0]
    other = {"x": np.zeros((3, 6, 5), np.uint8)}
    wrong = [ReadStatus.LAYOUT, ReadStatus.MISSING, ReadStatus.LAYOUT]
    assert tier.get_into(ids, other, rows).tolist() == wrong
    assert tier.get_into(as_array([1]), {"y": other["x"]}, rows[:1]).tolist() == [ReadStatus.LAYOUT]
    assert tier.get_many(as_array([9])) == [None]
    tier.prefetch(ids)


def test_encoded_fields_are_read_into_arrays_of_objects(make):
    tier = make()
    put(tier, [4, 5])
    out = {"raw": np.empty(3, object), "x": np.zeros((3, 6, 5, 3), np.uint8)}
    assert tier.get_into(as_array([5, 4]), out, as_array([2, 0])).tolist() == [0, 0]
    assert out["raw"].tolist() == [b"bytes of 4", None, b"bytes of 5"]
    wrong = {"raw": np.zeros((3, 2), np.uint8)}
    assert tier.get_into(as_array([5]), wrong, as_array([0])).tolist() == [ReadStatus.LAYOUT]


def test_the_index_knows_classes_and_entries(make):
    tier = make()
    put(tier, [3, 4, 5, 6], labels=[1, 0, 1, 1], tasks=[0, 1, 2, 3])
    assert tier.ids_of(1).tolist() == [3, 5, 6]
    assert tier.class_counts() == {0: 1, 1: 3}
    assert tier.contains(as_array([2, 3])).tolist() == [False, True]
    assert tier.tasks_of(as_array([6, 2, 3])).tolist() == [3, -1, 0]
    entries = tier.entries()
    assert entries.ids.tolist() == [3, 4, 5, 6]
    assert entries.labels.tolist() == [1, 0, 1, 1]
    assert entries.tasks.tolist() == [0, 1, 2, 3]
    assert (entries.lengths > 0).all()


def test_the_same_sample_again_changes_nothing(make):
    tier = make()
    put(tier, range(10))
    put(tier, range(5, 15))
    assert tier.entries().ids.tolist() == list(range(15))


def test_an_id_with_other_content_is_refused_and_the_first_stays(make):
    tier = make()
    put(tier, range(4))
    with pytest.raises(DuplicateIdError, match="3"):
        put(tier, [3, 4], salt=1)
    out = buffers(1)
    assert tier.get_into(as_array([3]), out, as_array([0])).tolist() == [0]
    assert np.array_equal(out["x"], batch([3]).fields["x"])
    tier.flush()


def test_an_id_twice_in_one_batch_is_stored_once_or_refused(make):
    tier = make()
    put(tier, [1, 1, 2])
    assert tier.entries().ids.tolist() == [1, 2]
    with pytest.raises(DuplicateIdError):
        put(tier, [7, 7], labels=[0, 1])


def test_ids_rise_and_are_never_given_twice(make):
    tier = make()
    assert tier.reserve_ids(10) == 0
    assert tier.reserve_ids(5) == 10
    assert tier.high_water == 15
    put(tier, [40])
    assert tier.high_water == 41
    tier.delete_many(as_array([40]))
    assert tier.reserve_ids(1) == 41
    for count in (-1, 2.5, "3", None, 2**64):
        with pytest.raises(BadInputError, match="count is"):
            tier.reserve_ids(count)
    assert tier.reserve_ids(np.int64(1)) == 42


@pytest.mark.parametrize("id_", [-1, 2**62, 2**63 - 1])
def test_ids_that_leave_no_room_for_more_are_refused(make, id_):
    tier = make()
    with pytest.raises(BadInputError, match=f"id {id_} is"):
        put(tier, [id_])
    put(tier, [2**62 - 1])
    assert tier.high_water == 2**62


def test_deleting_counts_what_was_there(make):
    tier = make()
    put(tier, range(6), labels=[0, 0, 1, 1, 2, 2])
    assert tier.delete_many(as_array([0, 2, 3, 77, 2])) == 3
    assert tier.class_counts() == {0: 1, 2: 2}
    assert tier.get_many(as_array([0, 1]))[0] is None


def test_what_was_deleted_stays_out_when_it_is_presented_again(make, kind):
    tier = make()
    put(tier, range(6))
    tier.delete_many(as_array([2, 3]))
    put(tier, range(8))
    assert tier.entries().ids.tolist() == [0, 1, 4, 5, 6, 7]
    if kind != "memory":
        tier.close()
        tier = make()
        put(tier, [2, 9])
        assert tier.entries().ids.tolist() == [0, 1, 4, 5, 6, 7, 9]


def test_hidden_records_come_back_when_presented_again(make):
    tier = make()
    put(tier, range(10))
    tier.hide_from(6)
    assert tier.ids_of(0).tolist() == list(range(6))
    assert tier.contains(as_array([8]))[0]
    assert len(tier.entries()) == 10
    put(tier, [8])
    assert tier.ids_of(0).tolist() == [0, 1, 2, 3, 4, 5, 8]
    put(tier, [20])
    assert tier.ids_of(0).tolist() == [0, 1, 2, 3, 4, 5, 8, 20]


def test_snapshots_of_a_class_do_not_change(make):
    tier = make()
    put(tier, range(10))
    before = tier.ids_of(0)
    put(tier, range(10, 30))
    tier.delete_many(as_array([0, 1, 2]))
    assert before.tolist() == list(range(10))


@pytest.mark.parametrize("classes", [1, 3])
def test_a_budget_of_records_is_never_exceeded_and_classes_stay_equal(make, classes):
    tier = make(budget=20, seed=1)
    for start in range(0, 300, 30):
        ids = np.arange(start, start + 30)
        put(tier, ids, labels=ids % classes)
        assert tier.stats().records <= 20
    counts = tier.class_counts().values()
    assert sum(counts) == 20
    assert max(counts) - min(counts) <= 1
    stats = tier.stats()
    assert stats.evicted + stats.rejected == 280
    out = buffers(20)
    assert (tier.get_into(tier.entries().ids, out, np.arange(20)) == ReadStatus.OK).all()


def test_pinned_ids_are_not_evicted(make):
    tier = make(budget=10, eviction="fifo")
    put(tier, range(10))
    tier.pin(as_array([0, 3]))
    put(tier, range(10, 40))
    assert tier.contains(as_array([0, 3])).all()
    tier.unpin(as_array([0, 3]))
    put(tier, range(40, 60))
    assert tier.entries().ids.tolist() == list(range(50, 60))


def test_reject_says_that_the_tier_is_full_and_keeps_what_it_has(make):
    tier = make(budget=5, eviction="reject")
    put(tier, range(5))
    with pytest.raises(TierFullError):
        put(tier, range(5, 8))
    assert tier.entries().ids.tolist() == list(range(5))
    tier.delete_many(as_array([0]))
    put(tier, [9])
    assert tier.entries().ids.tolist() == [1, 2, 3, 4, 9]


def test_meta_is_kept(make):
    tier = make()
    assert tier.get_meta("schema") is None
    tier.put_meta({"schema": b"\x00\xff", "runs": b"{}"})
    tier.put_meta({"runs": b"{1}"})
    assert tier.get_meta("schema") == b"\x00\xff"
    assert tier.get_meta("runs") == b"{1}"
    put(tier, range(3))
    tier.delete_many(as_array([1]))
    assert sorted(tier.meta_keys()) == ["runs", "schema"]


def test_arrays_that_do_not_fit_the_layout_change_nothing(make):
    tier = make()
    wrong = batch(range(3))
    wrong.fields["x"] = wrong.fields["x"].astype(np.int16)
    with pytest.raises(SchemaMismatchError, match="'x'"):
        tier.put_many(wrong)
    tier.flush()
    assert len(tier.entries()) == 0


def test_an_intact_store_verifies(make):
    tier = make()
    put(tier, range(130))
    seen = []
    report = tier.verify(lambda done, total: seen.append((done, total)))
    assert report.ok
    assert report.checked == 130
    assert seen[-1] == (130, 130)
    assert seen == sorted(seen)
    assert tier.quarantined() == {}


def test_an_empty_batch_and_an_empty_tier_are_fine(make):
    tier = make()
    put(tier, [])
    assert tier.get_into(as_array([]), buffers(0), as_array([])).tolist() == []
    assert tier.ids_of(0).tolist() == []
    assert tier.delete_many(as_array([])) == 0
    assert tier.verify().ok
    assert tier.stats().records == 0


def test_stats_count(make):
    tier = make()
    put(tier, range(8))
    tier.get_into(np.arange(8), buffers(8), np.arange(8))
    stats = tier.stats()
    assert (stats.records, stats.puts, stats.reads) == (8, 8, 8)
    assert stats.live_bytes > 0
    assert stats.file_bytes > 0
    assert stats.commits > 0


def test_a_closed_tier_refuses_work_and_closes_again(make):
    tier = make()
    put(tier, [1])
    tier.close()
    tier.close()
    with pytest.raises(StorageClosedError):
        tier.put_many(batch([2]))
    with pytest.raises(StorageClosedError):
        tier.get_many(as_array([1]))


def test_readers_and_a_writer_at_once_never_see_a_mix(make):
    tier = make(budget=40, seed=3)
    put(tier, range(40))
    stop, wrong = threading.Event(), []

    def read():
        out = buffers(16)
        while not stop.is_set():
            ids = tier.ids_of(0)[:16]
            status = tier.get_into(ids, out, np.arange(len(ids)))
            expected = batch(ids)
            ok = np.flatnonzero(status == ReadStatus.OK)
            if not np.array_equal(out["x"][ok], expected.fields["x"][ok]):
                wrong.append(ids.tolist())
            if not np.isin(status, (ReadStatus.OK, ReadStatus.MISSING)).all():
                wrong.append(status.tolist())

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    for start in range(40, 440, 20):
        put(tier, range(start, start + 20))
    stop.set()
    for reader in readers:
        reader.join()
    assert not wrong


def test_a_reopened_tier_is_the_same(make, kind):
    if kind == "memory":
        pytest.skip("a tier in RAM ends with its process")
    tier = make(budget=30, seed=5)
    for start in range(0, 90, 9):
        ids = np.arange(start, start + 9)
        put(tier, ids, labels=ids % 2)
    tier.put_meta({"key": b"value"})
    tier.reserve_ids(10)
    entries, draws = tier.entries(), [tier.ids_of(c).tolist() for c in range(2)]
    water = tier.high_water
    tier.close()
    tier = make(budget=30, seed=77)
    again = tier.entries()
    for name in ("ids", "labels", "tasks", "lengths"):
        assert np.array_equal(getattr(again, name), getattr(entries, name))
    assert [tier.ids_of(c).tolist() for c in range(2)] == draws
    assert tier.high_water == water
    assert tier.get_meta("key") == b"value"
    assert tier.verify().ok


def test_eviction_goes_on_after_reopening_as_if_it_had_not_stopped(make, kind):
    if kind == "memory":
        pytest.skip("a tier in RAM ends with its process")
    steady, broken = make("steady", budget=12, seed=5), make("broken", budget=12, seed=5)
    for start in range(0, 96, 8):
        put(steady, range(start, start + 8))
        put(broken, range(start, start + 8))
        broken.close()
        broken = make("broken", budget=12, seed=99)
    assert broken.entries().ids.tolist() == steady.entries().ids.tolist()


dtypes = st.sampled_from(["bool", "uint8", "int64", "float16", "bfloat16", "float64", "complex64"])
shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)


@given(spec=st.lists(st.tuples(dtypes, shapes), min_size=1, max_size=4), seed=st.integers(0, 9))
@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_any_dtype_and_shape_survives_bit_for_bit(kind, tmp_path_factory, spec, seed):
    layout = tuple(FieldSpec(f"f{i}", dtype, shape) for i, (dtype, shape) in enumerate(spec))
    rng, ids = np.random.default_rng(seed), np.arange(3)
    fields = {}
    for field in layout:
        raw = rng.integers(0, 2 if field.dtype == "bool" else 256, 3 * field.nbytes, np.uint8)
        dtype = "uint16" if field.dtype == "bfloat16" else field.dtype
        fields[field.name] = raw.view(dtype).reshape(3, *field.shape)
    tier = build(kind, tmp_path_factory.mktemp("any") / "store")
    tier.put_many(RecordBatch(ids, ids, ids, layout, fields))
    tier.flush()
    records = tier.get_many(ids)
    tier.close()
    for row, record in enumerate(records):
        assert record.layout == layout
        for name, sent in fields.items():
            assert record.fields[name].tobytes() == sent[row].tobytes()
            assert record.fields[name].shape == sent.shape[1:]


# -- revising ----------------------------------------------------------------------------------


def logits_of(ids, salt):
    return (as_array(ids)[:, None] * 10 + np.arange(4) + salt).astype(np.float32)


def check_revised(tier, ids, salt):
    ids = as_array(ids)
    out, original = buffers(len(ids)), batch(ids)
    assert (tier.get_into(ids, out, np.arange(len(ids))) == ReadStatus.OK).all()
    assert np.array_equal(out["x"], original.fields["x"])
    expected = original.fields["logits"] if salt is None else logits_of(ids, salt)
    assert np.array_equal(out["logits"], expected)
    for record in tier.get_many(ids):
        assert record.fields["raw"] == b"bytes of %d" % record.id


class TestRevise:
    def test_only_the_named_fields_of_the_named_records_change(self, make):
        tier = make()
        put(tier, range(20), labels=range(20), tasks=3)
        before, size = tier.entries(), tier.stats().live_bytes
        ids = as_array([7, 3, 99, 12])
        assert tier.revise_many(ids, {"logits": logits_of(ids, 0.5)}) == 3
        check_revised(tier, [7, 3, 12], 0.5)
        check_revised(tier, sorted({*range(20)} - {7, 3, 12}), None)
        after = tier.entries()
        for name in ("ids", "labels", "tasks", "lengths"):
            assert np.array_equal(getattr(after, name), getattr(before, name))
        assert tier.class_counts() == dict.fromkeys(range(20), 1)
        assert tier.stats().live_bytes == size
        assert tier.stats().records == 20
        assert tier.verify().ok

    def test_queued_records_are_revised_too(self, make):
        tier = make()
        ids = as_array(range(300))
        tier.put_many(batch(ids))
        assert tier.revise_many(ids, {"logits": logits_of(ids, 1)}) == 300
        check_revised(tier, ids, 1)

    def test_the_revised_content_again_changes_nothing_and_the_old_is_refused(self, make):
        tier = make()
        put(tier, range(5))
        ids = as_array(range(5))
        for _ in range(3):
            tier.revise_many(ids, {"logits": logits_of(ids, 2)})
        same = batch(ids)
        same.fields["logits"][:] = logits_of(ids, 2)
        tier.put_many(same)
        tier.flush()
        with pytest.raises(DuplicateIdError):
            put(tier, range(5))
        check_revised(tier, ids, 2)
        assert tier.stats().records == 5

    def test_hidden_records_are_revised_and_stay_hidden(self, make):
        tier = make()
        put(tier, range(6))
        tier.hide_from(3)
        ids = as_array(range(6))
        assert tier.revise_many(ids, {"logits": logits_of(ids, 3)}) == 6
        assert tier.ids_of(0).tolist() == [0, 1, 2]
        check_revised(tier, ids, 3)

    def test_deleted_records_stay_away(self, make):
        tier = make()
        put(tier, range(4))
        tier.delete_many(as_array([1, 2]))
        ids = as_array(range(4))
        assert tier.revise_many(ids, {"logits": logits_of(ids, 1)}) == 2
        assert tier.contains(ids).tolist() == [True, False, False, True]

    @pytest.mark.parametrize(
        ("fields", "message"),
        [
            ({"logits": np.zeros((3, 5), np.float32)}, "logits cannot be revised"),
            ({"logits": np.zeros((3, 4), np.float64)}, "logits cannot be revised"),
            ({"other": np.zeros((3, 4), np.float32)}, "no such field"),
            ({"raw": np.array([b"a", b"b", b"c"], object)}, "encoded"),
            ({"logits": np.zeros((2, 4), np.float32)}, "2 rows for 3 ids"),
        ],
    )
    def test_values_that_do_not_fit_change_nothing(self, make, fields, message):
        tier = make()
        put(tier, range(3))
        with pytest.raises(BadInputError, match=message):
            tier.revise_many(as_array(range(3)), fields)
        with pytest.raises(BadInputError, match="given twice"):
            tier.revise_many(as_array([0, 0]), {"logits": np.zeros((2, 4), np.float32)})
        check_revised(tier, range(3), None)

    def test_one_record_of_another_layout_refuses_all(self, make):
        tier = make()
        put(tier, range(8))
        other = (FieldSpec("x", "uint8", (2,)),)
        odd = as_array([8])
        tier.put_many(RecordBatch(odd, odd, odd, other, {"x": np.zeros((1, 2), np.uint8)}))
        ids = as_array(range(9))
        with pytest.raises(SchemaMismatchError, match="no such field"):
            tier.revise_many(ids, {"logits": logits_of(ids, 1)})
        check_revised(tier, range(8), None)

    def test_it_survives_reopening(self, make, kind):
        if kind == "memory":
            pytest.skip("a tier in RAM ends with its process")
        tier = make()
        put(tier, range(40))
        ids = as_array(range(0, 40, 3))
        for salt in (1, 2, 3):
            tier.revise_many(ids, {"logits": logits_of(ids, salt)})
        tier.close()
        again = make()
        check_revised(again, ids, 3)
        assert again.verify().ok
        assert again.stats().records == 40

    def test_pixels_may_change_and_are_accounted(self, make):
        tier = make()
        put(tier, range(10))
        rng = np.random.default_rng(0)
        noise = rng.integers(0, 255, (10, 6, 5, 3), np.uint8)
        for _ in range(2):
            assert tier.revise_many(as_array(range(10)), {"x": noise}) == 10
        out = buffers(10)
        tier.get_into(as_array(range(10)), out, np.arange(10))
        assert np.array_equal(out["x"], noise)
        assert tier.stats().live_bytes >= tier.entries().lengths.sum()
        assert tier.verify().ok

    def test_a_full_tier_revises_all_it_has(self, make, kind):
        tier = make(budget="512KiB", eviction="fifo")
        layout = (FieldSpec("x", "uint8", (3000,)), FieldSpec("y", "float32", ()))
        noise = np.random.default_rng(0).integers(0, 255, (400, 3000)).astype(np.uint8)
        ids = as_array(range(400))
        zeros = np.zeros(400, np.float32)
        for part in np.split(ids, 20):
            fields = {"x": noise[part], "y": zeros[part]}
            tier.put_many(RecordBatch(part, part % 3, part * 0, layout, fields))
        tier.flush()
        stored = tier.entries().ids
        assert 30 < len(stored) < 200
        for turn in range(5):
            fresh = (stored + turn).astype(np.float32)
            assert tier.revise_many(stored, {"y": fresh}) == len(stored)
            out = {"x": np.zeros((len(stored), 3000), np.uint8), "y": np.zeros_like(fresh)}
            tier.get_into(stored, out, np.arange(len(stored)))
            assert np.array_equal(out["y"], fresh)
            assert np.array_equal(out["x"], noise[stored])
        assert np.array_equal(tier.entries().ids, stored)
        assert tier.stats().file_bytes <= 512 << 10 or kind == "files"
        tier.put_many(
            RecordBatch(ids[:1] + 400, ids[:1], ids[:1], layout, {"x": noise[:1], "y": zeros[:1]})
        )
        tier.flush()
        assert tier.contains(as_array([400])).all()


@settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    steps=st.lists(
        st.tuples(st.sampled_from("prd"), st.lists(st.integers(0, 30), max_size=12, unique=True)),
        max_size=12,
    )
)
@pytest.mark.parametrize("sync", [True, False])
def test_any_mix_of_puts_revisions_and_deletions_is_what_a_dict_would_hold(
    tmp_path_factory, steps, sync
):
    with open_tier(tmp_path_factory.mktemp("any") / "db", sync=sync, durability="process") as tier:
        held, gone = {}, set()
        for salt, (what, ids) in enumerate(steps):
            if what == "p":
                fresh = [i for i in ids if i not in held]
                tier.put_many(batch(fresh))
                held |= dict.fromkeys([i for i in fresh if i not in gone])
            elif what == "r":
                count = tier.revise_many(as_array(ids), {"logits": logits_of(ids, salt)})
                known = [i for i in ids if i in held]
                assert count == len(known)
                held |= dict.fromkeys(known, salt)
            else:
                tier.delete_many(as_array(ids))
                gone |= {i for i in ids if i < tier.high_water}
                held = {i: salt for i, salt in held.items() if i not in ids}
        tier.flush()
        assert tier.entries().ids.tolist() == sorted(held)
        for i, salt in held.items():
            check_revised(tier, [i], salt)
