"""Who may be in the memory next: everyone in it now, and everyone in the experience."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from carousel.memory import Carousel
from carousel.strategies.plugin import CarMPlugin
from carousel.strategies.raw import RawSource

__all__ = ["Candidates"]

Ints = npt.NDArray[np.int64]

_ROWS = 256


@dataclass(frozen=True)
class Candidates:
    """Samples that compete for slots, each once: those in memory, then those of the experience.

    Attributes:
        ids: (n,) int64 sample ids.
        labels: (n,) int64 classes.
        tasks: (n,) int64 task labels.
    """

    ids: Ints
    labels: Ints
    tasks: Ints
    _slots: Ints
    _rows: Ints
    _carousel: Carousel
    _source: RawSource

    @classmethod
    def of(cls, memory: CarMPlugin) -> Candidates:
        """All of them, in the middle of an experience."""
        here, source = memory.carousel.residents(), memory.source
        ids = memory.ids_of(torch.arange(len(source)))
        rows = np.flatnonzero(~np.isin(ids, here.ids))
        return cls(
            ids=np.concatenate((here.ids, ids[rows])),
            labels=np.concatenate((here.labels, source.labels.numpy()[rows])),
            tasks=np.concatenate((here.tasks, source.tasks.numpy()[rows])),
            _slots=here.slots,
            _rows=rows,
            _carousel=memory.carousel,
            _source=source,
        )

    def __len__(self) -> int:
        return len(self.ids)

    def batches(self) -> Iterator[tuple[Tensor, Tensor]]:
        """Raw samples (k, *shape) and task labels (k,), in order, at most 256 at a time."""
        slots = (self._slots[i : i + _ROWS] for i in range(0, len(self._slots), _ROWS))
        rows = torch.split(torch.from_numpy(self._rows), _ROWS)
        tasks, done = torch.from_numpy(self.tasks), 0
        for x in chain(map(self._of_memory, slots), map(self._source.rows, rows)):
            yield x, tasks[done : done + len(x)]
            done += len(x)

    def keep(self, chosen: Ints) -> None:
        """Let the memory hold exactly these (k,) candidates."""
        rows = chosen - len(self._slots)

        def fetch(wanted: Ints) -> dict[str, Tensor]:
            return {"x": self._source.rows(torch.from_numpy(self._rows[rows[wanted]]))}

        self._carousel.retain(
            self.ids[chosen], self.labels[chosen], self.tasks[chosen], fetch=fetch
        )

    def _of_memory(self, slots: Ints) -> Tensor:
        return self._carousel.peek(slots)["x"]
