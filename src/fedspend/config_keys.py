"""What a config file may say: for every section, its keys, what each may hold, and what it means.

To add a key, add a line. A reader takes the parsed TOML value and returns it in the form that the rest of the program uses, or
raises `ValueError`; `wanted` completes the sentence "rate must be ...".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Key:
    """One key: its reader, the words for a good value, what it means, its default; for a list of tables, the keys of one table."""

    read: Callable[[Any], Any]
    wanted: str
    help: str
    default: Any = None
    table: Mapping[str, Key] | None = None


# --- readers --------------------------------------------------------------------------------------------------------------------


def require(good: bool) -> None:
    if not good:
        raise ValueError


def number(wanted: str, good: Callable[[float], bool], help: str, default: float | None = None) -> Key:
    """A finite number for which `good` holds. Integers will do; booleans will not."""

    def read(value: Any) -> float:
        require(isinstance(value, int | float) and not isinstance(value, bool))
        try:
            result = float(value)
        except OverflowError:
            raise ValueError from None
        require(math.isfinite(result) and good(result))
        return result

    return Key(read, wanted, help, default)


def whole(least: int, help: str, default: int | None = None) -> Key:
    def read(value: Any) -> int:
        require(isinstance(value, int) and not isinstance(value, bool) and least <= value < 2**63)
        return int(value)

    return Key(read, f"a whole number of at least {least}", help, default)


def text(help: str, default: str | None = None) -> Key:
    def read(value: Any) -> str:
        require(isinstance(value, str) and value.strip() != "" and value.isprintable())
        return str(value)

    return Key(read, "one line of text in quotes", help, default)


def choice(*names: str, help: str, default: str | None = None) -> Key:
    def read(value: Any) -> str:
        require(isinstance(value, str) and value in names)
        return str(value)

    return Key(read, "one of " + ", ".join(f'"{name}"' for name in names), help, default)


def flag(help: str, default: bool = False) -> Key:
    def read(value: Any) -> bool:
        require(isinstance(value, bool))
        return bool(value)

    return Key(read, "true or false", help, default)


def ratio_or_list(help: str) -> Key:
    """A positive number (the ratio of policy geometric) or a list of them (one per round)."""
    one = positive("")

    def read(value: Any) -> float | list[float]:
        if isinstance(value, list):
            require(len(value) > 0)
            return [float(one.read(item)) for item in value]
        return float(one.read(value))

    return Key(read, "a positive number, or a list of positive numbers, one per round", help)


def tables(keys: Mapping[str, Key], help: str) -> Key:
    def read(value: Any) -> list[Any]:
        require(isinstance(value, list) and len(value) > 0 and all(isinstance(item, dict) for item in value))
        return list(value)

    return Key(read, "a list of tables, for example [{epsilon = 10, share = 1}]", help, table=keys)


def positive(help: str, default: float | None = None) -> Key:
    return number("a positive number", lambda x: x > 0, help, default)


def probability(help: str) -> Key:
    return number("a number above 0 and at most 1", lambda x: 0 < x <= 1, help)


# --- the sections ---------------------------------------------------------------------------------------------------------------

GROUP: Mapping[str, Key] = {
    "epsilon": positive("the budget of every client in this group"),
    "share": number("a number of at least 0", lambda x: x >= 0, "this group's part of all clients, relative to the other shares"),
    "saving_rate": probability("sampling rate before the transition round"),
    "transition": whole(1, "first round at the full rate"),
}

SECTIONS: Mapping[str, Mapping[str, Key]] = MappingProxyType(
    {
        "data": {
            "name": text("which data set"),
            "clients": whole(1, "number of clients"),
            "partition": choice("iid", "dirichlet", help="how examples are dealt to clients"),
            "alpha": positive("concentration of the Dirichlet partition; smaller is more uneven"),
        },
        "model": {"name": text("which model")},
        "method": {"name": text("what clients compute and how the server combines it")},
        "privacy": {
            "epsilon": positive("one budget for every client"),
            "groups": tables(GROUP, "budgets by group"),
            "budgets": text("CSV file with one line per client: client, epsilon, and optionally saving_rate, transition, group"),
            "delta": number("a number above 0 and below 1", lambda x: 0 < x < 1, "the delta of every budget"),
            "rate": probability("sampling rate: the probability that a client takes part in a round"),
            "clip": positive("clip norm of the average client", 1.0),
            "policy": text("how a budget is spread over the rounds"),
            "saving_rate": probability("sampling rate before the transition round, for clients without one of their own"),
            "transition": whole(1, "first round at the full rate, for clients without one of their own"),
            "permute_rates": flag("hand the saving rates out anew so that the strictest budgets get the smallest (Eq. 8)"),
            "weights": ratio_or_list(
                "for policy weights one number per round, for policy geometric the ratio of neighbouring rounds"
            ),
            "accountant": choice("rdp", "pld", help="which accountant plans the noise", default="rdp"),
            "noise": choice("central", "distributed", help="who adds the noise", default="central"),
            "randomness": choice("secure", "simulation", help="simulation: seeded, repeatable, protects nobody", default="secure"),
        },
        "train": {
            "rounds": whole(1, "number of rounds"),
            "local_steps": whole(1, "steps of a client in one round"),
            "local_epochs": whole(1, "passes of a client over its data in one round"),
            "batch_size": whole(1, "examples in one step"),
            "lr": positive("learning rate of the clients"),
            "seed": whole(0, "seed of the model and of the partition, and under simulation of everything"),
        },
        "engine": {
            "name": choice("local", "reference", "flower", help="where clients run", default="local"),
            "workers": whole(1, "worker processes"),
        },
    }
)
