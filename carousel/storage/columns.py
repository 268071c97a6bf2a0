"""Growing integer columns in ascending order of id, and the ascending ids of one class.

Both are the floor of the index: appends at the end cost the batch, anything else is gathered
and done for many at a time.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ClassIds", "Columns", "Ids", "Rows"]

Ids: TypeAlias = npt.NDArray[np.int64]
Rows: TypeAlias = Mapping[str, npt.NDArray[Any]]
"""Values for columns, by name."""

_MIN_CAPACITY = 16
_PENDING = 1024


class Columns:
    """Integer columns of equal length, sorted by the column ``ids``.

    A column starts with the narrow dtype that it was given and widens when a value needs it.

    Args:
        dtypes: name to starting dtype; ``ids`` is among them.
    """

    def __init__(self, dtypes: Mapping[str, npt.DTypeLike]) -> None:
        self._data: dict[str, npt.NDArray[Any]] = {
            name: np.empty(0, dtype) for name, dtype in dtypes.items()
        }
        self._size = 0

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, name: str) -> npt.NDArray[Any]:
        return self._data[name][: self._size]

    @property
    def last_id(self) -> int:
        """The highest id, -1 when empty."""
        return int(self._data["ids"][self._size - 1]) if self._size else -1

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return sum(column.nbytes for column in self._data.values())

    def append(self, values: Rows) -> None:
        """Add rows whose ids ascend and lie above `last_id`."""
        end = self._size + len(values["ids"])
        if end > len(self._data["ids"]):
            self._resize(_capacity(end))
        for name, column in values.items():
            self._set(name, slice(self._size, end), column)
        self._size = end

    def insert(self, values: Rows) -> None:
        """Merge rows whose ids ascend and are not here, anywhere; costs the whole table."""
        at = np.searchsorted(self["ids"], values["ids"])
        merged = {}
        for name, column in values.items():
            dtype = _wide_enough(self._data[name].dtype, column)
            merged[name] = np.insert(self[name].astype(dtype, copy=False), at, column)
        self._data = merged
        self._size = len(merged["ids"])

    def keep(self, mask: npt.NDArray[np.bool_]) -> None:
        """Drop the rows where `mask` is False and give the memory back."""
        kept = int(np.count_nonzero(mask))
        for name in self._data:
            column = self[name]
            smaller = np.empty(_capacity(kept), column.dtype)
            smaller[:kept] = column[mask]
            self._data[name] = smaller
        self._size = kept

    def set(self, name: str, rows: Ids, values: npt.NDArray[Any]) -> None:
        """Overwrite cells of one column."""
        self._set(name, rows, values)

    def find(self, ids: Ids) -> Ids:
        """Row of each id, -1 where it is not here."""
        if self._size == 0:
            return np.full(len(ids), -1, np.int64)
        mine = self["ids"]
        rows = np.minimum(np.searchsorted(mine, ids), self._size - 1)
        return np.where(mine[rows] == ids, rows, -1).astype(np.int64, copy=False)

    def _set(self, name: str, where: slice | Ids, values: npt.NDArray[Any]) -> None:
        dtype = _wide_enough(self._data[name].dtype, values)
        if dtype != self._data[name].dtype:
            self._data[name] = self._data[name].astype(dtype)
        self._data[name][where] = values

    def _resize(self, capacity: int) -> None:
        for name, column in self._data.items():
            larger = np.empty(capacity, column.dtype)
            larger[: self._size] = column[: self._size]
            self._data[name] = larger


class ClassIds:
    """The ids of one class, ascending; snapshots of it never change.

    Removals and late ids (below the last one) wait until someone looks or many have gathered;
    what a snapshot shows is never written again.
    """

    def __init__(self) -> None:
        self._buffer: Ids = np.empty(0, np.int64)
        self._size = 0
        # At most one of the two is non-empty, so that their order does not matter.
        self._late: list[Ids] = []
        self._removed: list[Ids] = []
        self._waiting = 0

    def __len__(self) -> int:
        return self._size + (self._waiting if self._late else -self._waiting)

    @property
    def nbytes(self) -> int:
        """Bytes allocated."""
        return self._buffer.nbytes + 8 * self._waiting

    def add(self, ids: Ids) -> None:
        """Add ids that ascend and are not here."""
        if self._size == 0 or ids[0] > self._buffer[self._size - 1]:
            self._append(ids)
            return
        if self._removed:
            self._settle()
        self._late.append(ids.copy())
        self._wait(len(ids))

    def remove(self, ids: Ids) -> None:
        """Remove ids that are here."""
        if self._late:
            self._settle()
        self._removed.append(ids.copy())
        self._wait(len(ids))

    def cut(self, first: int) -> None:
        """Remove every id from `first` on."""
        self._settle()
        kept = int(np.searchsorted(self._buffer[: self._size], first))
        if kept < self._size:
            self._take(self._buffer[:kept].copy())

    def snapshot(self) -> Ids:
        """All ids as a read-only array that stays as it is."""
        self._settle()
        view = self._buffer[: self._size]
        view.flags.writeable = False
        return view

    def _append(self, ids: Ids) -> None:
        end = self._size + len(ids)
        if end > len(self._buffer):
            larger = np.empty(_capacity(end), np.int64)
            larger[: self._size] = self._buffer[: self._size]
            self._buffer = larger
        self._buffer[self._size : end] = ids
        self._size = end

    def _wait(self, count: int) -> None:
        self._waiting += count
        if self._waiting > max(_PENDING, self._size // 4):
            self._settle()

    def _settle(self) -> None:
        if not self._waiting:
            return
        current = self._buffer[: self._size]
        if self._late:
            late = np.sort(np.concatenate(self._late))
            self._take(np.insert(current, np.searchsorted(current, late), late))
        else:
            gone = np.concatenate(self._removed)
            self._take(np.delete(current, np.searchsorted(current, gone)))
        self._late, self._removed, self._waiting = [], [], 0

    def _take(self, ids: Ids) -> None:
        self._buffer, self._size = ids, len(ids)


def _capacity(size: int) -> int:
    """Capacity for `size` rows: an eighth to spare, so that memory stays close to what is used."""
    return max(_MIN_CAPACITY, size + size // 8)


def _wide_enough(dtype: np.dtype[Any], values: npt.NDArray[Any]) -> np.dtype[Any]:
    if len(values) == 0:
        return dtype
    low, high = int(values.min()), int(values.max())
    while low < np.iinfo(dtype).min or high > np.iinfo(dtype).max:
        dtype = _WIDER[dtype]
    return dtype


_WIDER: dict[np.dtype[Any], np.dtype[Any]] = {
    np.dtype(np.int16): np.dtype(np.int32),
    np.dtype(np.int32): np.dtype(np.int64),
    np.dtype(np.uint32): np.dtype(np.int64),
}
