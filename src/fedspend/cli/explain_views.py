"""How `fedspend explain` shows what it found: sentences first, then the numbers behind them."""

from __future__ import annotations

import math
from collections.abc import Mapping

from rich.console import Console
from rich.text import Text

from fedspend.cli.tables import IF_CENTRAL, figures, frame, short_hash, size
from fedspend.cli.terminal import console
from fedspend.cli.views import view_of
from fedspend.explanation.entry import odds_sentence
from fedspend.explanation.meaning import (
    FPRS,
    PRIORS,
    Claim,
    accused_words,
    guess_words,
    odds_words,
    outcomes,
    percent,
)
from fedspend.explanation.observed import Sight
from fedspend.explanation.units import Subject
from fedspend.planning.protocol import AnyPlan
from fedspend.verification.observers import OF_DISTRIBUTED


def show_claim(claim: Claim, plot: str | None) -> None:
    out = console()
    line(out, f"epsilon {claim.epsilon:g}, delta {claim.delta:g}, for any mechanism")
    say(
        out,
        odds_sentence(claim),
    )
    out.print()
    table = frame()
    for heading in ("odds before", "chance", "odds after\nat most", "chance\nat most"):
        table.add_column(heading, justify="right")
    for prior in PRIORS:
        log_odds = claim.epsilon + math.log(prior[0] / prior[1])
        table.add_row(
            f"{prior[0]}:{prior[1]}",
            percent(prior[0] / sum(prior)),
            odds_words(log_odds),
            percent(claim.posterior(prior)),
        )
    out.print(table)
    out.print()
    say(out, accused_words(claim.curve, "client"), guess_words(claim.curve))
    out.print()
    tests = frame()
    for heading in ("wrongly accused", "recognised, at most"):
        tests.add_column(heading, justify="right")
    for one in outcomes(claim.curve):
        tests.add_row(percent(one.fpr), percent(one.tpr))
    out.print(tests)
    out.print()
    out.print(
        Text(
            "This is the worst that any mechanism with these two numbers could do. A plan with "
            "known noise does better: fedspend explain PLAN.json",
            style="dim",
        )
    )
    drawn(out, plot)


def show_plan(plan: AnyPlan, found: Mapping[Subject, tuple[Sight, ...]], plot: str | None) -> None:
    out, view = console(), view_of(plan)
    for name, words in (
        ("plan", f"{short_hash(plan)}, {size(plan)}, delta {plan.delta:g}"),
        ("protects", view.protects),
        ("against", view.against),
    ):
        out.print(Text.assemble((f"{name:<12}", "bold"), words))
    if "ledger" in plan.parameters:
        say(out, "Other runs may use the same accounts; these numbers are for this plan alone.")
    out.print()
    for subject, seen in found.items():
        show_subject(out, plan, subject, seen, alone=len(found) == 1)
    show_observers(out, found)
    notes = [
        "Every number is an upper bound. 'Best guess': how often it is right if half took part."
    ]
    if len(found) > 1:
        notes.append("A group's numbers are those of its least protected member.")
    seen = next(iter(found.values()))
    if any(one.assumption.startswith(OF_DISTRIBUTED) for one in seen):
        notes.append(IF_CENTRAL)
    for note in notes:
        out.print(Text(note, style="dim"))
    drawn(out, plot)


def show_subject(
    out: Console, plan: AnyPlan, subject: Subject, seen: tuple[Sight, ...], *, alone: bool
) -> None:
    first = seen[0]
    line(out, f"{subject.label}, epsilon {subject.epsilon:.4g}")
    against = (
        "" if first.promised else f"Observer: {first.observer}. The plan promises nothing here."
    )
    say(out, against, accused_words(first.curve, plan.unit), guess_words(first.curve))
    out.print()
    if alone:
        show_odds(out, first, plan.delta)
    say(out, f"Recognised at most, if this share of the other {plan.unit}s is wrongly accused:")
    table = frame("observer")
    for heading in ("epsilon", *map(percent, FPRS), "best guess"):
        table.add_column(heading, justify="right")
    for sight in seen:
        table.add_row(
            Text(titled(sight)),
            figures(sight.epsilon),
            *(percent(one.tpr) for one in outcomes(sight.curve)),
            percent(sight.curve.accuracy),
        )
    out.print(table)
    out.print()


def show_observers(out: Console, found: Mapping[Subject, tuple[Sight, ...]]) -> None:
    """Who the observers are, and what their numbers were computed from."""
    first = next(iter(found.values()))
    width = max(len(titled(one)) for one in first) + 2
    for n, sight in enumerate(first):
        sources = " or ".join(dict.fromkeys(seen[n].curve.how for seen in found.values()))
        out.print(
            Text.assemble(
                (f"{titled(sight):<{width}}", "bold"), f"{sight.assumption} (from {sources})"
            )
        )
    out.print()


def titled(sight: Sight) -> str:
    return f"{sight.observer} (promised)" if sight.promised else sight.observer


def show_odds(out: Console, sight: Sight, delta: float) -> None:
    """The odds after the test says yes, and what the observer's epsilon alone would allow."""
    table = frame()
    headings = ["wrongly accused", "recognised\nat most", "by epsilon\nalone"]
    headings += [f"a yes turns {a}:{b}\ninto at most" for a, b in PRIORS]
    for heading in headings:
        table.add_column(heading, justify="right")
    alone = outcomes(Claim(sight.epsilon, delta).curve)
    for one, worst in zip(outcomes(sight.curve), alone, strict=True):
        after = [odds_words(math.log(one.odds(prior))) for prior in PRIORS]
        table.add_row(percent(one.fpr), percent(one.tpr), percent(worst.tpr), *after)
    out.print(table)
    out.print()


def line(out: Console, words: str) -> None:
    out.print(Text(words, style="bold"))


def say(out: Console, *sentences: str) -> None:
    for sentence in filter(None, sentences):
        out.print(Text(sentence))


def drawn(out: Console, plot: str | None) -> None:
    if plot is not None:
        out.print(Text(f"Plot: {plot}"))
