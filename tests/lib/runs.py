"""Runs that die at a named instant, or at any durable write.

Guarantee: what is to die there does, or the test fails.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import pytest

import fedspend
import fedspend.runs.directory as directory
import fedspend.runs.running as running
import fedspend.server.rounds as rounds
from fedspend.basics import files
from fedspend.client import state
from fedspend.ledger import Ledger, chain


class Killed(BaseException):
    """Stands for a kill: nothing may catch it."""


# The instants of a round: of which function, whether after its work, and the number of the round
# (from 0) among its arguments.
INSTANTS: dict[str, tuple[Any, str, bool, Callable[..., int]]] = {
    # it is charged, and nobody was drawn
    "play": (rounds, "play", False, lambda state, *_: state.done),
    # it was played, and its release is not stored
    "keep": (directory.RunDirectory, "keep", False, lambda _run, round, *_: round),
    # the release is stored, and the ledger has not heard of it
    "enter": (directory.RunAccount, "commit", False, lambda _account, round, *_: round),
    # the release is stored and entered, and was not used
    "kept": (directory.RunDirectory, "keep", True, lambda _run, round, *_: round),
}


@contextmanager
def killed(at: str = "told", *, round: int | None = None) -> Iterator[None]:
    """What is done in the block dies when `round` (from 1) gets there; without one, the first round
    that does.

    `at` is one of `INSTANTS`, or "told": the round is committed, and whoever listens has heard of
    it. Any other function is named in full, and dies before it does anything.
    """
    with pytest.MonkeyPatch.context() as patch:
        if at == "told":
            patch.setattr(running, "Listeners", dying_listeners(running.Listeners, round))
        elif at in INSTANTS:
            owner, name, after, number = INSTANTS[at]
            patch.setattr(owner, name, dying(getattr(owner, name), after, number, round))
        else:
            patch.setattr(at, die)
        with pytest.raises(Killed):
            yield


def die(*_: Any, **__: Any) -> None:
    raise Killed


def dying(
    real: Callable[..., Any], after: bool, number: Callable[..., int], round: int | None
) -> Callable[..., Any]:
    def wrapped(*given: Any, **named: Any) -> Any:
        mine = round is None or number(*given) == round - 1
        if mine and not after:
            raise Killed
        done = real(*given, **named)
        if mine:
            raise Killed
        return done

    return wrapped


def dying_listeners(real: Any, round: int | None) -> Callable[..., Any]:
    """Listeners that are told of the round, and die."""

    def made(on_round: Callable[..., Any] | None, *others: Any) -> Any:
        def heard(line: Any, of: int) -> None:
            if on_round is not None:
                on_round(line, of)
            if round in (None, line["round"]):
                raise Killed

        return real(heard, *others)

    return made


@contextmanager
def dying_at_write(instant: int) -> Iterator[None]:
    """Die at the given durable write of the server or of a client, half of the time before it and
    half of the time right after it.
    """
    calls = 0

    def wrap(real: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(*arguments: Any, **options: Any) -> None:
            nonlocal calls
            calls += 1
            mine = calls  # a write of the ledger contains the write of its head
            if mine == instant and instant % 2:
                raise Killed
            real(*arguments, **options)
            if mine == instant:
                raise Killed

        return wrapped

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(directory, "write_whole", wrap(files.write_whole))
        patch.setattr(directory, "append_line", wrap(files.append_line))
        patch.setattr(state, "write_whole", wrap(files.write_whole))
        patch.setattr(chain, "write_whole", wrap(files.write_whole))
        patch.setattr(Ledger, "_write", wrap(Ledger._write))
        yield


def check_killed_at_every_write(
    place: Path, go: Callable[..., object], outcome: Callable[[Path], object], *, writes: int
) -> None:
    """`go(folder, resume)` has the same outcome, wherever it was killed before it was resumed; and
    there were more than so many places to die.
    """
    go(place / "whole", resume=False)
    expected = outcome(place / "whole")
    for instant in count(1):
        folder = place / f"killed-{instant}"
        try:
            with dying_at_write(instant):
                go(folder, resume=False)
            break  # fewer writes than `instant`: it ran through
        except Killed:
            go(folder, resume=True)
        assert outcome(folder) == expected, f"killed at write {instant}"
    assert outcome(folder) == expected
    assert instant > writes, "every write of the run was a place to die"


def stopped(config: Any, folder: Path, rounds: int = 2, **options: Any) -> Path:
    """The directory of a run that dies once so many rounds are done."""
    with killed(round=rounds):
        fedspend.train(config, output=folder, **options)
    return folder
