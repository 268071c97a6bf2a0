"""The memory: slots in RAM, the swap engine, admission rules and gates. Needs torch only.

The names below are imported when first used: reading a size or a name loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carousel.lazy import lazy_names

if TYPE_CHECKING:
    from carousel.memory.carousel import Carousel
    from carousel.memory.counters import SwapCounters
    from carousel.memory.intake import SampleBatch
    from carousel.memory.replay import Replay
    from carousel.memory.residency import Residency
    from carousel.memory.schema import Schema
    from carousel.memory.stats import CarouselStats

__all__ = [
    "Carousel",
    "CarouselStats",
    "Replay",
    "Residency",
    "SampleBatch",
    "Schema",
    "SwapCounters",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "carousel": ("Carousel",),
        "counters": ("SwapCounters",),
        "intake": ("SampleBatch",),
        "replay": ("Replay",),
        "residency": ("Residency",),
        "schema": ("Schema",),
        "stats": ("CarouselStats",),
    },
)
