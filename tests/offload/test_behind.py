"""Jobs are done in order, not too far behind, and none after one that failed."""

import threading

import pytest

from carousel.offload.behind import Behind


@pytest.fixture
def behind():
    made = Behind(limit=4)
    yield made
    made.close()


def test_jobs_are_done_in_order_on_one_other_thread(behind):
    done = []
    for number in range(20):
        behind.hand(3, lambda number=number: done.append((number, threading.get_ident())))
    behind.wait()
    assert [number for number, _ in done] == list(range(20))
    assert len({thread for _, thread in done} - {threading.get_ident()}) == 1


def test_a_job_is_taken_when_no_more_than_the_limit_is_pending(behind):
    go, taken = threading.Event(), []

    def fill():
        for number in range(4):
            behind.hand(3, go.wait)
            taken.append(number)

    other = threading.Thread(target=fill)
    other.start()
    other.join(0.2)
    assert taken == [0, 1]
    go.set()
    other.join()
    assert taken == [0, 1, 2, 3]


def test_after_an_error_nothing_is_done_until_it_was_raised(behind):
    go, done = threading.Event(), []

    def fail():
        go.wait()
        raise ArithmeticError

    behind.hand(1, fail)
    behind.hand(1, lambda: done.append("skipped"))
    go.set()
    with pytest.raises(ArithmeticError):
        behind.wait()
    assert done == []
    behind.hand(1, lambda: done.append("again"))
    behind.wait()
    assert done == ["again"]


def test_an_error_is_raised_by_the_next_job_too(behind):
    def fail():
        raise KeyboardInterrupt

    behind.hand(9, fail)
    with pytest.raises(KeyboardInterrupt):
        behind.hand(9, fail)
    behind.wait()


def test_closing_ends_the_thread():
    before = threading.active_count()
    behind = Behind(limit=4)
    done = []
    behind.hand(1, lambda: done.append(1))
    behind.close()
    behind.close()
    assert done == [1]
    assert threading.active_count() == before
