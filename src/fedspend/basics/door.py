"""The Python door: what every function has in common that users call from Python.

Guarantee: an argument that is misspelt, missing or of the wrong kind is one `InvalidInput` that
names it and the nearest one, before anything is done. Messages speak of arguments where the command
line's speak of flags; the command line itself (`command_line`) hears them as they were written, but
for flags that its command does not have.
"""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from fedspend.basics.choices import choose
from fedspend.basics.removed import refuse_removed
from fedspend.errors import FedspendError, InvalidInput

P = ParamSpec("P")
R = TypeVar("R")

_serving_a_command_line = False


@contextmanager
def command_line() -> Iterator[None]:
    """While a command runs: its user knows flags, not arguments."""
    global _serving_a_command_line
    before, _serving_a_command_line = _serving_a_command_line, True
    try:
        yield
    finally:
        _serving_a_command_line = before


def public(function: Callable[P, R]) -> Callable[P, R]:
    """Checks the arguments of a function of ours by name and kind, and words its messages."""
    signature = inspect.signature(function)
    named = [one for one in signature.parameters.values() if one.kind is not one.VAR_KEYWORD]
    takes_any = len(named) < len(signature.parameters)
    names = [one.name for one in named]
    paths = [one.name for one in named if one.annotation in _OF_PATHS]
    # anything goes where nothing is said: the grid of `train` is Flower's, that of `tune` a list
    lists = [one.name for one in named if one.name in _LISTS_OF_WORDS and one.annotation != "Any"]

    @wraps(function)
    def called(*args: P.args, **kwargs: P.kwargs) -> R:
        refuse_removed(*(f"fedspend.{function.__name__}({name}=)" for name in kwargs))
        if not takes_any:
            for name in kwargs:
                choose(f"argument of {function.__name__}:", name, names)
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise InvalidInput(_told(function.__name__, error, signature, args, kwargs)) from None
        try:
            for name, value in given.items():
                is_path = name in _PATHS or name in paths
                _check_kind(name, value, is_path=is_path, is_list=name in lists)
            return function(*args, **kwargs)
        except FedspendError as error:
            if not _serving_a_command_line and error.args:
                error.args = (for_python(str(error.args[0]), names), *error.args[1:])
            raise

    return called


def _told(
    name: str,
    error: TypeError,
    signature: inspect.Signature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
) -> str:
    """Why a call does not fit the signature."""
    try:
        given = signature.bind_partial(*args, **kwargs).arguments
    except TypeError:  # too many, or one of them twice
        return f"{name}: {error}; name the arguments: {name}(NAME=value, ...)"
    missing = [
        f"{one.name}="
        for one in signature.parameters.values()
        if one.default is one.empty
        and one.kind not in (one.VAR_KEYWORD, one.VAR_POSITIONAL)
        and one.name not in given
    ]
    return f"{name} also needs {' and '.join(missing)}; see help(fedspend.{name})"


# --- kinds of arguments, which have the same name in every function -------------------------------

_OF_PATHS = ("str | Path", "str | Path | None")  # annotations are kept as text
_PATHS = ("output", "ledger", "sign", "folder", "key", "opening")
_LISTENERS = ("on_round", "on_note", "on_file")
_LISTS_OF_WORDS = ("overrides", "grid", "methods", "vary", "over")


def _check_kind(name: str, value: Any, *, is_path: bool, is_list: bool) -> None:
    if value is None:
        return
    # the operating system's own word for a path with such a character names neither
    if isinstance(value, str | os.PathLike) and "\0" in str(value):
        raise InvalidInput(
            f"{name} has a zero character, which no path or name may have: {value!r}"
        )
    if is_path and not isinstance(value, str | os.PathLike):
        raise InvalidInput(f"{name} must be a path, got {value!r}")
    if name in _LISTENERS and not callable(value):
        raise InvalidInput(f"{name} must be a function, got {value!r}")
    if name == "progress" and not (callable(value) or isinstance(value, bool)):
        raise InvalidInput(f"progress must be a function of (done, total), got {value!r}")
    if is_list and (
        isinstance(value, str | bytes)
        or not isinstance(value, Sequence | Mapping)
        or not all(isinstance(one, str) for one in value)
    ):
        example = {"methods": "dp-fedavg", "overrides": "train.lr=0.1"}.get(name, "train.lr=0.1,1")
        raise InvalidInput(f'{name} must be a list such as ["{example}"], got {value!r}')


# --- words ----------------------------------------------------------------------------------------

# flags whose argument is called something else
_CALLED = {
    "set": "overrides",
    "open": "opening",
    "remaining": 'overrides=["ledger.spend=remaining"]',
}
_SWITCHES = ("resume", "replan", "moved", "private", "train-others")
_FLAG = re.compile(r"--([a-z][a-z-]*)")


def for_python(message: str, arguments: Sequence[str] = ()) -> str:
    """A message of the command line, as a Python user understands it.

    What follows `fedspend` is a command for a shell, and stays one.

    >>> for_python("--set train.lr=-1: lr in [train] must be positive")
    "overrides 'train.lr=-1': lr in [train] must be positive"
    >>> for_python("the run has begun; stop it and use --resume")
    'the run has begun; stop it and use resume=True'
    >>> for_python("delta is missing: give --delta, or delta under [privacy], or --set a.b=VALUE")
    "delta is missing: give delta under [privacy], or overrides=['a.b=VALUE']"
    >>> for_python("if you trust it, name it: --model my_models:make")
    "if you trust it, name it: model='my_models:make'"
    >>> for_python("if it is yours, add --ledger '/my/accounts.db'")
    "if it is yours, add ledger='/my/accounts.db'"
    >>> for_python("make one with: fedspend ledger init --ledger a.db")
    'make one with: fedspend ledger init --ledger a.db'
    >>> for_python("see fedspend ledger balance; or go on with --resume")
    'see fedspend ledger balance; or go on with resume=True'
    """
    return _outside_commands(message, lambda said: _for_python(said, arguments))


def _outside_commands(message: str, reword: Callable[[str], str]) -> str:
    """The message, reworded but for commands, which go from `fedspend` to a semicolon."""
    parts = re.split(r"(fedspend [^;]*)", message)
    return "".join(part if n % 2 else reword(part) for n, part in enumerate(parts))


def _for_python(said: str, arguments: Sequence[str]) -> str:
    # some messages name both already
    said = re.sub(r"--[a-z-]+(?: [A-Z]+)? \((\w+=) in Python(, [^)]*)?\)", r"\1\2", said)
    said = re.sub(r"(--(?:set|vary|grid|over)) ([^\s:]+=[^:]*):", r"\1 '\2':", said, count=1)
    said = re.sub(r"--set ([\w.]+=[^\s,;']+)", r"overrides=['\1']", said)
    said = re.sub(r"--model ([\w.]+:\w+)", r"model='\1'", said)
    said = re.sub(r"--ledger ('[^']*')", r"ledger=\1", said)
    for flag in _FLAG.findall(said):
        if flag.replace("-", "_") not in arguments and flag not in (*_CALLED, *_SWITCHES):
            said = _without(flag, said)
    return _FLAG.sub(_as_argument, said)


def for_command(message: str, flags: Collection[str]) -> str:
    """A message, without the advice to give a flag that the command does not have, where the
    sentence names another way.

    >>> advice = "delta is missing: give --delta, or delta under [privacy], or --set a.b=VALUE"
    >>> for_command(advice, ["--set"])
    'delta is missing: give delta under [privacy], or --set a.b=VALUE'
    >>> for_command(advice, [])
    'delta is missing: give delta under [privacy]'
    >>> for_command("spend what is left (--remaining), or see fedspend plan --ledger", [])
    'spend what is left, or see fedspend plan --ledger'
    """
    return _outside_commands(message, lambda said: _for_command(said, flags))


def _for_command(said: str, flags: Collection[str]) -> str:
    for flag in _FLAG.findall(said):
        if f"--{flag}" not in flags:
            said = _without(flag, said)
            said = re.sub(rf",? or (?:give )?--{flag}\b(?: [^\s;,]+)?|\s\(--{flag}\)", "", said)
    return said


def _without(flag: str, said: str) -> str:
    """A sentence that goes on with another way, without the flag."""
    return re.sub(rf"--{flag}\b( [^\s;]*[^\s;,])?,? or ", "", said)


def _as_argument(found: re.Match[str]) -> str:
    flag = found[1]
    if flag in _SWITCHES:
        return f"{flag.replace('-', '_')}=True"
    if flag in _CALLED:
        return _CALLED[flag]
    # "--grid 'x=1':" names what was given, "name it with --ledger" what to give
    rest = found.string[found.end() :]
    return flag.replace("-", "_") + ("" if rest.startswith(" ") else "=")
