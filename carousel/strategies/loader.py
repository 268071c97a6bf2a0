"""A loader that indexes whole batches, for streams whose samples are tensors in RAM.

Avalanche's data sets are asked for one sample at a time; for a small model that costs more than
the training step. `StreamLoader` gives the same mini-batches (a permutation an epoch, the same
sizes) with one index operation a field.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from carousel.errors import BadInputError, CheckpointError
from carousel.memory.seeds import generator, load_state, state_of
from carousel.strategies.batch import BatchTransform
from carousel.strategies.raw import RawSource

__all__ = ["StreamLoader", "take_rows"]


class StreamLoader:
    """Mini-batches ``[x, y]`` or ``[x, y, task]`` of a tensor-backed source.

    With `mix` rows of the memory in the epoch, stream and memory are shuffled together: an epoch
    passes once over both, in batches of `batch_size` rows in all, and `memory_places` tells which
    of the memory's rows belong to the batch just given (they are not part of it).

    Args:
        source: the samples; `source.tensor_backed` must be true.
        batch_size: rows a batch.
        seed: of the permutations; each epoch draws the next one.
        name: names the loader's own stream of random numbers.
        shuffle: a new permutation an epoch, or the stored order.
        drop_last: leave a last, smaller batch out.
        transform: from raw samples to model input, once a batch.

    Attributes:
        rows: (k,) int64 rows of the source in the batch just given.
        memory_places: (m,) int64 places 0..mix - 1 that belong to the batch just given.
        mix: memory rows in the epoch; set it before the epoch starts.
        room: rows of a memory that will be appended to each batch; set it before the epoch
            starts, and `batch_and_tail` saves copying the batch to append them.

    Example:
        >>> from torch.utils.data import TensorDataset
        >>> from carousel.strategies.raw import raw_source
        >>> source = raw_source(TensorDataset(torch.zeros(5, 2), torch.arange(5)))
        >>> [len(y) for x, y in StreamLoader(source, 2, seed=0)]
        [2, 2, 1]
    """

    def __init__(
        self,
        source: RawSource,
        batch_size: int,
        *,
        seed: int,
        name: str = "loader",
        shuffle: bool = True,
        drop_last: bool = False,
        transform: BatchTransform | None = None,
    ) -> None:
        if not source.tensor_backed:
            raise BadInputError(
                "the samples are no plain tensors in RAM", fix="use the loader of Avalanche"
            )
        self.source = source
        self.batch_size = batch_size
        self.shuffle = shuffle
        self.drop_last = drop_last
        self.transform = transform
        self.mix = 0
        self.room = 0
        self._joint: tuple[Tensor, Tensor, Tensor] | None = None
        self.rows = torch.empty(0, dtype=torch.int64)
        self.memory_places = torch.empty(0, dtype=torch.int64)
        self._single = source.single()
        self._shape = self._single[0].shape[1:] if self._single else ()
        self._rng = generator(seed, name)
        self._epoch_state = state_of(self._rng)
        self._next_batch = 0
        self._resume_at = 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        total = len(self.source) + self.mix
        return total // self.batch_size if self.drop_last else -(-total // self.batch_size)

    def __iter__(self) -> Iterator[list[Tensor]]:
        self._epoch_state = state_of(self._rng)
        batches = self._batches(self._order())
        start, self._resume_at = self._resume_at, 0
        for number in range(start, len(self)):
            self._next_batch = number + 1
            self.rows, self.memory_places, places, *fields = batches[number]
            yield [self._samples(places, self.room + len(self.memory_places)), *fields]
        self._epoch_state = state_of(self._rng)
        self._next_batch = 0

    def batch_and_tail(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Where memory rows may be written, if `x` are the samples of the batch just given.

        Returns:
            (k + room, *shape) the samples with room behind them, and that room; None if the
            batch has none, or `x` was made from it.
        """
        if self._joint is None or self._joint[0] is not x:
            return None
        return self._joint[1:]

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, so that another one goes on with the next batch."""
        return {"epoch": dict(self._epoch_state), "next_batch": self._next_batch, "mix": self.mix}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next `iter` go on behind the last batch that the saved loader gave.

        Raises:
            CheckpointError: the state does not fit this source.
        """
        self.mix = int(state["mix"])
        if not 0 <= state["next_batch"] <= len(self):
            raise CheckpointError(
                f"the checkpoint stands at batch {state['next_batch']} of an epoch of {len(self)}"
            )
        load_state(self._rng, state["epoch"])
        self._epoch_state = dict(state["epoch"])
        self._resume_at = self._next_batch = int(state["next_batch"])

    def _order(self) -> Tensor:
        total = len(self.source) + self.mix
        if not self.shuffle:
            return torch.arange(total)
        return torch.from_numpy(self._rng.permutation(total).astype(np.int64, copy=False))

    def _batches(self, order: Tensor) -> list[tuple[Tensor, ...]]:
        """Rows, memory places, places of the samples, labels (and tasks) of each batch.

        All are views of columns that are put in order once an epoch.
        """
        source, size = self.source, self.batch_size
        of_stream = order < len(source)
        rows, mixed_in = order[of_stream], order[~of_stream] - len(source)
        of_stream_in = [int(part.sum()) for part in torch.split(of_stream, size)]
        of_memory_in = [len(part) for part in torch.split(of_stream, size)]
        of_memory_in = [all_ - n for all_, n in zip(of_memory_in, of_stream_in, strict=True)]
        places = rows if self._single is None else self._single[1][rows]
        columns = [rows, places, source.labels[rows]]
        if source.carries_tasks:
            columns.append(source.tasks[rows])
        split = [torch.split(column, of_stream_in) for column in columns]
        split.insert(1, torch.split(mixed_in, of_memory_in))
        return list(zip(*split, strict=True))

    def _samples(self, places: Tensor, room: int) -> Tensor:
        self._joint = None
        if self._single is None or self.transform is not None:
            x = self.source.rows(self.rows)
            return x if self.transform is None else self.transform(x)
        tensor = self._single[0]
        if room == 0:
            return tensor.index_select(0, places)
        count = len(places)
        joint = tensor.new_empty((count + room, *self._shape))
        x, tail = joint.split_with_sizes((count, room))
        torch.index_select(tensor, 0, places, out=x)
        self._joint = (x, joint, tail)
        return x


def take_rows(strategy: Any) -> Tensor:
    """(k,) rows of the source in the mini-batch; removes the field that tells them, if any."""
    if isinstance(strategy.dataloader, StreamLoader):
        return strategy.dataloader.rows
    rows: Tensor = strategy.mbatch.pop()
    return rows.cpu()
