import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from carousel.memory import residents
from carousel.memory.residents import Residents


@settings(max_examples=100, deadline=None)
@given(
    changes=st.lists(
        st.tuples(st.sampled_from(["swap", "fill", "empty", "refresh"]), st.integers(0, 7)),
        max_size=60,
    ),
    most=st.sampled_from([2, 5, 1000]),
)
def test_the_set_follows_the_column_also_when_notes_were_thrown_away(changes, most):
    column = np.full(8, -1)
    followed = Residents(column)
    fresh, epoch = 0, 0
    before, residents._MOST_CHANGES = residents._MOST_CHANGES, most
    try:
        for kind, slot in changes:
            held = [int(column[slot])] if column[slot] >= 0 else []
            fresh += 1
            if kind == "swap" and held:
                column[slot] = fresh
                followed.swapped(held, [fresh])
            elif kind == "fill":
                column[slot] = fresh
                followed.admitted(held, [fresh])
            elif kind == "empty":
                column[slot] = -1
                followed.admitted(held, [])
            elif kind == "refresh":
                followed.refresh()
            assert (followed.epoch > epoch) == (kind in ("fill", "empty"))
            epoch = followed.epoch
            assert len(followed._changes) <= most
        followed.refresh()
        present = {sample for sample in range(fresh + 1) if sample in followed}
        assert present == set(column[column >= 0].tolist())
    finally:
        residents._MOST_CHANGES = before
