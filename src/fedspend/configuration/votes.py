"""Sets up voting from a config: what is voted on, and the student that learns from it.

Settings that voting does not use are refused, and if noise would decide the labels, a warning says
so before anything is spent.
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

# share of all expected votes: above it, with ten classes, noise often beats even a unanimous vote
_MOST_NOISE = 0.5


def student_of(
    config: Config, plan: Plan, dataset: Dataset, module: nn.Module, randomness: Randomness
) -> Student:
    """The student that `config` describes.

    Public rows are voted on in random order, since a file may be sorted.
    """
    public = dataset.public_features
    if public is None:
        raise InvalidInput(
            f"method {NAME!r} votes on public rows, but the data has none: set public_share under "
            "[data] for a benchmark, or public_path for your own data"
        )
    if config.privacy.clipping == "per-layer":
        raise InvalidInput(
            f"clipping per layer is for updates, but method {NAME!r} sends votes; use clipping = "
            "'flat'"
        )
    if config.shape.lus > 0:
        raise InvalidInput(
            f"lus thins out updates, but method {NAME!r} sends votes; set lus = 0 under [shape]"
        )
    order = randomness.generator("student").permutation(len(public))
    # by the rounds of the config: replanned rounds do not change what was asked before
    once = max(1, len(public) // needed(config.train.rounds, "train.rounds"))
    ballot = Ballot(torch.from_numpy(public[order]), config.votes.queries or once, dataset.classes)
    warn_of_noise(ballot.queries, plan)
    return Student(
        module, ballot, config.votes.lr, config.votes.epochs, config.votes.batch_size, randomness
    )


def warn_of_noise(queries: int, plan: Plan) -> None:
    """Warn if noise will decide the labels: once the results show it, the budget is spent."""
    share = max(plan.noise_of_average) * math.sqrt(queries) / plan.clip
    if share > _MOST_NOISE:
        fewer = int(queries * (_MOST_NOISE / share) ** 2)
        hint = (
            f"ask about at most {fewer} with votes.queries"
            if fewer
            else "even one is too many: plan fewer rounds or more clients"
        )
        asked = counted(queries, "row")
        message = (
            f"noise on a class's share of the votes has a deviation of {share:.0%} with {asked} "
            f"per round; {hint}"
        )
        warnings.warn(message, FedspendWarning, stacklevel=4)
