"""Policy `optimal`: noise where it does the least harm, within the same budgets."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace
from unittest import mock

import numpy as np
import pytest
from lib.configs import small

import fedspend
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.rdp import ORDERS
from fedspend.cli.main import main
from fedspend.errors import FedspendWarning, InvalidInput
from fedspend.planning.influence import Course, expectation, influence
from fedspend.planning.plan import Plan, harmonic_mean
from fedspend.planning.policies import Terms, Wish, optimal
from fedspend.planning.policies.weighted import in_shape
from fedspend.planning.request import PlanRequest

GROUPS = [2.0] * 3 + [5.0] * 4 + [10.0] * 3
# the policy works on Rényi curves; another accountant scales all noise of a schedule alike
TERMS = {"delta": 1e-5, "rounds": 25, "rate": 0.9, "accountant": "rdp"}


def plan(budgets=GROUPS, policy="optimal", **changes) -> Plan:
    return fedspend.plan(budgets, policy=policy, **(TERMS | changes))


def noise_of(made: Plan, h: np.ndarray) -> float:
    """`sum (h_t c_t s_t / qbar_t)^2`, from the plan's own tables and nothing else."""
    clients = made.schedules.clients_of
    s = clients.sum() / (clients / made.schedules.noise_multiplier).sum(axis=1)
    clip = (made.clip_norm * made.noise_multiplier)[:, 0] / s
    rate = made.sampling_rate.mean(axis=1)
    return float(((h * clip * s / rate) ** 2).sum())


def geometric(rho: float, rounds: int = 25, tail: int = 1) -> np.ndarray:
    """`h_t = sum_{k >= t} a_k rho^(k - t)`, written out."""
    weights = np.array([1 / tail if k >= rounds - tail else 0.0 for k in range(rounds)])
    return np.array(
        [sum(weights[k] * rho ** (k - t) for k in range(t, rounds)) for t in range(rounds)]
    )


# --- influence ---


@pytest.mark.parametrize("tail", [1, 4, 25])
@pytest.mark.parametrize("rho", [1.0, 0.9, 0.5])
def test_influence_is_what_is_left_of_a_push(rho, tail):
    assert np.allclose(Course(25, tail).influence(rho), geometric(rho, tail=tail))


def test_influence_follows_learning_rates_and_momentum():
    rates = np.array([1.0, 0.5, 0.25])
    rho = 0.8**rates
    expected = [rho[1] * rho[2], rho[2], 1.0]
    assert np.allclose(Course(3, 1, 0.0, rates).influence(0.8), expected)
    generator = np.random.default_rng(1)
    for _ in range(10):
        rho, beta = generator.uniform(0.3, 1, 8), generator.uniform(0, 0.9)
        tail = int(generator.integers(1, 9))
        assert np.allclose(influence(rho, tail, beta), pushed(rho, tail, beta))


def pushed(rho: np.ndarray, tail: int, beta: float) -> np.ndarray:
    """Every push played forwards through the server's step."""
    out = np.zeros(rho.size)
    for t in range(rho.size):
        model = velocity = 0.0
        for k in range(rho.size):
            velocity = beta * velocity - (1 - rho[k]) * model + (k == t)
            model += velocity
            out[t] += model / tail if k >= rho.size - tail else 0.0
    return out


# --- what it promises ---


@pytest.mark.full
def test_every_budget_is_spent_and_verified():
    made = plan(contraction=0.9, rounds=6)
    assert np.all(made.epsilon <= made.budget)
    assert np.all(made.epsilon >= made.budget * (1 - 1e-6))
    assert np.all(made.sampling_rate == 0.9)
    assert made.verify().ok
    assert len(np.unique(made.noise_multiplier[:, 0])) == 6


def test_large_noise_gives_the_closed_form():
    """Without sampling and at a small budget `sigma_t^2` is as `1 / h_t`, and the gain is known."""
    made = plan([0.1], rate=1.0, contraction=0.9)
    h = geometric(0.9)
    sigma = made.noise_multiplier[:, 0]
    assert np.allclose(sigma**2 * h / (sigma**2 * h).mean(), 1, atol=0.01)
    gain = noise_of(made, h) / noise_of(plan([0.1], "uniform", rate=1.0), h)
    assert gain == pytest.approx(h.sum() ** 2 / (25 * (h**2).sum()), rel=2e-3)


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("rate", [0.01, 0.1, 0.9])
@pytest.mark.parametrize(("rho", "tail"), [(1.0, 1), (0.95, 8), (0.8, 1), (0.5, 4)])
def test_it_is_never_worse_than_uniform_and_says_what_it_gains(rate, rho, tail):
    made = plan(rate=rate, contraction=rho, tail=tail)
    h = geometric(rho, tail=tail)
    ratio = noise_of(made, h) / noise_of(plan(policy="uniform", rate=rate), h)
    assert ratio <= 1 + 1e-9
    assert made.parameters["expected"]["variance_of_uniform"] == pytest.approx(ratio, rel=1e-9)
    assert np.allclose(made.parameters["expected"]["influence"], h)


@pytest.mark.parametrize("rate", [0.01, 0.9])
def test_the_closed_form_loses_where_rounds_are_sampled_and_this_does_not(rate):
    h = geometric(0.8)
    closed = noise_of(plan(policy="weights", weights=np.maximum(h, 1e-4).tolist(), rate=rate), h)
    ours, flat = (
        noise_of(plan(contraction=0.8, rate=rate), h),
        noise_of(plan(policy="uniform", rate=rate), h),
    )
    assert ours <= closed * (1 + 1e-4)
    assert ours < flat
    assert (closed > flat) == (rate == 0.01)


@pytest.mark.full(but=["budgets0-5e-05-0.9"])
@pytest.mark.parametrize("rate", [0.05, 0.9])
@pytest.mark.parametrize(("budgets", "close"), [([4.0], 5e-5), ([2.0, 10.0], 1e-3)])
def test_no_other_shape_is_better(rate, budgets, close):
    """Schedules that are bent at random and scaled to their budgets again have more noise.

    Each budget has its own best schedule, and with several of them that is nearly the best for all.
    """
    made, h = plan(budgets, rate=rate, contraction=0.85, tail=3), geometric(0.85, tail=3)
    best, generator = noise_of(made, h), np.random.default_rng(0)
    log_noise, terms = np.log(made.schedules.noise_multiplier), Terms(1e-5, rate, 25, ORDERS)
    nothing, lines = np.zeros(len(budgets)), len(budgets)
    wish = Wish(made.budget, nothing, nothing.astype(np.int64), np.ones(25))
    for size in (0.3, 0.1, 0.03):
        smooth = np.cumsum(generator.normal(0, size / 3, (25, lines)), axis=0)
        for bend in (generator.normal(0, size, (25, lines)), smooth, smooth[:, :1], -smooth):
            s = harmonic_mean(in_shape(terms, wish, log_noise + bend).noise, np.ones(lines))
            assert ((h * s / rate) ** 2).sum() >= best * (1 - close)


@pytest.mark.full(but=["0.8"])
@pytest.mark.parametrize("contraction", [None, 0.8])
def test_a_schedule_depends_on_no_other_budget(contraction):
    """So that what is published of the largest budget says nothing about the others."""
    alone = plan([10.0], contraction=contraction).noise_multiplier[:, 0]
    for others in ([2.0, 5.0], [0.5], np.geomspace(0.3, 9.9, 30).tolist()):
        among = plan([*others, 10.0], contraction=contraction).noise_multiplier[:, -1]
        assert np.array_equal(among, alone)


@pytest.mark.full
def test_long_plans_have_few_different_noises_and_are_read_by_pld():
    made = plan([3.0], rounds=300, contraction=0.99, accountant="auto", rate=0.1)
    assert made.accountant == "pld"
    assert len(np.unique(made.noise_multiplier)) <= 50
    exact = plan([3.0], rounds=300, contraction=0.99, rate=0.1)
    with mock.patch.object(optimal, "MOST_NOISES", 1000):
        fine = plan([3.0], rounds=300, contraction=0.99, rate=0.1)
    h = geometric(0.99, rounds=300)
    assert len(np.unique(fine.noise_multiplier)) > 100
    assert noise_of(exact, h) <= noise_of(fine, h) * (1 + 1e-3)


def test_a_clip_that_falls_moves_spending_to_early_rounds():
    falling = np.linspace(1, 0.04, 25)
    late, early = plan(contraction=0.95), plan(contraction=0.95, learning_rates=falling)
    spent = [made.spent()[12, 0] / made.epsilon[0] for made in (late, early)]
    assert spent[0] < 0.6 < 0.8 < spent[1]
    h = Course(25, 1, 0.0, falling).influence(0.95)
    flat = plan(policy="uniform", learning_rates=falling)
    ratio = noise_of(early, h) / noise_of(flat, h)
    assert ratio < 0.95
    assert early.parameters["expected"]["variance_of_uniform"] == pytest.approx(ratio)


def test_without_a_contraction_it_is_safe_for_all_and_gains_where_it_is_likely():
    """At most 1% more noise than uniform for contractions from 0.5 to 1; 8% less at 0.9."""
    for budgets in (GROUPS, [10.0, 20.0, 30.0]):
        made, flat = plan(budgets), plan(budgets, "uniform")
        ratios = {
            rho: noise_of(made, geometric(rho)) / noise_of(flat, geometric(rho))
            for rho in np.linspace(0.5, 1, 51).round(2).tolist()
        }
        assert max(ratios.values()) <= 1.01, ratios
        assert ratios[0.9] <= 0.92
        assert made.parameters["expected"]["variance_of_uniform"] == pytest.approx(ratios[0.9])
        assert made.parameters["expected"]["worst"] <= 1.01


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize(
    "terms",
    [
        {"rate": 0.01},
        {"rate": 0.1, "tail": 8},
        {"tail": 25},
        {"learning_rates": np.linspace(1, 0.04, 25)},
        {"learning_rates": np.linspace(1, 0.04, 25), "clip_schedule": "constant"},
        {"server_momentum": 0.8},
        {"rounds": 3},
    ],
)
def test_the_default_is_safe_under_other_terms_too(terms):
    course = Course(
        terms.get("rounds", 25),
        min(terms.get("tail", 1), terms.get("rounds", 25)),
        terms.get("server_momentum", 0.0),
        terms.get("learning_rates"),
    )
    plain = {key: value for key, value in terms.items() if key != "tail"}
    made, flat = plan(**terms), plan(policy="uniform", **plain)
    for rho in (1.0, 0.96, 0.92, 0.87, 0.75, 0.65, 0.55, 0.5):
        h = course.influence(rho)
        assert noise_of(made, h) <= noise_of(flat, h) * 1.01, rho


# --- with everything else ---


def test_one_round_and_no_contraction_are_uniform():
    assert np.allclose(
        plan(rounds=1, contraction=0.5).noise_multiplier,
        plan(policy="uniform", rounds=1).noise_multiplier,
    )
    made = plan(contraction=1)
    assert np.allclose(made.noise_multiplier, plan(policy="uniform").noise_multiplier)
    assert "uniform is within 0.0%" in expectation(made.parameters["expected"])


def test_many_budgets_are_spent_exactly_and_near_the_best():
    budgets = np.geomspace(1, 30, 200)
    made, flat = plan(budgets, contraction=0.9), plan(budgets, "uniform")
    assert np.all(made.epsilon >= budgets * (1 - 1e-6))
    assert np.all(made.epsilon <= budgets)
    assert noise_of(made, geometric(0.9)) / noise_of(flat, geometric(0.9)) < 0.7


def test_what_was_spent_before_counts():
    past = Mechanisms.of_schedules(np.full((3, 3), 6.0), np.full((3, 3), 0.9))
    made = plan([5.0, 6.0, 10.0], contraction=0.9, past=past)
    flat = plan([5.0, 6.0, 10.0], "uniform", past=past)
    alone = made.schedules
    both = Mechanisms.of_schedules(
        np.concatenate([np.full((3, 3), 6.0), alone.noise_multiplier[:, alone.of_client]]),
        np.full((28, 3), 0.9),
    )
    spent, _ = both.best(np.full(3, made.delta))
    assert np.all(spent <= made.budget)
    assert np.all(spent >= made.budget * (1 - 1e-6))
    h = geometric(0.9)
    assert noise_of(made, h) < 0.75 * noise_of(flat, h)


def test_pld_keeps_the_gain():
    terms = {"rounds": 4, "contraction": 0.7, "accountant": "pld"}
    made = plan([4.0], **terms)
    h = geometric(0.7, rounds=4)
    flat = plan([4.0], "uniform", rounds=4, accountant="pld")
    assert made.verify().ok
    ratio = noise_of(made, h) / noise_of(flat, h)
    assert ratio < 0.9
    assert made.parameters["expected"]["variance_of_uniform"] == pytest.approx(ratio)
    assert noise_of(made, h) < noise_of(plan([4.0], rounds=4, contraction=0.7), h)


@pytest.mark.full(only=["3.0"])
@pytest.mark.parametrize("noise", [3.0, None])
def test_what_is_stated_counts_what_a_private_metric_takes(noise):
    """A metric takes the same of every round, so more of the noisy ones."""
    h, budgets = geometric(0.8, rounds=8), np.full(40, 8.0)
    request = PlanRequest(
        budgets,
        tuple(map(str, range(40))),
        **(TERMS | {"rounds": 8, "metric": True, "metric_noise": noise}),
    )
    ours = replace(request, policy="optimal", contraction=0.8).plan()
    flat = replace(request, policy="uniform").plan()

    def left(made: Plan) -> float:
        deviation = made.clip_norm[:, 0] * made.update_noise[:, 0]
        return float(((h * deviation) ** 2).sum())

    stated = ours.parameters["expected"]["variance_of_uniform"]
    assert stated == pytest.approx(left(ours) / left(flat), rel=1e-9)
    plain = plan(budgets, rounds=8, contraction=0.8).parameters["expected"]["variance_of_uniform"]
    assert abs(stated - plain) > 1e-3
    assert ours.verify().ok


def test_uniform_is_taken_where_a_metric_makes_it_better():
    """So little noise on the metric that noisy rounds would hardly be left any update."""
    budgets = np.full(40, 8.0)
    noisiest = plan(budgets, rounds=8, contraction=0.5).noise_multiplier.max()
    made = plan(budgets, rounds=8, contraction=0.5, metric_noise=float(noisiest) / 2 * 1.0001)
    assert made.parameters["expected"]["variance_of_uniform"] <= 1
    assert made.verify().ok


@pytest.mark.full
def test_discrete_noise_too():
    made = plan(contraction=0.7, noise="discrete", rounds=5)
    assert made.verify().ok
    assert made.parameters["expected"]["variance_of_uniform"] < 0.85


def test_a_thousand_rounds_are_planned_fast_and_spend_their_budget():
    made = plan([3.0], rounds=1000, rate=0.05, contraction=0.99)
    assert made.epsilon[0] == pytest.approx(3.0, rel=1e-6)
    assert made.parameters["expected"]["variance_of_uniform"] < 0.9


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"contraction": 0}, "contraction must lie in (0, 1], got 0"),
        ({"contraction": 1.2}, "contraction must lie in (0, 1]"),
        ({"contraction": float("nan")}, "contraction must be a finite number"),
        ({"tail": 0}, "tail must be"),
        ({"server_momentum": 1}, "server_momentum must be at least 0 and below 1"),
        ({"learning_rates": [1.0] * 3}, "got 3 for 25 rounds"),
        ({"method": "dp-fedavg"}, "contradicts method 'dp-fedavg'"),
        ({"method": "ae-dpfl"}, "contradicts method 'ae-dpfl'"),
    ],
)
def test_wrong_terms_are_one_line(given, message):
    with pytest.raises(InvalidInput) as caught:
        plan(**given)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_other_policies_say_that_they_do_not_use_a_contraction():
    with pytest.warns(FedspendWarning, match="contraction has no effect under policy 'uniform'"):
        plan(policy="uniform", contraction=0.9)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        plan(policy="optimal", contraction=0.9, tail=2)


@pytest.mark.full
def test_the_command_line_says_what_it_assumed_and_expects(capsys, tmp_path):
    flags = ["--epsilon", "10:34,20:43,30:23", "--delta", "1e-5", "--rounds", "25", "--rate", "0.9"]
    asked = [*flags, "--policy", "optimal", "--contraction", "0.9"]
    assert main(["plan", *asked, "--tail", "4", "-o", str(tmp_path / "plan.json")]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "less noise (variance) in the final model than uniform, at contraction 0.9, with" in out
    assert Plan.load(tmp_path / "plan.json").parameters["expected"]["tail"] == 4
    assert main(["plan", *asked, "--tail", "4", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["expected"]
    python = fedspend.plan(
        [10.0] * 34 + [20.0] * 43 + [30.0] * 23,
        delta=1e-5,
        rounds=25,
        rate=0.9,
        policy="optimal",
        contraction=0.9,
        tail=4,
        accountant="auto",
    )
    assert found == python.parameters["expected"]
    assert main(["plan", *flags, "--compare", "uniform,optimal", "--contraction", "0.9"]) == 0
    assert main(["plan", *flags, "--policy", "optimal", "--contraction", "2"]) == 2
    assert "contraction must lie in (0, 1]" in capsys.readouterr().err


def test_a_run_takes_tail_and_momentum_from_its_config():
    from fedspend.configuration.config import config_of
    from fedspend.configuration.plan_inputs import resolve

    privacy = {"epsilon": 4.0, "delta": 1e-3, "rate": 0.9, "policy": "optimal", "contraction": 0.8}
    train = {
        "rounds": 8,
        "tail_average": 3,
        "server_momentum": 0.4,
        "lr": 0.1,
        "lr_schedule": "cosine",
    }
    config = config_of(small("plain", method__name="time-adaptive", privacy=privacy, train=train))
    request = resolve(config).request
    assert (request.contraction, request.tail, request.server_momentum) == (0.8, 3, 0.4)
    assert request.learning_rates[-1] == pytest.approx(0.1)
    expected = request.plan().parameters["expected"]
    course = Course(8, 3, 0.4, np.array(request.learning_rates))
    assert np.allclose(expected["influence"], course.influence(0.8))
