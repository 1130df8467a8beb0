"""The tables of docs/results/papers.md: every table and figure of the papers, with a verdict.

A verdict on a table that is run here is computed from the results file; one on a table that is
measured elsewhere in docs/ names the page.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache

import kiani
import lenet
import liu_curves
import records_cnn
import shaping
from experiment import Finished, Outcome, cpu_hours, difference, outcome
from kiani import Row, Table
from tables import accuracy, gain, markdown

from fedspend.runs.comparison import interval

Gain = tuple[float, float | None]


@dataclass(frozen=True)
class Item:
    """A table or figure that `kiani` does not run."""

    paper: str
    name: str
    verdict: str
    why: str


RECORDS = "[Records](records.md)"
SHAPE = "[BLUR, LUS and votes](shape.md)"
DESIGN = "[Design](../how-to/design.md)"
ELSEWHERE = (
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
        "the loss of each client on its own rows is not recorded yet",
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
        "one seed, untuned, logistic regression; five tuned seeds are not run yet",
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
        "Figure 8, MNIST-NIID",
        "reproduced",
        f"the order of methods, with logistic regression; the paper's CNN is not run; {RECORDS}",
    ),
    Item(
        "Cheng et al. (2022)",
        "Table 1, CNN",
        "not reproduced",
        f"on MNIST by writer, with clips from 0.1 on; FEMNIST and smaller clips are not run; "
        f"{SHAPE}",
    ),
    Item("Cheng et al. (2022)", "Table 1, ResNet-18", "not run", "days on one core"),
    Item(
        "Cheng et al. (2022)", "Table 2, CNN", "not run", "CIFAR-10; `examples/shape/cifar10.toml`"
    ),
    Item("Cheng et al. (2022)", "Table 2, ResNet-18", "not run", "days on one core"),
    Item(
        "Cheng et al. (2022)",
        "Table 3, sparsity",
        "not reproduced",
        f"on MNIST by writer at clip 1, where BLUR hardly acts; smaller clips are not run; {SHAPE}",
    ),
    Item(
        "Cheng et al. (2022)",
        "Figure 1, strength of BLUR",
        "not reproduced",
        f"at clip 1 only; {SHAPE}",
    ),
    Item("Cheng et al. (2022)", "Figure 2, norms by round", "reproduced", f"{SHAPE}"),
    Item("Cheng et al. (2022)", "Figure 3, local steps", "not run", "CIFAR-10"),
    Item("Cheng et al. (2022)", "Figure 4, participation", "not run", "CIFAR-10"),
    Item("Gu et al. (2023)", "Figure 1, theory", "reproduced", f"corrected at T_max; {DESIGN}"),
    Item("Gu et al. (2023)", "Figure 2a, logistic, free rate", "reproduced", DESIGN),
    Item("Gu et al. (2023)", "Figure 2b, LeNet, free rate", "not run", "LeNet in its own setting"),
    Item("Gu et al. (2023)", "Figure 3, logistic, case I", "reproduced", DESIGN),
    Item("Gu et al. (2023)", "Figure 3, cases II and III", "not run", "theory only so far"),
    Item(
        "Gu et al. (2023)",
        "Figure 3, LeNet",
        "reproduced in part",
        f"much reduced, another k and slope; {DESIGN}",
    ),
    Item(
        "Gu et al. (2023)",
        "Figure 4, logistic, epochs",
        "reproduced in part",
        f"at 10 and 20 local steps, not at 5; {DESIGN}",
    ),
    Item("Gu et al. (2023)", "Figure 4, LeNet, epochs", "not run", "LeNet in its own setting"),
    Item("Gu et al. (2023)", "Figure 5, logistic, clients", "reproduced", DESIGN),
    Item("Gu et al. (2023)", "Figure 5, LeNet, clients", "not run", "LeNet in its own setting"),
    Item("Gu et al. (2023)", "Figure 6, logistic, public data", "reproduced", DESIGN),
    Item("Gu et al. (2023)", "Figure 6, LeNet, public data", "not run", "LeNet in its own setting"),
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


def verdict(results: Finished, table: Table) -> tuple[str, str]:
    """Whether the gains that the table claims are there (interval above 0)."""
    all_of_them = list(gains(results, table))
    found = [one for one in all_of_them if one is not None]
    if not found:
        return "not run", "queued"
    there = sum(half is not None and mean > half for mean, half in found)
    word = (
        "reproduced"
        if there == len(found)
        else "not reproduced"
        if there == 0
        else "reproduced in part"
    )
    better = [
        float(one.percent().mean()) > cell.paper
        for row in table.rows
        for name, one in outcomes(results, row).items()
        if one is not None and (cell := row.cells[name]).paper is not None
    ]
    why = f"gain over uniform clear of 0 in {there} of {len(found)} lines"
    if len(found) < len(all_of_them):
        why += f", {len(all_of_them) - len(found)} not run yet"
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
    rest = [[item.paper, item.name, item.verdict, item.why] for item in ELSEWHERE]
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


def lenet_searches(results: Finished) -> str:
    body = []
    for name, overrides in lenet.VARIANTS.items():
        line = results.found.get(lenet.key(overrides))
        k = line and line["k"]
        spread = f"{_shown(k[1])} to {_shown(k[2])}" if k else "-"
        body.append(
            [name, _shown(k[0]) if k else "-", spread, _shown(line["slope"], 2) if line else "-"]
        )
    return markdown(["LeNet", "k", "95% interval", "slope (theory: 1)"], body)


def _shown(value: float | None, digits: int = 0) -> str:
    return "none" if value is None else f"{value:.{digits}f}"


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


def _accuracy(one: Outcome | None) -> str:
    return "-" if one is None or one.refused else accuracy(*interval(one.percent()))


def _against(ours: Outcome | None, base: Outcome | None) -> str:
    if ours is None or base is None or ours.refused or base.refused:
        return "-"
    return gain(*difference(ours, base))


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


def as_printed(_: Finished) -> str:
    return _as_printed()


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
    "shaping-tables": shaped,
    "records-cnn": with_cnn,
    "lenet": lenet_searches,
    "liu-curves": lambda _: liu_curves.curves(),
    "liu-overspending": lambda _: liu_curves.overspending(),
    "cost": cost,
}
