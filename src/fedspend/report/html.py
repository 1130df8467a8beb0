"""The HTML report about one run or several: one file that opens offline and loads nothing.

Guarantee: the page says first whether the run protected anybody, and every chart and number is
marked as planned, as a private release, or as something that only a simulation may show. The page's
content security policy forbids every request, and every script but ours. The same run gives the
same file on the same day.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedspend.basics.files import write_whole
from fedspend.basics.json_values import number
from fedspend.report import certificate, in_words, panels, sections
from fedspend.report.charts import COLOURS, LONGEST_LABEL, Chart, Reference, Series, draw
from fedspend.report.dates import Dates, dates_of
from fedspend.report.markup import Markup, element, join
from fedspend.report.page import asset, document
from fedspend.report.panels import Panel, rounds_shown
from fedspend.report.pieces import (
    EXPLAINED,
    MARKS,
    MOST_BUDGETS,
    figure,
    mark,
    percent,
    power,
    table,
)
from fedspend.report.run_data import RunData, load_runs
from fedspend.report.views import schedule
from fedspend.stored.files import REPORT
from fedspend.stored.run import EPSILON_OF, IN_ALL_RUNS
from fedspend.tasks.words import ACCURACY, is_share, private_key, titled


def write_report(runs: Sequence[Path], output: Path) -> None:
    """Read the run directories and write the page, whole or not at all."""
    found = load_runs(runs)
    write_page(render(found, dates_of(runs, [run.name for run in found])), output)


def write_page(page: str, output: Path) -> None:
    # what cannot be encoded becomes a question mark
    write_whole(output, page.encode("utf-8", "replace"), private=REPORT.private)


def render(runs: Sequence[RunData], dates: Dates | None = None) -> str:
    """The page; without `dates` it mentions no dates."""
    title = runs[0].name if len(runs) == 1 else f"{len(runs)} runs compared"
    body = element("main", details(runs, dates))
    style, script = (asset("fedspend.report", name) for name in ("report.css", "report.js"))
    return document(title, body, style=style, script=script)


def details(runs: Sequence[RunData], dates: Dates | None = None) -> Markup:
    """The content of the page."""
    return single(runs[0], dates) if len(runs) == 1 else several(runs, dates)


# --- one run --------------------------------------------------------------------------------------


def single(run: RunData, dates: Dates | None = None) -> Markup:
    return join(
        element(
            "header",
            element("p", "fedspend · run", class_="brand"),
            element("h1", run.name),
            element("p", sections.facts(run)),
            dated(dates, run.name),
        ),
        sections.banner(run),
        in_words.guarantee(run),
        legend_of_marks(),
        details_of(run),
    )


def dated(dates: Dates | None, *names: str) -> Markup | None:
    """When the runs began, if known, and when the page was written."""
    if dates is None:
        return None
    known = sorted({dates.begun[name] for name in names if name in dates.begun})
    begun = f"Begun {' to '.join(dict.fromkeys((known[0], known[-1])))}" if known else "Undated run"
    return element("p", f"{begun} · report of {dates.written}", class_="dated")


def legend_of_marks() -> Markup:
    """What the marks mean, said once; beside a number there is only the mark."""
    entries = [element("li", mark(kind), f": {EXPLAINED[kind]}") for kind in MARKS]
    return element("ul", entries, class_="marks", aria_label="Marks")


def details_of(run: RunData) -> Markup:
    """Everything about one run."""
    wrong = run.disagreement()
    return join(
        element(
            "p",
            wrong,
            " One of the two files has been altered.",
            class_="banner bare",
            role="alert",
        )
        if wrong
        else None,
        sections.tiles(run),
        section("Learning", panels.learning(run)),
        section("Privacy", panels.spending(run), beside=verified(run)),
        section("Schedule", schedule(run)),
        section("Inside the votes" if run.voting else "Inside the updates", panels.updates(run)),
        element(
            "section",
            element("h2", "What each observer could learn"),
            planned_mark(run),
            certificate.observers(run),
        ),
        explained(run),
        element("section", element("h2", "Settings"), sections.settings(run)),
    )


def explained(run: RunData) -> Markup | None:
    found = in_words.meaning(run)
    if found is None:
        return None
    heading = element("h2", "What epsilon means")
    return element("section", heading, planned_mark(run), found, id=in_words.MEANING)


def verified(run: RunData) -> Markup:
    return element(
        "div",
        element("h3", "Certificate"),
        planned_mark(run),
        certificate.certificate(run),
        class_="beside",
    )


def planned_mark(run: RunData) -> Markup | None:
    return None if run.plan is None else element("p", mark("planned"), class_="under")


def section(title: str, shown: Sequence[Panel], beside: Markup | None = None) -> Markup | None:
    if not shown and beside is None:
        return None
    return element(
        "section",
        element("h2", title),
        element("div", [figure_of(panel) for panel in shown], beside, class_="grid"),
    )


def figure_of(panel: Panel, broad: bool = False) -> Markup:
    chart = panel.chart
    longest = max(len(one.label) for one in chart.series) if len(chart.series) > 1 else 0
    drawn = (
        element(
            "p", f"Nothing to draw: no round has a finite {panel.title.lower()}.", class_="note"
        )
        if chart.empty
        else draw(chart, broad)
    )
    whole = element(  # paper may break before the numbers, and nowhere else
        "div",
        element("h3", panel.title),
        element("p", mark(panel.mark), class_="under"),
        legend_of(chart, spare=not broad and longest <= LONGEST_LABEL["wide"])
        if broad or longest > LONGEST_LABEL["narrow"]
        else None,
        element("div", drawn, class_="canvas"),
        element("figcaption", panel.caption) if panel.caption else None,
        class_="whole",
    )
    return element(
        "figure",
        whole,
        numbers(chart),
        class_="broad" if broad else None,
        data_mark=panel.mark,
    )


def legend_of(chart: Chart, spare: bool) -> Markup:
    """Full names. A `spare` legend is shown only if the names beside the lines are cut."""
    entries = [
        element(
            "li",
            element("span", class_=f"swatch s{one.colour}" + (" dashed" if one.dashed else "")),
            one.label,
        )
        for one in chart.series
    ]
    return element("ul", entries, class_="legend spare" if spare else "legend")


def numbers(chart: Chart) -> Markup:
    """The table behind a chart; the script reads its rows to show values under the pointer."""
    names = [one.label for one in chart.series]
    rows = [
        [
            str(t),
            *(
                "—" if (value := one.values[n]) is None else chart.show(value)
                for one in chart.series
            ),
        ]
        for n, t in enumerate(chart.x)
    ]
    return element(
        "details",
        element("summary", "Numbers"),
        table((chart.unit, *names), rows),
        class_="numbers",
    )


# --- several runs ---------------------------------------------------------------------------------


def several(runs: Sequence[RunData], dates: Dates | None = None) -> Markup:
    return join(
        element(
            "header",
            element("p", "fedspend · comparison", class_="brand"),
            element("h1", f"{len(runs)} runs compared"),
            dated(dates, *(run.name for run in runs)),
        ),
        mixed_banner(runs),
        legend_of_marks(),
        element(
            "section",
            element("h2", "Accuracy"),
            figure_of(overlay(runs), broad=True),
            class_="first",
        ),
        element("section", element("h2", "Side by side"), comparison(runs)),
        element("section", element("h2", "Run by run"), [folded(run) for run in runs]),
    )


def mixed_banner(runs: Sequence[RunData]) -> Markup:
    simulations = sum(run.simulation for run in runs)
    text = (
        f"{simulations} of these {len(runs)} runs are simulations: their randomness came from a "
        "seed, so they protect nobody."
        if simulations
        else "None of these runs is a simulation."
    )
    if simulations < len(runs):
        text += (
            " Real runs on the same clients share their budgets; this page does not combine them."
        )
    word, kind = ("Simulation", "simulation") if simulations else ("Real runs", "real")
    return element("p", element("strong", word), " ", text, class_=f"banner {kind}", role="note")


def overlay(runs: Sequence[RunData]) -> Panel:
    x = rounds_shown(max(run.done for run in runs))
    metric = runs[0].metric
    lines = []
    for n, run in enumerate(runs):
        found = {line["round"]: number(line.get(metric)) for line in run.metrics}
        lines.append(
            Series(
                run.name,
                tuple(found.get(t) for t in x),
                n % COLOURS + 1,
                dashed=n // COLOURS % 2 == 1,
            )
        )
    shares = {run.majority for run in runs if run.majority is not None}
    references = (
        tuple(Reference(share, f"most common class {percent(share)}") for share in shares)
        if len(shares) == 1 and metric == ACCURACY
        else ()
    )
    private = all(run.exact_mark == "public" for run in runs)
    name, share = titled(metric), is_share(metric)
    chart = Chart(name, metric, x, tuple(lines), references, percent=share, zero=False)
    note = "Measured on public evaluation rows."
    if not private:
        note = (
            "Runs without a plan are not private, nor are numbers measured on rows of clients: "
            "only simulations may show this."
        )
    return Panel(f"{name} by round", "public" if private else "simulation", chart, note)


def comparison(runs: Sequence[RunData]) -> Markup:
    head = (
        "run",
        runs[0].metric,
        "loss",
        "rounds",
        "budgets",
        "delta",
        "method",
        "policy",
        "randomness",
        "certificate",
    )
    rows = [
        (
            element("b", run.name),
            run.said(runs[0].metric),
            figure(run.last("loss")),
            f"{run.done} of {run.rounds}",
            budgets(run),
            "—" if run.plan is None else power(run.plan.delta),
            run.method,
            "—" if run.plan is None else run.plan.policy,
            "seeded" if run.simulation else "os",
            certificate.judge(run)[0],
        )
        for run in runs
    ]
    bare = (
        [" For runs without a plan, or on rows of clients: ", mark("simulation")]
        if any(run.exact_mark != "public" for run in runs)
        else None
    )
    marks = element(
        "p",
        "Accuracy and loss: ",
        mark("public"),
        bare,
        " The rest: ",
        mark("planned"),
        class_="marks",
    )
    return join(marks, table(head, rows, words=len(head), class_="comparison"))


def budgets(run: RunData) -> str:
    """Every budget if there are few, else the range."""
    if run.plan is None:
        return "none"
    distinct = sorted(set(run.plan.budget.tolist()))
    if len(distinct) <= MOST_BUDGETS:
        return " / ".join(f"{value:.4g}" for value in distinct)
    return f"{distinct[0]:.4g} to {distinct[-1]:.4g}"


def folded(run: RunData) -> Markup:
    title = element(
        "summary", element("b", run.name), " ", element("span", sections.facts(run), class_="note")
    )
    return element(
        "details",
        title,
        sections.banner(run),
        in_words.guarantee(run),
        details_of(run),
        class_="run",
    )


def summary(run: RunData) -> dict[str, Any]:
    """A run's key numbers, for `fedspend report --json`."""
    return {
        "run": run.name,
        "method": run.method,
        "policy": None if run.plan is None else run.plan.policy,
        "simulation": run.simulation,
        "rounds": run.rounds,
        "done": run.done,
        "epsilon": run.metrics[-1].get("epsilon"),
        **({EPSILON_OF: IN_ALL_RUNS} if run.in_all_runs else {}),
        run.metric: run.last(run.metric),
        "loss": run.last("loss"),
        "evaluation": run.evaluation,
        private_key(run.metric): run.last(private_key(run.metric)),
        "majority": run.majority,
        "delta": None if run.plan is None else run.plan.delta,
        "budgets": [] if run.plan is None else sorted(set(run.plan.budget.tolist())),
        "certificate": certificate.judge(run)[0],
    }
