"""A replayed batch, and the buffers that batches are gathered into."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from carousel.memory.schema import Schema
from carousel.memory.slab import Slab

__all__ = ["Replay", "ReplayBuffers"]

Ints = npt.NDArray[np.int64]


@dataclass(slots=True)
class Replay:
    """n samples of the memory, and where they were.

    The arrays belong to the carousel and are used again by the second `sample` that follows:
    clone what has to live longer.

    Args:
        fields: per field (n, *shape), on the CPU, as it was stored.
        labels: (n,) int64 class labels.
        tasks: (n,) int64 task labels.
        slots: (n,) the slots they came from.
        generations: (n,) the generations of these slots; a swap is asked for with both.
        ids: (n,) sample ids.
    """

    fields: dict[str, Tensor]
    labels: Tensor
    tasks: Tensor
    slots: Ints
    generations: Ints
    ids: Ints

    def __len__(self) -> int:
        return len(self.slots)

    @property
    def x(self) -> Tensor:
        """The field ``"x"``, (n, *shape)."""
        return self.fields["x"]

    @classmethod
    def empty(cls) -> Replay:
        """No samples, before any sample was seen and its fields are known."""
        nothing = np.empty(0, np.int64)
        return cls({}, torch.empty(0).long(), torch.empty(0).long(), nothing, nothing, nothing)


class ReplayBuffers:
    """Two batches' worth of RAM in turns, so that a gather allocates nothing.

    They grow to the largest batch that was asked for.
    """

    def __init__(self, schema: Schema) -> None:
        self._buffers = (_Buffer(schema), _Buffer(schema))
        self._turn = 0

    def gather(self, slab: Slab, slots: Ints) -> Replay:
        """The samples of (n,) slots."""
        self._turn = 1 - self._turn
        replay = self._buffers[self._turn].rows(len(slots))
        replay.slots[:] = slots
        _take(slab.generations, slots, replay.generations)
        _take(slab.ids, slots, replay.ids)
        _take(slab.labels, slots, replay.labels.numpy())
        _take(slab.tasks, slots, replay.tasks.numpy())
        slab.gather(slots, replay.fields)
        return replay

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers."""
        return sum(buffer.nbytes for buffer in self._buffers)


class _Buffer:
    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._whole = self._allocate(0)
        self._view = self._whole

    @property
    def nbytes(self) -> int:
        return len(self._whole) * (self._schema.nbytes + 5 * 8)

    def rows(self, count: int) -> Replay:
        """The first `count` rows."""
        if count > len(self._whole):
            self._whole = self._allocate(count)
        if count != len(self._view):
            self._view = _first(self._whole, count)
        return self._view

    def _allocate(self, count: int) -> Replay:
        labels, tasks = torch.empty(2, count, dtype=torch.int64)
        slots, generations, ids = np.empty((3, count), np.int64)
        return Replay(self._schema.empty(count), labels, tasks, slots, generations, ids)


def _first(whole: Replay, count: int) -> Replay:
    return Replay(
        {name: value[:count] for name, value in whole.fields.items()},
        whole.labels[:count],
        whole.tasks[:count],
        whole.slots[:count],
        whole.generations[:count],
        whole.ids[:count],
    )


def _take(column: Ints, slots: Ints, out: Ints) -> None:
    np.take(column, slots, out=out, mode="clip")  # "raise" would go through a temporary
