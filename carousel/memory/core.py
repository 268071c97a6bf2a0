"""Slots, batch buffers and the swap engine, once the fields of a sample are known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from carousel.errors import BadInputError
from carousel.memory.admission import Admission, Assignment, SlotState, exactly
from carousel.memory.distinct import DistinctIds
from carousel.memory.pressure import PressureWatch
from carousel.memory.replacement import Replacement
from carousel.memory.replay import Replay, ReplayBuffers
from carousel.memory.schema import Schema
from carousel.memory.sizes import MemoryPlan
from carousel.memory.slab import Slab
from carousel.memory.snapshot import Restorer, check_slots, slab_state
from carousel.memory.stats import CarouselStats
from carousel.memory.swap import SwapEngine
from carousel.storage.tier import StorageTier, TierStats

__all__ = ["Core", "Fetch"]

Ints = npt.NDArray[np.int64]
Fetch = Callable[[Ints], Mapping[str, Tensor]]
"""Takes (k,) rows of a batch, gives each field as (k, *shape)."""

_FETCH_ROWS = 256


class Core:
    """What a `Carousel` consists of from its first sample on.

    Args:
        schema: fields of a sample.
        plan: how many slots and spares.
        make_engine: builds the engine on the slab.
    """

    def __init__(
        self, schema: Schema, plan: MemoryPlan, make_engine: Callable[[Slab], SwapEngine]
    ) -> None:
        self.slab = Slab(schema, plan.slots, plan.spares)
        self.engine = make_engine(self.slab)
        self.distinct = DistinctIds()
        self._ceiling = plan.slots
        self._buffers = ReplayBuffers(schema)

    @property
    def ram_bytes(self) -> int:
        """Bytes of slots, spares, columns, batch buffers and the set of ids replayed."""
        return self.slab.nbytes + self._buffers.nbytes + self.distinct.nbytes

    def stats(self, storage: TierStats) -> CarouselStats:
        """What slots and engine know of themselves."""
        slab, engine = self.slab, self.engine
        return CarouselStats(
            swaps=engine.counters,
            storage=storage,
            ram_bytes=self.ram_bytes,
            slots=slab.capacity,
            spares=slab.spares,
            filled=slab.filled,
            distinct_samples_replayed=self.distinct.count,
            staleness=tuple(engine.staleness.tolist()),
            written_back=engine.written_back,
            lost=engine.lost,
            ram_only=engine.ram_only,
            worker_failures=engine.worker_failures,
            storage_full=engine.storage_full,
        )

    def filled_slots(self) -> Ints:
        """(filled,) slots that hold a sample, ascending."""
        return np.flatnonzero(self.slab.ids >= 0)

    def draw_slots(self, n: int, rng: np.random.Generator) -> Ints:
        """min(n, filled) filled slots, uniform without replacement."""
        if n < 0:
            raise BadInputError(f"{n} samples are asked for", fix="ask for 0 or more")
        slab = self.slab
        pool = slab.slots if slab.filled == slab.slots else self.filled_slots()
        slots: Ints = rng.choice(pool, min(n, slab.filled), replace=False, shuffle=False)
        return slots

    def gather(self, slots: Ints, out: Mapping[str, Tensor] | None = None) -> Replay:
        """The samples of (n,) filled slots, noted as replayed; `out` in place of the buffers."""
        replay = self._buffers.gather(self.slab, slots, out)
        self.distinct.add(replay.ids)
        return replay

    def peek(self, slots: Ints) -> dict[str, Tensor]:
        """Fresh copies of the fields of (n,) filled slots."""
        slab = self.slab
        if not np.isin(slots, self.filled_slots()).all():
            raise BadInputError(
                "slots are asked for that hold no sample", fix="use those of filled_slots"
            )
        fields = slab.schema.empty(len(slots))
        slab.gather(slab.table[slots], fields)
        return fields

    def admit(
        self, admission: Admission, ids: Ints, labels: Ints, tasks: Ints, fetch: Fetch
    ) -> Ints:
        """Carry out what the rule plans for n samples; returns the ids that got a slot."""
        plan = admission.plan(self._state(self.slab.capacity), ids, labels, tasks)
        return self._carry_out(plan, ids, labels, tasks, fetch)

    def retain(self, ids: Ints, labels: Ints, tasks: Ints, fetch: Fetch) -> Ints:
        """Hold exactly these n samples, at most the capacity; returns the ids that came in."""
        plan = exactly(self._state(self.slab.capacity), ids)
        return self._carry_out(plan, ids, labels, tasks, fetch)

    def _carry_out(
        self, plan: Assignment, ids: Ints, labels: Ints, tasks: Ints, fetch: Fetch
    ) -> Ints:
        slab = self.slab
        self.engine.save_unstored(np.concatenate([plan.freed, plan.slots]))
        slab.release(plan.freed)
        for start in range(0, len(plan), _FETCH_ROWS):
            rows = plan.rows[start : start + _FETCH_ROWS]
            slots = plan.slots[start : start + _FETCH_ROWS]
            fields = fetch(rows)
            if slab.schema.validate(fields) != len(rows):
                raise BadInputError(
                    f"fetch was asked for {len(rows)} rows and gave another number",
                    fix="return one row for each that is asked for",
                )
            slab.write(slots, fields, ids[rows], labels[rows], tasks[rows])
        return ids[plan.rows]

    def ask(self, replay: Replay, pick: Callable[[], Ints], size: int) -> None:
        """Ask for other samples in `size` of the slots of a batch, chosen later by `pick`."""
        self.engine.request(replay.slots, replay.generations, replay.classes, pick, size)

    def make_room(self, watch: PressureWatch, admission: Admission) -> None:
        """Hold as many samples as the machine has memory for."""
        slab = self.slab
        target = watch.target(slab.capacity, self._ceiling, slab.schema.nbytes)
        if target != slab.capacity:
            self.resize(admission, target)

    def set_ceiling(self, admission: Admission, ceiling: int) -> None:
        """Hold at most `ceiling` samples; fewer while the machine is short of memory."""
        slab = self.slab
        short = slab.capacity < self._ceiling
        self._ceiling = ceiling
        target = min(slab.capacity, ceiling) if short else ceiling
        if target != slab.capacity:
            self.resize(admission, target)

    def resize(self, admission: Admission, capacity: int) -> None:
        """Hold at most `capacity` samples; the rule says which leave, and their pages go back.

        Slots that open again are filled by the next admissions.
        """
        slab = self.slab
        nothing = np.empty(0, np.int64)
        leaving = admission.plan(self._state(capacity), nothing, nothing, nothing).freed
        self.engine.save_unstored(leaving)
        slab.release(leaving)
        beyond = capacity + np.flatnonzero(slab.ids[capacity:] >= 0)
        holes = np.flatnonzero(slab.ids[:capacity] < 0)[: len(beyond)]
        slab.move(beyond, holes)
        slab.set_capacity(capacity)

    def _state(self, capacity: int) -> SlotState:
        return SlotState(self.slab.labels, self.slab.ids, self.slab.tasks, capacity)

    def state_dict(self, tier: StorageTier) -> dict[str, Any]:
        """Slots, counters and ids replayed."""
        return {
            "slots": slab_state(self.slab, tier),
            "engine": self.engine.state_dict(),
            "distinct": self.distinct.state_dict(),
        }

    def check(self, state: dict[str, Any]) -> None:
        """Refuse a state of another memory size with a `CheckpointError`."""
        check_slots(self.slab, state["slots"])

    def load_state_dict(
        self,
        state: dict[str, Any],
        tier: StorageTier,
        replacement: Replacement,
        rng: np.random.Generator,
    ) -> int:
        """Go on from a state, in a core without samples; returns how many residents were lost."""
        self.engine.load_state_dict(state["engine"])
        self.distinct.load_state_dict(state["distinct"])
        return Restorer(self.slab, tier, replacement, rng).restore(state["slots"])
