import io
import json

import numpy as np
import pytest
from PIL import Image

from carousel.errors import BadInputError, DuplicateIdError, SchemaMismatchError
from carousel.storage.lmdb.tier import LMDBTier
from carousel.storage.plain.file_tier import FileTier
from carousel.storage.plain.memory_tier import MemoryTier
from carousel.storage.record import ENCODED, FieldSpec, RecordBatch
from carousel.storage.transfer import add_field, export_store, import_store

IMAGES = (FieldSpec("x", "uint8", (3, 8, 8)), FieldSpec("logits", "float16", (5,)))
OTHERS = (FieldSpec("bits", "bfloat16", (2, 2)), FieldSpec("raw", ENCODED), FieldSpec("n", "bool"))


def picture(value, form):
    file = io.BytesIO()
    Image.fromarray(np.full((6, 7, 3), value, np.uint8)).save(file, form)
    return file.getvalue()


def fill(tier):
    """Samples of two layouts, in turns, some of them images."""
    rng = np.random.default_rng(3)
    for start in range(0, 200, 20):
        ids = np.arange(start, start + 20)
        if start % 40:
            layout, fields = (
                IMAGES,
                {
                    "x": rng.integers(0, 256, (20, 3, 8, 8), np.uint8),
                    "logits": rng.standard_normal((20, 5)).astype(np.float16),
                },
            )
        else:
            layout, fields = (
                OTHERS,
                {
                    "bits": rng.integers(0, 1 << 16, (20, 2, 2), np.uint16),
                    "raw": [picture(i % 256, "JPEG") if i % 2 else b"" for i in ids.tolist()],
                    "n": rng.integers(0, 2, 20).astype(bool),
                },
            )
        tier.put_many(RecordBatch(ids, ids % 7, ids // 100, layout, fields))
    tier.put_meta({"schema": b"{}", "run/1": b"\x00"})
    tier.reserve_ids(50)
    tier.flush()


def same(one, two):
    for name in ("ids", "labels", "tasks"):
        assert np.array_equal(getattr(one.entries(), name), getattr(two.entries(), name))
    ids = one.entries().ids
    for a, b in zip(one.get_many(ids), two.get_many(ids), strict=True):
        assert (a.id, a.label, a.task, a.layout) == (b.id, b.label, b.task, b.layout)
        for name, value in a.fields.items():
            assert bytes(memoryview(value)) == bytes(memoryview(b.fields[name]))
    assert one.high_water == two.high_water
    assert {k: one.get_meta(k) for k in one.meta_keys()} == {
        k: two.get_meta(k) for k in two.meta_keys()
    }


def test_out_to_files_and_back_is_the_same_store_bit_for_bit(tmp_path):
    with LMDBTier(tmp_path / "a") as first, LMDBTier(tmp_path / "b") as second:
        fill(first)
        steps = []
        count = export_store(first, tmp_path / "files", lambda *step: steps.append(step))
        assert count == 200
        assert steps[-1] == (200, 200)
        assert len(list((tmp_path / "files").glob("*/*.png"))) == 100
        assert len(list((tmp_path / "files").glob("*/*.jpg"))) == 50
        report = import_store(tmp_path / "files", second)
        assert (report.imported, report.skipped) == (200, {})
        same(first, second)
        assert export_store(second, tmp_path / "more") == 200
        import_store(tmp_path / "more", second)
        same(first, second)


def test_an_export_does_not_mix_with_an_earlier_one(tmp_path):
    tier = MemoryTier()
    fill(tier)
    export_store(tier, tmp_path / "files")
    tier.delete_many(tier.entries().ids[:100])
    with pytest.raises(BadInputError, match="200 samples already: give an empty or new folder"):
        export_store(tier, tmp_path / "files")
    assert export_store(tier, tmp_path / "new") == 100


def test_a_folder_without_samples_is_refused_by_name(tmp_path):
    (tmp_path / "photos" / "cats").mkdir(parents=True)
    (tmp_path / "photos" / "cats" / "list.txt").write_text("no image")
    tier = MemoryTier()
    with pytest.raises(BadInputError, match=r"photos holds no samples: give a folder of samples"):
        import_store(tmp_path / "photos", tier)
    assert tier.high_water == 0


def test_files_without_their_journal_still_give_back_their_samples(tmp_path):
    first, second, third = MemoryTier(), MemoryTier(), MemoryTier()
    fill(first)
    export_store(first, tmp_path / "files")
    (tmp_path / "files" / "journal.jsonl").write_bytes(b"damaged")
    torn = next((tmp_path / "files" / "3").glob("*.png"))
    torn.write_bytes(torn.read_bytes()[:-30])
    report = import_store(tmp_path / "files", second)
    assert report.imported == 199
    assert report.skipped.keys() == {str(torn)}
    lost = np.setdiff1d(first.entries().ids, second.entries().ids)
    assert lost.tolist() == [int(torn.stem)]
    first.delete_many(lost)
    for a, b in zip(
        first.get_many(first.entries().ids), second.get_many(first.entries().ids), strict=True
    ):
        assert all(np.array_equal(a.fields[name], b.fields[name]) for name in a.fields)
    (tmp_path / "files" / "journal.jsonl").unlink()
    torn.unlink()
    assert import_store(tmp_path / "files", third).imported == 199
    assert np.array_equal(third.entries().ids, second.entries().ids)


def test_a_tree_of_pictures_comes_in_as_it_is(tmp_path):
    files = {
        "cat/a.jpg": picture(1, "JPEG"),
        "cat/b.png": picture(2, "PNG"),
        "dog/c.jpeg": picture(3, "JPEG"),
        "dog/notes.txt": b"good boy",
        ".cache/d.png": picture(4, "PNG"),
    }
    for name, content in files.items():
        (tmp_path / "tree" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "tree" / name).write_bytes(content)
    tier = MemoryTier()
    tier.reserve_ids(100)
    report = import_store(tmp_path / "tree", tier)
    assert report.imported == 3
    assert [path.rsplit("/", 1)[1] for path in report.skipped] == ["notes.txt"]
    assert report.class_names == ["cat", "dog"]
    assert json.loads(tier.get_meta("class_names")) == ["cat", "dog"]
    entries = tier.entries()
    assert entries.labels.tolist() == [0, 0, 1]
    assert (entries.ids >= 100).all()
    stored = [record.fields["x"] for record in tier.get_many(entries.ids)]
    assert stored == [files["cat/a.jpg"], files["cat/b.png"], files["dog/c.jpeg"]]


def test_folders_that_are_numbers_are_the_labels(tmp_path):
    for label in (3, 10):
        (tmp_path / "tree" / str(label)).mkdir(parents=True)
        (tmp_path / "tree" / str(label) / "a.png").write_bytes(picture(label, "PNG"))
    tier = MemoryTier()
    assert import_store(tmp_path / "tree", tier).class_names == []
    assert tier.class_counts() == {3: 1, 10: 1}


def test_a_new_schema_fills_in_a_missing_field(tmp_path):
    first, second = MemoryTier(), MemoryTier()
    ids = np.arange(9)
    pixels = np.zeros((9, 4, 4), np.uint8)
    first.put_many(RecordBatch(ids, ids, ids, (FieldSpec("x", "uint8", (4, 4)),), {"x": pixels}))
    export_store(first, tmp_path / "files")
    extra = add_field("logits", "float32", (10,), -1.5)
    import_store(tmp_path / "files", second, add=[extra])
    record = second.get_many(ids[4:5])[0]
    assert [spec.name for spec in record.layout] == ["x", "logits"]
    assert record.fields["logits"].dtype == np.float32
    assert (record.fields["logits"] == -1.5).all()
    export_store(second, tmp_path / "again")
    third = MemoryTier()
    import_store(tmp_path / "again", third, add=[extra])
    assert third.get_many(ids[:1])[0].layout == record.layout
    with pytest.raises(SchemaMismatchError, match="'x' is stored as"):
        import_store(tmp_path / "again", MemoryTier(), add=[add_field("x", "uint8", (5,), 0)])
    with pytest.raises(BadInputError, match="bfloat16"):
        add_field("b", "bfloat16", (), 0)


def test_other_samples_under_the_same_ids_are_refused(tmp_path):
    first, second = MemoryTier(), MemoryTier()
    ids, layout = np.arange(5), (FieldSpec("x", "uint8", (4, 4)),)
    first.put_many(RecordBatch(ids, ids, ids, layout, {"x": np.zeros((5, 4, 4), np.uint8)}))
    second.put_many(RecordBatch(ids, ids, ids, layout, {"x": np.ones((5, 4, 4), np.uint8)}))
    export_store(first, tmp_path / "files")
    with pytest.raises(DuplicateIdError):
        import_store(tmp_path / "files", second)


def test_a_damaged_sample_is_left_out_and_reported(tmp_path):
    with FileTier(tmp_path / "files") as files:
        fill(files)
    damaged = tmp_path / "files" / "0" / "21.png"
    if not damaged.exists():
        damaged = next((tmp_path / "files").glob("*/*.png"))
    content = bytearray(damaged.read_bytes())
    content[60] ^= 8
    damaged.write_bytes(content)
    report = import_store(tmp_path / "files", MemoryTier())
    assert report.imported == 199
    assert report.skipped.keys() == {f"id {damaged.stem}"}


def test_a_place_without_samples_is_bad_input(tmp_path):
    with pytest.raises(BadInputError, match="not a folder"):
        import_store(tmp_path / "nowhere", MemoryTier())
    with pytest.raises(BadInputError, match="no samples"):
        import_store(tmp_path, MemoryTier())
