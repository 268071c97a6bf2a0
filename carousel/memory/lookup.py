"""Samples by their ids, wherever they are: in a slot or in storage."""

from __future__ import annotations

import time

import numpy as np
import numpy.typing as npt
from torch import Tensor

from carousel.memory.reader import RecordReader
from carousel.memory.slab import Slab
from carousel.storage.tier import ReadStatus, StorageTier

__all__ = ["read_samples"]

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

_ROWS = 256


def read_samples(
    slab: Slab, tier: StorageTier, ids: Ints, *, skip_slots: bool = False
) -> tuple[dict[str, Tensor], Mask]:
    """Fresh copies of the fields of (n,) ids, and which were found, (n,) bool.

    Rows that are not found, or cannot be read, are zero.

    Args:
        slab: the slots, and the schema.
        tier: the storage.
        ids: what to read.
        skip_slots: read residents from storage too.
    """
    fields = slab.schema.empty(len(ids))
    arrays = slab.schema.views(fields)
    slots = slab.slots_of(ids)
    found = (slots >= 0) & (not skip_slots)
    for name, values in slab.copy_rows(slots[found]).items():
        arrays[name][found] = values
    reader = RecordReader(tier, slab.schema, time.sleep)
    absent = np.flatnonzero(~found)
    for start in range(0, len(absent), _ROWS):
        rows = absent[start : start + _ROWS]
        tier.prefetch(ids[rows])
        found[rows] = reader.read(ids[rows], arrays, rows) == ReadStatus.OK
    for array in arrays.values():
        array[~found] = 0
    return fields, found
