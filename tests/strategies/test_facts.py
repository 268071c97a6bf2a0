"""What strategies get to know about a stream before they train on it."""

from __future__ import annotations

import pytest
import torch
from avalanche.benchmarks import split_online_stream

from carousel.data import load_stream, to_benchmark
from carousel.errors import BadInputError
from carousel.storage import MemoryTier
from carousel.strategies import CarMPlugin, LeanTemplate
from carousel.strategies.facts import StreamFacts, facts_of


@pytest.mark.parametrize("online", [False, True])
def test_both_families_tell_of_the_whole_stream(stream, online):
    if online:
        stream = split_online_stream(stream, 16)
    facts = facts_of(next(iter(stream)))
    assert facts == StreamFacts(10, (1, 8, 8), torch.uint8, task_labels=False)


@pytest.mark.parametrize("online", [False, True])
def test_task_labels_are_seen_where_they_differ(helpers, online):
    streams = [
        helpers.old_family(helpers.ToFloat(), task_labels=True).train_stream,
        to_benchmark(load_stream("split-digits"), task_labels=True).train_stream,
    ]
    for stream in streams:
        first = next(iter(split_online_stream(stream, 16) if online else stream))
        assert facts_of(first).task_labels
        assert facts_of(first).n_classes == 10


class Picky(LeanTemplate):
    """Wants two slots a class."""

    def check_stream(self, facts):
        self.seen = facts
        if facts.slots is not None and facts.slots < 2 * facts.n_classes:
            raise BadInputError("too few slots", fix="give more")


@pytest.mark.parametrize("slots", [19, 20])
def test_a_strategy_refuses_before_anything_is_stored(stream, helpers, slots):
    model = helpers.model()
    with CarMPlugin(slots, MemoryTier(), seed=0) as memory:
        strategy = Picky(
            model=model,
            optimizer=helpers.sgd(model),
            criterion=torch.nn.CrossEntropyLoss(),
            plugins=[memory],
            evaluator=None,
        )
        strategy.memory = memory
        if slots == 20:
            strategy.train(stream[0])
            assert strategy.seen.input_shape == (1, 8, 8)
            return
        with pytest.raises(BadInputError, match="too few slots"):
            strategy.train(stream[0])
        assert len(memory.carousel.tier.entries()) == 0
        assert memory.carousel.tier.high_water == 0


def test_pieces_of_an_experience_are_checked_once(stream, helpers):
    class Counts(Picky):
        checks = 0

        def check_stream(self, facts):
            self.checks += 1

    model = helpers.model()
    strategy = Counts(
        model=model,
        optimizer=helpers.sgd(model),
        criterion=torch.nn.CrossEntropyLoss(),
        evaluator=None,
    )
    for experience in stream[:2]:
        for piece in split_online_stream([experience], 50):
            strategy.train(piece)
    assert strategy.checks == 2
