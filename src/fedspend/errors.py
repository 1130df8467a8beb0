"""The two ways fedspend says no.

`InvalidInput` means that the question was wrong: a value, a file, a flag (exit code 2). `Refused`
means that the question was right and the answer is no: over budget, failed verification (exit code
1). Every message is one line that names the value, what it was, and what to do.
"""

from __future__ import annotations

import math
from typing import Any


class FedspendError(Exception):
    """Base class of every error that fedspend raises on purpose."""

    exit_code = 1


class InvalidInput(FedspendError, ValueError):
    """Bad input; nothing was written."""

    exit_code = 2


class Refused(FedspendError):
    """A well-formed request that would break a guarantee."""

    exit_code = 1


class FedspendWarning(UserWarning):
    """Something legal that a privacy officer should hear about."""


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
