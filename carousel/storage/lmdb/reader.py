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

# Prelude, hash, id, fingerprint of the layout, length.
_HEAD = struct.Struct("<QQq8xQ12xI")
_HASHED = slice(16, None)
_OK, _MISSING, _CORRUPT, _LAYOUT, _IO_ERROR = (int(status) for status in ReadStatus)
# numpy copies without the GIL, but costs more per call; a small record was just paged in by its
# checksum, so copying it with the GIL held stops nobody.
_BY_NUMPY = 64 << 10
# In the order of keys the tree is walked faster, in the order of rows larger values are written
# faster; measured.
_SORTED = 8 << 10

Wanted: TypeAlias = tuple[tuple[str, np.dtype[Any], tuple[int, ...], bool], ...]


def big_endian_keys(ids: Ids) -> list[bytes]:
    """The key of each id: 8 bytes whose order is that of the ids."""
    keys: list[bytes] = ids.astype(">i8").view("V8").tolist()
    return keys


class _Plan(NamedTuple):
    """How records of one layout are copied: per wanted field its name, offset and length."""

    prelude: int
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
        self._row_bytes = sum(array.nbytes // max(1, len(array)) for array in out.values())
        self._wanted: Wanted = tuple(
            (name, array.dtype, array.shape[1:], array.flags.c_contiguous)
            for name, array in out.items()
        )
        self.damaged: dict[int, str] = {}
        self.io_errors = 0

    def read(
        self,
        txn: Any,
        database: Any,
        ids: Ids,
        rows: npt.NDArray[np.int64],
        failures: tuple[type[Exception], type[Exception]],
    ) -> npt.NDArray[np.uint8]:
        """Fetch and copy records; small ones in the order of their keys.

        Args:
            txn: an open read transaction that gives views.
            database: of the records.
            ids: (n,) ids.
            rows: (n,) row of the destination for each.
            failures: what the transaction raises for a damaged page, and for any other trouble.

        Returns:
            (n,) `ReadStatus`. Reasons of damage are in `damaged`, and `io_errors` counts.

        Raises:
            IndexError: a row lies outside of the arrays.
        """
        # Seen as unsigned, a negative row is a very large one.
        if len(rows) and int(rows.view(np.uint64).max()) >= self._capacity:
            raise IndexError(f"rows go beyond the {self._capacity} of the destination")
        status = np.zeros(len(ids), np.uint8)
        places: Iterable[int] = range(len(ids))
        if self._row_bytes < _SORTED:
            order = np.argsort(ids)
            ids, rows, places = ids[order], rows[order], order.tolist()
        todo = zip(places, big_endian_keys(ids), ids.tolist(), rows.tolist(), strict=True)
        for at, outcome in self._failures(txn.get, database, todo, failures):
            status[at] = outcome
        return status

    def _failures(
        self,
        get: Callable[..., memoryview | None],
        database: Any,
        todo: Iterable[tuple[int, bytes, int, int]],
        failures: tuple[type[Exception], type[Exception]],
    ) -> Iterator[tuple[int, int]]:
        """Copy record after record; yields position and status of those that were not copied.

        What is done a record here is the price of a swap: as little as the checks allow.
        """
        unpack, digest_of = _HEAD.unpack_from, xxh3_64_intdigest
        known, expected = -1, -1
        bound = _Bound()
        for at, key, id_, row in todo:
            try:
                view = get(key, None, database)
                if view is None:
                    yield at, _MISSING
                    continue
                prelude, digest, own_id, layout, length = unpack(view)
                # The length first: that of a damaged page may lead beyond the end of the file.
                if length != len(view) or digest != digest_of(view[_HASHED]) or own_id != id_:
                    decode_as(view, id_)
                    raise CorruptRecordError("the record changed while it was read")
                if layout != known or prelude != expected:
                    plan = self._layouts.plan(layout, self._wanted, view)
                    expected = self._expected(plan, prelude)
                    bound, known = _bind(plan, self._out), layout
                if bound.single is not None:
                    count = bound.nbytes
                    bound.single[row * count : (row + 1) * count] = view[bound.source]
                elif bound.varied:
                    if (outcome := self._read_varied(view, row)) != _OK:
                        yield at, outcome
                else:
                    for target, start, count in bound.rows:
                        target[row] = np.frombuffer(view, np.uint8, count, start)
            except (CorruptRecordError, struct.error, ValueError, failures[0]) as error:
                self.damaged[id_] = str(error)
                yield at, _CORRUPT
            except failures[1]:
                self.io_errors += 1
                yield at, _IO_ERROR

    def _expected(self, plan: _Plan | None, prelude: int) -> int:
        """The prelude that all records of the plan have; this one's was not checked yet."""
        if plan is None:
            return prelude
        if prelude != plan.prelude:
            raise CorruptRecordError("the header fails its check word")
        return plan.prelude

    def _read_varied(self, view: memoryview, row: int) -> int:
        record = decode(view)
        if not _fits(read_table(view), self._wanted):
            return _LAYOUT
        for name, array in self._out.items():
            array[row] = record.fields[name]
        return _OK


class _Bound(NamedTuple):
    """A plan applied to one destination.

    Args:
        single: the flat bytes of the only wanted field, if it is small.
        source: where its value lies in a record.
        nbytes: its length.
        rows: otherwise per field its rows of bytes, the value's offset and bytes.
        varied: the records have to be looked at one by one.
    """

    single: memoryview | None = None
    source: slice = slice(0)
    nbytes: int = 0
    rows: tuple[tuple[npt.NDArray[np.uint8], int, int], ...] = ()
    varied: bool = False


def _bind(plan: _Plan | None, out: Mapping[str, npt.NDArray[Any]]) -> _Bound:
    if plan is None:
        return _Bound(varied=True)
    flat = [
        (out[name].reshape(-1).view(np.uint8), start, count) for name, start, count in plan.copies
    ]
    if len(flat) == 1 and flat[0][2] < _BY_NUMPY:
        target, start, count = flat[0]
        return _Bound(target.data, slice(start, start + count), count)
    return _Bound(
        rows=tuple((target.reshape(-1, count), start, count) for target, start, count in flat)
    )


def _make_plan(wanted: Wanted, record: memoryview) -> _Plan | None:
    decode(record)
    info = read_table(record)
    contiguous = all(dense for _, _, _, dense in wanted)
    if info.fixed_length is None or not contiguous or not _fits(info, wanted):
        return None
    spans = dict(zip((spec.name for spec in info.layout), info.spans(record), strict=True))
    copies = tuple((name, *spans[name]) for name, _, _, _ in wanted if spans[name][1])
    return _Plan(info.prelude, copies)


def _fits(info: TableInfo, wanted: Wanted) -> bool:
    specs = {spec.name: spec for spec in info.layout}
    return all(
        name in specs and _same(specs[name], dtype, shape) for name, dtype, shape, _ in wanted
    )


def _same(spec: FieldSpec, dtype: np.dtype[Any], shape: tuple[int, ...]) -> bool:
    if spec.dtype == ENCODED:
        return dtype.hasobject and shape == ()
    return dtype == numpy_dtype(spec.dtype) and shape == spec.shape
