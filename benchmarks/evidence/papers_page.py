"""docs/results/papers.md: every table and figure of the papers, with a verdict.

Every verdict is computed, from the results files or, where nothing has to be trained, from plans
and formulas. What is not run says why.
"""

from __future__ import annotations

from collections import Counter

import cheng_page
import gu_page
import kiani
import kiani_page
import left_out
import liu_page
import over_time
import over_time_page
import records_cnn
import untuned_page
from experiment import Finished, cpu_hours
from judging import NUMBERS, number_of, over, told
from tables import markdown

PAPERS = {
    kiani_page.PAPER: kiani_page.rows,
    liu_page.PAPER: liu_page.rows,
    cheng_page.PAPER: cheng_page.rows,
    gu_page.PAPER: gu_page.rows,
}
FINDINGS = {  # in a sentence, without a number
    kiani_page.PAPER: "Saving gains where learning rate and clip do not suit the noise; once they "
    "do, next to nothing is left, and a clip that follows the learning rate does more",
    liu_page.PAPER: "A budget of its own for every record pays; the curve fit is close, but no "
    "bound",
    cheng_page.PAPER: "BLUR helps at clips that are far too small (MNIST by writer); with a clip "
    "that suits the noise, neither BLUR nor LUS gains anything here",
    gu_page.PAPER: "The best settings mostly lie where the theory says, with a k of our own; not "
    "in one panel, LeNet with the fewest local steps",
}
WORDS = (
    "reproduced",
    "reproduced in part",
    "not reproduced",
    "cannot be as printed",
    "cannot tell",
    "not run",
)


def summary(results: Finished) -> str:
    """How many verdicts of each kind a paper has, and what was found."""
    lines = []
    for paper, rows in PAPERS.items():
        kinds = Counter(word.partition(",")[0] for _, word, _ in rows(results))
        assert set(kinds) <= set(WORDS), kinds
        told = ", ".join(f"{kinds[word]} {word}" for word in WORDS if kinds[word])
        finding = f" {FINDINGS[paper]}." if results.found else ""
        lines.append(f"- **{paper}**: {told}.{finding}")
    return "\n".join(lines)


def verdicts(results: Finished) -> str:
    rows = [
        [paper, *row]
        for paper, found in PAPERS.items()
        for row in sorted(found(results), key=lambda row: number_of(row[0]))
    ]
    return markdown(["paper", "table or figure", "verdict", "what it rests on"], rows)


def budgets_of_their_own(results: Finished) -> str:
    """What individual budgets gain over giving everyone the strictest, both tuned."""
    strict, own = "DP-FedAvg, epsilon 10", "IDP-FedAvg"
    rows = [row for row in kiani.table_2().rows if not row.title.startswith("adult, MLP")]
    first, *others = (
        (
            told(over(results, row.cells[own].arm, row.cells[strict].arm)),
            over_time_page.NAMES[row.title.partition(",")[0]],
        )
        for row in rows
    )
    return ", ".join(
        ["{} points on {}".format(*first), *("{} on {}".format(*one) for one in others)]
    )


def saving_not_tuned(results: Finished) -> list[str]:
    """What saving gains trained in the paper's way, by data set."""
    return [
        untuned_page.untuned_gain(results, data, "annealed", "exact") for data in over_time.SHIPPED
    ]


def in_the_readme(results: Finished) -> str:
    """What individual budgets and saving gain, in a sentence each."""
    follows = over_time_page.mean_gain(results, "following")
    return (
        "- **Honest about gains** (logistic regression on fixed features, five seeds). "
        "*Individual budgets*, over giving everyone the strictest: "
        f"{budgets_of_their_own(results)}. *Saving for later rounds*, over uniform spending: "
        f"{' and '.join(saving_not_tuned(results))} points on Fashion-MNIST and MNIST at small "
        "budgets if nobody tunes the clip to the noise; next to nothing once it is tuned; "
        f"{follows} on average where the clip follows the learning rate, which does more than "
        "either ([when, and why](docs/results/time.md))."
    )


def map_of_results(results: Finished) -> str:
    """The pages whose results are rendered, each with its most important one."""
    saving = " and ".join(saving_not_tuned(results))
    names = " and ".join(over_time_page.NAMES[data] for data in over_time.SHIPPED)
    base, ours = records_cnn.arms()
    seeds = NUMBERS[len(ours.seeds)]
    return "\n".join(
        [
            f"- [Spending over time](time.md): at budgets {over_time.TIGHT}, trained as Kiani et "
            "al. (2025) do, as we read them, and with nothing tuned, saving for later rounds gains "
            f"{saving} points on {names}; with learning rate and clip tuned it gains next to "
            "nothing.",
            "- [Every table and figure of the papers](papers.md): a verdict for each, and what it "
            "rests on. Individual budgets over the strictest one, both tuned: "
            f"{budgets_of_their_own(results)}.",
            "- [Records](records.md): a rate for every record gains over the strictest budget for "
            f"all: {told(over(results, ours, base))} points with the CNN of Liu et al. (2024) on "
            f"MNIST, in one cell and with {seeds} seeds; several with fixed features.",
        ]
    )


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


BLOCKS = {
    "summary": summary,
    "verdicts": verdicts,
    "cost": cost,
    "left-out": left_out.table,
    **kiani_page.BLOCKS,
    **liu_page.BLOCKS,
    **cheng_page.BLOCKS,
    **gu_page.BLOCKS,
}
