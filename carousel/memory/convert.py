"""Between torch tensors and numpy arrays, without copies where the bits allow it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from carousel.errors import BadInputError

__all__ = ["TORCH_DTYPES", "check_labels", "dtype_name", "to_numpy", "to_tensor"]

TORCH_DTYPES: dict[str, torch.dtype] = {
    "bool": torch.bool,
    "uint8": torch.uint8,
    "int8": torch.int8,
    "uint16": torch.uint16,
    "int16": torch.int16,
    "uint32": torch.uint32,
    "int32": torch.int32,
    "uint64": torch.uint64,
    "int64": torch.int64,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "float32": torch.float32,
    "float64": torch.float64,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
"""The dtypes that a field may have, by the name that records carry."""

_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}


def dtype_name(field: str, value: Tensor | npt.NDArray[np.generic]) -> str:
    """The record's name of a tensor's or array's dtype.

    Raises:
        BadInputError: names the field; the dtype is not one of `TORCH_DTYPES`.
    """
    if isinstance(value, Tensor):
        name = _NAMES.get(value.dtype, str(value.dtype))
    else:
        name = value.dtype.newbyteorder("=").name
    if name not in TORCH_DTYPES:
        raise BadInputError(
            f"field {field} has dtype {name}", fix=f"use one of {', '.join(TORCH_DTYPES)}"
        )
    return name


def to_numpy(value: Tensor) -> npt.NDArray[np.generic]:
    """A tensor as an array: the same memory for one on the CPU, bfloat16 as its uint16 bits."""
    plain = value.detach().resolve_conj().resolve_neg().cpu()
    if plain.dtype == torch.bfloat16:
        plain = plain.view(torch.uint16)
    array: npt.NDArray[np.generic] = plain.numpy()
    return array


def to_tensor(value: Tensor | npt.NDArray[np.generic] | object) -> Tensor:
    """An array as a tensor of the same memory; a copy only where torch cannot read it as it is."""
    if isinstance(value, Tensor):
        return value
    array = np.asarray(value)
    native = array.dtype.isnative and array.flags.writeable
    if not native or any(stride < 0 for stride in array.strides):
        array = array.astype(array.dtype.newbyteorder("="), order="C", copy=True)
    return torch.from_numpy(array)


def check_labels(
    labels: Tensor | npt.NDArray[np.generic] | list[int], n_classes: int | None = None
) -> npt.NDArray[np.int64]:
    """Labels as (n,) int64 on the CPU.

    Args:
        labels: (n,) integers of at least 0.
        n_classes: when known, every label must be below it.

    Raises:
        BadInputError: not one-dimensional, not integers, negative or too large; names the first
            bad row.
    """
    array: npt.NDArray[Any] = np.asarray(to_numpy(labels) if isinstance(labels, Tensor) else labels)
    if array.ndim != 1:
        raise BadInputError(f"labels have shape {array.shape}", fix="give one integer a sample")
    if array.size == 0:
        return np.empty(0, np.int64)
    if array.dtype.kind not in "iu":
        raise BadInputError(f"labels are {array.dtype}", fix="give integers of at least 0")
    limit = np.iinfo(np.int32).max if n_classes is None else n_classes - 1
    bad = (array < 0) | (array > limit)
    if bad.any():
        row = int(np.argmax(bad))
        raise BadInputError(
            f"the label of row {row} is {array[row]}", fix=f"use labels from 0 to {limit}"
        )
    return array.astype(np.int64, copy=False)
