"""Spending over time: does it pay to save budget for later, and under which learning rate?

Learning rate {constant, annealed, annealed with the clip following it} x spending {uniform, saving
by exact plans, by the paper's own algorithm, `optimal`, geometric early and late} x budgets x data:
Gabor features and logistic regression (Adult: its columns), 25 rounds at rate 0.9, as in Kiani et
al. (2025).

    FEDSPEND_DATA=... .venv/bin/python benchmarks/evidence/run_all.py --only time
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

from experiment import SEEDS, TAIL, Arm, Choice

STUDY = "time"
UNTUNED = "time, untuned"
TIGHT = (2, 5, 10)  # the budgets of the arms that are not tuned,
LARGE = (10, 20, 30)  # and, annealed alone, these
NOT_TUNED = ("uniform", "exact", "literal")
# Learning rate and clip of examples/papers, which were chosen for larger budgets.
AS_SHIPPED = "as shipped"
SHIPPED = {"fashion-mnist": (0.1, 1.0), "mnist": (0.2, 1.0)}
BUDGETS = ((2, 5, 10), (10, 20, 30), (5, 5, 5), (10, 10, 10))
DATA = ("fashion-mnist", "mnist", "adult", "cifar10")
# The most telling pairs of data and budgets, and Adult, whose runs take half a second.
FIRST: tuple[tuple[str, tuple[float, ...]], ...] = (
    ("fashion-mnist", (2, 5, 10)),
    ("mnist", (2, 5, 10)),
    *(("adult", budgets) for budgets in BUDGETS),
    ("fashion-mnist", (10, 20, 30)),
    ("mnist", (10, 20, 30)),
    ("fashion-mnist", (5, 5, 5)),
)
# Geometric spending has a search of its own in these pairs alone. In all others it has the learning
# rate and clip of uniform spending: a search for each would take an hour and a half more.
GEOMETRIC = ("geometric 1.05", "geometric 0.95")
GEOMETRIC_TUNED = (
    *((data, TIGHT) for data in ("fashion-mnist", "mnist", "adult")),
    ("adult", LARGE),
)
SHARES = (34, 43, 23)
SAVING_RATES = {"adult": (0.6, 0.7, 0.8)}  # Table 4 of the paper; the others (0.5, 0.6, 0.7)

# What annealing over 25 rounds leaves of the learning rate in the last one: (1 + cos(24 pi/25)) / 2
END = 0.004
SCHEDULES: dict[str, dict[str, Any]] = {
    "annealed": {
        "train.lr_schedule": "cosine",
        "train.lr_end": END,
        "privacy.clip_schedule": "constant",
        "train.tail_average": 1,
    },
    "constant": {
        "train.lr_schedule": "constant",
        "privacy.clip_schedule": "constant",
        "train.tail_average": TAIL,
    },
    "following": {
        "train.lr_schedule": "cosine",
        "train.lr_end": END,
        "privacy.clip_schedule": "lr",
        "train.tail_average": 1,
    },
}
# Averaging and annealing both quieten the end of training: each learning rate has one of them.
# Every run is read both ways; this is the reading that counts.
READOUT = {"annealed": "last", "constant": "tail", "following": "last"}
SPENDING: dict[str, dict[str, Any]] = {
    "uniform": {"method.name": "idp-fedavg", "privacy.policy": "uniform"},
    "exact": {
        "method.name": "time-adaptive",
        "privacy.policy": "spend-as-you-go",
        "privacy.transition": 13,
    },
    "literal": {
        "method.name": "time-adaptive",
        "privacy.policy": "spend-as-you-go-literal",
        "privacy.transition": 13,
    },
    "geometric 1.05": {
        "method.name": "time-adaptive",
        "privacy.policy": "geometric",
        "privacy.weights": 1.05,
    },
    "geometric 0.95": {
        "method.name": "time-adaptive",
        "privacy.policy": "geometric",
        "privacy.weights": 0.95,
    },
    "optimal": {"method.name": "time-adaptive", "privacy.policy": "optimal"},
}


def groups(budgets: tuple[float, ...], rates: tuple[float, ...] | None) -> list[dict[str, float]]:
    """The three groups of clients; with saving rates if the policy saves."""
    made: list[dict[str, float]] = [
        {"epsilon": epsilon, "share": share} for epsilon, share in zip(budgets, SHARES, strict=True)
    ]
    if rates is not None:
        for group, rate in zip(made, rates, strict=True):
            group["saving_rate"] = rate
    return made


def common(data: str) -> dict[str, Any]:
    """Every setting that is the same for all arms of a data set."""
    adult = data == "adult"
    return {
        "data.name": data,
        "data.clients": 80 if adult else 100,
        "data.partition": "dirichlet",
        "data.alpha": 0.1,
        "model.name": "logistic",
        "model.features": "none" if adult else "gabor",
        "privacy.delta": 1e-5,
        "privacy.rate": 0.9,
        "privacy.accountant": "rdp",
        "privacy.noise": "central",
        "privacy.clipping": "flat",
        "privacy.randomness": "seeded",
        "train.rounds": 25,
        "train.local_steps": 20 if adult else 40,
        "train.batch_size": 32 if adult else 64,
        "train.momentum": 0.0,
        "train.server_lr": 1.0,
        "train.server_momentum": 0.0,
    }


def start(data: str, budgets: tuple[float, ...], schedule: str) -> Choice:
    """Where the search for learning rate and clip begins, the same for every way of spending."""
    if data == "adult":
        return 1.0, 2.0
    # more noise asks for a smaller clip, unless it falls by itself
    return 0.2, 0.5 if min(budgets) < 10 and schedule != "following" else 1.0


def arm(data: str, budgets: tuple[float, ...], schedule: str, spending: str) -> Arm:
    policy = SPENDING[spending]
    saves = "privacy.transition" in policy
    rates = SAVING_RATES.get(data, (0.5, 0.6, 0.7)) if saves else None
    settings = common(data) | SCHEDULES[schedule] | policy
    settings["privacy.groups"] = groups(budgets, rates)
    alike = spending in GEOMETRIC and (data, budgets) not in GEOMETRIC_TUNED
    return Arm(
        STUDY,
        (data, "/".join(f"{epsilon:g}" for epsilon in budgets), schedule, spending),
        settings,
        start(data, budgets, schedule),
        READOUT[schedule],
        SEEDS,
        like=arm(data, budgets, schedule, "uniform") if alike else None,
    )


def as_shipped(data: str, schedule: str, spending: str, budgets: tuple[float, ...] = TIGHT) -> Arm:
    """The same, with the learning rate and the clip of examples/papers instead of tuned ones."""
    tuned = arm(data, budgets, schedule, spending)
    return replace(tuned, study=UNTUNED, start=SHIPPED[data], tries=1)


def at_choice_of(data: str, budgets: tuple[float, ...], spending: str, chosen_for: str) -> Arm:
    """Annealed, at the learning rate and clip that were chosen for another way of spending: what
    spending does if nothing else differs.
    """
    made = arm(data, budgets, "annealed", spending)
    label = (*made.label, f"at the choice for {chosen_for}")
    return replace(made, label=label, like=arm(data, budgets, "annealed", chosen_for))


def untuned() -> list[Arm]:
    """What saving gains if the clip is not chosen for the noise."""
    return [
        *(as_shipped(*one) for one in itertools.product(SHIPPED, SCHEDULES, NOT_TUNED)),
        *(
            as_shipped(data, "annealed", spending, LARGE)
            for data, spending in itertools.product(SHIPPED, NOT_TUNED)
        ),
    ]


def crossed() -> list[Arm]:
    """Uniform spending at the choice for saving, and saving at that for uniform spending."""
    return [
        at_choice_of(data, budgets, *pair)
        for data, budgets in cells()
        for pair in (("uniform", "exact"), ("exact", "uniform"))
    ]


def cells() -> list[tuple[str, tuple[float, ...]]]:
    """Data and budgets, in the order in which they are run."""
    return [*FIRST, *(pair for pair in itertools.product(DATA, BUDGETS) if pair not in FIRST)]


# the question itself, and variants of it
WAYS = ("uniform", "exact", "optimal"), ("literal",), GEOMETRIC


def arms() -> list[Arm]:
    """In the order in which they are run: what the question is about first, variants later, of
    which those where clients differ come first.
    """

    def cell(data: str, budgets: tuple[float, ...], spendings: tuple[str, ...]) -> list[Arm]:
        pairs = itertools.product(spendings, SCHEDULES)
        return [arm(data, budgets, schedule, spending) for spending, schedule in pairs]

    question, literally, geometric = WAYS
    first, *main = [cell(*one, question) for one in cells()]
    alike_last = sorted(cells(), key=lambda one: len(set(one[1])) == 1)
    variants = [cell(*one, literally) for one in cells()]
    variants += [cell(*one, geometric) for one in alike_last]
    return [one for block in (first, untuned(), *main, crossed(), *variants) for one in block]
