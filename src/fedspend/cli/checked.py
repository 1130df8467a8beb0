"""How findings are shown: of a run directory, a publication or a ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.console import Console
from rich.text import Text

from fedspend.basics.findings import Finding
from fedspend.cli.terminal import console

if TYPE_CHECKING:
    from fedspend.publishing.checking import Checked
    from fedspend.runs.verifying import RunVerification


def show_findings(
    out: Console, findings: Sequence[Finding], *, names: int = 14, unchecked: str = "note"
) -> None:
    """One line each: passed, failed, or what could not be checked and why. `names` is the width of
    the names of checks.
    """
    verdicts = {
        True: ("pass  ", "green"),
        False: ("FAIL  ", "bold red"),
        None: (f"{unchecked}  ", "yellow"),
    }
    for one in findings:
        out.print(Text.assemble(verdicts[one.good], (f"{one.check:<{names}}", "bold"), one.words))


def show_checked(result: RunVerification | Checked, *, good: str, bad: str) -> Console:
    """The verdict on a run directory or a publication, and what it rests on."""
    out = console()
    show_verdict(out, ok=result.ok, simulation=result.simulation, good=good, bad=bad)
    show_findings(out, result.checks)
    return out


def show_verdict(out: Console, *, ok: bool, simulation: bool | None, good: str, bad: str) -> None:
    word, style, sentence = ("PASS", "bold green", good) if ok else ("FAIL", "bold red", bad)
    out.print(Text.assemble((word, style), f"  {sentence}"))
    if simulation:
        out.print(Text("SIMULATION: its randomness was seeded, so it protects nobody", "bold red"))
    out.print()
