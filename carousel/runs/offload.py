"""A run whose optimizer keeps its states in RAM up to a budget, and in the run folder beyond it.

The states' file is scratch: what a run goes on from are its checkpoints, which have a copy.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from shutil import rmtree
from typing import TYPE_CHECKING, Any

from torch.nn import Module

from carousel.errors import BadInputError
from carousel.offload import TieredAdamW
from carousel.offload.room import make_room, size_chunks
from carousel.offload.roster import Roster
from carousel.offload.settings import OffloadSettings
from carousel.runs.config import TrainConfig

if TYPE_CHECKING:
    from carousel.runs.build import Ingredients

__all__ = ["check_room", "offloading"]


def check_room(config: TrainConfig, model: Module) -> None:
    """Refuse a budget that is below the least for a model.

    Args:
        config: of the run, with ``offload`` given.
        model: on its device.

    Raises:
        BadInputError: the budget is too small, or a parameter is not on the CPU.
    """
    parameters = _parameters(model)
    if any(param.device.type != "cpu" for param in parameters):
        raise BadInputError(
            "offload is given and the model is not on the CPU", fix="use --device cpu"
        )
    wishes = OffloadSettings(**_settings(config, Path())).wishes(masters=True)
    roster = Roster.of([{"params": parameters, "amsgrad": False}], {})
    make_room(size_chunks(roster.specs, wishes), wishes)


@contextmanager
def offloading(parts: Ingredients, folder: Path) -> Iterator[Ingredients]:
    """The same ingredients with an optimizer that offloads, if the settings say so.

    Args:
        parts: of the run.
        folder: for the states, removed when the block ends.
    """
    if parts.config.offload is None:
        yield parts
        return
    config = parts.config
    rmtree(folder, ignore_errors=True)  # of a process that was killed
    optimizer = TieredAdamW(
        _parameters(parts.model),
        config.lr,
        weight_decay=config.weight_decay,
        **_settings(config, folder),
    )
    try:
        yield replace(parts, optimizer=optimizer)
    finally:
        optimizer.close()
        rmtree(folder, ignore_errors=True)


def _settings(config: TrainConfig, folder: Path) -> dict[str, Any]:
    return {"ram_budget": config.offload, "storage": folder, "durability": "ephemeral"}


def _parameters(model: Module) -> list[Any]:
    return [param for param in model.parameters() if param.requires_grad]
