"""The ways fedspend says no.

`InvalidInput` means that the question was wrong: a value, a file, a flag (exit code 2). `Refused`
means that the question was right and the answer is no: over budget, failed verification (exit code
1). `OutsideFailed` means that something outside failed: a database, a disk, a network (exit code
3). Every message is one line that names the value, what it was, and what to do.
"""

from __future__ import annotations

import errno
import math
from typing import Any

MOST_LETTERS = 2000  # of a line that somebody is to read


def one_line(text: str) -> str:
    """The text as one readable line, whatever values are in it: without line breaks and characters
    that command a terminal, and without the middle of a very long one.

    >>> print(one_line("two\\nlines \\x1b[2J"), len(one_line("x" * 10**6)))
    two lines \\x1b[2J 2000
    """
    if not text.isprintable():
        text = " ".join(text.split())
        text = "".join(one if one.isprintable() else ascii(one)[1:-1] for one in text)
    if len(text) > MOST_LETTERS:
        half = MOST_LETTERS // 2
        text = f"{text[: half - 5]} ... {text[-half:]}"
    return text


class FedspendError(Exception):
    """Base class of every error that fedspend raises on purpose. What it says is one readable line,
    also if a value in it has several, or is very long.
    """

    exit_code = 1

    def __init__(self, message: object = "", *rest: object) -> None:
        super().__init__(one_line(str(message)) if message else message, *rest)


class InvalidInput(FedspendError, ValueError):
    """Bad input: a value, a file or a name is wrong; nothing was written."""

    exit_code = 2


class Refused(FedspendError):
    """A well-formed request that would break a guarantee."""

    exit_code = 1


class OutsideFailed(FedspendError):
    """A database, a disk or a network failed; nothing was left half written."""

    exit_code = 3


# what a wrong name or missing rights lead to; any other failure of the system is not the user's
_OF_NAMES = (
    errno.ENOENT,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EACCES,
    errno.EPERM,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.ENAMETOOLONG,
    errno.ELOOP,
    errno.EINVAL,
)


def exit_code_of(error: OSError) -> int:
    """Bad input if the system did not like a name, otherwise something outside failed."""
    named = error.errno in _OF_NAMES and not isinstance(error, ConnectionError)
    return InvalidInput.exit_code if named else OutsideFailed.exit_code


def unreadable(path: Any, error: OSError) -> FedspendError:
    """A file that cannot be read, which says nothing about what is in it."""
    failed = exit_code_of(error) == OutsideFailed.exit_code
    kind = OutsideFailed if failed else InvalidInput
    return kind(f"{path} cannot be read: {error.strerror or error}; check the file and its rights")


class FedspendWarning(UserWarning):
    """Something legal that a privacy officer should hear about."""


class OperatorWarning(FedspendWarning):
    """What the operator of a real run should know and no file may keep: it depends on rows."""


def finite_number(name: str, value: Any) -> float:
    """`value` as a finite float, or `InvalidInput` naming it."""
    try:
        number = float(value)
    except OverflowError:
        raise InvalidInput(f"{name} is too large; give a smaller number") from None
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be a number, got {value!r}") from None
    if isinstance(value, bool) or not math.isfinite(number):
        raise InvalidInput(f"{name} must be a finite number, got {value!r}")
    return number


def whole_number(name: str, value: Any, at_least: int) -> int:
    """`value` as an int of at least `at_least`, or `InvalidInput` naming it."""
    number = finite_number(name, value)
    if not (number == int(number) and number >= at_least):
        raise InvalidInput(f"{name} must be a whole number of at least {at_least}, got {value!r}")
    return int(number)
