"""How `fedspend verify` shows the findings of a check that is not that of a plan file."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Console
from rich.text import Text

from fedspend.ledger.audit import Finding

_VERDICTS = {True: ("pass  ", "green"), False: ("FAIL  ", "bold red"), None: ("note  ", "yellow")}


def show_findings(out: Console, findings: Sequence[Finding]) -> None:
    """One line each: passed, failed, or what could not be checked and why."""
    for one in findings:
        out.print(Text.assemble(_VERDICTS[one.good], (f"{one.check:<14}", "bold"), one.words))


def show_verdict(out: Console, *, ok: bool, simulation: bool | None, good: str, bad: str) -> None:
    word, style, sentence = ("PASS", "bold green", good) if ok else ("FAIL", "bold red", bad)
    out.print(Text.assemble((word, style), f"  {sentence}"))
    if simulation:
        out.print(Text("SIMULATION: its randomness was seeded, so it protects nobody", "bold red"))
    out.print()
