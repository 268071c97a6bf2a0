"""The batch-level loader: Avalanche's mini-batches, resumable anywhere, with an exact mix."""

import pytest
import torch
from torch.utils.data import TensorDataset

from carousel.errors import BadInputError, CheckpointError
from carousel.strategies.loader import StreamLoader
from carousel.strategies.raw import raw_source


def source_of(count):
    number = torch.arange(count)
    return raw_source(TensorDataset(number[:, None].float(), number))


def epoch(loader):
    return [(x[:, 0].tolist(), y.tolist()) for x, y in loader]


def test_an_epoch_passes_over_everything_once_in_a_new_order():
    loader = StreamLoader(source_of(50), 8, seed=0)
    first, second = epoch(loader), epoch(loader)
    assert [len(y) for _, y in first] == [8] * 6 + [2]
    for x, y in first:
        assert x == y
    flat = [label for _, y in first for label in y]
    assert sorted(flat) == list(range(50))
    assert flat != list(range(50))
    assert first != second


def test_options_of_the_loader_are_kept():
    kept = epoch(StreamLoader(source_of(10), 4, seed=0, shuffle=False))
    assert [y for _, y in kept] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9]]
    dropped = StreamLoader(source_of(10), 4, seed=0, drop_last=True)
    assert [len(y) for _, y in epoch(dropped)] == [4, 4]
    assert len(dropped) == 2
    doubled = StreamLoader(source_of(3), 4, seed=0, transform=lambda x: 2 * x)
    x, y = next(iter(doubled))
    assert torch.equal(x[:, 0], 2.0 * y)


def test_seeds_and_names_make_orders():
    same = [epoch(StreamLoader(source_of(20), 4, seed=3, name="a")) for _ in range(2)]
    assert same[0] == same[1]
    assert epoch(StreamLoader(source_of(20), 4, seed=3, name="b")) != same[0]
    assert epoch(StreamLoader(source_of(20), 4, seed=4, name="a")) != same[0]


@pytest.mark.parametrize("mix", [0, 7])
@pytest.mark.parametrize("stop", [0, 1, 3, 4])
def test_a_loader_goes_on_where_another_stood(stop, mix):
    def loader():
        made = StreamLoader(source_of(13), 5, seed=1)
        made.mix = mix
        return made

    whole = loader()
    expected = [batches(whole), batches(whole), batches(whole)]
    first = loader()
    done = [batches(first)]
    running = iter(first)
    head = [next(running)[1].tolist() for _ in range(min(stop, len(first)))]
    state = first.state_dict()
    second = loader()
    second.load_state_dict(state)
    assert done[0] == expected[0]
    assert head + batches(second) == expected[1]
    assert batches(second) == expected[2]


def batches(loader):
    return [y.tolist() for _, y in loader]


def test_skipped_batches_are_not_transformed():
    """A transform that draws random numbers must find them as they were."""
    calls = []
    loader = StreamLoader(source_of(12), 4, seed=0)
    running = iter(loader)
    next(running)
    next(running)
    other = StreamLoader(source_of(12), 4, seed=0, transform=lambda x: calls.append(1) or x)
    other.load_state_dict(loader.state_dict())
    assert len(list(other)) == 1
    assert len(calls) == 1


def test_a_state_of_another_stream_is_refused():
    loader = StreamLoader(source_of(50), 4, seed=0)
    list(zip(range(9), loader, strict=False))
    with pytest.raises(CheckpointError):
        StreamLoader(source_of(12), 4, seed=0).load_state_dict(loader.state_dict())


def test_mixing_shuffles_stream_and_memory_together():
    """The mix is exact: over many epochs each batch holds its share of the memory."""
    loader = StreamLoader(source_of(30), 8, seed=0)
    loader.mix = 10
    share = torch.zeros(5)
    for _ in range(300):
        memory, stream = [], []
        for number, (x, y) in enumerate(loader):
            assert len(y) + len(loader.memory_places) == 8
            assert torch.equal(loader.rows, y)
            assert len(x) == len(y)
            memory += loader.memory_places.tolist()
            stream += y.tolist()
            share[number] += len(loader.memory_places)
        assert sorted(memory) == list(range(10))
        assert sorted(stream) == list(range(30))
    # 2 of 8 rows on average, standard error 0.06
    assert (share / 300 - 2).abs().max() < 0.3


def test_room_for_the_memory_is_kept_behind_the_batch():
    loader = StreamLoader(source_of(10), 4, seed=0)
    loader.room = 3
    for x, y in loader:
        joint, tail = loader.batch_and_tail(x)
        tail.fill_(-1)
        assert joint[:, 0].tolist() == [*y.tolist(), -1, -1, -1]
        assert loader.batch_and_tail(x.clone()) is None
    loader.room = 0
    x, _ = next(iter(loader))
    assert loader.batch_and_tail(x) is None


def test_it_needs_tensors():
    with pytest.raises(BadInputError, match="plain tensors"):
        StreamLoader(raw_source([(torch.zeros(2), 0), (torch.zeros(2), 1)]), 2, seed=0)
