"""The runs of a study: every method with and without swapping, for every seed and setting."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any

from carousel.errors import BadInputError
from carousel.report.study.results import Point, point_text
from carousel.runs.config import OPTION_PREFIX, TrainConfig, resolve_config
from carousel.runs.folder import RunFolder
from carousel.runs.launch import MAY_CHANGE
from carousel.runs.precheck import METHOD_FLAGS, strategy_options
from carousel.runs.study.settings import Study, sweep_values
from carousel.runs.study.shipped import BOUNDS
from carousel.strategies.registry import strategy_info

__all__ = ["Cell", "make_grid"]

_OF_SWAPS = ("swap_ratio", "gate", "storage_budget", "durability")
"""Settings without a meaning for a run that does not swap: its memory in RAM decides alone."""

_OF_MEMORY = ("memory_size", "sync", *_OF_SWAPS, *METHOD_FLAGS)
"""Settings without a meaning for a strategy that keeps no samples."""

_LONGEST_POINT = 60


@dataclass(frozen=True, slots=True)
class Cell:
    """One run of the grid.

    Args:
        strategy: its name.
        swap: whether it swaps; None for a strategy without a memory.
        seed: of everything random.
        point: the swept settings among its settings.
        settings: flat keys, as ``carousel train`` takes them.
    """

    strategy: str
    swap: bool | None
    seed: int
    point: Point
    settings: Mapping[str, Any]

    @property
    def config(self) -> TrainConfig:
        """The settings of the run.

        Raises:
            BadInputError: one cannot be used.
        """
        return resolve_config(command_line=self.settings)

    @property
    def label(self) -> str:
        """For people: ``er with swaps, seed 0, swap_ratio=0.2``."""
        kind = {None: "", True: " with swaps", False: " without swaps"}[self.swap]
        swept = f", {point_text(self.point)}" if self.point else ""
        return f"{self.strategy}{kind}, seed {self.seed}{swept}"

    @property
    def name(self) -> str:
        """Of a new folder for the run: readable, then the digest."""
        kind = {None: [], True: ["swap"], False: ["plain"]}[self.swap]
        swept = [point_text(self.point)[:_LONGEST_POINT]] if self.point else []
        words = "-".join([self.strategy, *kind, f"seed{self.seed}", *swept])
        safe = "".join(c if c.isalnum() or c in "-_=.+" else "-" for c in words)
        return f"{safe}-{self.digest}"

    @property
    def digest(self) -> str:
        """Tells settings apart; those left at their defaults are not in it.

        So a setting that a later version adds does not make all runs look new.
        """
        config = self.config
        given = config.model_dump(mode="json", exclude_defaults=True, exclude={"options"})
        defaults = strategy_info(self.strategy).options
        options = {k: v for k, v in strategy_options(config).items() if v != defaults.get(k)}
        flat = {k: v for k, v in given.items() if k not in MAY_CHANGE and k not in METHOD_FLAGS}
        text = json.dumps([flat, options], sort_keys=True, default=str)
        return hashlib.sha256(text.encode()).hexdigest()[:8]

    def check_same(self, folder: RunFolder) -> None:
        """Refuse a run that was started when defaults were other ones.

        Raises:
            BadInputError: names the first setting that differs.
        """
        saved = _decisive(folder.read_config())
        for key, value in _decisive(self.config).items():
            if value is not None and key in saved and saved[key] != value:
                raise BadInputError(
                    f"{key} was {saved[key]!r} in the run {folder.path} and is {value!r} now",
                    fix="give --fresh to train the study anew, or another --out",
                )


def make_grid(study: Study) -> tuple[Cell, ...]:
    """All runs of a study, each once, seed by seed.

    Raises:
        BadInputError: a setting cannot be used; nothing was written.
    """
    names = dict.fromkeys([*study.strategies, *(BOUNDS if study.bounds else ())])
    cells: dict[str, Cell] = {}
    seeds = dict.fromkeys(seed for name in names for seed in study.seeds_of(name))
    for seed in sorted(seeds):
        for name in names:
            if seed in study.seeds_of(name):
                for cell in _cells(study, name, seed):
                    cells.setdefault(cell.digest, cell)
    if not cells:
        raise BadInputError("the study has no runs", fix="name a strategy with a memory")
    return tuple(cells.values())


def _cells(study: Study, strategy: str, seed: int) -> Iterator[Cell]:
    settings = study.settings_of(strategy)
    sweeps = {
        key: values
        for key, value in settings.items()
        if (values := sweep_values(key, value)) is not None
    }
    kinds: tuple[bool | None, ...] = (None,)
    if strategy_info(strategy).has_memory:
        kinds = {"both": (False, True), "on": (True,), "off": (False,)}[study.swap]
    for choice in product(*sweeps.values()):
        swept = dict(zip(sweeps, choice, strict=True))
        for kind in kinds:
            meant = _meant(strategy, kind, {**settings, **swept})
            point = tuple(sorted((k, _hashable(v)) for k, v in swept.items() if k in meant))
            flat = {"strategy": strategy, "seed": seed, **meant}
            yield Cell(strategy, kind, seed, point, flat | ({} if kind is not False else _PLAIN))


_PLAIN = {"no_swap": True}


def _meant(strategy: str, swap: bool | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that matter to a run; common ones may be meant for the others."""
    if swap:
        return dict(settings)
    if swap is False:
        return {key: value for key, value in settings.items() if key not in _OF_SWAPS}
    known = {OPTION_PREFIX + name for name in strategy_info(strategy).options}
    return {
        key: value
        for key, value in settings.items()
        if key not in _OF_MEMORY and (key in known or not key.startswith(OPTION_PREFIX))
    }


def _decisive(config: TrainConfig) -> dict[str, Any]:
    """What decides a run's result, defaults of its strategy filled in."""
    flat = config.model_dump(mode="json", exclude={"options", "storage", *MAY_CHANGE})
    return flat | strategy_options(config)


def _hashable(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, list | dict) else value
