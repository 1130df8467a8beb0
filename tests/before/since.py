"""What changed on purpose since version 0.1.0, put back for the comparison: which accountant and
which policy plan by default, how plans by PLD and for discrete noise are read, how the noise on
bits is drawn, which generator rounds updates to a grid, and that the clip follows a learning rate
that falls unless `privacy.clip_schedule` says otherwise. All else is held to the stored bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from unittest import mock

import numpy as np

from fedspend.accounting.accountants import ACCOUNTANTS, AUTO
from fedspend.accounting.rdp import WHOLE_ORDERS
from fedspend.noise.discrete_gaussian import sample
from fedspend.noise.randomness import Randomness
from fedspend.planning import making, request_checks
from fedspend.server import rounds

make_plan = making.make_plan


def by_dp_accounting(noise, rate, delta, near):
    """Plans by PLD were made with dp-accounting's readings, on grids that followed the budget."""
    from dp_accounting.pld import privacy_loss_distribution

    interval, total = float(np.clip(1e-4 * near, 1e-5, 1e-3)), None
    pairs, times = np.unique(np.stack([noise, rate]), axis=1, return_counts=True)
    for (s, q), k in zip(pairs.T, times, strict=True):
        one = privacy_loss_distribution.from_gaussian_mechanism(
            float(s), sampling_prob=float(q), value_discretization_interval=interval
        ).self_compose(int(k))
        total = one if total is None else total.compose(one)
    return float(total.get_epsilon_for_delta(delta))


def plan_as_it_was(request, progress=None):
    """The accountant was rdp by default, and the plan did not say that it was chosen; the policy
    was uniform. Clips stayed; discrete noise was read at whole orders, and plans stated no steps.
    """
    implied = (request.policy, request.method, request.saving_rate, request.weights)
    if all(one is None for one in implied):
        request = replace(request, policy="uniform")
    if request.accountant == AUTO:
        request = replace(request, accountant="rdp")
    if request.clip_schedule is None:
        request = replace(request, clip_schedule="constant")
    if request.noise == "continuous":
        return make_plan(request, progress)
    with (
        mock.patch.object(request_checks, "ORDERS", WHOLE_ORDERS),
        mock.patch.object(making, "grid_steps", return_value=None),
    ):
        made = make_plan(request, progress)
    return made.replace(parameters=made.parameters | {"noise": "discrete"})


@contextmanager
def as_it_was(*, discrete: bool) -> Iterator[None]:
    """With `discrete`, the run's noise on updates is discrete: then that on bits was, in halves."""

    def release_bit(bits, deviation, denominator, randomness, round, **_):
        if discrete:
            words = randomness.words("bit-noise", round)
            halves = int(2 * bits) + int(sample(Fraction(2 * deviation) ** 2, 1, words)[0])
            return halves / 2 / denominator + 0.5
        noise = float(randomness.normal(1, "bit-noise", round)[0])
        return (bits + deviation * noise) / denominator + 0.5

    def coins(self, round, client):
        return self.generator("rounding", round, client)

    with (
        mock.patch.object(Randomness, "coins", coins),
        mock.patch.object(making, "make_plan", plan_as_it_was),
        mock.patch.dict(
            ACCOUNTANTS._entries, {"pld": replace(ACCOUNTANTS["pld"], epsilon=by_dp_accounting)}
        ),
        mock.patch.object(rounds, "release_bit", release_bit),
    ):
        yield
