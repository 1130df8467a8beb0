"""The parts of a report that are words and tables: banner, key figures, certificate, observers, settings."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from fedspend.report.groups import budget_label, counted
from fedspend.report.markup import Content, Markup, element
from fedspend.report.panels import MARKS, few_groups
from fedspend.report.run_data import RunData, number, power

MOST_BUDGETS = 6  # columns of budgets that an observer's row has room for
MOST_NAMED = 4  # groups that are named one by one where there is little room
NO_BREAK = "\N{NO-BREAK SPACE}"


def mark(kind: str) -> Markup:
    return element("span", MARKS[kind], class_=f"mark {kind}")


def table(head: Sequence[str], rows: Sequence[Sequence[Content]], *, words: int = 1, class_: str | None = None) -> Markup:
    """A table that scrolls by itself where it is too wide; all but the first `words` columns are numbers."""

    def cells(tag: str, row: Sequence[Content]) -> list[Markup]:
        return [element(tag, cell, class_=None if n < words else "n") for n, cell in enumerate(row)]

    body = [element("tr", cells("td", row)) for row in rows]
    inner = element("table", element("thead", element("tr", cells("th", head))), element("tbody", body), class_=class_)
    return element("div", inner, class_="scroll", tabindex=0)


# --- the top --------------------------------------------------------------------------------------------------------------------


def banner(run: RunData) -> Markup:
    """What this run protects, before anything else."""
    verdict, sentence = judge(run)
    if run.simulation:
        kind, word, text = (
            "simulation",
            "Simulation",
            (
                "Noise and cohorts were drawn from a seed, and who knows the seed can undo them: this run protects nobody. "
                + (
                    "It adds no noise, so a real run would not either."
                    if run.plan is None
                    else "The marks say what a real run may show."
                )
            ),
        )
    elif run.plan is None:
        kind, word, text = (
            "bare",
            "Not private",
            "This run added no noise and clipped nothing. Its models and numbers protect nobody.",
        )
    elif verdict != "PASS":
        kind, word, text = "bare", "Not verified", f"Rely on nothing that this page says about privacy. {sentence}"
    else:
        kind, word, text = (
            "real",
            "Real run",
            (
                "Noise and cohorts were drawn from the operating system's randomness. The budgets hold against other clients and the "
                "public as long as nobody learns who took part. This page shows the clients' budgets: ask before you publish it."
            ),
        )
    return element("p", element("strong", word), " ", text, class_=f"banner {kind}", role="note")


def facts(run: RunData) -> str:
    """One line: what was trained on what."""
    data, model = run.settings.get("data.name"), run.settings.get("model.name")
    parts = [run.method + (f" with {model}" if model else "") + (f" on {data}" if data else "")]
    if run.plan is not None:
        parts += [counted(len(run.plan.clients), "client"), f"policy {run.plan.policy}"]
    parts.append(counted(run.rounds, "round"))
    return " · ".join(parts)


def tiles(run: RunData) -> Markup:
    """The figures that people look for first."""
    learned = "simulation" if run.plan is None else "release"
    majority = None if run.majority is None else f"commonest class alone {percent(run.majority)}"
    shown = [
        ("Accuracy", percent(run.last("accuracy")), majority, learned),
        ("Loss", figure(run.last("loss")), f"after round {run.done}", learned),
        ("Rounds", f"{run.done:,} of {run.rounds:,}", "in progress" if run.done < run.rounds else "complete", "planned"),
    ]
    if run.plan is None:
        shown.append(("Privacy", "none", "no noise, no clip, no budget", "simulation"))
    else:
        verdict, _ = judge(run)
        shown.append(("Privacy spent", *spent(run), "planned"))
        shown.append(("Certificate", verdict, margin(run), "planned"))
    items = [
        element(
            "div",
            element("dt", name),
            element("dd", value, class_="value"),
            element("dd", note, class_="note") if note else None,
            element("dd", mark(kind)),
        )
        for name, value, note, kind in shown
    ]
    return element("dl", items, class_="tiles")


def spent(run: RunData) -> tuple[str, str]:
    """How much of the budgets is gone, as a range, and epsilon by group."""
    grouping, _ = few_groups(run)
    assert run.plan is not None
    now = run.plan.spent_by_schedule()[run.done - 1][run.plan.schedules.of_client]
    used = 100 * now / run.plan.budget
    low, high = f"{used.min():.0f}%", f"{used.max():.0f}%"
    part = low if low == high else f"{low} to {high}"
    if len(grouping.labels) > MOST_NAMED:
        return part, f"epsilon {budget_label(now)}"
    words = []
    for label, members in zip(grouping.labels, grouping.members, strict=True):
        name = f"{label}: " if grouping.named else ""
        words.append(f"{name}{budget_label(now[members])} of {budget_label(run.plan.budget[members])}".replace(" ", NO_BREAK))
    return part, ("" if grouping.named else f"ε{NO_BREAK}") + " · ".join(words)


# --- the certificate ------------------------------------------------------------------------------------------------------------


def judge(run: RunData) -> tuple[str, str]:
    """PASS, FAIL or NONE, and a sentence."""
    found = run.certificate
    if run.plan is None:
        return "NONE", "There is no plan to verify: this method promises nothing."
    if found is None:
        return "NONE", "There is no certificate.json in this run: nothing has checked its plan. Run fedspend verify on plan.json."
    if found.get("plan_hash") != run.plan.hash:
        return "FAIL", "The certificate belongs to another plan. Run fedspend verify on plan.json."
    if found.get("ok") is not True:
        return "FAIL", "The plan does not keep its promise; see the failures."
    return "PASS", "An independent accountant reproduced every claim and found it within its budget."


def margin(run: RunData) -> str | None:
    value = number((run.certificate or {}).get("worst_margin"))
    return None if value is None else f"worst margin {100 * value:.2f}%"


def certificate(run: RunData) -> Markup:
    verdict, sentence = judge(run)
    found = run.certificate or {}
    head = element("p", element("strong", verdict, class_=f"verdict {verdict.lower()}"), " ", sentence, class_="judgement")
    if run.certificate is None or run.plan is None:
        return head
    rows = []
    for check in objects(found.get("checks")):
        by = "" if check.get("accountant") == "none" else f", by {check.get('accountant')}"
        rows.append(
            (
                [str(check.get("name")), element("span", f"{check.get('meaning')}{by}", class_="note")],
                figure(number(check.get("worst"))),
                "pass" if check.get("passed") is True else element("b", "FAIL", class_="fail"),
            )
        )
    looked, whole = number(found.get("pld_schedules")) or 0, number(found.get("schedules")) or 0
    how = f"over {looked:,.0f} of {whole:,.0f} distinct schedules"
    text = f"{(margin(run) or 'no margin').capitalize()}: the smallest 1 − PLD epsilon / budget, {how}. Plan {run.plan.hash[7:19]}."
    failures = found.get("failures")
    listed = [element("li", str(one)) for one in failures] if isinstance(failures, list) else []
    return Markup(
        head
        + element("p", text, class_="note")
        + (element("ul", listed, class_="failures") if listed else "")
        + table(("check", "worst", "result"), rows, class_="checks")
    )


def observers(run: RunData) -> Markup:
    """Epsilon against each kind of observer; only the first line is a promise."""
    if run.plan is None:
        text = "No noise was added: whoever sees the models may learn from them whatever they hold about a client."
        return element("p", text, class_="note")
    found = objects((run.certificate or {}).get("observers"))
    if not found:
        return element("p", "The certificate lists no observers.", class_="note")
    budgets = [pair[0] for pair in pairs(found[0])]
    by_budget = 0 < len(budgets) <= MOST_BUDGETS
    heads = [f"budget {budget:.4g}" for budget in budgets] if by_budget else ["smallest", "median", "largest"]
    central = run.settings.get("privacy.noise") == "central"
    rows: list[Sequence[Content]] = []
    for n, one in enumerate(found):
        values = [pair[1] for pair in pairs(one)] if by_budget else [number(one.get(key)) for key in heads]
        who, assumption = str(one.get("name")), str(one.get("assumption"))
        applies = not (central and assumption.startswith("distributed noise"))
        name = element("b", "promised: " + who) if n == 0 else who if applies else element("span", who, class_="faint")
        note = None if applies else " (not this run: its noise is central)"
        cell = [name, element("span", assumption, note, class_="note")]
        rows.append([cell, *(element("span", figure(value), class_=None if applies else "faint") for value in values)])
    text = "Only the first line is what the plan promises. The others say what is lost when its assumption fails."
    return Markup(table(("epsilon against", *heads), rows, class_="observers") + element("p", text, class_="note"))


# --- settings -------------------------------------------------------------------------------------------------------------------


def settings(run: RunData) -> Markup:
    sections: dict[str, list[tuple[str, str]]] = {}
    for key, value in run.settings.items():
        section, _, name = key.rpartition(".")
        sections.setdefault(section or "run", []).append((name, plain(value)))
    sections["environment"] = [(key, plain(value)) for key, value in run.environment.items()]
    if run.plan is not None:
        sections["guarantee"] = [
            ("unit", "one client, with everything it holds"),
            ("adjacency", "zero-out"),
            ("observer", "other clients and the public; participation hidden"),
            ("delta", power(run.plan.delta)),
            ("accountant", run.plan.accountant),
        ]
    blocks = [
        element(
            "div", element("h3", name), element("dl", [[element("dt", key), element("dd", value)] for key, value in sections[name]])
        )
        for name in sorted(sections, key=lambda name: (name in ("run", "guarantee", "environment"), name == "environment"))
        if sections[name]
    ]
    return element("div", blocks, class_="settings")


# --- words for values -----------------------------------------------------------------------------------------------------------


def plain(value: Any) -> str:
    """A setting as people write it.

    >>> plain([{"epsilon": 10.0, "share": 0.5}, {"epsilon": 20.0}]), plain(True), plain([1, 2]), plain(None)
    ('epsilon 10, share 0.5; epsilon 20', 'yes', '1, 2', 'none')
    """
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(one)}" for key, one in value.items())
    if isinstance(value, list):
        between = "; " if any(isinstance(one, dict) for one in value) else ", "
        return between.join(plain(one) for one in value)
    if isinstance(value, bool) or value is None:
        return {True: "yes", False: "no", None: "none"}[value]
    if isinstance(value, float):
        return power(value)
    return value if isinstance(value, str) else json.dumps(value)


def percent(value: float | None) -> str:
    return "—" if value is None else f"{100 * value:.1f}%"


def figure(value: float | None) -> str:
    """
    >>> figure(9.99999999), figure(None), figure(0.0), figure(1489.2), figure(12345.6)
    ('10.00', '—', '0', '1489', '12346')
    """
    if value is None:
        return "—"
    if value == 0 or abs(value) >= 1000:
        return f"{value:.0f}" if abs(value) < 1e6 else f"{value:.3g}"
    return f"{value:#.4g}".rstrip(".") if abs(value) >= 1e-4 else f"{value:.1e}"


def objects(value: Any) -> list[dict[str, Any]]:
    return [one for one in value if isinstance(one, dict)] if isinstance(value, list) else []


def pairs(observer: dict[str, Any]) -> list[tuple[float, float | None]]:
    """The (budget, epsilon) pairs of an observer."""
    listed = observer.get("by_budget")
    listed = listed if isinstance(listed, list) else []
    whole = [(number(one[0]), number(one[1])) for one in listed if isinstance(one, list) and len(one) == 2]
    return [(budget, epsilon) for budget, epsilon in whole if budget is not None]
