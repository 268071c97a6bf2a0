"""The pressure watch with a machine and a clock of the test's own."""

from __future__ import annotations

import logging

import pytest

from carousel.errors import BadInputError
from carousel.memory.machine import MachineMemory
from carousel.memory.pressure import PressureWatch

TOTAL = 100_000


class Machine:
    """A machine whose free memory the test sets, in thousandths; a second passes at each look."""

    def __init__(self):
        self.available = TOTAL
        self.seconds = 0.0
        self.looks = 0

    def read(self):
        self.looks += 1
        return MachineMemory(TOTAL, self.available)

    def clock(self):
        self.seconds += 1.0
        return self.seconds


@pytest.fixture
def machine():
    return Machine()


@pytest.fixture
def watch(machine):
    return PressureWatch(0.1, 0.2, interval_s=0.5, read=machine.read, clock=machine.clock)


def test_all_is_well(watch):
    assert watch.target(active=160, maximum=160, slot_bytes=100) == 160


def test_gives_back_until_the_upper_mark_would_be_free(watch, machine):
    machine.available = 9_000  # 11,000 short of 20 %: 110 slots, in steps of 10
    assert watch.target(active=1000, maximum=160, slot_bytes=100) == 890
    machine.available = 9_950
    assert watch.target(active=160, maximum=160, slot_bytes=100) == 50


def test_never_gives_back_all(watch, machine):
    machine.available = 0
    assert watch.target(active=160, maximum=160, slot_bytes=1) == 10
    assert watch.target(active=10, maximum=160, slot_bytes=1) == 10
    assert watch.target(active=1, maximum=1, slot_bytes=1) == 1


def test_between_the_marks_nothing_changes(watch, machine):
    for machine.available in (10_000, 15_000, 20_000):
        assert watch.target(active=100, maximum=160, slot_bytes=100) == 100
        assert watch.target(active=160, maximum=160, slot_bytes=100) == 160


def test_takes_again_as_far_as_the_upper_mark_stays_free(watch, machine):
    machine.available = 23_500  # room for 35 slots, in steps of 10
    assert watch.target(active=100, maximum=160, slot_bytes=100) == 130
    machine.available = 20_500
    assert watch.target(active=100, maximum=160, slot_bytes=100) == 100
    machine.available = 90_000
    assert watch.target(active=100, maximum=160, slot_bytes=100) == 160
    machine.available = 20_300
    assert watch.target(active=157, maximum=160, slot_bytes=100) == 160


def test_a_machine_that_reacts_comes_to_rest(watch, machine):
    """Other programs need more, then less; our own slots count in what is available."""
    active, seen = 160, []
    for others in (60_000, 75_000, 75_000, 75_000, 40_000, 40_000, 40_000):
        machine.available = TOTAL - others - active * 100
        active = watch.target(active, 160, 100)
        seen.append(active)
    assert seen == [160, 50, 50, 50, 160, 160, 160]


def test_looks_only_every_interval(machine):
    watch = PressureWatch(interval_s=10, read=machine.read, clock=machine.clock)
    for _ in range(25):
        watch.target(160, 160, 100)
    assert machine.looks == 3


def test_says_each_change_once(watch, machine, caplog):
    caplog.set_level(logging.INFO)
    machine.available = 9_950
    active = watch.target(160, 160, 100)
    machine.available = 15_000
    watch.target(active, 160, 100)
    machine.available = 90_000
    watch.target(active, 160, 100)
    assert [record.getMessage() for record in caplog.records] == [
        "10% of the memory is available: the carousel gives back 110 slots and holds 50 of 160",
        "90% of the memory is available: the carousel takes again 110 slots and holds 160 of 160",
    ]


@pytest.mark.parametrize(
    "options",
    [{"low": 0}, {"low": 0.3}, {"high": 1}, {"floor": 0}, {"floor": 1.1}, {"interval_s": -1}],
)
def test_bad_marks_are_refused(options):
    with pytest.raises(BadInputError):
        PressureWatch(**options)


def test_the_real_machine_can_be_read():
    assert 0 <= PressureWatch(interval_s=0).target(10, 10, 100) <= 10
