"""Theorems 2 and 3 of Kiani et al. (2025): the measured bias of a round is below the bound.

Rates and clips come from plans, and updates are clipped by the code that clips them in a run.
"""

from __future__ import annotations

from itertools import permutations

import numpy as np
import pytest
import torch
from boundary import client_task

import fedspend
from fedspend.client.bounding import bounded
from fedspend.errors import InvalidInput
from fedspend.noise.randomness import Randomness
from fedspend.planning.plan import Plan
from fedspend.planning.theory import bias_of_plan, clipping_bias, theorem_2, theorem_3

DRAWS, SIZE = 600, 3
BUDGETS = [2.0, 2.0, 5.0, 5.0, 10.0]


def planned(policy: str, clip: float) -> Plan:
    options = {"delta": 1e-3, "rounds": 6, "rate": 0.3, "accountant": "rdp", "clip": clip}
    saving = {"saving_rate": 0.1} if policy == "spend-as-you-go" else {}
    return fedspend.plan(BUDGETS, policy=policy, **options, **saving)


def clipped(updates: np.ndarray, clip: float) -> np.ndarray:
    """Every row, as a client with this clip sends it."""
    task, coins = client_task(updates.shape[1], clip), Randomness(0, "seeded")
    rows = torch.from_numpy(updates.astype(np.float32))
    return np.array([bounded(row, task, coins).vector for row in rows])


def normal(generator, mean):
    """Updates around their means; the second moment of their norms is known."""
    draws = generator.normal(0, 0.7, (DRAWS, *mean.shape)) + mean
    return draws, (mean**2).sum(axis=1) + SIZE * 0.7**2


def heavy(generator, mean):
    """Directions that stay, lengths with a heavy tail: `E x^2 = exp(2 s^2)` for a log-normal x."""
    length = np.exp(generator.normal(0, 0.8, (DRAWS, len(mean), 1)))
    return length * mean, (mean**2).sum(axis=1) * np.exp(2 * 0.8**2)


def error(plan: Plan, round: int, updates: np.ndarray, sampled: np.ndarray) -> np.ndarray:
    """The mean over draws of what the released mean, before noise, is off by."""
    each = np.stack(
        [clipped(updates[:, n], plan.clip_norm[round, n]) for n in range(len(BUDGETS))], axis=1
    )
    released = (sampled[:, :, None] * each).sum(axis=1) / plan.sampling_rate[round].sum()
    return (updates.mean(axis=1) - released).mean(axis=0)


@pytest.mark.full(but=["0.3-normal-uniform"])
@pytest.mark.parametrize("policy", ["uniform", "individual-rates", "spend-as-you-go"])
@pytest.mark.parametrize("draw", [normal, heavy])
@pytest.mark.parametrize("clip", [0.3, 2.0])
def test_the_measured_bias_is_below_the_bound_of_theorem_2(policy, draw, clip):
    generator, made = np.random.default_rng(3), planned(policy, clip)
    mean = generator.normal(0.4, 0.6, (len(BUDGETS), SIZE))
    updates, moment = draw(generator, mean)
    expected = mean if draw is normal else mean * np.exp(0.8**2 / 2)
    for round in (0, 5):
        rate, clips = made.sampling_rate[round], made.clip_norm[round]
        # all cohorts count with their mean, so that only the updates are drawn
        off = error(made, round, updates, np.broadcast_to(rate, updates.shape[:2]))
        by_rates, by_clips = theorem_2(rate, clips, mean=expected, moment=moment)
        assert np.linalg.norm(off) <= by_rates + by_clips
        assert np.linalg.norm(off) >= by_rates - by_clips - 0.05, (
            "rates have the effect that is stated"
        )
        assert (by_rates > 0.01) == (np.ptp(rate) > 0)


def test_drawn_cohorts_have_the_bias_that_rates_say():
    generator, made = np.random.default_rng(5), planned("individual-rates", 50.0)
    mean = generator.normal(0.4, 0.6, (len(BUDGETS), SIZE))
    updates = np.broadcast_to(mean, (DRAWS * 4, *mean.shape))
    sampled = generator.random(updates.shape[:2]) < made.sampling_rate[0]
    off = error(made, 0, updates, sampled)
    by_rates, _ = theorem_2(
        made.sampling_rate[0], made.clip_norm[0], mean=mean, moment=(mean**2).sum(axis=1)
    )
    assert np.linalg.norm(off) == pytest.approx(by_rates, abs=0.06)
    assert by_rates > 0.1


@pytest.mark.parametrize("power", [1.0, 1.5, 2.0, 3.0, 6.0])
def test_the_constant_is_the_best_one(power):
    """Updates of norm `c p / (p - 1)` attain it, and no length exceeds it."""
    clip, lengths = 0.8, np.linspace(0, 20, 4001)
    bound = clipping_bias(lengths**power, np.full(lengths.size, clip), power)
    excess = np.maximum(lengths - clip, 0)
    assert np.all(excess <= bound * (1 + 1e-12))
    if power > 1:
        length = clip * power / (power - 1)
        attained = clipping_bias(np.array([length**power]), np.array([clip]), power)[0]
        assert attained == pytest.approx(length - clip)
        assert attained < length**power / clip ** (power - 1), "below the bound of Das et al."


def test_over_all_ways_of_dealing_budgets_the_bias_is_below_theorem_3():
    generator, made = np.random.default_rng(1), planned("individual-rates", 0.8)
    mean = generator.normal(0, 1, (len(BUDGETS), SIZE))
    rate, clips = made.sampling_rate[0], made.clip_norm[0]
    moment = (mean**2).sum(axis=1)
    errors = []
    for order in permutations(range(len(BUDGETS))):
        q, c = rate[list(order)], clips[list(order)]
        sent = mean * np.minimum(1, c / np.linalg.norm(mean, axis=1))[:, None]
        errors.append(mean.mean(axis=0) - (q[:, None] * sent).sum(axis=0) / q.sum())
    bound = theorem_3(rate, clips, moment=moment)
    assert np.linalg.norm(np.mean(errors, axis=0)) <= bound
    assert bound == pytest.approx(bias_of_plan(made, moment.mean())[0])
    # one given assignment may be off by more: then the first term of Theorem 2 does not vanish
    wide = theorem_3(rate, clips * 100, moment=moment)
    one = (1 - rate / rate.mean()) @ mean / len(mean)
    assert np.linalg.norm(one) > 5 * wide


def test_theorem_3_fails_in_later_rounds():
    """Who was sampled in round 1 moved the model, so updates of round 2 depend on the budgets.

    Two clients pull the model to +1 and -1, by the whole way and by half of it, without clipping.
    """
    rates, errors = np.array([1.0, 1e-3]), []
    for q in (rates, rates[::-1]):
        start = np.array([1.0, -0.5])  # updates from the model 0
        model = (q * start).sum() / q.sum()
        updates = np.array([1.0, 0.5]) * (np.array([1.0, -1.0]) - model)
        errors.append(updates.mean() - (q * updates).sum() / q.sum())
    bound = theorem_3(rates, [1e6, 1e6], moment=[4.0, 4.0])
    assert abs(np.mean(errors)) > 0.18 > 1e-3 > bound


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"rate": [0.0, 1.0]}, "rates must lie in (0, 1]"),
        ({"rate": [float("nan"), 1.0]}, "rates must lie in (0, 1]"),
        ({"clip": [0.0, 1.0]}, "clips be positive"),
        ({"clip": [float("inf"), 1.0]}, "must be finite"),
        ({"moment": [-1.0, 1.0]}, "no moment negative"),
        ({"moment": [1.0, 1.0, 1.0]}, "one per client"),
        ({"power": 0.5}, "power must be at least 1"),
        ({"power": float("nan")}, "power must be a finite number"),
    ],
)
def test_bad_input_is_one_line(given, message):
    with pytest.raises(InvalidInput) as caught:
        theorem_3(**({"rate": [0.5, 1.0], "clip": [1.0, 1.0], "moment": [1.0, 1.0]} | given))
    assert message in str(caught.value)


def test_means_and_moments_of_plans_are_checked():
    with pytest.raises(InvalidInput, match="one row of finite numbers per client"):
        theorem_2([0.5, 1.0], [1.0, 1.0], mean=[1.0, 2.0], moment=[1.0, 1.0])
    made = planned("uniform", 1.0)
    with pytest.raises(InvalidInput, match="one per round"):
        bias_of_plan(made, [1.0, 2.0])
    with pytest.raises(InvalidInput, match="finite and not negative"):
        bias_of_plan(made, float("nan"))
