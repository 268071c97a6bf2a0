"""What a tier holds, in RAM: about 30 bytes a record, looked up and drawn from in batches."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from carousel.storage.columns import ClassIds, Columns, Ids, Rows
from carousel.storage.tier import IndexEntries

__all__ = ["Index", "Lookup"]


class Lookup(NamedTuple):
    """Columns of the ids asked for, (n,) int64 each; -1 all over where an id is not stored."""

    labels: Ids
    tasks: Ids
    lengths: Ids
    offsets: Ids


class Index:
    """Id, label, task, length and place of every record, and the ids of each class.

    Adding ids in ascending order and removing any ids cost the batch (amortised); late ids are
    merged a few thousand at a time. `ids_of` always ascends, so a store that was reopened draws
    the same as one that grew. Memory follows what is stored, also under endless eviction.

    Every method may be called from any thread.

    Example:
        >>> index = Index()
        >>> index.add(np.arange(3), np.array([0, 1, 0]), np.zeros(3, int), np.full(3, 3072))
        >>> index.ids_of(0)
        array([0, 2])
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._main = Columns(_DTYPES)
        self._late = Columns(_DTYPES)
        self._classes: dict[int, ClassIds] = {}
        self._pins: Counter[int] = Counter()
        self._pinned: Ids | None = None
        self._dead = 0
        self._hidden = 0
        self._total_length = 0

    def __len__(self) -> int:
        with self._lock:
            return self._count()

    @property
    def total_length(self) -> int:
        """Sum of the lengths of all records, in bytes."""
        with self._lock:
            return self._total_length

    @property
    def nbytes(self) -> int:
        """Bytes of RAM that the index holds."""
        with self._lock:
            lists = sum(ids.nbytes for ids in self._classes.values())
            return self._main.nbytes + self._late.nbytes + lists + 100 * len(self._pins)

    def add(
        self, ids: Ids, labels: Ids, tasks: Ids, lengths: Ids, offsets: Ids | None = None
    ) -> None:
        """Take in records that are not stored yet, visible.

        Args:
            ids: (n,) distinct ids, in any order; cheapest ascending above all others.
            labels: (n,) class labels.
            tasks: (n,) task labels.
            lengths: (n,) bytes that each record costs.
            offsets: (n,) byte offsets in the file as a hint, -1 or None when unknown.

        Raises:
            ValueError: an id is stored already or given twice.
        """
        if len(ids) == 0:
            return
        order = np.argsort(ids, kind="stable")
        rows: Rows = {
            "ids": ids[order],
            "labels": labels[order],
            "tasks": tasks[order],
            "lengths": lengths[order],
            "blocks": _blocks(np.full(len(ids), -1) if offsets is None else offsets[order]),
            "flags": np.zeros(len(ids), np.uint8),
        }
        with self._lock:
            twice = rows["ids"][1:] == rows["ids"][:-1]
            if twice.any() or np.any(self._find(rows["ids"]) >= 0):
                raise ValueError("an id is stored already or given twice")
            self._append(rows)
            self._total_length += int(rows["lengths"].sum())
            for label, members in _by_label(rows["labels"]):
                self._class(label).add(rows["ids"][members])

    def remove(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Drop records; returns which of the ids were stored, (n,) bool."""
        with self._lock:
            found = self._find(ids) >= 0
            gone = np.unique(ids[found])
            if len(gone) == 0:
                return found
            rows = self._find(gone)
            self._total_length -= int(self._cells("lengths", rows).sum())
            visible = self._cells("flags", rows) & _HIDDEN == 0
            self._hidden -= int(np.count_nonzero(~visible))
            labels = self._cells("labels", rows)
            for label, members in _by_label(labels[visible]):
                self._classes[label].remove(gone[visible][members])
            self._drop(rows)
            for label in np.unique(labels).tolist():
                if label in self._classes and len(self._classes[label]) == 0:
                    del self._classes[label]
            return found

    def contains(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which ids are stored, hidden ones included."""
        with self._lock:
            return self._find(ids) >= 0

    def lookup(self, ids: Ids) -> Lookup:
        """Label, task, length and offset of each id.

        Offsets are hints, rounded down to a multiple of 4096 bytes.
        """
        with self._lock:
            rows = self._find(ids)
            missing = rows < 0
            columns = []
            for name in ("labels", "tasks", "lengths", "blocks"):
                column = self._cells(name, rows)
                column[missing] = -1
                columns.append(column)
        labels, tasks, lengths, blocks = columns
        return Lookup(labels, tasks, lengths, np.where(blocks < 0, -1, blocks * _BLOCK))

    def set_offsets(self, ids: Ids, offsets: Ids) -> None:
        """Note where records lie in the file (-1: unknown); ids that are not stored are skipped."""
        with self._lock:
            rows = self._find(ids)
            stored = rows >= 0
            self._write("blocks", rows[stored], _blocks(offsets[stored]))

    def set_lengths(self, ids: Ids, lengths: Ids) -> None:
        """Note what stored records cost now, (n,) distinct ids."""
        with self._lock:
            rows = self._find(ids)
            self._total_length += int((lengths - self._cells("lengths", rows)).sum())
            self._write("lengths", rows, lengths)

    def ids_of(self, label: int) -> Ids:
        """Visible ids of a class, ascending: read-only, and it never changes afterwards."""
        with self._lock:
            members = self._classes.get(label)
            return _NOTHING if members is None else members.snapshot()

    def class_counts(self) -> dict[int, int]:
        """Visible records by label."""
        with self._lock:
            return {label: len(members) for label, members in self._classes.items()}

    def stored_ids(self, label: int) -> Ids:
        """Ids of a class, hidden ones included, ascending."""
        visible = self.ids_of(label)
        with self._lock:
            hidden = [
                table["ids"][(table["flags"] == _HIDDEN) & (table["labels"] == label)]
                for table in self._tables()
                if self._hidden
            ]
        return np.sort(np.concatenate([visible, *hidden])) if hidden else visible

    def stored_counts(self) -> dict[int, int]:
        """Records by label, hidden ones included."""
        counts = Counter(self.class_counts())
        with self._lock:
            for table in self._tables() if self._hidden else ():
                counts.update(table["labels"][table["flags"] == _HIDDEN].tolist())
        return dict(counts)

    def emptied_by(self, leaving: Ids) -> set[int]:
        """Classes that hold nothing once these stored ids are gone."""
        labels, counts = np.unique(self.lookup(leaving).labels, return_counts=True)
        stored = self.stored_counts()
        return {
            label
            for label, count in zip(labels.tolist(), counts.tolist(), strict=True)
            if stored[label] == count
        }

    def hide_from(self, first_id: int) -> None:
        """Hide this id and all later ones until they are shown."""
        with self._lock:
            for table in self._tables():
                start = int(np.searchsorted(table["ids"], first_id))
                flags = table["flags"][start:]
                fresh = flags == 0
                flags[fresh] = _HIDDEN
                self._hidden += int(np.count_nonzero(fresh))
            for label in list(self._classes):
                self._classes[label].cut(first_id)
                if len(self._classes[label]) == 0:
                    del self._classes[label]

    def show(self, ids: Ids) -> None:
        """Make hidden ids visible again; others are left as they are."""
        with self._lock:
            if not self._hidden:
                return
            shown = np.unique(ids)
            rows = self._find(shown)
            hidden = (rows >= 0) & (self._cells("flags", rows) == _HIDDEN)
            shown, rows = shown[hidden], rows[hidden]
            self._write("flags", rows, np.zeros(len(rows), np.uint8))
            self._hidden -= len(rows)
            for label, members in _by_label(self._cells("labels", rows)):
                self._class(label).add(shown[members])

    def pin(self, ids: Ids) -> None:
        """Keep ids from eviction, counted; they need not be stored yet."""
        with self._lock:
            self._pins.update(ids.tolist())
            self._pinned = None

    def unpin(self, ids: Ids) -> None:
        """Undo one `pin` of each id; an id that is not pinned is ignored."""
        with self._lock:
            for id_ in ids.tolist():
                if self._pins[id_] > 1:
                    self._pins[id_] -= 1
                else:
                    del self._pins[id_]
            self._pinned = None

    def pinned_mask(self, ids: Ids) -> npt.NDArray[np.bool_]:
        """Which ids are pinned, (n,) bool."""
        with self._lock:
            if not self._pins:
                return np.zeros(len(ids), np.bool_)
            if self._pinned is None:
                self._pinned = np.sort(np.fromiter(self._pins, np.int64, len(self._pins)))
            at = np.minimum(np.searchsorted(self._pinned, ids), len(self._pinned) - 1)
            mask: npt.NDArray[np.bool_] = self._pinned[at] == ids
            return mask

    def entries(self) -> IndexEntries:
        """All records, hidden ones included, ascending by id, as copies."""
        with self._lock:
            self._settle()
            ids, labels, tasks, lengths = (
                self._main[name].astype(np.int64) for name in ("ids", "labels", "tasks", "lengths")
            )
            return IndexEntries(ids, labels, tasks, lengths)

    def _count(self) -> int:
        return len(self._main) - self._dead + len(self._late)

    def _tables(self) -> tuple[Columns, Columns]:
        return self._main, self._late

    def _class(self, label: int) -> ClassIds:
        return self._classes.setdefault(label, ClassIds())

    def _find(self, ids: Ids) -> Ids:
        """Row of each id, those of the late table counted after the main one; -1: not stored."""
        rows = self._main.find(ids)
        if self._dead:
            alive = self._main["flags"][rows] != _DEAD
            rows = np.where(alive, rows, -1)
        if len(self._late):
            late = self._late.find(ids)
            rows = np.where(late >= 0, late + len(self._main), rows)
        return rows

    def _cells(self, name: str, rows: Ids) -> Ids:
        border = len(self._main)
        cells = np.full(len(rows), -1, np.int64)
        for table, mask, start in (
            (self._main, (rows >= 0) & (rows < border), 0),
            (self._late, rows >= border, border),
        ):
            cells[mask] = table[name][rows[mask] - start]
        return cells

    def _write(self, name: str, rows: Ids, values: npt.NDArray[np.integer]) -> None:
        late = rows >= len(self._main)
        self._main.set(name, rows[~late], values[~late])
        self._late.set(name, rows[late] - len(self._main), values[late])

    def _append(self, rows: Rows) -> None:
        if len(self._late) == 0 and rows["ids"][0] > self._main.last_id:
            self._main.append(rows)
            return
        self._late.insert(rows)
        if len(self._late) > _LATE:
            self._settle()

    def _drop(self, rows: Ids) -> None:
        late = rows >= len(self._main)
        self._main.set("flags", rows[~late], np.full(np.count_nonzero(~late), _DEAD, np.uint8))
        self._dead += int(np.count_nonzero(~late))
        if late.any():
            kept = np.ones(len(self._late), np.bool_)
            kept[rows[late] - len(self._main)] = False
            self._late.keep(kept)
        if self._dead > max(_LATE, len(self._main) // 8):
            self._settle()

    def _settle(self) -> None:
        """Take out the dead rows and merge the late ones."""
        if self._dead:
            self._main.keep(self._main["flags"] != _DEAD)
            self._dead = 0
        if len(self._late):
            self._main.insert({name: self._late[name] for name in _DTYPES})
            self._late = Columns(_DTYPES)


_BLOCK = 4096
_LATE = 4096
_HIDDEN, _DEAD = 1, 2
_NO_BLOCK = -1
_NOTHING: Ids = np.empty(0, np.int64)
_NOTHING.flags.writeable = False
_DTYPES: dict[str, npt.DTypeLike] = {
    "ids": np.int64,
    "labels": np.int16,
    "tasks": np.int16,
    "lengths": np.int32,
    "blocks": np.int32,
    "flags": np.uint8,
}


def _blocks(offsets: Ids) -> Ids:
    return np.where(offsets < 0, _NO_BLOCK, offsets // _BLOCK)


def _by_label(labels: Ids) -> Iterator[tuple[int, Ids]]:
    """Each label with the positions where it stands, ascending."""
    if len(labels) == 0:
        return
    order = np.argsort(labels, kind="stable")
    ordered = labels[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    yield from zip(ordered[starts].tolist(), np.split(order, starts[1:]), strict=True)
