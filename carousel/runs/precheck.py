"""What can be refused within a second, before torch and Avalanche are imported.

`gather_ingredients` checks the rest.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from carousel.data.orders import check_class_order
from carousel.data.registry import check_benchmark
from carousel.errors import BadInputError
from carousel.memory.names import lookup
from carousel.memory.sizes import parse_memory_size
from carousel.offload.settings import parse_budget_bytes
from carousel.runs.config import TrainConfig
from carousel.runs.loggers import check_loggers
from carousel.storage.budget import parse_budget
from carousel.storage.lmdb.pages import check_budget_bytes
from carousel.strategies.registry import strategy_info

__all__ = ["ADMISSIONS", "DEVICE_FIX", "GATES", "LOSSES", "METHOD_FLAGS", "MODELS"]
__all__ += ["check_settings", "strategy_options"]

METHOD_FLAGS = ("admission", "update", "replay", "batch_size_mem")
"""Settings with a flag of their own that are options of the strategy."""

GATES = ("balanced", "score", "entropy", "loss", "random", "all")
ADMISSIONS = ("class-balanced", "reservoir", "ring", "greedy")
MODELS = (
    *("mlp", "cnn", "slim-resnet18", "resnet32"),
    *("resnet18", "resnet18-imagenet", "densenet-bc-100-12"),
)
LOSSES = ("ce", "bce")
"""Names of things that need torch; the things themselves are registered where they are made."""

DEVICE_FIX = "use auto, cpu, cuda, cuda:1 or mps"
_DEVICE = re.compile(r"auto|(cpu|cuda|mps)(:\d+)?")


def check_settings(config: TrainConfig, storage: Path) -> None:
    """Refuse names, sizes and paths that cannot be used.

    Args:
        config: settings as the user gave them.
        storage: folder of the samples; it need not exist.

    Raises:
        BadInputError: names the value and the fix.
        DatasetMissingError: the data are not on this machine.
    """
    check_loggers(config.logger)
    info = strategy_info(config.strategy)
    options = strategy_options(config)
    for name in options:
        lookup(f"option of {config.strategy}", name, info.options)
    _check_names(config, options)
    check_class_order(config.class_order)
    _check_optimizer(config, options)
    _check_offload(config)
    if not _DEVICE.fullmatch(config.device):
        raise BadInputError(f"device is {config.device!r}", fix=DEVICE_FIX)
    if config.memory_size is not None:
        parse_memory_size(config.memory_size)
    check_budget_bytes(parse_budget(config.storage_budget).resolve(storage).max_bytes)
    check_benchmark(config.benchmark, config.data_root)


def strategy_options(config: TrainConfig) -> dict[str, Any]:
    """Options of the strategy: its defaults, its flags, then ``strategy.*`` keys.

    Raises:
        BadInputError: an option is given twice, with two values.
    """
    given = {name: getattr(config, name) for name in METHOD_FLAGS}
    options = {
        **strategy_info(config.strategy).options,
        **{name: value for name, value in given.items() if value is not None},
    }
    for name, value in config.options.items():
        if given.get(name) not in (None, value):
            raise BadInputError(
                f"strategy.{name} is {value!r} and {name} is {given[name]!r}",
                fix="give one of the two",
            )
        options[name] = value
    return options


def _check_optimizer(config: TrainConfig, options: Mapping[str, Any]) -> None:
    if config.lr_milestones and options.get("schedule", "constant") != "constant":
        raise BadInputError(
            f"{config.strategy} has a schedule of its own and lr_milestones is given",
            fix="leave lr_milestones out, or give strategy.schedule constant",
        )
    if config.nesterov and (config.optimizer != "sgd" or not config.momentum):
        how = f"momentum {config.momentum:g}" if config.optimizer == "sgd" else config.optimizer
        raise BadInputError(
            f"nesterov is given with {how}", fix="use optimizer sgd and a momentum above 0"
        )


def _check_offload(config: TrainConfig) -> None:
    if config.offload is None:
        return
    parse_budget_bytes(config.offload, name="offload")
    if config.optimizer != "adamw":
        raise BadInputError(
            f"offload is given with optimizer {config.optimizer}", fix="use optimizer adamw"
        )
    if config.device.split(":")[0] not in ("auto", "cpu"):
        raise BadInputError(f"offload is given with device {config.device}", fix="use device cpu")


def _check_names(config: TrainConfig, options: Mapping[str, Any]) -> None:
    if config.gate is not None:
        lookup("gate", config.gate, dict.fromkeys(GATES))
    if "admission" in options:
        lookup("admission", options["admission"], dict.fromkeys(ADMISSIONS))
    if "loss" in options and options["loss"] not in LOSSES:
        raise BadInputError(f"loss is {options['loss']!r}", fix='use "ce" or "bce"')
    if ":" not in config.model:
        lookup("model", config.model, dict.fromkeys(MODELS))
