"""The closed form against the paper's numbers and against brute force over every whole T and a fine
grid of noise.
"""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedspend
from fedspend import design
from fedspend.design.answers import best_under_budget, theory_answer
from fedspend.errors import InvalidInput, Refused
from fedspend.server.methods.dp_fedsgd import budget_of

PAPER = {"k": 22, "rate": 1, "clients": 10}


@pytest.mark.parametrize(
    ("rounds", "limits", "low", "high"),
    [
        (50, {**PAPER, "max_rounds": 200}, 0.0953462589, 0.0953462589),
        (20, {**PAPER, "max_rounds": 150, "max_noise": 0.1}, 0.1, 0.1),
        (150, {**PAPER, "max_rounds": 150, "max_noise": 0.1}, 0.0, 0.0550481883),
        (
            40,
            {"k": 22, "rate": 0.125, "clients": 40, "max_rounds": 75, "max_noise": 0.035},
            0.035,
            0.035,
        ),
        (
            75,
            {"k": 22, "rate": 0.125, "clients": 40, "max_rounds": 75, "max_noise": 0.035},
            0.0,
            0.035,
        ),
        (200, {**PAPER, "max_rounds": 200}, 0.0, math.sqrt(10 / (22 * 200))),  # case I has it too
    ],
)
def test_known_answers_of_the_papers_curve(rounds, limits, low, high):
    assert design.pareto_noise(rounds, **limits) == pytest.approx((low, high), abs=5e-11)


def test_cases():
    assert design.case_of(**PAPER, max_rounds=200) == "I"
    assert design.case_of(**PAPER, max_rounds=150, max_noise=0.1) == "II"
    assert design.case_of(k=22, rate=0.125, clients=40, max_rounds=75, max_noise=0.035) == "III"
    at_the_border = design.noise_for(150, **PAPER)
    assert design.case_of(**PAPER, max_rounds=150, max_noise=at_the_border) == "III"


def test_the_paper_front_is_reached_on_the_curve():
    """Eq. 17: on the curve f2 = 2 sqrt(k) / (sqrt(K) f1)."""
    for rounds in (1, 7, 50, 199):
        f1, f2 = design.objectives(rounds, design.noise_for(rounds, **PAPER), 1, k=22, clients=10)
        assert float(f2) == pytest.approx(2 * math.sqrt(22 / 10) / float(f1), rel=1e-12)


@given(st.floats(0.1, 500), st.floats(0.05, 1), st.integers(1, 200), st.none() | st.floats(0.01, 1))
def test_no_point_of_the_front_dominates_another(k, rate, clients, max_noise):
    front = design.pareto_front(k=k, rate=rate, clients=clients, max_rounds=40, max_noise=max_noise)
    assert front[:, 0].tolist() == list(range(1, 41))
    assert (np.diff(front[:, 2]) < 0).all(), "more rounds, less loss"
    assert (np.diff(front[:, 3]) > 0).all(), "and less privacy"


def brute_force(steps, scale, max_rounds, tested):
    """Which (T, step) no other one dominates, in whole numbers and over all pairs.

    In units of `q K / k`, step j is the squared noise `j / scale`: f1 is `1/T + j / scale` and f2^2
    is `T / j` up to constants.
    """
    rounds, step = (
        table.ravel() for table in np.meshgrid(np.arange(1, max_rounds + 1), steps, indexing="ij")
    )
    common = math.lcm(*range(1, max_rounds + 1))
    f1 = scale * common // rounds + step * common
    found = {}
    for t in range(1, max_rounds + 1):
        for j in tested:
            mine = scale * common // t + j * common
            as_private, strictly = rounds * j <= t * step, rounds * j < t * step
            found[t, int(j)] = not ((f1 <= mine) & as_private & ((f1 < mine) | strictly)).any()
    return found


@pytest.mark.full(only=["22-1.0-10-1200-None", "7.3-0.3-25-1200-None"])
@pytest.mark.parametrize(
    ("scale", "highest"), [(1200, None), (1200, 1500), (2400, 1400), (12000, 1800)]
)
@pytest.mark.parametrize(("k", "rate", "clients"), [(22, 1.0, 10), (7.3, 0.3, 25)])
def test_the_exact_band_is_what_brute_force_finds(k, rate, clients, scale, highest):
    max_rounds = 6
    top = 6 * 3 * scale if highest is None else highest
    # Rivals of equal privacy lie at j T'/T: whole numbers for the multiples of 60 that are tested.
    tested = np.arange(60, (3 * scale if highest is None else highest) + 1, 60)
    found = brute_force(np.arange(1, top + 1), scale, max_rounds, tested)

    def noise(j):
        return math.sqrt(j / scale * rate * clients / k)

    limits = {
        "k": k,
        "rate": rate,
        "clients": clients,
        "max_rounds": max_rounds,
        "max_noise": None if highest is None else noise(top),
    }
    seen = set()
    for (rounds, j), optimal in found.items():
        low, high = design.pareto_noise(rounds, **limits, exact=True)
        if any(math.isclose(noise(j), end, rel_tol=1e-9) for end in (low, high)):
            continue  # ends belong to the band or not by a tie
        assert optimal == (low < noise(j) < high), (rounds, j)
        seen.add((rounds, optimal))
    assert {rounds for rounds, optimal in seen if optimal} >= set(range(1, max_rounds)), (
        "the test has seen optimal noise at every T"
    )
    assert any(not optimal for _, optimal in seen)


settings = st.fixed_dictionaries(
    {
        "k": st.floats(0.01, 1e4),
        "rate": st.floats(0.01, 1),
        "clients": st.integers(1, 10_000),
        "max_rounds": st.integers(1, 500),
        "max_noise": st.none() | st.floats(1e-3, 1e3),
    }
)


@given(settings, st.data())
def test_properties_of_curve_and_band(limits, data):
    rounds = data.draw(st.integers(1, limits["max_rounds"]))
    low, high = design.pareto_noise(rounds, **limits)
    exact_low, exact_high = design.pareto_noise(rounds, **limits, exact=True)
    assert 0 <= low <= high
    assert exact_low <= high * (1 + 1e-12), "the paper's curve lies in the band"
    assert high <= exact_high * (1 + 1e-12)
    if limits["max_noise"] is not None:
        assert exact_high <= limits["max_noise"]
    if rounds < limits["max_rounds"]:
        assert low == high
        next_low, next_high = design.pareto_noise(rounds + 1, **limits, exact=True)
        assert next_high <= exact_high * (1 + 1e-12), "more rounds go with less noise"
        assert next_low <= exact_low * (1 + 1e-12) or rounds + 1 < limits["max_rounds"]
    else:
        assert (low, exact_low) == (0, 0)


@given(
    st.floats(0.1, 500), st.integers(1, 500), st.integers(1, 300), st.floats(0.01, 1), st.booleans()
)
def test_a_free_rate_depends_on_noise_squared_over_rate_only(k, clients, rounds, rate, exact):
    """Noise that is optimal at a rate has that rate among its optimal rates."""
    limits = {"k": k, "clients": clients, "max_rounds": 400, "exact": exact}
    low, high = design.pareto_noise(rounds, rate=rate, **limits)
    noise = low if math.isinf(high) else (low + high) / 2
    least, most = design.pareto_rate(rounds, noise, **limits)
    assert least <= rate * (1 + 1e-9)
    assert rate <= most * (1 + 1e-9)


def test_noise_that_no_rate_allows_is_refused():
    with pytest.raises(InvalidInput, match="too much for 100 rounds"):
        design.pareto_rate(100, 0.5, k=22, clients=10, max_rounds=200)


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"k": 0}, "k"),
        ({"k": math.nan}, "k"),
        ({"k": "many"}, "k"),
        ({"rate": 0}, "rate"),
        ({"rate": 1.01}, "rate"),
        ({"clients": 2.5}, "clients"),
        ({"clients": 0}, "clients"),
        ({"max_rounds": 0}, "max_rounds"),
        ({"max_noise": -1}, "max_noise"),
        ({"max_noise": math.inf}, "max_noise"),
        ({"rounds": 0}, "rounds"),
        ({"rounds": 201}, "at most max_rounds"),
        ({"rounds": 1.5}, "rounds"),
        ({"rounds": None}, "rounds"),
    ],
)
def test_bad_input_names_the_value(change, word):
    with pytest.raises(InvalidInput, match=word):
        design.pareto_noise(**({"rounds": 50, "max_rounds": 200, **PAPER} | change))


@pytest.mark.parametrize(
    "bad", [{"rounds": 0.5}, {"noise": math.nan}, {"noise": -1}, {"rate": [0.5, 2]}]
)
def test_objectives_refuse_what_is_out_of_range(bad):
    with pytest.raises(InvalidInput, match=next(iter(bad))):
        design.objectives(**({"rounds": 5, "noise": 0.1, "rate": 1.0} | bad), k=1, clients=10)


# --- theory with the real accountant ---


@pytest.mark.full
def test_the_best_rounds_under_a_real_budget_beat_all_others():
    terms = {"k": 3000.0, "rate": 0.5, "clients": 200}
    found = best_under_budget(5, delta=1e-5, max_rounds=60, clip=0.3, **terms)
    assert 1 < found.rounds < 60, "the setting is chosen so that the optimum is inside"
    spent = budget_of(
        found.noise_level, rate=0.5, clients=200, clip=0.3, rounds=found.rounds, delta=1e-5
    )
    assert spent == pytest.approx(5, rel=1e-6)
    every = [
        best_under_budget(5, delta=1e-5, max_rounds=t, clip=0.3, **terms).f1 for t in range(1, 61)
    ]
    assert min(every) == every[-1] == found.f1
    assert all(a >= b for a, b in itertools.pairwise(every))


def test_a_limit_on_noise_stops_the_rounds():
    terms = {"k": 22.0, "rate": 0.5, "clients": 200, "delta": 1e-5, "clip": 0.3, "max_rounds": 100}
    free = best_under_budget(5, **terms)
    bound = best_under_budget(5, **terms, max_noise=0.6 * free.noise_level)
    assert bound.rounds < free.rounds
    assert bound.noise_level <= 0.6 * free.noise_level
    with pytest.raises(Refused, match="even for one round"):
        best_under_budget(5, **terms, max_noise=1e-4)


def test_the_answer_shows_epsilon_beside_the_proxy():
    answer = theory_answer(k=22, rate=0.5, clients=200, max_rounds=100, delta=1e-5, clip=0.3)
    row = next(row for row in answer["rows"] if row["rounds"] == 50)
    again = budget_of(row["noise"][1], rate=0.5, clients=200, clip=0.3, rounds=50, delta=1e-5)
    assert row["epsilon"] == again
    assert row["f2"] == pytest.approx(math.sqrt(0.5 * 50) / row["noise"][1])
    with pytest.raises(InvalidInput, match="need a rate"):
        theory_answer(k=22, clients=200, max_rounds=100, delta=1e-5)
    with pytest.raises(InvalidInput, match="needs a delta"):
        theory_answer(k=22, rate=1, clients=200, max_rounds=100, max_epsilon=5)


def test_the_config_that_is_printed_is_planned_with_the_noise_it_states(tmp_path):
    asked = {"k": 25, "rate": 0.5, "clients": 400, "delta": 1e-5, "clip": 0.3}
    answer = theory_answer(**asked, max_rounds=200, max_epsilon=5)
    path = tmp_path / "config.toml"
    path.write_text(answer["config"])
    plan = fedspend.plan(config=path)
    assert plan.rounds == answer["recommended"]["rounds"]
    stated = answer["recommended"]["noise_multiplier"]
    assert plan.noise_multiplier == pytest.approx(stated, rel=1e-5)
