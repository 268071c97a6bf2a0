"""Buffers that chunks pass through, touched once, and views of them made once."""

from __future__ import annotations

import mmap
from contextlib import suppress
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from carousel.offload.record import RecordLayout

__all__ = ["Fields", "Ring", "anonymous", "fields_of"]

Fields: TypeAlias = dict[str, Tensor]
"""The fields of a record, each a tensor (numel,) of the states' dtype."""

Bytes = npt.NDArray[np.uint8]


class Ring:
    """Equal buffers in one mapping that begins at a page.

    Args:
        count: how many.
        nbytes: of each, a multiple of 4096.
    """

    def __init__(self, count: int, nbytes: int) -> None:
        self._slab = anonymous(count * nbytes)
        self._slab.fill(0)
        self._nbytes = nbytes
        self._views: dict[tuple[int, tuple[int, str, int]], Fields] = {}

    def record(self, buffer: int, layout: RecordLayout) -> Bytes:
        """The bytes of a record in a buffer."""
        start = buffer * self._nbytes
        return self._slab[start : start + layout.nbytes]

    def fields(self, buffer: int, layout: RecordLayout) -> Fields:
        """The fields of a record in a buffer."""
        key = buffer, (layout.numel, layout.dtype, len(layout.fields))
        if key not in self._views:
            self._views[key] = fields_of(self.record(buffer, layout), layout)
        return self._views[key]


def anonymous(nbytes: int) -> Bytes:
    """Zeros from the system, (nbytes,) uint8, which take RAM when they are written to.

    Private: shared memory, Python's default, gets no huge pages, and reading it is dearer.
    """
    area = mmap.mmap(-1, max(nbytes, 1), flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):
        area.madvise(mmap.MADV_HUGEPAGE)
    return np.frombuffer(area, np.uint8)


def fields_of(record: Bytes, layout: RecordLayout, begin: int = 0) -> Fields:
    """The fields of a record, as tensors that share its memory.

    Args:
        record: its bytes from `begin` on.
        layout: of the record.
        begin: the first byte of the layout that is there.
    """
    dtype: torch.dtype = getattr(torch, layout.dtype)
    return {
        part.name: torch.from_numpy(
            record[part.offset - begin : part.offset - begin + part.nbytes]
        ).view(dtype)
        for part in layout.fields
        if part.offset >= begin
    }
