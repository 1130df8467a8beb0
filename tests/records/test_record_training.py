"""Record-level training: sampling and noise as planned, limits, broken mechanisms, the account,
kill and resume.
"""

import copy
import dataclasses
import json
from functools import partial

import numpy as np
import pytest
import torch
from boundary import record_engine, record_task
from lib.configs import small
from lib.runs import killed, stopped
from torch import nn

import fedspend
from fedspend.client import gradient_chains as chains
from fedspend.client import gradients, record_steps
from fedspend.client.blocks import InBlocks
from fedspend.client.bounding import clip_factors
from fedspend.client.gradient_chains import ChainSum
from fedspend.client.gradients import DenseSum, GeneralSum, clipped_sum
from fedspend.client.record_steps import draw_records
from fedspend.client.task import LocalTraining
from fedspend.configuration.config import load_config
from fedspend.configuration.model_inputs import check_fits
from fedspend.data.dataset import Rows
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.noise.randomness import Randomness
from fedspend.planning.plan_json import built, canonical, hash_of
from fedspend.records import Terms
from fedspend.records.plan_file import RECORD_PLAN, to_content
from fedspend.records.planning import RecordPlan, plan_records
from fedspend.records.policies import Wanted
from fedspend.records.verification import verify_records
from fedspend.tasks.task import CLASSIFY

TERMS = Terms(delta=1e-3, rounds=3, local_steps=4, client_rate=0.8, noise_multiplier=6.0)
CONFIG = small(
    "record",
    data__examples=200,
    data__clients=4,
    privacy__rate=0.8,
    privacy__noise_multiplier=8.0,
    privacy__clip=0.7,
)


@pytest.fixture
def config():
    return copy.deepcopy(CONFIG)


def a_plan(budget=None, terms=TERMS, clients=2, **wanted):
    budget = np.array([0.1, 0.5, 1.0, 2.0, 5.0, 0.3] if budget is None else budget)
    owner = np.arange(budget.size) % clients
    return plan_records(
        budget, owner, terms, clients=[f"c{n}" for n in range(clients)], wanted=Wanted(**wanted)
    )


def data(rows=12, columns=4, classes=3):
    generator = torch.Generator().manual_seed(0)
    return torch.randn(rows, columns, generator=generator), torch.randint(
        0, classes, (rows,), generator=generator
    )


# --- gradients ---


def mlp():
    torch.manual_seed(1)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(4, 6),
        nn.ReLU(),
        nn.Linear(6, 5, bias=False),
        nn.ReLU(),
        nn.Linear(5, 3),
    )


def by_hand(module, rows, labels, clip):
    """One record at a time, with autograd."""
    total = np.zeros(sum(p.numel() for p in module.parameters()))
    for row, label in zip(rows, labels, strict=True):
        module.zero_grad()
        nn.functional.cross_entropy(module(row[None]), label[None]).backward()
        gradient = torch.cat([p.grad.reshape(-1) for p in module.parameters()]).double().numpy()
        total += gradient * min(1.0, clip / np.linalg.norm(gradient))
    return total


@pytest.mark.full(only=["0.3"])
@pytest.mark.parametrize("clip", [0.3, 1e9])
def test_clipped_sums_are_those_of_a_plain_loop(clip):
    module, (rows, labels) = mlp(), data()
    flat = nn.utils.parameters_to_vector(module.parameters()).detach()
    wanted = by_hand(module, rows, labels, clip)
    dense, general = (
        clipped_sum(module, clip),
        GeneralSum(module, partial(clip_factors, bound=clip)),
    )
    assert isinstance(dense, DenseSum)
    assert dense(flat, rows, labels) == pytest.approx(wanted, abs=1e-5)
    assert general(flat, rows, labels) == pytest.approx(wanted, abs=1e-5)
    assert isinstance(clipped_sum(nn.Sequential(nn.Linear(4, 3), nn.Tanh()), clip), GeneralSum)
    for one in (dense, general):
        assert (one(flat, rows[:0], labels[:0]) == 0).all(), "an empty batch is a normal one"


def image_chain(channels=2):
    """Strides, padding, dilation, no bias, pools and a smooth layer: everything that a chain may
    have.
    """
    torch.manual_seed(2)
    return nn.Sequential(
        nn.Conv2d(channels, 3, 3, padding=(1, 0), stride=(1, 2)),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(3, 4, 2, dilation=2, bias=False),
        nn.Tanh(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16, 5),
        nn.ReLU(),
        nn.Linear(5, 3, bias=False),
    )


@pytest.mark.full(but=["32-1000000000.0"])
@pytest.mark.parametrize("clip", [0.05, 1e9])
@pytest.mark.parametrize("rows_at_once", [1, 32, 1000])
def test_clipped_sums_of_convolutions_are_those_of_a_plain_loop(clip, rows_at_once, monkeypatch):
    module, rows = (
        image_chain(),
        torch.randn(35, 2, 9, 16, generator=torch.Generator().manual_seed(3)),
    )
    labels = torch.arange(35) % 3
    flat = nn.utils.parameters_to_vector(module.parameters()).detach()
    chain = clipped_sum(module, clip)
    assert isinstance(chain, ChainSum)
    monkeypatch.setattr(chains, "_BLOCK_NUMBERS", rows_at_once * chain._numbers(rows[:1]))
    assert chain._planned(rows[0]) == min(rows_at_once, 32)
    assert chain.block(rows[0]) in (1, min(rows_at_once, 32))
    before = flat.clone()
    assert chain(flat, rows, labels) == pytest.approx(by_hand(module, rows, labels, clip), abs=1e-5)
    assert chain(flat, rows, labels) == pytest.approx(
        GeneralSum(module, partial(clip_factors, bound=clip))(flat, rows, labels), abs=1e-5
    )
    assert (chain(flat, rows[:0], labels[:0]) == 0).all(), "an empty batch is a normal one"
    assert torch.equal(flat, before), "parameters are read only"


@pytest.mark.parametrize(
    "module",
    [
        nn.Sequential(nn.Conv2d(2, 4, 3, groups=2), nn.Flatten(), nn.Linear(16, 2)),
        nn.Sequential(nn.Conv2d(2, 4, 3, padding="same"), nn.Flatten(), nn.Linear(16, 2)),
        nn.Sequential(
            nn.Conv2d(2, 4, 3, padding=1, padding_mode="circular"), nn.Flatten(), nn.Linear(16, 2)
        ),
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True), nn.Flatten(), nn.Linear(16, 2)),
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.Dropout(), nn.Flatten(), nn.Linear(16, 2)),
        nn.Sequential(nn.Conv2d(2, 4, 3), nn.Linear(2, 2), nn.Flatten()),
        nn.Sequential(nn.Linear(4, 2), nn.Tanh()),
        nn.Sequential(nn.Flatten(2), nn.Linear(4, 2)),
        nn.Sequential(),
    ],
)
def test_other_modules_are_left_to_the_general_way(module):
    assert not chains.supports(module)


def test_a_frozen_or_repeated_layer_is_left_to_the_general_way():
    frozen = image_chain()
    frozen[0].weight.requires_grad_(False)
    assert not chains.supports(frozen)
    twice = nn.Linear(3, 3)
    assert not chains.supports(nn.Sequential(nn.Flatten(), twice, nn.Tanh(), twice))


@pytest.mark.parametrize("value", [1e3, 1e18, 1e30, float("inf"), float("nan")])
def test_no_record_moves_the_sum_of_convolutions_by_more_than_the_clip(value):
    module = image_chain()
    flat = nn.utils.parameters_to_vector(module.parameters()).detach()
    rows, labels = (
        torch.randn(4, 2, 9, 16, generator=torch.Generator().manual_seed(3)),
        torch.tensor([0, 1, 2, 0]),
    )
    summed = clipped_sum(module, 0.05)
    worse, more = (
        torch.cat([rows, torch.full((1, 2, 9, 16), value)]),
        torch.cat([labels, torch.tensor([1])]),
    )
    moved = summed(flat, worse, more) - summed(flat, rows, labels)
    assert np.isfinite(moved).all()
    assert np.linalg.norm(moved) <= 0.05


@pytest.mark.full(but=["DenseSum"])
@pytest.mark.parametrize("kind", [DenseSum, GeneralSum])
def test_no_record_moves_the_sum_by_more_than_the_clip(kind):
    """Also for a record with huge, infinite or missing values."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    flat = nn.utils.parameters_to_vector(module.parameters()).detach()
    summed = (
        clipped_sum(module, 0.5)
        if kind is DenseSum
        else GeneralSum(module, partial(clip_factors, bound=0.5))
    )
    rows, labels = data()
    base = summed(flat, rows, labels)
    for value in (1e3, 1e30, float("inf"), float("nan")):
        worse, more = (
            torch.cat([rows, torch.full((1, 4), value)]),
            torch.cat([labels, torch.tensor([1])]),
        )
        moved = summed(flat, worse, more) - base
        assert np.isfinite(moved).all()
        assert np.linalg.norm(moved) <= 0.5


# --- sampling and noise, measured ---


def test_records_are_sampled_at_their_own_rates():
    rate = np.array([0.0, 0.01, 0.2, 0.7, 1.0])
    counts = np.zeros(5)
    for step in range(4000):
        counts[draw_records(rate, Randomness(3), step, 1)] += 1
    assert counts[0] == 0
    assert counts[-1] == 4000
    assert np.abs(counts / 4000 - rate).max() < 4 * np.sqrt(0.25 / 4000)


def updates(plan, randomness=None, lr=1.0, rounds=(0,), clip=None, momentum=0.0):
    """Updates of client 0 from zero parameters, (rounds, parameters)."""
    rows, labels = data(len(plan.records))
    plan = (
        plan
        if clip is None
        else plan_records(plan.budget, plan.owner, plan.terms, clients=plan.clients, clip=clip)
    )
    engine = record_engine(plan, nn.Linear(4, 3), rows, labels, randomness)
    training, out = LocalTraining(1, steps=1, momentum=momentum), []
    for t in rounds:
        (reply,) = engine.run([record_task(plan, 15, t, lr=lr, training=training)])
        out.append(reply.contribution.vector)
    return np.array(out)


def noise_ratio(plan, **options):
    """Measured deviation of an update over the planned one: tiny gradients, so that noise is all
    there is.
    """
    terms = plan.terms
    found = updates(plan, lr=1.0, rounds=range(terms.rounds), **options)
    planned = (
        terms.noise_multiplier
        * plan.clip
        * np.sqrt(terms.local_steps)
        / plan.expected_batch(0)[0, 0]
    )
    return float(found.std() / planned)


def loud():
    return a_plan([1.0] * 4, Terms(1e-3, 400, 2, 0.8, 2000.0))


@pytest.mark.full
def test_noise_has_the_planned_deviation():
    assert noise_ratio(loud()) == pytest.approx(1.0, abs=0.03)


@pytest.mark.full
def test_real_randomness_has_the_planned_deviation_and_does_not_repeat():
    plan = loud()
    # 6,000 numbers have a standard error of 1 / sqrt(12,000): 5.5 of them, chance 5e-8
    assert noise_ratio(plan, randomness=Randomness(0, "os")) == pytest.approx(1.0, abs=0.05)
    first, second = (updates(plan, randomness=Randomness(0, "os")) for _ in range(2))
    assert (first != second).any()
    assert (updates(plan) == updates(plan)).all(), "a seeded simulation repeats"


# --- limits and mutants ---


def certain(monkeypatch):
    """Every record in every step and no noise."""
    real = record_steps.release_step
    monkeypatch.setattr(
        record_steps, "release_step", lambda total, _, *rest: real(total, 0.0, *rest)
    )
    monkeypatch.setattr(record_steps, "draw_records", lambda rate, *_: np.arange(rate.size))


@pytest.mark.full(only=["0.0"])
@pytest.mark.parametrize("momentum", [0.0, 0.7])
def test_no_noise_everyone_and_no_clip_is_plain_gradient_descent(momentum, monkeypatch):
    plan = plan_records([1e6] * 6, [0, 0, 0, 1, 1, 1], TERMS, clients=["a", "b"], clip=1e9)
    assert (plan.rate == 1).all(), "an enormous budget is always in"
    certain(monkeypatch)
    found = updates(plan, lr=0.1, momentum=momentum)[0]
    module = nn.Linear(4, 3)
    nn.utils.vector_to_parameters(torch.zeros(15), module.parameters())
    rows, labels = data(6)
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=momentum)
    for _ in range(TERMS.local_steps):
        optimizer.zero_grad()
        nn.functional.cross_entropy(module(rows[:3]), labels[:3]).backward()
        optimizer.step()
    assert found == pytest.approx(
        nn.utils.parameters_to_vector(module.parameters()).detach().numpy(), abs=1e-6
    )


def promises():
    """What a sound engine keeps: the planned noise, planned samples, the clip, and a denominator
    that does not move.
    """
    assert noise_ratio(loud()) == pytest.approx(1.0, abs=0.03), "noise"
    sampled = []
    real_draw = record_steps.draw_records
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            record_steps, "draw_records", lambda *a: sampled.append(real_draw(*a)) or sampled[-1]
        )
        many = a_plan([0.3] * 40, Terms(1e-3, 60, 5, 1.0, 6.0), clients=1)
        updates(many, rounds=range(60))
    rate = float(many.rate[0, 0])
    share = np.mean([len(rows) for rows in sampled]) / 40
    assert share == pytest.approx(rate, abs=4 * np.sqrt(rate / (40 * 300))), "sampling"
    with pytest.MonkeyPatch.context() as patch:
        one = plan_records(
            [1e6] * 4, [0] * 4, Terms(1e-3, 1, 1, 1.0, 6.0), clients=["a"], clip=0.01
        )
        real = record_steps.release_step
        patch.setattr(record_steps, "release_step", lambda total, _, *rest: real(total, 0.0, *rest))
        assert np.linalg.norm(updates(one)[0]) <= 0.01, "clip"
        patch.setattr(record_steps, "draw_records", lambda *_: np.arange(2))
        assert np.linalg.norm(updates(one)[0]) <= 0.5 * 0.01 + 1e-9, (
            "denominator: half of the batch moves half as far"
        )


def kept():
    try:
        promises()
    except AssertionError:
        return False
    return True


@pytest.mark.full
def test_a_sound_engine_keeps_its_promises():
    promises()


@pytest.mark.full
def test_broken_engines_are_caught(monkeypatch):
    release, draw, summing = (
        record_steps.release_step,
        record_steps.draw_records,
        record_steps.clipped_sum,
    )
    mutants = {
        "noise times 0.9": (
            "release_step",
            lambda total, deviation, *rest: release(total, 0.9 * deviation, *rest),
        ),
        "everyone sampled": ("draw_records", lambda rate, *_: np.arange(rate.size)),
        "rates ignored": ("draw_records", lambda rate, *rest: draw(np.full(rate.size, 0.5), *rest)),
        "unclipped": ("clipped_sum", lambda module, _clip, **how: summing(module, 1e9, **how)),
    }
    for what, (name, broken) in mutants.items():
        with monkeypatch.context() as patch:
            patch.setattr(record_steps, name, broken)
            assert not kept(), f"{what} was not noticed"

    real = record_steps._sampled_steps

    def drawn_batch(*args):
        with pytest.MonkeyPatch.context() as patch:
            size = []
            now = record_steps.draw_records
            patch.setattr(record_steps, "draw_records", lambda *a: size.append(now(*a)) or size[-1])
            patched = record_steps.release_step

            def drawn(total, deviation, _batch, *rest):
                return patched(total, deviation, max(1, len(size[-1])), *rest)

            patch.setattr(record_steps, "release_step", drawn)
            return real(*args)

    monkeypatch.setattr(record_steps, "_sampled_steps", drawn_batch)
    assert not kept(), "the drawn batch as denominator was not noticed"


# --- plans ---


@pytest.mark.parametrize("method", ["rpdp", "minimum", "dropout", "filter"])
def test_every_method_verifies_and_survives_its_file(method, tmp_path):
    plan = a_plan(method=method)
    verdict = verify_records(plan)
    assert verdict.ok, verdict.failures
    assert (plan.epsilon <= plan.budget).all()
    assert plan.spent_by_schedule()[-1] == pytest.approx(plan.schedules.epsilon, rel=1e-6)
    plan.save(tmp_path / "plan.json")
    again = RecordPlan.load(tmp_path / "plan.json")
    assert again.hash == plan.hash
    assert (again.rate == plan.rate).all()
    assert {"rpdp": 6, "minimum": 6, "dropout": 2, "filter": plan.active_by_step[0]}[
        method
    ] == plan.active_by_step[0]
    text = (tmp_path / "plan.json").read_text()
    (tmp_path / "plan.json").write_text(text.replace('"c0"', '"c9"'))
    with pytest.raises(Refused, match="hash"):
        RecordPlan.load(tmp_path / "plan.json")


def test_the_filter_stops_records_one_after_the_other():
    budgets = np.repeat([0.3, 0.6, 1.2, 3.0], 3)
    plan = a_plan(budgets, Terms(1e-3, 20, 4, 1.0, 6.0), method="filter")
    assert (np.diff(plan.active_by_step) <= 0).all()
    assert plan.active_by_step[0] > plan.active_by_step[-1] >= 3
    assert len(set(plan.active_by_step.tolist())) >= 3
    last = np.array([np.flatnonzero(column).size for column in plan.rate.T])
    assert (np.diff(last) >= 0).all(), "who allows more lasts longer"


@pytest.mark.full
def test_saving_spends_later_and_everything():
    plain, saving = a_plan(), a_plan(saving_share=0.5, transition=3)
    assert verify_records(saving).ok
    assert saving.rate[0] == pytest.approx(0.5 * saving.rate[-1])
    free = saving.rate[-1] < 1  # the others are always in while spending, and have some budget left
    assert free.sum() >= 4
    assert (saving.rate[-1] > plain.rate[-1])[free].all()
    assert (saving.rate[0] < plain.rate[0]).all()
    assert saving.epsilon[free] == pytest.approx(plain.budget[free], rel=5e-3)
    assert (saving.epsilon <= saving.budget).all()
    same = a_plan(saving_share=1.0)
    assert (same.rate == plain.rate).all(), "saving nothing is the uniform plan"


def test_a_plan_that_overspends_does_not_verify():
    import dataclasses

    plan = a_plan()
    table = dataclasses.replace(
        plan.schedules, sampling_rate=np.minimum(1, plan.schedules.sampling_rate * 1.02)
    )
    assert not verify_records(dataclasses.replace(plan, schedules=table)).ok
    greedy = dataclasses.replace(plan, budget=plan.budget * 0.99)
    assert not verify_records(greedy).ok


def test_pld_agrees_where_every_client_takes_part():
    verdict = verify_records(a_plan(terms=Terms(1e-3, 3, 4, 1.0, 6.0)))
    assert verdict.ok
    assert verdict.pld_schedules > 0
    assert 0 < verdict.worst_margin < 0.6


@pytest.mark.full(only=["<lambda>-no record of client 'c1'"])
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (
            lambda: a_plan([1.0, 1e-4], Terms(1e-9, 3, 4, 0.8, 6.0), clients=2),
            "no record of client 'c1'",
        ),
        (
            lambda: plan_records([1.0, 2.0], [0], TERMS, clients=["a"]),
            "every record needs a budget and a client",
        ),
        (lambda: plan_records([1.0, np.nan], [0, 0], TERMS, clients=["a"]), "record number 2"),
        (lambda: plan_records([1.0], [1], TERMS, clients=["a"]), "client number 1"),
        (
            lambda: plan_records([1.0, 1.0], [0, 0], TERMS, clients=["a"], records=["x", "x"]),
            "same name",
        ),
        (lambda: plan_records([1.0], [0], TERMS, clients=["a"], clip=-1.0), "clip"),
        (lambda: plan_records([1.0], [0], TERMS, clients=["a"], clip=1e-170), "from 1e-30"),
        (lambda: a_plan(method="rdpd"), "did you mean 'rpdp'"),
        (lambda: a_plan(saving_share=0.0), "saving_share"),
        (lambda: a_plan(saving_share=0.5, transition=9), "transition"),
        (lambda: a_plan(method="minimum", saving_share=0.5), "saving_share"),
        (lambda: a_plan(common_rate=0.5), "common_rate"),
    ],
)
def test_bad_plans(make, told):
    with pytest.raises(InvalidInput, match=told):
        make()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda content: content.update(orders=[]), "at least one number"),
        (lambda content: content.update(orders=[0.5, 2.0]), "above 1"),
        (lambda content: content["classes"][0].update(order=2.5), "one of the plan's orders"),
        (lambda content: content["parameters"].pop("method"), "no key 'method'"),
        (lambda content: content["parameters"].update(method=3), "not text"),
    ],
)
def test_files_that_no_plan_was_saved_to_are_refused(change, told):
    content = to_content(a_plan())
    content["parameters"] = dict(content["parameters"])
    change(content)
    content["hash"] = hash_of(canonical(content))
    with pytest.raises(InvalidInput, match=told):
        built(RECORD_PLAN, content)


@pytest.mark.parametrize("order", [1e9, 1e300])
def test_an_order_that_would_take_all_memory_is_refused(order):
    plan = a_plan()
    claims = dataclasses.replace(plan.schedules, order=np.full(plan.schedules.count, order))
    with pytest.raises(InvalidInput, match="orders must be at most 100000"):
        dataclasses.replace(plan, schedules=claims, orders=(order,))


def test_the_papers_rates_are_not_trained_with():
    with pytest.raises(Refused, match="scf-clamped"):
        Wanted(rates="scf")


# --- whole runs ---


@pytest.mark.full
def test_a_run_is_accounted_and_can_be_resumed(config, tmp_path):
    whole = fedspend.train(config, output=tmp_path / "whole")

    stopped(config, tmp_path / "cut")
    fedspend.train(config, output=tmp_path / "cut", resume=True)
    for name in ("metrics.jsonl", "model.safetensors", "plan.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    with Ledger.open(tmp_path / "whole" / "ledger.db") as ledger:
        balances = ledger.balances("record")
        spent = dict(zip(balances.names, balances.spent, strict=True))
    for name, claim in zip(whole.plan.records, whole.plan.epsilon, strict=True):
        assert spent[name] == pytest.approx(claim, rel=1e-6), (
            "the ledger reads what the plan claims"
        )
    last = json.loads((tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["epsilon"]["5"] == pytest.approx(
        float(whole.plan.epsilon[whole.plan.budget == 5].max())
    )
    assert "noise_deviation" not in last


def test_records_that_ran_out_stop_contributing(config, tmp_path):
    place = tmp_path / "accounts.db"
    first = fedspend.train(config, output=tmp_path / "a", ledger=place)
    with pytest.raises(Refused, match="leave-out"):
        fedspend.train(config, output=tmp_path / "b", ledger=place)
    with Ledger.open(place, write=True) as ledger:
        rich = [
            name
            for name, budget in zip(first.plan.records, first.plan.budget, strict=True)
            if budget == 5
        ]
        ledger.change(rich, 20.0, reason="test", unit="record")
    second = fedspend.train(
        config, overrides=["ledger.exhausted=leave-out"], output=tmp_path / "c", ledger=place
    )
    assert ((second.plan.rate.max(axis=0) > 0) == (second.plan.budget == 5)).all()


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("method", ["minimum", "dropout", "filter", "privacy-free"])
def test_baselines_train(config, method, tmp_path):
    config["method"]["name"] = method
    config["train"]["batch_size"] = 16
    result = fedspend.train(config, output=tmp_path / "run")
    assert len(result.metrics) == 4
    assert (result.plan is None) == (method == "privacy-free")


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"privacy": {"preferences": None}}, "have no budgets"),
        ({"privacy": {"noise": "distributed"}}, "client-level"),
        ({"privacy": {"clipping": "per-layer"}}, "client-level"),
        ({"privacy": {"accountant": "pld"}}, "client-level"),
        ({"privacy": {"policy": "spend-as-you-go"}}, "client-level"),
        ({"privacy": {"saving_rate": 0.4}}, "client-level"),
        ({"privacy": {"weights": 0.9}}, "client-level"),
        ({"shape": {"lus": 0.5}}, "client-level"),
        ({"privacy": {"delta": None}}, "delta is missing"),
        ({"train": {"local_steps": None, "local_epochs": 2}}, "local_steps is missing"),
        ({"privacy": {"epsilon": 1.0}}, "both"),
    ],
)
def test_bad_configs(config, changes, told):
    for section, keys in changes.items():
        for key, value in keys.items():
            table = config.setdefault(section, {})
            table.pop(key, None) if value is None else table.__setitem__(key, value)
    with pytest.raises(InvalidInput, match=told):
        fedspend.train(config)


def test_budgets_from_a_file_must_cover_every_record(config, tmp_path):
    del config["privacy"]["preferences"]
    path = tmp_path / "budgets.csv"
    config["privacy"]["budgets"] = str(path)
    path.write_text("record,epsilon\n" + "".join(f"p{n},{1 + n % 3}\n" for n in range(199)))
    with pytest.raises(InvalidInput, match="199 budgets, but there are 200 training records"):
        fedspend.train(config)
    path.write_text("record,epsilon\n" + "".join(f"p{n},{1 + n % 3}\n" for n in range(200)))
    plan = fedspend.train(config).plan
    assert sorted(plan.records) == sorted(f"p{n}" for n in range(200))
    assert all(
        budget == 1 + int(name[1:]) % 3
        for name, budget in zip(plan.records, plan.budget, strict=True)
    )


@pytest.mark.full
def test_budgets_from_a_column_of_your_own_data(tmp_path):
    generator = np.random.default_rng(0)
    lines = ["x,y,label,client,split,allows,patient"]
    for n in range(120):
        x, y = generator.normal(size=2)
        lines.append(
            f"{x},{y},{int(x > 0)},{'ab'[n % 2]},"
            f"{'test' if n % 5 == 0 else 'train'},{[0.5, 2.0][n % 3 == 0]},p{n}"
        )
    path = tmp_path / "own.csv"
    path.write_text("\n".join(lines) + "\n")
    data = {
        "name": "csv",
        "path": str(path),
        "classes": 2,
        "partition": "natural",
        "bounds": [-3, 3],
        "budget": "allows",
        "record": "patient",
    }
    privacy = {"delta": 1e-3, "noise_multiplier": 6.0, "randomness": "os"}
    config = small("record", data=data, privacy=privacy, train__rounds=2, train__local_steps=3)
    result = fedspend.train(config, output=tmp_path / "run", project="clinic")
    assert sorted(set(result.plan.budget.tolist())) == [0.5, 2.0]
    assert result.plan.clients == ("a", "b")
    assert len(result.plan.records) == 96
    from fedspend.report.html import write_report

    write_report([tmp_path / "run"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    for words in (
        "96 records",
        "server picks who takes part",
        "one record",
        "Active records",
        "The first two lines are what the plan promises",
    ):
        assert words in page


@pytest.mark.full
def test_the_hospitals_example_trains_from_anywhere(tmp_path, monkeypatch):
    """And goes on from anywhere else: nothing in its settings depends on where one stands."""
    from pathlib import Path

    root = Path(fedspend.__file__).parents[2]

    monkeypatch.chdir(root)
    options = {
        "output": tmp_path / "run",
        "overrides": ["train.rounds=4", "privacy.noise_multiplier=8"],
    }
    with killed():
        fedspend.train("examples/hospitals/hospitals.toml", **options)
    monkeypatch.chdir(tmp_path)
    result = fedspend.train(root / "examples/hospitals/hospitals.toml", **options, resume=True)
    assert len(result.metrics) == 4
    assert result.plan.clients == ("harbour", "north", "south")
    assert sorted(set(result.plan.budget.tolist())) == [0.5, 2.0, 8.0]
    assert (result.plan.epsilon <= result.plan.budget).all()
    other = tmp_path / "patients.csv"
    other.write_text((root / "examples/hospitals/patients.csv").read_text())
    with pytest.raises(InvalidInput, match=r"data.path was .* and is now .*choose another folder"):
        fedspend.train(
            root / "examples/hospitals/hospitals.toml",
            output=tmp_path / "run",
            overrides=[*options["overrides"], "data.path=patients.csv"],
            resume=True,
        )
    from fedspend.report.html import write_report

    write_report([tmp_path / "run"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "patients.csv" in page
    assert str(root) not in page, "a report may be handed on"


@pytest.mark.parametrize(
    ("name", "delta", "rate", "partition"),
    [
        ("heart", 1e-3, None, "natural"),
        ("mnist-iid", 1e-4, 0.8, "iid"),
        ("mnist-niid", 1e-4, 0.8, "classes"),
    ],
)
def test_the_papers_federations_are_set_up_as_in_the_paper(name, delta, rate, partition):
    from pathlib import Path

    config = load_config(Path(fedspend.__file__).parents[2] / f"examples/records/{name}.toml")
    assert (config.privacy.delta, config.privacy.rate) == (delta, rate)
    assert (config.train.rounds, config.train.local_steps) == (15, 50)
    assert config.data.partition == partition
    assert config.data.clients == (None if name == "heart" else 10)
    assert config.data.classes_per_client == (5 if name == "mnist-niid" else None)


@pytest.mark.full
def test_a_convolutional_model_trains_on_clients_with_few_classes(config):
    config["data"] = {
        "name": "digits",
        "clients": 5,
        "partition": "classes",
        "classes_per_client": 4,
    }
    config["model"]["name"] = "small-cnn"
    config["train"] |= {"rounds": 2, "local_steps": 2}
    config["privacy"]["delta"] = 1e-4
    result = fedspend.train(config)
    assert len(result.metrics) == 2
    assert (result.plan.epsilon <= result.plan.budget).all()
    again = fedspend.train(config)
    assert all(
        torch.equal(a, b)
        for a, b in zip(result.model.parameters(), again.model.parameters(), strict=True)
    )


class Jitter(nn.Module):
    def forward(self, rows):
        return rows + torch.randn_like(rows)


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("layer", [nn.Dropout(0.5), Jitter()], ids=["dropout", "jitter"])
@pytest.mark.parametrize("block", [2**24, 40])
def test_what_layers_draw_gives_no_record_a_say_in_another_s_gradient(layer, block, monkeypatch):
    """With a mask for each place in the batch, one record would move all that come after it."""
    monkeypatch.setattr(gradients, "_BLOCK_NUMBERS", block)
    torch.manual_seed(5)
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), layer, nn.Linear(4, 2))
    sum_of = clipped_sum(module, 1.0)
    assert isinstance(sum_of, GeneralSum)
    flat = nn.utils.parameters_to_vector(module.parameters()).detach()
    rows, labels = torch.randn(20, 3) * 3, torch.arange(20) % 2

    def total(some):
        torch.manual_seed(7)
        return sum_of(flat, rows[some], labels[some])

    everyone, others = np.arange(20), np.arange(1, 20)
    moved = total(everyone) - total(others)
    assert np.linalg.norm(moved) <= 1 + 1e-6
    np.testing.assert_allclose(moved, total(np.arange(1)), atol=1e-6)


class Flips(nn.Module):
    """Draws in a way that torch cannot do alike for all rows."""

    def forward(self, rows):
        return rows * torch.bernoulli(torch.full_like(rows, 0.5))


@pytest.mark.full
def test_a_model_that_cannot_be_taken_record_by_record_is_refused_before_anything_is_charged():
    module = nn.Sequential(nn.Linear(3, 4), Flips(), nn.Linear(4, 2))
    rows = Rows(np.ones((5, 3), np.float32), np.zeros(5, np.int64), classes=2)
    check_fits(module, CLASSIFY, rows, integers=False)
    with pytest.raises(InvalidInput, match=r"cannot be taken record by record: .*randomness"):
        check_fits(module, CLASSIFY, rows, integers=False, by_record=True)
    check_fits(
        nn.Sequential(nn.Dropout(), nn.Linear(3, 2)), CLASSIFY, rows, integers=False, by_record=True
    )


@pytest.mark.full(only=["by norm"])
@pytest.mark.parametrize("by_norm", [False, True], ids=["sampled", "by norm"])
def test_draws_of_layers_are_new_in_each_step_and_no_earlier_draw_moves_them(by_norm, monkeypatch):
    """Whatever state torch's generator is in, and however many records there are."""
    monkeypatch.setattr(InBlocks, "_by_place", lambda *_: False)  # one block for all
    seen = []

    class Masking(nn.Module):
        def forward(self, rows):
            drawn = torch.rand(3)
            seen.append(tuple(drawn.tolist()))
            return rows * (drawn > 0.5)

    wanted = Wanted(method="filter", charge="norm") if by_norm else Wanted()
    terms = dataclasses.replace(TERMS, client_rate=1.0)

    def drawn(seed, records):
        seen.clear()
        torch.manual_seed(seed)
        owner = np.zeros(records, dtype=int)
        plan = plan_records(np.full(records, 9.0), owner, terms, clients=["c0"], wanted=wanted)
        module = nn.Sequential(nn.Linear(4, 3), Masking())
        engine = record_engine(plan, module, *data(records))
        seen.clear()  # the engine tries a module out
        for t in range(2):
            list(engine.run([record_task(plan, 15, t, training=LocalTraining(1, steps=1))]))
        return list(seen)

    first = drawn(0, 30)
    assert len(set(first)) == len(first) == 2 * TERMS.local_steps
    assert drawn(1, 20) == first
