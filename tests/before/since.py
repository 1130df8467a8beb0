"""What changed on purpose since version 0.1.0, put back for the comparison: how plans for discrete
noise are read, how the noise on bits is drawn, and that the clip follows a learning rate that falls
unless `privacy.clip_schedule` says otherwise. All else is held to the stored bits.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from fractions import Fraction
from unittest import mock

from fedspend.accounting.rdp import WHOLE_ORDERS
from fedspend.noise.discrete_gaussian import sample
from fedspend.planning import making
from fedspend.server import rounds

make_plan = making.make_plan


def plan_as_it_was(request, progress=None):
    """Clips stayed; discrete noise was read at whole orders, and plans stated no steps."""
    if request.clip_schedule is None:
        request = replace(request, clip_schedule="constant")
    if request.noise == "continuous":
        return make_plan(request, progress)
    with (
        mock.patch.object(making, "ORDERS", WHOLE_ORDERS),
        mock.patch.object(making, "grid_steps", return_value=None),
    ):
        made = make_plan(request, progress)
    return made.replace(parameters=made.parameters | {"noise": "discrete"})


@contextmanager
def as_it_was(*, discrete: bool) -> Iterator[None]:
    """With `discrete`, the run's noise on updates is discrete: then that on bits was, in halves."""

    def release_bit(bits, deviation, denominator, randomness, round):
        if discrete:
            words = randomness.words("bit-noise", round)
            halves = int(2 * bits) + int(sample(Fraction(2 * deviation) ** 2, 1, words)[0])
            return halves / 2 / denominator + 0.5
        noise = float(randomness.normal(1, "bit-noise", round)[0])
        return (bits + deviation * noise) / denominator + 0.5

    with (
        mock.patch.object(making, "make_plan", plan_as_it_was),
        mock.patch.object(rounds, "release_bit", release_bit),
    ):
        yield
