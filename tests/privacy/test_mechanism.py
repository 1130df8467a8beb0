"""The mechanism: what one client can change, and how much noise hides it."""

import math

import numpy as np
import pytest
import torch
from boundary import client_task, replies, summed, tasks
from hypothesis import given, settings
from hypothesis import strategies as st
from lib.noise import has_deviation
from scipy import stats
from torch import nn

from fedspend.client.bounding import bounded
from fedspend.client.work import Tools, finished
from fedspend.noise.randomness import Randomness
from fedspend.server.answers import gather
from fedspend.server.mechanism import NO_MEMORY, Gaussian, Sum, release_bit
from fedspend.server.sampling import draw_cohort

MAGNITUDES = [0.0, 1e-30, 1e-3, 1.0, 1e3, 1e18]


def updates(seed: int, clients: int = 6, size: int = 50) -> torch.Tensor:
    """Updates of wildly different size, one of them zero."""
    generator = np.random.default_rng(seed)
    scale = generator.permutation(MAGNITUDES)[:clients, None]
    return torch.from_numpy((scale * generator.standard_normal((clients, size))).astype(np.float32))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.sampled_from([None, (50,), (20, 30), (1, 9, 15, 25)]),
    st.floats(1e-3, 10),
)
def test_zeroing_one_client_moves_the_sum_by_at_most_its_clip(seed, layers, clip):
    clips = clip * np.array([0.3, 0.5, 1.0, 1.5, 2.0, 3.0])
    all_updates = updates(seed)
    whole = summed(all_updates, clips, layers=layers).total
    for n in range(6):
        without = all_updates.clone()
        without[n] = 0
        assert np.linalg.norm(whole - summed(without, clips, layers=layers).total) <= clips[n]


def test_clip_is_exact_at_large_dimension():
    """A float32 norm over 1.66 million values reads low enough to let an update exceed its bound;
    ours is float64.
    """
    update = torch.full((1, 1_663_370), 1e-3)
    clipped = summed(update, [0.7]).total
    assert 0.7 * (1 - 1e-5) < np.linalg.norm(clipped) <= 0.7


def test_infinite_clip_is_plain_summing():
    raw = updates(3)
    answers = summed(raw, np.full(6, np.inf))
    np.testing.assert_array_equal(answers.total, raw.double().sum(dim=0).numpy())
    assert not answers.statistics.clipped.any()


def test_each_layer_gets_its_share_of_the_clip():
    layers = (10, 10, 10, 10)
    update = torch.ones(1, 40) * 100
    total = summed(update, [2.0], layers=layers).total
    for start in range(0, 40, 10):
        assert np.linalg.norm(total[start : start + 10]) == pytest.approx(
            2 / math.sqrt(4), rel=1e-5
        )


@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_an_update_that_is_not_finite_counts_as_zero(poison):
    raw = updates(5)
    clean = raw.clone()
    clean[2] = 0
    raw[2, 7] = poison
    dirty = summed(raw, np.ones(6))
    np.testing.assert_array_equal(dirty.total, summed(clean, np.ones(6)).total)
    assert dirty.statistics.zeroed.tolist() == [False, False, True, False, False, False]
    assert dirty.statistics.norms[2] == 0


def test_a_client_keeps_its_own_clip_whatever_block_it_is_in():
    clips = np.linspace(0.1, 1, 10)
    raw = torch.ones(2, 30) * 50
    together = summed(raw, clips, [3, 9])
    alone = [summed(raw[:1], clips, [n]).total for n in (3, 9)]
    np.testing.assert_allclose(together.total, sum(alone), rtol=1e-12)


def released(total, deviation, received_variance, denominator, randomness, round):
    """What the server publishes of a sum."""
    noised, _ = Gaussian(randomness).release(
        Sum(round, total, received_variance, deviation, denominator), NO_MEMORY
    )
    return noised.update


@pytest.mark.parametrize("source", ["seeded", "os"])
def test_central_noise_has_the_planned_deviation(source):
    noise = released(np.zeros(200_000), 3.0, 0.0, 4.0, Randomness(1, source), round=2)
    assert has_deviation(noise, 3.0 / 4.0)
    # with randomness of the system it fails with chance 1e-8, and the line above with 1e-7
    assert stats.kstest(noise[:20_000] / 0.75, "norm").pvalue > 1e-8


@pytest.mark.parametrize("answered", [0, 1, 7, 10])
def test_distributed_noise_is_topped_up_for_those_who_did_not_answer(answered):
    clients, deviation = 10, 2.0
    share = deviation / math.sqrt(clients)
    randomness = Randomness(4)
    asked = tasks(np.ones(clients), 100_000, own_deviation=share, round=1)
    answers = gather(
        asked, replies(asked[:answered], torch.zeros(answered, 100_000), randomness), 100_000
    )
    assert (len(answers.answered), len(answers.discarded)) == (answered, clients - answered)
    assert answers.received_variance == pytest.approx(answered * share**2, rel=1e-12)
    if answered:
        assert has_deviation(answers.total, share * math.sqrt(answered))
    else:
        assert not answers.total.any()
    assert has_deviation(
        released(answers.total, deviation, answers.received_variance, 1.0, randomness, round=1),
        deviation,
    )


def test_dropping_the_top_up_would_be_noticed():
    """The broken mechanism: the same draw without the server's part has too little noise."""
    share = 2.0 / math.sqrt(10)
    total = summed(
        torch.zeros(7, 100_000),
        np.ones(10),
        np.arange(7),
        Randomness(4),
        own_deviation=share,
        round=1,
    ).total
    assert not has_deviation(total, 2.0)


def test_noise_differs_by_round_client_and_seed_and_repeats_under_one_key():
    draw = lambda seed, t, n: Randomness(seed).normal(8, "client-noise", t, n)  # noqa: E731
    np.testing.assert_array_equal(draw(1, 2, 3), draw(1, 2, 3))
    different = [
        draw(1, 2, 3),
        draw(2, 2, 3),
        draw(1, 3, 3),
        draw(1, 2, 4),
        Randomness(1).normal(8, "noise", 2, 3),
    ]
    assert len({tuple(d) for d in different}) == len(different)


def test_system_randomness_never_repeats():
    system = Randomness(1, "os")
    assert not np.array_equal(system.normal(8, "noise", 0), system.normal(8, "noise", 0))
    assert not system.simulation


def test_system_uniform_is_open_and_uniform():
    values = Randomness(0, "os").uniform(100_000, "cohort", 0)
    assert 0 < values.min() < values.max() < 1
    assert stats.kstest(values, "uniform").pvalue > 1e-8  # which is the chance that it fails


@pytest.mark.parametrize("byte", [0x00, 0xFF])
def test_the_ends_of_system_randomness_are_not_0_and_1(monkeypatch, byte):
    """A client with rate 1 always takes part, and no noise is infinite."""
    monkeypatch.setattr("os.urandom", lambda size: bytes([byte]) * size)
    system = Randomness(0, "os")
    assert 0 < system.uniform(1, "cohort", 0)[0] < 1
    assert np.isfinite(system.normal(1, "noise", 0)).all()


def test_cohorts_are_poisson_with_each_clients_own_rate():
    rates = np.array([0.0, 0.05, 0.5, 0.95, 1.0])
    rounds = 4000
    counts = np.zeros(5)
    sizes = []
    for t in range(rounds):
        cohort = draw_cohort(rates, Randomness(9), t)
        counts[cohort] += 1
        sizes.append(cohort.size)
    assert counts[0] == 0
    assert counts[4] == rounds
    spread = np.sqrt(rates * (1 - rates) * rounds)
    assert (np.abs(counts - rates * rounds) <= 5 * spread + 1e-9).all()
    assert np.var(sizes) == pytest.approx((rates * (1 - rates)).sum(), rel=0.15), (
        "independent, not a fixed number"
    )


def bits(lengths, clip=1.0):
    """The sum of the shifted bits of clients whose updates are this long."""
    return summed(
        torch.tensor(lengths, dtype=torch.float32)[:, None], np.full(len(lengths), clip), bit=True
    ).bits


def test_the_bit_is_shifted_so_that_one_client_moves_it_by_half():
    quiet, noise = Randomness(3), 4.0
    for length in (0.5, 2.0):
        one = bits([length])
        assert abs(
            release_bit(one, noise, 1.0, quiet, 0) - release_bit(0.0, noise, 1.0, quiet, 0)
        ) == pytest.approx(0.5)


def test_the_released_bit_estimates_the_share_within_the_clip():
    total = bits([2.0] * 30 + [0.5] * 70)
    draws = np.array([release_bit(total, 5.0, 100.0, Randomness(seed), 0) for seed in range(2000)])
    assert draws.mean() == pytest.approx(0.7, abs=4 * 0.05 / math.sqrt(2000))
    assert has_deviation(draws - 0.7, 0.05)


def test_an_update_that_is_not_finite_is_over_the_clip_and_a_client_without_rows_says_nothing():
    task, tools = tasks([1.0], 4, bit=True)[0], Tools(nn.Identity(), Randomness(0))
    assert finished(task, torch.full((4,), math.nan), 3, tools).contribution.bit == -0.5
    assert finished(task, torch.zeros(4), 3, tools).contribution.bit == 0.5
    assert finished(task, torch.zeros(4), 0, tools).contribution.bit == 0.0


@pytest.mark.parametrize("layers", [None, (2, 2)])
def test_a_clip_that_is_no_number_lets_no_update_through(layers):
    """A comparison with NaN is false, so the check is written to fail."""
    found = bounded(torch.full((4,), 100.0), client_task(4, math.nan, layers=layers), Randomness(0))
    assert not np.isfinite(found.vector).any()
