import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from carousel.memory import distinct
from carousel.memory.distinct import DistinctIds


@settings(max_examples=60, deadline=None)
@given(
    batches=st.lists(
        st.lists(st.one_of(st.integers(0, 300), st.integers(0, 2**40)), max_size=50), max_size=12
    )
)
def test_the_count_is_that_of_a_set(batches):
    seen, model = DistinctIds(), set()
    for batch in batches:
        seen.add(np.array(batch, np.int64))
        model |= set(batch)
    assert seen.count == len(model)
    assert seen.complete

    other = DistinctIds()
    other.load_state_dict(seen.state_dict())
    other.add(np.array([5], np.int64))
    assert other.count == len(model | {5})


def test_many_ids_at_once_and_many_batches():
    seen = DistinctIds()
    seen.add(np.arange(200_000))
    for start in range(0, 200_000, 64):
        seen.add(np.arange(start, start + 64))
    assert seen.count == 200_000
    assert seen.nbytes < 100_000


def test_its_memory_is_bounded(monkeypatch):
    monkeypatch.setattr(distinct, "_MOST_PAGES", 3)
    seen = DistinctIds()
    seen.add(np.arange(5) * 2**20)
    assert seen.count == 3
    assert not seen.complete
