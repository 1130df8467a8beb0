"""docs/results/speed.md: what plans, checks and rounds cost.

Guarantee: every number is from benchmarks/speed/results, which benchmarks/speed/measure.py writes.
What was not measured is a dash.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from experiment import Finished, lines_of
from tables import markdown

RESULTS = Path(__file__).parents[1] / "speed" / "results"
MISSING = "-"

PLANS = {
    "plan": "as it is by default",
    "plan-saving": "spend-as-you-go",
    "plan-low-rate": "at a low rate",
}
OF_A_PLAN = {  # what is shown of it: key, and format
    "clients, each with its own budget": ("clients", ","),
    "rounds": ("rounds", ","),
    "rate": ("rate", "g"),
    "policy": ("policy", ""),
    "accountant": ("accountant", ""),
    "plan, CPU s": ("plan_cpu_seconds", ".1f"),
    "peak memory, GiB": ("peak_gib", ".2f"),
    "distinct schedules": ("schedules", ","),
    "furthest under its budget": ("most_under_budget", ".1g"),
    "save, CPU s": ("save_cpu_seconds", ".1f"),
    "load, CPU s": ("load_cpu_seconds", ".1f"),
    "file, MiB": ("file_mib", ".0f"),
    "verify, CPU s of all workers": ("verify_cpu_seconds_with_workers", ".0f"),
    "schedules read by dp-accounting": ("verify_pld_readings", ","),
    "Opacus for one client, CPU s": ("opacus_seconds_per_client", ".2f"),
    "that is so many times ours per client": ("times_faster_per_client", ",.0f"),
}
PLD_PLANS = {
    "uniform_three_groups": "three groups, one noise each",
    "spend-as-you-go_three_groups": "three groups, spend-as-you-go",
    "25_noises_three_groups": "three groups, 25 different noises each",
    "25_noises_200_schedules": "200 distinct schedules, 25 different noises each",
}
MODELS = {
    "logistic": "logistic 784-10",
    "mlp": "MLP 104-64-32-2",
    "cnn": "CNN, 1.66 million parameters",
}
BATCHES = (16, 64)
OF_SORTING = {  # what is shown of a set of points: key, and format
    "points": ("points", ","),
    "of which nothing dominates": ("optimal", ","),
    "CPU s": ("cpu_seconds", ".2f"),
    "of fewer points": ("all_pairs_points", ","),
    "CPU ms": ("same_points_cpu_seconds", ".2f"),
    "comparing all pairs, CPU ms": ("all_pairs_cpu_seconds", ",.0f"),
}
POINTS = (
    "random, 2 objectives",
    "all optimal, 2 objectives",
    "many ties, 2 objectives",
    "random, 3 objectives",
)
IN_MS = ("same_points_cpu_seconds", "all_pairs_cpu_seconds")
RIVALS = {"pfl": "pfl", "fedjax": "fedjax", "plain torch": "a plain torch loop"}


def shown(value: Any, form: str = "") -> str:
    """A number, or a dash if there is none.

    >>> shown(1.26, ".1f"), shown(0), shown(None, ".1f")
    ('1.3', '0', '-')
    """
    return MISSING if value is None else format(value, form)


@dataclass(frozen=True)
class Measured:
    """The results files."""

    lines: Mapping[str, Mapping[str, Any]]  # by benchmark
    schedules: Sequence[Mapping[str, Any]]  # planned by PLD and read by dp-accounting

    @classmethod
    def read(cls, folder: Path) -> Self:
        """What the files hold; one that does not exist holds nothing."""
        lines = {line["benchmark"]: line for line in lines_of(folder / "measured.jsonl")}
        return cls(lines, lines_of(folder / "schedules.jsonl"))

    def found(self, benchmark: str, *keys: str) -> Any:
        """What a benchmark found under these keys, one within the other; None if nothing."""
        value = self.lines.get(benchmark, {}).get("found")
        for key in keys:
            value = None if value is None else value.get(key)
        return value

    def of_round(self, model: str, batch: int, *keys: str) -> Any:
        return self.found(f"rounds-{model}-{batch}", model, *keys)


def machine(measured: Measured) -> str:
    lines = measured.lines.values()
    versions = _each(f"{name} {one}" for line in lines for name, one in line["versions"].items())
    load = [one for line in lines for one in line["load"]]
    return (
        f"Processor: {_each((line['processor'] for line in lines), ' or ')}. Versions: {versions}. "
        "Load average when benchmarks began and ended, of which they made one or two themselves: "
        f"{shown(min(load, default=None))} to {shown(max(load, default=None))}."
    )


def _each(texts: Iterable[str], between: str = ", ") -> str:
    return between.join(sorted(set(texts))) or MISSING


def plans(measured: Measured) -> str:
    rows = [
        [title, *(shown(measured.found(plan, key), form) for plan in PLANS)]
        for title, (key, form) in OF_A_PLAN.items()
    ]
    return markdown(["", *PLANS.values()], rows)


def pld_plans(measured: Measured) -> str:
    rows = [
        [title, shown(measured.found("plan-pld", f"{case}_cpu_seconds"), ".2f")]
        for case, title in PLD_PLANS.items()
    ]
    return markdown(["", "CPU s"], rows)


def schedules(measured: Measured) -> str:
    """What dp-accounting reads of random schedules. How far below a budget: less than 0 is over."""
    rows = measured.schedules
    below = [1 - row["reading_over_budget"] for row in rows]
    excess = [row["excess"] for row in rows if row["excess"] is not None]
    over = sum(not one >= 0 for one in below) if rows else None
    return (
        f"Schedules that were checked: {shown(len(rows) or None, ',')}; over their budgets: "
        f"{shown(over)}. Readings were below the budgets by {_range(below)} of them. In "
        f"{shown(len(excess) or None)} schedules the noise was compared with the least that "
        f"dp-accounting allows at a discretisation of 1e-4, and was more by {_range(excess)} of "
        f"it. In the median it was {shown(_median(rows, 'noise_below_renyi'), '.1%')} less than by "
        "Rényi curves, and planning one took "
        f"{shown(_median(rows, 'planning_cpu_seconds'), '.2f')} s of CPU."
    )


def _range(values: Sequence[float]) -> str:
    least, most = min(values, default=None), max(values, default=None)
    return f"{shown(least, '.1e')} to {shown(most, '.1e')}"


def _median(rows: Sequence[Mapping[str, Any]], key: str) -> float | None:
    return statistics.median(row[key] for row in rows) if rows else None


def rounds(measured: Measured) -> str:
    rows = [
        [
            f"times faster than {title}, batch {batch}",
            *(
                shown(measured.of_round(model, batch, "fedspend_is_faster_by", rival), ".1f")
                for model in MODELS
            ),
        ]
        for rival, title in RIVALS.items()
        for batch in BATCHES
    ]
    rows += [
        [
            f"times the bound, batch {batch}",
            *(
                shown(measured.of_round(model, batch, "times_the_bound", "fedspend"), ".2f")
                for model in MODELS
            ),
        ]
        for batch in BATCHES
    ]
    return markdown(["ours", *MODELS.values()], rows)


def workers_and_memory(measured: Measured) -> str:
    faster = measured.found("workers", "workers", "ratio_of_best")
    taken = measured.found("workers", "workers", "cores_taken_by_others")
    small, large = (
        shown(measured.found("memory", "memory_mib_beyond_data", model), ".0f")
        for model in ("logistic", "cnn")
    )
    return (
        f"Two worker processes train the CNN {shown(faster, '.2f')} times as fast as one, by the "
        f"clock, while other processes took {shown(taken, '.1f')} cores. 10,000 clients need "
        f"{small} MiB (logistic) and {large} MiB (CNN, cohort of 400) beyond the data."
    )


def sorting(measured: Measured) -> str:
    """How fast non-dominated points are found, and how long comparing all pairs takes."""

    def cell(points: str, key: str, form: str) -> str:
        value = measured.found("sorting", points, key)
        return shown(1000 * value if value is not None and key in IN_MS else value, form)

    rows = [
        [points, *(cell(points, key, form) for key, form in OF_SORTING.values())]
        for points in POINTS
    ]
    return markdown(["", *OF_SORTING], rows)


def in_the_map(measured: Measured) -> str:
    """The line of docs/results/index.md."""
    seconds = shown(measured.found("plan", "plan_cpu_seconds"), ".1f")
    clients = shown(measured.found("plan", "clients"), ",")
    logistic, mlp, cnn = (
        shown(measured.of_round(model, BATCHES[0], "fedspend_is_faster_by", "pfl"), ".1f")
        for model in MODELS
    )
    return (
        f"- [Speed](speed.md): a plan for {clients} clients with distinct budgets takes {seconds} "
        f"s on one core; a round at batch {BATCHES[0]} is {logistic} (logistic regression), {mlp} "
        f"(MLP) and {cnn} (CNN) times as fast as with pfl."
    )


def _from_files(block: Callable[[Measured], str]) -> Callable[[Finished], str]:
    """As the other pages' blocks are called; what they are made from is not read."""
    return lambda _: block(Measured.read(RESULTS))


BLOCKS = {
    "speed-machine": _from_files(machine),
    "speed-plans": _from_files(plans),
    "speed-pld-plans": _from_files(pld_plans),
    "speed-schedules": _from_files(schedules),
    "speed-rounds": _from_files(rounds),
    "speed-workers-and-memory": _from_files(workers_and_memory),
    "speed-sorting": _from_files(sorting),
}
IN_THE_MAP = {"speed": _from_files(in_the_map)}
