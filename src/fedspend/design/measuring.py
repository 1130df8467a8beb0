"""The numbers of the model in `forecast`, measured on public rows.

One run without noise shows how far training goes and how fast; a random push at its end, how much
of one undoes what was gained; a push halfway, how much of one a round leaves.

Guarantee: nothing but seeded simulations on public or made-up rows; private rows are refused.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fedspend.basics.arrays import Float32Array, FloatArray
from fedspend.configuration.config import Config
from fedspend.configuration.plan_inputs import resolve
from fedspend.design.choices import (
    POLICY,
    ROUNDS,
    SCHEDULE,
    TAIL,
    Candidate,
    changed,
    config_of_candidate,
    refuse_private,
)
from fedspend.design.forecast import Assumption, approached, fitted_approach, mean_clip
from fedspend.design.influence import Trial
from fedspend.design.simulation import HELD_OUT
from fedspend.errors import Refused

DIRECTIONS = 3
PUSH = 0.5  # length of a push, relative to how far training goes
_LEAST, _MOST = 0.05, 0.995  # contractions that are told apart


def measured_assumption(config: Config, rounds: int) -> Assumption:
    """The numbers of the model, from runs of `rounds` rounds at a constant learning rate."""
    refuse_private(config, "measuring")
    from fedspend.basics.threads import single_threaded

    plain = config_of_candidate(
        config,
        Candidate.of({ROUNDS: rounds, POLICY: "uniform", SCHEDULE: "constant", TAIL: 1}),
    )
    seeded = {
        "privacy.randomness": "seeded",
        "data.validation": config.data.validation or HELD_OUT,
        "train.server_momentum": 0.0,
    }
    plain = changed(plain, seeded)
    with single_threaded():
        clip = mean_clip(resolve(plain).request.plan())
        return read(Trial.of(plain), server_lr=plain.train.server_lr, plan_clip=clip)


def read(trial: Trial, *, server_lr: float, plan_clip: FloatArray) -> Assumption:
    """The numbers from one run, its losses and a few pushes; `plan_clip` is the clip by round."""
    first, last = trial.states[0].parameters, trial.iterates[-1]
    start, end = trial.loss(first), trial.loss(last)
    gain = start - end
    if not gain > 0:
        raise Refused(
            f"training without noise did not lower the loss ({start:.4g} to {end:.4g}), so there "
            "is nothing to plan for; try another lr, more local_steps or a larger clip"
        )
    distance = float(np.linalg.norm(last.astype(np.float64) - first))
    pushes = [random_push(trial, direction, PUSH * distance) for direction in range(DIRECTIONS)]
    cost = float(np.mean([_excess(trial, push, last) for push in pushes]))
    if not cost > 0:
        raise Refused(
            "random pushes at the end of training do not raise the loss, so it has not come near a "
            "minimum; train more rounds, or give contraction and distance"
        )
    losses = np.array([trial.loss(one) for one in trial.iterates])
    left = np.sqrt(np.clip((losses - end) / gain, 0.0, 1.0))
    stride = 0.0 if trial.norms is None else float(np.median(trial.norms))
    plain = Assumption(
        contraction=_contraction(trial, pushes[0] / np.float32(server_lr), server_lr),
        approach=0.9,
        distance=distance,
        slack=PUSH * distance * float(np.sqrt(gain / cost)),
        parameters=last.size,
        stride=stride,
        source="measured",
    )
    fitted = fitted_approach(trial.course, left, plain, plan_clip)
    # the run was clipped, and pulled back less than it would have been without a clip
    _, kept = approached(trial.course, fitted, plan_clip)
    free = 1 - (1 - plain.contraction) / float(kept.mean())
    return replace(fitted, contraction=min(_MOST, max(_LEAST, free)))


def _contraction(trial: Trial, push: Float32Array, server_lr: float) -> float:
    """From a push in the middle of training: what is left of it, in excess loss if that is read."""
    middle = trial.rounds // 2
    ahead, behind = (trial.finished(middle, sign * push)[1] for sign in (1, -1))
    at_the_end = _excess(trial, server_lr * push, trial.base[1])
    left = trial.excess(1, ahead, behind) / at_the_end if at_the_end > 0 else np.nan
    if not left > 0:
        apart = np.linalg.norm(ahead.astype(np.float64) - behind) / 2
        left = float(apart / (server_lr * np.linalg.norm(push))) ** 2
    rounds = trial.rounds - 1 - middle
    rate = float(np.sqrt(left)) ** (1 / rounds) if rounds else 1.0
    return min(_MOST, max(_LEAST, rate))


def _excess(trial: Trial, push: Float32Array, model: Float32Array) -> float:
    return trial.excess(1, model + push, model - push)


def random_push(trial: Trial, direction: int, length: float) -> Float32Array:
    """A vector of this length in a random direction."""
    drawn = np.random.default_rng([trial.seed, direction]).normal(size=trial.iterates[-1].size)
    return (length / np.linalg.norm(drawn) * drawn).astype(np.float32)
