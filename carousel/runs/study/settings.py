"""What a study compares: methods, seeds, with or without swapping, and settings to sweep.

The file of a study holds the keys of ``carousel train`` for all of its runs, and ``strategies``,
``seeds``, ``swap`` and ``bounds`` of its own. A list where a run takes one value is a sweep.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, get_args, get_origin

import yaml

from carousel.errors import BadInputError
from carousel.runs.config import (
    OPTION_PREFIX,
    TrainConfig,
    parse_assignments,
    read_config_file,
    yaml_text,
)
from carousel.runs.study.shipped import BOUNDS, settings_on
from carousel.strategies.registry import list_strategies, strategy_info

__all__ = ["OWN_KEYS", "Study", "Swap", "dump_study", "plan_study", "read_study", "sweep_values"]

Swap: TypeAlias = Literal["both", "on", "off"]

OWN_KEYS = ("strategies", "seeds", "swap", "bounds")
"""Keys of a study that a run has not."""

_TAKEN = {
    "strategy": "--strategies",
    "seed": "--seeds",
    "no_swap": "--swap",
    "out": "--out",
    "storage": "--out; every run has its storage in its own folder",
    "logger": "nothing: every run keeps its metrics",
}
"""Keys of a run that the grid decides, and where to give them instead."""

_USUAL_SEEDS = 3


@dataclass(frozen=True, slots=True)
class Study:
    """What is compared.

    Args:
        strategies: settings of each method's own by its name, which may be lists to sweep;
            `"seeds"` among them are that method's own seeds.
        common: settings of all runs, by flat keys; lists are swept.
        seeds: of the runs; those of one seed are pairs.
        swap: whether each method runs with swapping, without, or both.
        bounds: whether `naive` and `joint` run too.
        shipped: names of the files that come with Carousel of which methods have settings.
    """

    strategies: Mapping[str, Mapping[str, Any]]
    common: Mapping[str, Any] = field(default_factory=dict)
    seeds: tuple[int, ...] = (0, 1, 2)
    swap: Swap = "both"
    bounds: bool = True
    shipped: tuple[str, ...] = field(default=(), compare=False)

    def seeds_of(self, strategy: str) -> tuple[int, ...]:
        """The seeds of a method; a bound has those of all methods."""
        own = self.strategies.get(strategy, {}).get("seeds")
        if own is not None:
            return tuple(own)
        if strategy_info(strategy).has_memory:
            return self.seeds
        others = (self.strategies[name].get("seeds", self.seeds) for name in self.strategies)
        return tuple(sorted({seed for seeds in others for seed in seeds}))

    @property
    def benchmark(self) -> str:
        """The stream that most runs learn, for the name of a folder."""
        value = self.common.get("benchmark", TrainConfig.model_fields["benchmark"].default)
        return str(value[0] if isinstance(value, list) else value)

    def settings_of(self, strategy: str) -> dict[str, Any]:
        """Settings of a method: the common ones, then its own."""
        own = self.strategies.get(strategy, {})
        return {**self.common, **{key: value for key, value in own.items() if key != "seeds"}}


def plan_study(
    *,
    file: Mapping[str, Any] | None = None,
    strategies: str | None = None,
    benchmark: str | None = None,
    seeds: str | None = None,
    swap: str | None = None,
    assignments: Iterable[str] = (),
    bounds: bool | None = None,
    defaults: bool = False,
) -> Study:
    """A study from its file and the command line, which wins.

    Args:
        file: keys of the study's file.
        strategies: names with commas between them, or ``"all"`` that have a memory.
        benchmark: stream to learn.
        seeds: how many (``"3"`` is 0, 1 and 2), or which (``"0,5"``, or ``"7,"`` for one).
        swap: ``"both"``, ``"on"`` or ``"off"``.
        assignments: ``key=value`` pairs; several values with commas between them are a sweep.
        bounds: whether `naive` and `joint` run too.
        defaults: whether to start from the defaults of `carousel train`. Else, without a file,
            each method has the settings that come with Carousel for the benchmark, if any.

    Raises:
        BadInputError: a value cannot be used; nothing was written.

    Example:
        >>> sweep = ["swap_ratio=0.2,0.5"]
        >>> study = plan_study(strategies="er", seeds="2", assignments=sweep, defaults=True)
        >>> study.seeds, study.common
        ((0, 1), {'swap_ratio': [0.2, 0.5]})
    """
    given = dict(file or {})
    own = {key: given.pop(key) for key in OWN_KEYS if key in given}
    if strategies is None and not own.get("strategies") and "strategy" in given:
        own["strategies"] = str(given.pop("strategy"))  # the file of a run
    in_file = _methods(own.get("strategies", {}))
    names = parse_strategies(strategies) if strategies is not None else list(in_file)
    if not names:
        raise BadInputError("no strategies are named", fix='give --strategies er, or "all"')
    assigned = _assigned(assignments)
    if benchmark is not None:
        assigned["benchmark"] = benchmark
    with_bounds = _flag("bounds", own.get("bounds", True) if bounds is None else bounds)
    names += [name for name in BOUNDS if with_bounds and name in in_file and name not in names]
    common = {**{_key(key): _plain(value) for key, value in given.items()}, **assigned}
    shipped: tuple[str, ...] = ()
    if file is None and not defaults:
        stream = assigned.get("benchmark", TrainConfig.model_fields["benchmark"].default)
        names += [name for name in BOUNDS if with_bounds and name not in names]
        shipped, in_file = settings_on(stream, names)
    study = Study(
        # The command line wins over what the file says of one method.
        strategies={name: _without(in_file.get(name, {}), assigned) for name in names},
        common=common,
        seeds=_seeds(own.get("seeds", _USUAL_SEEDS) if seeds is None else seeds),
        swap=_swap(own.get("swap", "both") if swap is None else swap),
        bounds=with_bounds,
        shipped=shipped,
    )
    for settings in (study.common, *in_file.values()):
        _check_keys(settings)
    return study


def dump_study(study: Study) -> str:
    """The study as YAML that `plan_study` takes as its file."""
    content = {
        "strategies": {name: dict(own) for name, own in study.strategies.items()},
        "seeds": list(study.seeds),
        "swap": study.swap,
        "bounds": study.bounds,
        **study.common,
    }
    plain = yaml.safe_load(yaml.safe_dump(content))  # no aliases for equal lists
    return yaml_text(plain)


def parse_strategies(text: str) -> list[str]:
    """Names with commas between them, without repetitions; ``all`` are those with a memory.

    Raises:
        BadInputError: there is no strategy of such a name; suggests the nearest.
    """
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name != "all":
            strategy_info(name)
    if "all" in names:
        everyone = [name for name in list_strategies() if strategy_info(name).has_memory]
        names = [*everyone, *(name for name in names if name != "all")]
    return list(dict.fromkeys(names))


def sweep_values(key: str, value: Any) -> list[Any] | None:
    """The values of a sweep, None for a single value.

    A setting that is a list in itself is swept by a list of lists.

    Example:
        >>> sweep_values("swap_ratio", [0.2, 0.5]), sweep_values("swap_ratio", 0.2)
        ([0.2, 0.5], None)
    """
    if not isinstance(value, list):
        return None
    if _takes_list(key) and not (value and all(isinstance(one, list) for one in value)):
        return None
    return value


def _takes_list(key: str) -> bool:
    if key.startswith(OPTION_PREFIX):
        name = key.removeprefix(OPTION_PREFIX)
        defaults = (strategy_info(s).options.get(name) for s in list_strategies())
        return any(isinstance(default, list | tuple) for default in defaults)
    if key not in TrainConfig.model_fields:
        return False
    annotation = TrainConfig.model_fields[key].annotation
    kinds = {get_origin(kind) or kind for kind in (annotation, *get_args(annotation))}
    return bool(kinds & {list, tuple})


def _assigned(assignments: Iterable[str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for assignment in assignments:
        ((key, value),) = parse_assignments([assignment]).items()
        if _key(key) in found:
            raise BadInputError(
                f"--set {key} is given twice",
                fix=f"give its values at once to sweep them, as in --set {key}=1,2",
            )
        if isinstance(value, str) and "," in value:
            parts = [part.strip() for part in value.split(",")]
            if not all(parts):
                raise BadInputError(
                    f"--set {assignment!r} has an empty value",
                    fix="give a value on both sides of each comma",
                )
            value = [parse_assignments([f"{key}={part}"])[key] for part in parts]
        found[_key(key)] = _plain(value) if isinstance(value, list) else value
    return found


def _plain(value: Any) -> Any:
    """YAML 1.1 reads 1e-3 (no dot) as text; inside a list, too, people mean the number."""
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if not isinstance(value, str):
        return value
    try:
        return float(value)
    except ValueError:
        return value


def _methods(value: Any) -> dict[str, dict[str, Any]]:
    """``strategies`` of a file: names, or a mapping from names to settings of their own."""
    if isinstance(value, str):
        value = parse_strategies(value)
    if isinstance(value, list):
        value = {name: {} for name in parse_strategies(",".join(map(str, value)))}
    if not isinstance(value, Mapping):
        raise BadInputError(
            f"strategies is {value!r}", fix="give names, or a mapping from names to settings"
        )
    methods = {}
    for name, own in value.items():
        strategy_info(str(name))
        if own is not None and not isinstance(own, Mapping):
            raise BadInputError(
                f"the settings of {name} are {own!r}", fix="write key: value pairs below its name"
            )
        methods[str(name)] = {_key(str(key)): _plain(val) for key, val in (own or {}).items()}
        if "seeds" in methods[str(name)]:
            methods[str(name)]["seeds"] = list(_seeds(methods[str(name)]["seeds"]))
    return methods


def _key(key: str) -> str:
    return key if key.startswith(OPTION_PREFIX) else key.replace("-", "_")


def _check_keys(settings: Mapping[str, Any]) -> None:
    for key, value in settings.items():
        if key in _TAKEN:
            raise BadInputError(f"{key} is not a setting of a study", fix=f"use {_TAKEN[key]}")
        if key in OWN_KEYS and key != "seeds":
            raise BadInputError(f"{key} cannot be set here", fix=f"give --{key}")
        values = sweep_values(key, value) if key != "seeds" else None
        if values is not None:
            _check_sweep(key, values)


def _check_sweep(key: str, values: Sequence[Any]) -> None:
    if not values:
        raise BadInputError(f"{key} is a sweep over no values", fix="give one or more")
    texts = [repr(value) for value in values]
    if len(set(texts)) < len(texts):
        raise BadInputError(f"{key} is swept over {values}", fix="give each value once")


def _seeds(value: Any) -> tuple[int, ...]:
    """How many, or which; a list and text with a comma in it say which."""
    fix = "give how many, such as 3, or which, such as 0,1,2"
    which: list[Any] = []
    if isinstance(value, str):
        parts = [part.strip() for part in value.split(",")]
        numbers = [int(part) for part in parts if part.isdecimal()]
        if len(numbers) != len([part for part in parts if part]):
            raise BadInputError(f"seeds is {value!r}", fix=fix)
        which = numbers if "," in value else list(range(numbers[0] if numbers else 0))
    elif isinstance(value, list | tuple):
        which = list(value)
    elif isinstance(value, int) and not isinstance(value, bool):
        which = list(range(value))
    usable = all(isinstance(s, int) and not isinstance(s, bool) and s >= 0 for s in which)
    if usable and len(set(which)) < len(which):
        raise BadInputError(f"seeds is {value!r}", fix=f"{fix}, each once")
    if not which or not usable:
        raise BadInputError(f"seeds is {value!r}", fix=fix)
    return tuple(which)


def _swap(value: Any) -> Swap:
    if isinstance(value, bool):  # YAML reads on and off as such
        return "on" if value else "off"
    if value not in get_args(Swap):
        raise BadInputError(f"swap is {value!r}", fix="give both, on or off")
    found: Swap = value
    return found


def _flag(name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise BadInputError(f"{name} is {value!r}", fix="give true or false")
    return value


def _without(own: Mapping[str, Any], assigned: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in own.items() if key not in assigned}


def read_study(path: Path) -> Study:
    """The study of a folder.

    Raises:
        BadInputError: the file is missing or damaged.
    """
    return plan_study(file=read_config_file(path))
