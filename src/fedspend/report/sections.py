"""The textual parts of a report: banner, key figures, settings."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from fedspend.basics.words import counted, span
from fedspend.configuration.sections import SECTIONS
from fedspend.report.certificate import judge, margin
from fedspend.report.groups import accountant_words
from fedspend.report.markup import Markup, element
from fedspend.report.panels import few_groups
from fedspend.report.pieces import figure, mark, percent, plain, power
from fedspend.report.round_words import OFF_BY
from fedspend.report.run_data import RunData
from fedspend.report.views import view_of
from fedspend.tasks.words import deviation_key, is_share, other_metrics, private_key, titled

MOST_NAMED = 4  # most groups named one by one if there is little room
NO_BREAK = "\N{NO-BREAK SPACE}"


# --- the top --------------------------------------------------------------------------------------


def banner(run: RunData) -> Markup:
    """What this run protects, before anything else."""
    kind, word, text = protection(run)
    return element("p", element("strong", word), " ", text, class_=f"banner {kind}", role="note")


def protection(run: RunData) -> tuple[str, str, str]:
    """Kind of run, a word for it, and a sentence. Only a verified real run is called private."""
    verdict, sentence = judge(run)
    if run.simulation:
        rest = (
            "It adds no noise, so a real run would not either."
            if run.plan is None
            else "The marks show what a real run may publish."
        )
        seeded = (
            "Noise and cohorts were drawn from a seed, and anyone who knows the seed can undo "
            "them: this run protects nobody."
        )
        return "simulation", "Simulation", f"{seeded} {rest}"
    if run.plan is None:
        return (
            "bare",
            "Not private",
            "This run added no noise and clipped nothing. Its models and numbers protect nobody.",
        )
    if verdict != "PASS":
        return (
            "bare",
            "Not verified",
            f"Do not rely on anything that this page says about privacy. {sentence}",
        )
    return "real", "Real run", view_of(run.plan).real_run


def facts(run: RunData) -> str:
    """One line: method, model, data, size and policy."""
    data, model = run.settings.get("data.name"), run.settings.get("model.name")
    method = run.method if run.plan is None else view_of(run.plan).method(run, run.plan)
    parts = [method + (f" with {model}" if model else "") + (f" on {data}" if data else "")]
    if run.plan is not None:
        parts += [*view_of(run.plan).sizes(run.plan), f"policy {run.plan.policy}"]
    parts.append(counted(run.rounds, "round"))
    return " · ".join(parts)


def tiles(run: RunData) -> Markup:
    """The key figures."""
    majority = (
        None
        if run.majority is None
        else f"always guessing the most common class: {percent(run.majority)}"
    )
    shown = [
        *exact_tiles(run, majority),
        (
            "Rounds",
            f"{run.done:,} of {run.rounds:,}",
            standing_of(run),
            "planned",
        ),
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


def standing_of(run: RunData) -> str:
    if run.done == run.rounds:
        return "complete"
    return "stopped early" if run.stopped else "in progress"


def exact_tiles(run: RunData, majority: str | None) -> list[tuple[str, str, str | None, str]]:
    """How good the model is, as far as that may be said."""
    metric = run.metric
    private, found = run.last(private_key(metric)), []
    if run.exact:
        others = other_metrics(run.metrics[-1]) if run.metrics else []
        names = [name for name in (metric, *others) if name != "loss"]
        found = [
            *((titled(name), run.said(name), majority, run.exact_mark) for name in names),
            ("Loss", figure(run.last("loss")), f"after round {run.kept_round}", run.exact_mark),
        ]
    if private is not None:
        off = run.last(deviation_key(metric))
        when = (
            "before the last round" if run.kept_round == run.done else "of the model that is kept"
        )
        note = when + ("" if off is None else f", ± {spread(metric, off)} ({OFF_BY})")
        shown = percent(min(1.0, max(0.0, private))) if is_share(metric) else figure(private)
        return [*found, (f"Private {metric}", shown, note, "release")]
    return found or [(titled(metric), "not shown", f"evaluation: {run.evaluation}", "planned")]


def spread(metric: str, off: float) -> str:
    """A deviation in the metric's unit."""
    return f"{100 * off:.1f} points" if is_share(metric) else f"{off:.2g}"


def spent(run: RunData, rounds: int | None = None) -> tuple[str, str]:
    """How much of the budgets is gone, as a range, and epsilon by group; after so many rounds, by
    default all that are charged.
    """
    grouping, _ = few_groups(run)
    assert run.plan is not None
    charged = run.charged if rounds is None else rounds
    now = run.plan.spent_by_schedule()[charged - 1][run.plan.schedules.of_client]
    if "ledger" in run.plan.parameters:
        return lifetime_spent(run, span(now))
    used = 100 * now / run.plan.budget
    low, high = f"{used.min():.0f}%", f"{used.max():.0f}%"
    part = low if low == high else f"{low} to {high}"
    if len(grouping.labels) > MOST_NAMED:
        return part, f"epsilon {span(now)}"
    words = []
    for label, members in zip(grouping.labels, grouping.members, strict=True):
        name = f"{label}: " if grouping.named else ""
        words.append(
            f"{name}{span(now[members])} of {span(run.plan.budget[members])}".replace(" ", NO_BREAK)
        )
    return part, ("" if grouping.named else f"ε{NO_BREAK}") + " · ".join(words)


def lifetime_spent(run: RunData, alone: str) -> tuple[str, str]:
    """What accounts have spent of lifetime budgets in all runs, as the run wrote it down."""
    assert run.plan is not None
    if not run.in_all_runs:
        return f"ε{NO_BREAK}{alone}", "in this run alone; the ledger has the total"
    told = np.array(list(run.metrics[-1]["epsilon"].values()))
    of = span(run.plan.budget)
    return f"ε{NO_BREAK}{span(told)}", f"of lifetime budgets {of}, in all runs so far"


# --- settings -------------------------------------------------------------------------------------


def settings(run: RunData) -> Markup:
    sections: dict[str, list[tuple[str, str]]] = {}
    for key, value in run.settings.items():
        section, _, name = key.rpartition(".")
        known = SECTIONS.get(section, {}).get(name)
        if known is not None and known.placed is not None:
            # a report may be passed on, so it does not say where files are
            value = Path(str(value)).name
        sections.setdefault(section or "run", []).append((name, plain(value)))
    sections["account"] = [(key, value) for key, value in run.account.items()]
    sections["environment"] = [(key, plain(value)) for key, value in run.environment.items()]
    if run.plan is not None:
        view = view_of(run.plan)
        sections["guarantee"] = [
            ("unit", view.protected),
            ("adjacency", "zero-out"),
            ("observer", view.observer),
            ("delta", power(run.plan.delta)),
            ("accountant", accountant_words(run.plan)),
        ]
        if run.voting:
            sections["guarantee"].append(("not protected", "the public rows that clients voted on"))
    blocks = [
        element(
            "div",
            element("h3", name),
            element(
                "dl", [[element("dt", key), element("dd", value)] for key, value in sections[name]]
            ),
        )
        for name in sorted(
            sections,
            key=lambda name: (
                name in ("run", "guarantee", "account", "environment"),
                name == "environment",
            ),
        )
        if sections[name]
    ]
    return element("div", blocks, class_="settings")
