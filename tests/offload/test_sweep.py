"""In which order chunks are passed over, and which of them come together."""

from contextlib import contextmanager

import pytest

from carousel.offload.engine import Visit
from carousel.offload.plan import ParamSpec, make_plan
from carousel.offload.sweep import Sweep

CHUNKS = make_plan([ParamSpec((64 * 10,), "float32")], 64).chunks


class Shelf:
    """Lends chunks, and remembers which it was told of and which it has back."""

    def __init__(self):
        self.told, self.back = [], []

    def ahead(self, visits):
        self.told.append([visit.chunk for visit in visits])

    @contextmanager
    def lend(self, visit):
        yield {}
        self.back.append(visit.chunk)

    def sweep(self, visits, pinned):
        return Sweep(
            [Visit(chunk, load=True) for chunk in visits],
            ahead=self.ahead,
            lend=self.lend,
            chunks=CHUNKS,
            pinned=pinned,
        )


@pytest.mark.parametrize(
    ("visits", "pinned", "runs"),
    [
        (range(10), 0, [[n] for n in range(10)]),
        (range(10), 10, [list(range(10))]),
        (range(6), 3, [[0], [3], [1], [4], [2], [5]]),
        (range(6), 4, [[0, 1], [4], [2, 3], [5]]),
        (range(6), 2, [[2], [0], [3], [4], [1], [5]]),
        ([9, 0, 8, 1], 5, [[0], [9], [1], [8]]),
        ([], 5, []),
    ],
)
def test_chunks_in_ram_are_spread_among_those_from_the_file(visits, pinned, runs):
    shelf = Shelf()
    sweep = shelf.sweep(visits, pinned)
    order = [chunk.index for chunk in sweep.rest]
    assert [[chunk.index for chunk, _ in run] for run in sweep.runs()] == runs
    assert order == [chunk for run in runs for chunk in run]
    assert sorted(shelf.back) == sorted(visits)
    assert shelf.told == [list(visits)]


def test_all_of_a_run_are_lent_until_it_is_done():
    shelf = Shelf()
    for run in shelf.sweep(range(4), 3).runs():
        assert not {chunk.index for chunk, _ in run} & set(shelf.back)
    assert sorted(shelf.back) == [0, 1, 2, 3]


def test_a_run_that_ends_in_an_error_is_not_given_back():
    shelf = Shelf()

    def fail():
        for _ in shelf.sweep(range(4), 3).runs():
            raise ArithmeticError

    with pytest.raises(ArithmeticError):
        fail()
    assert shelf.back == []
