"""Plots for records: epsilon by rate (Figure 5), the choice of noise (Figure 6), and a plan."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, NullFormatter

from fedspend.basics.arrays import FloatArray
from fedspend.basics.files import write_whole
from fedspend.basics.words import counted
from fedspend.records import Fit, RecordPlan, Suggestion, Terms
from fedspend.records.table import ladder
from fedspend.report.groups import GroupTracks, group_tracks
from fedspend.report.plots import (
    COLOURS,
    GREY,
    LOOK,
    WIDE_RANGE,
    end_labels,
    few_groups,
    finish_spent,
    legend,
    line,
    mark_budgets,
    mark_transition,
    plain_ticks,
)

EXACT, FITTED = "#0072B2", "#D55E00"


def rates_plot(
    path: str | Path, terms: Terms, budget: FloatArray, rate: FloatArray, fit: Fit | None
) -> None:
    """Left, linear: the fit looks right. Right, logarithmic: for small budgets it is wrong."""
    with rc_context(LOOK):
        figure = Figure(figsize=(11.5, 4.8), layout="constrained")
        left, right = figure.subplots(1, 2)
        rungs = ladder(terms)
        for axes in (left, right):
            axes.plot(rungs.rate, rungs.epsilon, color=EXACT, linewidth=2.2, label="exact")
            axes.set_xlabel("sampling rate of a record")
        if fit is not None:
            q = np.concatenate([np.geomspace(1e-9, 0.01, 200), np.linspace(0.01, 1, 200)[1:]])
            left.scatter(
                fit.rate[::4],
                fit.epsilon[::4],
                s=12,
                color=FITTED,
                label="simulated (classic conversion)",
            )
            left.plot(
                q,
                fit.predict(q),
                color=FITTED,
                linestyle=(0, (5, 2)),
                linewidth=1.8,
                label=f"the paper's fit, R² {fit.r_squared:.4f}",
            )
            _mark_overspending(right, fit, rungs.rate, rungs.epsilon, budget)
        right.set_xscale("log")
        right.set_yscale("log")
        used = rate > 0
        lowest = float(rate[used].min()) if used.any() else float(rungs.rate[0])
        right.set_xlim(lowest / 3, 1)
        right.set_ylim(
            float(budget.min()) / 2, max(float(budget.max()), float(rungs.epsilon[-1])) * 1.3
        )
        right.scatter(
            rate[used],
            budget[used],
            s=14,
            color="#222222",
            alpha=0.35,
            linewidth=0,
            label="records",
            zorder=3,
        )
        right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        right.yaxis.set_minor_formatter(NullFormatter())
        left.set_ylim(0, float(rungs.epsilon[-1]) * 1.05)
        left.set_xlim(0, 1)
        left.set_ylabel(f"epsilon  (δ = {terms.delta:g})")
        for axes, title in (
            (left, "Epsilon by rate"),
            (right, "Zoomed in on small budgets"),
        ):
            axes.set_title(
                title, loc="left", fontsize=13, fontweight="bold", color="#222222", pad=10
            )
            axes.legend(frameon=False, loc="upper left")
        facts = (
            f"{counted(budget.size, 'record')}, {terms.rounds} × {terms.local_steps} steps, client "
            f"rate {terms.client_rate:g}, "
        )
        left_out = int((~used).sum())
        facts += f"σ = {terms.noise_multiplier:g}" + (
            f"; {left_out:,} left out" if left_out else ""
        )
        figure.suptitle(facts, x=0.01, ha="left", fontsize=10.5, color=GREY)
        _save(figure, path)


def _mark_overspending(
    axes: Axes, fit: Fit, rate: FloatArray, epsilon: FloatArray, budget: FloatArray
) -> None:
    """Compare each budget with what a record really spends at the rate that the fit gives it."""
    asked = np.geomspace(
        max(float(budget.min()), 1e-4), max(float(budget.max()), float(epsilon[-1])), 200
    )
    given = fit.rates(asked)
    inside = (given > 0) & (given < 1)
    if not inside.any():
        return
    axes.plot(
        given[inside],
        asked[inside],
        color=FITTED,
        linestyle=(0, (5, 2)),
        linewidth=1.8,
        label="rate by the paper's fit",
    )
    true = np.exp(
        np.interp(np.log(given[inside]), np.log(rate), np.log(np.maximum(epsilon, 1e-12)))
    )
    over = true > asked[inside]
    axes.fill_between(
        given[inside],
        asked[inside],
        true,
        where=over.tolist(),
        color=FITTED,
        alpha=0.15,
        linewidth=0,
        label="overspent",
    )


def noise_plot(path: str | Path, told: Suggestion) -> None:
    with rc_context(LOOK):
        figure = Figure(figsize=(7.5, 4.4), layout="constrained")
        axes = figure.subplots()
        noise = [one.noise_multiplier for one in told.candidates]
        axes.plot(
            noise,
            [one.step_noise for one in told.candidates],
            color=EXACT,
            linewidth=2.2,
            marker="o",
            markersize=4,
        )
        axes.axvline(told.noise_multiplier, color=GREY, linestyle=(0, (4, 3)), linewidth=1)
        axes.annotate(
            f" suggested {told.noise_multiplier:g}",
            (told.noise_multiplier, 0.97),
            xycoords=("data", "axes fraction"),
            va="top",
        )
        axes.set_xscale("log")
        axes.set_yscale("log")
        axes.set_xlabel("noise multiplier σ")
        axes.set_ylabel("noise in a step: σ / expected batch", color=EXACT)
        other = axes.twinx()
        other.plot(
            noise,
            [one.mean_rate for one in told.candidates],
            color=FITTED,
            linewidth=1.8,
            linestyle=(0, (5, 2)),
        )
        other.set_ylabel("mean sampling rate", color=FITTED)
        other.set_ylim(0, 1)
        other.grid(visible=False)
        for one in (axes.xaxis, axes.yaxis):
            one.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
            one.set_minor_formatter(NullFormatter())
        axes.set_title(
            "More noise, more sampling",
            loc="left",
            fontsize=13,
            fontweight="bold",
            color="#222222",
            pad=10,
        )
        _save(figure, path)


def record_plan_plot(plan: RecordPlan, path: str | Path) -> None:
    """Plot a plan of records to a file."""
    with rc_context(LOOK):
        _save(record_plan_figure(plan), path)


def record_plan_figure(plan: RecordPlan) -> Figure:
    """Cumulative epsilon (left) and sampling rates (right) by round and level of budget.

    With a filter, a record's rate is constant for as long as it can pay, so the number of records
    that still can is shown instead. With a filter by norms that number cannot be planned.
    """
    grouping, note = few_groups(plan, None, 1)
    groups = group_tracks(plan, grouping)
    words = [f"ε {label}" for label in grouping.labels]
    figure = Figure(figsize=(6.4 if plan.by_norm else 11.5, 5.0), layout="constrained")
    left, *others = figure.subplots(1, 1 if plan.by_norm else 2, squeeze=False)[0]
    for colour, group in zip(COLOURS, groups, strict=False):
        line(left, group.spent, colour, "-", first=0.0)
    mark_budgets(left, groups, plan.rounds)
    finish_spent(left, groups, plan, words)
    if plan.by_norm:
        left.set_title(
            "Privacy spent, at most",
            loc="left",
            fontsize=14,
            fontweight="bold",
            color="#222222",
            pad=12,
        )
    for right in others:
        if plan.filters:
            _active(right, plan)
            continue
        for colour, group in zip(COLOURS, groups, strict=False):
            line(right, group.rate, colour, "-")
        _finish_rates(right, groups, plan.rounds, words)
    if plan.policy == "spend-as-you-go":
        for axes in (left, *others):
            mark_transition(axes, {plan.policy: plan})
    legend(figure, [plan.policy])
    facts = (
        f"{counted(len(plan.records), 'record')} of {counted(len(plan.clients), 'client')}, "
        f"{counted(plan.rounds, 'round')} of "
    )
    steps = counted(plan.terms.local_steps, "step")
    facts += f"{steps}, σ = {plan.terms.noise_multiplier:g}, {plan.method_words}{note}"
    figure.suptitle(facts, x=0.01, ha="left", fontsize=10.5, color=GREY)
    return figure


def _active(axes: Axes, plan: RecordPlan) -> None:
    active = plan.active_by_step
    axes.step(np.arange(1, active.size + 1), active, where="post", color=EXACT, linewidth=2.1)
    axes.set_title(
        "Active records", loc="left", fontsize=14, fontweight="bold", color="#222222", pad=12
    )
    axes.set_xlabel("local step, over all rounds")
    axes.set_ylabel(
        f"records that can be sampled, at rate {plan.schedules.sampling_rate.max():.3g}"
    )
    axes.set_xlim(1, max(active.size, 2))
    axes.set_ylim(0, float(active.max()) * 1.08)
    plain_ticks(axes)


def _finish_rates(axes: Axes, groups: list[GroupTracks], rounds: int, words: list[str]) -> None:
    axes.set_title(
        "Sampling rate of a record",
        loc="left",
        fontsize=14,
        fontweight="bold",
        color="#222222",
        pad=12,
    )
    axes.set_xlabel("round")
    axes.set_ylabel("sampling rate in a step")
    axes.set_xlim((1, rounds) if rounds > 1 else (0.5, 1.5))
    used = np.concatenate([group.rate.mean[group.rate.mean > 0] for group in groups])
    if used.max() > WIDE_RANGE * used.min():
        axes.set_yscale("log", nonpositive="mask")
        axes.set_ylim(float(used.min()) / 1.5, min(1.5, float(used.max()) * 1.5))
    else:
        axes.set_ylim(0, float(used.max()) * 1.08)
    plain_ticks(axes)
    # rates of 0 are drawn at the floor
    ends = [max(float(group.rate.mean[-1]), axes.get_ylim()[0]) for group in groups]
    end_labels(axes, ends, words, rounds, gap=0.05)


def _save(figure: Figure, path: str | Path) -> None:
    buffer = io.BytesIO()
    kind = Path(path).suffix.lower().removeprefix(".")
    undated = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}.get(kind)
    figure.savefig(buffer, format=kind, dpi=150, metadata=undated)
    write_whole(Path(path), buffer.getvalue())  # readable by the owner only: budgets are sensitive
