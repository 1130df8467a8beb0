"""Whole runs in which every node keeps its own account, and what each of them refuses."""

import json
import multiprocessing
import shutil
import time
import warnings
from dataclasses import replace

import numpy as np
import pytest
from lib.runs import killed

pytest.importorskip("flwr")

from approval import offers
from flower.consortium import (
    BUDGETS,
    CLIENTS,
    account_of,
    approve_own,
    consortium,
    entries_of,
    merged,
    node_config,
    slice_file,
)
from flower.in_process import Fault, InProcessGrid

import fedspend
from fedspend.approval.node_config import node_ledger
from fedspend.approval.node_ledger import NodeLedger
from fedspend.approval.rotation import Rotation, signed_by
from fedspend.client.answering import ServersAccount
from fedspend.client.contribution import Contribution
from fedspend.client.declining import Declined
from fedspend.configuration.config import any_config
from fedspend.engines.flower import line
from fedspend.engines.flower.keys import public_of, replaced
from fedspend.engines.flower.wire import (
    Introduction,
    Refusal,
    read_answer,
    read_introduction,
    read_task,
    sent_content,
    task_content,
)
from fedspend.errors import FedspendError, FedspendWarning, InvalidInput, Refused
from fedspend.flower.loopback import make_node_key
from fedspend.flower.node import Node, open_node
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.runs.slicing import make_slices

pytestmark = [
    pytest.mark.usefixtures("quick_verify"),
    pytest.mark.filterwarnings("ignore::fedspend.errors.FedspendWarning"),
]


@pytest.fixture
def federated(tiny, tmp_path, monkeypatch):
    """`federated(...)` gives the server's config and a grid of nodes with accounts."""

    def made(*, faults=None, **settings):
        server, places = consortium(tiny, tmp_path, **settings)
        grid = InProcessGrid(places, faults=faults or {})
        monkeypatch.setattr(line, "Clock", lambda: grid.clock)
        return server, grid

    return made


def trained(server, grid, tmp_path, **settings):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FedspendWarning)
        return fedspend.train(server, grid=grid, output=tmp_path / "run", **settings)


def charges(path, kind="reserve"):
    return [entry["round"] for entry in entries_of(path) if entry["kind"] == kind]


def node(grid, client):
    return next(place for place in grid.places.values() if place.node.client == client)


def within_budgets(tmp_path):
    """No client over its budget, on either ledger."""
    with Ledger.open(tmp_path / "accounts.db") as ledger:
        for row in ledger.balances().rows():
            assert row["spent"] <= BUDGETS[row["client"]]
    for client in CLIENTS:
        with Ledger.open(tmp_path / client / "ledger.db") as ledger:
            (row,) = ledger.balances().rows()
        assert row["client"] == client
        assert row["spent"] + row["reserved"] <= row["budget"] + 1e-9
        assert audit(str(tmp_path / client / "ledger.db")).ok


@pytest.mark.full
def test_both_sides_keep_the_same_account(federated, tmp_path):
    server, grid = federated()
    seen = {client: [] for client in CLIENTS}

    def listening(place):
        admit = place.node.account.admit

        class Account(ServersAccount):
            def join(self, plan):
                place_account.join(plan)

            def admit(self, task):
                seen[task.client].append(task.shared)
                admit(task)

            def sent(self, task, body):
                place_account.sent(task, body)

        place_account = place.node.account
        place.node = replace(place.node, account=Account())

    for place in grid.places.values():
        listening(place)
    result = trained(server, grid, tmp_path)
    offer = json.loads((tmp_path / "slices" / "offer.json").read_text())
    run = result.run
    assert run == offer["terms"]["run"]
    assert charges(tmp_path / "accounts.db") == [0, 1, 2, 3]
    for client, tasks in seen.items():
        own = tmp_path / client / "ledger.db"
        asked = [task.round for task in tasks]
        assert charges(own) == list(range(max([0, *asked]) + 1))
        assert charges(own, "commit") == asked
        assert {entry["run"] for entry in entries_of(own) if "run" in entry} == {run}
        assert {task.plan for task in tasks} <= {offer["root"]}  # never the plan's own hash
        assert offer["plan"] not in str(tasks)
    within_budgets(tmp_path)
    settings = json.loads((tmp_path / "run" / "run.json").read_text())["settings"]
    assert settings["engine.slices"] == offer["root"]


def test_a_run_that_was_not_approved_by_all_does_not_begin(federated, tmp_path):
    server, grid = federated(approve=False)
    configs = {
        c: merged(node_config(c, server, tmp_path), account_of(c, tmp_path)) for c in CLIENTS
    }
    for client in CLIENTS[:3]:
        approve_own(configs[client], slice_file(tmp_path, client))
    with pytest.raises(InvalidInput, match="takes no part"):
        trained(server, grid, tmp_path)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "accounts.db").exists()
    approve_own(configs["harbour"], slice_file(tmp_path, "harbour"))
    assert len(trained(server, grid, tmp_path).metrics) == 4


def test_a_changed_plan_is_refused_by_the_nodes(federated, tmp_path):
    """The server makes new slices, with another rate, that nobody has approved."""
    server, grid = federated()
    server["privacy"]["rate"] = 0.9
    with pytest.raises((Refused, InvalidInput)):  # these are not its slices
        trained(server, grid, tmp_path)
    make_slices(server, tmp_path / "new")
    server["engine"]["slices"] = str(tmp_path / "new")
    with pytest.raises(InvalidInput, match="has approved no slice of this run's plan"):
        trained(server, grid, tmp_path)
    assert not (tmp_path / "accounts.db").exists()


@pytest.mark.full
def test_slices_are_for_one_run(federated, tmp_path):
    server, grid = federated()
    trained(server, grid, tmp_path)
    with pytest.raises(Refused, match="which has begun; resume it, or make new slices"):
        fedspend.train(server, grid=grid, output=tmp_path / "second")
    # a server that forgets its own ledger is refused by the nodes: the rounds are done
    server["ledger"]["location"] = str(tmp_path / "forgetful.db")
    again = fedspend.train(server, grid=grid, output=tmp_path / "third")
    assert charges(tmp_path / "forgetful.db") == [0, 1, 2, 3]
    assert len(again.metrics) == 4
    within_budgets(tmp_path)
    for client in CLIENTS:
        assert len(charges(tmp_path / client / "ledger.db", "commit")) <= 4


@pytest.mark.full
def test_a_run_with_slices_is_not_replanned(federated, tmp_path):
    """Not even where the server's accounts have room for another plan."""
    server, grid = federated()
    with Ledger.create(tmp_path / "accounts.db", simulation=False) as ledger:
        room = [3 * BUDGETS[client] for client in CLIENTS]
        ledger.register(CLIENTS, room, delta=server["privacy"]["delta"])
    with killed(round=2):
        trained(server, grid, tmp_path)
    with Ledger.open(tmp_path / "accounts.db", write=True) as ledger:
        (run,) = ledger.state.runs
        ledger.reserve(run, 2)  # a round that was begun and lost
    with pytest.raises(Refused, match="cannot be replanned"):
        trained(server, grid, tmp_path, resume=True, replan=True)
    assert len(trained(server, grid, tmp_path, resume=True).metrics) == 4
    within_budgets(tmp_path)


@pytest.mark.full
def test_questions_that_come_at_the_same_time_all_get_one_answer(federated, tmp_path, monkeypatch):
    """A server that was killed and resumed greets and asks again while the node still works for
    the message before, and every message is a process of its own.
    """
    server, grid = federated(train={"rounds": 2}, privacy={"noise": "distributed"})
    context, greetings = multiprocessing.get_context("fork"), {}
    hello, task = Node.hello, Node.task

    def greeted(self, content):
        greetings[self.client] = content
        return hello(self, content)

    def asked_at_once(self, content):
        told = context.SimpleQueue()
        slow = replace(self, work=lambda one: time.sleep(0.05) or self.work(one))

        def put(question):
            try:
                told.put(question())
            except Exception as error:
                told.put(error)

        questions = [
            lambda: read_answer(task(slow, content)).to_bytes(None),
            lambda: read_introduction(hello(self, greetings[self.client])),
        ] * 4
        asked = [context.Process(target=put, args=(question,)) for question in questions]
        for one in asked:
            one.start()
        heard = [told.get() for _ in asked]
        for one in asked:
            one.join()
        (answer,) = {one for one in heard if isinstance(one, bytes)}
        (introduction,) = {one for one in heard if not isinstance(one, bytes)}
        assert isinstance(introduction, Introduction)
        assert introduction.client == self.client
        return sent_content(answer)

    monkeypatch.setattr(Node, "hello", greeted)
    monkeypatch.setattr(Node, "task", asked_at_once)
    result = trained(server, grid, tmp_path)
    assert not any(line.get("lost") for line in result.metrics)
    within_budgets(tmp_path)


@pytest.mark.full
def test_restarted_nodes_go_on_from_their_accounts(federated, tmp_path):
    server, grid = federated(privacy={"rate": 1.0}, faults={"south": Fault(drop=True, times=1)})
    grid.faults = {}

    def restart(*_):
        for place in grid.places.values():
            client = place.node.client
            config = merged(node_config(client, server, tmp_path), account_of(client, tmp_path))
            place.node = open_node(config)

    result = trained(server, grid, tmp_path, on_round=restart)
    assert not any(line.get("lost") for line in result.metrics)
    for client in CLIENTS:
        assert charges(tmp_path / client / "ledger.db", "commit") == [0, 1, 2, 3]
    within_budgets(tmp_path)


@pytest.mark.parametrize("what", ["copied", "removed"])
def test_a_node_whose_ledger_was_tampered_with_is_left_out(federated, tmp_path, what, caplog):
    server, grid = federated(privacy={"rate": 1.0})
    own = tmp_path / "south" / "ledger.db"
    shutil.copy(own, tmp_path / "old.db")

    def tamper(line, _rounds):
        if line["round"] == 2:
            own.unlink()
            if what == "copied":
                shutil.copy(tmp_path / "old.db", own)

    result = trained(server, grid, tmp_path, on_round=tamper)
    assert len(result.metrics) == 4
    assert "client south declined" in caplog.text
    for client in CLIENTS:
        if client != "south":
            assert charges(tmp_path / client / "ledger.db", "commit") == [0, 1, 2, 3]
    if what == "copied":
        with pytest.raises(FedspendError, match="old copy was restored"):
            Ledger.open(own)


@pytest.mark.full
def test_a_task_that_was_changed_on_the_way_is_not_done(federated, tmp_path, caplog):
    """A server, or whoever is in between, that asks for less noise and a larger clip."""
    server, grid = federated(privacy={"rate": 1.0, "noise": "discrete-distributed"})
    place = node(grid, "west")
    honest = place.node

    class Between:
        def __getattr__(self, name):
            return getattr(honest, name)

        def task(self, content):
            task = read_task(content)
            loud = replace(task, shared=replace(task.shared, own_deviation=0.0))
            long = replace(task, clip_norm=task.clip_norm * 2)
            for wrong in (loud, long):
                reply = read_answer(honest.task(task_content(wrong)))
                assert reply.reason == "terms"
            return honest.task(content)

    place.node = Between()
    trained(server, grid, tmp_path)
    assert charges(tmp_path / "west" / "ledger.db", "commit") == [0, 1, 2, 3]
    assert "own noise" in caplog.text


def test_the_slice_of_another_client_or_of_a_stranger_is_refused(federated, tmp_path):
    server, _ = federated(approve=False)
    config = merged(node_config("north", server, tmp_path), account_of("north", tmp_path))
    with pytest.raises(Refused, match="is for client 'south'"):
        approve_own(config, slice_file(tmp_path, "south"))
    forged = json.loads(slice_file(tmp_path, "north").read_text())
    forged["own"]["plan"]["clients"]["budget"] = [1.0]
    (tmp_path / "forged.json").write_text(json.dumps(forged))
    with pytest.raises(Refused, match="its proof is forged"):
        approve_own(config, tmp_path / "forged.json")
    assert not (tmp_path / "north" / "ledger.db").exists()


def test_a_client_with_less_budget_than_planned_does_not_approve(federated, tmp_path):
    server, grid = federated(approve=False)
    own = account_of("north", tmp_path, budget=7.0)
    with pytest.raises(Refused, match="would exceed the lifetime budget of 7"):
        approve_own(
            merged(node_config("north", server, tmp_path), own), slice_file(tmp_path, "north")
        )
    with pytest.raises(InvalidInput, match="takes no part"):
        trained(server, grid, tmp_path)


@pytest.mark.full
def test_a_run_goes_on_with_a_rotated_key_and_not_with_the_old_one(federated, tmp_path):
    server, grid = federated(privacy={"rate": 1.0})
    with killed(round=2):
        trained(server, grid, tmp_path)
    (tmp_path / "new").mkdir()
    make_node_key(tmp_path / "new")
    old, new = tmp_path / "north" / "node.key", tmp_path / "new" / "node.key"
    rotation = signed_by(old, Rotation("north", public_of(old), public_of(new)))
    config = merged(node_config("north", server, tmp_path), account_of("north", tmp_path))
    node_ledger(any_config(config)).rotate(rotation, "yearly")
    keys = tmp_path / "keys.csv"
    before = keys.read_text()
    assert replaced(keys, rotation.old, rotation.new)
    with pytest.raises(Refused, match="if it was rotated, enter that first"):
        trained(server, grid, tmp_path, resume=True)
    with Ledger.open(tmp_path / "accounts.db", write=True) as ledger:
        ledger.rotate_key(*("north", rotation.old, rotation.new), reason="yearly")
    # the node still has its old key: it stands for nobody, and the round goes on without it
    with killed():
        trained(server, grid, tmp_path, resume=True)
    assert charges(tmp_path / "north" / "ledger.db", "commit") == [0, 1]
    node(grid, "north").key = public_of(new).encode()
    assert len(trained(server, grid, tmp_path, resume=True).metrics) == 4
    assert charges(tmp_path / "north" / "ledger.db", "commit") == [0, 1, 3]
    assert charges(tmp_path / "north" / "ledger.db") == [0, 1, 2, 3]
    keys.write_text(before)
    with pytest.raises(Refused, match="has given up"):
        trained(server, grid, tmp_path, resume=True)
    for path in (tmp_path / "accounts.db", tmp_path / "north" / "ledger.db"):
        kinds = [entry["kind"] for entry in entries_of(path)]
        assert (kinds.count("keys"), kinds.count("rotate-key")) == (1, 1)
    within_budgets(tmp_path)


def test_slices_for_another_key_do_not_begin_a_run(federated, tmp_path):
    server, grid = federated()
    (tmp_path / "new").mkdir()
    make_node_key(tmp_path / "new")
    new = public_of(tmp_path / "new" / "node.key")
    replaced(tmp_path / "keys.csv", public_of(tmp_path / "north" / "node.key"), new)
    node(grid, "north").key = new.encode()
    with pytest.raises(Refused, match="the slice of client 'north' was made for another key"):
        trained(server, grid, tmp_path)
    assert not (tmp_path / "run").exists()


# --- the rows behind the account ---

RUNS = "0123456789ab", "ba9876543210", "00112233aabb"


@pytest.fixture
def clinic(tmp_path, monkeypatch):
    """A node with a file of its own: `write(seed)` writes its rows, `asked(run, round)` is what it
    says to a task of that run, which it has approved.
    """
    monkeypatch.setattr(offers, "SIZE", 6)  # of a logistic model of two columns
    state, delta = str(tmp_path / "state"), offers.DELTA
    config = {
        "node": {"client": "north", "state": state, "budget": 12.0, "delta": delta},
        "data": {"name": "csv", "classes": 2, "label": "label", "path": str(tmp_path / "rows.csv")},
        "model": {"name": "logistic"},
        "ledger": {"location": str(tmp_path / "ledger.db")},
    }
    made = {}

    def write(seed, *, backwards=False):
        drawn = np.random.default_rng(seed)
        lines = [f"{a:.3f},{b:.3f},{int(a < b)}" for a, b in drawn.random((9, 2))]
        lines = lines[::-1] if backwards else lines
        (tmp_path / "rows.csv").write_text("\n".join(["a,b,label", *lines]) + "\n")

    def asked(run, round=0):
        if run not in made:
            made[run] = offers.offered(offers.planned(), run=run, size=6)
            approving = node_ledger(any_config(config))
            approving.approve(made[run].slice_of(0))
        task = offers.task_of(made[run], round=round)
        return read_answer(open_node(config).task(task_content(task)))

    return write, asked


@pytest.mark.full
def test_a_node_notices_that_the_rows_behind_its_account_are_others(clinic, tmp_path, caplog):
    write, asked = clinic
    first, second, third = RUNS
    write(1)
    assert isinstance(asked(first), Contribution)
    write(1, backwards=True)  # the same rows, in another order; and a new process of the same run
    assert isinstance(asked(first, 1), Contribution)
    assert isinstance(asked(second), Contribution)
    write(2)
    before = charges(tmp_path / "ledger.db")
    for run, round in ((first, 2), (third, 0)):  # one that goes on, and one that begins
        assert asked(run, round) == Refusal("account")
    assert charges(tmp_path / "ledger.db") == before, "nothing is charged"
    accepting = f"fedspend ledger accept-rows north --reason WORDS --ledger {tmp_path}/ledger.db"
    assert accepting in caplog.text
    with Ledger.open(tmp_path / "ledger.db", write=True) as ledger:
        ledger.accept_rows(["north"], reason="data of 2027 added")
    assert isinstance(asked(third), Contribution)
    assert isinstance(asked(first, 2), Contribution)
    write(1)
    assert asked(third, 1) == Refusal("account"), "what was accepted are the new rows"
    assert "rows.csv" not in (tmp_path / "ledger.db.rows").read_text()
    assert (tmp_path / "ledger.db.rows").stat().st_mode & 0o077 == 0


def test_a_node_with_other_rows_does_not_join_either(clinic, tmp_path):
    """Joining charges the first round."""
    write, asked = clinic
    write(1)
    assert isinstance(asked(RUNS[0]), Contribution)
    account = NodeLedger(
        client="north",
        location=str(tmp_path / "ledger.db"),
        folder=tmp_path / "state",
        simulation=False,
        budget=12.0,
        delta=offers.DELTA,
        rows=b"other",
    )
    offer = offers.offered(offers.planned(), run=RUNS[1], size=6)
    account.approve(offer.slice_of(0))
    before = charges(tmp_path / "ledger.db")
    with pytest.raises(Declined, match="accept-rows"):
        account.join(offer.root)
    assert charges(tmp_path / "ledger.db") == before


def test_no_real_slices_are_made_that_tell_budgets_of_others(tiny, tmp_path):
    with pytest.raises(Refused, match=r"no slices were made.*'individual-rates'"):
        consortium(tiny, tmp_path, privacy={"policy": "individual-rates"})
    assert not (tmp_path / "slices").exists()
