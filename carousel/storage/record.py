"""Values that describe one stored sample, and batches of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

__all__ = ["ENCODED", "MAX_ID", "FieldSpec", "Layout", "Record", "RecordBatch", "numpy_dtype"]

ENCODED = "encoded"
"""dtype name of a field that holds bytes as they came (JPEG, PNG, anything); its shape is ()."""

MAX_ID = 2**62 - 1
"""The largest id of a sample: far from where ids, and counts of them, would not fit int64."""

FieldArray: TypeAlias = npt.NDArray[np.generic] | Sequence[bytes]


@dataclass(frozen=True, slots=True)
class FieldSpec:
    """Name, dtype and per-sample shape of one field of a record.

    Args:
        name: such as ``"x"`` or ``"logits"``; 1 to 32 bytes of UTF-8.
        dtype: a numpy dtype name, ``"bfloat16"`` (its bits travel as ``uint16``) or `ENCODED`.
        shape: shape of one sample, ``()`` for a scalar; up to 8 dimensions.

    Example:
        >>> FieldSpec("x", "uint8", (32, 32, 3)).nbytes
        3072
    """

    name: str
    dtype: str
    shape: tuple[int, ...] = ()

    @property
    def nbytes(self) -> int:
        """Bytes of one sample's value; 0 for an encoded field, whose length varies."""
        if self.dtype == ENCODED:
            return 0
        return prod(self.shape) * numpy_dtype(self.dtype).itemsize


Layout: TypeAlias = tuple[FieldSpec, ...]


@dataclass(slots=True)
class RecordBatch:
    """n samples of one layout, as arrays.

    Args:
        ids: (n,) int64, at least 0, never reused.
        labels: (n,) int64 class labels.
        tasks: (n,) int64 task labels.
        layout: the fields, in order.
        fields: per name an array (n, *shape) of the field's numpy dtype, or n ``bytes`` objects
            for an encoded field.
    """

    ids: npt.NDArray[np.int64]
    labels: npt.NDArray[np.int64]
    tasks: npt.NDArray[np.int64]
    layout: Layout
    fields: Mapping[str, FieldArray]

    def __len__(self) -> int:
        return len(self.ids)


@dataclass(slots=True)
class Record:
    """One sample read back, for inspection, export and tests; training reads batches."""

    id: int
    label: int
    task: int
    layout: Layout
    fields: dict[str, npt.NDArray[np.generic] | bytes] = field(default_factory=dict)


def numpy_dtype(name: str) -> np.dtype[np.generic]:
    """The numpy dtype that carries a field's bits: ``uint16`` for ``"bfloat16"``.

    Raises:
        TypeError: the name is no dtype of numpy, or it is an object or encoded dtype.
    """
    if name == ENCODED:
        raise TypeError("an encoded field has bytes, not a numpy dtype")
    dtype = np.dtype("uint16" if name == "bfloat16" else name)
    if dtype.hasobject:
        raise TypeError(f"dtype {name!r} holds Python objects and cannot be stored")
    return dtype
