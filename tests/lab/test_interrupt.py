"""Signals wait for a safe place."""

import signal

import pytest

from codtdq.lab.interrupt import StopRequest, interrupts_wait


@pytest.fixture(autouse=True)
def python_handler():
    """A shell starts background jobs with SIGINT ignored; these tests need Python's handler."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_interrupts_wait_for_the_end_of_the_block():
    done = []
    with pytest.raises(KeyboardInterrupt), interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        done.append("row")
    assert done == ["row"]


def test_an_error_inside_the_block_comes_first():
    with pytest.raises(ValueError), interrupts_wait():
        signal.raise_signal(signal.SIGINT)
        raise ValueError


def test_the_second_signal_acts_at_once():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), StopRequest() as request:
        signal.raise_signal(signal.SIGINT)
        assert request.reason == "SIGINT"
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
