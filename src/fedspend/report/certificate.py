"""The certificate of a run: its verdict, the checks behind it, and what observers could learn.

Guarantee: a certificate that is missing, or that belongs to another plan, never reads as a pass.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedspend.basics.json_values import number
from fedspend.basics.words import counted
from fedspend.report.markup import Content, Markup, element, join
from fedspend.report.pieces import MOST_BUDGETS, figure, table
from fedspend.report.run_data import RunData
from fedspend.stored.files import CERTIFICATE, PLAN
from fedspend.stored.run import NOISE_DRAWN, WHOLE_NUMBERS

# What a check proves, for a reader who does not care how. The others are for experts alone.
PLAIN = {
    "well formed": "Every number of the plan is in its range.",
    "claim within budget": "Nobody is charged more than their budget.",
    "claim reproduced": "Accountants that share no code with the planner find the same epsilons.",
    "claim not too low": "Accountants that share no code with the planner find no more than is "
    "claimed.",
    "PLD within budget": "Another kind of accounting, privacy loss distributions, finds everybody "
    "within budget.",
    "left out means nothing spent": "Whoever is left out spends nothing.",
    "bits and metrics paid": "The bits and metrics that clients send are paid for, too.",
    "clip norms match noise": "Every clip fits its noise.",
}
# by the number of observers that the plan's promise covers
PROMISED = {1: "Only the first line is", 2: "The first two lines are"}


def judge(run: RunData) -> tuple[str, str]:
    """PASS, FAIL or NONE, and a sentence that explains it."""
    found = run.certificate
    if run.plan is None:
        return "NONE", "There is no plan to verify: this method promises nothing."
    if found is None:
        return (
            "NONE",
            f"There is no {CERTIFICATE} in this run, so its plan was not checked. Run fedspend "
            f"verify on {PLAN}.",
        )
    if found.get("plan_hash") != run.plan.hash:
        return "FAIL", f"The certificate belongs to another plan. Run fedspend verify on {PLAN}."
    if found.get("ok") is not True:
        return "FAIL", "The plan did not verify; see the failures."
    return (
        "PASS",
        "An independent accountant reproduced every claim and found it within its budget.",
    )


def margin(run: RunData) -> str | None:
    value = number((run.certificate or {}).get("worst_margin"))
    return None if value is None else f"worst margin {100 * value:.2f}%"


def certificate(run: RunData) -> Markup:
    verdict, sentence = judge(run)
    found = run.certificate or {}
    head = element(
        "p",
        element("strong", verdict, class_=f"verdict {verdict.lower()}"),
        " ",
        sentence,
        class_="judgement",
    )
    if run.certificate is None or run.plan is None:
        return head
    checks, rows = objects(found.get("checks")), []
    for check in checks:
        by = "" if check.get("accountant") == "none" else f", by {check.get('accountant')}"
        rows.append(
            (
                [
                    str(check.get("name")),
                    element("span", f"{check.get('meaning')}{by}", class_="note"),
                ],
                figure(number(check.get("worst"))),
                "pass" if check.get("passed") is True else element("b", "FAIL", class_="fail"),
            )
        )
    looked, whole = number(found.get("pld_schedules")) or 0, number(found.get("schedules")) or 0
    how = f"over {looked:,.0f} of {whole:,.0f} distinct schedules"
    text = (
        f"{(margin(run) or 'no margin').capitalize()}: the smallest 1 − PLD epsilon / budget, "
        f"{how}. {exactness(run)}Plan {run.plan.hash[7:19]}."
    )
    failures = found.get("failures")
    listed = [element("li", str(one)) for one in failures] if isinstance(failures, list) else []
    warned = found.get("warnings")
    return join(
        head,
        in_plain_words(checks),
        *(
            element("p", f"Warning: {one}.", class_="note")
            for one in (warned if isinstance(warned, list) else [])
        ),
        element("ul", listed, class_="failures") if listed else None,
        element(
            "details",
            element("summary", f"All {counted(len(rows), 'check')}, for experts"),
            element("p", text, class_="note"),
            table(("check", "worst", "result"), rows, class_="checks"),
            class_="technical",
        ),
    )


def in_plain_words(checks: Sequence[dict[str, Any]]) -> Markup:
    """What the checks prove, each said once; one that failed is always named."""
    passed: dict[str, bool] = {}
    for check in checks:
        name, good = str(check.get("name")), check.get("passed") is True
        if name in PLAIN or not good:
            passed[name] = passed.get(name, True) and good
    lines = [
        element("li", element("span", "✓ ", class_="pass", aria_hidden="true"), PLAIN[name])
        if good
        else element("li", element("b", "✗ FAIL: ", class_="fail"), name)
        for name, good in passed.items()
    ]
    return element("ul", lines, class_="plain")


def exactness(run: RunData) -> str:
    """What floating point adds to the guarantee; nothing is said of runs that did not record it."""
    drawn = run.environment.get(NOISE_DRAWN)
    if drawn == WHOLE_NUMBERS:
        return (
            "Noise is drawn in whole numbers of a public step: floating point adds nothing to "
            "delta. "
        )
    if drawn is None:
        return ""
    return "Noise is drawn in floating point, as in a simulation. "


def observers(run: RunData) -> Markup:
    """Epsilon against each observer. The first line is promised; for records, the first two are."""
    if run.plan is None:
        text = (
            "No noise was added: anyone who sees the models may learn whatever they reveal about a "
            "client."
        )
        return element("p", text, class_="note")
    found = objects((run.certificate or {}).get("observers"))
    if not found:
        return element("p", "The certificate lists no observers.", class_="note")
    budgets = [pair[0] for pair in pairs(found[0])]
    by_budget = 0 < len(budgets) <= MOST_BUDGETS
    heads = (
        [f"budget {budget:.4g}" for budget in budgets]
        if by_budget
        else ["smallest", "median", "largest"]
    )
    central = run.settings.get("privacy.noise") in ("central", "discrete")
    promises = run.plan.promised_observers
    rows: list[Sequence[Content]] = []
    for n, one in enumerate(found):
        values = (
            [pair[1] for pair in pairs(one)]
            if by_budget
            else [number(one.get(key)) for key in heads]
        )
        who, assumption = str(one.get("name")), str(one.get("assumption"))
        applies = not (central and assumption.startswith("distributed noise"))
        name = (
            element("b", "promised: " + who)
            if n < promises
            else who
            if applies
            else element("span", who, class_="faint")
        )
        note = None if applies else " (not this run: its noise is central)"
        cell = [name, element("span", assumption, note, class_="note")]
        rows.append(
            [
                cell,
                *(
                    element("span", figure(value), class_=None if applies else "faint")
                    for value in values
                ),
            ]
        )
    text = (
        f"{PROMISED[promises]} what the plan promises. The others show what is lost when its "
        "assumption fails."
    )
    return join(
        table(("epsilon against", *heads), rows, class_="observers"),
        element("p", text, class_="note"),
    )


def objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def pairs(observer: dict[str, Any]) -> list[tuple[float, float | None]]:
    """The (budget, epsilon) pairs of an observer."""
    listed = observer.get("by_budget")
    listed = listed if isinstance(listed, list) else []
    whole = [
        (number(one[0]), number(one[1]))
        for one in listed
        if isinstance(one, list) and len(one) == 2
    ]
    return [(budget, epsilon) for budget, epsilon in whole if budget is not None]
