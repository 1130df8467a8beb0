"""The tables of docs/results/papers.md: every table and figure of the papers, with a verdict.

A verdict on a table that is run here is computed from the results file; one on a table that is
measured elsewhere in docs/ names the page, until a study of it here has results.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial

import as_printed as printed
import by_influence
import cheng
import client_losses
import gu_page
import kiani
import liu_curves
import numpy as np
import over_time
import over_time_page
import pooled
import records_cnn
import shaping
from experiment import (
    Arm,
    Finished,
    Outcome,
    Unfinished,
    cpu_hours,
    difference,
    outcome,
)
from kiani import Row, Table
from tables import accuracy, against, beside_paper, gain, markdown, with_seconds

from fedspend.runs.comparison import interval

FOLLOWING = "uniform spending with a clip that follows the learning rate"
NUMBERS = ("no", "one", "two", "three", "four", "five")
PAPERS = ["Kiani et al. (2025)", "Liu et al. (2024)", "Cheng et al. (2022)", "Gu et al. (2023)"]
Gain = tuple[float, float | None]
Verdict = tuple[str, str]  # a word, and what it rests on


def judged(found: Sequence[Gain | None], claim: str, study: str) -> Verdict | None:
    """Whether gains that are claimed are there: 95% intervals above 0. None if nothing is run."""
    finished = [one for one in found if one is not None]
    if not finished:
        return None
    there = sum(half is not None and mean > half for mean, half in finished)
    word = (
        "reproduced"
        if there == len(finished)
        else "not reproduced"
        if there == 0
        else "reproduced in part"
    )
    why = f"{claim} clear of 0 in {there} of {len(finished)} lines"
    if len(finished) < len(found):
        why += f", {len(found) - len(finished)} not run yet"
    return word, why + (f"; study `{study}`" if study else "")


# --- verdicts of studies --------------------------------------------------------------------------


def over(results: Finished, ours: Arm, base: Arm) -> Gain | None:
    """How much better one arm is than another; None if one of them is not finished."""
    one, other = outcome(results, ours), outcome(results, base)
    if one is None or other is None or one.refused or other.refused:
        return None
    return difference(one, other)


def lower_losses(results: Finished) -> Verdict | None:
    """Figure 3: at the end, clients' losses are lower under saving than under uniform spending."""
    found: dict[str, Gain | None] = {}
    for name, arms in client_losses.pairs().items():
        uniform, saving = (loss_curves(results, arm) for arm in arms)
        known = uniform is not None and saving is not None
        found[name] = interval((uniform - saving)[:, -1]) if known else None
    judgement = judged(list(found.values()), "lower loss after the last round", "")
    if judgement is None:
        return None
    told = "; ".join(f"{name} {-one[0]:+.3f}" for name, one in found.items() if one is not None)
    return judgement[0], f"{judgement[1]} (saving minus uniform: {told})"


def loss_curves(results: Finished, arm: Arm) -> np.ndarray | None:
    try:
        return client_losses.curves(results, arm)
    except Unfinished:
        return None


def pooled_lines(results: Finished, method: str) -> np.ndarray | None:
    """Accuracy by seed, in percent; None if a run is missing."""
    arm = pooled.Pooled(method)
    try:
        lr = pooled.chosen(results, arm)
        return 100 * np.array(
            [pooled.line_of(results, arm, lr, seed, 0.0)["accuracy"] for seed in pooled.SEEDS]
        )
    except Unfinished:
        return None


def sampled_over_filter(results: Finished) -> Verdict | None:
    ours, base = (pooled_lines(results, name) for name in ("rpdp, exact rates", "filter by norm"))
    if ours is None or base is None:
        return None
    found = judged([interval(ours - base)], "rpdp over the filter", pooled.STUDY)
    assert found is not None
    return found[0], found[1] + fewer_seeds(len(pooled.SEEDS), 5)


def fewer_seeds(there: int, wanted: int) -> str:
    """What a verdict adds if it rests on fewer seeds than it should.

    >>> fewer_seeds(3, 5), fewer_seeds(5, 5)
    ('; three seeds where five were wanted', '')
    """
    if there >= wanted:
        return ""
    return f"; {NUMBERS[there]} seed{'s' * (there > 1)} where {NUMBERS[wanted]} were wanted"


def shaped_over_plain(results: Finished) -> Verdict | None:
    return judged(
        [
            over(
                results, shaping.arm(data, epsilon, pull, 0.7), shaping.arm(data, epsilon, 0.0, 0.0)
            )
            for data in shaping.DATA
            for epsilon in shaping.EPSILONS
            for pull in shaping.PULLS
        ],
        "BLUR and LUS over plain",
        shaping.STUDY,
    )


def stronger_pulls(results: Finished) -> Verdict | None:
    """BLUR alone against none, at clips from small to large."""
    by_clip = {
        clip: [
            over(
                results,
                shaping.blur_alone(BLUR_DATA, clip, pull),
                shaping.blur_alone(BLUR_DATA, clip, 0.0),
            )
            for pull in shaping.PULLS
        ]
        for clip in shaping.CLIPS
    }
    found = judged(
        [one for some in by_clip.values() for one in some],
        "MNIST by writer: BLUR alone over none",
        "",
    )
    if found is None:
        return None
    clear = [f"{clip:g}" for clip, some in by_clip.items() if any(map(_is_clear, some))]
    where = f", at clip {' and '.join(clear)}" if clear else ""
    return found[0], f"{found[1]}{where}; study `{shaping.STUDY}`"


def shaped_by_alpha(results: Finished) -> Verdict | None:
    return judged(
        [
            over(results, shaping.by_alpha(alpha, shaping.PULLS[-1]), shaping.by_alpha(alpha, 0.0))
            for alpha in shaping.ALPHAS
        ],
        "BLUR and LUS over plain",
        shaping.STUDY,
    )


def by_sparsity(results: Finished) -> Verdict | None:
    return judged(
        [
            over(results, arm, shaping.arm(data, 6.0, 0.0, 0.0))
            for data in shaping.DATA
            for arm in shaping.ablation(data)
        ],
        "gain over plain",
        shaping.STUDY,
    )


Make = Callable[[str, float], Arm]  # from data and epsilon


def by_writer(results: Finished, ours: Make, base: Make) -> list[Gain | None]:
    """One method against another on data by writer, at every epsilon."""
    return [
        over(results, ours(data, epsilon), base(data, epsilon))
        for data in shaping.DATA
        for epsilon in shaping.EPSILONS
    ]


def over_discrete(results: Finished) -> Verdict | None:
    found = by_writer(results, cheng.both, cheng.ddgauss)
    return judged(found, "BLUR and LUS over discrete noise of the clients", cheng.STUDY)


def around_votes(results: Finished) -> Verdict | None:
    """Both orders of Table 1: BLUR and LUS over AE-DPFL, and that over DP-FedAvg."""
    over_votes = by_writer(results, cheng.both, cheng.one_shot)
    votes_over = by_writer(results, cheng.one_shot, cheng.plain)
    found = judged([*over_votes, *votes_over], "", "")
    if found is None:
        return None
    plain_over = by_writer(results, cheng.plain, cheng.one_shot)
    why = f"BLUR and LUS are ahead of one-shot votes in {_clear(over_votes)} lines; "
    if any(map(_is_clear, plain_over)):
        why += f"but so is plain DP-FedAvg in {_clear(plain_over)}, which the paper has behind them"
    else:
        why += f"these are ahead of plain DP-FedAvg in {_clear(votes_over)}"
    missing = over_votes.count(None)
    why += f"; {missing} not run yet" if missing else ""
    return found[0], f"{why}; study `{cheng.STUDY}`"


def _is_clear(gain: Gain | None) -> bool:
    """Whether its interval is above 0."""
    return gain is not None and gain[1] is not None and gain[0] > gain[1]


def _clear(gains: Sequence[Gain | None]) -> str:
    """How many of the finished ones are clear of 0.

    >>> _clear([(2.0, 1.0), (0.5, 1.0), None])
    '1 of 2'
    """
    return f"{sum(map(_is_clear, gains))} of {sum(one is not None for one in gains)}"


def shaped_pairs(
    make: Callable[[float], Arm], plain: Callable[[float], Arm], values: Sequence[float]
) -> Callable[[Finished], Verdict | None]:
    return lambda results: judged(
        [over(results, make(value), plain(value)) for value in values],
        "BLUR and LUS over plain",
        cheng.STUDY,
    )


def untuned_gains(results: Finished) -> Verdict | None:
    """The paper's claim with nothing chosen for the noise, by exact plans and by its own algorithm,
    which leaves a part of the budgets over.
    """

    def gained(data: str, spending: str) -> Gain | None:
        arms = (over_time.as_shipped(data, "annealed", one) for one in (spending, "uniform"))
        return over(results, *arms)

    found = {
        spending: [gained(data, spending) for data in over_time.SHIPPED]
        for spending in ("exact", "literal")
    }
    judgement = judged([one for gains in found.values() for one in gains], "claimed gain", "")
    if judgement is None:
        return None
    exact, literal = (
        ", ".join(gain(*one) for one in gains if one is not None) for gains in found.values()
    )
    ahead_of_saving = [planned_over_saving(results, data) for data in over_time.SHIPPED]
    word, why = beside(judgement, ahead_of_saving, "`optimal` with measured influence")
    return word, (
        f"{why} (exact plans {exact}; its algorithm {literal} points); "
        "[spending over time](time.md#what-tuning-changes)"
    )


def planned_over_saving(results: Finished, data: str) -> Gain | None:
    """What `optimal` with measured influence gains over saving, annealed and as shipped."""
    cell = by_influence.Cell(data, "annealed", over_time.AS_SHIPPED)
    ours = by_influence.outcome(results, cell)
    base = outcome(results, over_time.as_shipped(data, "annealed", "exact"))
    return None if ours is None or base is None else difference(ours, base)


def with_its_cnn(results: Finished) -> Verdict | None:
    base, ours = records_cnn.arms()
    found = judged([over(results, ours, base)], "rpdp over minimum", records_cnn.STUDY)
    if found is None:
        return None
    return found[0], f"{found[1]}{fewer_seeds(len(ours.seeds), 3)}; `dropout` is not run"


@dataclass(frozen=True)
class Item:
    """A table or figure that `kiani` does not run; `judge` takes precedence once it has results."""

    paper: str
    name: str
    verdict: str
    why: str
    judge: Callable[[Finished], Verdict | None] = lambda _: None

    def row(self, results: Finished) -> list[str]:
        return [self.paper, self.name, *(self.judge(results) or (self.verdict, self.why))]


RECORDS = "[Records](records.md)"
SHAPE = "[BLUR, LUS and votes](shape.md)"
BLUR_DATA = "mnist-writers"  # of Figure 1 of Cheng et al.
DESIGN = "[Design](../how-to/design.md)"
ELSEWHERE = (
    Item(
        "Kiani et al. (2025)",
        "Table 6, (2, 5, 10), learning rate and clip not tuned, saving rates 0.5/0.6/0.7",
        "not run",
        "not run yet: `--only time`",
        untuned_gains,
    ),
    Item(
        "Kiani et al. (2025)",
        "Figure 2, spending by round",
        "reproduced",
        "from plans alone: [Methods](../explanation/methods.md), and the report of every run "
        "draws it",
    ),
    Item(
        "Kiani et al. (2025)",
        "Figure 3, training loss of clients",
        "not run",
        "not run yet: `--only client-losses`",
        lower_losses,
    ),
    Item(
        "Liu et al. (2024)",
        "Figure 5 (right), the curve fit",
        "cannot be as printed",
        "the fit is close, but no bound: small budgets are overspent "
        "([Records](../how-to/records.md))",
    ),
    Item(
        "Liu et al. (2024)",
        "Figure 6, budget by rate and noise",
        "reproduced",
        "[Records](../how-to/records.md#which-noise); `fedspend records noise`",
    ),
    Item("Liu et al. (2024)", "Figure 7, heart", "reproduced", f"{RECORDS}, the filter"),
    Item(
        "Liu et al. (2024)",
        "Figure 7, MNIST",
        "reproduced in part",
        f"one seed, logistic regression; {RECORDS}, the filter",
    ),
    Item(
        "Liu et al. (2024)",
        "Table 2, heart",
        "not reproduced",
        f"no private method is clear of another; {RECORDS}, the filter",
    ),
    Item(
        "Liu et al. (2024)",
        "Table 2, MNIST",
        "not run",
        f"one untuned seed shows no gap ({RECORDS}); tuned seeds: `--only pooled`",
        sampled_over_filter,
    ),
    Item(
        "Liu et al. (2024)",
        "Figure 8, heart",
        "reproduced in part",
        f"the order of methods; clear of zero under one of three distributions; {RECORDS}",
    ),
    Item(
        "Liu et al. (2024)",
        "Figure 8, MNIST-IID",
        "reproduced",
        f"the order of methods, with logistic regression in place of the paper's CNN; {RECORDS}",
    ),
    Item(
        "Liu et al. (2024)",
        "Figure 8, MNIST-IID, the paper's CNN",
        "not run",
        "not run yet: `--only records-cnn`",
        with_its_cnn,
    ),
    Item(
        "Liu et al. (2024)",
        "Figure 8, MNIST-NIID",
        "reproduced",
        f"the order of methods, with logistic regression in place of the paper's CNN; {RECORDS}",
    ),
    Item(
        "Cheng et al. (2022)",
        "Table 1, fixed features in place of the CNN",
        "not reproduced",
        f"on MNIST by writer, with clips from 0.1 on; FEMNIST and smaller clips are not run; "
        f"{SHAPE}",
        shaped_over_plain,
    ),
    Item(
        "Cheng et al. (2022)",
        "Table 1, a CNN of 1.0M parameters",
        "not run",
        "not run yet: the last arms of `--only cheng`, FEMNIST at epsilon 4",
        lambda results: judged(
            [
                over(
                    results,
                    cheng.with_cnn("femnist", 4.0, cheng.PULL_BY_WRITER),
                    cheng.with_cnn("femnist", 4.0, 0.0),
                )
            ],
            "BLUR and LUS over plain",
            cheng.STUDY,
        ),
    ),
    Item(
        "Cheng et al. (2022)",
        "Table 1, against DDGauss",
        "not run",
        "not run yet: `--only cheng`",
        over_discrete,
    ),
    Item(
        "Cheng et al. (2022)",
        "Table 1, against AE-DPFL",
        "not run",
        f"one-shot votes are not run yet: `--only cheng`; votes in rounds: {SHAPE}",
        around_votes,
    ),
    Item("Cheng et al. (2022)", "Table 1, ResNet-18", "not run", "days on one core"),
    Item(
        "Cheng et al. (2022)",
        "Table 2, fixed features in place of the CNN",
        "not run",
        "CIFAR-10; `examples/shape/cifar10.toml`",
        shaped_by_alpha,
    ),
    Item("Cheng et al. (2022)", "Table 2, ResNet-18", "not run", "days on one core"),
    Item(
        "Cheng et al. (2022)",
        "Table 3, sparsity",
        "not reproduced",
        f"on MNIST by writer at clip 1, where BLUR hardly acts; smaller clips are not run; {SHAPE}",
        by_sparsity,
    ),
    Item(
        "Cheng et al. (2022)",
        "Figure 1, strength of BLUR",
        "not reproduced",
        f"at clip 1 only; {SHAPE}",
        stronger_pulls,
    ),
    Item("Cheng et al. (2022)", "Figure 2, norms by round", "reproduced", f"{SHAPE}"),
    Item(
        "Cheng et al. (2022)",
        "Figure 3, local steps",
        "not run",
        "CIFAR-10, not run yet: `--only cheng`",
        shaped_pairs(
            lambda steps: cheng.by_steps(int(steps), cheng.PULL),
            lambda steps: cheng.by_steps(int(steps), 0.0),
            cheng.STEPS,
        ),
    ),
    Item(
        "Cheng et al. (2022)",
        "Figure 4, participation",
        "not run",
        "CIFAR-10, not run yet: `--only cheng`",
        shaped_pairs(
            lambda rate: cheng.by_rate(rate, cheng.PULL),
            lambda rate: cheng.by_rate(rate, 0.0),
            cheng.RATES,
        ),
    ),
    Item("Gu et al. (2023)", "Figure 1, theory", "reproduced", f"corrected at T_max; {DESIGN}"),
    Item(
        "Gu et al. (2023)",
        "Figure 2a, logistic, free rate",
        "reproduced",
        f"three rates, two seeds; {DESIGN}; all seven not run yet: `--only gu-logistic`",
        gu_page.judge("logistic", "Figure 2"),
    ),
    Item(
        "Gu et al. (2023)",
        "Figure 2b, LeNet, free rate",
        "not run",
        "not run yet: `--only gu-lenet`",
        gu_page.judge("lenet", "Figure 2"),
    ),
    *(
        Item(
            "Gu et al. (2023)",
            f"Figure 3, {name}, case {case}",
            "not run",
            f"not run yet: `--only gu-{model}`",
            gu_page.judge(model, "Figure 3", f"case {case}"),
        )
        for model, name in gu_page.MODELS.items()
        for case in ("I", "II", "III")
    ),
    Item(
        "Gu et al. (2023)",
        "Figure 4, logistic, epochs",
        "reproduced in part",
        f"at 10 and 20 local steps, not at 5; {DESIGN}",
        gu_page.judge("logistic", "Figure 4"),
    ),
    Item(
        "Gu et al. (2023)",
        "Figure 4, LeNet, epochs",
        "not run",
        "not run yet: `--only gu-lenet`",
        gu_page.judge("lenet", "Figure 4"),
    ),
    Item(
        "Gu et al. (2023)",
        "Figure 5, logistic, clients",
        "reproduced",
        DESIGN,
        gu_page.judge("logistic", "Figure 5"),
    ),
    Item(
        "Gu et al. (2023)",
        "Figure 5, LeNet, clients",
        "not run",
        "not run yet: `--only gu-lenet`",
        gu_page.judge("lenet", "Figure 5"),
    ),
    Item(
        "Gu et al. (2023)",
        "Figure 6, logistic, public data",
        "reproduced",
        DESIGN,
        gu_page.judge("logistic", "Figure 6"),
    ),
    Item(
        "Gu et al. (2023)",
        "Figure 6, LeNet, public data",
        "not run",
        "not run yet: `--only gu-lenet`",
        gu_page.judge("lenet", "Figure 6"),
    ),
    Item(
        "Gu et al. (2023)",
        "Tables II and III, cost",
        "reproduced in part",
        f"cheaper from the second setting on; {DESIGN}",
    ),
)


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


def beside(found: Verdict, gains: Sequence[Gain | None], alternative: str) -> Verdict:
    """The verdict on the paper's effect, with `better` beside it if our alternative is clear of
    what the paper proposes wherever they were compared, and that is at least half of the lines.

    >>> beside(("reproduced", "x"), [(2.0, 1.0), None], "ours")
    ('reproduced, better', "x; ours ahead of the paper's method in 1 of 1 lines")
    >>> beside(("not reproduced", "x"), [(2.0, 1.0), None, None], "ours")[0]
    'not reproduced'
    """
    word, why = found
    compared = [one for one in gains if one is not None]
    if not compared:
        return found
    clear = sum(half is not None and mean > half for mean, half in compared)
    better = clear == len(compared) and 2 * clear >= len(gains)
    why += f"; {alternative} ahead of the paper's method in {clear} of {len(compared)} lines"
    return word + (", better" if better else ""), why


def verdict(results: Finished, table: Table) -> Verdict:
    """Whether the gains that the table claims are there (interval above 0)."""
    found = judged(list(gains(results, table)), "claimed gain", "")
    if found is None:
        return "not run", "not run yet: `--only kiani`"
    word, why = beside(found, ahead(results, table), FOLLOWING)
    why += sizes(results, table)
    return word, why


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


def verdicts(results: Finished) -> str:
    ours = [
        ["Kiani et al. (2025)", f"{table.name}", *verdict(results, table)]
        for table in kiani.tables()
    ]
    figure = ["Kiani et al. (2025)", "Figure 1", *verdict(results, kiani.figure_1())]
    figure[-1] = f"the curves of two lines of Table 2: {figure[-1]}"
    computed = [
        [
            "Liu et al. (2024)",
            f"{name}, curves by order",
            "reproduced" if liu_curves.curve(terms).as_claimed else "not reproduced",
            "computed below; every rate has one epsilon, which grows with it",
        ]
        for name, terms in liu_curves.FIGURES.items()
    ]
    rows = [*ours, figure, *computed, *(item.row(results) for item in ELSEWHERE)]
    rows.sort(key=lambda row: (PAPERS.index(row[0]), _number(row[1])))
    return markdown(["paper", "table or figure", "verdict", "what it rests on"], rows)


def shown(table: Table, results: Finished) -> str:
    """Paper's number / ours for every cell, then the gains."""
    columns = list(table.rows[0].cells)
    pairs = table.rows[0].gains
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
        body.append(line)
    headings = [table.name, *columns, *(f"{ours} minus {base}" for base, ours in pairs)]
    about = table.about[0].upper() + table.about[1:]
    return f"### {table.name}\n\n{about}.\n\n{markdown(headings, body)}"


def tables(results: Finished) -> str:
    in_order = sorted(kiani.tables(), key=lambda table: _number(table.name))
    return "\n\n".join(with_seconds(partial(shown, table))(results) for table in in_order)


def _number(name: str) -> tuple[bool, int]:
    """Tables before figures, each by its number.

    >>> _number("Figures 4 and 5"), _number("Tables II and III, cost"), _number("Figure 2a, x")
    ((True, 4), (False, 2), (True, 2))
    """
    found = re.match(r"(Table|Figure)s? (\d+|I+)", name)
    assert found is not None, name
    kind, number = found.groups()
    return kind == "Figure", int(number) if number.isdigit() else len(number)


def with_cnn(results: Finished) -> str:
    found = {arm.label[-1]: outcome(results, arm) for arm in records_cnn.arms()}
    body = [
        [
            name,
            "-" if one is None else f"{one.choice[0]:g} ({one.tried} tried)",
            _accuracy(one),
            "" if name == "rpdp" else against(found["rpdp"], one),
        ]
        for name, one in found.items()
    ]
    base, ours = records_cnn.arms()
    seeds, fewer = NUMBERS[len(ours.seeds)].capitalize(), len(ours.seeds) < 3
    about = (
        f"{seeds} seeds{' where three are wanted' if fewer else ''}, and no `dropout`. The "
        f"learning rate of `minimum` is searched by {base.tries} tries at most. That of `rpdp`, at "
        f"half an hour of CPU a run, is not: {ours.start[0]:g} was set beforehand, when three "
        "tries had given `minimum` 0.025. Batches of `rpdp` are 5.5 times as large, so that with "
        "5.5 times that learning rate a step would have as much noise; it was rounded down. A "
        "search could only help `rpdp`, so a lead of it is, but for chance, a lower bound."
    )
    table = markdown(
        ["MNIST-IID, three-levels, CNN", "learning rate", "accuracy", "rpdp minus this method"],
        body,
    )
    return f"{about}\n\n{table}"


def shaped(results: Finished) -> str:
    """BLUR and LUS against plain DP-FedAvg, each arm with its own learning rate and clip."""
    body = []
    for data in shaping.DATA:
        for epsilon in shaping.EPSILONS:
            plain = outcome(results, shaping.arm(data, epsilon, 0.0, 0.0))
            paper = cheng.TABLE_1[epsilon] if data == "femnist" else None
            row = [
                f"{data}, epsilon {epsilon:g}",
                beside_paper(_printed(paper, 0), _accuracy(plain)),
            ]
            for pull in shaping.PULLS:
                ours = against(outcome(results, shaping.arm(data, epsilon, pull, 0.7)), plain)
                theirs = _printed_gain(paper) if pull == cheng.PULL_BY_WRITER else ""
                row.append(beside_paper(theirs, ours))
            body.append(row)
    for alpha in shaping.ALPHAS:
        paper = cheng.TABLE_2[alpha]
        plain = outcome(results, shaping.by_alpha(alpha, 0.0))
        both = against(outcome(results, shaping.by_alpha(alpha, cheng.PULL)), plain)
        body.append(
            [
                f"cifar10, alpha {alpha:g}, epsilon 8",
                beside_paper(_printed(paper, 0), _accuracy(plain)),
                "",
                "",
                beside_paper(_printed_gain(paper), both),
            ]
        )
    return markdown(
        ["", "plain", *(f"lambda lr = {pull:g}, sparsity 0.7" for pull in shaping.PULLS)], body
    )


def _printed(paper: Sequence[float] | None, place: int) -> str:
    """A number of Cheng et al. as they print it; nothing where they have none."""
    return "" if paper is None else f"{paper[place]:.2f}"


def _printed_gain(paper: Sequence[float] | None) -> str:
    """Of their method over DP-FedAvg."""
    return "" if paper is None else f"{paper[-1] - paper[0]:+.2f}"


def blur_alone(results: Finished) -> str:
    """Figure 1; each arm has its own learning rate."""
    body = []
    for clip in shaping.CLIPS:
        plain, *pulled = (
            outcome(results, shaping.blur_alone(BLUR_DATA, clip, pull))
            for pull in (0.0, *shaping.PULLS)
        )
        by_pull = [against(one, plain, digits=2) for one in pulled]
        body.append([f"clip {clip:g}", _accuracy(plain), *by_pull])
    return markdown(
        [
            f"{BLUR_DATA}, epsilon 6, no LUS",
            "lambda = 0",
            *(f"lambda lr = {pull:g}" for pull in shaping.PULLS),
        ],
        body,
    )


def sparsities(results: Finished) -> str:
    """Table 3: what LUS gains over plain DP-FedAvg, alone and with BLUR."""
    plains = {data: outcome(results, cheng.plain(data, 6.0)) for data in shaping.DATA}
    found = {
        arm.label[:-1]: against(outcome(results, arm), plains[data], digits=2)
        for data in shaping.DATA
        for arm in shaping.ablation(data)
    }

    def ours(pull: float, sparsity: float) -> list[str]:
        return [found[shaping.arm(data, 6.0, pull, sparsity).label] for data in plains]

    body = [
        ["neither: accuracy", f"*{cheng.TABLE_3_PLAIN}*", *map(_accuracy, plains.values())]
        + 3 * [""],
        ["BLUR alone: gain", *3 * [""], "", *ours(cheng.PULL_BY_WRITER, 0.0)],
    ]
    for sparsity, paper in cheng.TABLE_3.items():
        alone, both = (f"*{one - cheng.TABLE_3_PLAIN:+.2f}*" for one in paper)
        cells = [alone, *ours(0.0, sparsity), both, *ours(cheng.PULL_BY_WRITER, sparsity)]
        body.append([f"sparsity {sparsity:g}: gain", *cells])
    columns = ["*paper*", *shaping.DATA]
    return markdown(
        [
            "epsilon 6",
            *(f"LUS, {name}" for name in columns),
            *(f"BLUR and LUS, {name}" for name in columns),
        ],
        body,
    )


def shaped_by_clip(results: Finished) -> str:
    """BLUR with LUS at given clips; each arm has its own learning rate."""
    body = []
    for data in shaping.DATA:
        for clip in shaping.CLIPS:
            plain, *shaped = (
                outcome(results, shaping.by_clip(data, clip, pull))
                for pull in (0.0, *shaping.PULLS)
            )
            body.append(
                [f"{data}, clip {clip:g}", _accuracy(plain)]
                + [against(one, plain) for one in shaped]
            )
    return markdown(
        ["epsilon 4", "plain", *(f"lambda lr = {pull:g}, sparsity 0.7" for pull in shaping.PULLS)],
        body,
    )


def _accuracy(one: Outcome | None) -> str:
    return "-" if one is None or one.refused else accuracy(*interval(one.percent()))


def against_others(results: Finished) -> str:
    """What Cheng et al. compare with, beside plain DP-FedAvg and BLUR with LUS."""
    columns = {
        "plain": cheng.plain,
        "one-shot votes (AE-DPFL)": cheng.one_shot,
        "DDGauss": cheng.ddgauss,
        f"lambda lr = {cheng.PULL_BY_WRITER:g}, sparsity {cheng.SPARSITY:g}": cheng.both,
    }  # in the order of the paper's table
    body = []
    for data in shaping.DATA:
        for epsilon in shaping.EPSILONS:
            paper = cheng.TABLE_1[epsilon] if data == "femnist" else None
            cells = [
                beside_paper(_printed(paper, n), _accuracy(outcome(results, make(data, epsilon))))
                for n, make in enumerate(columns.values())
            ]
            body.append([f"{data}, epsilon {epsilon:g}", *cells])
    return markdown(["", *columns], body)


def figures_3_and_4(results: Finished) -> str:
    body = [
        [title, _accuracy(outcome(results, plain)), _told(over(results, ours, plain))]
        for title, ours, plain in (
            *(
                (f"{n} local steps", cheng.by_steps(n, cheng.PULL), cheng.by_steps(n, 0.0))
                for n in cheng.STEPS
            ),
            *(
                (f"rate {q:g}", cheng.by_rate(q, cheng.PULL), cheng.by_rate(q, 0.0))
                for q in cheng.RATES
            ),
        )
    ]
    return markdown([f"CIFAR-10, alpha {cheng.ALPHA:g}", "plain", "BLUR and LUS minus plain"], body)


def final_gradients(results: Finished) -> str:
    body = []
    for data in shaping.DATA:
        last_batch, final = cheng.both(data, 4.0), cheng.final_gradient(data, 4.0)
        row = [_accuracy(outcome(results, one)) for one in (last_batch, final)]
        ahead_of = (over(results, final, other) for other in (last_batch, cheng.plain(data, 4.0)))
        body.append([f"{data}, epsilon 4", *row, *map(_told, ahead_of)])
    return markdown(
        [
            "LUS at the gradient of",
            "the last batch",
            "the final model",
            "final model minus last batch",
            "final model minus plain",
        ],
        body,
    )


def cheng_cnn(results: Finished) -> str:
    plain, shaped = (
        outcome(results, cheng.with_cnn("femnist", 4.0, pull))
        for pull in (0.0, cheng.PULL_BY_WRITER)
    )
    paper = cheng.TABLE_1[4.0]
    return markdown(
        ["CNN of 1.0M parameters", "plain", f"lambda lr = {cheng.PULL_BY_WRITER:g}, sparsity 0.7"],
        [
            [
                "femnist, epsilon 4",
                beside_paper(_printed(paper, 0), _accuracy(plain)),
                beside_paper(_printed_gain(paper), against(shaped, plain)),
            ]
        ],
    )


def pooled_table(results: Finished) -> str:
    sampled = "rpdp, exact rates"
    lines = {method: pooled_lines(results, method) for method in pooled.METHODS}
    body = []
    for method, found in lines.items():
        paper, ours = pooled.PAPER.get(method), lines[sampled]
        body.append(
            [
                f"{method} (the paper: SCF)" if method == sampled else method,
                beside_paper(
                    "" if paper is None else f"{paper:.2f}",
                    "-" if found is None else accuracy(*interval(found)),
                ),
                ""
                if method == sampled
                else _told(None if found is None or ours is None else interval(ours - found)),
            ]
        )
    return markdown(["MNIST, pooled", "accuracy", "rpdp minus this method"], body)


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


def in_the_readme(results: Finished) -> str:
    """What individual budgets and saving gain, in a sentence each."""
    strict, own = "DP-FedAvg, epsilon 10", "IDP-FedAvg"
    rows = [row for row in kiani.table_2().rows if not row.title.startswith("adult, MLP")]
    first, *others = (
        (
            _told(over(results, row.cells[own].arm, row.cells[strict].arm)),
            over_time_page.NAMES[row.title.partition(",")[0]],
        )
        for row in rows
    )
    budgets = ["{} points on {}".format(*first), *("{} on {}".format(*one) for one in others)]
    saving = [
        over_time_page.untuned_gain(results, data, "annealed", "exact")
        for data in over_time.SHIPPED
    ]
    planned = [
        over_time_page.by_measured_influence(results, data, "annealed", over_time.AS_SHIPPED)
        for data in over_time.SHIPPED
    ]
    fixed, follows = (
        over_time_page.mean_gain(results, schedule) for schedule in ("annealed", "following")
    )
    return (
        "- **Honest about gains.** *Individual budgets*, over giving everyone the strictest: "
        f"{', '.join(budgets)}. *Saving for later rounds*, over uniform spending: "
        f"{' and '.join(saving)} points where the learning rate falls and nothing is tuned "
        f"(planned with measured influence {' and '.join(planned)}), "
        f"{fixed} on average once learning rate and clip are, and {follows} where the "
        "clip follows the learning rate ([when, and why](docs/results/time.md)). The plan says "
        "which it is."
    )


def _told(found: Gain | None) -> str:
    return "-" if found is None else gain(*found)


def cost(results: Finished) -> str:
    by_study: dict[str, list[dict[str, float]]] = {}
    for line in results.found.values():
        by_study.setdefault(line["study"].partition(",")[0], []).append(line)
    body = [
        [study, str(len(lines)), f"{cpu_hours(lines):.2f}"]
        for study, lines in sorted(by_study.items())
    ]
    body.append(["all", str(len(results.found)), f"{cpu_hours(results.found.values()):.2f}"])
    return markdown(["study", "runs", "CPU hours"], body)


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


BLOCKS = {
    "verdicts": verdicts,
    "as-printed": as_printed,
    "kiani-tables": tables,
    "client-losses": with_seconds(losses),
    "pooled": with_seconds(pooled_table),
    "shaping-tables": with_seconds(shaped),
    "cheng-others": with_seconds(against_others),
    "cheng-sparsity": with_seconds(sparsities),
    "cheng-blur": with_seconds(blur_alone),
    "shaping-clips": with_seconds(shaped_by_clip),
    "cheng-figures": with_seconds(figures_3_and_4),
    "cheng-final": with_seconds(final_gradients),
    "cheng-cnn": with_seconds(cheng_cnn),
    "records-cnn": with_seconds(with_cnn),
    "liu-curves": lambda _: liu_curves.curves(),
    "liu-overspending": lambda _: liu_curves.overspending(),
    "cost": cost,
    **gu_page.BLOCKS,
}
