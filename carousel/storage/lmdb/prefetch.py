"""Telling the system which parts of a file are read soon, so that it fetches them together.

Without this, LMDB with its read-ahead off faults each page of a cold record by itself.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import numpy.typing as npt

__all__ = ["Prefetcher", "ReadAhead", "merge_ranges"]

Ids = npt.NDArray[np.int64]

_WINDOW = 32 << 20
_PIECE = 128 << 10


class Prefetcher:
    """Hints through a descriptor of its own; on systems without `posix_fadvise` it does nothing.

    Args:
        file_path: the data file, which must exist.
    """

    def __init__(self, file_path: Path) -> None:
        self._file = -1
        if hasattr(os, "posix_fadvise"):
            self._file = os.open(file_path, os.O_RDONLY | os.O_CLOEXEC)

    def hint(self, offsets: Ids, lengths: Ids) -> int:
        """Ask for byte ranges; negative offsets are unknown and left out.

        A wrong offset costs a useless read and nothing else: data is never taken from here.

        Returns:
            The number of requests made.
        """
        if self._file < 0:
            return 0
        known = offsets >= 0
        asked = 0
        for start, length in merge_ranges(offsets[known], lengths[known]):
            # The system takes no more than its read-ahead size from one call.
            for at in range(start, start + length, _PIECE):
                try:
                    size = min(_PIECE, start + length - at)
                    os.posix_fadvise(self._file, at, size, os.POSIX_FADV_WILLNEED)
                except OSError:
                    return asked
                asked += 1
        return asked

    def close(self) -> None:
        """Close the descriptor; again is fine."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


class ReadAhead:
    """Asks for a file window by window while a walk through it goes on.

    Args:
        file_path: the file.
    """

    def __init__(self, file_path: Path) -> None:
        self._hints = Prefetcher(file_path)
        self._size = file_path.stat().st_size
        self._asked = 0

    def advance(self, share: float) -> None:
        """Say how much of the walk is done, 0 to 1."""
        target = min(self._size, int(share * self._size) + _WINDOW)
        if target > self._asked:
            start = np.array([self._asked], np.int64)
            self._hints.hint(start, np.array([target - self._asked], np.int64))
            self._asked = target

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *_: object) -> None:
        self._hints.close()


def merge_ranges(offsets: Ids, lengths: Ids) -> Iterable[tuple[int, int]]:
    """Ascending byte ranges with touching ones joined, as (start, length).

    Example:
        >>> list(merge_ranges(np.array([8192, 0]), np.array([10, 8192])))
        [(0, 8202)]
    """
    if len(offsets) == 0:
        return []
    order = np.argsort(offsets)
    starts, ends = offsets[order], offsets[order] + lengths[order]
    ends = np.maximum.accumulate(ends)
    first = np.flatnonzero(np.r_[True, starts[1:] > ends[:-1]])
    last = np.r_[first[1:] - 1, len(starts) - 1]
    return zip(starts[first].tolist(), (ends[last] - starts[first]).tolist(), strict=True)
