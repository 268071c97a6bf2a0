"""Every budget is kept to, and what does not fit is refused with a table."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carousel.errors import BadInputError
from carousel.offload.plan import ParamSpec
from carousel.offload.room import LARGEST_CHUNK, Wishes, make_room, size_chunks

MIB = 1 << 20


def wishes(budget, **options):
    given = {
        "chunk_numel": None,
        "ring": None,
        "workers": 3,
        "masters": True,
        "recoverable": True,
        "stored": True,
    }
    return Wishes(budget=budget, **given | options)


def specs(*sizes, dtype="float32"):
    return [ParamSpec((size,), dtype) for size in sizes]


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(1, 5_000_000), min_size=1, max_size=6),
    budget=st.integers(MIB, 200 * MIB),
    dtype=st.sampled_from(["float32", "bfloat16"]),
)
def test_the_budget_is_kept_to(sizes, budget, dtype):
    wish = wishes(budget)
    room = make_room(size_chunks(specs(*sizes, dtype=dtype), wish), wish)
    assert room.used_bytes <= budget
    assert room.ring >= wish.least_ring
    assert room.pinned_bytes <= room.state_bytes


def test_sixteen_mebibytes_are_enough_for_any_model():
    wish = wishes(16 * MIB)
    room = make_room(size_chunks(specs(100_000_000), wish), wish)
    assert room.used_bytes <= 16 * MIB
    assert room.ring == 6


def test_without_a_budget_all_is_pinned_and_chunks_are_large():
    wish = wishes(None, stored=False)
    plan = size_chunks(specs(5_000_000), wish)
    room = make_room(plan, wish)
    assert plan.chunk_numel == LARGEST_CHUNK
    assert (room.pinned, room.ring) == (len(plan.chunks), 0)
    assert room.used_bytes == room.state_bytes == 8 * 5_000_000


def test_more_budget_pins_more():
    pinned = []
    for budget in (16, 24, 32, 48):
        wish = wishes(budget * MIB, chunk_numel=1 << 16)
        pinned.append(make_room(size_chunks(specs(8_000_000), wish), wish).pinned_bytes)
    steps = [b - a for a, b in pairwise(pinned)]
    assert pinned[0] > 0
    assert all(abs(step / MIB - more) <= 0.5 for step, more in zip(steps, (8, 8, 16), strict=True))


def test_too_small_a_budget_is_refused_with_a_table():
    wish = wishes(100_000)
    with pytest.raises(BadInputError, match=r"ring +4 buffers of \d+ +\d+ bytes") as caught:
        make_room(size_chunks(specs(1_000_000), wish), wish)
    assert "needed" in str(caught.value)


def test_a_budget_without_storage_has_to_hold_all():
    wish = wishes(MIB, stored=False)
    with pytest.raises(BadInputError, match="give storage=PATH"):
        make_room(size_chunks(specs(1_000_000), wish), wish)
    make_room(size_chunks(specs(100_000), wish), wish)


def test_no_parameters_need_no_room():
    wish = wishes(MIB)
    assert make_room(size_chunks([], wish), wish).used_bytes == 0
