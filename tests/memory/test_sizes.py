"""Memory sizes: byte budgets that hold, and sizes that cannot be."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from carousel.errors import BadInputError
from carousel.memory.machine import MachineMemory
from carousel.memory.schema import Schema
from carousel.memory.sizes import (
    parse_memory_size,
    plan_memory,
    publish_every_for,
    spares_for,
)
from carousel.storage.record import FieldSpec

MACHINE = MachineMemory(total=2**30, available=2**29)
IMAGE = Schema.of({"x": torch.zeros(1, 3, 32, 32, dtype=torch.uint8)})


def sample_of(size):
    return Schema((FieldSpec("x", "uint8", (size,)),))


def test_a_count_is_the_number_of_slots():
    for value in (500, "500"):
        plan = plan_memory(value, IMAGE, swaps_per_step=32, machine=MACHINE)
        assert (plan.slots, plan.spares, plan.sample_bytes) == (500, 96, 3072)


@given(
    budget=st.integers(20_000, 2**28),
    sample=st.integers(0, 9000),
    swaps=st.sampled_from([0, 1, 32, 256]),
)
def test_a_byte_budget_is_never_exceeded_and_well_used(budget, sample, swaps):
    schema = sample_of(sample)
    plan = plan_memory(f"{budget}B", schema, swaps_per_step=swaps, machine=MACHINE)
    assert plan.nbytes <= budget
    larger = type(plan)(plan.slots + 1, spares_for(plan.slots + 1, swaps), sample)
    assert larger.nbytes > budget


def test_a_budget_below_one_sample_says_what_is_needed():
    with pytest.raises(BadInputError, match="too little for one sample of x uint8") as caught:
        plan_memory("3000B", IMAGE, machine=MACHINE)
    needed = int(caught.value.fix.split()[-2])
    assert plan_memory(f"{needed}B", IMAGE, machine=MACHINE).slots == 1
    with pytest.raises(BadInputError):
        plan_memory(f"{needed - 1}B", IMAGE, machine=MACHINE)


@pytest.mark.parametrize("value", [0, -1, "0", "-5", "0MiB", "lots", "50%", "", None, 1.5, True])
def test_sizes_that_are_none_are_refused(value):
    with pytest.raises(BadInputError, match="memory_size is"):
        parse_memory_size(value, MACHINE)


def test_more_than_the_machine_has_is_refused_before_any_allocation():
    parse_memory_size("1GiB", MACHINE)
    with pytest.raises(BadInputError, match="needs 1,025 MiB of RAM and the machine has 1,024 MiB"):
        parse_memory_size("1025MiB", MACHINE)
    with pytest.raises(BadInputError, match="memory_size 1000000 needs"):
        plan_memory(1_000_000, IMAGE, machine=MACHINE)
    with pytest.raises(BadInputError, match="the machine has"):
        parse_memory_size("1000000TiB")


def test_spares_follow_what_can_be_under_way():
    assert spares_for(500, 0) == 0
    assert spares_for(10, 64) == 10
    assert spares_for(500, 1) == 64
    assert spares_for(500, 32) == 96
    assert spares_for(10_000, 64) == 6 * 64
    assert [publish_every_for(slots) for slots in (1, 999, 1000)] == [1, 1, 4]
    assert publish_every_for(5000, sync=True) == 1
