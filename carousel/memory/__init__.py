"""The memory: slots in RAM, the swap engine, admission rules and gates. Needs torch only."""

from __future__ import annotations

from carousel.memory.carousel import Carousel
from carousel.memory.counters import SwapCounters
from carousel.memory.intake import SampleBatch
from carousel.memory.replay import Replay
from carousel.memory.schema import Schema
from carousel.memory.stats import CarouselStats

__all__ = ["Carousel", "CarouselStats", "Replay", "SampleBatch", "Schema", "SwapCounters"]
