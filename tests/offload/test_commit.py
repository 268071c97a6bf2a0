"""The commit record is replaced whole, and the folder has one owner."""

import pytest
import torch

from carousel.errors import BadInputError, StorageCorruptedError
from carousel.offload.commit import Commit, CommitLog, Moment, pack_payload, unpack_payload
from carousel.offload.places import Committed, Places
from carousel.storage import LMDBTier

MOMENT = Moment(7, [7.0, None, 3.0], [{"lr": 0.1, "betas": [0.9, 0.999], "count": 3}], b"\x00abc")
COMMIT = Commit("ab" * 16, "states-1.bin", MOMENT, Committed((0, -1, 1), (7, 0, 6)))
PLAN = {"chunk_numel": 64, "specs": []}


def test_a_commit_comes_back(tmp_path):
    log = CommitLog(tmp_path, "process")
    assert log.empty
    assert log.read() is None
    log.publish(COMMIT, PLAN)
    assert log.read() == (PLAN, COMMIT)
    log.close()
    log = CommitLog(tmp_path, "bounded")
    assert not log.empty
    assert log.read() == (PLAN, COMMIT)
    log.close()


def test_a_folder_is_open_once(tmp_path):
    log = CommitLog(tmp_path, "process")
    with pytest.raises(BadInputError, match="open in this process"):
        CommitLog(tmp_path, "process")
    log.close()
    with LMDBTier(tmp_path), pytest.raises(BadInputError, match="open in this process"):
        CommitLog(tmp_path, "process")


@pytest.mark.parametrize("record", [b"nothing", b"{}", b"[]", b'{"moment": {}}'])
def test_a_record_that_says_nothing_is_refused(tmp_path, record):
    log = CommitLog(tmp_path, "process")
    log.publish(COMMIT, PLAN)
    log._tier.put_meta({"offload/commit": record})
    with pytest.raises(StorageCorruptedError):
        log.read()
    log.close()


def test_payloads_are_plain_types_and_tensors():
    payload = {"epoch": 3, "rng": torch.arange(4), "nested": [1.5, {"a": None}]}
    again = unpack_payload(pack_payload(payload))
    assert torch.equal(again.pop("rng"), payload.pop("rng"))
    assert again == payload
    assert unpack_payload(pack_payload(None)) is None
    with pytest.raises(StorageCorruptedError):
        unpack_payload(b"junk")


def test_the_committed_place_is_never_the_free_one():
    places = Places(2)
    assert places.newest(0)[0] == -1
    for step in range(1, 8):
        free = places.free(0)
        places.written(0, step)
        assert places.newest(0) == (free, step)
        if step % 3 == 0:
            places.commit()
            assert places.free(0) != free
        else:
            assert places.free(0) == free
    assert places.newest(1)[0] == -1


def test_a_single_place_is_always_free():
    places = Places(1, single=True)
    for step in range(3):
        assert places.free(0) == 0
        places.written(0, step)
        places.commit()
