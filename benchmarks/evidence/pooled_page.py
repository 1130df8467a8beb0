"""Table 2 and Figure 7 of Liu et al. (2024): tables and verdicts."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pooled
from by_seed import LEAST, Lines, paired, shown, spread
from experiment import Finished
from judging import Gain, Item, Verdict, cut, fewer_seeds, is_clear, judged, told
from tables import beside_paper, gain, markdown, with_seconds

from fedspend.records.filtering import norm_budgets
from fedspend.records.terms import Terms
from fedspend.runs.comparison import interval

SAMPLED, FILTER, BY_CLIP = "rpdp, clamped fit", *pooled.FILTERS  # the first: nearest to the SCF
NAMES = {"heart": "Fed-Heart-Disease", "mnist": "MNIST"}
MANY = 10_000  # steps, more than any level pays for
LOAD = "CPU time, which depends on what else the machine does"


def lines(results: Finished, data: str, method: str, *, longest: bool = False) -> Lines:
    return pooled.lines(results, pooled.arm(data, method), longest=longest)


def table(data: str, results: Finished) -> str:
    """Table 2, by method."""
    task = pooled.TASKS[data]
    ours = lines(results, data, SAMPLED)
    body = []
    for method in pooled.METHODS:
        found = lines(results, data, method)
        accuracy, step = task.paper.get(method, (None, None))
        body.append(
            [
                f"{method} (the paper: SCF)" if method == SAMPLED else method,
                beside_paper("" if accuracy is None else f"{accuracy:.2f}", shown(found)),
                "" if method == SAMPLED else told(paired(ours, found)),
                _tuned(results, data, method) if len(found) >= LEAST else "-",
                beside_paper("" if step is None else f"{step:,.1f}", _milliseconds(found)),
            ]
        )
    tuned = "learning rate, steps" if task.by_seed else "learning rate"
    headings = [f"{NAMES[data]}, pooled", "accuracy", f"{SAMPLED} minus this", tuned]
    return markdown([*headings, "CPU ms a step"], body)


def _milliseconds(found: Lines) -> str:
    if len(found) < LEAST:
        return "-"
    return f"{1000 * np.median([line['step'] for line in found.values()]):.3g}"


def _tuned(results: Finished, data: str, method: str) -> str:
    """What was chosen; for an arm that has the learning rate of another, whose."""
    one = pooled.arm(data, method)
    choices = [pooled.chosen(results, one, seed) for seed in lines(results, data, method)]
    rates, steps = zip(*choices, strict=True)
    if one.task.by_seed:
        times = one.rounds * (1 if one.private else pooled.LONGER)
        return f"{spread(rates)}, {spread([times * each for each in steps], '{:,}')}"
    if one.like is not None:
        return f"{rates[0]:g}, that of {one.like.method}"
    largest = pooled.cut_off(one, rates[0])
    return f"{rates[0]:g}" + (f", the largest of {one.task.tries} tried" if largest else "")


def ahead_in(data: str, what: str, claim: str, results: Finished) -> Verdict | None:
    """Whether sampled records are ahead of the filter in this: in accuracy, or in time a step."""
    ours, base, clip = (lines(results, data, name) for name in (SAMPLED, FILTER, BY_CLIP))
    task = pooled.TASKS[data]
    (theirs, slow), (paper, fast) = task.paper[FILTER], task.paper[SAMPLED]
    if what == "accuracy":
        ahead, beside = paired(ours, base), None
        details = f"{told(ahead)} points, the paper's {paper - theirs:+.1f}"
    else:
        ahead, beside = paired(base, ours, what, 1000), paired(ours, clip, what, 1000)
        details = f"{told(ahead)} ms less a step, the paper's {slow - fast:+,.1f}; {LOAD}"
    found = judged([ahead], f"{claim},")
    if found is None:
        return None
    if is_clear(beside):
        details += f"; but the filter by clip takes {told(beside)} ms less than rpdp"
    seeds = fewer_seeds(len(set(ours) & set(base)), 5)
    return found[0], f"{found[1]} ({details}); study `{pooled.STUDY}`{seeds}"


# --- Figure 7 -------------------------------------------------------------------------------------


def steps_paid(data: str) -> list[int]:
    """How many steps each level of budgets pays for, if every step is charged at the clip.

    >>> steps_paid("heart"), steps_paid("mnist")
    ([9, 32, 132], [111, 488, 2201])
    """
    task = pooled.TASKS[data]
    terms = Terms(task.delta, MANY, 1, 1.0, task.noise)
    return [int(most) for most in norm_budgets(np.array(task.levels), terms)]


def active(data: str, results: Finished) -> str:
    """Figure 7, as a table: records that still take part, at steps that matter."""
    paid, last = steps_paid(data), pooled.ROUNDS * pooled.TASKS[data].longest
    steps = [1, *(step for paid_for in paid for step in (paid_for, paid_for + 1)), last]
    steps = [step for step in dict.fromkeys(steps) if step <= last]
    body = []
    for method in pooled.FILTERS:
        found = lines(results, data, method, longest=True)
        shares = [
            f"{np.mean([_share(line['active'], step) for line in found.values()]):.0f}"
            if len(found) >= LEAST
            else "-"
            for step in steps
        ]
        body.append([method, *shares])
    headings = [f"{NAMES[data]}, percent of the records at step", *map(str, steps)]
    return markdown(headings, body)


def _share(active: list[int], step: int) -> float:
    """Percent of the records that take part in a step, of those in the first.

    >>> _share([8, 8, 2], 3)
    25.0
    """
    return 100 * active[step - 1] / active[0]


def early(data: str, results: Finished) -> Verdict | None:
    """Whether the filter stops records before training ends. A level whose budget pays for more
    steps than there are could not show it: a line that was not run.
    """
    found = lines(results, data, FILTER, longest=True)
    if len(found) < LEAST:
        return None
    last = pooled.ROUNDS * pooled.TASKS[data].longest
    stopped = [100 - _share(line["active"], last) for line in found.values()]
    gains: list[Gain | None] = [interval(np.array(stopped))]
    beyond = sum(paid >= last for paid in steps_paid(data))
    verdict = judged(gains + [None] * beyond, "records that the filter stops early,")
    assert verdict is not None
    word, why = verdict
    return word, (
        f"{why} ({gain(*gains[0])} percent of them within {last} steps; {len(steps_paid(data))} "
        f"levels, of which {beyond} could not stop so early); study `{pooled.STUDY}`"
        f"{fewer_seeds(len(found), 5)}"
    )


def items() -> tuple[Item, ...]:
    """Lines of the table of verdicts."""
    made = []
    for data in pooled.TASKS:
        judges: dict[str, Callable[[Finished], Verdict | None]] = {
            "Table 2, {}, accuracy": partial(
                ahead_in, data, "accuracy", "accuracy of rpdp over the filter"
            ),
            "Table 2, {}, time a step": partial(
                ahead_in, data, "step", "time of the filter over rpdp"
            ),
            "Figure 7, {}": partial(early, data),
        }
        made += [
            Item(
                name.format("MNIST" if data == "mnist" else data),
                cut(pooled.STUDY),
                judge,
            )
            for name, judge in judges.items()
        ]
    return tuple(made)


BLOCKS = {"pooled": with_seconds(partial(table, "mnist"))}
RECORDS_BLOCKS = {
    "pooled-heart": with_seconds(partial(table, "heart")),
    "active-heart": with_seconds(partial(active, "heart")),
    "active-mnist": with_seconds(partial(active, "mnist")),
}
