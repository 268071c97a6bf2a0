"""Named random streams: repeatable, independent, and saved as JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from carousel.errors import BadInputError, CheckpointError
from carousel.memory.seeds import fresh_seed, generator, load_state, state_of


def test_the_same_seed_and_name_repeat():
    assert (generator(7, "gate").random(5) == generator(7, "gate").random(5)).all()


def test_names_and_seeds_give_other_streams():
    draws = [generator(seed, name).random(4) for seed in (0, 1) for name in ("gate", "draw", "g")]
    assert len({tuple(draw) for draw in draws}) == len(draws)


def test_streams_of_one_seed_are_not_correlated():
    first, second = generator(3, "sample").random(20_000), generator(3, "admission").random(20_000)
    assert abs(np.corrcoef(first, second)[0, 1]) < 0.03


def test_state_goes_through_json_and_goes_on():
    rng = generator(1, "draw")
    rng.random(3)
    rng.integers(0, 5, dtype=np.uint32)  # leaves half a draw buffered
    text = json.dumps(state_of(rng))
    other = generator(99, "something else")
    load_state(other, json.loads(text))
    assert (other.integers(0, 1000, 50) == rng.integers(0, 1000, 50)).all()


@pytest.mark.parametrize("seed", [-1, 1.5, "0", None, True])
def test_bad_seeds_are_refused(seed):
    with pytest.raises(BadInputError, match="seed is"):
        generator(seed, "gate")


def test_fresh_seeds_are_valid_and_differ():
    one, other = fresh_seed(), fresh_seed()
    assert one != other
    assert 0 <= one < 2**63
    generator(one, "gate")


@pytest.mark.parametrize(
    "state",
    [{}, {"state": 3}, {"state": {"state": "x"}}, {"bit_generator": "MT19937", "state": {}}],
)
def test_a_state_that_is_none_is_refused(state):
    with pytest.raises(CheckpointError, match="no state of a random generator"):
        load_state(generator(0, "gate"), state)


def test_other_bit_generators_are_refused():
    with pytest.raises(BadInputError, match="MT19937"):
        state_of(np.random.Generator(np.random.MT19937(0)))
