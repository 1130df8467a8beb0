"""What a config file may say: for every section, its keys, what each may hold, and what it means.

To add a key, add a line. A reader takes the parsed TOML value and returns it in the form that the rest of the program uses, or
raises `ValueError`; `wanted` completes the sentence "rate must be ...".
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any


@dataclass(frozen=True)
class Key:
    """One key: its reader, the words for a good value, what it means, its default; for a list of tables, the keys of one table;
    for a file, how a name found in a folder reads from everywhere."""

    read: Callable[[Any], Any]
    wanted: str
    help: str
    default: Any = None
    table: Mapping[str, Key] | None = None
    placed: Callable[[str, Path], str] | None = None


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


def file(help: str) -> Key:
    return replace(text(help), placed=lambda name, folder: os.path.realpath(folder / name))


def ledger(help: str) -> Key:
    """A file, or a URL, which is the same from everywhere."""

    def placed(name: str, folder: Path) -> str:
        from fedspend.ledger.storage import is_url, path_of

        return name if is_url(name) else os.path.realpath(folder / path_of(name))

    return replace(text(help), placed=placed)


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


def wholes(help: str) -> Key:
    one = whole(1, "")

    def read(value: Any) -> list[int]:
        require(isinstance(value, list))
        return [int(one.read(item)) for item in value]

    return Key(read, "a list of whole numbers of at least 1", help)


def pair(help: str) -> Key:
    one = number("", lambda _: True, "")

    def read(value: Any) -> tuple[float, float]:
        require(isinstance(value, list) and len(value) == 2)
        low, high = (float(one.read(item)) for item in value)
        require(low < high)
        return low, high

    return Key(read, "two numbers, the lower first, for example [0, 255]", help)


def tables(keys: Mapping[str, Key], help: str) -> Key:
    def read(value: Any) -> list[Any]:
        require(isinstance(value, list) and len(value) > 0 and all(isinstance(item, dict) for item in value))
        return list(value)

    return Key(read, "a list of tables, for example [{epsilon = 10, share = 1}]", help, table=keys)


def positive(help: str, default: float | None = None) -> Key:
    return number("a positive number", lambda x: x > 0, help, default)


def several(one: Key, help: str) -> Key:
    """A list of different values, each of which `one` would take."""

    def read(value: Any) -> list[Any]:
        require(isinstance(value, list) and len(value) > 0)
        values = [one.read(item) for item in value]
        require(len(set(values)) == len(values))
        return values

    return Key(read, f"a list of different values, each {one.wanted}", help)


def probability(help: str) -> Key:
    return number("a number above 0 and at most 1", lambda x: 0 < x <= 1, help)


# --- the sections ---------------------------------------------------------------------------------------------------------------

GROUP: Mapping[str, Key] = {
    "epsilon": positive("the budget of every client in this group"),
    "share": number("a number of at least 0", lambda x: x >= 0, "this group's part of all clients, relative to the other shares"),
    "saving_rate": probability("sampling rate before the transition round"),
    "transition": whole(1, "first round at the full rate"),
}

POLICY: Mapping[str, Key] = {
    "policy": choice("uniform", "spend-as-you-go", "geometric", help="how a budget is spread over the rounds"),
    "saving_rate": probability("spend-as-you-go: sampling rate before the transition round"),
    "transition": whole(1, "spend-as-you-go: first round at the full rate"),
    "ratio": positive("geometric: weight of a round relative to the one before"),
}

SECTIONS: Mapping[str, Mapping[str, Key]] = MappingProxyType(
    {
        "data": {
            "name": text("which data set"),
            "clients": whole(1, "number of clients"),
            "partition": choice(
                "iid",
                "dirichlet",
                "shards",
                "classes",
                "natural",
                help="which client holds which rows: by the data's own ids (natural, the default where it has them), or dealt",
            ),
            "leave_out": several(text(""), "natural clients: ids whose rows are not used"),
            "alpha": positive("concentration of the Dirichlet partition; smaller is more uneven"),
            "shards": whole(1, "label shards for each client", 2),
            "classes_per_client": whole(1, "partition classes: how many classes each client holds"),
            "validation": number(
                "a number of at least 0 and below 1",
                lambda x: 0 <= x < 1,
                "share of the training rows to evaluate on, not the test set",
                0.0,
            ),
            "share": number(
                "a number above 0 and at most 1",
                lambda x: 0 < x <= 1,
                "share of the training rows to use: the same sample for every seed",
                1.0,
            ),
            "test_share": number(
                "a number above 0 and at most 1", lambda x: 0 < x <= 1, "the same for the rows to evaluate on", 1.0
            ),
            "path": file("file with your own data, .csv or .npz"),
            "test_path": file("file with the evaluation rows of your own data"),
            "label": text("label column of your own data"),
            "client": text("client column of your own data"),
            "record": text("column of your own data that holds each record's id, for record-level methods"),
            "split": text("column of your own data that says train or test"),
            "bounds": pair("public bounds that features of your own data are scaled by"),
            "examples": whole(1, "synthetic data: number of training examples"),
            "features": whole(1, "synthetic data: number of features"),
            "classes": whole(2, "number of classes: required for your own data, optional for synthetic"),
            "budget": text("column of your own data that holds each record's epsilon, for record-level methods"),
            "public_share": number(
                "a number above 0 and below 1",
                lambda x: 0 < x < 1,
                "share of the training rows of a benchmark to make public, without labels, before clients get theirs",
            ),
            "public_path": file("file with public rows beside your own data: the same features, no labels needed"),
        },
        "model": {
            "name": text("which model"),
            "features": choice("none", "gabor", help="fixed feature map in front of the model", default="none"),
            "hidden": wholes("widths of the hidden layers of model mlp"),
        },
        "method": {
            "name": text("what clients compute and how the server combines it"),
            "target_quantile": number(
                "a number above 0 and below 1", lambda x: 0 < x < 1, "adaptive-clip: share of updates to leave unclipped", 0.5
            ),
            "clip_lr": positive("adaptive-clip: how fast the clip follows", 0.2),
            "bit_noise": positive(
                "adaptive-clip: deviation of the noise on the sum of bits; default 0.05 times the expected cohort"
            ),
            "noise_level": positive("dp-fedsgd: deviation of the noise that one client adds, in place of a budget"),
            "rates": choice("exact", "search", "scf", "scf-clamped", help="rpdp: how budgets become rates", default="exact"),
            "saving_share": number(
                "a number from 0.01 to 1",
                lambda x: 0.01 <= x <= 1,
                "rpdp: share of its rate that a record uses before the transition",
            ),
            "common_rate": probability("filter: the rate of every record that has not run out"),
            "charge": choice("clip", "norm", help="filter: a step costs a record the clip (default), or its own gradient's norm"),
        },
        "privacy": {
            "epsilon": positive("one budget for every client"),
            "groups": tables(GROUP, "budgets by group"),
            "budgets": file("CSV file with one line per client: client, epsilon, and optionally saving_rate, transition, group"),
            "preferences": choice(
                "three-levels",
                "bounded-pareto",
                "bounded-mix-gauss",
                help="record-level methods: draw a budget for every record from one of the paper's distributions",
            ),
            "noise_multiplier": positive(
                "record-level methods: noise of a local step, in clips; default: suggested from the budgets"
            ),
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
            "noise": choice(
                "central",
                "distributed",
                "discrete",
                "discrete-distributed",
                help="who adds the noise: the server, or each client its part; discrete: in whole numbers, exactly",
                default="central",
            ),
            "bits": whole(8, "discrete noise: sums are taken modulo 2^bits; at most 32", 32),
            "clipping": choice(
                "flat", "per-layer", help="clip the whole update, or each layer to clip / sqrt(layers)", default="flat"
            ),
            "randomness": choice(
                "seeded",
                "os",
                help="seeded: repeatable simulation that protects nobody; os: for real runs. Default: seeded for public data",
            ),
        },
        "train": {
            "rounds": whole(1, "number of rounds"),
            "local_steps": whole(1, "steps of a client in one round"),
            "local_epochs": whole(1, "passes of a client over its data in one round"),
            "batch_size": whole(1, "examples in one step"),
            "lr": number("a positive number of at most 1e6", lambda x: 0 < x <= 1e6, "learning rate of the clients"),
            "lr_schedule": choice(
                "constant", "linear", "cosine", help="how lr falls from the first round to the last", default="constant"
            ),
            "lr_end": number("a number from 0 to 1", lambda x: 0 <= x <= 1, "share of lr that is left in the last round", 0.1),
            "momentum": number("a number of at least 0 and below 1", lambda x: 0 <= x < 1, "momentum of the clients", 0.0),
            "server_lr": positive("learning rate of the server", 1.0),
            "server_momentum": number("a number of at least 0 and below 1", lambda x: 0 <= x < 1, "momentum of the server", 0.0),
            "tail_average": whole(1, "the final model is the mean of this many last iterates", 1),
            "seed": whole(0, "seed of the model and of the partition, and under simulation of everything", 0),
            "tensorboard": flag("also log for TensorBoard"),
        },
        "ledger": {
            "location": ledger("where accounts are kept: a file, or postgresql://...; default: in the run directory"),
            "spend": choice(
                "config",
                "remaining",
                help="config: the budgets of this config, if the ledger allows them; remaining: all that is left of each lifetime "
                "budget",
                default="config",
            ),
            "exhausted": choice(
                "refuse",
                "leave-out",
                help="what to do if a client has too little budget left: refuse to train, or plan without it",
                default="refuse",
            ),
        },
        "design": {
            "rates": several(probability(""), "sampling rates to search; default: privacy.rate alone"),
            "noise_levels": several(positive(""), "noise levels of dp-fedsgd to search, for every T up to train.rounds"),
            "epsilons": several(positive(""), "budgets to search policies under"),
            "policies": tables(POLICY, "spending policies to search, with epsilons"),
            "seeds": whole(1, "trainings to average over, with seeds from train.seed on; default: 3"),
        },
        "shape": {
            "blur": number(
                "a number of at least 0",
                lambda x: x >= 0,
                "pull of the local model to its start once it is further away than the clip",
                0.0,
            ),
            "lus": number(
                "a number of at least 0 and below 1", lambda x: 0 <= x < 1, "share of each layer's update that is dropped", 0.0
            ),
        },
        "votes": {
            "queries": whole(1, "ae-dpfl: public rows to vote on in a round; default: every public row once"),
            "epochs": whole(1, "ae-dpfl: passes of the server over all rows voted on so far, in every round", 5),
            "lr": number("a positive number of at most 1e6", lambda x: 0 < x <= 1e6, "ae-dpfl: learning rate of these passes", 0.1),
            "batch_size": whole(1, "ae-dpfl: rows in one step of the server", 32),
        },
        "engine": {
            "name": choice("local", "reference", "flower", help="where clients run", default="local"),
            "workers": whole(1, "worker processes"),
        },
    }
)
