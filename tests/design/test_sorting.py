"""Non-dominated points against comparing all pairs, with ties and duplicates; and the estimate of k
on points that are known.
"""

import math
import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from fedspend import design
from fedspend.errors import InvalidInput


def brute_force(points):
    return [
        not any((other <= point).all() and (other < point).any() for other in points)
        for point in points
    ]


@pytest.mark.full
@given(
    st.integers(1, 4).flatmap(
        lambda objectives: arrays.arrays(
            np.float64,
            st.tuples(st.integers(0, 40), st.just(objectives)),
            # few values: many ties
            elements=st.sampled_from([0.0, 1.0, 2.0, 2.5, 3.0, -1.0, math.inf, -math.inf]),
        )
    )
)
def test_the_same_as_comparing_all_pairs(points):
    assert design.non_dominated(points).tolist() == brute_force(points)


@pytest.mark.parametrize("objectives", [2, 3, 5])
def test_the_same_on_continuous_points_with_copies(objectives):
    generator = np.random.default_rng(objectives)
    points = generator.normal(size=(300, objectives))
    points = np.concatenate([points, points[:100]])[generator.permutation(400)]
    mask = design.non_dominated(points)
    assert mask.tolist() == brute_force(points)
    assert 0 < mask.sum() < 400


@pytest.mark.full
def test_a_million_points_in_seconds():
    points = np.random.default_rng(0).normal(size=(1_000_000, 2))
    hard = np.column_stack([points[:, 0], -points[:, 0]])  # everything is optimal
    for table in (points, hard):
        start = time.process_time()
        mask = design.non_dominated(table)
        assert time.process_time() - start < 20  # 0.5 on one quiet core
    assert mask.all()


@pytest.mark.parametrize(
    ("points", "word"),
    [
        ([[1.0, 2.0], [math.nan, 1.0]], "objective 1 of point 2 is NaN"),
        ([[1.0, 2.0, math.nan]], "objective 3 of point 1 is NaN"),
        ([1.0, 2.0], "one row per point"),
        ([[1.0], [1.0, 2.0]], "must be numbers"),
        ([["a", "b"]], "must be numbers"),
        (np.zeros((3, 0)), "one column per objective"),
    ],
)
def test_bad_points(points, word):
    with pytest.raises(InvalidInput, match=word):
        design.non_dominated(points)


# --- k ---


@given(st.floats(0.1, 1e4), st.integers(1, 1000), st.floats(0.01, 1))
def test_points_on_the_curve_give_k_back(k, clients, rate):
    points = [(t, design.noise_for(t, k=k, rate=rate, clients=clients)) for t in (3, 10, 40, 100)]
    found = design.estimate_k(points, rate=rate, clients=clients)
    assert found.k == pytest.approx(k, rel=1e-9)
    assert float(found) == found.k
    assert (found.low, found.high) == pytest.approx((k, k), rel=1e-6)
    assert found.exponent == pytest.approx(1, rel=1e-9)


def test_the_interval_covers_k_as_often_as_it_says():
    """Levels that scatter around the curve by 20%: about 95 of 100 intervals hold the true k."""
    generator = np.random.default_rng(7)
    hits = 0
    for _ in range(400):
        rounds = np.geomspace(5, 150, 6)
        noise = np.array([design.noise_for(t, k=22, rate=1, clients=10) for t in rounds]) * np.exp(
            0.1 * generator.normal(size=6)
        )
        found = design.estimate_k(np.column_stack([rounds, noise]), rate=1, clients=10)
        hits += found.low <= 22 <= found.high
    assert 0.92 <= hits / 400 <= 0.98


@pytest.mark.parametrize(("ratio", "bias"), [(1.1, -0.02), (1.2, -0.08), (1.3, -0.13)])
def test_the_band_of_a_grid_gives_k(ratio, bias):
    """All whole T that are optimal for each noise level of a grid, found by sorting the objectives
    themselves.
    """
    noise = 0.02 * ratio ** np.arange(int(math.log(10) / math.log(ratio)) + 1)
    rounds = np.arange(1, 401)
    f1, f2 = design.objectives(rounds[:, None], noise[None], 1.0, k=22, clients=10)
    mask = design.non_dominated(np.column_stack([f1.ravel(), f2.ravel()])).reshape(f1.shape)
    t, level = np.nonzero(mask)
    points = np.column_stack([rounds[t], noise[level]])
    found = design.estimate_k(points, rate=1, clients=10, max_rounds=400, max_noise=noise[-1])
    assert found.k / 22 - 1 == pytest.approx(bias, abs=0.005)
    assert found.exponent == pytest.approx(1, abs=0.02)
    naive = design.estimate_k(points, rate=1, clients=10)
    assert abs(naive.k - 22) > abs(found.k - 22), "points at the limits of a search pull k away"


def test_a_level_counts_once_and_one_level_has_no_interval():
    one = design.estimate_k([[50, 0.1], [40, 0.1], [60, 0.1]], rate=1, clients=10)
    assert (one.low, one.high, one.levels) == (0.0, math.inf, 1)
    assert math.isnan(one.exponent)
    assert one.k == pytest.approx(10 / (0.01 * 50))


def test_rates_may_differ_by_point():
    rates = [0.1, 0.5, 1.0]
    points = [(30, design.noise_for(30, k=50, rate=q, clients=40)) for q in rates]
    assert design.estimate_k(points, rate=rates, clients=40).k == pytest.approx(50)


@pytest.mark.parametrize(
    ("points", "options", "word"),
    [
        ([], {}, "at least one row"),
        ([[1, 2, 3]], {}, "shape"),
        ([[10, math.nan]], {}, "point 1"),
        ([[10, 0.1], [10, 0.0]], {}, "point 2"),
        ([["x", 1]], {}, "two numbers"),
        ([[10, 0.1]], {"rate": 0}, "rate"),
        ([[10, 0.1]], {"rate": [0.5, 0.5]}, "one per point"),
        ([[10, 0.1]], {"clients": 0}, "clients"),
        ([[10, 0.1]], {"max_rounds": 10}, "at a limit"),
        ([[10, 0.1]], {"max_noise": 0.1}, "at a limit"),
    ],
)
def test_bad_points_for_k(points, options, word):
    with pytest.raises(InvalidInput, match=word):
        design.estimate_k(points, **({"rate": 1, "clients": 10} | options))
