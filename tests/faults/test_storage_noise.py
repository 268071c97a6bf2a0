"""Random bytes anywhere in a data file: a report or a typed error, and never anything else."""

import shutil

import numpy as np
import pytest

from carousel.errors import StorageError
from carousel.storage import LMDBTier
from carousel.storage.lmdb.datafile import inspect_data_file
from carousel.storage.maintenance import verify_store
from carousel.storage.record import FieldSpec, RecordBatch

LAYOUT = (FieldSpec("x", "uint8", (3072,)),)


@pytest.fixture(scope="module")
def healthy(tmp_path_factory):
    """A folder with 198 records of 3 KiB, and notes of all kinds."""
    path = tmp_path_factory.mktemp("healthy") / "db"
    ids = np.arange(200)
    x = np.random.default_rng(0).integers(0, 256, (200, 3072), np.uint8)
    with LMDBTier(path) as tier:
        tier.put_many(RecordBatch(ids, ids % 5, ids * 0, LAYOUT, {"x": x}))
        tier.put_meta({"a": b"b" * 30})
        tier.delete_many(np.array([3, 50]))
    return path


def damaged(healthy, tmp_path, seed):
    path = shutil.copytree(healthy, tmp_path / "db")
    data = path / "data.mdb"
    meta = inspect_data_file(data, ours=True)
    rng, raw = np.random.default_rng(seed), bytearray(data.read_bytes())
    for at in rng.integers(2 * meta.page_bytes, (meta.last_page + 1) * meta.page_bytes, 50):
        raw[at] = rng.integers(256)
    data.write_bytes(raw)
    return path


def test_the_healthy_store_is_healthy(healthy):
    report = verify_store(healthy)
    assert report.ok
    assert report.checked == 198


@pytest.mark.parametrize("seed", range(30))
def test_verify_reports_whatever_the_damage(healthy, tmp_path, seed):
    path = damaged(healthy, tmp_path, seed)
    before = (path / "data.mdb").read_bytes()
    report = verify_store(path)
    assert not report.ok
    if report.problems:
        assert (path / "data.mdb").read_bytes() == before


def in_meta(path, change):
    """Change bytes of a committed small value in place; the tree around it stays as it is."""
    data = path / "data.mdb"
    raw = data.read_bytes()
    assert change(raw) != raw
    data.write_bytes(change(raw))


def test_a_damaged_note_is_a_typed_error_to_writers_and_none_to_verify(healthy, tmp_path):
    path = shutil.copytree(healthy, tmp_path / "db")
    in_meta(path, lambda raw: raw.replace(b'"next_id"', b'"n\xff\x00t_id"'))
    with pytest.raises(StorageError, match="is damaged; export what is readable, restore a copy"):
        LMDBTier(path)
    with LMDBTier(path, readonly=True) as tier:
        assert len(tier.entries()) == 198
        assert sum(record is not None for record in tier.get_many(np.arange(200))) == 198
    report = verify_store(path)
    assert report.checked == 198
    assert not report.corrupt
    assert len(report.problems) == 1


def test_a_damaged_value_of_the_user_is_no_value(healthy, tmp_path):
    path = shutil.copytree(healthy, tmp_path / "db")
    in_meta(path, lambda raw: raw.replace(b"b" * 30, b"b" * 29 + b"c"))
    with LMDBTier(path) as tier, pytest.raises(StorageError, match="is damaged"):
        tier.get_meta("a")
