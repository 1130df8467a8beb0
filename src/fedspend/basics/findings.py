"""What a check found, for checks of files that somebody else may have written.

Guarantee: a check that fails in any way is a finding, never an exception.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from fedspend.basics.tables import Table
from fedspend.basics.words import counted
from fedspend.errors import FedspendError, one_line


@dataclass(frozen=True)
class Finding:
    """One check: `good` is None where there was nothing to check against."""

    check: str
    good: bool | None
    words: str

    def to_dict(self) -> dict[str, Any]:
        return {"check": self.check, "ok": self.good, "detail": self.words}


def guarded(name: str, check: Callable[[], tuple[bool | None, str]]) -> Finding:
    """What a check finds. One that fails in any way has found something, too: a file that nobody
    would write may raise anything.
    """
    try:
        good, words = check()
        return Finding(name, good, one_line(words))
    except FedspendError as error:
        return Finding(name, False, str(error))
    except Exception as error:
        return Finding(name, False, unforeseen(error))


def unforeseen(error: Exception) -> str:
    """An error that is not ours in words, on one short line and without control characters."""
    words = "".join(one if one.isprintable() else " " for one in str(error))
    said = textwrap.shorten(words, 80, placeholder=" ...")
    name = type(error).__name__
    return f"cannot be checked ({name}: {said})" if said else f"cannot be checked ({name})"


def summed_up(findings: Sequence[Finding]) -> str:
    """The outcome on one line; what failed is named."""
    failed = [one for one in findings if one.good is False]
    if failed:
        return f"failed: {'; '.join(f'{one.check}: {one.words}' for one in failed)}"
    skipped = sum(one.good is None for one in findings)
    passed = f"{counted(len(findings) - skipped, 'check')} passed"
    return f"{passed}, {skipped} with nothing to check against" if skipped else passed


def table_of(findings: Sequence[Finding]) -> Table:
    said = {True: "ok", False: "FAILED", None: "not checked"}
    return Table(
        ("check", "", "what was found"),
        [(one.check, said[one.good], one.words) for one in findings],
    )


def none_failed(findings: Sequence[Finding]) -> bool:
    return not any(finding.good is False for finding in findings)
