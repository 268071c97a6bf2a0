"""The settings that come with Carousel, a method and benchmark each, for the methods of a study."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from carousel.runs.config import read_config_file
from carousel.runs.shipped import list_shipped, shipped_path

__all__ = ["BOUNDS", "settings_on"]

BOUNDS = ("naive", "joint")
"""Strategies without a memory that stand in every study, as lower and upper bound."""

_BOUNDS_TRAIN_LIKE = "er"

_OF_THE_STUDY = ("strategy", "benchmark", "seed")


def settings_on(
    benchmark: Any, strategies: Sequence[str]
) -> tuple[tuple[str, ...], dict[str, dict[str, Any]]]:
    """Settings of each strategy for a benchmark; those of ER for the bounds.

    Args:
        benchmark: a name; anything else has no settings.
        strategies: names.

    Returns:
        Names of the files, and settings by strategy; nothing for those without a file.

    Example:
        >>> names, settings = settings_on("split-digits", ["er", "naive"])
        >>> names, "epochs" in settings["naive"]
        (('er-digits',), True)
    """
    files = {
        config.strategy: config.name
        for config in reversed(list_shipped())
        if config.benchmark == benchmark
    }
    like = {name: _BOUNDS_TRAIN_LIKE if name in BOUNDS else name for name in strategies}
    found = {name: files[model] for name, model in like.items() if model in files}
    return tuple(dict.fromkeys(found.values())), {n: _read(file) for n, file in found.items()}


def _read(name: str) -> dict[str, Any]:
    settings = read_config_file(shipped_path(name))
    return {key: value for key, value in settings.items() if key not in _OF_THE_STUDY}
