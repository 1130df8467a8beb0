"""How `fedspend explain --leaves` shows what a client or record that leaves has spent."""

from __future__ import annotations

from rich.text import Text

from fedspend.cli.tables import figures
from fedspend.cli.terminal import console
from fedspend.explanation.leaving import Leaving


def show_leaving(found: Leaving, *, with_ledger: bool, filters_by_norm: bool) -> None:
    out = console()
    out.print(Text(f"{found.title}; epsilon at delta {found.delta:g}", style="bold"))
    out.print()
    to_come = rounds_words(found.begun + 1, found.rounds)
    over = " over all its runs" if with_ledger else ""
    facts = [
        (
            "spent",
            f"{amount(found.spent)} of {found.budget:g}{over}; rounds that have begun stay spent",
        )
    ]
    if found.begun < found.rounds:
        facts += [
            ("if it stays", f"{amount(found.if_it_stays)} once {to_come} done"),
            (
                "given back",
                "nothing: once it has begun, the run counts as a whole"
                if found.keeps_all
                else f"{amount(found.given_back)}, when the run is closed",
            ),
        ]
    else:
        facts.append(("given back", "nothing: every round has begun"))
    more = "; epsilons do not simply add up" if found.left > found.budget - found.spent else ""
    facts.append(
        ("then left", f"{amount(found.left)}: the most that a plan like this could claim{more}")
    )
    if found.elsewhere > 0:
        facts.append(("other runs", f"{amount(found.elsewhere)} spent and held, by themselves"))
    for name, words in facts:
        out.print(Text.assemble((f"{name:<13}", "bold"), words))
    out.print()
    for name, sentences in endings(found, filters_by_norm):
        out.print(Text(name, style="bold"))
        for sentence in sentences:
            out.print(Text(f"  {sentence}"))


def amount(epsilon: float) -> str:
    """An epsilon with four digits.

    >>> amount(0.0), amount(10.0), amount(3.2581)
    ('nothing', '10.00', '3.258')
    """
    return "nothing" if epsilon == 0 else figures(epsilon)


def rounds_words(first: int, last: int) -> str:
    return f"round {last} is" if first >= last else f"rounds {first} to {last} are"


def endings(found: Leaving, by_norm: bool) -> list[tuple[str, list[str]]]:
    """The two ways to leave, and what each means for everyone else."""
    unit = found.unit
    freed = (
        "all rounds of the run stay spent, for everyone"
        if found.keeps_all
        else "what the run held is free again for everyone"
    )
    if found.begun == found.rounds:
        stop = ["No round is left to stop."]
    elif found.stops_the_run:
        stop = [
            "The run can begin no further round for anybody. Close it (fedspend ledger close-run)",
            f"and plan again without this {unit}: {freed}.",
        ]
    else:
        stop = [f"This {unit} is in none of the remaining rounds, so the run continues without it."]
    withdraws = [
        *stop,
        "A withdrawn account takes part in no further round, so what it has left stays unused.",
    ]
    silent = [
        "Nothing is given back. Every round is charged to everyone in the plan, sampled or not:",
        "charging only those who took part would break the accounting and reveal who did.",
    ]
    sums = "mean" if unit == "client" else "step of its client"
    others = [
        "Their noise, rates, clips and epsilons are planned and stay as they are.",
        f"The {sums} loses a contribution, but is still divided by the planned number.",
    ]
    if by_norm:
        others.append(
            "Records pay for their own gradients here: the numbers are the most they can have paid."
        )
    return [
        ("If it withdraws (fedspend ledger withdraw)", withdraws),
        (
            "If it only stops answering" if unit == "client" else "If it is simply no longer used",
            silent,
        ),
        ("For the others, in the rounds that are still run", others),
    ]
