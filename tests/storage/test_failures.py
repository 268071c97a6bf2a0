"""Whatever the system reports of a disk has one type and one sentence on every floor."""

import errno
import os

import lmdb
import numpy as np
import pytest

from carousel.errors import StorageIOError, TierFullError
from carousel.offload.states_file import StatesFile
from carousel.storage import FieldSpec, FileTier, RecordBatch
from carousel.storage.failures import disk_error
from carousel.storage.lmdb.errors import translate

CASES = [
    (errno.ENOSPC, TierFullError, "the disk is full: free some space"),
    (errno.EDQUOT, TierFullError, "quota is full"),
    (errno.EFBIG, TierFullError, "ulimit -f"),
    (errno.EROFS, StorageIOError, "read-only: mount it for writing"),
    (errno.EIO, StorageIOError, "the disk reports an error: check it"),
    (errno.EACCES, StorageIOError, "change the permissions"),
    (errno.ENXIO, StorageIOError, "the disk is gone"),
    (errno.EINVAL, StorageIOError, "invalid argument"),
]
cases = pytest.mark.parametrize(("number", "error", "words"), CASES)


def of_the_system(number):
    return OSError(number, os.strerror(number))


def failing(number):
    def fail(*_, **__):
        raise of_the_system(number)

    return fail


@cases
def test_every_number_has_a_type_and_a_fix(number, error, words):
    made = disk_error(of_the_system(number), "x.bin cannot be written")
    assert type(made) is error
    assert str(made).startswith("x.bin cannot be written; ")
    assert words in str(made)


def test_an_error_without_a_number_keeps_its_words():
    assert str(disk_error(RuntimeError("torn page"), "x")) == "x; torn page"


@cases
def test_the_file_of_states_says_so(number, error, words, tmp_path, monkeypatch):
    file = StatesFile(tmp_path / "states-1.bin", "ab" * 16, [4096], create=True)
    monkeypatch.setattr(os, "pwritev", failing(number))
    with pytest.raises(error, match=r"states-1\.bin cannot be written; ") as caught:
        file.write(0, 0, np.zeros(4096, np.uint8))
    file.close()
    assert words in str(caught.value)


@cases
def test_a_folder_of_samples_says_so(number, error, words, tmp_path, monkeypatch):
    ids = np.arange(2)
    layout = (FieldSpec("x", "uint8", (4,)),)
    with FileTier(tmp_path) as tier:
        monkeypatch.setattr(tier._files._files, "write", failing(number))
        with pytest.raises(error, match="cannot be written; ") as caught:
            tier.put_many(RecordBatch(ids, ids, ids, layout, {"x": np.zeros((2, 4), np.uint8)}))
    assert words in str(caught.value)


@cases
def test_lmdb_says_so(number, error, words, tmp_path):
    theirs = lmdb.Error("mdb_txn_commit")
    theirs.code = number
    made = translate(theirs, tmp_path)
    assert type(made) is error
    assert words in str(made)
