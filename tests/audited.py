"""Settings to audit: sound ones of every kind, and mechanisms that are broken in one place each.

Every broken one has a true epsilon of at least twice its claim, by a closed form or because nothing
hides the client at all.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import numpy as np
import torch
from before.since import plan_as_it_was
from lib.configs import changed, small
from lib.gaussian import gaussian_epsilon

import fedspend.client.bounding
import fedspend.client.record_steps
import fedspend.client.work
import fedspend.noise.randomness
import fedspend.runs.setup
import fedspend.server.answers
import fedspend.server.mechanism
import fedspend.server.rounds

BASE = small(
    "plain",
    data__examples=240,
    data__features=20,
    data__classes=4,
    data__clients=48,
    method__name="dp-fedavg",
    privacy={"epsilon": 1.0, "delta": 1e-3, "rate": 1.0, "clip": 1.0},
    train={"rounds": 1, "local_steps": 1, "batch_size": 8, "lr": 0.1, "seed": 1},
)
settings = partial(changed, BASE)
GROUPS = [{"epsilon": 1.0, "share": 1}, {"epsilon": 4.0, "share": 1}]
ROUNDS = {"privacy__rate": 0.5, "train__rounds": 4}
OWN_BUDGETS = {"privacy__epsilon": None, "privacy__groups": GROUPS, **ROUNDS}
RECORDS = {
    "data__clients": 3,
    "train__batch_size": None,
    "train__rounds": 4,
    "train__local_steps": 3,
    "privacy__noise_multiplier": 3.0,
}

LEVELS = {**RECORDS, "privacy__epsilon": None, "privacy__preferences": "three-levels"}

SOUND: dict[str, tuple[dict[str, Any], int]] = {
    "dp-fedavg": (settings(**ROUNDS), 60),
    "idp-fedavg": (settings(method__name="idp-fedavg", **OWN_BUDGETS), 60),
    "time-adaptive": (
        settings(method__name="time-adaptive", privacy__saving_rate=0.3, **OWN_BUDGETS),
        60,
    ),
    "adaptive-clip": (settings(method__name="adaptive-clip", **OWN_BUDGETS), 60),
    "dp-fedsgd": (settings(method__name="dp-fedsgd", **ROUNDS), 60),
    "ae-dpfl": (
        settings(
            method__name="ae-dpfl", data__public_share=0.2, **{**OWN_BUDGETS, "privacy__rate": 1.0}
        ),
        60,
    ),
    "per-layer clip": (
        settings(
            privacy__clipping="per-layer", model__name="mlp", model__hidden=[8, 8, 8], **ROUNDS
        ),
        60,
    ),
    "distributed": (
        settings(method__name="idp-fedavg", privacy__noise="distributed", **OWN_BUDGETS),
        40,
    ),
    "discrete": (settings(method__name="idp-fedavg", privacy__noise="discrete", **OWN_BUDGETS), 40),
    "discrete-distributed": (
        settings(
            method__name="idp-fedavg",
            privacy__noise="discrete-distributed",
            data__clients=24,
            **OWN_BUDGETS,
        ),
        40,
    ),
    "rpdp": (settings(method__name="rpdp", privacy__rate=0.8, **LEVELS), 20),
    "minimum": (settings(method__name="minimum", privacy__rate=0.8, **LEVELS), 20),
    "dropout": (settings(method__name="dropout", privacy__rate=0.8, **LEVELS), 20),
    "filter": (
        settings(method__name="filter", method__common_rate=0.4, privacy__rate=0.8, **LEVELS),
        20,
    ),
    "filter by norm": (settings(method__name="filter", method__charge="norm", **LEVELS), 20),
}


# --- what is broken ------------------------------------------------------------------------------

Patch = Callable[[Any], None]  # given a monkeypatch


@dataclass(frozen=True)
class Broken:
    """`stronger`: the noise multiplier is this many times too small for a plain Gaussian of one
    round; infinite where nothing hides a client.
    """

    config: dict[str, Any]
    patch: Patch
    trials: int
    stronger: float = math.inf
    true: float | None = None  # where it is known otherwise
    options: dict[str, Any] = field(default_factory=dict)

    def true_epsilon(self, noise_multiplier: float) -> float:
        if self.true is not None:
            return self.true
        if math.isinf(self.stronger):
            return math.inf
        return gaussian_epsilon(self.stronger / noise_multiplier, self.config["privacy"]["delta"])


def no_noise(patch: Any) -> None:
    patch.setattr(
        fedspend.server.mechanism.Gaussian,
        "_continuous",
        lambda _self, sum: fedspend.server.mechanism.Noised(sum.total / sum.denominator),
    )


def half_noise(patch: Any) -> None:
    sound = fedspend.server.mechanism.Gaussian.release
    patch.setattr(
        fedspend.server.mechanism.Gaussian,
        "release",
        lambda self, sum, memory: sound(self, replace(sum, deviation=sum.deviation / 2), memory),
    )


def doubled_clip(patch: Any) -> None:
    sound = fedspend.client.bounding.bounded
    patch.setattr(
        fedspend.client.work,
        "bounded",
        lambda vector, task, randomness: sound(
            vector, replace(task, clip_norm=2 * task.clip_norm), randomness
        ),
    )


def layers_without_the_root(patch: Any) -> None:
    def clip(exact: torch.Tensor, layers: tuple[int, ...], bound: float) -> bool:
        for piece in torch.split(exact, list(layers)):
            norm = float(torch.linalg.vector_norm(piece))
            if norm > bound:
                piece *= bound / norm
        return True

    patch.setattr(fedspend.client.bounding, "_clip_layers", clip)


def noise_reused(patch: Any) -> None:
    sound = fedspend.noise.randomness.Randomness.normal

    def normal(self: Any, size: int, role: Any, round: int, client: int = 0) -> Any:
        return sound(self, size, role, 0 if role == "noise" else round, client)

    patch.setattr(fedspend.noise.randomness.Randomness, "normal", normal)


def sampling_ignored(patch: Any) -> None:
    patch.setattr(
        fedspend.server.rounds,
        "draw_cohort",
        lambda rate, _randomness, _round: np.arange(rate.size),
    )


def first_round_checked(patch: Any) -> None:
    """Few bits and noise that falls, as in version 0.1: the parts of later rounds are too coarse to
    add up.
    """
    patch.setattr(fedspend.planning.making, "make_plan", plan_as_it_was)
    patch.setattr(fedspend.runs.setup, "check_on_grid", lambda *_: None)


def wrong_client(patch: Any) -> None:
    """Terms are joined with clients by position, in the wrong order."""
    sound = fedspend.server.rounds.tasks_of
    patch.setattr(
        fedspend.server.rounds,
        "tasks_of",
        lambda cohort, terms, clients, shared: sound(
            cohort, replace(terms, clip_norm=terms.clip_norm[::-1]), clients, shared
        ),
    )


def bit_without_noise(patch: Any) -> None:
    def release(bits: float, _deviation: float, denominator: float, *_: Any, **__: Any) -> float:
        return bits / denominator + 0.5

    patch.setattr(fedspend.server.rounds, "release_bit", release)


def records_without_noise(patch: Any) -> None:
    patch.setattr(
        fedspend.client.record_steps,
        "release_step",
        lambda total, _deviation, denominator, *_: total / denominator,
    )


def doubled_record_clip(patch: Any) -> None:
    sound = fedspend.client.record_steps.clipped_sum
    patch.setattr(
        fedspend.client.record_steps,
        "clipped_sum",
        lambda module, clip, **how: sound(module, 2 * clip, **how),
    )


def record_sampling_ignored(patch: Any) -> None:
    patch.setattr(
        fedspend.client.record_steps, "draw_records", lambda rate, *_: np.flatnonzero(rate > 0)
    )


# One step of one round, in which every record takes part: a plain Gaussian.
ONE_STEP = {
    **RECORDS,
    "train__rounds": 1,
    "train__local_steps": 1,
    "privacy__epsilon": 9.0,
    "privacy__noise_multiplier": 1.5,
}
LITTLE = {"privacy__epsilon": 1.0, "privacy__noise_multiplier": 0.8}
LARGER = {"privacy__epsilon": 2.0}
BROKEN: dict[str, Broken] = {
    "no noise": Broken(settings(), no_noise, 100),
    "half noise": Broken(settings(**LARGER), half_noise, 300, stronger=2),
    "doubled clip": Broken(settings(**LARGER), doubled_clip, 300, stronger=2),
    "per-layer clip without the root": Broken(
        settings(
            privacy__clipping="per-layer", model__name="mlp", model__hidden=[8, 8, 8], **LARGER
        ),
        layers_without_the_root,
        300,
        stronger=2,
    ),
    "noise reused": Broken(settings(**ROUNDS), noise_reused, 100),
    "sampling ignored": Broken(
        settings(privacy__rate=0.1, train__rounds=4), sampling_ignored, 100, stronger=2
    ),
    "noise checked in the first round only": Broken(
        settings(
            method__name="time-adaptive",
            privacy__policy="weights",
            privacy__weights=[1e-3, 1.0],
            train__rounds=2,
            privacy__noise="discrete-distributed",
            privacy__bits=13,
            data__clients=600,
            data__examples=900,
            data__features=5,
            privacy__epsilon=2.5,
        ),
        first_round_checked,
        12,
        # In the second round a part has variance 0.048 in steps of the grid, so it is zero but for
        # once in 18,000 times. 600 parts add up to two steps less than once in 5,000 times, and a
        # canary moves its coordinate by two or three.
        true=math.log(0.9 * 5000),
    ),
    "budget joined to the wrong client": Broken(
        settings(
            method__name="idp-fedavg",
            privacy__epsilon=None,
            privacy__groups=[{"epsilon": 1.0, "share": 1}, {"epsilon": 8.0, "share": 1}],
        ),
        wrong_client,
        100,
        true=7.2,  # of one Gaussian release at the noise of the other group
    ),
    "half noise, discrete": Broken(
        settings(privacy__noise="discrete", **LARGER), half_noise, 200, stronger=2
    ),
    "half noise, votes": Broken(
        settings(method__name="ae-dpfl", data__public_share=0.3, **LARGER),
        half_noise,
        300,
        stronger=2,
    ),
    "nobody tops up": Broken(
        # a tenth of the clients answer, and with them a tenth of the noise
        settings(privacy__noise="distributed", privacy__rate=0.1, privacy__epsilon=0.5),
        no_noise,
        400,
        # by quadrature over cohorts: given k answers, the noise has variance k / 48 of the planned
        true=2.73,
    ),
    "the bit without noise": Broken(
        settings(method__name="adaptive-clip", data__clients=8, privacy__rate=0.5, train__rounds=4),
        bit_without_noise,
        400,
        options={"canaries": 1},
    ),
    "records without noise": Broken(
        settings(method__name="rpdp", **ONE_STEP), records_without_noise, 10
    ),
    "doubled clip of records": Broken(
        settings(method__name="rpdp", **ONE_STEP), doubled_record_clip, 60, stronger=2
    ),
    "sampling of records ignored": Broken(
        settings(method__name="rpdp", **{**ONE_STEP, **LITTLE}),
        record_sampling_ignored,
        60,
        stronger=1,
    ),
}
