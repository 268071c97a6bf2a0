"""Reading records by the batch straight into rows of arrays: the hot path of a swap."""

from __future__ import annotations

import struct
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt
from xxhash import xxh3_64_intdigest

from carousel.errors import CorruptRecordError
from carousel.storage.codec import decode, decode_as, read_table
from carousel.storage.columns import Ids
from carousel.storage.record import ENCODED, FieldSpec, numpy_dtype
from carousel.storage.table import TableInfo
from carousel.storage.tier import ReadStatus

__all__ = ["Destination", "Layouts", "big_endian_keys"]

# Prelude, hash, id, fingerprint of the layout.
_HEAD = struct.Struct("<QQq8xQ")
_HASHED_FROM = 16
_OK, _MISSING, _CORRUPT, _LAYOUT, _IO_ERROR = (int(status) for status in ReadStatus)
# numpy copies without the GIL, but costs more per call; a small record was just paged in by its
# checksum, so copying it with the GIL held stops nobody.
_BY_NUMPY = 64 << 10

Wanted: TypeAlias = tuple[tuple[str, np.dtype[Any], tuple[int, ...], bool], ...]


def big_endian_keys(ids: Ids) -> list[bytes]:
    """The key of each id: 8 bytes whose order is that of the ids."""
    raw = ids.astype(">i8").tobytes()
    return [raw[at : at + 8] for at in range(0, len(raw), 8)]


class _Plan(NamedTuple):
    """How records of one layout are copied: per wanted field its name, offset and length."""

    prelude: int
    length: int
    copies: tuple[tuple[str, int, int], ...]


class Layouts:
    """Plans that were made, kept between batches: by layout and by what was wanted of it."""

    def __init__(self) -> None:
        self._plans: dict[tuple[int, Wanted], _Plan | None] = {}

    def plan(self, layout: int, wanted: Wanted, record: memoryview) -> _Plan | None:
        """The plan for records like this one, None when each has to be looked at by itself.

        Raises:
            CorruptRecordError: the record is damaged.
        """
        key = layout, wanted
        if key not in self._plans:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            self._plans[key] = _make_plan(wanted, record)
        return self._plans[key]


_MAX_PLANS = 256


class Destination:
    """Arrays that records are read into, whatever mix of layouts the records have.

    Args:
        out: per wanted field an array (capacity, *shape); for an encoded field one of objects,
            which then receives ``bytes``.
        layouts: plans of earlier batches.
    """

    def __init__(self, out: Mapping[str, npt.NDArray[Any]], layouts: Layouts) -> None:
        self._out = out
        self._layouts = layouts
        self._capacity = min((len(array) for array in out.values()), default=sys.maxsize)
        self._wanted: Wanted = tuple(
            (name, array.dtype, array.shape[1:], array.flags.c_contiguous)
            for name, array in out.items()
        )
        self.damaged: dict[int, str] = {}

    def read(
        self,
        txn: Any,
        database: Any,
        ids: Ids,
        rows: npt.NDArray[np.int64],
        failures: tuple[type[Exception], type[Exception]],
    ) -> npt.NDArray[np.uint8]:
        """Fetch and copy records, ordered by key.

        Args:
            txn: an open read transaction that gives views.
            database: of the records.
            ids: (n,) ids.
            rows: (n,) row of the destination for each.
            failures: what the transaction raises for a damaged page, and for any other trouble.

        Returns:
            (n,) `ReadStatus`. Reasons of damage are in `damaged`.

        Raises:
            IndexError: a row lies outside of the arrays.
        """
        if len(rows) and (int(rows.min()) < 0 or int(rows.max()) >= self._capacity):
            raise IndexError(f"rows go beyond the {self._capacity} of the destination")
        order = np.argsort(ids)
        sorted_ids = ids[order]
        todo = zip(
            big_endian_keys(sorted_ids), sorted_ids.tolist(), rows[order].tolist(), strict=True
        )
        status = np.empty(len(ids), np.uint8)
        status[order] = list(self._statuses(txn.get, database, todo, failures))
        return status

    def _statuses(
        self,
        get: Callable[..., memoryview | None],
        database: Any,
        todo: Iterable[tuple[bytes, int, int]],
        failures: tuple[type[Exception], type[Exception]],
    ) -> Iterator[int]:
        unpack, digest_of = _HEAD.unpack_from, xxh3_64_intdigest
        known, plan, copies = -1, None, []
        for key, id_, row in todo:
            try:
                view = get(key, None, database)
                if view is None:
                    yield _MISSING
                    continue
                prelude, digest, own_id, layout = unpack(view)
                if digest != digest_of(view[_HASHED_FROM:]) or own_id != id_:
                    decode_as(view, id_)
                    raise CorruptRecordError("the record changed while it was read")
                if layout != known:
                    plan = self._layouts.plan(layout, self._wanted, view)
                    copies = self._bind(plan)
                    known = layout
                if plan is None:
                    yield self._read_varied(view, row)
                    continue
                if prelude != plan.prelude or len(view) != plan.length:
                    raise CorruptRecordError("the header fails its check word")
                for target, start, count, by_rows in copies:
                    if by_rows:
                        target[row] = np.frombuffer(view, np.uint8, count, start)
                    else:
                        target[row * count : (row + 1) * count] = view[start : start + count]
                yield _OK
            except (CorruptRecordError, struct.error, failures[0]) as error:
                self.damaged[id_] = str(error)
                yield _CORRUPT
            except failures[1]:
                yield _IO_ERROR

    def _bind(self, plan: _Plan | None) -> list[tuple[Any, int, int, bool]]:
        """Targets of a plan: flat bytes, or rows of bytes for numpy."""
        bound: list[tuple[Any, int, int, bool]] = []
        for name, start, count in plan.copies if plan else ():
            flat = self._out[name].reshape(-1).view(np.uint8)
            by_rows = count >= _BY_NUMPY
            bound.append((flat.reshape(-1, count) if by_rows else flat.data, start, count, by_rows))
        return bound

    def _read_varied(self, view: memoryview, row: int) -> int:
        record = decode(view)
        if not _fits(read_table(view), self._wanted):
            return _LAYOUT
        for name, array in self._out.items():
            array[row] = record.fields[name]
        return _OK


def _make_plan(wanted: Wanted, record: memoryview) -> _Plan | None:
    decode(record)
    info = read_table(record)
    contiguous = all(dense for _, _, _, dense in wanted)
    if info.fixed_length is None or not contiguous or not _fits(info, wanted):
        return None
    spans = dict(zip((spec.name for spec in info.layout), info.spans(record), strict=True))
    copies = tuple((name, *spans[name]) for name, _, _, _ in wanted if spans[name][1])
    return _Plan(info.prelude, len(record), copies)


def _fits(info: TableInfo, wanted: Wanted) -> bool:
    specs = {spec.name: spec for spec in info.layout}
    return all(
        name in specs and _same(specs[name], dtype, shape) for name, dtype, shape, _ in wanted
    )


def _same(spec: FieldSpec, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    if spec.dtype == ENCODED:
        return dtype.hasobject and shape == ()
    return dtype == numpy_dtype(spec.dtype) and shape == spec.shape
