"""An app that exists already, under a plan: sampled, clipped, noised and charged by the adapter."""

import importlib
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from flower.apps import AppGrid, running
from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import FedAdam, FedAvg, FedAvgM, FedProx
from lib.verdicts import Passed

import fedspend
from fedspend.engines.flower.line import Clock
from fedspend.errors import InvalidInput, Refused
from fedspend.flower import adapter
from fedspend.flower.adapter import Private
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.noise.randomness import Randomness
from fedspend.server.sampling import draw_cohort

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower-adapter"
NODES = EXAMPLE.parent / "flower"
SIZE = 3000
CLIENTS = ("north", "south", "west", "harbour", "hill")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """The verifier is tested elsewhere and takes seconds: here it passes at once."""
    monkeypatch.setattr(adapter, "verify", Passed)


def made_plan(**changes):
    budgets = {client: 8.0 + 4 * n for n, client in enumerate(CLIENTS)}
    terms = {"delta": 1e-2, "rounds": 4, "rate": 0.6, "accountant": "rdp", "noise": "discrete"}
    return fedspend.plan(**({"epsilons": budgets} | terms | changes))


def model(size=SIZE):
    return ArrayRecord(
        {
            "a": Array(np.zeros((size // 3, 2), dtype=np.float32)),
            "b": Array(np.zeros(size - 2 * (size // 3), dtype=np.float32)),
        }
    )


def sends(change=None, metrics=None):
    """A node that moves every number by one, unless it is told to send something else."""

    def answer(message):
        arrays = {
            name: one.numpy() + np.float32(1) for name, one in message.content["arrays"].items()
        }
        arrays = arrays if change is None else change(arrays)
        record = ArrayRecord({name: Array(np.asarray(one)) for name, one in arrays.items()})
        told = MetricRecord(metrics or {"num-examples": 10})
        return Message(RecordDict({"arrays": record, "metrics": told}), reply_to=message)

    return answer


def federation(**wrong):
    """Five nodes with keys, each named after its client."""
    nodes = {100 + n: wrong.get(client, sends()) for n, client in enumerate(CLIENTS)}
    return AppGrid(nodes, {100 + n: client.encode() for n, client in enumerate(CLIENTS)})


KEYS = {client: client for client in CLIENTS}


def flat(arrays):
    return np.concatenate([one.numpy().reshape(-1).astype(np.float64) for one in arrays.values()])


def by_hand(plan, seed, update, wrong=()):
    """The same rounds in a few lines: sample, clip, add, noise, divide; FedAvg takes the mean."""
    randomness, theta = Randomness(seed), np.zeros(SIZE)
    for t in range(plan.rounds):
        total = np.zeros(SIZE)
        for n in draw_cohort(plan.sampling_rate[t], randomness, t):
            if plan.clients[n] not in wrong:
                total += update * min(1.0, plan.clip_norm[t, n] / np.linalg.norm(update))
        deviation = plan.clip * plan.round_noise[t]
        total += deviation * randomness.normal(SIZE, "noise", t)
        theta = theta + total / (len(plan.clients) * plan.round_rate[t])
    return theta


def test_a_seeded_run_is_what_one_gets_by_hand():
    plan = made_plan(noise="continuous")
    result = Private(FedAvg(), plan, seed=7).start(federation(), model())
    assert np.allclose(flat(result.arrays), by_hand(plan, 7, np.ones(SIZE)), atol=1e-5)


def nan(arrays):
    return arrays | {"b": arrays["b"] * np.nan}


@pytest.mark.full(but_every=5)
@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (sends(nan), "not finite"),
        (sends(lambda a: a | {"b": a["b"] * np.inf}), "not finite"),
        (sends(lambda a: a | {"b": a["b"][:-1]}), "not the model's"),
        (sends(lambda a: a | {"a": a["a"].T}), "not the model's"),
        (sends(lambda a: {"a": a["a"]}), "not the model's"),
        (sends(lambda a: a | {"c": a["a"]}), "not the model's"),
        (sends(lambda a: {name: one.astype(np.float64) for name, one in a.items()}), "not the"),
        (lambda message: Message(Error(3, "broke"), reply_to=message), "error 3"),
        (lambda _message: None, "did not answer"),
        (lambda message: Message(RecordDict(), reply_to=message), "not the model's"),
    ],
    ids=["nan", "inf", "short", "turned", "missing", "more", "type", "error", "silent", "empty"],
)
def test_an_answer_that_is_not_one_does_not_count(answer, why, caplog):
    """Nor does it change the noise, or what the others' answers weigh."""
    plan = made_plan(noise="continuous", rate=1.0)
    with caplog.at_level("WARNING", "fedspend"):
        result = Private(FedAvg(), plan, seed=7).start(federation(west=answer), model())
    wanted = by_hand(plan, 7, np.ones(SIZE), wrong=("west",))
    assert np.allclose(flat(result.arrays), wanted, atol=1e-5)
    assert why in caplog.text
    assert "'west'" in caplog.text


def test_a_huge_answer_moves_the_mean_by_its_clip():
    plan = made_plan(noise="continuous", rate=1.0, rounds=1)
    huge = sends(lambda a: {name: one + np.float32(1e30) for name, one in a.items()})
    moved = [
        flat(Private(FedAvg(), plan, seed=7).start(federation(west=answer), model()).arrays)
        for answer in (huge, lambda _message: None)
    ]
    distance = np.linalg.norm(moved[0] - moved[1]) * len(CLIENTS)
    west = CLIENTS.index("west")
    assert distance == pytest.approx(plan.clip_norm[0, west], rel=1e-4)


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize("lost", [(), ("west",), ("west", "north", "hill")])
@pytest.mark.parametrize("noise", ["continuous", "discrete"])
def test_the_noise_is_the_planned_one_whoever_is_lost(noise, lost):
    plan = made_plan(noise=noise, rounds=8)
    still = sends(lambda a: {name: one - np.float32(1) for name, one in a.items()})
    nodes = {client: (lambda _: None) if client in lost else still for client in CLIENTS}
    strategy, grid, arrays = Private(FedAvg(), plan, seed=3), federation(**nodes), model()
    seen = []
    with strategy:
        for t in range(plan.rounds):
            messages = strategy.configure_train(t + 1, arrays, ConfigRecord(), grid)
            mean, _ = strategy.aggregate_train(t + 1, grid.send_and_receive(messages))
            deviation = float(plan.round_deviation[t]) / (len(CLIENTS) * plan.round_rate[t])
            seen.append(flat(mean) / deviation)
    # 24,000 numbers: the sample variance has a relative deviation of sqrt(2 / 24000) = 0.0091
    assert abs(np.mean(np.square(seen)) - 1) < 4 * 0.0091


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("wrapped", [FedAvg, FedAvgM, FedAdam, lambda: FedProx(proximal_mu=0.5)])
def test_strategies_get_one_mean_and_do_with_it_what_they_do(wrapped):
    plan, told = made_plan(noise="continuous"), []
    strategy = wrapped()
    seen = strategy.aggregate_train

    def spied(server_round, replies):
        told.append([reply.content for reply in replies])
        return seen(server_round, replies)

    strategy.aggregate_train = spied

    def asked(message):
        if wrapped is not FedAvg and "proximal-mu" in message.content["config"]:
            assert message.content["config"]["proximal-mu"] == 0.5
        return sends()(message)

    result = Private(strategy, plan, seed=7).start(federation(north=asked), model())
    assert [len(replies) for replies in told] == [1] * 4
    assert np.isfinite(flat(result.arrays)).all()
    assert {record["num-examples"] for (content,) in told for record in [content["metrics"]]} == {1}


def test_every_round_is_charged_before_anyone_is_asked_and_recorded_before_it_is_used(tmp_path):
    plan, order = made_plan(), []
    location = tmp_path / "accounts.db"

    def rounds():
        with Ledger.open(location) as book:
            return dict(book.run("heart").rounds)

    class Watching(FedAvg):
        def aggregate_train(self, server_round, replies):
            order.append(("used", rounds()[server_round - 1]))
            return super().aggregate_train(server_round, replies)

    def asked(message):
        order.append(("asked", rounds()[message.content["config"]["server-round"] - 1]))
        return sends()(message)

    grid = federation(**dict.fromkeys(CLIENTS, asked))
    strategy = Private(Watching(), plan, keys=KEYS, ledger=location, run="heart")
    strategy.start(grid, model())
    # nobody is asked in any round with chance (0.4**5)**4 < 2e-8
    assert {state for what, state in order if what == "asked"} == {"reserved"}
    assert {state for what, state in order if what == "used"} == {"committed"}
    assert audit(str(location)).ok
    assert strategy.spent == pytest.approx(dict(zip(plan.clients, plan.budget, strict=True)))
    assert all(strategy.spent[client] <= 8.0 + 4 * n for n, client in enumerate(CLIENTS))
    with Ledger.open(location) as book:
        assert book.run("heart").closed is not None
    with pytest.raises(Refused, match="closed"):
        Private(FedAvg(), plan, keys=KEYS, ledger=location, run="heart").start(grid, model())
    with pytest.raises(Refused):  # the budgets are spent, under any name
        Private(FedAvg(), plan, keys=KEYS, ledger=location, run="again").start(grid, model())


@pytest.mark.full
def test_an_app_that_was_stopped_goes_on_and_the_round_it_was_in_stays_charged(tmp_path):
    plan, location = made_plan(), tmp_path / "accounts.db"
    terms = {"keys": KEYS, "ledger": location, "run": "heart"}
    grid, calls = federation(), []

    class Dies(FedAvg):
        def aggregate_train(self, server_round, replies):
            if server_round == 2:
                raise KeyboardInterrupt
            return super().aggregate_train(server_round, replies)

    with pytest.raises(KeyboardInterrupt):
        Private(Dies(), plan, **terms).start(grid, model())
    with pytest.raises(InvalidInput, match="num_rounds must be from 1 to 2"):
        Private(FedAvg(), plan, **terms).start(grid, model(), 3)
    with pytest.raises(InvalidInput, match="another plan"):
        Private(FedAvg(), made_plan(rate=0.5), **terms).start(grid, model())

    class Counts(FedAvg):
        def aggregate_train(self, server_round, replies):
            calls.append(server_round)
            return super().aggregate_train(server_round, replies)

    strategy = Private(Counts(), plan, **terms)
    strategy.start(grid, model())
    assert calls == [1, 2]  # two of four were begun before
    assert audit(str(location)).ok
    with Ledger.open(location) as book:
        assert sorted(book.run("heart").rounds) == [0, 1, 2, 3]


def test_what_clients_report_is_dropped_and_nobody_is_asked_to_evaluate(caplog):
    secret = sends(metrics={"num-examples": 10, "row": 0.777})
    grid = federation(**dict.fromkeys(CLIENTS, secret))
    result = Private(FedAvg(fraction_evaluate=1.0), made_plan(), seed=1).start(grid, model())
    assert not result.evaluate_metrics_clientapp
    told = [dict(one) for one in result.train_metrics_clientapp.values()]
    assert {name for one in told for name in one} == {"smallest-epsilon", "largest-epsilon"}
    assert "0.777" not in caplog.text


class Hurried(Clock):
    def __init__(self):
        self.time = 0.0

    def now(self):
        return self.time

    def sleep(self, seconds):
        self.time += seconds


def test_without_a_quorum_nothing_is_charged(tmp_path):
    grid, location = federation(), tmp_path / "accounts.db"
    for node in (100, 101, 102):
        del grid.nodes[node]
    strategy = Private(FedAvg(), made_plan(), keys=KEYS, ledger=location, run="r", clock=Hurried())
    with pytest.raises(Refused, match="2 of 5 clients are connected, the quorum is 3"):
        strategy.start(grid, model())
    with Ledger.open(location) as book:
        assert not book.run("r").rounds
        assert book.run("r").closed is not None


def test_nodes_are_known_by_their_keys():
    """A stranger is not asked, nor are two nodes with one key."""
    grid = federation()
    grid.nodes[7] = grid.nodes[8] = lambda _: pytest.fail("a stranger was asked")
    grid.keys = {**grid.keys, 7: b"stranger", 8: b"west"}
    grid.nodes[102] = lambda _: pytest.fail("there are two of them")
    Private(FedAvg(), made_plan(rate=1.0), keys=KEYS, seed=1).start(grid, model())
    assert {100, 101, 103, 104} == set(grid.asked)


def test_an_answer_of_somebody_who_was_not_asked_is_reported(caplog):
    grid, strategy = federation(), Private(FedAvg(), made_plan(rate=1.0), seed=1)
    with strategy:
        messages = list(strategy.configure_train(1, model(), ConfigRecord(), grid))
        replies = list(grid.send_and_receive(messages))
        replies[0].metadata.__dict__["_src_node_id"] = 999
        strategy.aggregate_train(1, [*replies, replies[1]])
    assert "node 999: it answered without being asked" in caplog.text
    assert "it answered twice; the first answer counts" in caplog.text


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize(
    ("make", "why"),
    [
        (lambda: Private(FedAvg(), made_plan(), ledger="x.db"), "public keys"),
        (lambda: Private(FedAvg(), made_plan(), keys=KEYS), "project"),
        (lambda: Private(FedAvg(), made_plan(), keys={"north": "k"}, seed=1), "no key for client"),
        (lambda: Private(FedAvg(), made_plan(), keys=dict.fromkeys(CLIENTS, "k"), seed=1), "same"),
        (lambda: Private(FedAvg(), made_plan(epsilons=[1.0] * 5), keys=KEYS), "named clients"),
        (lambda: Private(FedAvg(), made_plan(), quorum=float("nan"), seed=1), "quorum"),
        (
            lambda: Private(FedAvg(), made_plan(bit_noise=3.0, method="adaptive-clip"), seed=1),
            "bit",
        ),
        (lambda: started(FedAvg(), num_rounds=5), "num_rounds must be from 1 to 4"),
        (lambda: started(FedAvg(fraction_train=0.0)), "asks nobody to train"),
        (
            lambda: started(FedAvg(), ArrayRecord({"n": Array(np.zeros(3, dtype=np.int64))})),
            "int64",
        ),
        (lambda: started(FedAvg(), ArrayRecord()), "no numbers"),
        (lambda: started(FedAvg(), ArrayRecord({"n": Array(np.full(3, np.nan))})), "not finite"),
    ],
)
def test_what_does_not_fit_is_refused(make, why):
    with pytest.raises(InvalidInput, match=why):
        make()


def started(strategy, arrays=None, **terms):
    arrays = model() if arrays is None else arrays
    return Private(strategy, made_plan(), seed=1).start(federation(), arrays, **terms)


@pytest.mark.full
def test_a_forged_plan_is_refused(monkeypatch):
    monkeypatch.setattr(adapter, "verify", fedspend.verify)
    plan = made_plan()
    forged = replace(plan, epsilon=plan.epsilon / 2)
    with pytest.raises(Refused, match="failed verification"):
        Private(FedAvg(), forged, seed=1)


@pytest.mark.full
def test_the_example_runs(tmp_path, monkeypatch, capsys):
    """Its own code, on the nodes' own files, with keys and a real ledger."""
    from fedspend.engines.flower.keys import read_keys
    from fedspend.flower.loopback import make_node_key

    monkeypatch.syspath_prepend(str(EXAMPLE))
    client, server = (importlib.import_module(f"heart_app.{name}") for name in ("client", "server"))
    try:
        lines = ["client,key"]
        for hospital in ("north", "south", "harbour"):
            (tmp_path / hospital).mkdir()
            lines.append(f"{hospital},{make_node_key(tmp_path / hospital)}")
        (tmp_path / "keys.csv").write_text("\n".join(lines) + "\n")
        for name in ("budgets.csv", "public.csv"):
            (tmp_path / name).write_text((NODES / "server" / name).read_text())
        keys = read_keys(tmp_path / "keys.csv")
        config = {"server": str(tmp_path), "run": "heart", "local-steps": 20, "lr": 0.3}
        nodes = {
            50 + n: running(client.app, {"folder": str(NODES / "nodes" / hospital)}, config)
            for n, hospital in enumerate(keys)
        }
        grid = AppGrid(nodes, {50 + n: key.encode() for n, key in enumerate(keys.values())})
        from flwr.app import Context

        server.app(grid, Context(0, 0, {}, RecordDict(), config))
    finally:
        for name in [name for name in sys.modules if name.startswith("heart_app")]:
            del sys.modules[name]
    assert audit(str(tmp_path / "accounts.db")).ok
    assert "north has spent epsilon 8.00 of 8" in capsys.readouterr().out
