"""`fedspend design choose`: candidates are planned exactly, forecast or trained, and compared."""

from __future__ import annotations

import itertools
import json
import random
import tomllib
from pathlib import Path

import numpy as np
import pytest
from lib.configs import changed, small, write_toml

import fedspend
from fedspend.cli.main import main
from fedspend.configuration.config import config_of, load_config
from fedspend.configuration.plan_inputs import resolve
from fedspend.design import choose, simulation
from fedspend.design.bias import bias_of_round, measured_bias
from fedspend.design.choices import (
    Candidate,
    checked_axes,
    config_of_candidate,
    default_axes,
    own_candidate,
)
from fedspend.design.choosing import Theory
from fedspend.design.forecast import Assumption, approached, course_of, forecast
from fedspend.design.measuring import measured_assumption
from fedspend.design.simulation import Simulation, climb, race, train_by_tail
from fedspend.errors import InvalidInput, Refused
from fedspend.planning.influence import Course
from fedspend.planning.plan import Plan

pytestmark = pytest.mark.usefixtures("registries_as_before")

BASE = small(
    "plain",
    data__examples=300,
    data__clients=12,
    privacy={
        "groups": [{"epsilon": 4.0, "share": 0.5}, {"epsilon": 12.0, "share": 0.5}],
        "delta": 1e-3,
        "rate": 0.5,
        "accountant": "rdp",
    },
    train={"rounds": 6, "local_steps": 3, "batch_size": 8, "lr": 0.5, "seed": 3},
)
# axes that stay as they are, so that a test compares what it is about
STILL = {
    "train.rounds": [6],
    "privacy.rate": [0.5],
    "schedule": ["constant"],
    "train.tail_average": [1],
    "policy": ["uniform"],
    "privacy.clip": [1.0],
}
GIVEN = {"contraction": 0.8, "distance": 3.0, "parameters": 10}


def base(**sections: dict) -> dict:
    return {name: {**BASE.get(name, {}), **sections.get(name, {})} for name in {**BASE, **sections}}


def planned(config) -> Plan:
    return resolve(config).request.plan()


# --- theory ---------------------------------------------------------------------------------------


def test_without_clip_and_noise_the_distance_shrinks_geometrically():
    assumed = Assumption.given(1, contraction=0.7, distance=2.0)
    left, kept = approached(Course(9), assumed, np.full(9, 1e9))
    assert np.allclose(left, 2.0 * 0.7 ** np.arange(1, 10))
    assert np.all(kept == 1)


def test_a_small_clip_bounds_what_a_round_moves():
    assumed = Assumption.given(1, contraction=0.5, distance=10.0)
    left, _ = approached(Course(5), assumed, np.full(5, 0.1))
    assert np.allclose(left, 10 - 0.1 * np.arange(1, 6))


def test_clients_that_pull_apart_are_clipped_even_close_to_the_best_model():
    near = Assumption.given(1, contraction=0.5, distance=0.1, stride=2.0)
    left, kept = approached(Course(1), near, np.array([1.0]))
    assert kept.tolist() == [0.5]
    assert left.tolist() == pytest.approx([0.1 - 0.5 * 0.05])


@pytest.mark.parametrize(
    ("tail", "momentum", "schedule", "seed"),
    [(1, 0.0, "constant", 1), (3, 0.0, "linear/lr", 2), (2, 0.4, "constant", 3)],
)
def test_the_forecast_is_what_a_quadratic_with_the_noise_of_the_plan_does(
    tail, momentum, schedule, seed
):
    """The recursion is played with random noise and random cohorts, far from the formula."""
    config = config_of_candidate(
        config_of(base(train={"server_momentum": momentum}, privacy={"clip": 0.4})),
        Candidate.of({"train.tail_average": tail, "schedule": schedule}),
    )
    plan, size, runs = planned(config), 6, 4000
    assumed = Assumption.given(size, contraction=0.8, distance=0.5)
    expected = forecast(plan, course_of(config, plan), 1.0, assumed)
    draw, rounds = np.random.default_rng(seed), plan.rounds
    model, velocity, handed_out = np.zeros((runs, size)), 0.0, 0.0
    model[:, 0] = assumed.distance
    rates = [1.0] * rounds
    if schedule != "constant":
        rates = [1 - 0.9 * t / (rounds - 1) for t in range(rounds)]
    for t in range(rounds):
        noise = draw.normal(0, plan.noise_of_average[t], (runs, size))
        velocity = momentum * velocity - (1 - 0.8 ** rates[t]) * model + noise
        model = model + velocity
        handed_out = handed_out + (model / tail if t >= rounds - tail else 0.0)
    left = np.square(handed_out).sum(axis=1) / assumed.distance**2
    error = left.std() / np.sqrt(runs)
    assert expected.bias + expected.noise == pytest.approx(left.mean(), abs=4 * error)


def test_sampling_is_bounded_by_what_random_cohorts_do():
    config = config_of(base())
    plan = planned(config)
    assumed = Assumption.given(1, contraction=1.0, distance=1.0)
    expected = forecast(plan, Course(plan.rounds), 1.0, assumed).sampling
    draw, s = np.random.default_rng(0), plan.schedules
    clip, rate = s.clip_norm[0, s.of_client], s.sampling_rate[0, s.of_client]
    taking_part = draw.random((20000, rate.size)) < rate
    moved = (taking_part * clip).sum(axis=1) / (rate.size * plan.round_rate[0])
    assert expected == pytest.approx(plan.rounds * moved.var(), rel=0.05)


def test_at_rate_one_sampling_moves_nothing():
    config = config_of(base(privacy={"rate": 1.0}))
    plan = planned(config)
    assumed = Assumption.given(1, contraction=0.9, distance=1.0)
    assert forecast(plan, Course(plan.rounds), 1.0, assumed).sampling == 0


@pytest.mark.full(but=["30.0"])
@pytest.mark.parametrize("distance", [0.3, 3.0, 30.0])
def test_theory_finds_the_best_of_the_whole_grid(distance):
    vary = {
        **STILL,
        "train.rounds": [2, 6, 12],
        "privacy.rate": [0.5, 1.0],
        "policy": ["uniform", "geometric:0.9"],
        "privacy.clip": [0.25, 1.0, 4.0],
    }
    found = choose(base(), vary=vary, contraction=0.8, distance=distance, parameters=10)
    theory = Theory(config_of(base(privacy={"contraction": 0.8})), found.assumption, None)
    grid = [
        Candidate.of(dict(zip(found.axes, values, strict=True)))
        for values in itertools.product(*found.axes.values())
    ]
    assert max(map(theory.value, grid)) == pytest.approx(theory.value(found.best), rel=1e-9)


@pytest.mark.full
def test_a_longer_way_takes_more_rounds():
    vary = {**STILL, "train.rounds": [1, 2, 4, 8, 16, 32]}
    near, far = (
        choose(base(), vary=vary, contraction=0.8, distance=distance, parameters=200)
        for distance in (2.0, 2000.0)
    )
    assert near.best["train.rounds"] < far.best["train.rounds"]


@pytest.mark.full
def test_theory_plans_optimal_for_the_contraction_that_it_assumes():
    found = choose(base(), vary={**STILL, "policy": ["optimal"]}, **GIVEN)
    assert found.plan.parameters["expected"]["contraction"] == 0.8
    assert found.sections["privacy"]["contraction"] == 0.8


def test_what_each_choice_is_worth_changes_one_thing():
    found = choose(base(), vary={**STILL, "privacy.rate": [0.25, 0.5, 1.0]}, **GIVEN)
    worth = {one.value: one.difference for one in found.worth}
    assert set(worth) == {0.25, 0.5, 1.0} - {found.best["privacy.rate"]}
    assert all(difference <= 0 for difference in worth.values())
    scores = {one.candidate["privacy.rate"]: one.score for one in found.tried}
    best = scores[found.best["privacy.rate"]]
    assert worth == {rate: scores[rate] - best for rate in worth}


# --- every candidate is planned exactly -----------------------------------------------------------


@pytest.mark.full
def test_every_usual_candidate_spends_its_budgets_and_no_more():
    """Individual rates, saving by rate and by noise, and rate 1: all by the real planner."""
    config = config_of(base())
    axes = default_axes(config, simulated=True)
    start = own_candidate(config, axes)
    draw = random.Random(5)
    for _ in range(8):
        candidate = Candidate.of({axis: draw.choice(values) for axis, values in axes.items()})
        plan = planned(config_of_candidate(config, candidate))
        assert np.all(plan.epsilon <= plan.budget)
        assert np.all(plan.epsilon >= 0.99 * plan.budget), candidate
    policies = {split for split in axes["policy"] if split.startswith("individual-rates")}
    assert policies == {"individual-rates:best", "individual-rates:rates"}
    assert 1.0 in axes["privacy.rate"]
    assert start["policy"] == "uniform"


def test_the_best_plan_passes_the_independent_check_and_is_that_of_its_config(tmp_path):
    found = choose(base(), vary={**STILL, "policy": ["individual-rates:best"]}, **GIVEN)
    assert fedspend.verify(found.plan).ok
    found.write(tmp_path / "best.toml")
    assert (tmp_path / "best.toml").stat().st_mode & 0o077 == 0  # it states budgets
    again = load_config(tmp_path / "best.toml")
    assert planned(again).hash == found.plan.hash


def test_a_saving_config_keeps_its_own_rates_under_the_word_config():
    groups = [{"epsilon": 4.0, "share": 1.0, "saving_rate": 0.2, "transition": 4}]
    config = config_of(
        base(method={"name": "time-adaptive"}, privacy={"groups": groups, "rate": 0.5})
    )
    own = own_candidate(config, checked_axes(config, None, simulated=False))
    assert own["policy"] == "config"
    assert planned(config_of_candidate(config, own)).hash == planned(config).hash
    other = planned(config_of_candidate(config, own.with_("policy", "uniform")))
    assert np.all(other.sampling_rate == 0.5)


def test_a_candidate_that_cannot_be_planned_is_named_and_not_chosen():
    config = base(
        method={"name": "time-adaptive"},
        privacy={
            "groups": [{"epsilon": 4.0, "share": 1.0, "saving_rate": 0.2, "transition": 5}],
        },
    )
    found = choose(
        config, vary={**STILL, "policy": ["config", "uniform"], "train.rounds": [3, 6]}, **GIVEN
    )
    refused = [one for one in found.tried if one.refused]
    assert [one.candidate["train.rounds"] for one in refused] == [3]
    assert "transition" in refused[0].refused
    assert found.best["train.rounds"] == 6 or found.best["policy"] == "uniform"


# --- the search -----------------------------------------------------------------------------------


def test_a_climb_finds_a_planted_optimum():
    draw = random.Random(1)
    for _ in range(20):
        axes = {name: tuple(range(draw.randint(1, 9))) for name in "abcd"}
        goal = {name: draw.choice(values) for name, values in axes.items()}
        start = Candidate.of({name: draw.choice(values) for name, values in axes.items()})

        def height(candidate, goal=goal):
            return -sum(abs(candidate[name] - goal[name]) for name in goal)

        tried = climb(axes, start, height, 1000)
        assert max(tried, key=height).fields == goal
        assert len(tried) == len(set(tried))


def test_a_climb_stops_at_its_limit():
    axes = {"a": tuple(range(100))}
    tried = climb(axes, Candidate.of({"a": 0}), lambda one: one["a"], 7)
    assert len(tried) == 7


def test_a_race_finds_the_best_under_noise_with_fewer_trainings():
    axes = [Candidate.of({"a": n}) for n in range(8)]
    wins, most = 0, 0
    for trial in range(50):
        ran = set()

        def mean(one, seeds, trial=trial, ran=ran):
            ran |= {(one["a"], seed) for seed in range(seeds)}
            draws = [random.Random(f"{trial} {one['a']} {n}").gauss(0, 1) for n in range(seeds)]
            return one["a"] / 3 + sum(draws) / seeds

        wins += race(axes, mean, 8)[0]["a"] >= 6
        most = max(most, len(ran))
    assert wins >= 45
    assert most <= 8 * 2 + 4 * 2 + 2 * 4


# --- simulation -----------------------------------------------------------------------------------

QUICK = {**STILL, "train.lr": [0.001, 0.5]}
GENEROUS = {"groups": [{"epsilon": 100.0, "share": 0.5}, {"epsilon": 200.0, "share": 0.5}]}


@pytest.mark.full
def test_a_simulation_finds_the_learning_rate_that_was_planted(tmp_path):
    config = base(train={"lr": 0.001}, privacy=GENEROUS)
    found = choose(config, vary=QUICK, simulate=True, propose=False, folder=tmp_path / "d", seeds=2)
    assert found.best["train.lr"] == 0.5
    assert found.tried[0].score > found.start.score + 0.1
    (worth,) = found.worth
    assert (worth.axis, worth.value, worth.seeds) == ("train.lr", 0.001, 2)
    assert worth.difference == pytest.approx(found.start.score - found.tried[0].score)
    document = found.document()
    assert (document["tried"], document["trainings"]) == (2, 4)
    assert "public" in document["tuning"]


def test_one_training_serves_all_tails_unless_its_noise_is_planned_for_one():
    config = config_of(base())
    vary = {**STILL, "train.tail_average": [1, 2, 3], "policy": ["uniform", "optimal"]}
    axes = checked_axes(config, vary, simulated=True)
    runs = Simulation(config, axes)
    first = own_candidate(config, axes)
    scores = [runs.value(first.with_("train.tail_average", tail), 3) for tail in (1, 2, 3)]
    assert runs.ran == 1
    assert len(set(scores)) > 1
    for tail in (1, 2):
        runs.value(first.with_("policy", "optimal").with_("train.tail_average", tail), 3)
    assert runs.ran == 3


def test_a_training_is_that_of_fedspend_train_on_the_held_out_rows():
    config = config_of(base(train={"tail_average": 2}, data={"validation": 0.2}))
    accuracy, loss = train_by_tail(config, (1, 2))
    result = fedspend.train(base(train={"tail_average": 2}, data={"validation": 0.2}))
    assert accuracy["2"] == pytest.approx(result.metrics[-1]["accuracy"])
    assert loss["2"] == pytest.approx(result.metrics[-1]["loss"], rel=1e-5)


def test_the_test_set_is_never_read():
    """Other test rows change nothing: scores are of training rows that are held out."""

    def rows(offset):
        def read(_folder, _seed):
            from fedspend.data.dataset import Rows

            draw = np.random.default_rng(0)
            features = draw.normal(size=(200, 3)).astype(np.float32)
            labels = (features[:, 0] > 0).astype(np.int64)
            wrong = (labels[:50] + offset) % 2
            return Rows(features, labels, 2, features[:50] + offset, wrong)

        return read

    scores = []
    for offset in (0, 1):
        name = f"choose-test-rows-{offset}"
        fedspend.register("data set", name, rows(offset), help="made up", public=True)
        found = choose(
            with_data(name),
            vary=QUICK,
            simulate=True,
            propose=False,
            seeds=1,
        )
        scores.append([one.score for one in found.tried])
    assert scores[0] == scores[1]


def with_data(name: str) -> dict:
    return {**base(), "data": {"name": name, "clients": 12, "partition": "iid"}}


@pytest.mark.full
def test_a_search_that_was_stopped_goes_on_where_it_was(tmp_path, monkeypatch):
    vary = {**QUICK, "privacy.rate": [0.5, 1.0]}
    kwargs = {"vary": vary, "simulate": True, "propose": False, "seeds": 2}
    whole = choose(base(), folder=tmp_path / "whole", **kwargs)
    real, left = simulation.train_by_tail, iter(range(3))

    def stopping(config, tails):
        if next(left, None) is None:
            raise KeyboardInterrupt
        return real(config, tails)

    monkeypatch.setattr(simulation, "train_by_tail", stopping)
    with pytest.raises(KeyboardInterrupt):
        choose(base(), folder=tmp_path / "part", **kwargs)
    ran = []

    def counting(config, tails):
        ran.append(config)
        return real(config, tails)

    monkeypatch.setattr(simulation, "train_by_tail", counting)
    with (tmp_path / "part" / "trainings.jsonl").open("a") as file:
        file.write('{"candidate": {"tra')  # a line that a kill cut off
    resumed = choose(base(), folder=tmp_path / "part", **kwargs)
    assert resumed.document() == whole.document()
    assert len(ran) == whole.trainings - 3
    ran.clear()
    choose(base(), folder=tmp_path / "part", **kwargs)
    assert not ran


def test_a_folder_of_another_search_is_refused(tmp_path):
    kwargs = {"vary": QUICK, "simulate": True, "propose": False, "seeds": 1}
    choose(base(), folder=tmp_path / "d", **kwargs)
    with pytest.raises(InvalidInput, match=r"another search: train\.batch_size"):
        choose(base(train={"batch_size": 4}), folder=tmp_path / "d", **kwargs)


@pytest.mark.full
def test_a_setting_that_is_refused_is_recorded_and_not_chosen():
    saving = [{"epsilon": 100.0, "share": 1.0, "saving_rate": 0.2, "transition": 5}]
    found = choose(
        base(method={"name": "time-adaptive"}, privacy={"groups": saving}),
        vary={**STILL, "train.lr": [0.5], "policy": ["config"], "train.rounds": [3, 6]},
        simulate=True,
        propose=False,
        seeds=1,
    )
    assert found.best["train.rounds"] == 6
    assert "transition must be a round from 1 to 3" in found.tried[-1].refused


@pytest.mark.full
def test_a_training_that_diverges_is_not_chosen():
    found = choose(
        base(privacy={**GENEROUS, "clip": 1e30}),
        vary={**STILL, "privacy.clip": [1.0, 1e30], "train.lr": [0.5]},
        simulate=True,
        propose=False,
        seeds=1,
    )
    assert found.best["privacy.clip"] == 1.0


@pytest.mark.full
def test_a_simulation_begins_with_theory_if_that_is_better():
    vary = {**STILL, "train.lr": [0.5], "privacy.clip": [0.01, 1.0]}
    found = choose(base(privacy={**GENEROUS, "clip": 0.01}), vary=vary, simulate=True, seeds=1)
    assert found.best["privacy.clip"] == 1.0
    assert found.tried[0].score > found.start.score


@pytest.mark.full
def test_methods_that_adapt_their_clip_are_simulated():
    config = base(method={"name": "adaptive-clip"}, privacy=GENEROUS)
    found = choose(config, vary=QUICK, simulate=True, seeds=1)
    assert found.best["train.lr"] == 0.5
    assert found.sections["method"]["name"] == "adaptive-clip"


def test_numbers_of_the_model_are_measured_on_public_rows():
    config = config_of(base(train={"rounds": 12, "local_steps": 10}))
    found = measured_assumption(config, 12)
    assert found.source == "measured"
    assert 0 < found.contraction <= 1
    assert 0 < found.approach < 1
    assert found.parameters == 10
    assert found.distance > 0
    assert found.slack > 0
    assert found.stride > 0


@pytest.mark.full(but=["uniform"])
@pytest.mark.parametrize("policy", ["uniform", "individual-rates:rates", "spend-as-you-go:0.3"])
def test_the_measured_bias_of_rounds_is_below_theorem_2(policy):
    config = config_of_candidate(
        config_of(base(privacy={"clip": 0.3})), Candidate.of({"policy": policy})
    )
    found = measured_bias(config)
    assert [one.round for one in found] == [1, 3, 6]
    for one in found:
        assert 0 < one.measured <= one.bound
        assert one.update > 0
        # saving at one rate for all counts everyone alike
        assert (one.by_rates > 1e-9) == policy.startswith("individual-rates")


def test_the_bias_is_what_the_rounds_release_on_average():
    """By drawing cohorts, for updates that are clipped one by one."""
    draw = np.random.default_rng(2)
    updates, clip = draw.normal(size=(5, 3)), draw.uniform(0.3, 2, 5)
    rate = draw.uniform(0.2, 1, 5)
    cut = np.array(
        [
            u if np.linalg.norm(u) <= c else u * c / np.linalg.norm(u)
            for u, c in zip(updates, clip, strict=True)
        ]
    )
    cohorts = draw.random((200_000, 5)) < rate
    released = (cohorts @ cut / rate.sum()).mean(axis=0)
    found = bias_of_round(1, updates, rate, clip)
    apart = np.linalg.norm(updates.mean(axis=0) - released)
    assert found.measured == pytest.approx(apart, rel=0.01)


# --- refusals and bad input -----------------------------------------------------------------------


@pytest.fixture
def private_rows(tmp_path):
    path = tmp_path / "rows.csv"
    lines = [f"{n % 4},{n / 10},{n % 2}" for n in range(40)]
    path.write_text("client,x,y\n" + "\n".join(lines) + "\n")
    data = {"name": "csv", "path": str(path), "label": "y", "client": "client"}
    data |= {"bounds": [0.0, 4.0], "classes": 2}
    return {**base(), "data": data, "privacy": {"epsilon": 5.0, "delta": 1e-3, "rate": 0.5}}


def test_private_rows_are_never_trained_on(private_rows):
    with pytest.raises(Refused, match="no budget covers that: data 'csv' counts as private"):
        choose(private_rows, simulate=True)
    with pytest.raises(InvalidInput, match="public data set that resembles yours"):
        choose(private_rows)


def test_an_own_data_set_counts_as_private_unless_it_says_otherwise():
    fedspend.register("data set", "choose-own", lambda _folder, _seed: None, help="own rows")
    with pytest.raises(Refused, match="'choose-own' counts as private"):
        choose(with_data("choose-own"), simulate=True)


def test_theory_with_given_numbers_takes_private_data(private_rows):
    found = choose(private_rows, vary=STILL, contraction=0.9, distance=2.0, parameters=4)
    assert set(found.plan.clients) == {"0", "1", "2", "3"}


def test_theory_on_private_data_asks_for_the_number_of_parameters(private_rows):
    with pytest.raises(InvalidInput, match="theory needs parameters"):
        choose(private_rows, contraction=0.9, distance=2.0)


def test_real_randomness_is_for_the_final_run():
    with pytest.raises(Refused, match="seeded simulation: remove randomness = 'os'"):
        choose(base(privacy={"randomness": "os"}), simulate=True)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"vary": {"train.rounds": []}}, "vary train.rounds has no values"),
        ({"vary": {"policy": "uniform"}}, "must be a list of numbers or words, got 'uniform'"),
        ({"vary": {"model.hidden": [[64, 32]]}}, "must be a list of numbers or words"),
        ({"vary": {"train.rounds": [0]}}, "must be a whole number of at least 1, got 0"),
        ({"vary": {"train.rounds": [float("nan")]}}, "must be a whole number"),
        ({"vary": {"privacy.rate": [1.5]}}, "vary privacy.rate: rate in .privacy. must be"),
        ({"vary": {"privacy.rate": [float("nan")]}}, "vary privacy.rate: rate in .privacy. must"),
        ({"vary": {"privacy.epsilon": [9]}}, "privacy.epsilon is not something to choose"),
        ({"vary": {"privacy.delta": [0.1]}}, "privacy.delta is not something to choose"),
        ({"vary": {"privacy.policy": ["uniform"]}}, "vary policy instead"),
        ({"vary": {"train.lr_schedule": ["linear"]}}, "vary schedule instead"),
        ({"vary": {"data.clients": [5]}}, "data.clients is not something to choose"),
        ({"vary": {"train.speed": [5]}}, "'train.speed': not a key of a config"),
        ({"vary": {"policy": ["best"]}}, "policy must be one of"),
        ({"vary": {"policy": ["uniform:2"]}}, "takes no option"),
        ({"vary": {"policy": ["geometric:x"]}}, "the ratio of policy geometric"),
        ({"vary": {"policy": ["spend-as-you-go:2"]}}, "must lie in .0, 1."),
        ({"vary": {"schedule": ["linear/up"]}}, "schedule must be constant"),
        ({"vary": {"train.local_steps": [1, 2]}, **GIVEN}, "theory cannot rank train.local_steps"),
        ({"contraction": 0.9}, "needs contraction .* and distance"),
        ({"distance": 1.0}, "needs contraction .* and distance"),
        ({**GIVEN, "distance": -1.0}, "distance must be positive, got -1.0"),
        ({**GIVEN, "distance": float("nan")}, "distance"),
        ({**GIVEN, "contraction": 1.5}, "contraction must lie in"),
        ({**GIVEN, "slack": 0.0}, "slack must be positive"),
        ({**GIVEN, "parameters": 0}, "parameters"),
        ({"score": "f1"}, "unknown score 'f1'"),
        ({"seeds": 0}, "seeds"),
        ({"most": 0}, "most"),
    ],
)
def test_bad_input_is_one_clear_line(kwargs, message):
    with pytest.raises(InvalidInput, match=message) as caught:
        choose(base(), **kwargs)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        ({"method": {"name": "fedavg"}}, "not private, so it has no plan"),
        ({"method": {"name": "adaptive-clip"}}, "others may be simulated"),
        ({"method": {"name": "nobody"}}, "method must be one of"),
        ({"train": {"lr_end": 0.2}}, "lr_end in .train. has no effect"),
        ({"ledger": {"spend": "remaining"}}, "not within what a ledger has left"),
    ],
)
def test_configs_that_cannot_be_compared_are_refused(sections, message):
    with pytest.raises(InvalidInput, match=message):
        choose(base(**sections), **GIVEN)


# --- the command ----------------------------------------------------------------------------------

QUICKLY = ["--vary", "policy=uniform,optimal", "--vary", "train.rounds=3,6"]
QUICKLY += ["--vary", "privacy.rate=0.5", "--vary", "schedule=constant"]
QUICKLY += ["--vary", "train.tail_average=1", "--vary", "privacy.clip=1"]


@pytest.fixture
def config(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    privacy = {"epsilon": 6.0, "delta": 1e-3, "rate": 0.5}
    write_toml(Path("run.toml"), changed(BASE, privacy=privacy, train__seed=None))
    return "run.toml"


@pytest.mark.full
def test_the_command_shows_writes_and_the_config_trains(config, capsys):
    assert main(["design", "choose", config, *QUICKLY, "--write", "best.toml"]) == 0
    said = capsys.readouterr().out
    assert "What each choice is worth" in said
    assert "lost to" in said
    assert main(["train", "best.toml", "-o", "run", "--quiet"]) == 0
    text = Path("best.toml").read_text()
    assert text.startswith("# Chosen by fedspend design choose, by theory")
    assert tomllib.loads(text)["data"]["clients"] == 12


@pytest.mark.full
def test_the_command_simulates_and_prints_json(config, capsys):
    args = ["design", "choose", config, "--simulate", "--vary", "train.lr=0.01,0.5", *QUICKLY]
    assert main([*args, "--seeds", "1", "--most", "4", "-o", "d", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "simulation"
    assert found["best"]["train.lr"] == 0.5
    assert found["written"] is None
    assert [one["round"] for one in found["bias"]]
    assert Path("d/trainings.jsonl").exists()
    assert main([*args, "--seeds", "1", "--most", "4", "-o", "d"]) == 0
    said = capsys.readouterr().out
    assert "held-out" in said
    assert "Theorem 2" in said


@pytest.mark.parametrize(
    ("args", "message"),
    [
        (["choose"], "needs a config"),
        (["choose", "run.toml", "--write", "best.json"], "must end in .toml"),
        (["choose", "run.toml", "--write", "run.toml"], "exists already"),
        (["choose", "run.toml", "--seeds", "2"], "--seeds is for trainings; add --simulate"),
        (["choose", "run.toml", "-o", "d"], "--output is for trainings; add --simulate"),
        (["choose", "run.toml", "--vary", "train.rounds"], "written AXIS=VALUE,VALUE"),
        (["choose", "run.toml", "--vary", "train.rounds=3,,4"], "no value after the equals"),
        (
            ["choose", "run.toml", "--vary", "policy=uniform", "--vary", "policy=optimal"],
            "listed twice",
        ),
        (["choose", "run.toml", "--k", "22"], "--k is only for theory"),
        (["choose", "run.toml", "--directions", "2"], "--directions is only for"),
        (["influence", "run.toml", "--vary", "policy=uniform"], "--vary is only for"),
        (["run.toml", "--simulate"], "--simulate is only for fedspend design choose"),
    ],
)
@pytest.mark.usefixtures("config")
def test_flags_that_do_not_fit_are_refused(capsys, args, message):
    before = Path("run.toml").read_bytes()
    assert main(["design", *args]) == 2
    assert message in capsys.readouterr().err.replace("\n", " ")
    assert not Path("best.json").exists()
    assert Path("run.toml").read_bytes() == before
