"""docs/results/time.md: what it says in short, and every block of the page."""

from __future__ import annotations

from itertools import product

import by_influence
import influence_page
import networks
import networks_page
import over_time
import over_time_page
import targets_page
import untuned_page
from experiment import Finished, outcome
from judging import Gain, told
from over_time import AS_SHIPPED, LARGE, SHIPPED, TIGHT
from over_time_page import COLUMNS, NAMES, at_one_choice, claimed, every, gains_of, kinds, lead
from tables import against, markdown, with_seconds
from untuned_page import gain_as_shipped, untuned_gain

HELD_EQUAL = "annealed, clip fixed; both arms at the choice for uniform spending"


def in_short(results: Finished) -> str:
    """What the finished runs say: where saving pays, where not, and what does more."""
    sentences = [
        _not_tuned(results),
        _networks_not_tuned(results),
        _early(results),
        *_ahead(results),
    ]
    listed = "\n".join(f"- {one}" for one in sentences if one)
    parts = [part for part in (listed, _tuned(results)) if part]
    return "\n\n".join(parts) or "Nothing has been run yet."


def _not_tuned(results: Finished) -> str:
    """What saving gains where nothing is tuned, by exact plans and by the paper's algorithm."""
    exact, literal = (
        [untuned_gain(results, data, "annealed", spending) for data in SHIPPED]
        for spending in ("exact", "literal")
    )
    if "-" in exact + literal:
        return ""
    names = (NAMES[data] for data in SHIPPED)
    theirs = ("{1:+.1f}".format(*claimed(data, TIGHT)) for data in SHIPPED)
    large = (told(gain_as_shipped(results, data, "annealed", "exact", LARGE)) for data in SHIPPED)
    return (
        "**Saving pays where the noise is too large for the clip or the learning rate.** Trained "
        f"in the paper's way, with neither chosen for the noise, it gains {' and '.join(exact)} "
        f"points on {' and '.join(names)} at budgets {TIGHT} (the paper: {' and '.join(theirs)}), "
        f"and {' and '.join(large)} at {LARGE}. The paper's Algorithm 1, read literally, leaves "
        f"budget over and gains {' and '.join(literal)} at {TIGHT}."
    ) + _planned(results)


def _planned(results: Finished) -> str:
    """What `optimal` with measured influence does there; empty before it is run."""
    gains = []
    for spending in ("uniform", "exact"):
        for data in SHIPPED:
            ours = by_influence.outcome(results, by_influence.Cell(data, "annealed", AS_SHIPPED))
            base = outcome(results, over_time.as_shipped(data, "annealed", spending))
            gains.append(against(ours, base))
    if "-" in gains:
        return ""
    return (
        f" The policy `optimal`, planned with measured influence, gains {gains[0]} and {gains[1]} "
        f"there: {gains[2]} and {gains[3]} over saving."
    )


def _networks_not_tuned(results: Finished) -> str:
    found = networks_page.gains_at_large_clips(results)
    if None in found.values():
        return ""
    by_budgets = " and ".join(f"{told(one)} at {budgets}" for budgets, one in found.items())
    return (
        f"A {networks.WITH_LARGE_CLIPS} shows the same at {networks.TOO_LARGE:g} times the clip "
        f"that suits the noise, three seeds: {by_budgets}."
    )


def _early(results: Finished) -> str:
    """Where it pays to spend early."""
    gains = gains_of(results, "following", "geometric 0.95")
    if not gains:
        return ""
    better = kinds(gains)["better"]
    return (
        "**Spending early pays where the clip follows the learning rate**: 5% less from round to "
        f"round beats uniform spending in {better} of {len(gains)} pairs of data and budgets "
        f"(mean {over_time_page.mean_of(gains):+.1f} points)."
    )


def _ahead(results: Finished) -> list[str]:
    """Learning rates that do more than saving, each with uniform spending."""
    found = []
    for schedule in ("constant", "following"):
        leads = [
            one
            for pair in every(results)
            if (one := lead(results, *pair, schedule, "annealed")) is not None
        ]
        if leads:
            better = kinds(leads)["better"]
            found.append(
                f"*{COLUMNS[schedule]}* against *{COLUMNS['annealed']}*, both with uniform "
                f"spending and tuned: better in {better} of {len(leads)} pairs, worse in "
                f"{kinds(leads)['worse']} (mean {over_time_page.mean_of(leads):+.1f} points)."
            )
    return [one[0] + one[1].upper() + one[2:] for one in found]


def _tuned(results: Finished) -> str:
    """Saving against uniform spending once learning rate and clip are tuned, in numbers of
    pairs.
    """
    pairs = product(over_time.DATA, over_time.BUDGETS)
    equal = [one for pair in pairs if (one := at_one_choice(results, *pair)[0]) is not None]
    lines: dict[str, list[Gain]] = {}
    for schedule, label in COLUMNS.items():
        lines[f"{label}; each arm tuned"] = gains_of(results, schedule, "exact")
        if schedule == "annealed":
            lines[HELD_EQUAL] = equal
    body = [
        [
            label,
            *(str(kinds(gains)[kind]) for kind in ("better", "worse", "not clear")),
            f"{over_time_page.mean_of(gains):+.1f}",
        ]
        for label, gains in lines.items()
        if gains
    ]
    if not body:
        return ""
    headings = ["saving against uniform spending: pairs of data and budgets", "better", "worse"]
    return markdown([*headings, "not clear", "mean, points"], body)


BLOCKS = {
    "time-short": in_short,
    "time-status": over_time_page.status,
    "time-limit": over_time_page.with_a_smaller_limit,
    "time-tables": over_time_page.tables,
    "time-signs": over_time_page.signs,
    "time-crossed": with_seconds(over_time_page.crossed),
    "time-readings": over_time_page.readings,
    "time-untuned": with_seconds(untuned_page.untuned),
    "time-untuned-large": with_seconds(untuned_page.untuned_at_larger_budgets),
    "time-by-clip": untuned_page.by_clip,
    "time-by-rate": untuned_page.by_rate,
    "time-networks": with_seconds(networks_page.trained),
    "time-networks-clip": with_seconds(networks_page.with_large_clips),
    "time-influence": with_seconds(influence_page.influences),
    "time-harm": with_seconds(influence_page.harms),
    "time-harm-agrees": influence_page.harm_and_accuracy,
    **targets_page.BLOCKS,
}
