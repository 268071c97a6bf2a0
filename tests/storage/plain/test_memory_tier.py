import numpy as np
import pytest

from carousel.errors import BadInputError
from carousel.storage.plain.memory_tier import MemoryTier
from carousel.storage.record import FieldSpec, RecordBatch
from carousel.storage.tier import ReadStatus


def batch(ids, size=16):
    ids = np.asarray(ids, np.int64)
    pixels = np.repeat(ids % 251, size).reshape(-1, size).astype(np.uint8)
    return RecordBatch(ids, ids % 2, ids * 0, (FieldSpec("x", "uint8", (size,)),), {"x": pixels})


def flip_byte(tier, id_, at):
    stored = bytearray(tier._medium._records[id_])
    stored[at] ^= 0x40
    tier._medium._records[id_] = bytes(stored)


def test_it_promises_nothing_beyond_the_process():
    assert MemoryTier().durability == "ephemeral"


def test_a_flipped_byte_anywhere_is_found_set_aside_and_never_served():
    tier = MemoryTier()
    tier.put_many(batch([7]))
    length = len(tier._medium._records[7])
    rng = np.random.default_rng(0)
    for id_, at in enumerate(rng.integers(0, length, 50).tolist(), start=100):
        tier.put_many(batch([id_]))
        flip_byte(tier, id_, at)
        out = {"x": np.zeros((1, 16), np.uint8)}
        assert tier.get_into(np.array([id_]), out, np.array([0])).tolist() == [ReadStatus.CORRUPT]
        assert not tier.contains(np.array([id_]))[0]
        assert tier.get_many(np.array([id_])) == [None]
    assert len(tier.quarantined()) == 50
    assert tier.stats().corrupt == 50
    assert tier.entries().ids.tolist() == [7]


def test_verify_reads_everything_and_names_the_damaged():
    tier = MemoryTier()
    tier.put_many(batch(range(200)))
    flip_byte(tier, 150, 90)
    report = tier.verify()
    assert not report.ok
    assert report.corrupt.keys() == {150}
    assert report.checked == 200
    assert tier.verify().ok


def test_a_damaged_copy_is_healed_when_its_sample_comes_again():
    tier = MemoryTier()
    tier.put_many(batch([1, 2]))
    flip_byte(tier, 2, -1)
    tier.put_many(batch([2]))
    assert tier.quarantined() == {}
    assert tier.verify().ok
    assert tier.entries().ids.tolist() == [1, 2]


def test_forgetting_an_id_forgets_its_quarantine():
    tier = MemoryTier()
    tier.put_many(batch([1]))
    flip_byte(tier, 1, 70)
    tier.verify()
    assert tier.delete_many(np.array([1])) == 0
    assert tier.quarantined() == {}


def test_a_byte_budget_counts_encoded_records():
    tier = MemoryTier(budget="2KiB")
    tier.put_many(batch(range(100)))
    stats = tier.stats()
    assert 0 < stats.live_bytes <= 2048
    assert stats.file_bytes == stats.live_bytes
    assert abs(tier.class_counts()[0] - tier.class_counts()[1]) <= 1


def test_a_share_of_the_disk_makes_no_sense_in_ram():
    with pytest.raises(BadInputError, match="RAM"):
        MemoryTier(budget="50%")
