from __future__ import annotations

import signal
import threading

import pytest

from carousel.runs.interrupt import RunInterrupted, stop_on_signals


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_is_a_request(signum):
    before = signal.getsignal(signum)
    with stop_on_signals() as stop:
        stop.obey()
        signal.raise_signal(signum)
        assert stop.asked
        with pytest.raises(RunInterrupted) as caught:
            stop.obey()
    assert caught.value.signum == signum
    assert signal.getsignal(signum) is before


def test_the_second_ctrl_c_stops_at_once():
    with stop_on_signals():
        signal.raise_signal(signal.SIGINT)
        with pytest.raises(KeyboardInterrupt) as caught:
            signal.raise_signal(signal.SIGINT)
    assert not isinstance(caught.value, RunInterrupted)


def test_what_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with stop_on_signals() as stop:
            signal.raise_signal(signal.SIGINT)
            assert not stop.asked
        assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_thread_may_train_too():
    seen = []

    def work() -> None:
        with stop_on_signals() as stop:
            seen.append(stop.asked)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [False]
