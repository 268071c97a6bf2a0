"""The loader of epochs that pass over the memory alone, without a stream."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from carousel.errors import CheckpointError
from carousel.memory.seeds import generator, load_state, state_of

__all__ = ["MemoryLoader"]


class MemoryLoader:
    """Empty mini-batches for a `CarMPlugin` to fill, each row of the memory once an epoch.

    A row that would be left over for a batch of its own takes one from the batch before.

    Args:
        batch_size: rows a batch.
        seed: of the permutations; each epoch draws the next one.
        name: names the loader's own stream of random numbers.

    Attributes:
        mix: memory rows in the epoch; set it before the epoch starts.
        memory_places: (m,) int64 places 0..mix - 1 that belong to the batch just given.

    Example:
        >>> loader = MemoryLoader(2, seed=0)
        >>> loader.mix = 5
        >>> [len(loader.memory_places) for _ in loader]
        [2, 2, 1]
    """

    def __init__(self, batch_size: int, *, seed: int, name: str = "memory") -> None:
        self.batch_size = batch_size
        self.mix = 0
        self.memory_places = torch.empty(0, dtype=torch.int64)
        self._rng = generator(seed, name)
        self._epoch_state = state_of(self._rng)
        self._next_batch = 0
        self._resume_at = 0

    def __len__(self) -> int:
        """Batches in an epoch."""
        return (self.mix + self.batch_size - 1) // self.batch_size

    def __iter__(self) -> Iterator[list[Tensor]]:
        self._epoch_state = state_of(self._rng)
        order = torch.from_numpy(self._rng.permutation(self.mix).astype(np.int64, copy=False))
        batches = torch.split(order, self._sizes())
        start, self._resume_at = self._resume_at, 0
        for number in range(start, len(self)):
            self._next_batch = number + 1
            self.memory_places = batches[number]
            yield []
        self._epoch_state = state_of(self._rng)
        self._next_batch = 0

    def _sizes(self) -> list[int]:
        """Rows of each batch: the last is no single row, with which batch norm cannot train."""
        sizes = [self.batch_size] * (self.mix // self.batch_size)
        if rest := self.mix % self.batch_size:
            sizes.append(rest)
        if len(sizes) > 1 and sizes[-1] == 1 and sizes[-2] > 2:
            sizes[-2:] = [sizes[-2] - 1, 2]
        return sizes

    def state_dict(self) -> dict[str, Any]:
        """Where the loader stands, so that another one goes on with the next batch."""
        return {"epoch": dict(self._epoch_state), "next_batch": self._next_batch, "mix": self.mix}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next `iter` go on behind the last batch that the saved loader gave.

        Raises:
            CheckpointError: the state is none of a loader.
        """
        self.mix = int(state["mix"])
        if not 0 <= state["next_batch"] <= len(self):
            raise CheckpointError(
                f"the checkpoint stands at batch {state['next_batch']} of an epoch of {len(self)}"
            )
        load_state(self._rng, state["epoch"])
        self._epoch_state = dict(state["epoch"])
        self._resume_at = self._next_batch = int(state["next_batch"])
