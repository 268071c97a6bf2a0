"""Where each chunk's newest record lies, and which one a recovery would read."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

__all__ = ["Committed", "Places"]

NOWHERE = -1


@dataclass(frozen=True, slots=True)
class Committed:
    """What a commit says of the chunks.

    Args:
        places: place of each chunk's record, -1 where it has none.
        steps: that the records were written at.
    """

    places: tuple[int, ...]
    steps: tuple[int, ...]


class Places:
    """The two places of every chunk.

    The committed one is only read. What is written before the next commit goes to the other,
    again and again if there are several steps between commits. The writer alone changes anything.

    Args:
        chunks: how many there are.
        single: there is one place only, and no recovery.
    """

    def __init__(self, chunks: int, *, single: bool = False) -> None:
        self._committed: npt.NDArray[np.int8] = np.full(chunks, NOWHERE, np.int8)
        self._newest = self._committed.copy()
        self._steps: npt.NDArray[np.int64] = np.zeros(chunks, np.int64)
        self._single = single

    def newest(self, chunk: int) -> tuple[int, int]:
        """Place of the newest record and the step that it was written at; place -1: none."""
        return int(self._newest[chunk]), int(self._steps[chunk])

    def free(self, chunk: int) -> int:
        """The place to write to."""
        return 0 if self._single or self._committed[chunk] != 0 else 1

    def written(self, chunk: int, step: int) -> None:
        """A record was written whole to the free place."""
        self._newest[chunk] = self.free(chunk)
        self._steps[chunk] = step

    def now(self) -> Committed:
        """What a commit at this moment has to say."""
        return Committed(tuple(self._newest.tolist()), tuple(self._steps.tolist()))

    def commit(self) -> None:
        """`now` is on the medium: from here on the newest records are not overwritten."""
        self._committed[:] = self._newest

    def restore(self, committed: Committed) -> None:
        """Go on from a commit."""
        self._newest[:] = committed.places
        self._committed[:] = committed.places
        self._steps[:] = committed.steps
