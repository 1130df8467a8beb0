"""The plan as a value, and as a file."""

import dataclasses
import gzip
import json
import math
import os

import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

import fedspend
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.errors import FedspendWarning, InvalidInput, Refused
from fedspend.planning.plan import Plan
from fedspend.records import Terms
from fedspend.records.planning import plan_records

TERMS = {"delta": 1e-5, "rounds": 12, "rate": 0.8}


@pytest.fixture(scope="module")
def plan():
    return fedspend.plan(
        [2.0] * 3 + [7.0] * 2,
        **TERMS,
        saving_rate=[0.2, 0.2, 0.2, 0.5, 0.5],
        transition=5,
        clip=0.3,
    )


def test_shapes(plan):
    for name in ("noise_multiplier", "sampling_rate", "clip_norm"):
        assert getattr(plan, name).shape == (12, 5)
    assert plan.spent().shape == (12, 5)
    assert plan.round_noise.shape == plan.round_rate.shape == (12,)
    assert plan.epsilon.shape == (5,)
    assert plan.clients == ("0", "1", "2", "3", "4")


@pytest.mark.full
def test_equal_clients_share_storage(plan):
    assert plan.schedules.count == 2
    crowd = fedspend.plan(np.tile([1.0, 4.0], 500_000), delta=1e-7, rounds=50, rate=0.1)
    assert crowd.schedules.count == 2
    assert crowd.schedules.noise_multiplier.nbytes == 2 * 50 * 8


def test_is_frozen(plan):
    with pytest.raises(dataclasses.FrozenInstanceError):
        plan.delta = 0.5
    with pytest.raises(ValueError, match="read-only"):
        plan.noise_multiplier[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        plan.schedules.noise_multiplier[0, 0] = 1
    with pytest.raises(ValueError, match="read-only"):
        plan.budget[0] = 100


@pytest.mark.parametrize("name", ["plan.json", "plan.json.gz"])
def test_saving_and_loading_is_lossless(plan, tmp_path, name):
    path = tmp_path / name
    plan.save(path)
    back = Plan.load(path)
    for table in ("noise_multiplier", "sampling_rate", "clip_norm", "epsilon", "budget"):
        np.testing.assert_array_equal(getattr(back, table), getattr(plan, table))
    assert back.hash == plan.hash
    assert (back.delta, back.clip, back.orders, back.parameters) == (
        plan.delta,
        plan.clip,
        plan.orders,
        plan.parameters,
    )
    back.save(tmp_path / "again.json")
    assert Plan.load(tmp_path / "again.json").hash == plan.hash


def test_file_is_json_that_a_stranger_can_hash(plan, tmp_path):
    import hashlib

    plan.save(tmp_path / "plan.json")
    content = json.loads((tmp_path / "plan.json").read_text())
    stored = content.pop("hash")
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    assert stored == "sha256:" + hashlib.sha256(text.encode()).hexdigest() == plan.hash


def test_replace_shares_again_and_changes_the_hash(plan):
    noise = plan.noise_multiplier.copy()
    noise[3, 0] *= 0.95
    for changed in (
        plan.replace(noise_multiplier=noise),
        dataclasses.replace(plan, noise_multiplier=noise),
    ):
        np.testing.assert_array_equal(changed.noise_multiplier, noise)
        assert changed.schedules.count == 3
        assert changed.hash != plan.hash
    assert plan.replace().hash == plan.hash


def tamper(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


@pytest.mark.parametrize(
    "change",
    [
        lambda c: c["schedules"][0].update(epsilon=1.0),
        lambda c: c["clients"]["budget"].__setitem__(0, 9.0),
        lambda c: c["schedules"][0]["noise_multiplier"][0].__setitem__(0, 0.5),
        lambda c: c["guarantee"].update(delta=0.1),
        lambda c: c["orders"].pop(),
        lambda c: c.update(hash="sha256:0"),
        lambda c: c.update(extra=1),
    ],
)
def test_an_altered_file_is_refused(plan, tmp_path, change):
    path = tmp_path / "plan.json"
    plan.save(path)
    tamper(path, change)
    with pytest.raises(Refused, match="hash"):
        Plan.load(path)


@pytest.mark.parametrize("change", [lambda c: c.pop("hash"), lambda c: c.update(hash=1e300)])
def test_a_file_without_a_hash_is_no_plan(plan, tmp_path, change):
    path = tmp_path / "plan.json"
    plan.save(path)
    tamper(path, change)
    with pytest.raises(InvalidInput, match="has no hash"):
        Plan.load(path)


def rehash(content):
    from fedspend.planning.plan_json import canonical, hash_of

    content.pop("hash")
    content["hash"] = hash_of(canonical(content))


@pytest.mark.parametrize(
    ("change", "names"),
    [
        (lambda c: c.update(version=2), "version 2"),
        (lambda c: c.update(format="other"), "not a plan"),
        (lambda c: c.pop("clip"), "no key 'clip'"),
        (lambda c: c.update(surprise=1), "unknown key 'surprise'"),
        (lambda c: c["schedules"][0].pop("order"), "no key 'order'"),
        (lambda c: c["clients"]["id"].__setitem__(0, "1"), "twice"),
        (lambda c: c["clients"]["id"].__setitem__(0, ""), "non-empty"),
        (lambda c: c["clients"]["id"].__setitem__(0, 7), "non-empty"),
        (lambda c: c["clients"]["budget"].pop(), "budgets"),
        (lambda c: c["clients"]["budget"].__setitem__(0, -1.0), "epsilon"),
        (lambda c: c["clients"]["budget"].__setitem__(0, "much"), "number"),
        (lambda c: c["clients"]["schedule"].__setitem__(0, 5), "schedules"),
        (lambda c: c["clients"]["schedule"].__setitem__(0, -1), "schedules"),
        (lambda c: c["clients"]["schedule"].__setitem__(0, 0.5), "whole number"),
        (lambda c: c["schedules"][0]["noise_multiplier"][0].__setitem__(0, 0), "noise_multiplier"),
        (lambda c: c["schedules"][0]["noise_multiplier"][0].__setitem__(1, 99), "12 rounds"),
        (lambda c: c["schedules"][0]["sampling_rate"][0].__setitem__(0, 1.5), "sampling_rate"),
        (lambda c: c["schedules"][0]["clip_norm"][0].__setitem__(0, True), "number"),
        (lambda c: c.update(schedules=[]), "malformed"),
        (lambda c: c.update(schedules=None), "malformed"),
        (lambda c: c.update(rounds="12"), "'12' rounds"),
        (lambda c: c["guarantee"].update(delta=1.0), "delta"),
        (lambda c: c["guarantee"].update(adjacency="none"), "adjacency"),
        (lambda c: c["guarantee"].update(accountant="Trust me"), "accountant"),
        (lambda c: c["parameters"].pop("policy"), "policy"),
        (lambda c: c["parameters"].update(clip_factors=[10**309] * 12), "clip_factors"),
        (lambda c: c.update(orders=[1.0]), "orders"),
        (lambda c: c.update(orders=[2.0, 2.0**28]), "orders must be at most 100000"),
    ],
)
def test_a_malformed_file_with_a_right_hash_is_refused(plan, tmp_path, change, names):
    path = tmp_path / "plan.json"
    plan.save(path)
    tamper(path, lambda c: (change(c), rehash(c)))
    with pytest.raises(InvalidInput, match=names) as raised:
        Plan.load(path)
    assert "\n" not in str(raised.value)
    assert str(path) in str(raised.value)


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"null",
        b"[1, 2]",
        b'{"format": "fedspend-plan", "version": NaN}',
        b"\xff\xfe\x00",
        b"\x1f\x8b broken",
        b"[" * 100000,
        gzip.compress(b'{"format": "fedspend-plan"}', mtime=0)[:-6],
        b'{"format": "fedspend-plan", "format": "fedspend-plan"}',
    ],
    ids=[
        "empty",
        "open",
        "null",
        "list",
        "nan",
        "binary",
        "no-gzip",
        "deep",
        "cut-off-gzip",
        "duplicate-key",
    ],
)
def test_what_is_no_plan_is_refused(tmp_path, body):
    path = tmp_path / "plan.json"
    path.write_bytes(body)
    with pytest.raises(InvalidInput) as raised:
        Plan.load(path)
    assert "\n" not in str(raised.value)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(InvalidInput, match="cannot read"):
        Plan.load(tmp_path / "none.json")
    with pytest.raises(InvalidInput, match="cannot read"):
        Plan.load(tmp_path)


def test_a_failed_save_leaves_the_old_file(plan, tmp_path, monkeypatch):
    path = tmp_path / "plan.json"
    path.write_text("old")

    def full_disk(_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space"):
        plan.save(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_budgets_are_private_on_disk(plan, tmp_path):
    plan.save(tmp_path / "plan.json")
    assert (tmp_path / "plan.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    ("epsilons", "terms", "names"),
    [
        ([], {}, "empty"),
        ([1.0, 0.0], {}, "client number 2"),
        ([1.0, math.nan], {}, "client number 2"),
        ([1.0, -3], {}, "client number 2"),
        (["lots"], {}, "epsilon"),
        ([[1.0, 2.0]], {}, "shape"),
        ([1.0], {"delta": 0}, "delta"),
        ([1.0], {"delta": 1}, "delta"),
        ([1.0], {"delta": math.nan}, "delta"),
        ([1.0], {"delta": math.inf}, "delta"),
        ([1.0], {"rate": 0}, "rate"),
        ([1.0], {"rate": 1.01}, "rate"),
        ([1.0], {"rate": math.nan}, "rate"),
        ([1.0], {"rounds": 0}, "rounds"),
        ([1.0], {"rounds": 1.5}, "rounds"),
        ([1.0], {"rounds": math.inf}, "rounds"),
        ([1.0], {"rounds": 10**9}, "fewer rounds"),
        ([1.0], {"rounds": 10**400}, "rounds"),
        ([1.0], {"clip": 0}, "clip"),
        ([1.0], {"clip": math.inf}, "clip"),
        ([1.0], {"clip": 1e-170}, "from 1e-30 to 1e\\+30, got 1e-170; choose one near"),
        ([1.0], {"clip": 1e31}, "from 1e-30 to 1e\\+30, got 1e\\+31"),
        ([1.0], {"clip_schedule": [1e-170] * 12}, "clip_schedule makes clips from 1e-170"),
        ([1.0], {"saving_rate": 0.9}, "saving_rate"),
        ([1.0], {"saving_rate": 0}, "saving_rate"),
        ([1.0], {"saving_rate": math.nan}, "saving_rate"),
        ([1.0], {"saving_rate": [0.5, 0.5]}, "one per client"),
        ([1.0], {"saving_rate": 0.5, "transition": 0}, "transition"),
        ([1.0], {"saving_rate": 0.5, "transition": 13}, "transition"),
        ([1.0], {"saving_rate": 0.5, "transition": 2.5}, "transition"),
        ([1.0], {"policy": "spend-as-you-go"}, "saving rate"),
        ([1.0], {"policy": "weights"}, "weights"),
        ([1.0], {"policy": "weights", "weights": [1.0]}, "one number per round"),
        ([1.0], {"policy": "weights", "weights": [0.0] * 12}, "positive"),
        ([1.0], {"policy": "uniform", "weights": [1.0] * 12}, "weights are for"),
        ([1.0], {"policy": "geometric", "weights": -1}, "ratio"),
        ([1.0], {"accountant": "moments"}, "accountant"),
        ([1e-4], {}, "cannot be met by any noise"),
        ([1.0, 2.0], {"clients": ["a"]}, "one budget per client"),
        ([1.0, 2.0], {"clients": ["a", "a"]}, "twice"),
        ([1.0, 2.0], {"clients": ["a", " "]}, "non-empty"),
    ],
)
def test_bad_input_is_named(epsilons, terms, names):
    with pytest.raises(InvalidInput, match=names) as raised:
        fedspend.plan(epsilons, **{**TERMS, **terms})
    assert "\n" not in str(raised.value)


def test_large_delta_is_a_warning():
    with pytest.warns(FedspendWarning, match="1/clients"):
        fedspend.plan([1.0] * 20, delta=0.05, rounds=3, rate=0.5)


def test_one_value_for_all_clients():
    plan = fedspend.plan(3.0, **TERMS, clients=["north", "south"])
    assert plan.clients == ("north", "south")
    assert plan.budget.tolist() == [3.0, 3.0]


def test_pld_plan_needs_less_noise_and_keeps_the_shape():
    by_rdp = fedspend.plan([8.0], **TERMS, saving_rate=0.4, transition=4, accountant="rdp")
    by_pld = fedspend.plan([8.0], **TERMS, saving_rate=0.4, transition=4, accountant="pld")
    ratio = by_pld.noise_multiplier / by_rdp.noise_multiplier
    assert np.ptp(ratio) < 1e-12
    assert 0.9 < ratio[0, 0] < 0.98
    assert 0.9999 * 8 < by_pld.epsilon[0] <= 8
    np.testing.assert_allclose(by_pld.spent()[-1], by_pld.epsilon, rtol=1e-4)


# --- which accountant ---


def test_few_schedules_are_planned_by_privacy_loss_distributions():
    plan = fedspend.plan([2.0, 2.0, 8.0], **TERMS)
    assert plan.accountant == "pld"
    assert plan.parameters["accountant"] == "auto: at most 20 distinct schedules"
    by_rdp = fedspend.plan([2.0, 2.0, 8.0], **TERMS, accountant="rdp")
    assert "accountant" not in by_rdp.parameters
    assert np.all(plan.noise_multiplier < by_rdp.noise_multiplier)
    assert np.all(plan.epsilon <= plan.budget)
    assert np.all(plan.epsilon > 0.9999 * plan.budget)
    assert np.all(plan.schedules.order == 0)


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize(
    ("epsilons", "terms", "reason"),
    [
        (np.linspace(2, 4, 21), {}, "more than 20 distinct schedules"),
        (
            [3.0],
            {"rounds": 101, "weights": list(np.linspace(1, 2, 101))},
            "more than 100 different rounds",
        ),
        ([501.0], {}, "a budget above 500"),
        ([3.0], {"delta": 9e-11}, "a delta below 1e-10"),
    ],
)
def test_elsewhere_the_plan_says_why_it_stays_with_renyi_curves(epsilons, terms, reason):
    plan = fedspend.plan(epsilons, **{**TERMS, **terms})
    assert plan.accountant == "rdp"
    assert plan.parameters["accountant"] == f"auto: {reason}"
    by_rdp = fedspend.plan(epsilons, **{**TERMS, **terms}, accountant="rdp")
    np.testing.assert_array_equal(plan.noise_multiplier, by_rdp.noise_multiplier)


def test_past_spending_is_planned_on_by_renyi_curves():
    past = Mechanisms.of_schedules(np.full((3, 1), 9.0), np.full((3, 1), 0.5))
    plan = fedspend.plan([4.0], **TERMS, past=past)
    assert plan.accountant == "rdp"
    assert "Rényi" in plan.parameters["accountant"]
    with pytest.raises(InvalidInput, match="needs accountant 'rdp' or 'auto', got 'pld'"):
        fedspend.plan([4.0], **TERMS, past=past, accountant="pld")


@pytest.mark.full
def test_budgets_beyond_what_can_be_checked_are_refused_by_pld():
    with pytest.raises(
        InvalidInput, match="takes budgets up to 500, got 501; use accountant 'rdp'"
    ):
        fedspend.plan([501.0], **TERMS, accountant="pld")


@pytest.mark.full
@pytest.mark.parametrize("noise", ["continuous", "discrete"])
def test_claims_by_pld_are_within_their_budgets_as_dp_accounting_reads_them(noise):
    plan = fedspend.plan([2.0, 8.0], **TERMS, policy="geometric", weights=1.2, noise=noise)
    assert plan.accountant == "pld"
    share = 1.0 if plan.grid_steps is None else math.sqrt(1 - (3 / plan.grid_steps) ** 2)
    for n in range(2):
        total = None
        for s, q in zip(plan.noise_multiplier[:, n] * share, plan.sampling_rate[:, n], strict=True):
            one = privacy_loss_distribution.from_gaussian_mechanism(
                float(s), sampling_prob=float(q), value_discretization_interval=1e-3
            )
            total = one if total is None else total.compose(one)
        found = total.get_epsilon_for_delta(plan.delta)
        assert plan.budget[n] * (1 - 1e-3) < found <= plan.budget[n]
    assert fedspend.verify(plan).ok


@pytest.mark.full(but=["1e-12"])
@pytest.mark.parametrize("delta", [1e-7, 1e-9, 1e-10, 9e-11, 1e-12])
def test_a_plan_at_a_small_delta_passes_and_spends_its_budget(delta):
    made = fedspend.plan([2.0], delta=delta, rounds=30, rate=0.9)
    found = fedspend.verify(made)
    assert found.ok, found.failures
    by_pld = made.accountant == "pld"
    assert by_pld == (delta >= 1e-10)
    assert 2.0 * (1 - (1e-4 if by_pld else 0.1)) < found.epsilon[0] <= 2.0


def test_a_delta_at_which_nobody_can_verify_is_refused():
    refusal = "delta must be at least 1e-12, got 1e-15"
    with pytest.raises(InvalidInput, match=refusal):
        fedspend.plan([2.0], delta=1e-15, rounds=10, rate=0.5)
    terms = Terms.checked(
        delta=1e-15, rounds=4, local_steps=1, client_rate=1.0, noise_multiplier=5.0
    )
    with pytest.raises(InvalidInput, match=refusal):
        plan_records([2.0], [0], terms, clients=["a"])


@pytest.mark.parametrize(("budget", "rate"), [(0.691, 0.5), (0.203, 0.8), (3.117, 0.31)])
def test_one_round_of_the_literal_algorithm_is_that_of_uniform_and_not_refused(budget, rate):
    terms = {"delta": 1e-5, "rounds": 1, "rate": rate, "accountant": "rdp"}
    found = fedspend.plan([budget], policy="spend-as-you-go-literal", saving_rate=0.25, **terms)
    uniform = fedspend.plan([budget], policy="uniform", **terms)
    assert found.epsilon[0] <= budget
    assert found.noise_multiplier == pytest.approx(uniform.noise_multiplier, rel=1e-5)
