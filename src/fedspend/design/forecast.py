"""What theory expects of a plan: how far from the best model training ends, and why.

The model. Around the best model the loss is quadratic and pulls alike in all directions:

- **bias**: one round leaves the part `approach` of the distance to the best model. Clipping
  shortens updates, and with them the step, by `f_t = min(1, c_t / u_t)`, where a client's update
  has norm `u_t`: at least the `stride`, which is how far clients with data of their own pull, each
  its own way, however close the best model is for all. A falling learning rate pulls less, as in
  `planning.influence`. Few rounds, small clips and early annealing end too far away.
- **noise**: round t adds noise of length `sqrt(parameters) c_t s_t / (N qbar_t)`, of which the
  influence `h_t` is left; a round that is clipped pulls back less of it, too. Many rounds, large
  clips and low rates have more of it.
- **sampling**: who happens to take part moves the mean by at most
  `sqrt(sum_n q_n (1 - q_n) c_n^2) / (N qbar)` in a round; at rate 1 there is none.

All three are relative: bias to the `distance` that training has to go, noise and sampling to the
`slack`, the length of a random push that would undo all that training gains. Their squares are
shares of the loss that training could remove, and add up: 0 is the best model, 1 is no better than
not training.

Guarantee: noise, clips and rates are read from the real plan, whose epsilon is exact. All else here
is a model: it ranks rounds, rate, clip, schedule, tail and policy as well as its five numbers fit
the data. It knows nothing of learning rates, local steps, overfitting, or of the bias of individual
rates and clips. Privacy never depends on it.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.configuration.config import Config
from fedspend.configuration.learning_rates import relative_rates
from fedspend.errors import InvalidInput, finite_number, whole_number
from fedspend.planning.influence import Course, checked_contraction, influence
from fedspend.planning.plan import Plan


@dataclass(frozen=True)
class Assumption:
    """The five numbers of the model, and how many parameters noise is added to."""

    contraction: float  # part of a random push that one round leaves
    approach: float  # part of the distance to the best model that one round leaves
    distance: float  # from the first model to the best, in the unit of the clip
    slack: float  # length of a random push that undoes what training gains
    parameters: int
    stride: float = 0.0  # norm of a client's update, before clipping, at the first learning rate
    source: str = "given"  # or "measured"

    @classmethod
    def given(
        cls,
        parameters: int,
        contraction: Any,
        distance: Any,
        approach: Any = None,
        slack: Any = None,
        stride: Any = None,
    ) -> Assumption:
        """Numbers from a user. Without others, all directions and all clients are alike."""
        rho = checked_contraction(contraction)
        if rho is None or distance is None:
            raise InvalidInput(
                "theory needs contraction (the part of a push that one round leaves) and distance "
                "(from the first model to the best, in the unit of the clip); give both, or "
                "measure them on public data"
            )
        along = rho if approach is None else checked_contraction(approach)
        assert along is not None
        far = positive("distance", distance)
        return cls(
            contraction=rho,
            approach=along,
            distance=far,
            slack=far if slack is None else positive("slack", slack),
            parameters=whole_number("parameters", parameters, 1),
            stride=0.0 if stride is None else positive("stride", stride),
        )

    def document(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True)
class Forecast:
    """Shares of the loss that training could remove, and did not; they add up to `total`."""

    bias: float
    noise: float
    sampling: float

    @property
    def total(self) -> float:
        return self.bias + self.noise + self.sampling


def positive(name: str, value: Any) -> float:
    found = finite_number(name, value)
    if not found > 0:
        raise InvalidInput(f"{name} must be positive, got {value!r}")
    return found


def forecast(plan: Plan, course: Course, server_lr: float, assumed: Assumption) -> Forecast:
    """What the model expects of training as planned."""
    clip = mean_clip(plan)
    left, kept = approached(course, assumed, clip)
    pulled = 1 - (1 - course.contractions(assumed.contraction)) * kept
    h = influence(pulled, course.tail, course.momentum)
    noise = server_lr * math.sqrt(assumed.parameters) * np.array(plan.noise_of_average)
    sampling = server_lr * np.sqrt(sampling_variance(plan))
    bias = float(left[-course.tail :].mean()) / assumed.distance
    return Forecast(
        bias=bias**2,
        noise=float(np.square(h * noise).sum()) / assumed.slack**2,
        sampling=float(np.square(h * sampling).sum()) / assumed.slack**2,
    )


def course_of(config: Config, plan: Plan) -> Course:
    """How training goes on under a config, over the rounds that are planned."""
    train = config.train
    rates = relative_rates(train, plan.rounds + plan.dropped_rounds)
    return Course(
        rounds=plan.rounds,
        tail=min(plan.rounds, train.tail_average),
        momentum=train.server_momentum,
        learning_rates=None if rates is None else np.array(rates[: plan.rounds]),
    )


def approached(
    course: Course, assumed: Assumption, clip: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Distance to the best model after each round without noise, and what clipping leaves of it.

    Both are (rounds,); the second is the part of a step that is left.

    >>> plain = Assumption.given(1, contraction=0.5, distance=8.0)
    >>> left, kept = approached(Course(3), plain, np.array([9.0, 9.0, 0.5]))
    >>> left.tolist(), kept.tolist()
    ([4.0, 2.0, 1.5], [1.0, 1.0, 0.5])
    """
    left, velocity = assumed.distance, 0.0
    found, kept = np.empty(course.rounds), np.empty(course.rounds)
    rates = np.ones(course.rounds) if course.learning_rates is None else course.learning_rates
    strides = assumed.stride * rates / rates[0]
    for t, rho in enumerate(course.contractions(assumed.approach)):
        step = (1 - rho) * left
        update = max(abs(step), strides[t])
        kept[t] = 1.0 if update <= clip[t] else clip[t] / update
        velocity = course.momentum * velocity - kept[t] * step
        left += velocity
        found[t] = left
    return found, kept


def mean_clip(plan: Plan) -> FloatArray:
    """How far a round can move the model, (rounds,): the mean clip of those who take part."""
    s = plan.schedules
    counted = s.sampling_rate * s.clients_of
    clip: FloatArray = (counted * s.clip_norm).sum(axis=1) / counted.sum(axis=1)
    return clip


def sampling_variance(plan: Plan) -> FloatArray:
    """At most the squared length by which sampling moves the mean of a round, (rounds,)."""
    s = plan.schedules
    each = s.sampling_rate * (1 - s.sampling_rate) * s.clip_norm**2 * s.clients_of
    variance: FloatArray = each.sum(axis=1) / (len(plan.clients) * plan.round_rate) ** 2
    return variance


# --- measured on public rows ----------------------------------------------------------------------


def fitted_approach(
    course: Course, left: FloatArray, assumed: Assumption, clip: FloatArray
) -> Assumption:
    """The assumption with the approach that fits a run without noise best, by squares.

    `left` is the part of the distance that is left after each round of it.
    """
    tried = [replace(assumed, approach=float(one)) for one in np.round(np.arange(0.02, 1, 0.01), 2)]
    off = [
        float(((approached(course, one, clip)[0] / one.distance - left) ** 2).sum())
        for one in tried
    ]
    return tried[int(np.argmin(off))]
