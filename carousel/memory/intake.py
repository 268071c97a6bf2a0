"""What arrives: samples are checked, get ids, and are queued to storage."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from torch import Tensor

from carousel.errors import BadInputError, TierFullError
from carousel.memory.convert import check_labels
from carousel.memory.schema import FieldValue, Schema
from carousel.storage.record import MAX_ID
from carousel.storage.tier import StorageTier

__all__ = ["Intake", "Labels", "SampleBatch", "columns"]

Ints = npt.NDArray[np.int64]
Labels = Tensor | npt.NDArray[np.generic] | list[int]

_log = logging.getLogger(__name__)


@dataclass(slots=True)
class SampleBatch:
    """n samples to be saved.

    Args:
        ids: (n,) ids, from `Carousel.reserve`; None takes fresh ones.
        labels: (n,) integers of at least 0.
        tasks: (n,) integers of at least 0; None means all 0.
        fields: per field a tensor or array (n, *shape), or n encoded images as bytes.
    """

    ids: Ints | None
    labels: Labels
    tasks: Labels | None = None
    fields: dict[str, FieldValue] = field(default_factory=dict)


class Intake:
    """Checks samples and hands them to the tier; a full storage is noted, not raised.

    Args:
        tier: where samples go.
        commit_each: wait after every batch until it is committed, so that draws repeat.

    Attributes:
        high_water: one more than the largest id presented so far.
        storage_full: the tier refused samples for want of room.
    """

    def __init__(self, tier: StorageTier, *, commit_each: bool) -> None:
        self._tier = tier
        self._commit_each = commit_each
        self.high_water = 0
        self.storage_full = False

    def save(self, batch: SampleBatch, schema: Schema) -> Ints:
        """Queue a batch and return its ids, (n,); blocks while the tier's queue is full."""
        rows = schema.validate(batch.fields)
        schema.check_finite(batch.fields)
        ids = batch.ids
        if ids is None:
            first = self._tier.reserve_ids(rows) if rows else 0
            ids = np.arange(first, first + rows)
        ids, labels, tasks = columns(ids, batch.labels, batch.tasks)
        if len(ids) != rows:
            raise BadInputError(f"{len(ids)} ids for {rows} samples", fix="give one id a sample")
        if rows:
            self.present(ids)
            try:
                self._tier.put_many(schema.to_records(ids, labels, tasks, batch.fields))
            except TierFullError as error:
                self._note_full(error)
            if self._commit_each:
                self.flush()
        return ids

    def present(self, ids: Ints) -> None:
        """Note that (n,) ids, n above 0, were seen."""
        self.high_water = max(self.high_water, int(ids.max()) + 1)

    def flush(self, timeout: float | None = None) -> None:
        """Wait until all that was queued is committed."""
        try:
            self._tier.flush(timeout)
        except TierFullError as error:
            self._note_full(error)

    def _note_full(self, error: TierFullError) -> None:
        if not self.storage_full:
            _log.warning("storage is full (%s): training goes on with what it holds", error)
        self.storage_full = True


def columns(ids: Ints, labels: Labels, tasks: Labels | None) -> tuple[Ints, Ints, Ints]:
    """Ids, labels and task labels as (n,) int64, checked.

    Raises:
        BadInputError: their lengths differ, a label is negative, or an id is negative or repeated.
    """
    ids = np.asarray(ids, np.int64)
    classes = check_labels(labels)
    task_labels = np.zeros(len(classes), np.int64) if tasks is None else check_labels(tasks)
    if not len(ids) == len(classes) == len(task_labels):
        raise BadInputError(
            f"{len(ids)} ids, {len(classes)} labels and {len(task_labels)} task labels",
            fix="give one of each a sample",
        )
    if len(ids) and (ids.min() < 0 or ids.max() > MAX_ID or len(np.unique(ids)) < len(ids)):
        raise BadInputError(
            "ids are negative, too large or given twice", fix="use the ids of reserve or save"
        )
    return ids, classes, task_labels
