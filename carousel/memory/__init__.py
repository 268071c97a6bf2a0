"""The memory: slots in RAM, the swap engine, admission rules and gates. Needs torch only.

The names below are imported when first used: reading a size or a name loads no torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from carousel.memory.carousel import Carousel
    from carousel.memory.counters import SwapCounters
    from carousel.memory.intake import SampleBatch
    from carousel.memory.replay import Replay
    from carousel.memory.schema import Schema
    from carousel.memory.stats import CarouselStats

__all__ = ["Carousel", "CarouselStats", "Replay", "SampleBatch", "Schema", "SwapCounters"]

_HOMES = {
    "Carousel": "carousel",
    "CarouselStats": "stats",
    "Replay": "replay",
    "SampleBatch": "intake",
    "Schema": "schema",
    "SwapCounters": "counters",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"carousel.memory.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'carousel.memory' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
