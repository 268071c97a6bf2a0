"""The arguments of a `Carousel`, checked before anything is opened."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor

from carousel.errors import BadInputError
from carousel.memory import seeds
from carousel.memory.admission import Admission, make_admission
from carousel.memory.core import Core
from carousel.memory.gate import GATES, Gate, GateBatch, make_gate, parse_ratio
from carousel.memory.pressure import PressureWatch
from carousel.memory.replacement import Replacement, make_replacement
from carousel.memory.schema import Schema
from carousel.memory.sizes import MemoryPlan, most_swaps, parse_memory_size, plan_memory
from carousel.memory.slab import Slab
from carousel.memory.swap import SwapEngine
from carousel.storage.budget import BudgetLike, parse_budget
from carousel.storage.tier import Durability, StorageTier

__all__ = ["Settings", "open_storage"]

Ints = npt.NDArray[np.int64]

_STREAMS = ("gate", "draw", "sample")


@dataclass(frozen=True, slots=True)
class Settings:
    """How a carousel was set up, and its random generators.

    Args:
        memory_size: slots, or bytes as text.
        ratio: the exact swap ratio.
        gate: picks rows that leave.
        admission: gives slots to samples.
        replacement: draws what comes in.
        sync: swap inline.
        publish_every: steps between publications, None to choose by size.
        swap: False when nothing is ever swapped.
        watch: the machine's memory, None when it is not watched.
        rngs: a generator each for ``gate``, ``draw`` and ``sample``.
        seed: what they came from.
    """

    memory_size: int | str
    ratio: Fraction
    gate: Gate
    admission: Admission
    replacement: Replacement
    sync: bool
    publish_every: int | None
    swap: bool
    watch: PressureWatch | None
    rngs: dict[str, np.random.Generator]
    seed: int

    def judge(
        self, logits: Tensor, labels: Tensor, losses: Tensor | None
    ) -> tuple[Callable[[], Ints], int]:
        """The gate's choice of rows, to be made later, and of how many rows it will be.

        A user's own gate chooses here and now, in the thread of its caller.
        """
        batch = GateBatch(
            logits.detach().clone(),
            labels,
            self.ratio,
            self.rngs["gate"],
            None if losses is None else losses.detach().clone(),
        )
        if self.gate in GATES.values():
            return partial(self.gate, batch), batch.quota
        rows = self.gate(batch)
        return lambda: rows, len(rows)

    @classmethod
    def checked(
        cls,
        *,
        memory_size: int | str,
        swap_ratio: float | str,
        gate: str | Gate,
        admission: str | Admission,
        replacement: str | Replacement,
        sync: bool,
        seed: int | None,
        publish_every: int | None,
        pressure: bool,
        swap: bool,
    ) -> Settings:
        """Settings from what a user wrote.

        Raises:
            BadInputError: a value cannot be used.
        """
        parse_memory_size(memory_size)
        if publish_every is not None and publish_every < 1:
            raise BadInputError(f"publish_every is {publish_every}", fix="give 1 or more")
        if pressure and sync:
            raise BadInputError(
                "pressure is on in sync mode, which could not repeat",
                fix="leave out one of the two",
            )
        ratio = parse_ratio(swap_ratio)
        seed = seeds.fresh_seed() if seed is None else seed
        return cls(
            memory_size=memory_size,
            ratio=ratio,
            gate=make_gate(gate, ratio),
            admission=make_admission(admission, seeds.generator(seed, "admission")),
            replacement=make_replacement(replacement),
            sync=sync,
            publish_every=publish_every,
            swap=swap and ratio > 0,
            watch=PressureWatch() if pressure else None,
            rngs={name: seeds.generator(seed, name) for name in _STREAMS},
            seed=seed,
        )

    @property
    def known_slots(self) -> int | None:
        """Slots of the memory size; None for bytes, which mean slots once a sample is known."""
        size = parse_memory_size(self.memory_size)
        return int(size.value) if size.unit == "count" else None

    def with_rules(
        self, admission: str | Admission | None = None, gate: str | Gate | None = None
    ) -> Settings:
        """The same with other rules, as new; None leaves one as it is.

        Raises:
            BadInputError: there is no such rule.
        """
        chance = seeds.generator(self.seed, "admission")
        return replace(
            self,
            admission=self.admission if admission is None else make_admission(admission, chance),
            gate=self.gate if gate is None else make_gate(gate, self.ratio),
        )

    def state_dict(self) -> dict[str, Any]:
        """What the admission rule has seen, and where the generators stand."""
        return {
            "admission": self.admission.state_dict(),
            "rngs": {name: seeds.state_of(rng) for name, rng in self.rngs.items()},
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from a `state_dict`."""
        self.admission.load_state_dict(state["admission"])
        for name, rng in self.rngs.items():
            seeds.load_state(rng, state["rngs"][name])

    def plan(self, schema: Schema) -> MemoryPlan:
        """Slots and spares for samples of a schema.

        Raises:
            BadInputError: the memory size does not fit the schema or the machine.
        """
        swaps = most_swaps(self.ratio, swap=self.swap)
        return plan_memory(self.memory_size, schema, swaps_per_step=swaps)

    def build_core(self, schema: Schema, tier: StorageTier) -> Core:
        """Slots and engine for samples of a schema.

        Raises:
            BadInputError: the memory size does not fit the schema or the machine.
        """

        def make_engine(slab: Slab) -> SwapEngine:
            return SwapEngine(
                slab,
                tier,
                self.replacement,
                rng=self.rngs["draw"],
                sync=self.sync,
                publish_every=self.publish_every,
            )

        return Core(schema, self.plan(schema), make_engine)


def open_storage(
    storage: str | Path | StorageTier,
    *,
    budget: BudgetLike,
    durability: Durability,
    sync: bool,
    seed: int,
) -> StorageTier:
    """An LMDB tier at a path, or the tier itself.

    Raises:
        BadInputError: a budget is given with an open tier.
        StorageError: the path cannot be opened.
    """
    if not isinstance(storage, StorageTier):
        from carousel.storage import open_tier

        return open_tier(
            storage, budget=parse_budget(budget), durability=durability, sync=sync, seed=seed
        )
    if budget is not None:
        raise BadInputError(
            "storage_budget is given with an open tier", fix="give the budget to the tier"
        )
    return storage
