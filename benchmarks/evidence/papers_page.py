"""docs/results/papers.md: every table and figure of the papers, with a verdict.

A verdict on a table that is run here is computed from the results files; one on a table that is
measured elsewhere in docs/ names the page.
"""

from __future__ import annotations

from collections import Counter

import cheng_page
import gu_page
import kiani
import kiani_page
import liu_page
import over_time
import over_time_page
from experiment import Finished, cpu_hours
from judging import Item, number_of, over, told
from tables import markdown

DESIGN = "[Design](../how-to/design.md)"
GU = (
    Item("Figure 1, theory", "reproduced", f"corrected at T_max; {DESIGN}"),
    Item(
        "Figure 2a, logistic, free rate",
        "reproduced",
        f"three rates, two seeds; {DESIGN}; all seven not run yet: `--only gu-logistic`",
        gu_page.judge("logistic", "Figure 2"),
    ),
    Item(
        "Figure 2b, LeNet, free rate",
        "not run",
        "not run yet: `--only gu-lenet`",
        gu_page.judge("lenet", "Figure 2"),
    ),
    *(
        Item(
            f"Figure 3, {name}, case {case}",
            "not run",
            f"not run yet: `--only gu-{model}`",
            gu_page.judge(model, "Figure 3", f"case {case}"),
        )
        for model, name in gu_page.MODELS.items()
        for case in ("I", "II", "III")
    ),
    Item(
        "Figure 4, logistic, epochs",
        "reproduced in part",
        f"at 10 and 20 local steps, not at 5; {DESIGN}",
        gu_page.judge("logistic", "Figure 4"),
    ),
    Item(
        "Figure 4, LeNet, epochs",
        "not run",
        "not run yet: `--only gu-lenet`",
        gu_page.judge("lenet", "Figure 4"),
    ),
    Item(
        "Figure 5, logistic, clients",
        "reproduced",
        DESIGN,
        gu_page.judge("logistic", "Figure 5"),
    ),
    Item(
        "Figure 5, LeNet, clients",
        "not run",
        "not run yet: `--only gu-lenet`",
        gu_page.judge("lenet", "Figure 5"),
    ),
    Item(
        "Figure 6, logistic, public data",
        "reproduced",
        DESIGN,
        gu_page.judge("logistic", "Figure 6"),
    ),
    Item(
        "Figure 6, LeNet, public data",
        "not run",
        "not run yet: `--only gu-lenet`",
        gu_page.judge("lenet", "Figure 6"),
    ),
    Item(
        "Tables II and III, cost",
        "reproduced in part",
        f"cheaper from the second setting on; {DESIGN}",
    ),
)


def gu_rows(results: Finished) -> list[tuple[str, str, str]]:
    return [(item.name, *item.found(results)) for item in GU]


PAPERS = {
    kiani_page.PAPER: kiani_page.rows,
    liu_page.PAPER: liu_page.rows,
    cheng_page.PAPER: cheng_page.rows,
    "Gu et al. (2023)": gu_rows,
}
FINDINGS = {  # in a sentence, without a number
    kiani_page.PAPER: "Saving gains where learning rate and clip do not suit the noise; once they "
    "do, next to nothing is left, and a clip that follows the learning rate does more",
    liu_page.PAPER: "A budget of its own for every record pays; the curve fit is close, but no "
    "bound",
    cheng_page.PAPER: "BLUR helps at clips that are far too small; with a clip that suits the "
    "noise, neither BLUR nor LUS gains anything here",
    "Gu et al. (2023)": "The best settings lie where the theory says, with a k of our own",
}
WORDS = ("reproduced", "reproduced in part", "not reproduced", "cannot be as printed", "not run")


def summary(results: Finished) -> str:
    """How many verdicts of each kind a paper has."""
    body = []
    for paper, rows in PAPERS.items():
        kinds = Counter(word.partition(",")[0] for _, word, _ in rows(results))
        body.append([paper, *(str(kinds[word] or "") for word in WORDS), FINDINGS[paper]])
        assert sum(kinds[word] for word in WORDS) == kinds.total(), kinds
    used = [place for place in range(len(WORDS)) if any(row[place + 1] for row in body)]
    headings = ["tables and figures of", *(WORDS[place] for place in used), "in a sentence"]
    return markdown(headings, [[row[0], *(row[n + 1] for n in used), row[-1]] for row in body])


def verdicts(results: Finished) -> str:
    rows = [
        [paper, *row]
        for paper, found in PAPERS.items()
        for row in sorted(found(results), key=lambda row: number_of(row[0]))
    ]
    return markdown(["paper", "table or figure", "verdict", "what it rests on"], rows)


def in_the_readme(results: Finished) -> str:
    """What individual budgets and saving gain, in a sentence each."""
    strict, own = "DP-FedAvg, epsilon 10", "IDP-FedAvg"
    rows = [row for row in kiani.table_2().rows if not row.title.startswith("adult, MLP")]
    first, *others = (
        (
            told(over(results, row.cells[own].arm, row.cells[strict].arm)),
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
    **kiani_page.BLOCKS,
    **liu_page.BLOCKS,
    **cheng_page.BLOCKS,
    **gu_page.BLOCKS,
}
