"""Noise of real runs is drawn in whole numbers: discrete by default, on the finest grid where it is
planned as continuous, and around the sum itself in the local steps of records.
"""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from boundary import client_task
from hypothesis import given
from hypothesis import settings as settings_of
from hypothesis import strategies as st
from lib.configs import small
from scipy import stats

import fedspend
from fedspend.client import record_steps
from fedspend.client.bounding import own_noise
from fedspend.client.contribution import Contribution, Reply
from fedspend.configuration.config import config_of
from fedspend.configuration.noise_kind import noise_of
from fedspend.errors import InvalidInput, Refused
from fedspend.noise import discrete_gaussian
from fedspend.noise.discrete_gaussian import sample, sample_around
from fedspend.noise.grid import (
    FINE_BITS,
    FINE_STEPS,
    Grid,
    check_on_grid,
    check_steps,
    noised_exactly,
)
from fedspend.noise.numbers import NumberGrid
from fedspend.noise.randomness import Randomness
from fedspend.report.html import write_report
from fedspend.runs.setup import from_config, noise_terms
from fedspend.runs.training import train
from fedspend.server.answers import Tally
from fedspend.server.mechanism import NO_MEMORY, Gaussian, Sum
from fedspend.server.rounds import begin, prepared
from fedspend.stored.run import StoredRun

pytestmark = pytest.mark.usefixtures("quick_verify")

# --- noise around a real number -------------------------------------------------------------------


@pytest.mark.parametrize("fraction", [0.0, 0.25, 0.5, 0.9])
def test_proposals_are_kept_with_the_weight_of_their_distance(fraction):
    """The sampler's core at a variance so small that every probability can be seen."""
    variance, ceiling = Fraction(4), Fraction(8)
    seeds = Randomness(3).words("noise", 0)
    proposed, accept = discrete_gaussian._propose(
        np.full(400_000, fraction), 1, variance, ceiling, seeds
    )
    kept = proposed[accept]
    x = np.arange(-9, 11)
    weight = np.exp(-((x - fraction) ** 2) / 8)
    expected = weight / weight.sum() * kept.size
    found = np.array([(kept == value).sum() for value in x])
    large = expected > 5
    assert stats.chisquare(found[large], expected[large], sum_check=False).pvalue > 1e-4
    other = np.exp(-((x - fraction - 0.1) ** 2) / 8)
    other *= kept.size / other.sum()
    assert stats.chisquare(found[large], other[large], sum_check=False).pvalue < 1e-4


def test_noise_around_numbers_has_the_variance_and_the_centres():
    centres = np.random.default_rng(0).uniform(-(2.0**40), 2.0**40, 200_000)
    noise = sample_around(centres, Fraction(2**40), Randomness(1).words("noise", 0)) - centres
    assert abs(noise.mean()) < 5 * 2**20 / math.sqrt(noise.size)
    assert stats.kstest(noise / 2**20, "norm").pvalue > 1e-4
    assert not stats.kstest(noise / 2**20 * 1.02, "norm").pvalue > 1e-4


@pytest.mark.parametrize("bad", [math.nan, math.inf, 2.0**62])
def test_a_centre_that_is_no_number_is_refused(bad):
    with pytest.raises(InvalidInput, match="2\\^61"):
        sample_around(np.array([bad]), Fraction(2**30), Randomness(1).words("noise", 0))


def test_noise_too_small_for_a_real_centre_is_refused():
    with pytest.raises(InvalidInput, match="at least 2\\^20"):
        sample_around(np.zeros(1), Fraction(100), Randomness(1).words("noise", 0))


def last_digits(values, step):
    return values / step - np.rint(values / step)


@pytest.mark.parametrize("total", [0.0, 1e-9, 0.1, 1 / 3, 1e5 + 1e-11])
def test_no_digit_tells_which_sum_the_noise_was_added_to(total):
    """Floating-point noise keeps digits of the sum; whole numbers of a public step have none."""
    deviation, size = 1.5, 5000
    noised = noised_exactly(np.full(size, total), deviation, Randomness(0, "os").words("noise", 0))
    step = 2.0**-32
    assert not last_digits(noised, step).any()
    assert stats.kstest((noised - total) / deviation, "norm").pvalue > 1e-6
    floating = total + deviation * Randomness(0, "os").normal(size, "noise", 0)
    assert last_digits(floating, step).any()


# --- records --------------------------------------------------------------------------------------


def test_local_steps_of_records_are_on_a_public_lattice_in_real_runs():
    total, deviation, batch = np.full(1000, 1 / 3), 2.0, 4.0
    real = record_steps.release_step(total, deviation, batch, Randomness(1, "os"), 0, 0)
    assert not last_digits(real * batch, 2.0**-31).any()
    assert abs((real * batch - 1 / 3).std() / deviation - 1) < 0.15
    simulated = record_steps.release_step(total, deviation, batch, Randomness(1), 0, 0)
    assert last_digits(simulated * batch, 2.0**-31).any()


# --- the fine grid --------------------------------------------------------------------------------


def test_a_fine_grid_rounds_towards_zero_and_never_past_the_clip():
    clips = np.array([0.3, 1.0, 2.0])
    grid = Grid.of(clips, 1.7, 5000, FINE_BITS)
    update = np.random.default_rng(1).standard_normal(5000)
    update *= 1.0 / np.linalg.norm(update)
    whole = grid.rounded(update, 1.0, np.random.default_rng(0))
    assert (whole == np.rint(whole)).all()
    assert (np.abs(whole) <= np.abs(update) / grid.step).all()
    assert np.abs(whole * grid.step - update).max() <= grid.step
    assert grid.inner(clips) == pytest.approx(clips, rel=1e-8)
    assert grid.variance(1.7) >= FINE_STEPS**2


@settings_of(max_examples=150, deadline=None)
@given(
    exponent=st.floats(-300, 30),
    multiplier=st.floats(0.05, 50),
    bits=st.sampled_from([20, 32, FINE_BITS]),
    clients=st.integers(1, 5),
    answered=st.integers(0, 5),
)
def test_the_variance_that_is_drawn_is_the_square_of_the_planned_deviation(
    exponent, multiplier, bits, clients, answered
):
    """In steps, at every clip: what clients draw exactly, and what the server adds to it but for
    the rounding of the two numbers that it subtracts.
    """
    clip = 10.0**exponent
    deviation, answered = clip * multiplier, min(answered, clients)
    grid = Grid.of(np.full(clients, clip), deviation, 3, bits)
    asked: list[Fraction] = []

    def noise(self: Grid, variance: Fraction, words: Any) -> Any:
        asked.append(variance)
        return sample(variance, self.dimension, words)

    own = deviation / math.sqrt(clients)
    task = client_task(3, clip, grid=grid, own_deviation=own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Grid, "noise", noise)
        own_noise(task, Randomness(0), 3)
        assert asked == [(Fraction(own) / Fraction(grid.step)) ** 2]
        tally = Tally([replace(task, client=str(n), number=n) for n in range(clients)], 3)
        for n in range(answered):
            tally.add(Reply(Contribution(str(n), task.shared.round, np.zeros(3))))
        found = tally.answers()
        Gaussian(Randomness(0)).release(
            Sum(0, found.total, found.received_variance, deviation, 1.0, grid), NO_MEMORY
        )
    missing = (Fraction(deviation) ** 2 - answered * Fraction(own) ** 2) / Fraction(grid.step) ** 2
    added = asked[1] if len(asked) > 1 else Fraction(0)
    assert abs(added - missing) <= grid.variance(deviation) * Fraction(2) ** -50
    assert answered == clients or added > 0


def test_whoever_asks_for_noise_does_not_go_without():
    grid = Grid(1.0, FINE_BITS, 3)
    for variance in (Fraction(0), Fraction(-1)):
        with pytest.raises(InvalidInput, match="must be positive"):
            grid.noise(variance, Randomness(0).words("noise", 0))
        with pytest.raises(InvalidInput, match="must be positive"):
            NumberGrid(2**12).noise(variance, Randomness(0).words("noise", 0))
    assert NumberGrid(2**12).own_noise(Randomness(0).words("noise", 0)) == 0


def test_sums_on_a_fine_grid_are_exact_whatever_their_order():
    clips = np.full(1000, 1.0)
    grid = Grid.of(clips, 2.0, 10, FINE_BITS)
    draw = np.random.default_rng(2)
    parts = np.trunc(draw.uniform(-1, 1, (1000, 10)) / grid.step)
    exact = [sum(int(value) for value in column) for column in parts.T]
    assert parts.sum(axis=0).tolist() == exact == parts[::-1].cumsum(axis=0)[-1].tolist()


@pytest.mark.parametrize("parts", [1, 4])
def test_noise_that_vanishes_beside_the_clips_is_refused(parts):
    clips = np.full(4, 1.0)
    check_steps(Grid.of(clips, 1e-2, 10, FINE_BITS), 1e-2, parts, FINE_STEPS)
    with pytest.raises(Refused, match="too small beside the sum of all clips"):
        check_steps(Grid.of(clips, 1e-10, 10, FINE_BITS), 1e-10, parts, FINE_STEPS)


def test_the_fine_grid_of_every_round_is_checked_before_the_run():
    plan = fedspend.plan(
        [10.0] * 4, delta=1e-5, rounds=2, rate=1.0, policy="weights", weights=[1.0, 1e6]
    )
    check_on_grid(plan, 10, FINE_BITS, distributed=True)
    schedules = replace(plan.schedules, noise_multiplier=plan.schedules.noise_multiplier * 1e-10)
    with pytest.raises(Refused, match="too small beside the sum of all clips"):
        check_on_grid(replace(plan, schedules=schedules), 10, FINE_BITS, distributed=True)


def test_a_contribution_on_the_fine_grid_survives_the_wire():
    vector = np.array([2.0**51 - 1, -3.0, 0.0])
    back = Contribution.from_bytes(Contribution("a", 0, vector).to_bytes(FINE_BITS))
    assert (back.vector == vector).all()


# --- runs -----------------------------------------------------------------------------------------


@pytest.fixture
def settings(tmp_path):
    draw = np.random.default_rng(0)
    lines = ["client,a,b,label"]
    lines += [
        f"{'nsew'[n % 4]},{draw.uniform():.3f},{draw.uniform():.3f},{n % 2}" for n in range(40)
    ]
    rows, public = tmp_path / "rows.csv", tmp_path / "public.csv"
    for place in (rows, public):
        place.write_text("\n".join(lines))
    data = {
        "name": "csv",
        "path": str(rows),
        "test_path": str(public),
        "label": "label",
        "client": "client",
        "classes": 2,
        "bounds": [0, 1],
    }
    privacy = {"epsilon": 20.0, "delta": 1e-3, "rate": 1.0, "clip": 0.5}
    return small("plain", data=data, method=None, privacy=privacy)


def test_a_real_run_has_discrete_noise_unless_it_says_otherwise(settings, tmp_path):
    result = train(settings, output=tmp_path / "run", project="test")
    assert result.plan.discrete
    assert StoredRun(tmp_path / "run").facts().settings["privacy.noise"] == "discrete"
    assert StoredRun(tmp_path / "run").facts().environment["noise drawn in"] == "whole numbers"
    write_report([tmp_path / "run"], tmp_path / "page.html")
    assert "floating point adds nothing to delta" in (tmp_path / "page.html").read_text()
    assert noise_of(config_of(settings)) == "discrete"
    settings["privacy"]["noise"] = "distributed"
    assert noise_of(config_of(settings)) == "distributed"
    settings["privacy"] |= {"noise": "central", "randomness": "seeded"}
    assert noise_of(config_of(settings)) == "central"


def test_simulations_and_records_keep_their_noise(settings):
    settings["privacy"]["randomness"] = "seeded"
    assert noise_of(config_of(settings)) == "central"
    del settings["privacy"]["randomness"]
    settings["method"] = {"name": "rpdp"}
    assert noise_of(config_of(settings)) == "central"
    settings["method"] = {"name": "fedavg"}
    assert noise_of(config_of(settings)) == "central"


def test_without_a_word_about_noise_a_run_follows_its_plan(settings, tmp_path):
    plan = fedspend.plan(
        {"n": 20.0, "s": 20.0, "e": 20.0, "w": 20.0},
        delta=1e-3,
        rounds=2,
        rate=1.0,
        clip=0.5,
        policy="uniform",
    )
    assert not plan.discrete
    result = train(settings, plan=plan, output=tmp_path / "run", project="test")
    assert result.plan.hash == plan.hash
    settings["privacy"]["noise"] = "discrete"
    with pytest.raises(InvalidInput, match="plan is for continuous noise"):
        train(settings, plan=plan, output=tmp_path / "other", project="test")


@pytest.mark.parametrize("noise", ["central", "distributed"])
def test_continuous_noise_of_a_real_run_has_the_fine_grid(settings, noise):
    settings["privacy"]["noise"] = noise
    setup = from_config(config_of(settings))
    assert (setup.training.bits, setup.training.grid_steps) == (FINE_BITS, FINE_STEPS)
    state = begin(np.zeros(6, dtype=np.float32), setup.method)
    terms, shared = prepared(state, setup.method, setup.training)
    grid = shared.grid
    assert grid is not None
    assert grid.fine
    assert float(grid.variance(terms.deviation)) ** 0.5 > FINE_STEPS


def test_a_simulation_has_no_fine_grid():
    plan = fedspend.plan([10.0] * 4, delta=1e-3, rounds=2, rate=1.0, policy="uniform")
    assert noise_terms("central", 32, plan, 5, real=False) == ("central", None, None)
    assert noise_terms("central", 32, plan, 5, real=True) == ("central", FINE_BITS, FINE_STEPS)
    assert noise_terms("central", 32, None, 5, real=True) == ("central", None, None)


@pytest.mark.parametrize("value", [5e-324, 1e-300, 1e-20, 0.3])
def test_a_metric_of_any_size_is_rounded_to_the_steps_around_it(value):
    part, whole = value.as_integer_ratio()
    grid = NumberGrid(2**12)
    exact = (value - 0.5) * grid.steps
    for coin in (0.0, 0.5, 1 - 2**-53):
        assert abs(grid.rounded(2 * part - whole, 2 * whole, coin) - exact) <= 1
