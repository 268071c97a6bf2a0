"""Every element is in one chunk, cut where the kernel does not notice."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from carousel.errors import BadInputError
from carousel.offload.plan import CUT, ParamSpec, Plan, Share, make_plan


def specs(*shapes, **options):
    return [ParamSpec(shape, "float32", **options) for shape in shapes]


@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(0, 700), max_size=12),
    chunk=st.sampled_from([64, 128, 256]),
    kinds=st.lists(st.sampled_from(["float32", "bfloat16"]), min_size=12, max_size=12),
)
def test_every_element_is_in_one_chunk(sizes, chunk, kinds):
    made = [ParamSpec((size,), kind) for size, kind in zip(sizes, kinds, strict=False)]
    plan = make_plan(made, chunk)
    found = {number: [] for number in range(len(sizes))}
    for at, part in enumerate(plan.chunks):
        assert part.index == at
        end = 0
        for segment in part.segments:
            assert segment.start % CUT == 0
            assert segment.offset >= end
            end = segment.offset + segment.length
            assert made[segment.param].dtype == part.dtype
            found[segment.param] += range(segment.start, segment.start + segment.length)
        assert end == part.numel <= chunk
    for number, size in enumerate(sizes):
        assert sorted(found[number]) == list(range(size))


def test_what_is_registered_last_comes_first():
    plan = make_plan(specs((64,), (64,)), 64)
    assert [chunk.segments[0].param for chunk in plan.chunks] == [1, 0]


def test_frozen_parameters_have_no_place():
    plan = make_plan([*specs((64,), stored=False), *specs((64,))], 64)
    assert [chunk.segments[0].param for chunk in plan.chunks] == [1]


def test_amsgrad_and_plain_parameters_do_not_share_a_chunk():
    plan = make_plan([*specs((8,)), *specs((8,), amsgrad=True), *specs((8,))], 64)
    assert [(chunk.amsgrad, len(chunk.segments)) for chunk in plan.chunks] == [
        (False, 2),
        (True, 1),
    ]


def test_the_digest_tells_plans_apart_and_a_saved_plan_is_the_same():
    plan = make_plan(specs((100,), (3, 5)), 64)
    others = [
        make_plan(specs((100,), (3, 5)), 128),
        make_plan(specs((100,), (5, 3)), 64),
        make_plan([*specs((100,)), ParamSpec((3, 5), "float64")], 64),
    ]
    assert len({plan.digest, *(other.digest for other in others)}) == 4
    again = Plan.from_json(plan.to_json())
    assert again == plan
    assert again.digest == plan.digest


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_shares_are_all_chunks_and_rounds_are_of_one_dtype(world):
    made = [*specs((64 * 11,), (7,), (9, 9)), ParamSpec((200,), "bfloat16")]
    made += specs((5,), amsgrad=True)
    whole = make_plan(made, 64)
    shares = [make_plan(made, 64, Share(rank, world)) for rank in range(world)]
    everything = [chunk.segments for plan in shares for chunk in plan.chunks]
    assert sorted(everything, key=str) == sorted((c.segments for c in whole.chunks), key=str)
    assert max(len(p.chunks) for p in shares) - min(len(p.chunks) for p in shares) <= 2
    for rank, plan in enumerate(shares):
        assert [chunk.index for chunk in plan.chunks] == list(range(len(plan.chunks)))
        mine = [turn[rank].segments for turn in plan.rounds if turn[rank] is not None]
        assert sorted(mine, key=str) == sorted((c.segments for c in plan.chunks), key=str)
        assert all(len({c.dtype for c in turn if c is not None}) == 1 for turn in plan.rounds)
        assert Plan.from_json(plan.to_json()) == plan
    assert len({plan.digest for plan in shares}) == world


@pytest.mark.parametrize("chunk", [0, -64, 63, 100])
def test_a_chunk_size_that_would_change_results_is_refused(chunk):
    with pytest.raises(BadInputError, match="chunk_numel"):
        make_plan([], chunk)
