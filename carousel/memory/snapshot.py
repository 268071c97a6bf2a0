"""What is in the slots, as plain types for a checkpoint, and back."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from carousel.errors import BadInputError, CheckpointError
from carousel.memory.reader import RecordReader
from carousel.memory.replacement import NO_CANDIDATE, Replacement
from carousel.memory.slab import Slab
from carousel.storage.tier import ReadStatus, StorageTier

__all__ = ["Restorer", "check_slots", "check_state", "check_storage", "slab_state"]

Ints = npt.NDArray[np.int64]

_log = logging.getLogger(__name__)

_KEYS = {
    "admission",
    "capacity",
    "core",
    "high_water",
    "manager_ns",
    "restore_losses",
    "rngs",
    "schema",
    "storage",
}
_ROWS = 256
_ROUNDS = 4


def slab_state(slab: Slab, tier: StorageTier) -> dict[str, Any]:
    """The slots as tensors: ids, labels, tasks, generations, and samples that are not stored.

    A resident whose record is committed is named by its id only, so a checkpoint of a large
    memory stays small.
    """
    absent = np.flatnonzero((slab.ids >= 0) & ~tier.contains(slab.ids))
    payload = slab.schema.empty(len(absent))
    slab.gather(slab.table[absent], payload)
    columns = {
        "ids": slab.ids,
        "labels": slab.labels,
        "tasks": slab.tasks,
        "generations": slab.generations,
        "absent": absent,
    }
    return {
        **{name: torch.from_numpy(column.copy()) for name, column in columns.items()},
        "payload": payload,
    }


def check_state(state: Any, format_: int) -> None:
    """Refuse what is not the state of a carousel.

    Raises:
        CheckpointError: it is something else, or of another format.
    """
    if not isinstance(state, dict) or state.get("format") != format_:
        found = state.get("format") if isinstance(state, dict) else type(state).__name__
        raise CheckpointError(f"memory state has format {found!r}, not {format_}")
    missing = sorted(_KEYS - state.keys())
    if missing:
        raise CheckpointError(f"memory state lacks {', '.join(missing)}")


def check_storage(tier: StorageTier, state: dict[str, Any]) -> None:
    """Refuse to go on from a state without the samples it names.

    Raises:
        BadInputError: the storage is another one, or holds nothing though residents are in it.
    """
    core = state["core"]
    stored = 0 if core is None else _stored_residents(core["slots"])
    name = f"the storage at {tier.path}" if hasattr(tier, "path") else "the storage"
    if state["storage"] != tier.identity:
        problem = f"{name} is not the one that the checkpoint was made with"
    elif stored and len(tier.entries()) == 0:
        problem = f"{name} is empty and the checkpoint names {stored} of its samples"
    else:
        return
    raise BadInputError(problem, fix="put the storage of the checkpoint back, or start anew")


def check_slots(slab: Slab, state: dict[str, Any]) -> None:
    """Refuse a state of another memory size.

    Raises:
        CheckpointError: the numbers of slots differ.
    """
    if len(state["ids"]) != slab.slots:
        raise CheckpointError(
            f"the checkpoint has {len(state['ids'])} slots and the memory {slab.slots}; "
            "use the memory_size it was made with"
        )


def _stored_residents(slots: dict[str, Any]) -> int:
    return int((slots["ids"] >= 0).sum()) - len(slots["absent"])


@dataclass(slots=True)
class Restorer:
    """Puts a `slab_state` back into an empty slab, reading samples from storage by their ids.

    A resident whose record is damaged or gone is replaced by a stored sample of its class, or
    its slot stays empty.

    Args:
        slab: empty, with as many slots as the state has.
        tier: the storage the state belongs to.
        replacement: draws for residents that cannot be read.
        rng: chance for these draws.
    """

    slab: Slab
    tier: StorageTier
    replacement: Replacement
    rng: np.random.Generator

    def restore(self, state: dict[str, Any]) -> int:
        """Fill the slots; returns how many residents could not be given back.

        Raises:
            CheckpointError: storage cannot be read.
        """
        columns = {
            name: state[name].numpy()
            for name in ("ids", "labels", "tasks", "generations", "absent")
        }
        ids, labels, tasks = columns["ids"], columns["labels"], columns["tasks"]
        absent = columns["absent"]
        self.slab.write(absent, state["payload"], ids[absent], labels[absent], tasks[absent])
        wanted = np.setdiff1d(np.flatnonzero(ids >= 0), absent)
        lost = [
            self._read(wanted[start : start + _ROWS], ids, labels, tasks)
            for start in range(0, len(wanted), _ROWS)
        ]
        gone = np.concatenate([*lost, wanted[:0]])
        self.slab.generations[:] = columns["generations"]
        self.slab.generations[gone] += 1
        if len(gone):
            self._refill(gone, labels)
        return len(gone)

    def _read(self, slots: Ints, ids: Ints, labels: Ints, tasks: Ints) -> Ints:
        """Read residents into their slots; returns the slots whose record is unusable."""
        reader = RecordReader(self.tier, self.slab.schema, time.sleep)
        self.tier.prefetch(ids[slots])
        statuses = reader.read(ids[slots], self.slab.arrays, self.slab.table[slots])
        if (statuses == ReadStatus.IO_ERROR).any():
            raise CheckpointError("the storage of the checkpoint cannot be read: I/O error")
        good = slots[statuses == ReadStatus.OK]
        self.slab.assign(good, ids[good], labels[good], tasks[good])
        lost: Ints = slots[statuses != ReadStatus.OK]
        return lost

    def _refill(self, slots: Ints, labels: Ints) -> None:
        lost = len(slots)
        for _ in range(_ROUNDS):
            drawn = self.replacement.draw(
                self.tier, labels[slots], set(self.slab.ids.tolist()), self.rng
            )
            found = np.flatnonzero(drawn != NO_CANDIDATE)
            ids = np.full(self.slab.slots, NO_CANDIDATE)
            ids[slots[found]] = drawn[found]
            tasks = np.full(self.slab.slots, -1)
            tasks[slots[found]] = self.tier.tasks_of(drawn[found])
            slots = self._read(slots[found], ids, labels, tasks)
            if len(slots) == 0:
                break
        _log.warning("%d residents of the checkpoint were lost; others took their slots", lost)
