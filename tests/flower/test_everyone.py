"""Everyone is asked in every round, and each decides by its own coin: the same model, noise and
account, and traffic that does not show who takes part.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from contracts.workshop import ENGINES, Data, logistic, tasks_for
from flower.in_process import Fault, grid_of, unasked
from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree
from flwr.supercore.object_store import ObjectStoreFactory

import fedspend
from fedspend.client.contribution import Contribution
from fedspend.client.participation import takes_part
from fedspend.client.task import LocalTraining
from fedspend.configuration.config import any_config
from fedspend.engines.base import HeldOut
from fedspend.engines.flower import line
from fedspend.engines.flower.wire import TASK, read_answer, sent_content, size_of, task_content
from fedspend.engines.local import local
from fedspend.errors import InvalidInput
from fedspend.noise.grid import Grid
from fedspend.noise.numbers import NumberGrid
from fedspend.noise.randomness import Randomness
from fedspend.runs.setup import from_config
from fedspend.server.sampling import draw_cohort

pytestmark = pytest.mark.usefixtures("quick_verify")
STEPS = LocalTraining(batch_size=8, steps=3)
SIZE = 39


def tasks_with_coins(rates, *, round=0, clip=0.5, **shared):
    start = torch.zeros(SIZE)
    clips = np.full(len(rates), clip)
    terms = {"clips": clips, "run": "run-1", "plan": "p"} | shared
    tasks = tasks_for(start, range(len(rates)), STEPS, round=round, **terms)
    return [replace(task, coin=float(rate)) for task, rate in zip(tasks, rates, strict=True)]


def test_seeded_coins_are_the_draws_of_the_server():
    generator = np.random.default_rng(1)
    for _ in range(50):
        seed, round = (int(n) for n in generator.integers(0, 1000, 2))
        rates = generator.random(int(generator.integers(1, 30)))
        tasks = tasks_with_coins(rates, round=round)
        found = [task.number for task in tasks if takes_part(task, Randomness(seed))]
        assert found == draw_cohort(rates, Randomness(seed), round).tolist()


def test_coins_of_a_real_run_have_the_planned_rate_and_no_seed():
    real, rates, draws = Randomness(3, "os"), np.array([0.0, 0.1, 0.7, 1.0]), 4000
    tasks = tasks_with_coins(rates)
    fell = np.array([[takes_part(task, real) for task in tasks] for _ in range(draws)])
    shares = fell.mean(axis=0)
    assert shares[0] == 0
    assert shares[3] == 1
    # 5.5 deviations of the share at 0.7 and 8 of that at 0.1: chance 5e-8
    assert np.abs(shares - rates).max() < 5 * np.sqrt(0.25 / draws)
    # independent of each other: a client's coin says nothing about another's (chance 2e-8)
    assert abs(np.corrcoef(fell[:, 1], fell[:, 2])[0, 1]) < 5.6 / np.sqrt(draws)


@pytest.mark.parametrize("name", [name for name in ENGINES if name != "clientwise-2"])
def test_every_engine_lets_clients_decide(name):
    """Who takes part sends what it would have sent anyway; who does not sends zero."""
    some, rates = Data(sizes=(4, 9, 20, 3, 12, 8)).work(logistic(), Randomness(11)), [0.5] * 6
    engine = ENGINES[name](some)
    asked = tasks_with_coins(rates, bit=True)
    plain = {
        reply.contribution.client: reply.contribution
        for reply in local(some, 0).run([replace(task, coin=None) for task in asked])
    }
    present = set(map(str, draw_cohort(np.array(rates), Randomness(11), 0)))
    found = {}
    for reply in engine.run(asked):  # a vector is valid until the next reply
        own = reply.contribution
        found.setdefault(own.client, replace(own, vector=own.vector.copy()))
    found.pop("a stranger", None)
    assert set(found) == set(map(str, range(6)))
    assert 0 < len(present) < 6
    for client, own in found.items():
        if client in present:
            assert np.allclose(own.vector, plain[client].vector, atol=1e-6)
            assert own.bit == plain[client].bit
            assert own.vector.any()
        else:
            assert not own.vector.any()
            assert own.bit == 0
    engine.close()


def test_who_sits_out_trains_all_the_same(monkeypatch):
    """Otherwise the time that an answer takes would tell."""
    from fedspend.client import numbers
    from fedspend.engines.dense import DenseEngine

    some, done = Data(sizes=(9, 12)).work(logistic(), Randomness(1)), []
    some = replace(some, held_out=HeldOut(some.features, some.labels, some.shards))
    for place, name in ((DenseEngine, "_block"), (numbers, "measured")):
        real = getattr(place, name)

        def spy(*args, real=real, name=name, **kwargs):
            done.append(name)
            return real(*args, **kwargs)

        monkeypatch.setattr(place, name, spy)
    for rate in (0.0, 1.0):
        done.clear()
        list(local(some, 0).run(tasks_with_coins([rate], metric=NumberGrid(2**12, 0.0))))
        assert done == ["_block", "measured"]


def test_a_coin_is_drawn_once_for_a_round():
    """A server that asks again gets the same bytes, however often it asks."""
    real = Data(sizes=(9, 12)).work(logistic(), Randomness(0, "os"))
    node = next(iter(grid_of(real).places.values())).node
    seen = set()
    for round in range(24):  # the coin falls alike in all of them with chance 2 * 2**-24 < 1.3e-7
        (task, _) = tasks_with_coins([0.5, 0.5], round=round)
        answers = [read_answer(node.task(task_content(task))) for _ in range(4)]
        assert len({answer.vector.tobytes() for answer in answers}) == 1
        seen.add(bool(answers[0].vector.any()))
    assert seen == {True, False}


@pytest.mark.full(but=["fedavg"])
@pytest.mark.parametrize(
    "changes",
    [
        {"privacy": {"noise": "central"}},
        {"privacy": {"noise": "distributed"}},
        {"privacy": {"noise": "discrete"}},
        {"privacy": {"noise": "discrete-distributed"}},
        {"method": {"name": "adaptive-clip"}, "privacy": {"noise": "discrete-distributed"}},
        {"method": {"name": "idp-fedavg"}, "privacy": {"policy": "individual-rates"}},
        {"method": {"name": "fedavg"}},
    ],
    ids=["central", "distributed", "discrete", "both", "bits", "rates", "fedavg"],
)
def test_the_same_seed_ends_with_the_same_model_on_one_machine_and_on_many(
    tiny, monkeypatch, changes
):
    config = {name: section | changes.get(name, {}) for name, section in tiny.items()}
    if "method" in changes:
        config["privacy"].pop("saving_rate")
    sampled = fedspend.train(config)
    alone = fedspend.train(config | {"engine": {"ask": "everyone"}})
    grid = grid_of(from_config(any_config(config)).workload())
    monkeypatch.setattr(line, "Clock", lambda: grid.clock)
    server = config | {"engine": {"name": "flower", "ask": "everyone"}}
    result = fedspend.train(server, grid=grid)
    assert parameters(result) == parameters(alone)
    if "distributed" not in config["privacy"].get("noise", "central"):
        # who sits out adds nothing at all
        assert parameters(result) == parameters(sampled)
    tasks = [node for kind, node, _ in grid.sent if kind == TASK]
    assert {tasks.count(node) for node in grid.places} == {4}  # everyone, in every round
    cohorts = [one["cohort"] for one in sampled.metrics]
    assert [one["cohort"] for one in alone.metrics] == cohorts
    assert min(cohorts) < 6
    assert all("cohort" not in one for one in result.metrics)  # the server does not know
    assert [one["mean_norm"] for one in alone.metrics] == [
        one["mean_norm"] for one in sampled.metrics
    ] or "distributed" in config["privacy"].get("noise", "central")


def parameters(result):
    return torch.nn.utils.parameters_to_vector(result.model.parameters()).detach().numpy().tobytes()


def pushed(store, content):
    """How many bytes of an answer a SuperLink asks for: those of objects that it does not have."""
    message = unasked(7, content)
    objects = get_all_nested_objects(message)
    missing = store.preregister(1, get_object_tree(message))
    for name in missing:
        store.put(name, objects[name].deflate())
    return sum(len(objects[name].deflate()) for name in missing)


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("bits", [None, 16])
@pytest.mark.parametrize("size", [SIZE, 1_500_000], ids=["small", "several chunks"])
def test_traffic_does_not_show_who_takes_part(size, bits):
    """Flower does not send an object again that the SuperLink has: the same zeros, for one."""
    store, generator = ObjectStoreFactory().store(), np.random.default_rng(0)
    whole = generator.integers(-9, 9, size).astype(np.float64)
    answers = [
        Contribution(f"client {n}", 3, vector, bit, "run-1", metric)
        for n, (vector, bit, metric) in enumerate(
            (
                (whole, 0.5, 0.123046875),
                (np.zeros(size), 0.0, 0.0),
                (np.zeros(size), 0.0, 0.0),
                (whole, -0.5, -0.4999999999999999),
                (-whole, -0.5, 5e-324),
            )
        )
    ]
    contents = [sent_content(answer.to_bytes(bits)) for answer in answers]
    assert len({size_of(content) for content in contents}) == 1
    assert len({pushed(store, content) for content in contents}) == 1
    for answer, content in zip(answers, contents, strict=True):
        read = read_answer(content)
        assert np.array_equal(read.vector, answer.vector)
        assert (read.bit, read.metric) == (answer.bit, answer.metric)


def test_answers_of_one_round_have_one_length():
    some = Data(sizes=(4, 9, 20, 3, 12, 0)).work(logistic(), Randomness(11))
    some = replace(some, held_out=HeldOut(some.features, some.labels, some.shards))
    grid = grid_of(some)
    for shared in (
        {"bit": True, "metric": NumberGrid(2**12, 0.0)},
        {"bit": True, "bit_grid": NumberGrid(2**12, 0.3), "metric": NumberGrid(2**12, 0.4)}
        | {"own_deviation": 0.3, "grid": Grid(2.0**-10, 24, SIZE), "round": 1},
    ):
        tasks = {task.client: task for task in tasks_with_coins([0.5] * 6, **shared)}
        contents = [
            place.node.task(task_content(tasks[place.node.client]))
            for place in grid.places.values()
        ]
        assert all(isinstance(read_answer(content), Contribution) for content in contents)
        assert len({size_of(content) for content in contents}) == 1


def test_lost_clients_are_topped_up_and_charged_as_ever(tiny, monkeypatch, tmp_path):
    config = tiny | {"privacy": tiny["privacy"] | {"noise": "distributed"}}
    grid = grid_of(
        from_config(any_config(config)).workload(),
        faults={"1": Fault(drop=True), "4": Fault(delay=7.0), "5": Fault(drop=True, times=1)},
    )
    monkeypatch.setattr(line, "Clock", lambda: grid.clock)
    server = config | {"engine": {"name": "flower", "ask": "everyone", "deadline": 60.0}}
    result = fedspend.train(server, grid=grid, output=tmp_path / "run")
    alone = fedspend.train(config, output=tmp_path / "alone")
    assert [one["epsilon"] for one in result.metrics] == [one["epsilon"] for one in alone.metrics]
    assert [one["lost"] for one in result.metrics] == [1] * 4


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"engine": {"ask": "all"}}, "ask"),
        ({"method": {"name": "rpdp"}}, "ask in .* has no effect"),
        ({"engine": {"name": "mine"}}, "ask in .* has no effect"),
    ],
)
def test_where_clients_cannot_decide_it_is_refused(tiny, changes, why):
    """An engine of somebody's own may not know of coins, and everyone would take part."""
    from fedspend.engines.reference import ReferenceEngine
    from fedspend.engines.table import ENGINES as TABLE
    from fedspend.engines.table import EngineEntry

    TABLE.add(EngineEntry("mine", "my own", make=lambda work, _: ReferenceEngine(work)))
    try:
        config = tiny | {"engine": {"ask": "everyone"}}
        for section, values in changes.items():
            config[section] = config.get(section, {}) | values
        with pytest.raises(InvalidInput, match=why):
            fedspend.train(config)
    finally:
        TABLE.remove("mine")
