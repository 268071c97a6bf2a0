"""The fields of a storage's samples, as its note tells them, follow what is done to the samples."""

from __future__ import annotations

import json

import numpy as np
import pytest

from carousel.storage import FieldSpec, LMDBTier, MemoryTier, RecordBatch
from carousel.storage.maintenance import forget
from carousel.storage.schema_note import SCHEMA, extend_note
from carousel.storage.transfer import add_field, export_store, import_store

NOTE = b'[["x", "uint8", [2, 2]]]'
LOGITS = add_field("logits", "float32", (3,), 0.0)


def fill(tier):
    ids = np.arange(tier.reserve_ids(6), tier.high_water)
    layout = (FieldSpec("x", "uint8", (2, 2)),)
    x = np.arange(24, dtype=np.uint8).reshape(6, 2, 2)
    tier.put_many(RecordBatch(ids, ids % 2, ids * 0, layout, {"x": x}))
    tier.put_meta({SCHEMA: NOTE})
    tier.flush()


def test_a_note_gets_the_fields_that_it_lacks():
    specs = [FieldSpec("x", "uint8", (2, 2)), FieldSpec("width", "int32", ())]
    assert json.loads(extend_note(NOTE, specs)) == [["x", "uint8", [2, 2]], ["width", "int32", []]]
    for note in (b"", b"{}", b"[]"):
        assert extend_note(note, specs) == note


def test_imported_samples_with_a_new_field_come_with_a_note_of_it(tmp_path):
    with LMDBTier(tmp_path / "old") as old, LMDBTier(tmp_path / "new") as new:
        fill(old)
        export_store(old, tmp_path / "files")
        import_store(tmp_path / "files", new, add=[LOGITS])
        assert json.loads(new.get_meta(SCHEMA))[1] == ["logits", "float32", [3]]
        assert [spec.name for spec in new.get_many(np.array([0]))[0].layout] == ["x", "logits"]
        assert old.get_meta(SCHEMA) == NOTE


@pytest.mark.parametrize("kind", ["lmdb", "memory"])
def test_only_what_forgets_all_forgets_the_fields(tmp_path, kind):
    with LMDBTier(tmp_path / "db") if kind == "lmdb" else MemoryTier() as tier:
        assert forget(tier, everything=True) == 0
        assert tier.get_meta(SCHEMA) is None
        fill(tier)
        forget(tier, labels=[0])
        forget(tier, labels=[1])
        assert tier.get_meta(SCHEMA) == NOTE
        forget(tier, everything=True)
        assert not tier.get_meta(SCHEMA)
