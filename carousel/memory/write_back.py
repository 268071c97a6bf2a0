"""Saves a resident before its slot is overwritten, when storage does not hold it any more."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from carousel.errors import TierFullError
from carousel.memory.slab import Slab
from carousel.storage.record import RecordBatch
from carousel.storage.tier import StorageTier

__all__ = ["WriteBack"]

Ints = npt.NDArray[np.int64]

_MOST_UNSETTLED = 1024


class WriteBack:
    """Keeps the hierarchy inclusive: what leaves RAM is in storage, or its loss is counted.

    Storage evicts by its own rule, also samples that are in a slot. Such a sample is queued to
    storage again before its slot is overwritten; the eviction rule then decides between it and
    the others. Used by one thread at a time.

    A tier tells of a failed save at any later call, whoever saved it: what is told here is kept.

    Attributes:
        written: samples queued again.
        lost: samples of these that storage had no room for.
        full: the tier refused samples for want of room.
        error: the first other error that a save met; `settle` raises it.
    """

    def __init__(self, slab: Slab, tier: StorageTier) -> None:
        self._slab = slab
        self._tier = tier
        self._unsettled: set[int] = set()
        self.written = 0
        self.lost = 0
        self.full = False
        self.error: Exception | None = None

    def save(self, slots: Ints, generations: Ints) -> None:
        """Queue the samples of these slots that are not stored; blocks while the queue is full.

        A slot whose generation is another by now is passed over: its request is stale.

        Raises:
            StorageError: the tier refused for another reason than room.
        """
        ids = self._slab.ids[slots]
        missing = np.flatnonzero((ids >= 0) & ~self._tier.contains(ids))
        if len(missing) == 0:
            return
        batch = self._copy(slots[missing], generations[missing])
        if len(batch) == 0:
            return
        try:
            self._tier.put_many(batch)
            self.written += len(batch)
        except TierFullError:  # its loss, if it comes to that, is counted later
            self.full = True
        self._unsettled.update(batch.ids.tolist())
        if len(self._unsettled) > _MOST_UNSETTLED:
            self._forget_stored()
        if len(self._unsettled) > _MOST_UNSETTLED:
            self.settle()

    def settle(self) -> None:
        """Wait until storage has decided about all that was queued, and count the losses.

        Raises:
            StorageError: samples could not be saved, for another reason than room.
        """
        if self._unsettled:
            try:
                self._tier.flush()
            except TierFullError:
                self.full = True
            self._forget_stored()
            self.lost += len(self._unsettled)
            self._unsettled.clear()
        error, self.error = self.error, None
        if error is not None:
            raise error

    def _forget_stored(self) -> None:
        ids = np.fromiter(self._unsettled, np.int64, len(self._unsettled))
        safe = self._tier.contains(ids) | self._slab.resident(ids)
        self._unsettled = set(ids[~safe].tolist())

    def _copy(self, slots: Ints, generations: Ints) -> RecordBatch:
        slab = self._slab
        ids, labels, tasks = slab.ids[slots], slab.labels[slots], slab.tasks[slots]
        fields = slab.copy_rows(slots)
        # The generation rises before a row is reused: equal after the copy means a whole copy.
        whole = np.flatnonzero(slab.generations[slots] == generations)
        return RecordBatch(
            ids[whole],
            labels[whole],
            tasks[whole],
            slab.schema.fields,
            {name: values[whole] for name, values in fields.items()},
        )
