"""A clip for each round: planned, verified, executed, and free of charge."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from lib.configs import small

import fedspend
from fedspend.cli.main import main
from fedspend.configuration.config import config_of
from fedspend.errors import InvalidInput, Refused
from fedspend.noise.grid import check_on_grid
from fedspend.planning.clipping import round_clips, stretched
from fedspend.planning.plan import Plan
from fedspend.planning.replanning import extended
from fedspend.runs.setup import from_config
from fedspend.server.methods.adaptive_clip import AdaptiveClip
from fedspend.server.methods.guarded import held_to
from fedspend.server.methods.planned import Planned
from fedspend.server.rounds import begin, prepared

BUDGETS = [2.0] * 3 + [8.0] * 5
TERMS = {"delta": 1e-3, "rounds": 6, "rate": 0.8, "clip": 0.5, "accountant": "rdp"}
FALLING = [1.0, 0.8, 0.6, 0.4, 0.3, 0.2]

CONFIG = small(
    "plain",
    data__examples=80,
    data__clients=8,
    method__name="dp-fedavg",
    privacy={"epsilon": 8.0, "delta": 1e-3, "rate": 0.8, "clip": 0.5},
    train={
        "rounds": 5,
        "local_steps": 2,
        "batch_size": 4,
        "lr": 0.4,
        "lr_schedule": "linear",
        "lr_end": 0.2,
    },
    engine__name="reference",
)


def changed(**sections):
    merged = {name: dict(table) for name, table in CONFIG.items()}
    for name, table in sections.items():
        merged.setdefault(name, {}).update(table)
    return merged


def setup_of(**sections):
    return from_config(config_of(changed(**sections)))


def plan(**changes) -> Plan:
    """Uniform, so that only clips differ, unless told otherwise."""
    implied = changes.keys() & {"policy", "method", "weights"}
    return fedspend.plan(BUDGETS, **(TERMS | ({} if implied else {"policy": "uniform"}) | changes))


# --- the plan ---


def test_clips_change_and_nothing_that_is_accounted_does():
    constant, by_round = plan(), plan(clip_schedule=FALLING)
    for name in ("noise_multiplier", "sampling_rate", "epsilon"):
        assert np.array_equal(getattr(constant, name), getattr(by_round, name)), name
    ratio = by_round.clip_norm / constant.clip_norm
    assert np.allclose(ratio, np.array(FALLING)[:, None], rtol=1e-12)
    assert np.allclose(by_round.round_deviation / constant.round_deviation, FALLING, rtol=1e-12)
    assert np.allclose(np.array(by_round.noise_of_average) / constant.noise_of_average, FALLING)
    assert by_round.verify().ok


def test_a_constant_clip_is_the_plan_of_before_to_the_last_bit():
    stated, by_default = plan(clip_schedule="constant"), plan()
    assert stated.hash == by_default.hash == plan(clip_schedule=[1] * 6).hash
    assert "clip_factors" not in stated.parameters


def test_it_follows_learning_rates_where_they_are_given():
    made = plan(learning_rates=[0.3, 0.3, 0.2, 0.2, 0.1, 0.1])
    assert np.allclose(made.clip_factors, [1, 1, 2 / 3, 2 / 3, 1 / 3, 1 / 3])
    stated = plan(learning_rates=[0.3, 0.3, 0.2, 0.2, 0.1, 0.1], clip_schedule="lr")
    assert made.hash == stated.hash
    assert plan(learning_rates=FALLING, clip_schedule="constant").hash == plan().hash


def test_a_factor_need_not_begin_at_one():
    assert plan(clip_schedule=[3, 2, 1, 1, 1, 1]).verify().ok


def test_rounds_without_a_clip_are_not_planned():
    made = plan(learning_rates=[1, 0.8, 0.6, 0.4, 0.2, 0])
    assert (made.rounds, made.dropped_rounds) == (5, 1)
    assert made.verify().ok
    shorter = plan(rounds=5, clip_schedule=[1, 0.8, 0.6, 0.4, 0.2])
    assert np.array_equal(made.noise_multiplier, shorter.noise_multiplier), "all is spent in five"
    kept = plan(learning_rates=[1, 0.8, 0.6, 0.4, 0.2, 0], clip_schedule="constant")
    assert (kept.rounds, kept.dropped_rounds) == (6, 0)
    weighted = plan(weights=[1, 2, 3, 4, 5, 6], learning_rates=[1, 0.8, 0.6, 0.4, 0.2, 0])
    assert weighted.parameters["weights"] == [1, 2, 3, 4, 5]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ("linear", "must be 'lr', 'constant', or a list"),
        ("lr", "needs the learning rates"),
        ([1, 2], "got 2 for 6 rounds"),
        ([1, 1, 1, 1, 1, 0], "must be positive in every round, got 0.0"),
        ([1, 1, 1, 1, 1, float("nan")], "must be finite numbers"),
        ([1, 1, 1, 1, 1, "x"], "must be numbers"),
        ([1, 1, 1, 1, 1, 1e-9], "within a factor of 1e"),
    ],
)
def test_a_clip_schedule_that_makes_no_sense_is_refused_in_one_line(asked, message):
    with pytest.raises(InvalidInput, match="clip") as caught:
        plan(clip_schedule=asked)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_learning_rate_that_comes_back_from_zero_has_no_clip_that_follows():
    with pytest.raises(InvalidInput, match="round 3 is 0"):
        plan(learning_rates=[1, 1, 0, 1, 1, 1])
    with pytest.raises(InvalidInput, match="learning_rates"):
        plan(learning_rates=[0, 1, 1, 1, 1, 1])


def test_votes_have_a_constant_clip():
    assert plan(method="ae-dpfl", learning_rates=FALLING).hash == plan(method="ae-dpfl").hash
    with pytest.raises(InvalidInput, match="'constant' under method 'ae-dpfl'"):
        plan(method="ae-dpfl", clip_schedule=FALLING)


@pytest.mark.parametrize("method", ["adaptive-clip", "dp-fedsgd"])
def test_some_methods_have_to_be_asked(method):
    epsilon = 5.0 if method == "dp-fedsgd" else BUDGETS
    clients = [str(n) for n in range(8)]
    terms = TERMS | {"method": method, "clients": clients, "learning_rates": FALLING}
    assert "clip_factors" not in fedspend.plan(epsilon, **terms).parameters
    asked = fedspend.plan(epsilon, **terms, clip_schedule="lr")
    assert asked.clip_factors.tolist() == FALLING


# --- files, forgeries ---


def test_it_survives_the_file(tmp_path):
    made = plan(clip_schedule=FALLING)
    made.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert again.hash == made.hash
    assert again.clip_factors.tolist() == FALLING


@pytest.mark.parametrize(
    "forged",
    [
        [1.0, 0.8, 0.6, 0.4, 0.3, 0.1],  # less noise than the clips need
        [1.0] * 6,
        None,
    ],
)
def test_verify_finds_clips_that_are_not_those_of_the_schedule(forged):
    made = plan(clip_schedule=FALLING)
    parameters = dict(made.parameters)
    parameters.pop("clip_factors")
    if forged is not None:
        parameters["clip_factors"] = forged
    verdict = made.replace(parameters=parameters).verify()
    assert not verdict.ok
    assert any("clip_norm" in failure for failure in verdict.failures)


@pytest.mark.parametrize("broken", [[1.0] * 5, [1.0] * 5 + [0.0], "lr", [True] * 6, [1.0, "x"]])
def test_a_plan_with_broken_factors_is_not_built(broken):
    made = plan(clip_schedule=FALLING)
    with pytest.raises(InvalidInput, match="clip_factors"):
        made.replace(parameters=made.parameters | {"clip_factors": broken})


# --- rounds ---


def terms_of(made: Plan, round: int):
    return held_to(made, Planned(made, "idp-fedavg")).terms(round, {})


def test_noise_of_a_round_belongs_to_its_clip():
    made = plan(clip_schedule=FALLING)
    for t in range(6):
        terms = terms_of(made, t)
        assert np.allclose(terms.clip_norm, made.clip_norm[t])
        assert np.allclose(terms.deviation / terms.clip_norm, made.noise_multiplier[t], rtol=1e-12)


def test_the_guard_refuses_the_clip_of_another_round():
    made = plan(clip_schedule=FALLING)
    stale = Planned(made, "stale")

    class Stale:
        name = "stale"

        def start(self):
            return {}

        def terms(self, round, state):
            return replace(stale.terms(round, state), clip_norm=made.clip_norm[0])

        def learn(self, state, _release):
            return state

    method = held_to(made, Stale())
    method.terms(0, {})
    with pytest.raises(Refused, match="cost more than was planned"):
        method.terms(1, {})


def test_factors_multiply_an_adapted_clip():
    made = plan(clip_schedule=FALLING, method="adaptive-clip")
    still = plan(method="adaptive-clip")
    for state in ({"clip": 0.5}, {"clip": 0.07}):
        for t in (0, 3, 5):
            ours = held_to(made, AdaptiveClip(made, 8.0)).terms(t, state)
            theirs = AdaptiveClip(still, 8.0).terms(t, state)
            assert np.allclose(ours.clip_norm, theirs.clip_norm * FALLING[t])
            assert ours.deviation == pytest.approx(theirs.deviation * FALLING[t])
            assert ours.bit_deviation == theirs.bit_deviation


@pytest.mark.parametrize("distributed", [False, True])
def test_discrete_noise_is_checked_in_every_round(distributed):
    """The clip falls between powers of two, so the grid does too: each has its own check."""
    noise = "discrete-distributed" if distributed else "discrete"
    made = plan(clip_schedule=[1, 0.9, 0.7, 0.5, 0.3, 0.11], noise=noise)
    check_on_grid(made, 50, 32, distributed)
    # a plan with a coarse last round only: noise there is far below what its steps allow
    table = made.schedules
    clip_norm = table.clip_norm.copy()
    clip_norm[-1] *= 1e7
    broken = made.replace(schedules=replace(table, clip_norm=clip_norm))
    with pytest.raises(Refused, match="bits are too few"):
        check_on_grid(broken, 50, 32, distributed)


def test_blur_and_bound_use_the_clip_of_the_round():
    """The task is what a client knows: its clip is both the radius of BLUR and its bound."""
    setup = setup_of(shape={"blur": 0.5})
    state = begin(np.zeros(10, dtype=np.float32), setup.method)
    seen = []
    for t in range(5):
        terms, shared = prepared(replace(state, done=t), setup.method, setup.training)
        seen.append((float(terms.clip_norm[0]), shared.lr))
    clips, rates = np.array(seen).T
    assert np.allclose(clips / clips[0], rates / rates[0])
    assert clips[0] == pytest.approx(0.5)


def test_a_run_on_a_config_follows_by_default_and_drops_rounds_at_zero():
    setup = setup_of(train={"lr_end": 0.0})
    assert setup.plan.rounds == setup.training.server.rounds == 4
    assert setup.plan.dropped_rounds == 1
    rates = np.array([setup.training.client_lr(t) for t in range(4)])
    assert np.allclose(rates, [0.4, 0.3, 0.2, 0.1])
    assert np.allclose(setup.plan.clip_factors, rates / 0.4)
    assert fedspend.train(changed(train={"lr_end": 0.0})).metrics[-1]["round"] == 4
    constant = setup_of(train={"lr_end": 0.0}, privacy={"clip_schedule": "constant"})
    assert constant.plan.rounds == 5
    assert setup_of(
        train={"lr_schedule": "constant", "lr_end": 0.1}
    ).plan.clip_factors.tolist() == ([1.0] * 5)


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("noise", ["central", "distributed", "discrete", "discrete-distributed"])
def test_every_kind_of_noise_runs_with_it(noise):
    done = fedspend.train(changed(privacy={"noise": noise, "clip_schedule": [1, 0.9, 0.5, 0.3, 2]}))
    clips = [line["clip"] for line in done.metrics]
    assert np.allclose(np.array(clips) / clips[0], [1, 0.9, 0.5, 0.3, 2])


def test_a_plan_of_before_is_trained_with_its_constant_clip():
    """The config's default gives way to the plan; what the config states does not."""
    config = changed()
    ids = [str(n) for n in range(8)]
    old = fedspend.plan(
        8.0, clients=ids, delta=1e-3, rounds=5, rate=0.8, clip=0.5, method="dp-fedavg"
    )
    done = fedspend.train(config, plan=old)
    assert [line["clip"] for line in done.metrics] == pytest.approx([0.5] * 5, rel=1e-12)
    for stated in ("lr", [1, 1, 1, 1, 0.5]):
        with pytest.raises(InvalidInput, match="other clips by round"):
            fedspend.train(changed(privacy={"clip_schedule": stated}), plan=old)
    fedspend.train(changed(privacy={"clip_schedule": "constant"}), plan=old)


def test_a_plan_with_dropped_rounds_needs_the_learning_rate_it_was_made_for():
    made = setup_of(train={"lr_end": 0.0}).plan
    fedspend.train(changed(train={"lr_end": 0.0}), plan=made)
    with pytest.raises(InvalidInput, match="leaves out 1 of 5 rounds"):
        fedspend.train(changed(train={"lr_end": 0.3}), plan=made)
    with pytest.raises(InvalidInput, match="has 4 rounds"):
        fedspend.train(changed(train={"lr_end": 0.0, "rounds": 4}), plan=made)


def test_resuming_keeps_the_clips(tmp_path):
    from fedspend.stored.run import StoredRun

    folder = tmp_path / "run"
    whole = fedspend.train(changed(), output=folder)
    stored = StoredRun(folder).plan()
    assert stored.clip_factors[-1] == pytest.approx(0.2)
    again = fedspend.train(changed(), output=folder, resume=True)
    assert again.metrics == whole.metrics


# --- replanning ---


def test_more_rounds_have_the_same_course_of_clips():
    from fedspend.accounting.mechanisms import Mechanisms

    made = plan(clip_schedule=FALLING)
    longer = extended(made, 2, 3, Mechanisms.none(8), np.array(BUDGETS))
    assert longer.rounds == 9
    assert longer.clip_factors[:2].tolist() == FALLING[:2]
    assert np.all(np.diff(longer.clip_factors) < 0)
    assert longer.clip_factors[-1] == pytest.approx(0.2)
    assert longer.verify().ok
    assert np.allclose(stretched(np.array([1.0, 0.5]), 1, 0, 1), [1, 2 / 3, 1 / 3])


def test_the_rounds_that_are_dropped_are_at_the_end():
    clips = round_clips("lr", 5, np.array([4.0, 3.0, 2.0, 0.0, 0.0]), "dp-fedavg")
    assert (clips.factors.tolist(), clips.dropped) == ([1.0, 0.75, 0.5], 2)


# --- the command line ---


def test_the_command_line_plans_and_tells(capsys):
    flags = ["--epsilon", "4:3,8:2", "--delta", "1e-3", "--rounds", "4", "--rate", "0.5"]
    assert main(["plan", *flags, "--clip-schedule", "1,0.5,0.5,0.25", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["clip_factors"] == [1, 0.5, 0.5, 0.25]
    annealed = ["--set", "train.lr_schedule=linear", "--set", "train.lr_end=0"]
    assert main(["plan", *flags, *annealed]) == 0
    out = " ".join(capsys.readouterr().out.split())
    assert "3 rounds" in out
    assert "1 round at the end left out" in out
    assert main(["plan", *flags, "--clip-schedule", "1,x"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert main(["plan", *flags, "--clip-schedule", "1,0.5"]) == 2
    assert "got 2 for 4 rounds" in capsys.readouterr().err
