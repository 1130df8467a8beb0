"""Runs that die at any durable write, of the server or of a client."""

import pytest

from fedspend import train
from fedspend.basics import files
from fedspend.client import state
from fedspend.ledger import Ledger, chain
from fedspend.runs import directory as runs


class Killed(BaseException):
    """Stands for a kill: nothing may catch it."""


def stopped(config, folder, rounds=2, **options):
    """The directory of a run that dies once so many rounds are done."""

    def stop(line, _):
        if line["round"] == rounds:
            raise Killed

    with pytest.raises(Killed):
        train(config, output=folder, on_round=stop, **options)
    return folder


def crash_at(monkeypatch, instant: int):
    """Die at the given durable write, half of the time before it and half of the time right after
    it.
    """
    calls = 0

    def wrap(real):
        def wrapped(*arguments, **options):
            nonlocal calls
            calls += 1
            mine = calls  # a write of the ledger contains the write of its head
            if mine == instant and instant % 2:
                raise Killed
            real(*arguments, **options)
            if mine == instant:
                raise Killed

        return wrapped

    monkeypatch.setattr(runs, "write_whole", wrap(files.write_whole))
    monkeypatch.setattr(runs, "append_line", wrap(files.append_line))
    monkeypatch.setattr(state, "write_whole", wrap(files.write_whole))
    monkeypatch.setattr(chain, "write_whole", wrap(files.write_whole))
    monkeypatch.setattr(Ledger, "_write", wrap(Ledger._write))


class Passed:
    """A verdict for plans that are verified elsewhere."""

    ok, failures = True, ()

    def __init__(self, plan):
        self.plan = plan

    def to_dict(self):
        return {"plan_hash": self.plan.hash}
