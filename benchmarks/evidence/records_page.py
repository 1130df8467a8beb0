"""docs/results/records.md: Figure 8 of Liu et al. (2024), with the pooled records of Table 2 and
Figure 7; and what papers.md says of that figure.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial

import numpy as np
import pooled_page
import record_budgets as records
from by_seed import LEAST, Lines, paired, shown, spread
from experiment import SEEDS, Finished
from judging import NUMBERS, Gain, Item, Verdict, clear_of, cut, fewer_seeds, judged, told
from record_budgets import (
    COMPARED,
    DISTRIBUTIONS,
    FEDERATIONS,
    FREE,
    RPDP,
    SAVING,
    STUDY,
    Choose,
    cell,
)
from tables import markdown, with_seconds

NAMES = {"heart": "Fed-Heart-Disease", "mnist-iid": "MNIST-IID", "mnist-niid": "MNIST-NIID"}
IID, NIID = "mnist-iid", "mnist-niid"
NOT_YET = f"Not run yet: `--only {STUDY}`."


def lines(
    results: Finished,
    data: str,
    method: str,
    drawn: str = DISTRIBUTIONS[0],
    choose: Choose = records.chosen,
) -> Lines:
    return records.lines(results, cell(data, method, drawn), choose)


def ahead(
    results: Finished, data: str, other: str, drawn: str, choose: Choose = records.chosen
) -> Gain | None:
    """rpdp minus the other method."""
    return paired(*(lines(results, data, method, drawn, choose) for method in (RPDP, other)))


def leads(
    results: Finished, data: str, others: Sequence[str] = COMPARED, choose: Choose = records.chosen
) -> list[Gain | None]:
    return [
        ahead(results, data, other, drawn, choose) for other in others for drawn in DISTRIBUTIONS
    ]


# --- tables ---------------------------------------------------------------------------------------


def table(data: str, results: Finished) -> str:
    """Percent by method and distribution, in brackets rpdp minus the method, and what was chosen.
    Training without privacy knows no distribution.
    """
    body, rates = [], []
    private = [method for method in FEDERATIONS[data].methods if method != FREE]
    for method in [*private, FREE]:
        drawn = DISTRIBUTIONS if method != FREE else DISTRIBUTIONS[:1]
        blank = [""] * (len(DISTRIBUTIONS) - len(drawn))
        body.append([method, *(_cell(results, data, method, one) for one in drawn), *blank])
        rates.append(
            [method, *(_rates(lines(results, data, method, one)) for one in drawn), *blank]
        )
    found = [line for one in records.arms() if one.data == data for line in _all(results, one)]
    notes = [_seeds(results, data)]
    if found:
        guesses = [line["guess"] for line in found]
        notes.append(f"Always guessing the commonest class: {100 * np.mean(guesses):.1f}.")
    if FEDERATIONS[data].same_minimum:
        notes.append(
            "`minimum` is one run in three columns: the strictest budget is 0.1 under each "
            "distribution, and the noise is the same."
        )
    noise = [line["noise"] for line in found if "noise" in line]
    if noise and "privacy.noise_multiplier" not in FEDERATIONS[data].privacy:
        notes.append(f"Noise multipliers that the budgets suggest: {spread(noise)}.")
    if FEDERATIONS[data].by_seed and found:
        notes.append(_undecided(results, data))
    chosen = markdown(["learning rates that were chosen", *DISTRIBUTIONS], rates)
    return "\n\n".join([markdown([NAMES[data], *DISTRIBUTIONS], body), " ".join(notes), chosen])


def _undecided(results: Finished, data: str) -> str:
    """In how many searches the held-out rows left a choice open, and for which method most."""
    by_method: dict[str, list[bool]] = {}
    for one in records.arms():
        if one.data == data:
            open_ones = [
                records.undecided(results, one, seed) for seed in records.lines(results, one)
            ]
            by_method.setdefault(one.method, []).extend(open_ones)
    every = [one for each in by_method.values() for one in each]
    most = max(by_method, key=lambda method: float(np.mean(by_method[method] or [False])))
    return (
        f"In {sum(every)} of {len(every)} searches another learning rate was exactly as good as "
        f"the one that was kept, most often for `{most}` ({sum(by_method[most])} of "
        f"{len(by_method[most])}): so few held-out rows hardly tell learning rates apart."
    ) + _by_the_first_search(results, data)


def _by_the_first_search(results: Finished, data: str) -> str:
    """What it said; empty where its choices were never run."""
    gains = leads(results, data, choose=records.first_chosen)
    if None in gains:
        return ""
    return (
        " This is a second search, over a whole grid. By the first, which ended where neither "
        "neighbour was better, rpdp over minimum and dropout was clear of 0 in "
        f"{clear_of(gains)} cells ({_points(gains)} points)."
    )


def _all(results: Finished, one: records.Cell) -> list[dict[str, float]]:
    return list(records.lines(results, one).values())


def _cell(results: Finished, data: str, method: str, drawn: str) -> str:
    text = shown(lines(results, data, method, drawn))
    if method in (RPDP, FREE) or text == "-":
        return text
    return f"{text} ({told(ahead(results, data, method, drawn))})"


def _rates(found: Lines) -> str:
    if len(found) < LEAST:
        return "-"
    return spread([line["lr"] for line in found.values()])


def _seeds(results: Finished, data: str) -> str:
    """How many seeds the cells have, in a sentence."""
    counts = [len(records.lines(results, one)) for one in records.arms() if one.data == data]
    if not any(counts):
        return NOT_YET
    least = min(counts)
    if min(counts) == max(counts):
        rest = "" if least == len(SEEDS) else f" where {NUMBERS[len(SEEDS)]} are wanted"
        return f"{NUMBERS[least].capitalize()} seed{'s' * (least != 1)}{rest}."
    return f"{spread(counts)} seeds where {len(SEEDS)} are wanted."


# --- verdicts and findings ------------------------------------------------------------------------


def verdict(data: str, results: Finished) -> Verdict | None:
    found = judged(leads(results, data), "rpdp over minimum and dropout", STUDY)
    if found is None:
        return None
    seeds = min(len(records.lines(results, one)) for one in records.arms() if one.data == data)
    model = "" if data == "heart" else "; logistic regression in place of the paper's CNN"
    return found[0], f"{found[1]}{model}{fewer_seeds(max(seeds, LEAST), len(SEEDS))}"


def items() -> tuple[Item, ...]:
    return tuple(
        Item(
            f"Figure 8, {'heart' if data == 'heart' else name}",
            cut(STUDY),
            partial(verdict, data),
        )
        for data, name in NAMES.items()
    )


def findings(results: Finished) -> str:
    """What was found about the paper's claims, as far as it was run."""
    found = list(_findings(results))
    return "\n".join(f"- {one}" for one in found) if found else NOT_YET


def _findings(results: Finished) -> Iterator[str]:
    for data, name in NAMES.items():
        gains = leads(results, data)
        if any(gains):
            yield (
                f"**rpdp over `minimum` and `dropout`, {name}**: {_points(gains)} points, clear of "
                f"0 in {clear_of(gains)} cells."
            )
    over = {
        method: [line["over_batch"] for line in lines(results, IID, method).values()]
        for method in (RPDP, *reversed(COMPARED))
    }
    if all(over.values()):
        told_each = ", ".join(f"{np.mean(each):.3f} for {name}" for name, each in over.items())
        yield (
            f"**Every record helps.** The noise of a step over its batch, in clips (MNIST-IID, "
            f"three-levels): {told_each}."
        )
    strict = [
        f"{told(one)} on {name}"
        for data, name in NAMES.items()
        if (one := paired(*(lines(results, data, m, "bounded-pareto") for m in COMPARED)))
    ]
    if strict:
        yield (
            "**Leaving strict records out**, under bounded-pareto, where few records allow the "
            f"mean budget: `minimum` minus `dropout` is {', '.join(strict)}."
        )
    falls = {
        method: [
            paired(lines(results, IID, method, drawn), lines(results, NIID, method, drawn))
            for drawn in (DISTRIBUTIONS if method != FREE else DISTRIBUTIONS[:1])
        ]
        for method in (RPDP, *COMPARED, FREE)
    }
    if any(any(each) for each in falls.values()):
        said = ", ".join(f"{name} {_points(each)}" for name, each in falls.items() if any(each))
        every = [one for each in falls.values() for one in each]
        yield (
            f"**NIID below IID**, IID minus NIID: {said}; clear of 0 in {clear_of(every)} pairs."
        )
    for method, about in (
        ("filter", "**The filter**, by the clip, heart only"),
        (SAVING, "**Saving for later**, half the rate in the first half, heart only"),
    ):
        gains = leads(results, "heart", [method])
        if any(gains):
            yield f"{about}: rpdp minus it is {', '.join(map(told, gains))} points."


def _points(gains: Sequence[Gain | None]) -> str:
    return spread([one[0] for one in gains if one is not None], "{:+.1f}")


BLOCKS = {
    **{f"records-{data}": with_seconds(partial(table, data)) for data in NAMES},
    "records-findings": findings,
    **pooled_page.RECORDS_BLOCKS,
}
