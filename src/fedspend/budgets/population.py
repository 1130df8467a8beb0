"""One budget per client, from a short text or from shares of a population.

Budgets from a CSV file are in `csv_file`.

Guarantee: a `Population` has at least one client, unique printable ids, and finite positive
epsilons; anything missing or not a number is refused with one line that says where. Ranges that
depend on the rest of the plan (a saving rate against the rate, a transition against the number of
rounds) are checked by the planner.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from fedspend.basics.arrays import BoolArray, FloatArray
from fedspend.errors import InvalidInput

MOST_CLIENTS = 10_000_000


@dataclass(frozen=True, eq=False)
class Population:
    """Who takes part, and with what budget. Optional columns are None if nobody gave them."""

    clients: tuple[str, ...]
    epsilons: FloatArray
    saving_rates: FloatArray | None = None
    transitions: FloatArray | None = None
    groups: tuple[str, ...] | None = None

    def take(self, keep: BoolArray) -> Population:
        """The clients that are marked in `keep`."""
        if keep.all():
            return self
        stay = np.flatnonzero(keep)
        return Population(
            tuple(self.clients[n] for n in stay),
            self.epsilons[stay],
            None if self.saving_rates is None else self.saving_rates[stay],
            None if self.transitions is None else self.transitions[stay],
            None if self.groups is None else tuple(self.groups[n] for n in stay),
        )

    def without(self, clients: Collection[str]) -> Population:
        """Everyone but these."""
        return (
            self.take(np.array([client not in clients for client in self.clients]))
            if clients
            else self
        )

    def groups_of(self, clients: Sequence[str]) -> tuple[str, ...] | None:
        """The group of each of these clients, which may be only some of the population."""
        if self.groups is None:
            return None
        group_of = dict(zip(self.clients, self.groups, strict=True))
        return tuple(group_of[client] for client in clients)


@dataclass(frozen=True, eq=False)
class Registered:
    """The accounts of a ledger: all names, and the lifetime budgets of those still taking part."""

    population: Population
    names: tuple[str, ...]
    ledger: str


@dataclass(frozen=True)
class Group:
    """Part of the population that shares a budget; `share` is relative to the other groups'."""

    epsilon: float
    share: float | None = None
    saving_rate: float | None = None
    transition: float | None = None


# --- from a short text ----------------------------------------------------------------------------


def parse_groups(text: str, clients: int | None = None) -> Population:
    """The population that a short text describes.

    `"10:34,20:43,30:23"` is 34 clients with epsilon 10, 43 with 20 and 23 with 30; `"10"` gives all
    `clients` the same.

    >>> parse_groups("10:2,20:1").epsilons.tolist(), parse_groups("0.5", clients=2).clients
    ([10.0, 10.0, 20.0], ('0', '1'))
    """
    parts = [part.strip() for part in text.split(",")]
    if len(parts) == 1 and ":" not in text:
        everyone = Group(positive("epsilon", text))
        if clients is None:
            raise InvalidInput(
                f"epsilon {text!r} is one budget for everyone, so the number of clients is needed; "
                "give --clients N"
            )
        return from_groups([everyone], clients)
    counts: list[tuple[float, int]] = []
    for part in parts:
        epsilon, colon, count = part.partition(":")
        if not colon:
            raise InvalidInput(
                f"epsilon group {part!r} in {text!r} has no number of clients; write "
                "epsilon:count, for example 10:34,20:43"
            )
        budget = positive(f"epsilon in group {part!r}", epsilon)
        if not (
            count.strip().isascii()
            and count.strip().isdigit()
            and len(count) < 20
            and int(count) >= 1
        ):
            raise InvalidInput(
                f"the number of clients in group {part!r} must be a whole number of at least 1, "
                f"got {count.strip()!r}"
            )
        counts.append((budget, int(count)))
    total = sum(count for _, count in counts)
    if clients is not None and clients != total:
        raise InvalidInput(
            f"epsilon groups {text!r} add up to {total} clients, but clients is {clients}; drop "
            "one or make them agree"
        )
    check_count(total)
    return Population(
        numbered(total),
        np.repeat([epsilon for epsilon, _ in counts], [count for _, count in counts]),
    )


def parse_by_epsilon(name: str, text: str) -> float | dict[float, float]:
    """One value for all, as in `"0.5"`, or one for each epsilon, as in `"10:0.5,20:0.6"`.

    >>> parse_by_epsilon("saving rate", "10:0.5,20:0.6")
    {10.0: 0.5, 20.0: 0.6}
    """
    if ":" not in text:
        return number(name, text)
    values: dict[float, float] = {}
    for part in text.split(","):
        epsilon, colon, value = part.partition(":")
        if not colon:
            raise InvalidInput(
                f"{name} {part.strip()!r} in {text!r} names no epsilon; write epsilon:value, for "
                "example 10:0.5,20:0.6"
            )
        key = number(f"epsilon of {name} {part.strip()!r}", epsilon)
        if key in values:
            raise InvalidInput(f"{name} {text!r} lists epsilon {key:g} twice; remove one")
        values[key] = number(f"{name} for epsilon {epsilon.strip()}", value)
    return values


def by_epsilon(name: str, values: dict[float, float], epsilons: FloatArray) -> FloatArray:
    """One value per client, looked up by its epsilon; `values` must cover exactly the epsilons."""
    distinct, where = np.unique(epsilons, return_inverse=True)
    present = distinct.tolist()
    for epsilon in values:
        if epsilon not in present:
            raise InvalidInput(
                f"{name} is given for epsilon {epsilon:g}, which no client has; the budgets are "
                f"{listed(present)}"
            )
    missing = [epsilon for epsilon in present if epsilon not in values]
    if missing:
        raise InvalidInput(
            f"{name} is missing for epsilon {listed(missing)}; give one for every budget, or one "
            "number for all"
        )
    return np.array([values[epsilon] for epsilon in present])[where]


# --- from shares ----------------------------------------------------------------------------------


def from_groups(
    groups: Sequence[Group], clients: int, ids: Sequence[str] | None = None
) -> Population:
    """Divide `clients` by the groups' shares (largest remainder); no shares means equal shares.

    The first group gets the first clients, and so on; `ids` are their names, if they have any.

    >>> from_groups([Group(10, 0.34), Group(20, 0.43), Group(30, 0.23)], 10).epsilons.tolist()
    [10.0, 10.0, 10.0, 10.0, 20.0, 20.0, 20.0, 20.0, 30.0, 30.0]
    """
    check_count(clients)
    if not groups:
        raise InvalidInput("groups is empty; give at least one group with an epsilon")
    shares = filled("share", [group.share for group in groups])
    counts = apportion([1.0] * len(groups) if shares is None else shares, clients)
    for n, (group, count) in enumerate(zip(groups, counts, strict=True), start=1):
        if count == 0 and (shares is None or group.share):
            raise InvalidInput(
                f"group {n} (epsilon {group.epsilon:g}) gets none of {clients} clients; raise its "
                "share or the number of clients"
            )
    columns = [
        filled(name, [getattr(group, name) for group in groups])
        for name in ("saving_rate", "transition")
    ]
    saving, transition = (
        None if column is None else np.repeat(column, counts) for column in columns
    )
    names = numbered(clients) if ids is None else tuple(ids)
    return Population(
        names, np.repeat([float(group.epsilon) for group in groups], counts), saving, transition
    )


def apportion(shares: Sequence[float], total: int) -> list[int]:
    """Whole numbers in proportion to `shares` that add up to `total`; ties go to the earlier share.

    >>> apportion([34, 43, 23], 10)
    [4, 4, 2]
    """
    if not (all(math.isfinite(share) and share >= 0 for share in shares) and sum(shares) > 0):
        raise InvalidInput(
            "shares must be numbers of at least 0 and not all 0, got "
            f"{', '.join(f'{share:g}' for share in shares)}"
        )
    largest = max(shares)
    scaled = [share / largest for share in shares]
    exact = [share * total / sum(scaled) for share in scaled]
    counts = [math.floor(value) for value in exact]
    # Rounding to 1e-9 makes shares such as 0.1 and 0.1 true ties.
    neediest = sorted(range(len(shares)), key=lambda n: (-round(exact[n] - counts[n], 9), n))
    for n in neediest[: total - sum(counts)]:
        counts[n] += 1
    return counts


def filled(name: str, values: list[float | None]) -> list[float] | None:
    """The values, if all groups have one, or None if no group has; a mix is refused."""
    given = [value for value in values if value is not None]
    if not given:
        return None
    if len(given) < len(values):
        raise InvalidInput(
            f"group {values.index(None) + 1} has no {name} while others have one; give it to every "
            "group or to none"
        )
    return given


# --- small checks ---------------------------------------------------------------------------------


def can_be_number(cell: str) -> bool:
    try:
        return math.isfinite(float(cell))
    except ValueError:
        return False


def number(name: str, text: str) -> float:
    if not can_be_number(text) or "_" in text:
        raise InvalidInput(f"{name} must be a finite number, got {text.strip()!r}")
    return float(text)


def positive(name: str, text: str) -> float:
    value = number(name, text)
    if not value > 0:
        raise InvalidInput(f"{name} must be positive, got {text.strip()!r}")
    return value


def check_count(clients: int) -> None:
    if not 1 <= clients <= MOST_CLIENTS:
        raise InvalidInput(
            f"the number of clients must be between 1 and {MOST_CLIENTS:,}, got {clients:,}"
        )


def numbered(clients: int) -> tuple[str, ...]:
    return tuple(map(str, range(clients)))


def listed(values: Sequence[float]) -> str:
    """The first few numbers, for a sentence, and how many more there are."""
    shown = ", ".join(f"{value:g}" for value in values[:6])
    return shown if len(values) <= 6 else f"{shown} and {len(values) - 6} more"
