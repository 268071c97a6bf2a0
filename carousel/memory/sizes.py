"""From a memory size that a user wrote to slots and spares that fit it."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING

from carousel.errors import BadInputError
from carousel.memory.machine import MachineMemory, read_memory
from carousel.storage.budget import Size, parse_size

if TYPE_CHECKING:
    from carousel.memory.schema import Schema

__all__ = [
    "INDEX_BYTES",
    "QUEUE_BYTES",
    "MemoryPlan",
    "most_swaps",
    "parse_memory_size",
    "plan_memory",
    "publish_every_for",
    "spares_for",
]

INDEX_BYTES = 200
"""RAM a slot costs beyond its sample: table, id, label, task, generation, age (48 bytes), and its
entry in the lookup of resident ids (up to 150 bytes of a Python dictionary)."""

QUEUE_BYTES = 128
"""RAM a spare costs beyond its sample: its request, its in-flight id and its place in the lists."""

_MIN_SPARES = 64
_MOST_SWAPS = 64


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """What a memory allocates.

    Args:
        slots: samples that training sees.
        spares: rows beyond them, for samples on their way in.
        sample_bytes: payload of one sample.
    """

    slots: int
    spares: int
    sample_bytes: int

    @property
    def nbytes(self) -> int:
        """All RAM of slots, spares, index and swap queue, in bytes."""
        payload = (self.slots + self.spares) * self.sample_bytes
        return payload + self.slots * INDEX_BYTES + self.spares * QUEUE_BYTES


def parse_memory_size(value: int | str, machine: MachineMemory | None = None) -> Size:
    """Read a memory size, before any sample is known: a count of slots, or bytes.

    Args:
        value: ``500``, ``"500"`` or ``"64MiB"``.
        machine: what there is; None asks the system.

    Raises:
        BadInputError: not readable, not above 0, or more bytes than the machine has.

    Example:
        >>> parse_memory_size("64MiB")
        Size(unit='bytes', value=67108864)
    """
    size = parse_size(value, name="memory_size")
    if size.unit == "bytes":
        _check_fits(value, int(size.value), machine)
    return size


def plan_memory(
    value: int | str,
    schema: Schema,
    *,
    swaps_per_step: int = 64,
    machine: MachineMemory | None = None,
) -> MemoryPlan:
    """Slots and spares for samples of a schema.

    A count is the number of slots, with spares beyond it. A byte budget covers slots, spares,
    index and queue together.

    Args:
        value: ``500``, ``"500"`` or ``"64MiB"``.
        schema: the fields of a sample.
        swaps_per_step: most samples that one step can ask to swap; 0 when swapping is off.
        machine: what there is; None asks the system.

    Raises:
        BadInputError: not readable, not above 0, too small for one sample, or more than the
            machine has.

    Example:
        >>> import torch
        >>> from carousel.memory.schema import Schema
        >>> plan_memory(500, Schema.of({"x": torch.zeros(1, 28, 28)}), swaps_per_step=32)
        MemoryPlan(slots=500, spares=96, sample_bytes=3136)
    """
    size = parse_memory_size(value, machine)
    if size.unit == "count":
        plan = _plan(int(size.value), schema, swaps_per_step)
        _check_fits(value, plan.nbytes, machine)
        return plan
    plan = _plan(_slots_within(int(size.value), schema, swaps_per_step), schema, swaps_per_step)
    if plan.slots == 0:
        least = _plan(1, schema, swaps_per_step).nbytes
        raise BadInputError(
            f"memory_size is {value}, too little for one sample of {schema}",
            fix=f"give at least {least} bytes",
        )
    return plan


def most_swaps(ratio: float | Fraction, *, swap: bool = True) -> int:
    """Swaps a step that spares are planned for; 0 when nothing is ever swapped.

    The batch size is not known when the slots are made, so it does not count.
    """
    return _MOST_SWAPS if swap and ratio > 0 else 0


def publish_every_for(slots: int, *, sync: bool = False) -> int:
    """Steps between publications: rarer where many swaps are in flight, to cost training less."""
    return 4 if slots >= 1000 and not sync else 1


def spares_for(slots: int, swaps_per_step: int) -> int:
    """Spare rows: what can be under way, at least 64, but never more than there are slots.

    A row is under way from its request until it is published: up to `publish_every_for` steps of
    waiting and two of reading.
    """
    if swaps_per_step == 0:
        return 0
    under_way = swaps_per_step * (publish_every_for(slots) + 2)
    return min(slots, max(_MIN_SPARES, under_way))


def _plan(slots: int, schema: Schema, swaps_per_step: int) -> MemoryPlan:
    return MemoryPlan(slots, spares_for(slots, swaps_per_step), schema.nbytes)


def _slots_within(budget: int, schema: Schema, swaps_per_step: int) -> int:
    """The most slots whose plan costs at most the budget; cost rises with every slot."""
    low, high = 0, budget // (schema.nbytes + INDEX_BYTES)
    while low < high:
        middle = (low + high + 1) // 2
        if _plan(middle, schema, swaps_per_step).nbytes <= budget:
            low = middle
        else:
            high = middle - 1
    return low


def _check_fits(value: int | str, needed: int, machine: MachineMemory | None) -> None:
    total = (machine or read_memory()).total
    if needed > total:
        raise BadInputError(
            f"memory_size {value} needs {_mib(needed)} of RAM and the machine has {_mib(total)}",
            fix="give a smaller memory_size; the storage holds the rest",
        )


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
