"""Reading records by the batch straight into rows of arrays: the hot path of a swap."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from carousel.errors import CorruptRecordError
from carousel.storage.codec import decode, read_table
from carousel.storage.columns import Ids
from carousel.storage.record import ENCODED, FieldSpec, numpy_dtype
from carousel.storage.table import TableInfo
from carousel.storage.tier import ReadStatus

__all__ = ["Destination", "big_endian_keys"]

Get = Callable[[bytes], memoryview | None]

# Prelude, hash, id, fingerprint of the layout.
_HEAD = struct.Struct("<QQq8xQ")
_OK, _MISSING, _CORRUPT, _LAYOUT, _IO_ERROR = (int(status) for status in ReadStatus)


def big_endian_keys(ids: Ids) -> list[bytes]:
    """The key of each id: 8 bytes whose order is that of the ids."""
    raw = ids.astype(">i8").tobytes()
    return [raw[at : at + 8] for at in range(0, len(raw), 8)]


@dataclass(slots=True)
class _Plan:
    """How records of one layout are copied: per wanted field its target, offset and length."""

    prelude: int
    length: int
    copies: list[tuple[npt.NDArray[np.uint8], int, int]]


class Destination:
    """Arrays that records are read into, whatever mix of layouts the records have.

    Args:
        out: per wanted field an array (capacity, *shape); for an encoded field one of objects,
            which then receives ``bytes``.
    """

    def __init__(self, out: Mapping[str, npt.NDArray[Any]]) -> None:
        self._out = out
        self._plans: dict[int, _Plan | None] = {}
        self.damaged: dict[int, str] = {}

    def read(
        self,
        get: Get,
        ids: Ids,
        rows: npt.NDArray[np.int64],
        failures: tuple[type[Exception], type[Exception]],
    ) -> npt.NDArray[np.uint8]:
        """Fetch and copy records, ordered by key.

        Args:
            get: value of a key, a view that stays valid for the call.
            ids: (n,) ids.
            rows: (n,) row of the destination for each.
            failures: what `get` raises for a damaged page, and for any other trouble.

        Returns:
            (n,) `ReadStatus`. Reasons of damage are in `damaged`.
        """
        order = np.argsort(ids)
        status = np.full(len(ids), _MISSING, np.uint8)
        sorted_ids = ids[order]
        todo = zip(
            order.tolist(),
            sorted_ids.tolist(),
            big_endian_keys(sorted_ids),
            rows[order].tolist(),
            strict=True,
        )
        plans = self._plans
        for at, id_, key, row in todo:
            try:
                view = get(key)
                if view is None:
                    continue
                prelude, digest, own_id, layout = _HEAD.unpack_from(view)
                if own_id != id_ or digest != xxh3_64_intdigest(view[16:]):
                    decode(view)
                    raise CorruptRecordError(f"the record stored as {id_} is that of {own_id}")
                if layout not in plans:
                    plans[layout] = self._plan(view)
                plan = plans[layout]
                if plan is None:
                    status[at] = self._read_varied(view, row)
                    continue
                if plan.prelude != prelude or plan.length != len(view):
                    raise CorruptRecordError("the header fails its check word")
                for target, start, count in plan.copies:
                    target[row] = np.frombuffer(view, np.uint8, count, start)
                status[at] = _OK
            except (CorruptRecordError, struct.error, failures[0]) as error:
                self.damaged[id_] = str(error)
                status[at] = _CORRUPT
            except failures[1]:
                status[at] = _IO_ERROR
        return status

    def _plan(self, view: memoryview) -> _Plan | None:
        """The plan for a record's layout, None when it has to be looked at one by one."""
        decode(view)
        info = read_table(view)
        if info.fixed_length is None or not self._fits(info):
            return None
        spans = dict(zip((spec.name for spec in info.layout), info.spans(view), strict=True))
        copies = []
        for name, array in self._out.items():
            start, count = spans[name]
            if not array.flags.c_contiguous:
                return None
            if count:
                flat = array.reshape(len(array), -1).view(np.uint8)
                copies.append((flat, start, count))
        return _Plan(info.prelude, len(view), copies)

    def _read_varied(self, view: memoryview, row: int) -> int:
        record = decode(view)
        if not self._fits(read_table(view)):
            return _LAYOUT
        for name, array in self._out.items():
            array[row] = record.fields[name]
        return _OK

    def _fits(self, info: TableInfo) -> bool:
        specs = {spec.name: spec for spec in info.layout}
        return all(name in specs and _same(specs[name], array) for name, array in self._out.items())


def _same(spec: FieldSpec, array: npt.NDArray[Any]) -> bool:
    if spec.dtype == ENCODED:
        return array.dtype == object and array.ndim == 1
    return array.dtype == numpy_dtype(spec.dtype) and array.shape[1:] == spec.shape
