"""Tables for `fedspend plan` and its comparison of policies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from rich import box
from rich.console import Console
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from fedspend.basics.words import counted
from fedspend.cli.terminal import console
from fedspend.planning.plan import Plan
from fedspend.planning.protocol import AnyPlan
from fedspend.report.groups import Grouping, GroupTracks, Track, group_tracks, landmarks, quarters

Column = tuple[str, list[str]]
# under tables of observers, some of which are about distributed noise
IF_CENTRAL = (
    "Rows about distributed noise do not apply to a run whose noise is central, as it is unless "
    "privacy.noise says otherwise."
)


def show_groups(out: Console, plan: Plan, grouping: Grouping) -> None:
    """One line per group of clients."""
    groups = group_tracks(plan, grouping)
    who = group_columns(groups, grouping)
    show = mean if grouping.banded else spread
    schedule = [
        *(
            (f"noise\nround {t}", [show(g.noise, t - 1) for g in groups])
            for t in landmarks(plan.rounds)
        ),
        ("rate", [change(g.rate, ".3g", show) for g in groups]),
        ("clip", [change(g.clip, "#.3g", show) for g in groups]),
    ]
    spending = [
        (f"spent\nround {t}", [show(g.spent, t - 1) for g in groups]) for t in quarters(plan.rounds)
    ]
    if "ledger" not in plan.parameters:  # with a ledger, past and plan together spend the budget
        spending.append(("unspent", [percent(g.unspent) for g in groups]))
    whole = table(who + schedule + spending)
    if Measurement.get(out, out.options.update(width=1000), whole).maximum <= out.width:
        out.print(whole)
    else:
        out.print(table(who + schedule), "", table(who + spending))
    out.print()
    if grouping.banded:
        out.print(
            Text(
                "Many budgets: clients are shown in bands of similar budgets. Noise, rate, clip "
                "and spent are means over a band.",
                style="dim",
            )
        )
    show_numbers(out, plan)


def show_numbers(out: Console, plan: Plan) -> None:
    """What a plan releases beside updates, which its noise covers too."""
    noises = {"clip bits": plan.bit_noise, "private metrics": plan.metric_noise}
    stated = [f"{name} (noise {noise:.4g} on their sum)" for name, noise in noises.items() if noise]
    if stated:
        out.print(Text(f"Noise is for updates and {' and '.join(stated)} together.", style="dim"))


def size(plan: AnyPlan) -> str:
    return f"{plan.who}, {counted(plan.rounds, 'round')}"


def short_hash(plan: AnyPlan) -> str:
    return plan.hash.rpartition(":")[2][:12]


def show_files(out: Console, output: str | None, saved: bool, plot: str | None) -> None:
    if plot is not None:
        out.print(Text(f"Plot: {plot}"))
    if output is None:
        out.print(
            Text(
                "Next: add --output plan.json to save this plan, then check it with fedspend "
                "verify plan.json",
                style="dim",
            )
        )
    else:
        out.print(
            Text(f"Plan: {output}" + ("" if saved else " (unchanged: it already holds this plan)"))
        )
        out.print(Text(f"Next: fedspend verify {output}", style="dim"))


def show_comparison(plans: dict[str, Plan], grouping: Grouping, plot: str | None) -> None:
    out = console()
    some = next(iter(plans.values()))
    shown, show = landmarks(some.rounds), mean if grouping.banded else spread
    out.print(Text.assemble(("compared    ", "bold"), f"{size(some)}, delta {some.delta:g}"))
    out.print()
    result = frame("policy", grouping.heading)
    for heading in (*(f"noise\nround {t}" for t in shown), "spent", "unspent"):
        result.add_column(heading, justify="right")
    average = frame("policy")
    for t in (1, some.rounds):
        average.add_column(f"noise of average\nround {t}", justify="right")
    for policy, plan in plans.items():
        for n, g in enumerate(group_tracks(plan, grouping)):
            noise = (show(g.noise, t - 1) for t in shown)
            result.add_row(
                Text(policy if n == 0 else "", style="bold"),
                Text(g.label),
                *noise,
                show(g.spent, -1),
                percent(g.unspent),
            )
        result.add_section()
        deviation = plan.noise_of_average
        average.add_row(Text(policy, style="bold"), figures(deviation[0]), figures(deviation[-1]))
    out.print(result, "", average, "", sep="\n")
    out.print(
        Text(
            "Noise of average: standard deviation of the noise in each coordinate of the averaged "
            "update.",
            style="dim",
        )
    )
    if plot is not None:
        out.print(Text(f"Plot: {plot}"))
    out.print(
        Text("Next: save one of them with fedspend plan --policy ... --output ...", style="dim")
    )


# --- building blocks ------------------------------------------------------------------------------


def group_columns(groups: Sequence[GroupTracks], grouping: Grouping) -> list[Column]:
    budgets = [spread(g.budget, 0, ".4g") for g in groups]
    labels = [g.label for g in groups]
    named: list[Column] = [("group", labels)] if grouping.named else []
    return [*named, ("budget", budgets), ("clients", [f"{g.clients:,}" for g in groups])]


def table(columns: Sequence[Column]) -> Table:
    result = frame()
    for heading, _ in columns:
        result.add_column(heading, justify="left" if heading in ("group", "client") else "right")
    for row in zip(*(cells for _, cells in columns), strict=True):
        result.add_row(*(Text(cell) for cell in row))
    return result


def frame(*left: str) -> Table:
    result = Table(box=box.SIMPLE_HEAD, header_style="bold", show_edge=False, padding=(0, 0, 0, 1))
    for heading in left:
        result.add_column(heading, overflow="fold")
    return result


def spread(track: Track, index: int, form: str = "#.4g") -> str:
    """One number if the group's clients agree in the digits shown, else their range."""
    low, _, high = (figures(value, form) for value in track.at(index))
    return low if low == high else f"{low}–{high}"


def mean(track: Track, index: int, form: str = "#.4g") -> str:
    return figures(track.at(index)[1], form)


def figures(value: float, form: str = "#.4g") -> str:
    """A number with its trailing zeros, so that columns line up, but no bare decimal point."""
    return format(value, form).rstrip(".")


def change(track: Track, form: str, show: Callable[[Track, int, str], str]) -> str:
    start, end = show(track, 0, form), show(track, -1, form)
    return start if start == end else f"{start} → {end}"


def percent(track: Track) -> str:
    """A share as a percentage. Tiny amounts are left over from rounding to the safe side."""
    low, _, high = (f"{max(0.0, value) * 100:.2f}" for value in track.at(0))
    return f"{low}%" if low == high else f"{low}–{high}%"
