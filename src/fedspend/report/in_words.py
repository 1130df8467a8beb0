"""The guarantee of a run as text, and what its epsilons mean for a person.

Guarantee: the text promises nothing that the run does not keep. A simulation, a run without a plan
and a plan that did not verify are called what they are, in the same place. The numbers are upper
bounds from the plan's own rounds.
"""

from __future__ import annotations

from collections.abc import Sequence

from fedspend.basics.json_values import number
from fedspend.basics.words import counted, span
from fedspend.errors import FedspendError
from fedspend.explanation.meaning import (
    FPRS,
    accused_words,
    chance_words,
    guess_words,
    outcomes,
    percent,
)
from fedspend.explanation.observed import Sight, sights
from fedspend.explanation.units import group
from fedspend.planning.protocol import AnyPlan
from fedspend.report.certificate import judge
from fedspend.report.groups import group_clients
from fedspend.report.markup import Content, Markup, element, join
from fedspend.report.panels import group_words
from fedspend.report.pieces import MOST_BUDGETS, figure, power, table
from fedspend.report.run_data import RunData
from fedspend.report.views import view_of

MEANING = "meaning"  # the part of the page
LABELS = ("Protected", "Against", "How strongly")
BANDS = 4  # if there are too many budgets to list one by one


def guarantee(run: RunData) -> Markup:
    """Who is protected, and against whom, before any number."""
    return element(
        "section",
        element("h2", "The guarantee"),
        [element("p", labelled(sentence)) for sentence in sentences(run)],
        pointer(run),
        class_="guarantee",
    )


def labelled(sentence: str) -> Content:
    """The sentence, with what it answers in bold."""
    label, separator, rest = sentence.partition(": ")
    return [element("b", label), separator, rest] if label in LABELS else sentence


def pointer(run: RunData) -> Markup | None:
    """To what the numbers mean for a person."""
    if run.plan is None or judge(run)[0] != "PASS":
        return None
    told = "What an epsilon lets somebody find out is said under "
    return element("p", told, element("a", "What epsilon means", href=f"#{MEANING}"), ".")


def tuned_words(run: RunData) -> str | None:
    """The epsilon of the tune that this run has won; None for any other run."""
    said = number((run.tuned or {}).get("epsilon"))
    return None if said is None else f"epsilon is at most {said:.4g} for every client"


def sentences(run: RunData) -> list[str]:
    plan = run.plan
    if plan is None:
        return [
            "There is none. Nothing was clipped and no noise was added, so nobody is protected."
        ]
    verdict, why = judge(run)
    if verdict != "PASS":
        return [f"None can be stated. {why}"]
    view = view_of(plan)
    found = [
        "This was a simulation and protects nobody. A real run under the same plan would keep the "
        "following promise."
        if run.simulation
        else "This run keeps the following promise."
    ]
    found += [
        f"Protected: {view.protected}. If {view.zeroed}, everything that is released would be "
        "almost as likely.",
        f"Against: {view.observer}.",
        f"How strongly: {tuned_words(run) or strength(plan)}. Delta is {power(plan.delta)}, a "
        f"chance of {chance_words(plan.delta)} that the bound fails. Smaller is safer. "
        f"{'' if run.tuned else left_words(run, plan)}".strip(),
    ]
    found += view.elsewhere(plan)
    if run.tuned:
        found.append(
            "This model is the winner of a private tune: the best of a random number of trials, of "
            "which nothing else was kept. Plan, budgets and spending below are those of one trial; "
            "the epsilon above is that of the whole tune, which every client paid beforehand. The "
            "promise needs the number of trials, and how long they took, to stay secret."
        )
    if run.voting:
        found.append("The public rows that clients voted on are not protected.")
    if "ledger" in plan.parameters:
        found.append(
            "Earlier runs on the same accounts count too; the ledger has the total over all of "
            "them."
        )
    return found


def strength(plan: AnyPlan) -> str:
    told = view_of(plan).strength
    return epsilon_words(plan) if told is None else told(plan)


def epsilon_words(plan: AnyPlan) -> str:
    largest = figure(float(plan.epsilon.max()))
    if plan.budget.min() == plan.budget.max():
        return f"epsilon is at most {largest}, of a budget of {span(plan.budget)}"
    return (
        f"every {plan.unit} has its own epsilon, the largest is {largest}; budgets are from "
        f"{span(plan.budget)}"
    )


def left_words(run: RunData, plan: AnyPlan) -> str:
    if run.done >= plan.rounds:
        return ""
    if run.stopped:
        return (
            f"The run stopped early, after {counted(run.done, 'round')} of {plan.rounds}, by its "
            "own rule; all planned rounds stay charged, since when it stopped shows what was "
            "released."
        )
    return f"So far {counted(run.done, 'round')} of {plan.rounds} are done."


# --- what it means --------------------------------------------------------------------------------


def meaning(run: RunData) -> Markup | None:
    """What the best membership test can do, by group and observer."""
    plan = run.plan
    if plan is None:
        return None
    try:
        if judge(run)[0] != "PASS":
            raise FedspendError("The plan did not verify, so its numbers mean nothing.")
        return tests(run, plan)
    except FedspendError as error:
        return element("p", str(error), class_="note")


def tests(run: RunData, plan: AnyPlan) -> Markup:
    grouping = group_clients(plan, run.labels, most=MOST_BUDGETS, bands=BANDS)
    central = run.settings.get("privacy.noise") in ("central", "discrete")
    subjects = [
        group(plan, label, members)
        for label, members in zip(grouping.labels, grouping.members, strict=True)
    ]
    seen = [sights(plan, one.schedule, central=central) for one in subjects]
    worst = max(seen, key=lambda one: one[0].curve.advantage)[0]
    rows: list[Sequence[Content]] = []
    for name, found in zip(group_words(grouping), seen, strict=True):
        first = not rows  # observers are introduced only once
        rows += [line(name if n == 0 else "", sight, first) for n, sight in enumerate(found)]
    head = ("group", "observer", "epsilon", *(f"at {percent(fpr)}" for fpr in FPRS), "best guess")
    sources = sorted({sight.curve.how for found in seen for sight in found})
    note = (
        f"Upper bounds, from {' and '.join(sources)} of the plan's own rounds; epsilon and delta "
        "alone would allow more. A group's numbers are those of its least protected member. Best "
        "guess: how often it is right if half took part. In bold: what the plan promises."
    )
    return join(
        element(
            "p",
            "Suppose somebody tries to find out, from everything that was released, whether one ",
            f"{plan.unit} took part. For the least protected group: ",
            accused_words(worst.curve, plan.unit),
            " ",
            guess_words(worst.curve),
        ),
        element(
            "p",
            f"The table shows the largest share of participating {plan.unit}s that such a test can "
            "recognise if it wrongly accuses 0.1%, 1%, 5%, 10% or 50% of the others.",
            class_="note lead",
        ),
        table(head, rows, words=2, class_="meaning"),
        element("p", note, class_="note"),
    )


def line(name: str, sight: Sight, introduced: bool) -> list[Content]:
    observer = [
        element("b", sight.observer) if sight.promised else sight.observer,
        element("span", sight.assumption, class_="note") if introduced else None,
    ]
    shares = [percent(one.tpr) for one in outcomes(sight.curve)]
    return [name, observer, figure(sight.epsilon), *shares, percent(sight.curve.accuracy)]
