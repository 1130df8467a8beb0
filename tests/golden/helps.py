"""`--help` of every command and action, found by walking the parsers.

Guarantee: no command is forgotten, since those that are asked are those that the parser knows.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from golden.session import Session, here

COLUMNS = 100


def commands() -> list[str]:
    """All commands, each of which has a file."""
    from fedspend.cli.main import build_parser

    return list(build_parser()[1])


def help_of(command: str) -> str:
    """The help of a command and of its actions; without a command, of fedspend itself."""
    with here(columns=COLUMNS) as folder:
        session = Session(folder)
        for name in _with_actions(command):
            session.run(f"{name} --help".strip())
        return session.text()


def _with_actions(command: str) -> list[str]:
    from fedspend.cli.main import build_parser

    return [command, *_below(command, build_parser()[1][command])] if command else [""]


def _below(name: str, parser: argparse.ArgumentParser) -> Iterator[str]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for word, other in action.choices.items():
                yield f"{name} {word}"
                yield from _below(f"{name} {word}", other)
