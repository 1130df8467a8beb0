"""The spending plot: epsilon spent and noise by round and group (Figure 2 of Kiani et al. 2025).

Lines are the plan's own `spent_by_schedule` and noise multipliers. If clients of a group differ,
the line is their mean and the shading their range. Several plans differ by line style, and have two
more panels: the influence of each round, and what is left of its noise in the final model.
"""

from __future__ import annotations

import io
import warnings
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from fedspend.basics.arrays import FloatArray
from fedspend.basics.files import write_whole
from fedspend.basics.words import counted
from fedspend.planning.influence import TYPICAL, Course
from fedspend.planning.plan import Plan
from fedspend.planning.protocol import AnyPlan
from fedspend.report.groups import Grouping, GroupTracks, Track, group_clients, group_tracks
from fedspend.tasks.words import is_share

MOST_LINES = 9
WIDE_RANGE = 12  # above this ratio, small values vanish on a linear scale
# Okabe and Ito's colours, which people with any colour vision can tell apart, without yellow, which
# is too light for lines.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#222222", "#8C6D31")
STYLES: tuple[Any, ...] = (
    "-",
    (0, (1, 1.2)),
    (0, (5, 1.5, 1, 1.5)),
    (0, (8, 2)),
    (0, (3, 1, 1, 1, 1, 1)),
    (0, (2, 3)),
)
GREY = "#666666"
LOOK: dict[Any, Any] = {
    "font.family": "sans-serif",
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": "#999999",
    "axes.labelcolor": "#333333",
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#ececec",
    "grid.linewidth": 0.8,
    "svg.hashsalt": "fedspend",
}


def spending_plot(
    plans: Mapping[str, Plan] | Plan, path: str | Path, labels: Sequence[str] | None = None
) -> None:
    """Plot one plan, or several by name, as .png, .svg or .pdf; `labels` are clients' groups."""
    named = dict(plans) if isinstance(plans, Mapping) else {plans.policy: plans}
    with rc_context(LOOK), warnings.catch_warnings():
        # a letter that the font lacks is drawn as a box
        warnings.filterwarnings("ignore", message="Glyph .* missing from")
        write_figure(draw(named, labels), path)


def write_figure(figure: Figure, path: str | Path, description: str | None = None) -> None:
    """Save the figure whole, without a date: the same plan gives the same file. A .png or .svg may
    carry a description.
    """
    buffer = io.BytesIO()
    kind = Path(path).suffix.lower().removeprefix(".")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind, {})
    described = {} if description is None else {"Description": description}
    figure.savefig(buffer, format=kind, dpi=160, metadata=undated | described)
    write_whole(Path(path), buffer.getvalue())


def draw(plans: Mapping[str, Plan], labels: Sequence[str] | None) -> Figure:
    some = next(iter(plans.values()))
    grouping, note = few_groups(some, labels, len(plans))
    several = len(plans) > 1
    figure = Figure(
        figsize=(11.5, 9.0 if several else 5.0),
        layout=ConstrainedLayoutEngine(wspace=0.05, w_pad=0.08, h_pad=0.08),
    )
    panels = figure.subplots(2 if several else 1, 2, squeeze=False)
    left, right = panels[0]
    if several:
        draw_influence(panels[1, 0], panels[1, 1], plans)
    tracks = {name: group_tracks(plan, grouping) for name, plan in plans.items()}
    for style, groups in zip(STYLES, tracks.values(), strict=False):
        alike = len(groups) > 1 and all(
            np.array_equal(group.spent.mean, groups[0].spent.mean) for group in groups
        )
        for colour, group in (
            [("#444444", groups[0])] if alike else zip(COLOURS, groups, strict=False)
        ):
            line(left, group.spent, colour, style, first=0.0)
            line(right, group.noise, colour, style)
    groups = next(iter(tracks.values()))
    words = list(grouping.labels) if grouping.named else [f"ε {label}" for label in grouping.labels]
    mark_budgets(left, groups, some.rounds)
    finish_spent(left, groups, some, words)
    finish_noise(right, groups, some, words if len(plans) == 1 else [])
    mark_transition(left, plans)
    mark_transition(right, plans)
    legend(figure, list(plans))
    facts = (
        f"{counted(len(some.clients), 'client')}, {counted(some.rounds, 'round')}, "
        f"{' / '.join(plans)}{note}"
    )
    figure.suptitle(facts, x=0.01, ha="left", fontsize=10.5, color=GREY)
    return figure


def few_groups(plan: AnyPlan, labels: Sequence[str] | None, policies: int) -> tuple[Grouping, str]:
    """Few enough groups to read: bands, or for several plans the strictest and loosest group."""
    grouping = group_clients(plan, labels, most=min(len(COLOURS), MOST_LINES), bands=5)
    if policies > 1 and len(grouping.labels) * policies > MOST_LINES:
        names, members = grouping.labels, grouping.members
        ends = Grouping(
            (names[0], names[-1]), (members[0], members[-1]), grouping.named, grouping.banded
        )
        return ends, " (strictest and loosest group)"
    return grouping, " (bands of similar budget: mean and range)" if grouping.banded else ""


def line(axes: Axes, track: Track, colour: str, style: Any, first: float | None = None) -> None:
    """The mean by round, with the range behind it; `first` is the value before round 1."""
    head = [] if first is None else [first]
    rounds = np.arange(1 - len(head), len(track.mean) + 1)
    low, mean, high = (
        np.concatenate([head, values]) for values in (track.low, track.mean, track.high)
    )
    marker = "o" if len(rounds) < 3 else None
    axes.plot(
        rounds,
        mean,
        color=colour,
        linestyle=style,
        linewidth=2.1,
        marker=marker,
        solid_capstyle="round",
    )
    if np.any(high > low * (1 + 1e-6)):
        axes.fill_between(rounds, low, high, color=colour, alpha=0.13, linewidth=0)


def mark_budgets(axes: Axes, groups: Sequence[GroupTracks], rounds: int) -> None:
    for colour, group in zip(COLOURS, groups, strict=False):
        budget = group.budget.at(0)[1]
        axes.plot(
            [0, rounds],
            [budget, budget],
            color=colour,
            linestyle=(0, (4, 3)),
            linewidth=1.1,
            alpha=0.75,
        )


def finish_spent(
    axes: Axes, groups: Sequence[GroupTracks], plan: AnyPlan, words: Sequence[str]
) -> None:
    axes.set_title(
        "Privacy spent", loc="left", fontsize=14, fontweight="bold", color="#222222", pad=12
    )
    axes.set_xlabel("round")
    axes.set_ylabel(f"cumulative ε  (δ = {plan.delta:g})")
    low = min(float(group.budget.low[0]) for group in groups)
    high = max(float(group.budget.high[0]) for group in groups)
    if high > WIDE_RANGE * low:
        axes.set_yscale("log", nonpositive="mask")
        axes.set_xlim(1, max(plan.rounds, 2))
        spent = [float(group.spent.mean[0]) for group in groups]
        axes.set_ylim(min([low, *(value for value in spent if value > 0)]) / 1.5, high * 1.25)
    else:
        axes.set_xlim(0, plan.rounds)
        axes.set_ylim(0, high * 1.06)
    plain_ticks(axes)
    labels = [
        f"{name}\n{counted(group.clients, plan.unit)}"
        for name, group in zip(words, groups, strict=True)
    ]
    end_labels(
        axes, [float(group.budget.mean[0]) for group in groups], labels, plan.rounds, gap=0.095
    )


def draw_influence(left: Axes, right: Axes, plans: Mapping[str, Plan]) -> None:
    """What part of a push in each round is left at the end, and what that leaves of the noise."""
    influence, words = influence_of(plans)
    rounds = np.arange(1, influence.size + 1)
    marker = "o" if influence.size < 3 else None
    left.plot(rounds, influence, color="#444444", linewidth=2.1, marker=marker)
    panel(left, "Influence", f"left of a push at the end ({words})")
    base, totals = next(iter(plans.values())), {}
    for style, (name, plan) in zip(STYLES, plans.items(), strict=False):
        remains = influence * plan.noise_of_average
        totals[name] = float(np.sqrt((remains**2).sum()))
        label = f"{name}: {totals[name]:.3g} in all"
        right.plot(rounds, remains, "#444444", linestyle=style, linewidth=2.1, label=label)
    panel(right, "Left in the final model", "noise × influence")
    right.legend(frameon=False, fontsize=9, handlelength=2.8, labelcolor="#333333")
    for axes in (left, right):
        axes.set_xlim((1, base.rounds) if base.rounds > 1 else (0.5, 1.5))


def influence_of(plans: Mapping[str, Plan]) -> tuple[FloatArray, str]:
    """The influence that a plan assumed, or that of a typical contraction."""
    for plan in plans.values():
        expected = plan.parameters.get("expected")
        if isinstance(expected, Mapping):
            rho = expected.get("contraction", "measured") or expected.get("assumed")
            return np.array(expected["influence"]), (
                "measured" if rho == "measured" else f"contraction {rho:g}"
            )
    rounds = next(iter(plans.values())).rounds
    return Course(rounds).influence(TYPICAL), f"if the contraction is {TYPICAL:g}"


def panel(axes: Axes, title: str, what: str) -> None:
    axes.set_title(title, loc="left", fontsize=14, fontweight="bold", color="#222222", pad=12)
    axes.set_xlabel("round")
    axes.set_ylabel(what)
    axes.set_ylim(bottom=0)
    plain_ticks(axes)


def legend(figure: Figure, names: Sequence[str]) -> None:
    """What the line styles mean, under the panels and out of the way of the lines."""
    samples: list[tuple[Any, str]] = (
        list(zip(STYLES, names, strict=False)) if len(names) > 1 else [("-", "spent")]
    )
    handles = [
        Line2D([], [], color="#444444", linestyle=style, linewidth=2.1, label=name)
        for style, name in samples
    ]
    handles.append(
        Line2D([], [], color="#444444", linestyle=(0, (4, 3)), linewidth=1.1, label="budget")
    )
    figure.legend(
        handles=handles,
        loc="outside lower left",
        ncols=len(handles),
        frameon=False,
        handlelength=2.8,
        labelcolor="#333333",
    )


def finish_noise(
    axes: Axes, groups: Sequence[GroupTracks], plan: Plan, words: Sequence[str]
) -> None:
    axes.set_title(
        "Noise multiplier", loc="left", fontsize=14, fontweight="bold", color="#222222", pad=12
    )
    axes.set_xlabel("round")
    axes.set_ylabel("noise multiplier σ")
    axes.set_xlim((1, plan.rounds) if plan.rounds > 1 else (0.5, 1.5))
    low, high = axes.dataLim.intervaly
    if high > WIDE_RANGE * low:
        axes.set_yscale("log")
        axes.set_ylim(low / 1.2, high * 1.2)
    else:
        axes.set_ylim(0, high * 1.08)
    plain_ticks(axes)
    end_labels(
        axes, [float(group.noise.mean[-1]) for group in groups], words, plan.rounds, gap=0.05
    )


def plain_ticks(axes: Axes) -> None:
    """Whole rounds, and plain numbers on a logarithmic scale."""
    axes.xaxis.set_major_locator(MaxNLocator(integer=True, steps=[1, 2, 5, 10]))
    if axes.get_yscale() == "log":
        axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axes.yaxis.set_minor_formatter(NullFormatter())


def mark_transition(axes: Axes, plans: Mapping[str, AnyPlan]) -> None:
    """Mark the transition from saving to spending, if it is the same for all clients and plans."""
    changes: set[int] = set()
    for plan in plans.values():
        rates = plan.schedules.sampling_rate
        full = rates >= rates[-1] * (1 - 1e-12)
        begins = np.where(full.all(axis=0), 0, rates.shape[0] - np.argmin(full[::-1], axis=0))
        changes.update(int(start) for start in np.unique(begins) if start > 0)
    if len(changes) == 1:
        start = changes.pop() + 0.5  # between the last round that saves and the first that spends
        axes.axvline(start, color="#bbbbbb", linewidth=1.0, zorder=0.5)
        for side, word in ((-1, "saving"), (1, "spending")):
            axes.annotate(
                word,
                (start, 0.015),
                xycoords=("data", "axes fraction"),
                xytext=(5 * side, 0),
                textcoords="offset points",
                ha="right" if side < 0 else "left",
                va="bottom",
                fontsize=9,
                color=GREY,
                bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.75, "pad": 1},
            )


def end_labels(
    axes: Axes, values: Sequence[float], labels: Sequence[str], at: float, gap: float
) -> None:
    """Labels at the right ends of the lines, moved apart where they would overlap."""
    to_fraction = axes.transData + axes.transAxes.inverted()
    heights = [float(to_fraction.transform((at, value))[1]) for value in values]
    for height, label, colour in zip(moved_apart(heights, gap), labels, COLOURS, strict=False):
        axes.annotate(
            label,
            (1, height),
            xycoords="axes fraction",
            xytext=(7, 0),
            textcoords="offset points",
            va="center",
            color=colour,
            fontsize=10,
            fontweight="bold",
            annotation_clip=False,
            parse_math=False,  # a dollar sign in a group's name is a dollar sign
        )


def moved_apart(heights: Sequence[float], gap: float) -> list[float]:
    """The nearest heights in the same order that are `gap` apart, within 0 and 1 if they fit.

    >>> [round(h, 2) for h in moved_apart([0.5, 0.52, 0.9], 0.1)]
    [0.5, 0.6, 0.9]
    """
    order = sorted(range(len(heights)), key=lambda n: heights[n])
    placed = list(heights)
    for before, here in pairwise(order):
        placed[here] = max(placed[here], placed[before] + gap)
    overflow = max(placed) - 1.0
    if overflow > 0:
        placed[order[-1]] = 1.0
        for here, after in zip(order[-2::-1], order[:0:-1], strict=False):
            placed[here] = min(placed[here], placed[after] - gap)
    return placed


def metric_figure(curves: Mapping[str, FloatArray], metric: str) -> Figure:
    """The metric by round for each method: mean over seeds, with their range as a band.

    Curves are (seeds, rounds).
    """
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axes = figure.subplots()
    for colour, (name, values) in zip(COLOURS * len(curves), curves.items(), strict=False):
        rounds = np.arange(1, values.shape[1] + 1)
        axes.fill_between(
            rounds,
            values.min(axis=0),
            values.max(axis=0),
            color=colour,
            alpha=0.15,
            linewidth=0,
        )
        axes.plot(rounds, values.mean(axis=0), color=colour, linewidth=2, label=name)
    axes.set_xlabel("round")
    axes.set_ylabel(metric)
    if is_share(metric):
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.0%}"))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(frameon=False)
    return figure
