"""What methods need that choose their samples by themselves: who is here, who shall stay."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import numpy.typing as npt
from torch import Tensor

from carousel.errors import BadInputError
from carousel.memory.admission import Admission
from carousel.memory.core import Core, Fetch
from carousel.memory.gate import Gate
from carousel.memory.intake import Intake, Labels, columns
from carousel.memory.lifetime import while_open
from carousel.memory.lookup import read_samples
from carousel.memory.reader import schema_of
from carousel.memory.residency import Residency
from carousel.memory.revise import new_values, revise_samples
from carousel.memory.saver import BackgroundSaver
from carousel.memory.schema import FieldValue, Schema, check_store_schema
from carousel.memory.settings import Settings
from carousel.storage.tier import StorageTier

__all__ = ["Curated"]

Ints = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]


class Curated:
    """The part of a `Carousel` with which a method curates the memory by its own rule.

    Example:
        >>> import torch
        >>> from carousel.memory import Carousel
        >>> from carousel.storage import MemoryTier
        >>> with Carousel(4, MemoryTier(), seed=0) as memory:
        ...     x, y = torch.arange(6.0).reshape(6, 1), torch.zeros(6, dtype=torch.int64)
        ...     ids = memory.save(None, y, x=x)
        ...     came = memory.retain(ids[2:5], y[2:5], fetch=lambda rows: {"x": x[2:5][rows]})
        ...     revised = memory.revise(ids[:1], x=torch.tensor([[9.0]]))
        ...     fields, found = memory.read(ids)
        ...     memory.residents().ids.tolist(), fields["x"].flatten().tolist()
        ([2, 3, 4], [9.0, 1.0, 2.0, 3.0, 4.0, 5.0])
    """

    _settings: Settings
    _tier: StorageTier
    _intake: Intake
    _saver: BackgroundSaver
    _core: Core | None = None
    _ceiling: int | None = None
    _closed: bool = False

    @property
    def slots(self) -> int | None:
        """Slots of the memory size; None before the first sample where that is in bytes."""
        return self._core.slab.slots if self._core else self._settings.known_slots

    def slots_for(self, fields: Mapping[str, FieldValue]) -> int:
        """Slots of the memory size for samples with fields (n, *shape) like these.

        Raises:
            BadInputError: the memory size does not fit them or the machine.
        """
        return self.slots or self._settings.plan(schema_of(fields)).slots

    @property
    def capacity(self) -> int | None:
        """Slots that may be filled now, see `resize`; fewer while the machine is short of memory.

        None before the first sample where the memory size is in bytes and `resize` was not called.
        """
        if self._core is not None:
            return self._core.slab.capacity
        return self.slots if self._ceiling is None else self._ceiling

    def filled_slots(self) -> Ints:
        """(filled,) the slots that hold a sample, ascending; a fresh array."""
        return self._core.filled_slots() if self._core else np.empty(0, np.int64)

    def residents(self) -> Residency:
        """Slots, ids, labels and tasks of all samples in memory, as copies."""
        return Residency.of(self._core.slab if self._core else None)

    def peek(self, slots: Ints) -> dict[str, Tensor]:
        """Fresh copies of the fields, each (n, *shape), of (n,) filled slots.

        Unlike `sample_slots` this does not count as a replay.

        Raises:
            BadInputError: a slot is empty or there is none of that number.
        """
        slots = np.asarray(slots, np.int64)
        if self._core is None:
            if len(slots):
                raise BadInputError("the memory holds no sample yet", fix="admit samples first")
            return {}
        return self._core.peek(slots)

    @while_open
    def read(self, ids: Ints) -> tuple[dict[str, Tensor], Mask]:
        """Samples by their ids, from their slots or else from storage; changes and counts nothing.

        Waits for samples that are queued to storage, but not for `save_in_background`.

        Args:
            ids: (n,) ids, in any order.

        Returns:
            Per field a fresh tensor (n, *shape), no field before the first sample was seen; and
            (n,) bool, which were found. Rows that were not found, or cannot be read, are zero.
        """
        ids = np.asarray(ids, np.int64)
        if self._core is None:
            return {}, np.zeros(len(ids), np.bool_)
        self._intake.flush()
        return read_samples(self._core.slab, self._tier, ids)

    @while_open
    def revise(self, /, ids: Ints, **fields: Tensor | npt.NDArray[np.generic]) -> int:
        """Give saved samples new values of some fields, such as logits; returns how many there are.

        The slot and the record of a sample change together or not at all, and the change is
        committed when this returns. It first waits for all that is queued or under way, as
        `end_experience` does, so swaps may become visible here; not so in sync mode, where
        nothing is under way and swaps keep their place in the order of things. Records of a
        checkpoint that is older have the new values, too.

        Args:
            ids: (n,) distinct ids; those neither in memory nor in storage are ignored.
            **fields: tensors or arrays (n, *shape).

        Raises:
            BadInputError: the values are not like those of the samples, hold NaN, or are stored
                as encoded images; nothing changed.
            StorageError: storage cannot be written; the samples it could not write are unchanged.
        """
        ids = np.asarray(ids, np.int64)
        if self._core is None:
            return 0
        values = new_values(self._core.slab.schema, ids, fields)
        if len(ids) == 0 or not values:
            return 0
        if self._settings.sync:
            self._saver.wait()
        else:
            self._settle()
        return revise_samples(self._core.slab, self._tier, ids, values)

    @while_open
    def use(
        self, *, admission: str | Admission | None = None, gate: str | Gate | None = None
    ) -> None:
        """Take over the rules that a method needs, before the first sample is replayed.

        Args:
            admission: which samples get a slot; None leaves the rule as it is.
            gate: which rows leave; None leaves it as it is.

        Raises:
            BadInputError: there is no such rule, or samples were replayed already.
        """
        if self._core is not None and self._core.distinct.count:
            raise BadInputError(
                "the rules of the memory change after samples were replayed",
                fix="choose admission and gate before training",
            )
        self._settings = self._settings.with_rules(admission, gate)

    @while_open
    def resize(self, slots: int) -> None:
        """Use only the first `slots` slots from now on; the admission rule says who leaves.

        What leaves is in storage, the pages of closed slots go back to the system, and slots that
        open again are filled by the next admissions. Before the first sample it is remembered,
        and then means at most so many. With ``pressure=True`` this is what the memory grows back
        to.

        Args:
            slots: 1 or more, at most `slots`.

        Raises:
            BadInputError: the number is out of range.
        """
        most = self.slots
        if slots < 1 or (most is not None and slots > most):
            raise BadInputError(
                f"the memory is resized to {slots} slots",
                fix=f"give 1 to {most}" if most else "give 1 or more",
            )
        self._ceiling = int(slots)
        if self._core is not None:
            self._apply_ceiling(self._core)

    @while_open
    def retain(
        self, ids: Ints, labels: Labels, tasks: Labels | None = None, *, fetch: Fetch
    ) -> Ints:
        """Hold exactly these n distinct samples; returns the ids that came in for it, (k,).

        Residents among them stay in their slots and swaps of these go on. The others leave,
        queued to storage first where it does not hold them, and swaps under way to their slots
        become stale. The admission rule is not asked.

        Args:
            ids: (n,) ids that the samples were saved under; n is at most `capacity`.
            labels: (n,) integers of at least 0.
            tasks: (n,) integers, None for all 0.
            fetch: gives the fields of the (k,) rows that were not resident, at most 256 at a time.

        Raises:
            BadInputError: there are more samples than slots, or an id is given twice; nothing
                changed.
        """
        ids, classes, task_labels = columns(ids, labels, tasks)
        if self._core is None and len(ids) == 0:
            return ids
        if self.capacity is not None and len(ids) > self.capacity:
            raise _too_many(len(ids), self.capacity)
        core = self._core or self._core_for(fetch(np.zeros(1, np.int64)))
        if len(ids) > core.slab.capacity:
            raise _too_many(len(ids), core.slab.capacity)
        if len(ids):
            self._intake.present(ids)
        return core.retain(ids, classes, task_labels, fetch)

    def _settle(self) -> None:
        """Wait for samples that are being saved, for swaps, and for the storage's queue."""
        self._saver.wait()
        if self._core is not None:
            self._core.engine.drain()
        self._intake.flush()

    def _core_for(self, fields: Mapping[str, FieldValue]) -> Core:
        """The core; built from these samples when they are the first."""
        if self._core is None:
            self._core = self._build(schema_of(fields))
            self._apply_ceiling(self._core)
        return self._core

    def _apply_ceiling(self, core: Core) -> None:
        most = core.slab.slots
        ceiling = most if self._ceiling is None else min(self._ceiling, most)
        core.set_ceiling(self._settings.admission, ceiling)

    def _build(self, schema: Schema) -> Core:
        core = self._settings.build_core(schema, self._tier)
        check_store_schema(self._tier, schema)
        return core


def _too_many(count: int, capacity: int) -> BadInputError:
    return BadInputError(
        f"{count} samples are to be held in {capacity} slots", fix=f"choose at most {capacity}"
    )
