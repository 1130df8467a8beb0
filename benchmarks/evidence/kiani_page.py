"""What docs/results/papers.md has of Kiani et al. (2025)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial

import as_printed as printed
import by_influence
import client_losses
import kiani
import numpy as np
import over_time
import over_time_page
from experiment import Arm, Finished, Outcome, Unfinished, compared, difference, outcome
from judging import Gain, Item, Verdict, beside, clear_of, judged, number_of, over, rows_of, told
from kiani import Row, Table
from tables import accuracy, gain, markdown, with_seconds

from fedspend.runs.comparison import interval

PAPER = "Kiani et al. (2025)"

FOLLOWING = "uniform spending with a clip that follows the learning rate"


def lower_losses(results: Finished) -> Verdict | None:
    """Figure 3: at the end, clients' losses are lower under saving than under uniform spending."""
    found: dict[str, Gain | None] = {}
    for name, arms in client_losses.pairs().items():
        uniform, saving = (loss_curves(results, arm) for arm in arms)
        known = uniform is not None and saving is not None
        found[name] = interval((uniform - saving)[:, -1]) if known else None
    judgement = judged(list(found.values()), "lower loss after the last round")
    if judgement is None:
        return None
    told = "; ".join(f"{name} {-one[0]:+.3f}" for name, one in found.items() if one is not None)
    return judgement[0], f"{judgement[1]} (saving minus uniform: {told})"


def loss_curves(results: Finished, arm: Arm) -> np.ndarray | None:
    try:
        return client_losses.curves(results, arm)
    except Unfinished:
        return None


def untuned_gains(results: Finished) -> Verdict | None:
    """The paper's claim with nothing chosen for the noise, by exact plans and by its own algorithm,
    which leaves a part of the budgets over.
    """

    found = {
        spending: [
            over_time_page.gain_as_shipped(results, data, "annealed", spending)
            for data in over_time.SHIPPED
        ]
        for spending in ("exact", "literal")
    }
    judgement = judged([one for gains in found.values() for one in gains], "claimed gain", "")
    if judgement is None:
        return None
    exact, literal = (
        ", ".join(gain(*one) for one in gains if one is not None) for gains in found.values()
    )
    ahead_of_saving = [planned_over_saving(results, data) for data in over_time.SHIPPED]
    word, why = beside(
        judgement, ahead_of_saving, "`optimal` with influence measured on the training rows"
    )
    return word, (
        f"{why} (exact plans {exact}; its algorithm {literal} points); "
        "[spending over time](time.md#what-tuning-changes)"
    )


def planned_over_saving(results: Finished, data: str) -> Gain | None:
    """What `optimal` with measured influence gains over saving, annealed and as shipped."""
    cell = by_influence.Cell(data, "annealed", over_time.AS_SHIPPED)
    ours = by_influence.outcome(results, cell)
    base = outcome(results, over_time.as_shipped(data, "annealed", "exact"))
    return compared(ours, base)


def outcomes(results: Finished, row: Row) -> dict[str, Outcome | None]:
    found = {name: outcome(results, cell.arm) for name, cell in row.cells.items()}
    return {name: None if one is None or one.refused else one for name, one in found.items()}


def gains(results: Finished, table: Table) -> Iterator[Gain | None]:
    """Our gain for every gain that the table claims; None if it is not finished."""
    for row in table.rows:
        found = outcomes(results, row)
        for base, ours in row.gains:
            one, other = found[base], found[ours]
            yield None if one is None or other is None else difference(other, one)


def ahead(results: Finished, table: Table) -> list[Gain | None]:
    """For every arm that a table claims to gain: how far ahead of it uniform spending is, with a
    clip that follows the learning rate. None if it was not run with these settings.
    """
    claimed = {
        arm.name: arm
        for row in table.rows
        for _, ours in row.gains
        for arm in (row.cells[ours].arm,)
    }
    return [over(results, kiani.following(arm), arm) for arm in claimed.values()]


def at_same_choice(results: Finished, table: Table) -> list[Gain | None]:
    """Every gain in which only the spending differs, with one learning rate and clip for both."""
    return [
        over(results, kiani.at_choice_of(base, ours), base)
        for row in table.rows
        for base, ours in ([row.cells[name].arm for name in pair] for pair in row.by_spending)
    ]


def verdict(results: Finished, table: Table) -> Verdict:
    """Whether the gains that the table claims are there (interval above 0)."""
    found = judged(list(gains(results, table)), "claimed gain")
    if found is None:
        return "not run", "not run yet: `--only kiani`"
    word, why = found
    same = at_same_choice(results, table)
    if any(one is not None for one in same):
        why += f"; with one learning rate and clip for both arms in {clear_of(same)}"
    word, why = beside((word, why), ahead(results, table), FOLLOWING)
    return word, why + sizes(results, table)


def sizes(results: Finished, table: Table) -> str:
    """The range of the gains, ours and the paper's; empty if it states none."""
    ours = [one[0] for one in gains(results, table) if one is not None]
    theirs = [
        high - low
        for row in table.rows
        for pair in row.gains
        for low, high in [tuple(row.cells[name].paper for name in pair)]
        if low is not None and high is not None
    ]
    if not theirs:
        return ""
    return "; gains " + ", the paper's ".join(
        f"{min(one):+.1f}" if len(one) == 1 else f"{min(one):+.1f} to {max(one):+.1f}"
        for one in (ours, theirs)
    )


def shown(table: Table, results: Finished) -> str:
    """Paper's number / ours for every cell, then the gains."""
    columns = list(table.rows[0].cells)
    pairs, compared = table.rows[0].gains, table.rows[0].by_spending
    body = []
    for row in table.rows:
        found = outcomes(results, row)
        line = [row.title]
        for name in columns:
            cell, one = row.cells[name], found[name]
            theirs = "" if cell.paper is None else f"*{cell.paper:.1f}* / "
            line.append(theirs + ("-" if one is None else accuracy(*interval(one.percent()))))
        for base, ours in pairs:
            claimed = (row.cells[base].paper, row.cells[ours].paper)
            theirs = (
                ""
                if claimed[0] is None or claimed[1] is None
                else f"*{claimed[1] - claimed[0]:+.1f}* / "
            )
            one, other = found[base], found[ours]
            line.append(
                theirs + ("-" if one is None or other is None else gain(*difference(other, one)))
            )
        for pair in compared:
            base_arm, our_arm = (row.cells[name].arm for name in pair)
            same = kiani.at_choice_of(base_arm, our_arm)
            line.append(told(over(results, same, base_arm)) if pair in row.by_spending else "")
        body.append(line)
    headings = [table.name, *columns, *(f"{ours} minus {base}" for base, ours in pairs)]
    headings += [f"the same, both at the choice for {base}" for base, _ in compared]
    about = table.about[0].upper() + table.about[1:]
    return f"### {table.name}\n\n{about}.\n\n{markdown(headings, body)}"


def tables(results: Finished) -> str:
    in_order = sorted(kiani.tables(), key=lambda table: number_of(table.name))
    return "\n\n".join(with_seconds(partial(shown, table))(results) for table in in_order)


def losses(results: Finished) -> str:
    rounds = (1, 5, 10, 13, 15, 20, 25)
    body = []
    for choice, arms in client_losses.pairs().items():
        for arm, name in zip(arms, ("uniform", "saving"), strict=True):
            found = loss_curves(results, arm)
            cells = ["-"] * len(rounds)
            if found is not None:
                cells = [f"{found[:, n - 1].mean():.3f}" for n in rounds]
            body.append([f"{name}, {choice}", *cells])
    return markdown(["mean loss of clients after round", *map(str, rounds)], body)


def as_printed(results: Finished) -> str:
    """What a clip of 250 means: in the plan, and, once it is run, in accuracy."""
    (arm,) = printed.arms()
    found = outcome(results, arm)
    if found is None or found.refused:
        return f"{_as_printed()} (Not measured yet: `--only as-printed`.)"
    percent = found.percent()
    return (
        f"{_as_printed()} Measured, three seeds: {percent.min():.0f} to {percent.max():.0f}% after "
        "25 rounds, where guessing has 10. (With one local step on a tenth of the rows and one "
        "clip for the whole update: the noise of a round does not depend on how long clients "
        "train.)"
    )


@cache
def _as_printed() -> str:
    """What a clip of 250 means, from the plan with the paper's own settings."""
    from experiment import by_section

    from fedspend.configuration.config import any_config
    from fedspend.configuration.plan_inputs import resolve

    clip = 250.0
    settings = kiani.private("fashion-mnist", (10, 20, 30), "uniform").at((0.2, clip), 1)
    plan = resolve(any_config(by_section(settings))).request.plan()
    deviation = clip * plan.round_noise[0] / (plan.round_rate[0] * len(plan.clients))
    return (
        f"- Kiani et al. state a clip of {clip:g} for a CNN of 1.66 million parameters, with "
        "N = 100, q = 0.9, T = 25 and budgets (10, 20, 30). By a plan with these settings that is "
        f"noise with a deviation of {deviation:.1f} in every coordinate of the mean update, where "
        "weights are a few hundredths: nothing is learned."
    )


def rows(results: Finished) -> list[tuple[str, str, str]]:
    """Every table and figure: its name, its verdict, what that rests on."""
    word, why = verdict(results, kiani.figure_1())
    return [
        *((table.name, *verdict(results, table)) for table in kiani.tables()),
        ("Figure 1", word, f"the curves of two lines of Table 2: {why}"),
        *rows_of(ITEMS, results),
    ]


ITEMS = (
    Item(
        "Table 6, (2, 5, 10), learning rate and clip not tuned, saving rates 0.5/0.6/0.7",
        "not run",
        "not run yet: `--only time`",
        untuned_gains,
    ),
    Item(
        "Figure 2, spending by round",
        "reproduced",
        "from plans alone: [Methods](../explanation/methods.md), and the report of every run "
        "draws it",
    ),
    Item(
        "Figure 3, training loss of clients",
        "not run",
        "not run yet: `--only client-losses`",
        lower_losses,
    ),
)
BLOCKS = {
    "as-printed": as_printed,
    "kiani-tables": tables,
    "client-losses": with_seconds(losses),
}
