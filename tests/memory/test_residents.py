from __future__ import annotations

from collections import deque

import numpy as np

from carousel.memory.residents import Residents


def known(residents, ids):
    return [sample for sample in ids if sample in residents]


def test_follows_swaps():
    column = np.array([1, 2, 3])
    residents = Residents(column)
    residents.admitted([], [1, 2, 3])
    column[0] = 7
    residents.swapped([1], [7])
    residents.refresh()
    assert known(residents, range(10)) == [2, 3, 7]


def test_is_built_anew_when_the_notes_were_too_many():
    column = np.array([0])
    residents = Residents(column)
    for sample in range(1, 3000):
        column[0] = sample
        residents.swapped([sample - 1], [sample])
    residents.refresh()
    assert known(residents, range(3001)) == [2999]


def test_notes_thrown_away_while_the_worker_reads_them():
    column = np.array([0])
    residents = Residents(column)

    def swap_many(first):
        for sample in range(first, first + 1024):
            column[0] = sample
            residents.swapped([sample - 1], [sample])

    class Interrupted(deque):
        """The notes are thrown away between the worker's look and its grip."""

        def popleft(self):
            if not interruptions:
                interruptions.append(True)
                swap_many(1)
            return super().popleft()

    interruptions = []
    residents._changes = Interrupted()
    residents.swapped([], [0])
    residents.refresh()
    assert interruptions
    assert known(residents, range(3000)) == [1024]
