"""Strategies by name."""

import subprocess
import sys

import pytest

from carousel.errors import BadInputError
from carousel.storage import MemoryTier
from carousel.strategies import (
    ER,
    CarMPlugin,
    Joint,
    Naive,
    make_strategy,
    strategy_info,
)


def make(name, helpers, options=None, **common):
    model = helpers.model()
    common = {"model": model, "optimizer": helpers.sgd(model), **common}
    return make_strategy(name, options, **common)


def test_listing_needs_neither_torch_nor_avalanche():
    script = """
import sys
from carousel.strategies import list_strategies, strategy_info
assert {"er", "joint", "naive"} <= set(list_strategies())
assert strategy_info("er").options["loss"] == "ce"
assert not {"torch", "avalanche"} & set(sys.modules)
"""
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


@pytest.mark.parametrize("name", ["er", "naive", "joint"])
def test_every_strategy_trains(helpers, stream, name):
    info = strategy_info(name)
    common = {"storage": MemoryTier(), "memory_size": 40} if info.has_memory else {}
    strategy = make(name, helpers, train_mb_size=16, train_epochs=2, **common)
    assert type(strategy) is {"er": ER, "naive": Naive, "joint": Joint}[name]
    assert (strategy.memory is not None) == info.has_memory
    for experience in stream[:2]:
        strategy.train(experience, eval_streams=[])
    assert strategy.clock.train_exp_counter == 2
    assert strategy.train_epochs == 2
    if info.has_memory:
        assert isinstance(strategy.memory, CarMPlugin)
        assert strategy.memory.carousel.stats().filled == 40
        strategy.memory.close()


def test_options_reach_the_strategy(helpers):
    strategy = make(
        "er",
        helpers,
        {"loss": "bce", "replay": "mixed", "admission": "reservoir", "batch_size_mem": 7},
        storage=MemoryTier(),
        memory_size=40,
        seed=5,
        run="a",
    )
    memory = strategy.memory
    assert (memory.rules.replay, memory.rules.batch_size_mem, memory.seed, memory.run) == (
        "mixed",
        7,
        5,
        "a",
    )
    assert type(strategy._criterion).__name__ == "SeenClassesBCE"
    memory.close()


@pytest.mark.parametrize(
    ("name", "options", "common", "match"),
    [
        ("err", {}, {}, "unknown strategy 'err': did you mean er"),
        ("er", {"los": "ce"}, {}, "unknown option of er 'los': did you mean loss"),
        ("naive", {"replay": "mixed"}, {}, "unknown option of naive 'replay': there are: loss"),
        ("er", {}, {"memorysize": 4}, "unknown argument 'memorysize': did you mean memory_size"),
        ("er", {}, {}, "storage is None"),
        ("er", {"loss": "mse"}, {"storage": MemoryTier}, "loss is 'mse'"),
        ("naive", {"loss": "mse"}, {}, "loss is 'mse'"),
        ("er", {"replay": "x"}, {"storage": MemoryTier}, "replay is 'x'"),
    ],
)
def test_bad_input(helpers, name, options, common, match):
    if common.get("storage") is MemoryTier:
        common = {"storage": MemoryTier()}
    with pytest.raises(BadInputError, match=match):
        make(name, helpers, options, **common)
