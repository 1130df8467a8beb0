"""The flags that a sentence advises, and the commands that have them."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterator, Sequence
from functools import cache

from fedspend.cli.main import build_parser

FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*[a-z]")
# what a line of a shell begins with: a command, and for some its action
COMMAND = re.compile(r"\bfedspend ([a-z-]+)(?: ([a-z-]+))?")


@cache
def parsers() -> dict[str, argparse.ArgumentParser]:
    """Every command by its name, and every action as "ledger verify"."""
    _, commands = build_parser()
    found: dict[str, argparse.ArgumentParser] = {}
    for name, parser in commands.items():
        found[name] = parser
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                found |= {f"{name} {one}": made for one, made in action.choices.items()}
    return found


@cache
def flags() -> dict[str, set[str]]:
    """The flags of every command and action; a command also has those of its actions."""
    top = {option for action in build_parser()[0]._actions for option in action.option_strings}
    own = {
        name: {option for action in parser._actions for option in action.option_strings} | top
        for name, parser in parsers().items()
    }
    return {
        name: set().union(*(found for other, found in own.items() if f"{other} ".startswith(name)))
        if " " not in name
        else given
        for name, given in own.items()
    }


def advised(text: str) -> Iterator[tuple[str | None, str]]:
    """Each flag in a text, with the command that it is said to be of: None, if it is that of the
    reader.
    """
    known = parsers()
    for line in text.replace("\\\n", " ").splitlines():
        for part in re.split(r"[;)]|(?=\bfedspend [a-z])", line):
            begins = COMMAND.match(part)
            whose = None
            if begins is not None and begins[1] in known:
                both = f"{begins[1]} {begins[2]}"
                whose = both if both in known else begins[1]
            for flag in FLAG.findall(part):
                yield whose, flag


def lacking(line: str, argv: Sequence[object]) -> set[str]:
    """The flags that a message names and that the command in `argv` does not have, nor one that
    the message names; a flag that was given is not advised.
    """
    known, words = flags(), [str(word) for word in argv]
    named = next((n for n in range(len(words)) if words[n] in known), None)
    if named is None:
        return set()
    both = " ".join(words[named : named + 2])
    mine = known.get(both, known[words[named]])
    given = {word.partition("=")[0] for word in words}
    said = advised(line.removeprefix("fedspend: "))
    return {flag for whose, flag in said if flag not in given | (known[whose] if whose else mine)}
