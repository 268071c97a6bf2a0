"""Ids that were deleted on purpose, as ranges: they do not come back when presented again."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from carousel.storage.columns import Ids

__all__ = ["Tombstones"]


class Tombstones:
    """An immutable set of ids; a forgotten class or task takes a few bytes a range.

    Args:
        bounds: (k, 2) int64, ascending, apart: first id and the one after the last.

    Example:
        >>> gone = Tombstones().with_ids(np.array([4, 5, 9]))
        >>> gone.contains(np.array([3, 4, 9])).tolist(), len(gone.bounds)
        ([False, True, True], 2)
    """

    def __init__(self, bounds: Ids | None = None) -> None:
        self.bounds: Ids = np.empty((0, 2), np.int64) if bounds is None else bounds

    def contains(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which ids are in the set, (n,) bool."""
        if len(self.bounds) == 0:
            return np.zeros(len(ids), np.bool_)
        at = np.searchsorted(self.bounds[:, 0], ids, side="right") - 1
        inside: npt.NDArray[np.bool_] = (at >= 0) & (ids < self.bounds[at, 1])
        return inside

    def with_ids(self, ids: Ids) -> Tombstones:
        """The set with more ids."""
        if len(ids) == 0:
            return self
        fresh = np.unique(ids)
        starts = np.r_[self.bounds[:, 0], fresh]
        ends = np.r_[self.bounds[:, 1], fresh + 1]
        order = np.argsort(starts, kind="stable")
        starts, reach = starts[order], np.maximum.accumulate(ends[order])
        first = np.r_[True, starts[1:] > reach[:-1]]
        last = np.r_[first[1:], True]
        return Tombstones(np.stack([starts[first], reach[last]], axis=1))

    def to_bytes(self) -> bytes:
        """The set as bytes."""
        return self.bounds.astype("<i8").tobytes()

    @classmethod
    def from_bytes(cls, raw: bytes) -> Tombstones:
        """The set that `to_bytes` wrote."""
        return cls(np.frombuffer(raw, "<i8").astype(np.int64).reshape(-1, 2))
