"""The tables of docs/results/papers.md: every table and figure of the papers, with a verdict.

A verdict on a table that is run here is computed from the results file; one on a table that is
measured elsewhere in docs/ names the page, until a study of it here has results.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import as_printed as printed
import cheng
import client_losses
import gu_page
import kiani
import liu_curves
import numpy as np
import over_time
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
from tables import accuracy, gain, markdown

from fedspend.runs.comparison import interval

FOLLOWING = "uniform spending with a clip that follows the learning rate"
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
    try:
        uniform, saving = (client_losses.curves(results, arm) for arm in client_losses.arms())
    except Unfinished:
        return None
    if uniform is None or saving is None:
        return None
    found = judged([interval((uniform - saving)[:, -1])], "lower loss", client_losses.STUDY)
    assert found is not None
    means = (float(curves[:, -1].mean()) for curves in (uniform, saving))
    return found[
        0
    ], "mean loss of clients after the last round: {:.3f} uniform, {:.3f} saving".format(*means)


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
    return judged([interval(ours - base)], "rpdp over the filter", pooled.STUDY)


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
    """BLUR against none, at clips from small to large."""
    return judged(
        [
            over(results, shaping.by_clip(data, clip, pull), shaping.by_clip(data, clip, 0.0))
            for data in shaping.DATA
            for clip in shaping.CLIPS
            for pull in shaping.PULLS
        ],
        "BLUR and LUS over plain at the same clip",
        shaping.STUDY,
    )


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


def over_others(
    make: Callable[[str, float], Arm], name: str
) -> Callable[[Finished], Verdict | None]:
    """The paper's method against another one, at every epsilon."""
    return lambda results: judged(
        [
            over(
                results,
                shaping.arm(data, epsilon, cheng.PULL, cheng.SPARSITY),
                make(data, epsilon),
            )
            for data in shaping.DATA
            for epsilon in shaping.EPSILONS
        ],
        f"BLUR and LUS over {name}",
        cheng.STUDY,
    )


def shaped_pairs(
    make: Callable[[float], Arm], plain: Callable[[float], Arm], values: Sequence[float]
) -> Callable[[Finished], Verdict | None]:
    return lambda results: judged(
        [over(results, make(value), plain(value)) for value in values],
        "BLUR and LUS over plain",
        cheng.STUDY,
    )


def untuned_gains(results: Finished) -> Verdict | None:
    """The paper's claim as its author would test it: nothing is chosen for the noise."""
    arms = {arm.label: arm for arm in over_time.untuned()}
    found = [
        over(results, *(arms[data, "2/5/10", "annealed", name] for name in ("exact", "uniform")))
        for data in ("fashion-mnist", "mnist")
    ]
    judgement = judged(found, "claimed gain", "")
    if judgement is None:
        return None
    told = ", ".join(gain(*one) for one in found if one is not None)
    word, why = judgement
    return word, f"{why} ({told} points); [spending over time](time.md#what-tuning-changes)"


def with_its_cnn(results: Finished) -> Verdict | None:
    ours, base = records_cnn.arms()
    return judged([over(results, ours, base)], "rpdp over minimum", records_cnn.STUDY)


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
DESIGN = "[Design](../how-to/design.md)"
ELSEWHERE = (
    Item(
        "Kiani et al. (2025)",
        "Table 6, (2, 5, 10), nothing tuned for the noise",
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
        "not reproduced",
        "one seed, untuned, logistic regression; five tuned seeds are not run yet: `--only pooled`",
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
        f"the order of methods, with logistic regression; the paper's CNN is not run; {RECORDS}",
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
        f"the order of methods, with logistic regression; the paper's CNN is not run; {RECORDS}",
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
                    cheng.with_cnn("femnist", 4.0, cheng.PULL),
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
        over_others(cheng.ddgauss, "discrete noise of the clients"),
    ),
    Item(
        "Cheng et al. (2022)",
        "Table 1, against AE-DPFL",
        "not run",
        f"one-shot votes are not run yet: `--only cheng`; votes in rounds: {SHAPE}",
        over_others(cheng.one_shot, "one-shot votes"),
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
    better = [
        float(one.percent().mean()) > cell.paper
        for row in table.rows
        for name, one in outcomes(results, row).items()
        if one is not None and (cell := row.cells[name]).paper is not None
    ]
    if better:
        why += f"; accuracy above the paper's in {sum(better)} of {len(better)} cells"
    return word, why


def verdicts(results: Finished) -> str:
    ours = [
        ["Kiani et al. (2025)", f"{table.name}", *verdict(results, table)]
        for table in sorted(kiani.tables(), key=lambda table: _number(table.name))
    ]
    figure = ["Kiani et al. (2025)", "Figure 1", *verdict(results, kiani.tables()[0])]
    figure[-1] = f"the curves of Table 2: {figure[-1]}"
    computed = [
        [
            "Liu et al. (2024)",
            f"{name}, curves by order",
            "reproduced" if liu_curves.curve(terms).as_claimed else "not reproduced",
            "computed below; every rate has one epsilon, which grows with it",
        ]
        for name, terms in liu_curves.FIGURES.items()
    ]
    rest = [item.row(results) for item in ELSEWHERE]
    return markdown(
        ["paper", "table or figure", "verdict", "what it rests on"],
        [*ours, figure, *rest[:2], *computed, *rest[2:]],
    )


def shown(results: Finished, table: Table) -> str:
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
    return "\n\n".join(shown(results, table) for table in in_order)


def _number(name: str) -> tuple[str, int]:
    kind, number = name.split()[:2]
    return ("z" if kind.startswith("Figure") else kind), int(number)


def with_cnn(results: Finished) -> str:
    found = {arm.label[-1]: outcome(results, arm) for arm in records_cnn.arms()}
    body = [
        [name, _accuracy(one), "" if name == "rpdp" else _against(found["rpdp"], one)]
        for name, one in found.items()
    ]
    return markdown(["MNIST-IID, three-levels, CNN", "accuracy", "rpdp minus this method"], body)


def shaped(results: Finished) -> str:
    """BLUR and LUS against plain DP-FedAvg, each arm with its own learning rate and clip."""
    body = []
    for data in shaping.DATA:
        for epsilon in shaping.EPSILONS:
            plain = outcome(results, shaping.arm(data, epsilon, 0.0, 0.0))
            row = [f"{data}, epsilon {epsilon:g}", _accuracy(plain)]
            for pull in shaping.PULLS:
                row.append(_against(outcome(results, shaping.arm(data, epsilon, pull, 0.7)), plain))
            body.append(row)
    for alpha in shaping.ALPHAS:
        plain = outcome(results, shaping.by_alpha(alpha, 0.0))
        both = _against(outcome(results, shaping.by_alpha(alpha, shaping.PULLS[-1])), plain)
        body.append([f"cifar10, alpha {alpha:g}, epsilon 8", _accuracy(plain), "", "", both])
    return markdown(
        ["", "plain", *(f"lambda lr = {pull:g}, sparsity 0.7" for pull in shaping.PULLS)], body
    )


def shaped_by_clip(results: Finished) -> str:
    """The same at given clips; each arm has its own learning rate."""
    body = []
    for data in shaping.DATA:
        for clip in shaping.CLIPS:
            plain, *shaped = (
                outcome(results, shaping.by_clip(data, clip, pull))
                for pull in (0.0, *shaping.PULLS)
            )
            body.append(
                [f"{data}, clip {clip:g}", _accuracy(plain)]
                + [_against(one, plain) for one in shaped]
            )
    return markdown(
        ["epsilon 4", "plain", *(f"lambda lr = {pull:g}, sparsity 0.7" for pull in shaping.PULLS)],
        body,
    )


def _accuracy(one: Outcome | None) -> str:
    return "-" if one is None or one.refused else accuracy(*interval(one.percent()))


def _against(ours: Outcome | None, base: Outcome | None) -> str:
    if ours is None or base is None or ours.refused or base.refused:
        return "-"
    return gain(*difference(ours, base))


def against_others(results: Finished) -> str:
    """What Cheng et al. compare with, beside plain DP-FedAvg and BLUR with LUS."""
    body = []
    for data in shaping.DATA:
        for epsilon in shaping.EPSILONS:
            plain = shaping.arm(data, epsilon, 0.0, 0.0)
            ours = shaping.arm(data, epsilon, cheng.PULL, cheng.SPARSITY)
            others = (cheng.ddgauss(data, epsilon), cheng.one_shot(data, epsilon), ours)
            body.append(
                [f"{data}, epsilon {epsilon:g}"]
                + [_accuracy(outcome(results, arm)) for arm in (plain, *others)]
            )
    return markdown(
        ["", "plain", "DDGauss", "one-shot votes", f"lambda lr = {cheng.PULL:g}, sparsity 0.7"],
        body,
    )


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
        last_batch = shaping.arm(data, 4.0, cheng.PULL, cheng.SPARSITY)
        final = cheng.final_gradient(data, 4.0, cheng.PULL)
        row = [_accuracy(outcome(results, one)) for one in (last_batch, final)]
        body.append([f"{data}, epsilon 4", *row, _told(over(results, final, last_batch))])
    return markdown(["LUS at the gradient of", "the last batch", "the final model", "gain"], body)


def pooled_table(results: Finished) -> str:
    body = []
    for method in pooled.METHODS:
        found, paper = pooled_lines(results, method), pooled.PAPER.get(method)
        theirs = "" if paper is None else f"*{paper:.1f}* / "
        body.append([method, theirs + ("-" if found is None else accuracy(*interval(found)))])
    return markdown(["MNIST, pooled", "accuracy"], body)


def losses(results: Finished) -> str:
    rounds = (1, 5, 10, 13, 15, 20, 25)
    body = []
    for arm, name in zip(client_losses.arms(), ("uniform", "saving"), strict=True):
        try:
            found = client_losses.curves(results, arm)
        except Unfinished:
            found = None
        cells = ["-"] * len(rounds)
        if found is not None:
            cells = [f"{found[:, n - 1].mean():.3f}" for n in rounds]
        body.append([name, *cells])
    return markdown(["mean loss of clients after round", *map(str, rounds)], body)


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
        "25 rounds, where guessing has 10."
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
    "client-losses": losses,
    "pooled": pooled_table,
    "shaping-tables": shaped,
    "shaping-clips": shaped_by_clip,
    "cheng-others": against_others,
    "cheng-figures": figures_3_and_4,
    "cheng-final": final_gradients,
    "records-cnn": with_cnn,
    "liu-curves": lambda _: liu_curves.curves(),
    "liu-overspending": lambda _: liu_curves.overspending(),
    "cost": cost,
    **gu_page.BLOCKS,
}
