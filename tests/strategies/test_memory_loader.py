"""Epochs over the memory alone, and going on in the middle of one."""

import pytest
import torch

from carousel.errors import CheckpointError
from carousel.strategies.memory_loader import MemoryLoader


def loader(mix=7, seed=0):
    made = MemoryLoader(3, seed=seed)
    made.mix = mix
    return made


def epoch(made):
    return [(batch, made.memory_places.tolist()) for batch in made]


def test_every_place_once_in_batches():
    batches = epoch(loader())
    assert [batch for batch, _ in batches] == [[], [], []]
    assert [len(places) for _, places in batches] == [3, 2, 2]
    assert sorted(place for _, places in batches for place in places) == list(range(7))


def test_each_epoch_is_another_permutation_and_a_seed_repeats_them():
    one, other = loader(), loader()
    first, second = epoch(one), epoch(one)
    assert first != second
    assert [epoch(other), epoch(other)] == [first, second]
    assert epoch(loader(seed=1)) != first


def test_an_empty_memory_has_no_batches():
    assert len(loader(mix=0)) == 0
    assert epoch(loader(mix=0)) == []


@pytest.mark.parametrize("stop", [1, 2, 3])
def test_goes_on_behind_the_last_batch(stop):
    whole = loader()
    expected = [epoch(whole), epoch(whole)]
    cut = loader()
    given = []
    for _ in cut:
        given.append(cut.memory_places.tolist())
        if len(given) == stop:
            state = cut.state_dict()
            break
    resumed = MemoryLoader(3, seed=5)
    resumed.load_state_dict(state)
    assert epoch(resumed) == expected[0][stop:]
    assert epoch(resumed) == expected[1]


def test_a_state_of_another_epoch():
    with pytest.raises(CheckpointError, match="batch 9"):
        loader().load_state_dict({**loader().state_dict(), "next_batch": 9})


def test_places_are_indices():
    made = loader()
    next(iter(made))
    assert made.memory_places.dtype == torch.int64


@pytest.mark.parametrize(
    ("mix", "size", "sizes"),
    [(7, 3, [3, 2, 2]), (1, 3, [1]), (3, 2, [2, 1]), (3, 1, [1, 1, 1]), (33, 16, [16, 15, 2])],
)
def test_batch_norm_gets_no_single_row_where_that_can_be(mix, size, sizes):
    made = MemoryLoader(size, seed=0)
    made.mix = mix
    assert [len(made.memory_places) for _ in made] == sizes
    assert len(made) == len(sizes)
