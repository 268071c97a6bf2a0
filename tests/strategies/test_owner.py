"""A memory follows the rules of one strategy, and no other one trains with it."""

import itertools

import pytest
from avalanche.training.supervised import Naive

from carousel.errors import BadInputError
from carousel.storage import MemoryTier
from carousel.strategies import (
    ER,
    BiC,
    CarMPlugin,
    DERPlusPlus,
    GDumb,
    ICaRL,
    RainbowMemory,
    TinyER,
)

METHODS = (ER, TinyER, ICaRL, BiC, GDumb, DERPlusPlus, RainbowMemory)


def build(kind, helpers, memory):
    model = helpers.model()
    return kind(model=model, optimizer=helpers.sgd(model), memory=memory, train_epochs=1)


@pytest.mark.parametrize(("first", "second"), itertools.pairwise((*METHODS, ER)))
def test_the_last_strategy_made_has_its_rules_and_its_say(helpers, stream, first, second):
    with CarMPlugin(40, MemoryTier(), sync=True, seed=0) as memory:
        before = build(first, helpers, memory)
        after = build(second, helpers, memory)
        with CarMPlugin(40, MemoryTier(), sync=True, seed=0) as fresh:
            alone = build(second, helpers, fresh)
            names = ("replay", "admission", "gate", "batch_size_mem", "draws")
            for name in names:
                assert getattr(memory.rules, name) == getattr(fresh.rules, name)
            assert (memory.hold_out is None) == (second is not BiC)
            del alone
        with pytest.raises(BadInputError, match=r"was set up for .*CarMPlugin of its own"):
            before.train(stream[0], eval_streams=[])
        assert memory.carousel.schema is None
        after.train(stream[0], eval_streams=[])
        assert memory.carousel.filled


def test_a_method_may_be_made_again_on_a_memory_in_use(helpers, stream):
    with CarMPlugin(40, MemoryTier(), sync=True, seed=0) as memory:
        for kind in (BiC, BiC):
            strategy = build(kind, helpers, memory)
            for experience in stream[:2]:
                strategy.train(experience, eval_streams=[])
        assert memory.carousel.stats().distinct_samples_replayed


def test_a_plugin_of_a_method_is_none_for_a_plain_strategy(helpers, stream):
    with CarMPlugin(40, MemoryTier(), sync=True, seed=0) as memory:
        build(BiC, helpers, memory)
        model = helpers.model()
        naive = Naive(model=model, optimizer=helpers.sgd(model), plugins=[memory], evaluator=None)
        with pytest.raises(BadInputError, match="set up for BiC"):
            naive.train(stream[0], eval_streams=[])


@pytest.mark.parametrize("kind", [ER, BiC, ICaRL])
def test_a_memory_that_lacks_the_experience_is_no_stream(helpers, kind):
    with (
        CarMPlugin(40, MemoryTier(), replay="memory") as memory,
        pytest.raises(BadInputError, match="learns new classes from the stream"),
    ):
        build(kind, helpers, memory)
