"""From a config to what is voted on and who learns from it.

What votes have no use for is refused, and noise that would decide the labels is announced before
anything is spent.
"""

from __future__ import annotations

import math
import warnings

import torch
from torch import nn

from fedspend.basics.words import counted
from fedspend.configuration.config import Config, needed
from fedspend.data import Dataset
from fedspend.errors import FedspendWarning, InvalidInput
from fedspend.noise.randomness import Randomness
from fedspend.planning.plan import Plan
from fedspend.server.student import NAME, Ballot, Student

# of all expected votes: with ten classes, even a unanimous vote is then often outdone by noise
_MOST_NOISE = 0.5


def student_of(
    config: Config, plan: Plan, dataset: Dataset, module: nn.Module, randomness: Randomness
) -> Student:
    """The student that `config` describes. Public rows are asked in a random order: a file may be
    sorted.
    """
    public = dataset.public_features
    if public is None:
        raise InvalidInput(
            f"method {NAME!r} votes on public rows and the data has none: set public_share under "
            "[data] for a benchmark, or public_path for your own data"
        )
    if config.privacy.clipping == "per-layer":
        raise InvalidInput(
            f"clipping per layer is for updates, and method {NAME!r} sends votes; use clipping = "
            "'flat'"
        )
    if config.shape.lus > 0:
        raise InvalidInput(
            f"lus thins out updates, and method {NAME!r} sends votes; set lus = 0 under [shape]"
        )
    order = randomness.generator("student").permutation(len(public))
    # by the rounds asked for: rounds that are planned anew do not change what was asked before
    once = max(1, len(public) // needed(config.train.rounds, "train.rounds"))
    ballot = Ballot(torch.from_numpy(public[order]), config.votes.queries or once, dataset.classes)
    warn_of_noise(ballot.queries, plan)
    return Student(
        module, ballot, config.votes.lr, config.votes.epochs, config.votes.batch_size, randomness
    )


def warn_of_noise(queries: int, plan: Plan) -> None:
    """Say beforehand if noise will decide the labels; whoever learns it from the result has spent
    the budget.
    """
    share = max(plan.noise_of_average) * math.sqrt(queries) / plan.clip
    if share > _MOST_NOISE:
        fewer = int(queries * (_MOST_NOISE / share) ** 2)
        hint = (
            f"ask about at most {fewer} with votes.queries"
            if fewer
            else "one is too many: plan fewer rounds or more clients"
        )
        asked = counted(queries, "row")
        message = (
            f"noise on a class's share of the votes has deviation {share:.0%} with {asked} in a "
            f"round; {hint}"
        )
        warnings.warn(message, FedspendWarning, stacklevel=4)
