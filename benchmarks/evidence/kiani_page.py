"""What docs/results/papers.md has of Kiani et al. (2025)."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache, partial
from itertools import product

import as_printed as printed
import by_influence
import client_losses
import kiani
import kiani_spending
import networks
import networks_page
import numpy as np
import over_time
import untuned_page
from experiment import Arm, Finished, Outcome, Unfinished, compared, outcome
from judging import (
    Gain,
    Item,
    Verdict,
    beside,
    clear_of,
    cut,
    judged,
    number_of,
    over,
    rows_of,
    told,
)
from kiani import Row, Table
from tables import accuracy, against, markdown, with_seconds

from fedspend.runs.comparison import interval

PAPER = "Kiani et al. (2025)"

FOLLOWING = "uniform spending with a clip that follows the learning rate"


def lower_losses(results: Finished) -> Verdict | None:
    """Figure 3: at the end, clients' losses are lower under saving than under uniform spending, if
    nothing else differs; beside it, what the other choices give.
    """
    found: dict[str, Gain] = {}
    for name, arms in client_losses.pairs().items():
        uniform, saving = (loss_curves(results, arm) for arm in arms)
        if uniform is not None and saving is not None:
            found[name] = interval((uniform - saving)[:, -1])
    same = client_losses.FOR_UNIFORM
    judgement = judged([found.get(same)], f"lower loss after the last round, {same},")
    if judgement is None:
        return None
    told = "; ".join(f"{name} {-mean:+.3f}" for name, (mean, _) in found.items())
    return judgement[0], f"{judgement[1]} (saving minus uniform: {told})"


def loss_curves(results: Finished, arm: Arm) -> np.ndarray | None:
    try:
        return client_losses.curves(results, arm)
    except Unfinished:
        return None


def untuned_gains(results: Finished) -> Verdict | None:
    """The paper's claim with nothing chosen for the noise, by exact plans and by its own algorithm,
    which leaves a part of the budgets over: two readings of the paper.
    """
    cells = list(product((over_time.TIGHT, over_time.LARGE), over_time.SHIPPED))
    exact, literal = (
        [
            untuned_page.gain_as_shipped(results, data, "annealed", spending, budgets)
            for budgets, data in cells
        ]
        for spending in ("exact", "literal")
    )
    judgement = judged([*exact, *literal], "")
    if judgement is None:
        return None
    by_plans, by_algorithm = (", ".join(map(told, gains)) for gains in (exact, literal))
    why = (
        f"claimed gain clear of 0 in {clear_of(exact)} lines by exact plans, as by its Equation 1 "
        f"({by_plans} points), and in {clear_of(literal)} by its Algorithm 1 ({by_algorithm})"
    )
    ahead_of_saving = [
        planned_over_saving(results, data) if budgets == over_time.TIGHT else None
        for budgets, data in cells
    ]
    word, why = beside(
        (judgement[0], why), ahead_of_saving, "`optimal` with influence measured on training rows"
    )
    return word, f"{why}; [spending over time](time.md#what-tuning-changes)"


def too_large_a_clip(results: Finished) -> Verdict | None:
    """The same with a network: a clip that is several times the one that suits the noise."""
    name = networks.WITH_LARGE_CLIPS
    gains = networks_page.gains_at_large_clips(results)
    found = judged(list(gains.values()), "claimed gain")
    if found is None:
        return None
    by_budget = ", ".join(f"{told(one)} at {budgets}" for budgets, one in gains.items())
    return found[0], (
        f"{found[1]} ({by_budget}; three seeds; {name} with {networks.TOO_LARGE:g} times the clip "
        "that was chosen for the noise); [networks](time.md#networks-trained-from-scratch)"
    )


def clip_as_stated(results: Finished) -> Verdict | None:
    """A clip of 250, measured: nothing is learned."""
    (arm,) = printed.arms()
    found = outcome(results, arm)
    if found is None or found.refused:
        return None
    best, guessing = found.percent().max(), 10.0
    learns = best > 2 * guessing
    word = "reproduced in part" if learns else "cannot be as printed"
    return word, f"at most {best:.0f}% after 25 rounds, where guessing has {guessing:.0f}; below"


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
    """Our gain for every gain that the table claims, each arm at its own choice; None if it is not
    finished.
    """
    for row, base, ours in _claims(results, table):
        yield over(results, row.cells[ours].arm, row.cells[base].arm)


def _claims(results: Finished, table: Table) -> Iterator[tuple[Row, str, str]]:
    """The line and the two columns of every gain; not twice, if a choice among settings fell on
    those of an arm that is compared already.
    """
    for row in table.rows:
        seen = []
        for base, ours in row.gains:
            arm = row.cells[base].arm
            found = outcome(results, arm)
            settings = (arm if found is None else found.arm).settings, ours
            if settings not in seen:
                seen.append(settings)
                yield row, base, ours


def ahead(results: Finished, table: Table) -> list[Gain | None]:
    """In every line of a table, how far uniform spending is ahead of what the paper proposes, with
    a clip that follows the learning rate. None if it was not run with these settings.
    """
    proposed = [
        row.cells[name].arm
        for row in table.rows
        for name in dict.fromkeys(ours for _, ours in row.gains)
    ]
    return [over(results, kiani.following(arm), arm) for arm in proposed]


def at_same_choice(results: Finished, table: Table) -> list[Gain | None]:
    """Every gain in which only the spending differs, with one learning rate and clip for both."""
    return [held_equal(results, row, *pair) for row in table.rows for pair in row.by_spending]


def held_equal(results: Finished, row: Row, base: str, ours: str) -> Gain | None:
    """What a line gains with one learning rate and clip for both arms, if only the spending
    differs; else each arm has its own.
    """
    theirs, mine = row.cells[base].arm, row.cells[ours].arm
    if (base, ours) in row.by_spending:
        mine = kiani.at_choice_of(theirs, mine)
    return over(results, mine, theirs)


def verdict(results: Finished, table: Table) -> Verdict:
    """Whether the gains that the table claims are there (interval above 0). Where only the spending
    differs, both arms have one learning rate and clip: what two searches chose is no spending.
    """
    own = list(gains(results, table))
    claimed = [held_equal(results, *claim) for claim in _claims(results, table)]
    found = judged(claimed, "tuned: claimed gain")
    if found is None:
        return "not run", cut("kiani")
    word, why = found
    why += f" (each arm at its own learning rate and clip: in {clear_of(own)})"
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
    first = table.rows[0]
    pairs, by_spending = (*first.gains, *first.beside), first.by_spending
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
            line.append(theirs + against(found[ours], found[base]))
        for pair in by_spending:
            line.append(told(held_equal(results, row, *pair)) if pair in row.by_spending else "")
        body.append(line)
    headings = [table.name, *columns, *(f"{ours} minus {base}" for base, ours in pairs)]
    headings += [f"with the learning rate and clip of {base} for both" for base, _ in by_spending]
    about = table.about[0].upper() + table.about[1:]
    return f"### {table.name}\n\n{about}.\n\n{markdown(headings, body)}"


def tables(results: Finished) -> str:
    in_order = sorted(kiani.tables(), key=lambda table: number_of(table.name))
    in_order.append(kiani.random_groups())
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
        "Tables 2 and 5 to 11, with the clip of 250 that is stated",
        cut("as-printed"),
        clip_as_stated,
    ),
    Item(
        "Tables 6 and 9, a network, clip not tuned",
        cut("networks"),
        too_large_a_clip,
    ),
    Item(
        "Tables 6 and 9, learning rate and clip not tuned, saving rates 0.5/0.6/0.7",
        cut("time"),
        untuned_gains,
    ),
    Item(
        "Figure 2, spending by round",
        "",
        lambda _: kiani_spending.judged(kiani_spending.plans()),
    ),
    Item(
        "Figure 3, training loss of clients",
        cut("client-losses"),
        lower_losses,
    ),
)
BLOCKS = {
    "as-printed": as_printed,
    "kiani-tables": tables,
    "spending": lambda _: kiani_spending.table(kiani_spending.plans()),
    "client-losses": with_seconds(losses),
}
