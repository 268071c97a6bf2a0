"""The slots of the memory: one block of RAM a field, allocated once, reached through a table.

A logical slot points through `Slab.table` to a physical row. There are more rows than slots: a
worker fills a spare row, and the training thread makes it visible by changing the table, so that
a row that can be gathered is never written by another thread.
"""

from __future__ import annotations

import contextlib
import mmap
from collections import deque
from collections.abc import Collection, Mapping
from math import prod

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from carousel.memory.convert import TORCH_DTYPES, to_numpy
from carousel.memory.residents import Residents
from carousel.memory.schema import Schema
from carousel.storage.record import FieldSpec

__all__ = ["EMPTY", "Ints", "Slab"]

Ints = npt.NDArray[np.int64]
Named = Collection[int] | Ints

EMPTY = -1
"""The id, label and task of a slot that holds nothing."""


class Slab:
    """Slots and spare rows in memory that is allocated once and never grows.

    Only the training thread calls the methods that change slots. A worker may take spares, write
    rows that it took, and copy a row as long as it checks the slot's generation afterwards: a
    generation rises before the row it named is used for anything else.

    Args:
        schema: fields of a sample.
        slots: logical slots.
        spares: rows beyond the slots, for samples on their way in.

    Attributes:
        arrays: per field (slots + spares, *shape), numpy views for `StorageTier.get_into`.
        columns: (5, slots) int64, the five below in one block, so that one operation reads or
            changes a slot whole.
        table: (slots,) physical row of each slot.
        ids: (slots,) id of the sample in each slot, `EMPTY` when there is none.
        labels: (slots,) class labels, `EMPTY` when there is none.
        tasks: (slots,) task labels, `EMPTY` when there is none.
        generations: (slots,) how often each slot has changed.
        filled: slots that hold a sample.
        residents: their ids, as the worker sees them.
        spares: rows beyond the slots, held or not.
        capacity: slots that may be filled: the first ones, fewer than all while the machine is
            short of memory.

    Example:
        >>> schema = Schema.of({"x": torch.zeros(1, 4)})
        >>> slab = Slab(schema, slots=2, spares=1)
        >>> first = np.array([0])
        >>> slab.write(first, {"x": torch.ones(1, 4)}, ids=first + 7, labels=first, tasks=first)
        >>> batch = schema.empty(1)
        >>> slab.gather(slab.table[first], batch)
        >>> batch["x"].tolist()
        [[1.0, 1.0, 1.0, 1.0]]
    """

    def __init__(self, schema: Schema, slots: int, spares: int) -> None:
        self.schema = schema
        self.spares = spares
        self.capacity = slots
        self._blocks = {spec.name: _Block(spec, slots + spares) for spec in schema.fields}
        self._tensors = {name: block.tensor for name, block in self._blocks.items()}
        self.arrays = schema.views(self._tensors)
        self.columns: Ints = np.full((5, slots), EMPTY)
        self.table, self.ids, self.labels, self.tasks, self.generations = self.columns
        self.table[:] = np.arange(slots)
        self.generations[:] = 0
        self.filled = 0
        self.residents = Residents(self.ids)
        self._free = deque(range(slots, slots + spares))
        self._given_back = 0

    @property
    def slots(self) -> int:
        """Logical slots, filled or not."""
        return len(self.table)

    @property
    def free_rows(self) -> int:
        """Spare rows that nobody holds now."""
        return len(self._free)

    @property
    def nbytes(self) -> int:
        """Bytes of the rows that are not given back, and of the table and its columns."""
        rows = sum(block.nbytes for block in self._blocks.values())
        return rows + self.columns.nbytes - self._given_back

    def gather(self, rows: Ints, out: Mapping[str, Tensor]) -> None:
        """Copy (n,) physical rows into ``out[name]``, each (n, *shape), in one go a field."""
        index = torch.from_numpy(rows)
        for name, tensor in self._tensors.items():
            torch.index_select(_signed(tensor), 0, index, out=_signed(out[name]))

    def copy_rows(self, slots: Ints) -> dict[str, npt.NDArray[np.generic]]:
        """Fresh numpy copies (n, *shape) of (n,) slots.

        A worker must compare the generations afterwards and throw torn rows away.
        """
        rows = self.table[slots]
        return {name: array[rows] for name, array in self.arrays.items()}

    def write(
        self, slots: Ints, fields: Mapping[str, Tensor], ids: Ints, labels: Ints, tasks: Ints
    ) -> None:
        """Put (n,) samples into (n,) distinct slots; what was there is forgotten."""
        self.release(slots)
        rows = self.table[slots]
        for name, array in self.arrays.items():
            array[rows] = to_numpy(fields[name])
        self.assign(slots, ids, labels, tasks)

    def overwrite(self, slots: Ints, values: Mapping[str, npt.NDArray[np.generic]]) -> None:
        """Change some fields, each (n, *shape), of the samples in (n,) slots; no worker may read.

        The samples stay who they are, and generations as they are.
        """
        rows = self.table[slots]
        for name, value in values.items():
            self.arrays[name][rows] = value

    def assign(self, slots: Ints, ids: Ints, labels: Ints, tasks: Ints) -> None:
        """Say what released slots hold, after their rows were filled."""
        self.ids[slots] = ids
        self.labels[slots] = labels
        self.tasks[slots] = tasks
        self.filled += len(slots)
        self.residents.admitted([], ids.tolist())

    def release(self, slots: Ints) -> None:
        """Empty (n,) slots; their generations rise, so requests about them become stale."""
        self.generations[slots] += 1
        leaving = [sample for sample in self.ids[slots].tolist() if sample != EMPTY]
        self.ids[slots] = EMPTY
        self.labels[slots] = EMPTY
        self.tasks[slots] = EMPTY
        self.filled -= len(leaving)
        self.residents.admitted(leaving, [])

    def take_spares(self, count: int) -> Ints | None:
        """`count` rows for a worker to fill, or None when there are not that many."""
        rows: list[int] = []
        try:
            while len(rows) < count:
                rows.append(self._free.popleft())
        except IndexError:
            self._free.extend(rows)
            return None
        return np.array(rows, np.int64)

    def give_back(self, rows: list[int]) -> None:
        """Return rows that were taken and not published."""
        self._free.extend(rows)

    def publish(
        self,
        slots: Ints,
        columns: Ints,
        leaving: list[int],
        coming: list[int],
        freed_rows: list[int],
    ) -> None:
        """Make filled spare rows the content of (n,) distinct slots, on the training thread.

        Args:
            slots: the slots; their generations were checked.
            columns: (5, n) what they become.
            leaving: ids that they hold now.
            coming: ids that they get.
            freed_rows: n rows that they point to now.
        """
        # Generations first: a row that is freed below is known to be torn by who still copies it.
        self.columns[:, slots] = columns
        self.residents.swapped(leaving, coming)
        self._free.extend(freed_rows)

    def move(self, sources: Ints, targets: Ints) -> None:
        """Give the samples of (n,) slots to (n,) empty slots; the sources become empty."""
        self.generations[sources] += 1
        self.generations[targets] += 1
        self._trade_rows(sources, targets)
        for column in (self.ids, self.labels, self.tasks):
            column[targets] = column[sources]
            column[sources] = EMPTY
        self.residents.moved()

    def forget(self, ids: Named, labels: Named, tasks: Named) -> None:
        """Empty the slots of these ids, classes and tasks, and wipe every row that none names.

        No worker may hold a row.
        """
        chosen = ((self.ids, ids), (self.labels, labels), (self.tasks, tasks))
        named = np.logical_or.reduce([np.isin(column, list(these)) for column, these in chosen])
        self.release(np.flatnonzero(named & (self.ids != EMPTY)))
        unused = np.ones(self.slots + self.spares, np.bool_)
        unused[self.table[self.ids != EMPTY]] = False
        for array in self.arrays.values():
            array[unused] = 0

    def set_capacity(self, capacity: int) -> None:
        """Use the first `capacity` slots only, and give the pages of the others to the system.

        The slots beyond it must be empty. Their memory comes back when they are filled again.
        """
        closed = np.arange(capacity, self.slots)
        first = self.slots + self.spares - len(closed)
        self._push_rows_up(closed, first)
        self.capacity = capacity
        rows = np.sort(self.table[closed])
        self._given_back = sum(block.give_back(rows) for block in self._blocks.values())

    def resident(self, ids: Ints) -> npt.NDArray[np.bool_]:
        """Which of (n,) ids are in a slot."""
        return np.isin(ids, self.ids)

    def slots_of(self, ids: Ints) -> Ints:
        """The slot of each of (n,) ids, -1 where it is in none."""
        order = np.argsort(self.ids)
        at = np.minimum(np.searchsorted(self.ids, ids, sorter=order), self.slots - 1)
        slots = order[at]
        return np.where((self.ids[slots] == ids) & (ids != EMPTY), slots, -1)

    def _push_rows_up(self, closed: Ints, first: int) -> None:
        """Let closed slots own the rows from `first` on, so that whole pages are unused."""
        low = closed[self.table[closed] < first]
        free = self._drain_free()
        high = np.flatnonzero(free >= first)[: len(low)]
        by_trade, by_copy = low[: len(high)], low[len(high) :]
        self.table[by_trade], free[high] = free[high], self.table[by_trade]
        self._free.extend(free.tolist())

        used = np.flatnonzero(self.table[: closed[0] if len(closed) else 0] >= first)
        used = used[: len(by_copy)]
        by_copy = by_copy[: len(used)]
        self.generations[used] += 1
        for array in self.arrays.values():
            array[self.table[by_copy]] = array[self.table[used]]
        self._trade_rows(used, by_copy)
        self.residents.moved()

    def _trade_rows(self, some: Ints, others: Ints) -> None:
        self.table[some], self.table[others] = self.table[others], self.table[some]

    def _drain_free(self) -> Ints:
        rows: list[int] = []
        while self._free:
            with contextlib.suppress(IndexError):  # the worker took the last one
                rows.append(self._free.popleft())
        return np.array(rows, np.int64)


_SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def _signed(tensor: Tensor) -> Tensor:
    """The same bits in a dtype that every supported torch can gather."""
    signed = _SIGNED.get(tensor.dtype)
    return tensor if signed is None else tensor.view(signed)


class _Block:
    """The rows of one field in private anonymous memory, whose pages can be given back."""

    def __init__(self, spec: FieldSpec, rows: int) -> None:
        self.row_bytes = spec.nbytes
        self.nbytes = rows * spec.nbytes
        dtype = TORCH_DTYPES[spec.dtype]
        if self.nbytes == 0:
            self._memory = None
            self.tensor = torch.empty((rows, *spec.shape), dtype=dtype)
            return
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS
        self._memory = mmap.mmap(-1, self.nbytes, flags=flags)
        count = rows * prod(spec.shape)
        flat = torch.frombuffer(self._memory, dtype=dtype, count=count)
        self.tensor = flat.view(rows, *spec.shape)

    def give_back(self, rows: Ints) -> int:
        """Return the pages that only these rows (ascending) use; gives their bytes."""
        if self._memory is None or len(rows) == 0:
            return 0
        total = 0
        for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1):
            start = -(-int(run[0]) * self.row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
            end = (int(run[-1]) + 1) * self.row_bytes
            if end < self.nbytes:
                end = end // mmap.PAGESIZE * mmap.PAGESIZE
            if end > start:
                self._memory.madvise(mmap.MADV_DONTNEED, start, end - start)
                total += end - start
        return total
