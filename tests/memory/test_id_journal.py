import numpy as np
import pytest

from carousel.errors import BadInputError
from carousel.memory.id_journal import IdJournal
from carousel.storage import LMDBTier, MemoryTier


def test_the_same_experience_gets_the_same_ids():
    tier = MemoryTier()
    sizes = {("a", 0): 10, ("a", 1): 5, ("b", 0): 7, ("a", 7): 5, ("a", 3): 0, ("a", 8): 5}
    firsts = {key: IdJournal(tier).reserve(*key, size) for key, size in sizes.items()}
    assert list(firsts.values()) == [0, 10, 15, 22, 27, 27]
    for (run, experience), size in reversed(sizes.items()):
        assert IdJournal(tier).reserve(run, experience, size) == firsts[run, experience]
    with pytest.raises(BadInputError, match="has 6 samples, and had 5"):
        IdJournal(tier).reserve("a", 8, 6)


def test_an_endless_stream_takes_a_few_bytes():
    tier = MemoryTier()
    journal = IdJournal(tier)
    firsts = [journal.reserve("run", experience, 10) for experience in range(5000)]
    assert firsts == list(range(0, 50_000, 10))
    assert journal.reserve("run", 1234, 10) == 12_340
    assert sum(len(tier.get_meta(key)) for key in tier.meta_keys()) < 100


def test_interleaved_runs_stay_apart():
    tier = MemoryTier()
    journal = IdJournal(tier)
    rng = np.random.default_rng(0)
    given = {}
    for _ in range(300):
        run, experience = "ab"[rng.integers(2)], int(rng.integers(40))
        size = experience % 3 + 1
        first = journal.reserve(run, experience, size)
        assert given.setdefault((run, experience), first) == first
    ids = [first + i for (_, e), first in given.items() for i in range(e % 3 + 1)]
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize(
    "arguments",
    [("", 0, 1), ("r" * 300, 0, 1), (3, 0, 1), ("a", -1, 1), ("a", 0, -1), ("a", 0, 2.5)],
)
def test_what_cannot_be_noted_is_refused_and_no_id_is_lost(tmp_path, arguments):
    with LMDBTier(tmp_path / "db", durability="process") as tier:
        with pytest.raises(BadInputError):
            IdJournal(tier).reserve(*arguments)
        assert IdJournal(tier).reserve("a", np.int64(0), np.int64(2)) == 0
        assert tier.high_water == 2
