"""Continual-learning strategies and plugins for Avalanche, imported when first used.

Example:
    >>> from carousel.strategies import list_strategies
    >>> "er" in list_strategies()
    True
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from carousel.lazy import lazy_names
from carousel.strategies.registry import (
    StrategyInfo,
    list_strategies,
    make_strategy,
    register_strategy,
    strategy_info,
)

if TYPE_CHECKING:
    from carousel.strategies.bic import BiC
    from carousel.strategies.bounds import Joint, Naive
    from carousel.strategies.checkpoint import RunCheckpoint
    from carousel.strategies.der import DERPlusPlus
    from carousel.strategies.er import ER
    from carousel.strategies.fast import FastLoader
    from carousel.strategies.gdumb import GDumb
    from carousel.strategies.icarl import ICaRL
    from carousel.strategies.lean import LeanTemplate
    from carousel.strategies.loader import StreamLoader
    from carousel.strategies.loss import SeenClassesBCE
    from carousel.strategies.milestones import StepSchedule
    from carousel.strategies.plugin import CarMPlugin
    from carousel.strategies.rainbow import RainbowMemory
    from carousel.strategies.tiny_er import TinyER

__all__ = [
    "ER",
    "BiC",
    "CarMPlugin",
    "DERPlusPlus",
    "FastLoader",
    "GDumb",
    "ICaRL",
    "Joint",
    "LeanTemplate",
    "Naive",
    "RainbowMemory",
    "RunCheckpoint",
    "SeenClassesBCE",
    "StepSchedule",
    "StrategyInfo",
    "StreamLoader",
    "TinyER",
    "list_strategies",
    "make_strategy",
    "register_strategy",
    "strategy_info",
]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "bic": ("BiC",),
        "bounds": ("Joint", "Naive"),
        "checkpoint": ("RunCheckpoint",),
        "der": ("DERPlusPlus",),
        "er": ("ER",),
        "fast": ("FastLoader",),
        "gdumb": ("GDumb",),
        "icarl": ("ICaRL",),
        "lean": ("LeanTemplate",),
        "loader": ("StreamLoader",),
        "loss": ("SeenClassesBCE",),
        "milestones": ("StepSchedule",),
        "plugin": ("CarMPlugin",),
        "rainbow": ("RainbowMemory",),
        "tiny_er": ("TinyER",),
    },
    also=("StrategyInfo", "list_strategies", "make_strategy", "register_strategy", "strategy_info"),
)
