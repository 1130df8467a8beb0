"""Discrete noise: exact samples, rounding that keeps the clip, sums modulo 2^bits, and an
accounting that is an upper bound.
"""

from __future__ import annotations

import json
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from before.since import as_it_was
from boundary import summed
from hypothesis import given
from hypothesis import strategies as st
from lib.noise import has_deviation
from scipy import stats

import fedspend
from fedspend.accounting.accountants import cumulative_epsilon_rdp
from fedspend.accounting.rdp import ORDERS, WHOLE_ORDERS, rdp
from fedspend.configuration.config import config_of
from fedspend.errors import InvalidInput, Refused
from fedspend.noise import discrete_gaussian
from fedspend.noise.discrete_gaussian import sample
from fedspend.noise.grid import FINE_BITS, Grid, check_bits, check_on_grid, sum_excess
from fedspend.noise.numbers import steps_for
from fedspend.noise.randomness import Randomness
from fedspend.runs.running import run
from fedspend.runs.setup import from_config
from fedspend.runs.training import train
from fedspend.server.mechanism import NO_MEMORY, Gaussian, Sum, release_bit
from fedspend.verification.second_accountant.lattice import lattice_divergence

# --- the sampler ----------------------------------------------------------------------------------


def words(seed):
    return Randomness(seed).words("noise", 0)


def released(total, deviation, received_variance, denominator, randomness, round, grid):
    """What the server publishes of a sum on the grid, and how many coordinates left the modulus."""
    noised, _ = Gaussian(randomness).release(
        Sum(round, total, received_variance, deviation, denominator, grid), NO_MEMORY
    )
    return noised.update, noised.overflowed


def fits(samples: np.ndarray, variance: Fraction) -> float:
    """P-value of a chi-square test against the exact probabilities, in up to 60 cells of equal
    width and two open tails.
    """
    deviation = math.sqrt(variance)
    reach = math.ceil(9 * deviation) + 3
    x = np.arange(-reach, reach + 1)
    probability = np.exp(-(x.astype(float) ** 2) / float(2 * variance))
    probability /= probability.sum()
    width = max(1, math.ceil(deviation / 8))
    cell = np.clip(np.floor_divide(x, width), -4 * 8, 4 * 8)
    expected = np.bincount(cell - cell.min(), weights=probability) * samples.size
    found = np.bincount(
        np.clip(np.floor_divide(samples, width), -4 * 8, 4 * 8) - cell.min(),
        minlength=expected.size,
    )
    large = expected >= 5
    found, expected = (
        np.append(found[large], found[~large].sum()),
        np.append(expected[large], expected[~large].sum()),
    )
    return float(stats.chisquare(found[expected > 0], expected[expected > 0]).pvalue)


@pytest.mark.parametrize("deviation", ["1/3", "7/10", "1", "141/100", "33/10", "97/2", "12345/7"])
def test_samples_have_the_exact_probabilities(deviation):
    variance = Fraction(deviation) ** 2
    assert fits(sample(variance, 400_000, words(1)), variance) > 1e-4


def test_samples_from_the_operating_system():
    variance = Fraction(29, 10)
    # Fails with chance 1.3e-7: the cell of both tails, 2.4 samples expected, is far from normal.
    # (Poisson tails of that cell, times the chi-square of the other 15.)
    assert fits(sample(variance, 300_000, Randomness(0, "os").words("noise", 0)), variance) > 1e-9


@pytest.mark.parametrize("broken", ["variance", "rounded normal", "zero twice"])
def test_the_goodness_of_fit_test_catches_broken_samplers(broken):
    variance = Fraction(4, 5)
    if broken == "variance":
        samples = sample(variance * Fraction(102, 100), 400_000, words(2))
    elif broken == "rounded normal":
        samples = np.rint(
            math.sqrt(variance) * np.random.default_rng(0).standard_normal(400_000)
        ).astype(np.int64)
    else:
        some = sample(variance, 400_000, words(2))
        samples = np.concatenate([some, some[some == 0][: (some == 0).sum() // 20]])
    assert fits(samples, variance) < 1e-4


def test_decimal_decisions_are_those_of_floating_point(monkeypatch):
    """With so wide a margin every decision is made in decimal arithmetic."""
    variance = Fraction(10, 3)
    fast = sample(variance, 500, words(3))
    calls = []
    exact = discrete_gaussian._decide
    monkeypatch.setattr(discrete_gaussian, "_MARGIN", 2.0)
    monkeypatch.setattr(discrete_gaussian, "_decide", lambda *a: calls.append(1) or exact(*a))
    assert np.array_equal(fast, sample(variance, 500, words(3)))
    assert len(calls) > 500


def test_a_decision_takes_as_many_bits_as_it_needs():
    """A coin whose first 64 bits are those of the probability itself."""
    variance, ceiling = Fraction(2), Fraction(3, 2)
    chance = Fraction(math.exp(-9 / 4)) * 2 / ceiling
    coin = math.floor(Fraction("0.1405326139") * 2**64)  # not near: decided at once
    none = iter(())
    assert discrete_gaussian._decide(coin - 2**60, 3, 1, variance, ceiling, lambda _: next(none))
    near = math.floor(chance * 2**64)
    asked = []

    def more(size):
        asked.append(size)
        return np.array([2**64 - 1] if len(asked) < 9 else [0], dtype=np.uint64)

    low = discrete_gaussian._decide(near - 2**14, 3, 1, variance, ceiling, more)
    high = discrete_gaussian._decide(near + 2**14, 3, 1, variance, ceiling, more)
    assert (low, high) == (True, False)


def test_a_decision_is_not_made_within_its_own_error():
    """A coin of 1/2 - 2^-192, against a probability that is smaller by a little more than that."""
    ceiling = 2 + Fraction(1, 10**41)
    ones = np.array([2**64 - 1], dtype=np.uint64)
    assert not discrete_gaussian._decide(
        2**63 - 1, Fraction(0), 0, Fraction(1), ceiling, lambda _: ones
    )


def test_geometric_numbers_go_on_beyond_a_word():
    answers = iter([np.array([0], dtype=np.uint64), np.array([8], dtype=np.uint64)])
    zeros = discrete_gaussian._trailing_zeros(
        np.array([1, 12, 0], dtype=np.uint64), 20, lambda _: next(answers)
    )
    assert zeros.tolist() == [0, 2, 20 + 64 + 3]


@pytest.mark.parametrize("bad", [Fraction(0), Fraction(-1), Fraction(2) ** 90])
def test_bad_variance(bad):
    with pytest.raises(InvalidInput, match="variance"):
        sample(bad, 3, words(0))


def test_seeded_words_repeat_and_others_do_not():
    assert np.array_equal(sample(Fraction(9), 50, words(5)), sample(Fraction(9), 50, words(5)))
    assert not np.array_equal(sample(Fraction(9), 50, words(5)), sample(Fraction(9), 50, words(6)))
    assert sample(Fraction(9), 0, words(5)).size == 0


# --- the grid -------------------------------------------------------------------------------------


def test_words_become_the_nearest_doubles():
    """Python's own conversion of whole numbers is the judge."""
    edges = [
        0,
        1,
        2**53 + 1,
        2**54 + 2,
        2**54 + 6,
        2**63 - 1,
        2**63 + 1024,
        2**63 + 1025,
        2**64 - 1,
    ]
    words = np.append(np.array(edges, dtype=np.uint64), Randomness(1).words("noise", 0)(2000))
    assert discrete_gaussian._as_float(words).tolist() == [float(int(word)) for word in words]


@pytest.mark.parametrize("size", [1, 16_384, 16_385, 40_000])
def test_rounding_in_pieces_takes_the_coins_in_order(size):
    """The numbers of seeded runs do not depend on how long a piece is."""
    grid, update = Grid(2.0**-12, 24, size), np.random.default_rng(3).normal(size=size)
    update *= 0.5 / np.linalg.norm(update)
    whole = grid.rounded(update, 3.0, np.random.default_rng(7))
    assert (whole == np.floor(update / grid.step + np.random.default_rng(7).random(size))).all()


@given(
    st.integers(1, 60),
    st.floats(0.01, 100),
    st.integers(10, 32),
    st.integers(0, 2**32),
    st.floats(0, 1),
)
def test_a_rounded_update_never_exceeds_its_clip(dimension, clip, bits, seed, spread):
    try:
        grid = Grid.of(np.array([clip, 2 * clip]), 3 * clip, dimension, bits)
    except InvalidInput:
        return
    generator = np.random.default_rng(seed)
    update = generator.normal(size=dimension) * (generator.random(dimension) < spread)
    update *= float(grid.inner(np.array([clip]))[0]) / max(1e-300, float(np.linalg.norm(update)))
    whole = grid.rounded(update, clip, generator)
    assert sum(int(x) ** 2 for x in whole) <= (Fraction(clip) / Fraction(grid.step)) ** 2
    assert np.abs(whole * grid.step - update).max() <= grid.step


def test_even_an_update_that_was_not_clipped_cannot_get_through():
    grid = Grid.of(np.array([1.0]), 1.0, 4, 16)
    assert not grid.rounded(np.full(4, 3.0), 1.0, np.random.default_rng(0)).any()


def test_rounding_has_no_bias():
    grid = Grid.of(np.array([1.0] * 50), 2.0, 1000, 14)
    update = np.random.default_rng(1).normal(size=1000)
    update *= float(grid.inner(np.ones(1))[0]) * 0.99 / np.linalg.norm(update)
    total = sum(grid.rounded(update, 1.0, np.random.default_rng(k)) for k in range(400))
    error = (total * grid.step / 400 - update) / (grid.step / math.sqrt(400))
    assert abs(error.mean()) < 0.1
    assert (error**2).mean() < 0.3  # at most 1/4 a coordinate


@given(st.integers(1, 300), st.integers(1, 10**6), st.integers(16, 32), st.floats(0.001, 50))
def test_what_clients_send_cannot_overflow(clients, dimension, bits, noise):
    clips = np.linspace(0.5, 1.5, clients)
    try:
        grid = Grid.of(clips, noise, dimension, bits)
    except InvalidInput:
        return
    tail = noise * math.sqrt(2 * math.log(2 * dimension * 2**40))
    assert (clips.sum() + tail) / grid.step <= 2 ** (bits - 1) - 1
    assert math.frexp(grid.step)[0] == 0.5


def test_overflow_is_counted():
    grid = Grid(1.0, 8, 5)
    wrapped, count = grid.wrapped(np.array([0, 127, 128, -128, -129]))
    assert wrapped.tolist() == [0, 127, -128, -128, 127]
    assert count == 2
    big = np.array([300.0, 0, 0, 0, 0])
    update, overflowed = released(big, 0.5, 0.0, 1.0, Randomness(0), 0, grid)
    assert overflowed == 1
    assert np.abs(update).max() <= 128
    assert np.array_equal(update, np.rint(update))


def test_the_fewest_and_the_most_bits_are_taken():
    assert [check_bits(bits) for bits in (8, 32)] == [8, 32]


@pytest.mark.parametrize(
    ("bits", "words"), [(7, "from 8 to 32"), (33, "from 8 to 32"), (10, "too few")]
)
def test_bad_bits(bits, words):
    with pytest.raises(InvalidInput, match=words):
        Grid.of(np.full(200, 1.0), 3.0, 20_000, bits)


# --- what is accounted ----------------------------------------------------------------------------


def moments(
    shift: tuple[int, ...], variance: float, rate: float, order: float
) -> tuple[float, float]:
    """Rényi divergences of the sampled discrete Gaussian in both directions, by brute force over a
    box of vectors.
    """
    axes = [
        np.arange(-14, 15 + int(order) * abs(s))
        if s >= 0
        else np.arange(-14 - int(order) * abs(s), 15)
        for s in shift
    ]
    points = (
        np.stack(np.meshgrid(*axes, indexing="ij"), axis=-1).reshape(-1, len(shift)).astype(float)
    )
    still = np.exp(-(points**2).sum(axis=1) / (2 * variance))
    moved = np.exp(-((points - np.array(shift)) ** 2).sum(axis=1) / (2 * variance))
    total = np.prod([np.exp(-(np.arange(-60, 61.0) ** 2) / (2 * variance)).sum() for _ in shift])
    still, mixed = still / total, ((1 - rate) * still + rate * moved) / total
    ok = still > 0
    still, mixed = still[ok], mixed[ok]
    return tuple(
        float(np.log((p * np.exp((order - 1) * (np.log(p) - np.log(q)))).sum()) / (order - 1))
        for p, q in ((mixed, still), (still, mixed))
    )


@pytest.mark.parametrize("shift", [(1,), (2,), (1, 1), (1, -2), (1, 1, -1)])
@pytest.mark.parametrize("order", [2, 3, 5])
def test_at_whole_orders_the_divergence_is_that_of_the_gaussian(shift, order):
    """In any number of dimensions it depends on the norm alone; and the other direction is never
    worse (reflection swaps both).
    """
    norm = math.sqrt(sum(s * s for s in shift))
    for variance, rate in ((0.4, 0.3), (1.5, 0.05), (1.5, 0.9), (2.0, 1.0)):
        forward, backward = moments(shift, variance, rate, order)
        assert forward == pytest.approx(rdp(rate, math.sqrt(variance) / norm, order), rel=1e-8)
        assert backward <= forward * (1 + 1e-9)


def test_at_fractional_orders_it_can_be_larger():
    """Which is why claims for discrete noise are read at whole orders only."""
    assert lattice_divergence(0.01, 0.5, 1.5) > 1.01 * rdp(0.01, 0.5, 1.5)
    assert lattice_divergence(0.01, 0.5, 2) == pytest.approx(rdp(0.01, 0.5, 2), rel=1e-9)


@pytest.mark.parametrize(
    "variances", [(0.25, 0.25), (0.3, 0.5), (0.25, 0.25, 0.25, 0.25), (0.5, 0.5, 3.0), (1.0, 1.0)]
)
def test_a_sum_of_discrete_gaussians_is_as_near_to_one_as_the_bound_says(variances):
    x = np.arange(-60, 61)
    total = np.array([1.0])
    for variance in variances:
        part = np.exp(-(x.astype(float) ** 2) / (2 * variance))
        total = np.convolve(total, part / part.sum())
    far = (total.size - 1) // 2
    one = np.exp(-(np.arange(-far, far + 1).astype(float) ** 2) / (2 * sum(variances)))
    seen = np.abs(np.arange(-far, far + 1)) <= 12
    gap = np.abs(np.log(total[seen] / (one / one.sum())[seen])).max()
    assert 0 < gap <= sum_excess(Fraction(min(variances)), len(variances), 1)
    assert sum_excess(Fraction(1, 5), 2, 1) == math.inf
    assert sum_excess(Fraction(1, 5), 1, 1) == 0


def test_whole_orders():
    assert all(order == int(order) >= 2 for order in WHOLE_ORDERS)
    assert {float(a) for a in ORDERS if a == int(a)} <= set(WHOLE_ORDERS)


@pytest.mark.full
@pytest.mark.parametrize("epsilon", [0.5, 2, 8, 30])
@pytest.mark.parametrize("saving_rate", [None, 0.3])
def test_discrete_noise_never_costs_less_than_continuous_noise(epsilon, saving_rate):
    terms = {"delta": 1e-3, "rounds": 12, "rate": 0.7, "saving_rate": saving_rate}
    discrete, continuous = (
        fedspend.plan([epsilon, 2 * epsilon], noise=noise, accountant="rdp", **terms)
        for noise in ("discrete", "continuous")
    )
    s = discrete.schedules
    every = tuple(sorted({*ORDERS, *WHOLE_ORDERS}))
    at_all_orders = cumulative_epsilon_rdp(
        s.noise_multiplier, s.sampling_rate, discrete.delta, every
    )[-1]
    # the same schedule, read for either noise
    assert (s.epsilon >= at_all_orders * (1 - 1e-9)).all()
    more = discrete.noise_multiplier / continuous.noise_multiplier - 1
    assert (more > 0).all()
    assert (more <= 1e-6).all()
    assert fedspend.verify(discrete).ok
    assert (discrete.epsilon <= discrete.budget).all()


def of_version_01(epsilons, **terms):
    """A plan as version 0.1 made it for discrete noise: at whole orders, and without steps."""
    with as_it_was(discrete=True):
        return fedspend.plan(epsilons, noise="discrete", accountant="rdp", **terms)


@pytest.mark.full
def test_a_discrete_plan_survives_its_file_and_is_checked_there(tmp_path):
    plan = fedspend.plan([4.0, 8.0], delta=1e-3, rounds=5, rate=0.5, noise="discrete")
    plan.save(tmp_path / "plan.json")
    check = fedspend.verify(tmp_path / "plan.json")
    assert check.ok
    assert check.by_pld.all()
    assert "Poisson summation" in {one.accountant for one in check.checks}
    parameters = json.loads((tmp_path / "plan.json").read_text())["parameters"]
    assert (parameters["noise"], parameters["grid_steps"]) == ("discrete", 4096)


def test_a_discrete_plan_of_version_01_is_checked_as_it_was(tmp_path):
    plan = of_version_01([4.0, 8.0], delta=1e-3, rounds=5, rate=0.5)
    plan.save(tmp_path / "plan.json")
    check = fedspend.verify(tmp_path / "plan.json")
    assert check.ok
    assert not check.by_pld.any()
    assert "sum over the integers" in {one.accountant for one in check.checks}
    assert json.loads((tmp_path / "plan.json").read_text())["parameters"]["noise"] == "discrete"


def test_a_plan_that_only_says_discrete_is_caught():
    """Claims at fractional orders prove nothing for discrete noise."""
    continuous = fedspend.plan([10.0], delta=1e-3, rounds=5, rate=0.5, accountant="rdp")
    assert continuous.schedules.order[0] != int(continuous.schedules.order[0])
    check = fedspend.verify(
        continuous.replace(parameters=continuous.parameters | {"noise": "discrete"})
    )
    assert not check.ok
    assert "whole order" in check.failures[0]


@pytest.mark.full(only=["plan"])
@pytest.mark.parametrize("make", [fedspend.plan, of_version_01])
def test_a_discrete_plan_with_less_noise_is_caught(make):
    noise = {"noise": "discrete"} if make is fedspend.plan else {}
    plan = make([10.0], delta=1e-3, rounds=5, rate=0.5, **noise)
    check = fedspend.verify(
        plan.replace(noise_multiplier=plan.noise_multiplier * 0.99, clip_norm=plan.clip_norm)
    )
    assert not check.ok
    if make is of_version_01:
        assert any("on the integers" in line for line in check.failures)


@pytest.mark.parametrize("steps", [15, 0, -1, 2.5, True, "many", 2**70])
def test_a_plan_whose_steps_are_no_steps_is_refused(steps):
    plan = fedspend.plan([10.0], delta=1e-3, rounds=5, rate=0.5, noise="discrete")
    with pytest.raises(InvalidInput, match="grid_steps"):
        plan.replace(parameters=plan.parameters | {"grid_steps": steps})


@pytest.mark.full
def test_a_plan_that_claims_finer_noise_than_it_was_made_for_is_stopped_before_training():
    """Fewer steps lose more of the deviation: a plan for 4096 is no plan for 16."""
    plan = fedspend.plan([2.0] * 50, delta=1e-3, rounds=3, rate=0.5, noise="discrete")
    coarse = plan.replace(parameters=plan.parameters | {"grid_steps": 16})
    check = fedspend.verify(coarse)
    assert not check.ok
    with pytest.raises(Refused, match="reckons with 4096"):
        check_on_grid(plan, 10, 14, False)
    check_on_grid(plan, 10, 32, False)


@pytest.mark.full
def test_plans_for_few_bits_are_charged_for_them_and_for_too_few_refused():
    terms = {"delta": 1e-3, "rounds": 3, "rate": 0.5}
    plain = fedspend.plan([2.0] * 50, **terms)
    for bits, distributed in ((32, False), (32, True), (16, False), (18, True)):
        kind = "discrete-distributed" if distributed else "discrete"
        made = fedspend.plan([2.0] * 50, noise=kind, bits=bits, **terms)
        expected = 1 / math.sqrt(1 - (3 / made.grid_steps) ** 2)
        assert made.noise_multiplier / plain.noise_multiplier == pytest.approx(
            np.full((3, 50), expected), rel=1e-12
        )
        assert fedspend.verify(made).ok
        check_on_grid(made, 1000, bits, distributed)
    assert made.grid_steps < 4096
    with pytest.raises(InvalidInput, match="10 bits are too few for discrete noise among 50"):
        fedspend.plan([2.0] * 50, noise="discrete-distributed", bits=10, **terms)
    with pytest.raises(InvalidInput, match="bits must be from 8 to 32, got 40"):
        fedspend.plan([2.0] * 50, noise="discrete", bits=40, **terms)


# --- why it is free: discrete noise is rounded continuous noise -----------------------------------


def log_masses(deviation: float, shift: int, reach: int = 400) -> np.ndarray:
    """Logarithms of the masses of a discrete Gaussian around a whole number."""
    whole = np.arange(-reach, reach + 1).astype(float)
    log = -((whole - shift) ** 2) / (2 * deviation**2)
    return log - np.logaddexp.reduce(log)


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize(
    ("deviation", "rounding", "seen"), [(2.0, 0.5, False), (0.65, 0.6, True), (0.7, 0.5, True)]
)
@pytest.mark.parametrize("shift", [0, 3])
def test_rounded_continuous_noise_is_discrete_noise_up_to_the_factor_that_poisson_gives(
    deviation, rounding, seen, shift
):
    """The rounding does not see the shift. Wide noise hides the factor, narrow noise shows it."""
    inner = math.sqrt(deviation**2 - rounding**2)
    y = np.linspace(shift - 12, shift + 12, 48_001)
    density = stats.norm.pdf(y, shift, inner)
    whole = np.arange(-20, 21)
    kernel = np.exp(-((whole[:, None] - y) ** 2) / (2 * rounding**2))
    rounded = (kernel / kernel.sum(axis=0)) @ density * (y[1] - y[0])
    near = np.abs(whole - shift) <= 4 * deviation
    gap = np.abs(np.log(rounded) - log_masses(deviation, shift, 20))[near].max()
    eta = 2 * sum(math.exp(-2 * math.pi**2 * n**2 * rounding**2) for n in (1, 2, 3))
    assert gap <= 2 * eta * (1 + eta) + 1e-7
    assert not seen or gap > 0.01 * eta


def spent_on(first: np.ndarray, second: np.ndarray, epsilon: float) -> float:
    return float(np.maximum(first - math.exp(epsilon) * second, 0).sum())


def continuous_pair(rate: float, deviation: float, shift: float):
    """Masses of fine cells of continuous noise: sampled and shifted, and not."""
    y = np.linspace(-12 * deviation, 12 * deviation + shift, 200_001)
    zero, moved = stats.norm.pdf(y, 0, deviation), stats.norm.pdf(y, shift, deviation)
    return ((1 - rate) * zero + rate * moved) * (y[1] - y[0]), zero * (y[1] - y[0])


@pytest.mark.parametrize("rate", [0.02, 0.3, 1.0])
@pytest.mark.parametrize("deviation", [4.0, 16.0])
def test_discrete_noise_costs_at_most_what_the_smaller_continuous_noise_costs(rate, deviation):
    inner = math.sqrt(deviation**2 - 9)
    log_zero = log_masses(deviation, 0)
    for shift in (1, 12):
        with np.errstate(divide="ignore"):
            log_mixture = np.logaddexp(
                np.log1p(-rate) + log_zero, math.log(rate) + log_masses(deviation, shift)
            )
        mixture, zero = np.exp(log_mixture), np.exp(log_zero)
        smooth, still = continuous_pair(rate, inner, shift)
        for epsilon in (0.05, 0.5, 2.0):
            found = spent_on(mixture, zero, epsilon), spent_on(zero, mixture, epsilon)
            bound = spent_on(smooth, still, epsilon), spent_on(still, smooth, epsilon)
            assert np.all(np.array(found) <= np.array(bound) * (1 + 1e-6) + 1e-9)
        for order in (1.3, 1.5, 2.0, 3.7, 8.0):
            moment = np.logaddexp.reduce(order * log_mixture + (1 - order) * log_zero)
            assert moment / (order - 1) <= rdp(rate, inner / shift, order) * (1 + 1e-9) + 1e-15


def test_with_too_little_rounding_the_reduction_would_be_wrong():
    """Fractional orders see it: discrete noise of half a step costs more than continuous noise."""
    deviation, rounding = 0.5, 0.01
    inner = math.sqrt(deviation**2 - rounding**2)
    assert lattice_divergence(0.01, deviation, 1.5) > rdp(0.01, inner, 1.5)


def test_what_is_not_proven_is_refused():
    continuous = fedspend.plan([4.0] * 3, delta=1e-3, rounds=2, rate=0.5)
    with pytest.raises(Refused, match="plan is for continuous noise"):
        check_on_grid(continuous, 10, 32, False)
    x, y = np.zeros((6, 2), dtype=np.float32), np.array([0, 1] * 3)
    terms = {
        "model": torch.nn.Linear(2, 2),
        "test": (x, y),
        "lr": 0.1,
        "batch_size": 2,
        "local_steps": 1,
    }
    with pytest.raises(Refused, match="continuous noise"):
        train(clients=[(x, y)] * 3, plan=continuous, noise="discrete", **terms)
    proper = fedspend.plan([4.0] * 3, delta=1e-3, rounds=2, rate=0.5, noise="discrete")
    for bad in (16.5, 4, "many", True):
        with pytest.raises(InvalidInput, match="bits"):
            train(clients=[(x, y)] * 3, plan=proper, noise="discrete", bits=bad, **terms)
    with pytest.raises(InvalidInput, match="unknown noise 'discreet'; did you mean 'discrete'"):
        train(clients=[(x, y)] * 3, plan=proper, noise="discreet", **terms)
    by_pld = fedspend.plan(
        [4.0], delta=1e-3, rounds=2, rate=0.5, noise="discrete", accountant="pld"
    )
    assert fedspend.verify(by_pld).ok
    with pytest.raises(InvalidInput, match="noise must be one of"):
        fedspend.plan([4.0], delta=1e-3, rounds=2, rate=0.5, noise="geometric")
    discrete = of_version_01([4.0] * 2000, delta=1e-4, rounds=2, rate=0.5)
    check_on_grid(discrete, 10, 16, False)
    with pytest.raises(InvalidInput, match="do not add up"):
        check_on_grid(discrete, 10, 16, True)


def test_noise_that_falls_while_clips_stay_is_checked_in_every_round():
    """In the last round a part of it would be a fifth of a step: rounded to nothing, at every
    client, and counted as received.
    """
    terms = {"delta": 1e-3, "rounds": 3, "rate": 1.0, "policy": "weights"}
    falling = of_version_01([60.0] * 400, weights=[1, 10, 1000], **terms)
    assert np.ptp(falling.schedules.clip_norm) == 0
    for bits in (15, 16):
        with pytest.raises(InvalidInput, match="too few for distributed discrete noise"):
            check_on_grid(falling, 100, bits, True)
    check_on_grid(falling, 100, 20, True)
    for bits in (24, 28, 32):
        kind = {"noise": "discrete-distributed", "bits": bits}
        made = fedspend.plan([60.0] * 400, weights=[1, 10, 1000], **terms, **kind)
        check_on_grid(made, 100, bits, True)
        with pytest.raises((Refused, InvalidInput), match="too few"):
            check_on_grid(made, 100, bits - 8, True)


# --- training -------------------------------------------------------------------------------------

SMALL = {
    "data": {"name": "synthetic", "clients": 8, "examples": 240, "features": 6, "classes": 3},
    "model": {"name": "logistic"},
    "method": {"name": "idp-fedavg"},
    "privacy": {
        "groups": [{"epsilon": 4.0}, {"epsilon": 8.0}],
        "delta": 1e-2,
        "rate": 0.7,
        "clip": 0.4,
        "noise": "discrete",
    },
    "train": {"rounds": 4, "local_steps": 3, "batch_size": 16, "lr": 0.3, "seed": 2},
}


def small(**changes):
    return {section: values | changes.get(section, {}) for section, values in SMALL.items()}


@pytest.mark.full(but=["dp-fedavg-discrete"])
@pytest.mark.parametrize("noise", ["discrete", "discrete-distributed"])
@pytest.mark.parametrize("method", ["dp-fedavg", "idp-fedavg", "time-adaptive", "adaptive-clip"])
def test_every_client_level_method_trains_with_discrete_noise(noise, method):
    groups = [{"epsilon": 4.0, "saving_rate": 0.4}, {"epsilon": 8.0, "saving_rate": 0.5}]
    config = small(method={"name": method}, privacy={"noise": noise, "groups": groups}) | {
        "shape": {"blur": 0.4, "lus": 0.3}
    }
    if method == "adaptive-clip":
        config["method"] = {"name": method, "bit_noise": 20.0}
    first, second = (run(from_config(config_of(config)), None) for _ in range(2))
    assert first.metrics == second.metrics
    assert first.plan.discrete
    assert all(line["overflowed"] == 0 for line in first.metrics)


def test_fedavg_has_no_noise_to_make_discrete():
    assert (
        run(from_config(config_of(small(method={"name": "fedavg"}))), None).metrics[-1]["clip"]
        is None
    )


@pytest.mark.parametrize("distributed", [False, True])
@pytest.mark.parametrize(("source", "bits"), [("seeded", 24), ("os", 24), ("os", FINE_BITS)])
def test_released_noise_has_the_planned_variance(distributed, source, bits):
    clips, deviation, clients, size = np.array([0.5, 1.0, 1.5, 2.0]), 2.5, 4, 6000
    grid, randomness = Grid.of(clips, deviation, size, bits), Randomness(7, source)
    share = deviation / math.sqrt(clients) if distributed else 0.0
    cohort = np.array([0, 2, 3])
    answers = summed(
        torch.zeros(3, size), clips, cohort, randomness, own_deviation=share, round=3, grid=grid
    )
    assert answers.received_variance == pytest.approx(3 * share**2, rel=1e-12)
    update, overflowed = released(
        answers.total, deviation, answers.received_variance, 2.0, randomness, 3, grid
    )
    assert overflowed == 0
    assert np.array_equal(update * 2 / grid.step, np.rint(update * 2 / grid.step))
    assert has_deviation(update * 2, deviation)


def test_sum_on_the_grid_is_near_the_sum_of_clipped_updates():
    generator = torch.Generator().manual_seed(0)
    updates = (
        torch.randn(5, 300, generator=generator) * torch.tensor([0.01, 0.1, 1, 10, 0])[:, None]
    )
    updates[1, 7] = math.nan
    clips = np.array([1.0, 1.0, 2.0, 0.5, 1.0])
    for layers, bits in ((None, 30), ((100, 200), 30), (None, FINE_BITS), ((100, 200), FINE_BITS)):
        exact = summed(updates, clips, layers=layers)
        grid = Grid.of(clips, 3.0, 300, bits)
        whole = summed(updates, clips, randomness=Randomness(1), layers=layers, grid=grid)
        assert np.array_equal(whole.total, np.rint(whole.total))
        assert np.abs(whole.total * grid.step - exact.total).max() < 1e-5
        assert np.array_equal(whole.statistics.zeroed, exact.statistics.zeroed)


@pytest.mark.full(but=["None"])
@pytest.mark.parametrize("layers", [None, (300, 700)])
def test_on_a_coarse_grid_clients_stay_within_their_clip_and_without_bias(layers):
    """Rounding lengthens an update by a tenth here: the clip before rounding must leave room, or
    all would be cut towards zero.
    """
    clips, size = np.array([1.0, 3.0]), 1000
    grid = Grid.of(np.full(60, 2.0), 5.0, size, 14)
    update = torch.randn(1, size, generator=torch.Generator().manual_seed(3)) * 10
    for client, clip in enumerate(clips):
        rounds = [
            summed(update, clips, [client], Randomness(4), layers=layers, round=t, grid=grid).total
            for t in range(300)
        ]
        assert max(float(total @ total) for total in rounds) <= (clip / grid.step) ** 2
        exact = summed(update, grid.inner(clips), [client], layers=layers).total
        error = (np.mean(rounds, axis=0) * grid.step - exact) * np.sign(exact)
        assert abs(error.mean()) < 5 * grid.step / 2 / math.sqrt(300 * size)


def test_the_bit_in_whole_numbers():
    lengths = torch.where(torch.arange(9) < 3, 2.0, 0.5)
    total = summed(lengths[:, None], np.ones(9), bit=True).bits
    values = np.array([release_bit(total, 1.5, 10.0, Randomness(k), 0) for k in range(3000)])
    steps = (values - 0.5) * 10 * steps_for(1.5)
    assert np.allclose(steps, np.rint(steps), atol=1e-3)
    assert steps_for(1.5) >= 2**12
    assert values.mean() == pytest.approx((6 - 3) / 2 / 10 + 0.5, abs=0.01)
    assert values.std() == pytest.approx(0.15, rel=0.1)


@pytest.mark.full
def test_engines_agree_on_the_grid():
    ends = []
    for engine in ("local", "reference"):
        setup = from_config(config_of(small() | {"engine": {"name": engine}}))
        ends.append(run(setup, None).metrics[-1]["accuracy"])
    assert ends[0] == pytest.approx(ends[1], abs=0.02)


@pytest.mark.parametrize("bad", [7, 0, -1, 2.5, "many"])
def test_bad_bits_in_a_config(bad):
    with pytest.raises(InvalidInput, match="bits"):
        config_of(small(privacy={"bits": bad}))


def test_more_bits_than_there_are():
    with pytest.raises(InvalidInput, match="from 8 to 32, got 64"):
        from_config(config_of(small(privacy={"bits": 64})))


def test_system_words_differ():
    source = Randomness(0, "os").words("noise", 0)
    assert source(4).dtype == np.uint64
    assert not np.array_equal(source(4), source(4))
