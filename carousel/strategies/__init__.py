"""Continual-learning strategies and plugins for Avalanche, imported when first used.

Example:
    >>> from carousel.strategies import list_strategies
    >>> list_strategies()
    ['er', 'joint', 'naive']
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from carousel.strategies.registry import (
    StrategyInfo,
    list_strategies,
    make_strategy,
    register_strategy,
    strategy_info,
)

if TYPE_CHECKING:
    from carousel.strategies.bounds import Joint, Naive
    from carousel.strategies.checkpoint import RunCheckpoint
    from carousel.strategies.er import ER
    from carousel.strategies.fast import FastLoader
    from carousel.strategies.lean import LeanTemplate
    from carousel.strategies.loader import StreamLoader
    from carousel.strategies.loss import SeenClassesBCE
    from carousel.strategies.plugin import CarMPlugin

__all__ = [
    "ER",
    "CarMPlugin",
    "FastLoader",
    "Joint",
    "LeanTemplate",
    "Naive",
    "RunCheckpoint",
    "SeenClassesBCE",
    "StrategyInfo",
    "StreamLoader",
    "list_strategies",
    "make_strategy",
    "register_strategy",
    "strategy_info",
]

_HOMES = {
    "ER": "er",
    "CarMPlugin": "plugin",
    "FastLoader": "fast",
    "Joint": "bounds",
    "LeanTemplate": "lean",
    "Naive": "bounds",
    "RunCheckpoint": "checkpoint",
    "SeenClassesBCE": "loss",
    "StreamLoader": "loader",
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"carousel.strategies.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'carousel.strategies' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
