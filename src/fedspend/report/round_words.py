"""One round of a run in one line of words, for terminals and notebooks."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fedspend.tasks.words import deviation_key, is_share, metric_of, private_key, shown

OFF_BY = "noise and sampling"  # what the deviation of a private metric covers


def describe(line: dict[str, Any], rounds: int) -> str:
    """One round in one line.

    >>> describe({"round": 3, "accuracy": 0.5, "epsilon": {"10": 1.234}}, 25)
    'round 3/25  accuracy 50.0%  spent 1.23 of 10'
    """
    parts = [f"round {line['round']}/{rounds}"]
    metric = metric_of(line)
    if line.get(metric) is not None:
        parts.append(shown(metric, line[metric]))
    if line.get(private_key(metric)) is not None:
        parts.append(f"before it, privately: {privately(line)}")
    if line["epsilon"]:
        parts.append("spent " + spent_of(line["epsilon"]))
    if line.get("discarded"):
        parts.append(f"{line['discarded']} updates were not finite and counted as zero")
    if line.get("skipped"):
        parts.append("skipped: its release was lost; its budget stays spent")
    return "  ".join(parts)


def privately(line: dict[str, Any]) -> str:
    """A noised metric, within what is possible, and how far off it may be.

    >>> privately({"private_accuracy": 1.021, "private_accuracy_deviation": 0.034})
    'accuracy 100% +- 3.4% (noise and sampling)'
    """
    metric = metric_of(line)
    value, off = line[private_key(metric)], line.get(deviation_key(metric))
    if not is_share(metric):
        return f"{metric} {value:.4g}" + ("" if off is None else f" +- {off:.2g} ({OFF_BY})")
    within = min(1.0, max(0.0, value))
    return f"{metric} {100 * within:.3g}%" + ("" if off is None else f" +- {off:.1%} ({OFF_BY})")


def spent_of(epsilon: dict[str, float], budgets: Mapping[str, str] | None = None) -> str:
    """What each group has spent, with more digits where budgets are small.

    `budgets` are those of groups with a name; a group without one is named by its budget.

    >>> spent_of({"0.1": 0.01234, "10": 9.999})
    '0.012 of 0.1, 10.00 of 10'
    >>> spent_of({"careful": 5.0, "open": 10.0}, {"careful": "5", "open": "10"})
    'careful 5.00 of 5, open 10.00 of 10'
    """
    parts = []
    for group, spent in epsilon.items():
        amount = f"{spent:.2g}" if 0 < spent < 0.095 else f"{spent:.2f}"
        if budgets and group in budgets:
            parts.append(f"{group} {amount} of {budgets[group]}")
        else:
            parts.append(f"{amount} of {group}" if group[:1].isdigit() else f"{group} {amount}")
    return ", ".join(parts)
