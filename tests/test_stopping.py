"""A run stops between two rounds, on Ctrl-C and on SIGTERM."""

import os
import signal
import sys

import pytest

from fedspend.runs.stopping import SIGNALS, stop_after_round


@pytest.mark.parametrize("one", SIGNALS)
def test_the_first_signal_asks_and_the_second_stops(one):
    before = [signal.getsignal(each) for each in SIGNALS]
    with stop_after_round() as stopping:
        assert not stopping()
        os.kill(os.getpid(), one)
        assert stopping()
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), one)
    assert [signal.getsignal(each) for each in SIGNALS] == before


def test_a_round_that_cannot_be_finished_is_not_waited_for():
    with stop_after_round(lambda: True), pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_signal_while_a_line_is_being_written(monkeypatch, capfd):
    class Busy:
        def write(self, _text):
            raise RuntimeError("reentrant call inside <_io.BufferedWriter name='<stderr>'>")

    with stop_after_round() as stopping:
        with monkeypatch.context() as patched:
            patched.setattr(sys, "stderr", Busy())
            os.kill(os.getpid(), signal.SIGTERM)
        assert stopping()
    assert "stopping after this round" in capfd.readouterr().err
