"""The charts of a run, each marked with who may see it.

Guarantee: every panel carries a mark. `planned` numbers depend on budgets and parameters only.
`release` numbers are noised releases or computed from them, which costs no privacy; `public` ones
were measured on public rows, of a model made of releases. `simulation` numbers describe single
updates or rows of clients, or were computed without noise: a real run must not show them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.basics.json_values import number
from fedspend.basics.words import counted
from fedspend.planning.plan import Plan
from fedspend.records.planning import RecordPlan
from fedspend.report.charts import COLOURS, Chart, Dot, Reference, Series
from fedspend.report.groups import Grouping, GroupTracks, Track, group_clients, group_tracks
from fedspend.report.pieces import power
from fedspend.report.run_data import RunData
from fedspend.report.scales import WIDE_RANGE
from fedspend.tasks.table import CLASSIFICATION
from fedspend.tasks.words import (
    ACCURACY,
    deviation_key,
    is_share,
    other_metrics,
    private_key,
    titled,
)

MOST_ROUNDS = 400  # if there are more, charts and tables show evenly spaced ones


@dataclass(frozen=True)
class Panel:
    """A chart with its mark and the sentences under it."""

    title: str
    mark: str
    chart: Chart
    caption: str


def learning(run: RunData) -> list[Panel]:
    """Accuracy and loss, exact where that may be shown, and as a private metric where one was paid
    for.
    """
    return [*(_exact(run) if run.exact else []), *_private(run)]


def _private(run: RunData) -> list[Panel]:
    """The noised metric of the model that each round began with."""
    metric = run.metric
    share = is_share(metric)
    chart = _recorded(run, private_key(metric), f"Private {metric}", metric, percent=share)
    if chart.empty:
        return []
    off = run.last(deviation_key(metric))
    unit = "" if off is None else f"{100 * off:.1f} points" if share else f"{off:.2g}"
    spread = unit and f" Standard deviation, from noise and from who is sampled: at most {unit}."
    middle = "one half" if share else "the middle of its bounds"
    caption = (
        "Of the model that the round began with, over rows that the sampled clients hold out; "
        "noised, and paid from every client's budget. A client without such rows counts as "
        f"{middle}.{spread} The final model itself was not measured."
    )
    return [Panel(f"Private {metric}", "release", chart, caption)]


def _exact(run: RunData) -> list[Panel]:
    mark = run.exact_mark
    notes = [
        "Measured on public evaluation rows; budgets do not protect those rows."
        if run.public_rows
        else "Measured exactly on rows that came out of clients; a real run must not show this."
    ]
    tail = number(run.settings.get("train.tail_average"))
    if tail is not None and tail > 1:
        notes.append(f"The last {tail:g} rounds show the average of the models since then.")
    if run.skipped:
        notes.append(
            f"Shaded: {counted(len(run.skipped), 'round')} skipped because the release was lost; "
            "they stay charged."
        )
    majority = (
        ()
        if run.majority is None
        else (Reference(run.majority, f"most common class {100 * run.majority:.1f}%"),)
    )
    others = other_metrics(run.metrics[-1]) if run.metrics else []
    charts = [
        _recorded(
            run,
            name,
            titled(name),
            name,
            references=majority if name == ACCURACY else (),
            percent=is_share(name),
        )
        for name in (run.metric, *others)
        if name != "loss"
    ]
    loss = _recorded(run, "loss", "Loss", "loss")
    missing = sum(value is None for value in loss.series[0].values)
    gaps = f" Gaps: {counted(missing, 'round')} without a finite loss." if missing else ""
    return [
        *(Panel(chart.title, mark, chart, " ".join(notes)) for chart in charts),
        Panel("Loss", mark, loss, f"{_loss_in_words(run)} over the same rows.{gaps}"),
    ]


def _loss_in_words(run: RunData) -> str:
    named = run.settings.get("task.loss", CLASSIFICATION)
    return "Mean cross-entropy" if named == CLASSIFICATION else f"Mean loss ({named})"


def spending(run: RunData) -> list[Panel]:
    """Epsilon by group, against the budget."""
    if run.plan is None:
        return []
    grouping, groups = few_groups(run)
    budgets = [group.budget.at(0)[1] for group in groups]
    from_zero = max(budgets) <= WIDE_RANGE * min(
        budgets
    )  # otherwise logarithmic, which has no zero
    x = rounds_shown(run.rounds, first=0 if from_zero else 1)
    alike = len(groups) > 1 and all(_same(group.spent, groups[0].spent) for group in groups)
    words = group_words(grouping)
    lines = tuple(
        _track("everyone" if alike else word, group.spent, x, n + 1, run.done)
        for n, (word, group) in enumerate(zip(words, groups, strict=True))
    )
    references = tuple(
        Reference(budget, f"budget {words[n]}" if alike else "", n + 1)
        for n, budget in enumerate(budgets)
    )
    chart = Chart(
        "Privacy spent",
        f"epsilon at delta {power(run.plan.delta)}",
        x,
        lines[:1] if alike else lines,
        references,
    )
    who = run.plan.unit
    notes = [f"Dashed: the budgets. Every round is charged to every {who}, sampled or not."]
    if run.done < run.rounds:
        rest = f"rounds {run.done + 1} to {run.rounds}"
        notes.append(
            f"Faint: {rest}, which its own rule left out; they stay charged."
            if run.stopped
            else f"Faint: planned for {rest}."
        )
    if any(group.budget.low[0] < group.budget.high[0] for group in groups):
        notes.append(
            f"Budgets differ within a group: lines are means over its {who}s, shading is the range."
        )
    return [Panel("Privacy spent", "planned", chart, " ".join(notes))]


def client_schedule(run: RunData, plan: Plan) -> list[Panel]:
    """Noise, sampling rate, clip, and the noise that ends up in the averaged update."""
    numbers = [
        *(["clip bit"] if run.adaptive else []),
        *([] if plan.metric_noise is None else ["private metric"]),
    ]
    noise_note = (
        f"Noise relative to the client's clip, for update and {' and '.join(numbers)} together."
        if numbers
        else "Noise relative to the clip."
    )
    return [
        Panel(
            "Noise multiplier",
            "planned",
            _by_group(run, "noise", "Noise multiplier", "sigma"),
            noise_note,
        ),
        Panel(
            "Sampling rate",
            "planned",
            _by_group(run, "rate", "Sampling rate", "probability"),
            "Chance of taking part.",
        ),
        _clip(run),
        _average(run, plan),
    ]


def updates(run: RunData) -> list[Panel]:
    """What clients' updates or votes looked like; only a simulation may show this."""
    if not run.statistics:
        return []
    if run.voting:
        return _votes(run)
    clipped = _recorded(
        run, "clipped_share", "Clipped updates", "share of the cohort", percent=True, zero=True
    )
    norm = _norms(run)
    discarded = sum(int(number(line.get("discarded")) or 0) for line in run.metrics)
    note = (
        f"{counted(discarded, 'update')} were not finite and counted as zero." if discarded else ""
    )
    length = "Length of updates before clipping" + (
        "; shaded: all but the shortest and longest tenth." if norm.series[0].low else "."
    )
    panels = [
        Panel(
            "Clipped updates",
            "simulation",
            clipped,
            f"Updates longer than their clip. {note}".strip(),
        ),
        Panel("Update norms", "simulation", norm, f"{length} {_overflow(run)}".strip()),
    ]
    # without a plan there is no clip
    return [panel for panel in panels[run.plan is None :] if not panel.chart.empty]


def _votes(run: RunData) -> list[Panel]:
    """How far voters agreed, and how many labels the noise changed."""
    agreement = _recorded(
        run, "agreement", "Agreement", "share of the votes", percent=True, zero=True
    )
    changed = _recorded(
        run,
        "labels_changed",
        "Labels changed by noise",
        "share of the rows voted on",
        percent=True,
        zero=True,
    )
    panels = [
        Panel(
            "Agreement",
            "simulation",
            agreement,
            "The winning class's share of a row's votes, before noise; mean over rows.",
        ),
        Panel(
            "Labels changed by noise",
            "simulation",
            changed,
            f"Rows whose label the noise changed. {_overflow(run)}".strip(),
        ),
    ]
    return [panel for panel in panels if not panel.chart.empty]


def _norms(run: RunData) -> Chart:
    """Norms of updates by round (Figure 2 of Cheng et al. 2022): mean, middle 80%, and clip."""
    norm = _recorded(run, "mean_norm", "Update norms", "Euclidean norm before clipping", zero=True)
    by_round = {line["round"]: line for line in run.metrics}
    spread = [by_round.get(t, {}).get("norm_quantiles") for t in norm.x]
    ends = [
        (number(q[0]), number(q[-1])) if isinstance(q, list) and q else (None, None) for q in spread
    ]
    known = [(low, high) for low, high in ends if low is not None and high is not None]
    shade = tuple(zip(*known, strict=True)) if len(known) == len(norm.x) else (None, None)
    lines = [Series("mean norm", norm.series[0].values, 1, low=shade[0], high=shade[1])]
    clips = tuple(number(by_round.get(t, {}).get("clip")) for t in norm.x)
    if any(clip is not None for clip in clips):
        lines.append(Series("mean clip", clips, 2, dashed=True))
    return Chart(norm.title, norm.y_label, norm.x, tuple(lines), marked=norm.marked)


def _overflow(run: RunData) -> str:
    counts = [int(number(line["overflowed"]) or 0) for line in run.metrics if "overflowed" in line]
    if not counts:
        return ""
    left = sum(counts)
    return (
        "No coordinate overflowed the modulus."
        if left == 0
        else f"{counted(left, 'coordinate')} overflowed the modulus and came back wrong."
    )


# --- building blocks ------------------------------------------------------------------------------


def few_groups(run: RunData) -> tuple[Grouping, list[GroupTracks]]:
    """Groups of clients, few enough for one colour each."""
    assert run.plan is not None
    grouping = group_clients(run.plan, run.labels, most=COLOURS, bands=5)
    return grouping, group_tracks(run.plan, grouping)


def group_words(grouping: Grouping) -> list[str]:
    return list(grouping.labels) if grouping.named else [f"ε {label}" for label in grouping.labels]


def rounds_shown(rounds: int, first: int = 1) -> tuple[int, ...]:
    """
    >>> rounds_shown(3, first=0), len(rounds_shown(10_000)), rounds_shown(10_000)[-1]
    ((0, 1, 2, 3), 400, 10000)
    """
    count = rounds - first + 1
    if count <= MOST_ROUNDS:
        return tuple(range(first, rounds + 1))
    return tuple(first + round(k * (count - 1) / (MOST_ROUNDS - 1)) for k in range(MOST_ROUNDS))


def _recorded(
    run: RunData,
    key: str,
    title: str,
    y_label: str,
    *,
    references: tuple[Reference, ...] = (),
    percent: bool = False,
    zero: bool = True,
) -> Chart:
    """The chart of a number that every round recorded."""
    found = {line["round"]: number(line.get(key)) for line in run.metrics}
    x = rounds_shown(run.done, first=run.metrics[0]["round"])
    line = Series(title.lower(), tuple(found.get(t) for t in x))
    return Chart(
        title, y_label, x, (line,), references, percent=percent, zero=zero, marked=run.skipped
    )


def _by_group(run: RunData, name: str, title: str, y_label: str) -> Chart:
    """A quantity of the plan, one line per group, or a single line if the groups do not differ."""
    grouping, groups = few_groups(run)
    x = rounds_shown(run.rounds)
    tracks: list[Track] = [getattr(group, name) for group in groups]
    if all(_same(one, tracks[0]) for one in tracks):
        lines: Sequence[Series] = [_track("everyone", tracks[0], x, 1, run.done)]
    else:
        lines = [
            _track(word, one, x, n + 1, run.done)
            for n, (word, one) in enumerate(zip(group_words(grouping), tracks, strict=True))
        ]
    return Chart(title, y_label, x, tuple(lines))


def _track(label: str, track: Track, x: Sequence[int], colour: int, done: int) -> Series:
    def at(values: FloatArray) -> tuple[float, ...]:
        return tuple(0.0 if t == 0 else float(values[t - 1]) for t in x)

    return Series(label, at(track.mean), colour, low=at(track.low), high=at(track.high), done=done)


def _same(a: Track, b: Track) -> bool:
    return all(
        math.isclose(p, q, rel_tol=1e-9)
        for mine, other in ((a.low, b.low), (a.mean, b.mean), (a.high, b.high))
        for p, q in zip(mine, other, strict=True)
    )


def record_schedule(run: RunData, plan: RecordPlan) -> list[Panel]:
    """Rates and active records. With a filter by norms, only a simulation may count records."""
    if plan.by_norm:
        counted_steps = (
            [count for line in run.metrics for count in line.get("active", [])]
            if run.statistics
            else []
        )
        if not counted_steps:
            return []
        chart = _active(np.array(counted_steps), run.done * plan.terms.local_steps)
        caption = (
            f"Records, of {len(plan.records):,}, that took part in a local step: who is left "
            "depends on single gradients."
        )
        return [Panel(chart.title, "simulation", chart, caption)]
    chart = _active(plan.active_by_step, run.done * plan.terms.local_steps, _stops(run, plan))
    caption = (
        f"Records, of {len(plan.records):,}, that can be sampled in a local step; the others are "
        "left out or have spent their budgets."
    )
    caption += " Dots: where a budget begins to run out." if chart.dots else ""
    if plan.filters:  # the rate is constant for as long as a record can pay
        return [
            Panel(
                chart.title,
                "planned",
                chart,
                f"{caption} Sampling rate: {plan.schedules.sampling_rate.max():.3g}.",
            )
        ]
    rates = _by_group(run, "rate", "Sampling rate", "probability")
    return [
        Panel(rates.title, "planned", rates, "Chance that a record is sampled in a local step."),
        Panel(chart.title, "planned", chart, caption),
    ]


def silo_schedule(run: RunData, plan: RecordPlan) -> list[Panel]:  # noqa: ARG001 - as the others
    """The only rate that is known where records stay at their silos."""
    rates = _by_group(run, "rate", "Sampling rate", "probability")
    caption = (
        "The most that any record can be sampled in a local step. Each silo's rates are lower, and "
        "stay with it."
    )
    return [Panel(rates.title, "planned", rates, caption)]


def _active(count: IntArray, done: int, dots: tuple[Dot, ...] = ()) -> Chart:
    """Active records by local step, over all rounds (Figure 7 of Liu et al. 2024)."""
    before = np.flatnonzero(np.diff(count)) + 1
    sharp = () if before.size > MOST_ROUNDS else (*before.tolist(), *(before + 1).tolist())
    x = tuple(sorted({*rounds_shown(count.size), *sharp}))
    line = Series("active", tuple(float(count[step - 1]) for step in x), done=done)
    return Chart("Active records", "records", x, (line,), zero=True, unit="step", dots=dots)


def _stops(run: RunData, plan: RecordPlan) -> tuple[Dot, ...]:
    """For each group whose records stop before the end, the last step of the first one."""
    grouping, _ = few_groups(run)
    lasts = plan.steps.sum(axis=0)[plan.schedules.of_client]
    found = []
    for words, members in zip(group_words(grouping), grouping.members, strict=True):
        step = int(lasts[members].min())
        if 0 < step < plan.rounds * plan.terms.local_steps:
            found.append(Dot(step, float(plan.active_by_step[step - 1]), words))
    return tuple(found)


def _clip(run: RunData) -> Panel:
    if run.adaptive:
        chart = _recorded(run, "clip", "Clip norm", "mean over clients", zero=True)
        why = (
            "Follows the noised share of clients within their clip."
            if run.method == "adaptive-clip"
            else "As the method said, within what the plan allows."
        )
        return Panel("Clip norm", "release", chart, why)
    caption = (
        "The weight of a client's votes: stricter budgets weigh less."
        if run.voting
        else "Stricter budgets get smaller clips."
    )
    return Panel(
        "Clip norm", "planned", _by_group(run, "clip", "Clip norm", "Euclidean norm"), caption
    )


def _average(run: RunData, plan: Plan) -> Panel:
    title, y_label = "Noise of the averaged update", "standard deviation per coordinate"
    caption = "The noise that the model receives in a round, after dividing by the expected cohort."
    queries = number(run.settings.get("votes.queries"))
    if run.voting and queries is not None:
        return _vote_noise(run, plan, queries)
    if run.adaptive:
        return Panel(
            title, "release", _recorded(run, "noise_deviation", title, y_label, zero=True), caption
        )
    x, deviation = rounds_shown(run.rounds), plan.noise_of_average
    line = Series("noise", tuple(deviation[t - 1] for t in x), done=run.done)
    return Panel(title, "planned", Chart(title, y_label, x, (line,)), caption)


def _vote_noise(run: RunData, plan: Plan, queries: float) -> Panel:
    """Noise as a share of `clip / sqrt(queries)`, the mean vote of a unanimous expected cohort."""
    title, x = "Noise on vote shares", rounds_shown(run.rounds)
    shares = [deviation * math.sqrt(queries) / plan.clip for deviation in plan.noise_of_average]
    line = Series("noise", tuple(shares[t - 1] for t in x), done=run.done)
    caption = (
        f"Standard deviation of the noise on each class's share, with "
        f"{counted(int(queries), 'row')} voted on in a round."
    )
    return Panel(
        title,
        "planned",
        Chart(title, "share of the expected votes", x, (line,), percent=True, zero=True),
        caption,
    )
