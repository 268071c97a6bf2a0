"""Everything that decides a training run, and where its values come from.

Keys are flat and equal the flags of ``carousel train`` with ``_`` for ``-``; a method's own
options are ``strategy.NAME``. The command line wins over the file, the file over the defaults.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal, TypeAlias

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from carousel.errors import BadInputError
from carousel.spelling import nearest
from carousel.strategies.registry import list_strategies, strategy_info

__all__ = [
    "OPTION_PREFIX",
    "TrainConfig",
    "dump_config",
    "parse_assignments",
    "read_config_file",
    "resolve_config",
    "yaml_text",
]

OPTION_PREFIX = "strategy."
"""Keys that start with this are options of the strategy, not of the run."""

LoggerName: TypeAlias = Literal["tensorboard", "wandb", "csv"]


def _derived(description: str, shown: str, **limits: Any) -> Any:
    """A field that is None until the run knows better; ``shown`` tells the user what comes."""
    return Field(None, description=description, json_schema_extra={"shown": shown}, **limits)


class TrainConfig(BaseModel):
    """The settings of one run; the descriptions are the help of ``carousel train``.

    Example:
        >>> resolve_config(file={"lr": 0.01}, command_line={"epochs": 2}).lr
        0.01
    """

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, validate_default=True
    )

    strategy: str = Field("er", description="Method; see `carousel strategies`.")
    benchmark: str = Field(
        "split-digits", description="Stream to learn; see `carousel benchmarks`."
    )
    scenario: Literal["class", "domain"] = Field(
        "class", description="New classes, or new domains, in each experience."
    )
    experiences: int | None = _derived(
        "Experiences in the stream.", "usual for the benchmark", ge=1
    )
    class_order: str | tuple[int, ...] = Field(
        "random",
        description="Order of the classes: random, sorted, icarl-cifar100, icarl-imagenet100, or "
        "all labels, as in 2,0,1.",
    )
    normalize: bool = Field(False, description="Bring each channel to mean 0 and deviation 1.")
    resize: int | None = _derived("Side of the images of a folder.", "as they are", ge=1)
    limit: int | None = _derived("Use at most this many samples of each class.", "all", ge=1)
    data_root: Path | None = _derived(
        "Folder of data files.", "$CAROUSEL_DATA or ~/.cache/carousel"
    )

    memory_size: int | str | None = _derived(
        "RAM for past samples: 500 (samples) or 64MiB.", "2 samples a class"
    )
    storage: Path | None = _derived("Folder of the sample storage.", "OUT/storage")
    storage_budget: int | str | None = _derived(
        "Most that storage may hold: 5000 (samples), 1GiB, or 50% (of the free disk).", "no limit"
    )
    swap_ratio: float = Field(
        0.5, ge=0, le=1, description="Share of each replayed batch that is swapped, 0 to 1."
    )
    gate: str | None = _derived(
        "Who is swapped: balanced, score, entropy, loss, random or all (ratio 1).",
        "balanced, or the method's own",
    )
    no_swap: bool = Field(False, description="Save samples but never swap: plain replay.")
    sync: bool = Field(False, description="Swap inside the step: repeatable bit for bit, slower.")
    admission: str | None = _derived(
        "Who gets RAM: class-balanced, reservoir, greedy or ring.", "class-balanced"
    )
    update: Literal["experience", "batch"] | None = _derived(
        "Fill the memory at the end of an experience, or every batch.", "experience"
    )
    replay: Literal["concat", "mixed"] | None = _derived(
        "Add replayed rows to each batch, or mix memory into the stream.", "concat"
    )
    batch_size_mem: int | None = _derived("Replayed samples a step.", "the batch size", ge=1)
    durability: Literal["durable", "bounded", "process", "ephemeral"] = Field(
        "bounded",
        description="What saved samples survive: durable (power loss), bounded (power loss but "
        "for the last few), process (a kill) or ephemeral (nothing).",
    )

    model: str = Field(
        "cnn",
        description="cnn, mlp, slim-resnet18, resnet32, resnet18, resnet18-imagenet, "
        "densenet-bc-100-12 or module:factory.",
    )
    epochs: int = Field(5, ge=1, description="Passes over each experience.")
    batch_size: int = Field(32, ge=1, description="New samples a step.")
    optimizer: Literal["sgd", "adamw"] = Field("adamw", description="Optimizer.")
    lr: float = Field(1e-3, gt=0, description="Learning rate.")
    lr_milestones: tuple[int, ...] = Field(
        (), description="Epochs of each experience after which the rate falls, as in 49,63."
    )
    lr_gamma: float = Field(0.1, gt=0, description="Factor of the rate at each milestone.")
    momentum: float = Field(0.9, ge=0, lt=1, description="Momentum of sgd.")
    nesterov: bool = Field(False, description="Nesterov's form of momentum, for sgd.")
    weight_decay: float = Field(0.0, ge=0, description="Weight decay.")
    offload: int | str | None = _derived(
        "RAM for the states of adamw, as in 256MiB; the rest streams through the run folder.",
        "all in RAM",
    )
    augment: Literal["none", "crop", "crop-flip", "imagenet"] = Field(
        "none",
        description="Random changes of training images: none, crop, crop-flip, or imagenet.",
    )
    device: str = Field("auto", description="auto, cpu, cuda, cuda:1 or mps.")

    eval_every: int | None = _derived(
        "Steps between tests while learning, for the anytime accuracy.", "never", ge=1
    )
    seed: int = Field(0, ge=0, description="Seed of everything random.")
    class_order_seed: int | None = _derived("Seed of the class order.", "the seed", ge=0)
    checkpoint_every: int | None = Field(
        200, ge=1, description="Steps between checkpoints inside an experience; none: only between."
    )
    logger: tuple[LoggerName, ...] = Field(
        (), description="Also log to tensorboard, wandb or csv; may be given more than once."
    )
    out: Path | None = _derived("The run folder itself.", "runs/TIME-STRATEGY-BENCHMARK")
    options: dict[str, Any] = Field(
        default_factory=dict, description="Options of the strategy, by their name there."
    )

    @field_validator("memory_size", "storage_budget")
    @classmethod
    def _count(cls, value: int | str | None) -> int | str | None:
        """A count is the same setting, written as a number or as text."""
        return int(value) if isinstance(value, str) and value.isdecimal() else value

    @field_validator("lr_milestones", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Numbers may be written with commas between them, as flags are; or just one."""
        if isinstance(value, int) and not isinstance(value, bool):
            return (value,)
        parts = [value] if isinstance(value, str) else value
        if isinstance(parts, list | tuple) and all(isinstance(part, str) for part in parts):
            return tuple(word for part in parts for word in part.split(","))
        return value

    @field_validator("class_order", mode="before")
    @classmethod
    def _labels(cls, value: Any) -> Any:
        """Labels may be written with commas between them."""
        return tuple(value.split(",")) if isinstance(value, str) and "," in value else value

    @field_validator("storage", "data_root")
    @classmethod
    def _absolute(cls, value: Path | None) -> Path | None:
        """A run may be resumed from another working folder."""
        return None if value is None else value.expanduser().absolute()


def resolve_config(
    *, file: Mapping[str, Any] | None = None, command_line: Mapping[str, Any] | None = None
) -> TrainConfig:
    """Defaults, overridden by the file, overridden by the command line.

    Args:
        file: flat keys from a YAML file.
        command_line: flat keys that the user gave on the command line.

    Raises:
        BadInputError: a key does not exist (the nearest is suggested) or a value is unusable.
    """
    given: dict[str, Any] = {}
    for source in (file or {}, command_line or {}):
        for key, value in source.items():
            given[_known_key(key)] = value
    options = {
        key.removeprefix(OPTION_PREFIX): given.pop(key)
        for key in list(given)
        if key.startswith(OPTION_PREFIX)
    }
    if isinstance(given.get("logger"), str):
        given["logger"] = (given["logger"],)
    try:
        return TrainConfig(**given, options=options)
    except ValidationError as error:
        raise _bad_value(error) from None


def read_config_file(path: Path) -> dict[str, Any]:
    """The keys of a YAML file.

    Raises:
        BadInputError: the file is missing, is no YAML, or is not a flat list of keys.
    """
    try:
        loaded = yaml.safe_load(path.read_text("utf-8"))
    except OSError as error:
        reason = error.strerror or "unreadable"
        raise BadInputError(
            f"config file {path} cannot be read ({reason.lower()})", fix="give a YAML file"
        ) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise BadInputError(
            f"config file {path} is not valid YAML{_where(error)}",
            fix="write one `key: value` a line",
        ) from None
    if loaded is None:
        return {}
    if not isinstance(loaded, dict) or not all(isinstance(key, str) for key in loaded):
        raise BadInputError(
            f"config file {path} holds no keys", fix="write one `key: value` a line"
        )
    return loaded


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """``key=value`` pairs of ``--set``; values are read as YAML scalars.

    Example:
        >>> parse_assignments(["lr=0.01", "sync=true", "strategy.loss=bce"])
        {'lr': 0.01, 'sync': True, 'strategy.loss': 'bce'}
    """
    values: dict[str, Any] = {}
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals or not key.strip():
            raise BadInputError(f"--set {assignment!r} has no value", fix="write --set key=value")
        try:
            values[key.strip()] = _scalar(text)
        except yaml.YAMLError:
            raise BadInputError(
                f"--set {assignment!r} has no readable value", fix="put quotes around the value"
            ) from None
    return values


def dump_config(config: TrainConfig) -> str:
    """The resolved configuration as YAML that `read_config_file` takes back.

    ``out`` is left out, so that a saved configuration can start another run.
    """
    flat = config.model_dump(mode="json", exclude={"options", "out"})
    flat |= {OPTION_PREFIX + name: value for name, value in config.options.items()}
    return yaml_text(flat)


def yaml_text(values: Mapping[str, Any]) -> str:
    """YAML in the order of the keys, with letters as they are where they come back as such.

    The line breaks of Unicode do not, and are written as escapes.
    """
    text = yaml.safe_dump(dict(values), sort_keys=False, allow_unicode=True)
    if yaml.safe_load(text) == values:
        return text
    return yaml.safe_dump(dict(values), sort_keys=False)


def _scalar(text: str) -> Any:
    value = yaml.safe_load(text)
    # YAML 1.1 reads 1e-3 (no dot) as a string; people mean the number.
    if isinstance(value, str):
        try:
            return float(value)
        except ValueError:
            return value
    return value


_PLAIN = {
    **dict.fromkeys(("int_parsing", "int_type", "int_from_float"), "give a whole number"),
    **dict.fromkeys(("float_parsing", "float_type", "finite_number"), "give a number"),
    **dict.fromkeys(("bool_parsing", "bool_type"), "give true or false"),
    "int_parsing_size": "give a smaller number",
    "string_type": "give a name",
    "path_type": "give a path",
    "tuple_type": "give a list",
}
"""What to do about a value of the wrong type, by the kind of error of pydantic."""


def _known_key(key: str) -> str:
    if key.startswith(OPTION_PREFIX) and len(key) > len(OPTION_PREFIX):
        return key
    known = [name for name in TrainConfig.model_fields if name != "options"]
    name = key.replace("-", "_")
    if name in known:
        return name
    options = {option for method in list_strategies() for option in strategy_info(method).options}
    near = OPTION_PREFIX + name if name in options else nearest(name, known, cutoff=0.5)
    fix = f"did you mean {near}?" if near else "`carousel train --help` lists them"
    raise BadInputError(f"config key {key!r} does not exist", fix=fix)


def _bad_value(error: ValidationError) -> BadInputError:
    first = error.errors()[0]
    key = str(first["loc"][0])
    fix = _PLAIN.get(first["type"]) or first["msg"].replace("Input should be", "it should be")
    if key in ("memory_size", "storage_budget"):
        fix = 'give a number of samples like 500, or bytes like "64MiB"'
    if isinstance(first["input"], Mapping):
        fix = f"give one value; options of the strategy are keys such as {OPTION_PREFIX}loss"
    choices = re.findall(r"'([^']+)'", first.get("ctx", {}).get("expected", ""))
    if near := nearest(str(first["input"]), choices):
        fix += f"; did you mean {near}?"
    return BadInputError(f"{key} is {first['input']!r}", fix=fix)


def _where(error: Exception) -> str:
    mark = getattr(error, "problem_mark", None)
    return f" (line {mark.line + 1})" if mark else ""
