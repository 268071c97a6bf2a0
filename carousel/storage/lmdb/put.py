"""Encoded records on their way to the file, cut into pieces of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from carousel.storage.codec import check_batch, encode_batch
from carousel.storage.columns import Ids
from carousel.storage.record import RecordBatch

__all__ = ["Put", "join", "pieces"]


@dataclass(slots=True)
class Put:
    """Encoded records that wait to be written.

    Args:
        ids: (n,) ids.
        labels: (n,) class labels.
        tasks: (n,) task labels.
        records: n encoded records.
    """

    ids: Ids
    labels: Ids
    tasks: Ids
    records: list[memoryview]

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def nbytes(self) -> int:
        """Bytes of the records."""
        return sum(map(len, self.records))


def pieces(batch: RecordBatch, max_bytes: int, max_records: int) -> Iterator[Put]:
    """Encode a batch piece by piece, so that never more than one piece is held twice.

    Args:
        batch: checked as a whole before the first piece comes.
        max_bytes: bytes of a piece; one larger record makes a piece of its own.
        max_records: records of a piece.

    Raises:
        SchemaMismatchError: the arrays do not have the layout they state.
    """
    info = check_batch(batch)
    sizes = np.full(len(batch), info.payload + sum(info.nbytes), np.int64)
    for at in info.encoded:
        values = batch.fields[info.layout[at].name]
        sizes += np.fromiter(map(len, values), np.int64, len(batch))
    ends = np.cumsum(sizes)
    start = 0
    while start < len(batch):
        limit = max_bytes + (int(ends[start - 1]) if start else 0)
        stop = int(np.searchsorted(ends, limit, side="right"))
        stop = min(max(stop, start + 1), start + max_records)
        yield _encoded(batch, slice(start, stop))
        start = stop


def join(puts: Sequence[Put]) -> Put:
    """Several pieces as one."""
    if len(puts) == 1:
        return puts[0]
    return Put(
        np.concatenate([put.ids for put in puts]),
        np.concatenate([put.labels for put in puts]),
        np.concatenate([put.tasks for put in puts]),
        [record for put in puts for record in put.records],
    )


def _encoded(batch: RecordBatch, rows: slice) -> Put:
    part = replace(
        batch,
        ids=batch.ids[rows].copy(),
        labels=batch.labels[rows].copy(),
        tasks=batch.tasks[rows].copy(),
        fields={name: values[rows] for name, values in batch.fields.items()},
    )
    return Put(part.ids, part.labels, part.tasks, encode_batch(part))
