"""From settings to what is trained: every value is checked here, before anything is written."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import Module
from torch.optim import SGD, AdamW, Optimizer

from carousel.data import Stream, load_stream
from carousel.errors import BadInputError
from carousel.models import make_model
from carousel.runs.config import TrainConfig
from carousel.runs.offload import check_room
from carousel.runs.precheck import DEVICE_FIX, METHOD_FLAGS, check_settings, strategy_options
from carousel.runs.rehearsal import rehearse
from carousel.storage import StorageTier
from carousel.strategies.milestones import StepSchedule
from carousel.strategies.registry import make_strategy

__all__ = ["Ingredients", "build_strategy", "gather_ingredients", "load_run_stream", "pick_device"]

SLOTS_A_CLASS = 2
"""Default size of the memory."""


@dataclass(frozen=True, slots=True)
class Ingredients:
    """What a run is made of; all of it usable together.

    Args:
        config: settings with every default that depends on others filled in.
        stream: to learn.
        model: untrained, on `device`.
        optimizer: over the model's parameters.
        device: that trains.
        options: of the strategy.
    """

    config: TrainConfig
    stream: Stream
    model: Module
    optimizer: Optimizer
    device: torch.device
    options: Mapping[str, Any]


def gather_ingredients(config: TrainConfig, storage: Path, *, discard: bool = False) -> Ingredients:
    """Load the stream and make the model; refuse what cannot work.

    Args:
        config: settings as the user gave them.
        storage: folder of the samples; only looked into.
        discard: whether what it holds is going to be discarded, and may be anything.

    Raises:
        BadInputError: names the value and the fix; nothing was written but the data cache.
    """
    check_settings(config, storage)
    options = strategy_options(config)
    device = pick_device(config.device)
    stream = load_run_stream(config)
    resolved = _fill_in(config, stream, options)
    _seed_everything(config, device)
    model = make_model(config.model, stream.input_shape, stream.n_classes, seed=config.seed)
    model.to(device)
    optimizer = _optimizer(config, model)
    if config.offload is not None:
        check_room(config, model)
    parts = Ingredients(resolved, stream, model, optimizer, device, options)
    rehearse(
        lambda tier: build_strategy(_without_budget(parts), tier, run="rehearsal"),
        resolved,
        stream,
        None if discard else storage,
    )
    return parts


def build_strategy(
    parts: Ingredients, storage: Path | StorageTier, *, run: str, plugins: Sequence[Any] = ()
) -> Any:
    """The Avalanche strategy; opens the storage.

    Args:
        parts: what it is made from.
        storage: folder of the samples, or an open tier.
        run: name under which the storage remembers the ids of this run.
        plugins: called after the memory.
    """
    config = parts.config
    schedule = _schedule(config)
    return make_strategy(
        config.strategy,
        parts.options,
        model=parts.model,
        optimizer=parts.optimizer,
        storage=storage,
        memory_size=config.memory_size,
        swap_ratio=config.swap_ratio,
        gate=config.gate,
        swap=not config.no_swap,
        durability=config.durability,
        storage_budget=config.storage_budget,
        sync=config.sync,
        seed=config.seed,
        run=run,
        train_mb_size=config.batch_size,
        train_epochs=config.epochs,
        device=parts.device,
        plugins=[*schedule, *plugins],
    )


def load_run_stream(config: TrainConfig, **changes: Any) -> Stream:
    """The stream of a run.

    Args:
        config: of the run.
        changes: arguments of `load_stream` in place of the run's.
    """
    settings: dict[str, Any] = {
        "name": config.benchmark,
        "experiences": config.experiences,
        "scenario": config.scenario,
        "seed": _order_seed(config),
        "class_order": config.class_order,
        "root": config.data_root,
        "limit": config.limit,
        "normalize": config.normalize,
        "resize": config.resize,
    }
    return load_stream(**{**settings, **changes})


def pick_device(name: str) -> torch.device:
    """The device of this name; ``auto`` is the best there is.

    Raises:
        BadInputError: torch knows no such device, or it is not in this machine.
    """
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda")
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise BadInputError(f"device is {name!r}", fix=DEVICE_FIX) from None
    count = {
        "cpu": 1,
        "cuda": torch.cuda.device_count(),
        "mps": int(torch.backends.mps.is_available()),
    }.get(device.type, 0)
    if (device.index or 0) >= count:
        there = f"this machine has {count}" if count else "this machine has none"
        raise BadInputError(f"device is {name!r} and {there}", fix="use auto or cpu")
    return device


def _order_seed(config: TrainConfig) -> int:
    return config.seed if config.class_order_seed is None else config.class_order_seed


def _fill_in(config: TrainConfig, stream: Stream, options: Mapping[str, Any]) -> TrainConfig:
    """The settings with every default that depends on stream and strategy."""
    size = config.memory_size
    return config.model_copy(
        update={
            "experiences": len(stream.train),
            "memory_size": SLOTS_A_CLASS * stream.n_classes if size is None else size,
            "class_order_seed": _order_seed(config),
            **{name: options[name] for name in METHOD_FLAGS if name in options},
            "options": {k: v for k, v in options.items() if k not in METHOD_FLAGS},
        }
    )


def _without_budget(parts: Ingredients) -> Ingredients:
    """A budget may be a share of the disk that the storage lies on; a rehearsal has none."""
    return replace(parts, config=parts.config.model_copy(update={"storage_budget": None}))


def _optimizer(config: TrainConfig, model: Module) -> Optimizer:
    parameters = [p for p in model.parameters() if p.requires_grad]
    if config.optimizer == "sgd":
        return SGD(
            parameters,
            config.lr,
            momentum=config.momentum,
            weight_decay=config.weight_decay,
            nesterov=config.nesterov,
        )
    return AdamW(parameters, config.lr, weight_decay=config.weight_decay)


def _schedule(config: TrainConfig) -> list[StepSchedule]:
    if not config.lr_milestones:
        return []
    return [StepSchedule(config.lr_milestones, config.lr_gamma)]


def _seed_everything(config: TrainConfig, device: torch.device) -> None:
    random.seed(config.seed)
    np.random.seed(config.seed % 2**32)  # noqa: NPY002 - what a user's own model may draw from
    torch.manual_seed(config.seed)
    if config.sync and device.type == "cuda":
        torch.use_deterministic_algorithms(True, warn_only=True)
