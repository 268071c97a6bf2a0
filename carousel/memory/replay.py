"""A replayed batch, and the buffers that batches are gathered into."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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

    The tensors in `fields` belong to the carousel and are used again by the second `sample` that
    follows: clone what has to live longer.

    Args:
        fields: per field (n, *shape), on the CPU, as it was stored.
        labels: (n,) int64 class labels.
        tasks: (n,) int64 task labels.
        slots: (n,) the slots they came from.
        generations: (n,) the generations of these slots; a swap is asked for with both.
        ids: (n,) sample ids.
        classes: (n,) the labels again, as an array for the worker.
    """

    fields: dict[str, Tensor]
    labels: Tensor
    tasks: Tensor
    slots: Ints
    generations: Ints
    ids: Ints
    classes: Ints

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
        none = torch.from_numpy(nothing)
        return cls({}, none, none, nothing, nothing, nothing, nothing)

    @classmethod
    def joined(cls, replays: Sequence[Replay]) -> tuple[Replay, Ints]:
        """Several batches of one step as one, without fields: what a gate is shown.

        A slot that was drawn twice is there once, for it can be asked for once.

        Returns:
            The batch, and (n,) which rows it took of all, one batch after the other.

        Example:
            >>> twice = Replay.empty()
            >>> len(Replay.joined([twice, twice])[0])
            0
        """
        slots = np.concatenate([replay.slots for replay in replays])
        rows = np.sort(np.unique(slots, return_index=True)[1])
        classes = np.concatenate([replay.classes for replay in replays])[rows]
        tasks = torch.cat([replay.tasks for replay in replays])[rows]
        generations = np.concatenate([replay.generations for replay in replays])
        ids = np.concatenate([replay.ids for replay in replays])
        labels = torch.from_numpy(classes)
        return cls({}, labels, tasks, slots[rows], generations[rows], ids[rows], classes), rows


class ReplayBuffers:
    """Two batches' worth of RAM in turns, so that a gather allocates no sample.

    They grow to the largest batch that was asked for.
    """

    def __init__(self, schema: Schema) -> None:
        self._schema = schema
        self._rows = 0
        self._whole = (schema.empty(0), schema.empty(0))
        self._views = self._whole
        self._turn = 0

    @property
    def nbytes(self) -> int:
        """Bytes of both buffers."""
        return 2 * self._rows * self._schema.nbytes

    def gather(self, slab: Slab, slots: Ints, out: Mapping[str, Tensor] | None = None) -> Replay:
        """The samples of (n,) slots, in `out` or else in the next buffer."""
        rows, ids, labels, tasks, generations = slab.columns.take(slots, axis=1)
        fields = self._next(len(slots)) if out is None else dict(out)
        slab.gather(rows, fields)
        return Replay(
            fields=fields,
            labels=torch.from_numpy(labels),
            tasks=torch.from_numpy(tasks),
            slots=slots,
            generations=generations,
            ids=ids,
            classes=labels,
        )

    def _next(self, count: int) -> dict[str, Tensor]:
        if count > self._rows:
            self._rows = count
            self._whole = self._views = (self._schema.empty(count), self._schema.empty(count))
        if count != len(next(iter(self._views[0].values()))):
            first, second = ({n: t[:count] for n, t in whole.items()} for whole in self._whole)
            self._views = (first, second)
        self._turn = 1 - self._turn
        return self._views[self._turn]
