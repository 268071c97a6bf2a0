"""Reading checked records from a medium, and saying what is damaged."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from carousel.errors import CorruptRecordError
from carousel.storage.codec import decode
from carousel.storage.columns import Ids
from carousel.storage.plain.medium import Medium, Read
from carousel.storage.record import Record
from carousel.storage.tier import ReadStatus

__all__ = ["PlainReader", "chunks", "copy_row"]

_CHUNK = 64


class PlainReader:
    """Reads records and checks every byte of them.

    Args:
        medium: where the bytes are.
        set_aside: takes damaged ids with what is wrong; returns those that really were stored.
    """

    def __init__(self, medium: Medium, set_aside: Callable[[dict[int, str]], set[int]]) -> None:
        self._medium = medium
        self._set_aside = set_aside
        self.reads = 0
        self.io_errors = 0

    def records(self, ids: Ids) -> Iterator[Record | ReadStatus]:
        """Each record, or why there is none; a few are held at a time."""
        for chunk in chunks(ids):
            yield from self._checked(chunk)

    def _checked(self, ids: Ids) -> list[Record | ReadStatus]:
        found: list[Record | ReadStatus] = []
        damaged: dict[int, str] = {}
        for id_, read in zip(ids.tolist(), self._medium.read(ids.tolist()), strict=True):
            try:
                found.append(_decoded(id_, read))
            except CorruptRecordError as error:
                damaged[id_] = str(error)
                found.append(ReadStatus.MISSING)
            except KeyError:
                found.append(ReadStatus.MISSING)
            except OSError:
                self.io_errors += 1
                found.append(ReadStatus.IO_ERROR)
        self.reads += len(ids)
        # What was evicted or deleted while it was read is missing, not damaged.
        aside = self._set_aside(damaged) if damaged else set()
        return [
            ReadStatus.CORRUPT if id_ in aside else result
            for id_, result in zip(ids.tolist(), found, strict=True)
        ]


def copy_row(record: Record, out: Mapping[str, npt.NDArray[np.generic]], row: int) -> ReadStatus:
    """Copy the fields that are wanted into one row, all of them or none."""
    if not all(_fits(record.fields.get(name), target) for name, target in out.items()):
        return ReadStatus.LAYOUT
    for name, target in out.items():
        target[row] = record.fields[name]
    return ReadStatus.OK


def chunks(values: Ids) -> Iterator[Ids]:
    """A long array in pieces that bound how many records are held at a time."""
    for start in range(0, len(values), _CHUNK):
        yield values[start : start + _CHUNK]


def _decoded(id_: int, read: Read) -> Record:
    if isinstance(read, Exception):
        raise read
    record = decode(read)
    if record.id != id_:
        raise CorruptRecordError(f"the record stored as {id_} is that of {record.id}")
    return record


def _fits(value: npt.NDArray[np.generic] | bytes | None, target: npt.NDArray[np.generic]) -> bool:
    if isinstance(value, np.ndarray):
        return value.dtype == target.dtype and value.shape == target.shape[1:]
    return value is not None and target.dtype == object and target.ndim == 1
