from __future__ import annotations

from carousel.errors import WorkerError
from carousel.memory.counters import SwapCounters
from carousel.memory.stats import CarouselStats
from carousel.runs.outcome import problems_of
from carousel.storage import TierStats


def test_a_good_run_has_no_problems():
    assert problems_of(None, None) == []
    assert problems_of(CarouselStats(SwapCounters(), TierStats()), None) == []


def test_every_trouble_that_training_survived_is_told():
    stats = CarouselStats(
        SwapCounters(),
        TierStats(corrupt=3),
        ram_only=True,
        storage_full=True,
        restore_losses=2,
    )
    told = " / ".join(problems_of(stats, WorkerError("the worker broke")))
    for words in (
        "WorkerError: the worker broke",
        "full",
        "without swaps",
        "3 records",
        "2 samples",
    ):
        assert words in told, words
