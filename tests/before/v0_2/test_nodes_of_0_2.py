"""Both sides of runs over Flower, as version 0.2.0 left them: slices, accounts of nodes, rotations
of keys, silos with records, certificates and messages; and they go on.
"""

from __future__ import annotations

import dataclasses
import json

import numpy as np
import pytest

pytest.importorskip("flwr")

from before.v0_2.kept import message_as_json, message_from_json, read_json
from before.v0_2.probed import ROUNDING, apart, machine, same_machine
from before.v0_2.same import differences
from flower.in_process import InProcessGrid, Place

import fedspend
from fedspend.client.contribution import Contribution
from fedspend.engines.flower import line
from fedspend.engines.flower.keys import read_keys
from fedspend.engines.flower.wire import (
    Refusal,
    read_answer,
    read_introduction,
    read_task,
    task_content,
)
from fedspend.errors import InvalidInput
from fedspend.flower.node import open_node

pytestmark = pytest.mark.filterwarnings("ignore::fedspend.errors.FedspendWarning")

NODES = ("north", "south", "west", "harbour")
SILOS = ("north", "south", "harbour")
OFFERS = ("first", "second", "third")
SIMULATED = ("central", "distributed", "discrete", "adaptive", "adaptive-distributed")


def node_toml(files, client, federation="consortium"):
    """A copy of all that is at a node; its config."""
    return files.bring(f"{federation}/nodes/{client}") / "node.toml"


# --- slices and accounts ---


# These name a key that the node has given up since.
OLD_KEY = {("first", "north"), *((offer, "south") for offer in OFFERS)}


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize(
    ("offer", "client"),
    [(offer, client) for offer in OFFERS for client in NODES if (offer, client) not in OLD_KEY],
)
def test_a_slice_says_what_it_said(told, files, said, offer, client):
    slice, config = files.bring(f"consortium/{offer}/{client}.slice.json"), node_toml(files, client)
    found = told("node", "approve", slice, "--show", "--config", config)
    stored = said["slices"][f"{offer}/{client}"]
    assert not differences(found, stored, 1e-9)


@pytest.mark.parametrize(("offer", "client"), sorted(OLD_KEY))
def test_a_slice_for_a_key_that_was_given_up_is_refused(run, files, offer, client):
    slice = files.bring(f"consortium/{offer}/{client}.slice.json")
    outcome = run("node", "approve", slice, "--config", node_toml(files, client))
    assert outcome.code == 1
    assert "key" in outcome.err


@pytest.mark.full
@pytest.mark.parametrize("client", NODES)
def test_a_new_slice_is_approved_and_the_account_goes_on(run, told, files, said, client):
    """The third offer was not approved by anybody; south made its new key after it."""
    slice, config = files.bring(f"consortium/third/{client}.slice.json"), node_toml(files, client)
    at = ("--config", config)
    stored = said["nodes"][client]["balance"]
    found = told("node", "balance", *at)
    assert not differences(found, stored | {"ledger": found["ledger"]}, 1e-9)
    assert not differences(told("node", "history", *at), said["nodes"][client]["history"], 0)
    approved = run("node", "approve", slice, *at)
    assert approved.code == (1 if client == "south" else 0), approved
    after = told("node", "balance", *at)
    assert after["spent"] == pytest.approx(stored["spent"])
    assert (after["reserved"] > stored["reserved"] + 0.1) == (client != "south")
    assert after["spent"] + after["reserved"] <= after["budget"]
    ledger = files.folder / f"consortium/nodes/{client}/ledger.db"
    assert run("ledger", "verify", "--ledger", ledger).code == 0


def test_a_slice_with_another_number_is_refused(run, files):
    path, config = files.bring("consortium/third/west.slice.json"), node_toml(files, "west")
    content = json.loads(path.read_text())
    content["terms"]["clients"] += 1
    path.write_text(json.dumps(content))
    assert run("node", "approve", path, "--config", config).code == 1


def test_a_node_leaves_its_open_run(told, files, said):
    config = node_toml(files, "west")
    (open_one,) = [
        one["run"]
        for one in said["nodes"]["west"]["balance"]["runs"]
        if one["status"] == "open" and one["charged"] < one["rounds"]
    ]
    left = told("node", "leave", open_one, "--reason", "the study ended", "--config", config)
    assert left["charged"] == left["rounds"] == 4
    after = told("node", "balance", "--config", config)
    assert after["spent"] == pytest.approx(
        said["nodes"]["west"]["balance"]["spent"] + said["nodes"]["west"]["balance"]["reserved"],
        rel=1e-6,
    )


# --- messages ---


def message(files, name):
    return read_json(files.bring(f"wire/{name}.json"))


def simulated(files, kind):
    return files.bring(f"simulated/{kind}-1.toml")


def test_every_message_is_read_and_says_the_same_when_it_is_sent_again(files):
    tasks = answers = 0
    for path in sorted(files.bring("wire").iterdir()):
        stored = read_json(path)
        content = message_from_json(stored["asked"])
        assert message_as_json(content) == stored["asked"]
        if "hello" in path.name:
            introduction = read_introduction(message_from_json(stored["answer"]))
            assert introduction.client == stored["client"]
            continue
        task = read_task(content)
        assert task.client == stored["client"]
        assert message_as_json(task_content(task)) == stored["asked"], path.name
        tasks += 1
        if "answer" in stored:
            answer = read_answer(message_from_json(stored["answer"]))
            assert isinstance(answer, Contribution), path.name
            assert answer.round == task.shared.round
            answers += 1
    assert tasks > answers >= 10


@pytest.mark.full(but_every=2)
@pytest.mark.parametrize("kind", SIMULATED)
def test_a_seeded_node_gives_the_answer_that_it_gave(files, kind):
    """All that it says but the mask, which is drawn anew for each message."""
    stored = message(files, f"simulated-{kind}")
    node = open_node(simulated(files, kind))
    answered = node.task(message_from_json(stored["asked"]))
    found, wanted = read_answer(answered), read_answer(message_from_json(stored["answer"]))
    assert isinstance(found, Contribution)
    assert isinstance(wanted, Contribution)
    for field in dataclasses.fields(Contribution):
        ours, theirs = getattr(found, field.name), getattr(wanted, field.name)
        if not isinstance(theirs, np.ndarray):
            assert ours == theirs, field.name
        elif same_machine():
            assert ours.dtype == theirs.dtype
            assert np.array_equal(ours, theirs), f"{field.name}, compared {machine()}"
        elif theirs.dtype.kind == "f":
            assert apart(ours, theirs) <= ROUNDING, f"{field.name}, compared {machine()}"
        else:  # rounded to a grid at random: a step up or down
            assert ours.shape == theirs.shape
            assert (np.abs(ours.astype(np.int64) - theirs.astype(np.int64)) <= 4).mean() > 0.9


def test_a_task_that_nobody_has_answered_is_answered_and_charged_once(told, files):
    stored = message(files, "task-not-answered")
    client = stored["client"]
    config = node_toml(files, client)
    before = told("node", "balance", "--config", config)
    node = open_node(config)
    answer = read_answer(node.task(message_from_json(stored["asked"])))
    assert isinstance(answer, Contribution)
    assert answer.round == 2
    after = told("node", "balance", "--config", config)
    assert after["spent"] > before["spent"] + 0.01
    again = read_answer(open_node(config).task(message_from_json(stored["asked"])))
    assert isinstance(again, Contribution)
    assert np.array_equal(again.vector, answer.vector), "one answer leaves in a round"
    assert told("node", "balance", "--config", config)["spent"] == after["spent"]
    last = told("node", "history", "--config", config)[-1]
    assert (last["kind"], last["round"]) == ("commit", 2)


def test_the_last_task_gets_the_answer_that_was_given_and_an_older_one_none(files):
    """The node remembers its last answer, and never gives two to one round."""
    client = message(files, "task-not-answered")["client"]
    rounds = [t for t in (0, 1) if (files.original / f"wire/task-{t}-{client}.json").exists()]
    node = open_node(node_toml(files, client))
    for t in rounds:
        stored = message(files, f"task-{t}-{client}")
        answer = read_answer(node.task(message_from_json(stored["asked"])))
        if t == max(rounds):
            given = read_answer(message_from_json(stored["answer"]))
            assert isinstance(answer, Contribution)
            assert np.array_equal(answer.vector, given.vector)
        else:
            assert answer == Refusal("replayed")
    assert rounds


def test_a_task_with_other_terms_is_declined(files):
    stored = message(files, "task-not-answered")
    body = json.loads(stored["asked"]["about"]["body"])
    changed = _with_another_clip(body)
    stored["asked"]["about"]["body"] = json.dumps(changed, sort_keys=True)
    node = open_node(node_toml(files, stored["client"]))
    assert read_answer(node.task(message_from_json(stored["asked"]))) == Refusal("terms")


def _with_another_clip(body):
    changed = dict(body)
    changed["clip_norm"] = body["clip_norm"] * 1e12
    return changed


# --- silos ---


@pytest.mark.parametrize("client", SILOS)
def test_a_silo_says_what_it_said_and_keeps_its_certificate(told, files, said, client):
    config = node_toml(files, client, "silos")
    found, stored = told("node", "balance", "--config", config), said["silos"][client]["balance"]
    assert not differences(found, stored | {"ledger": found["ledger"]}, 1e-9)
    offered, planned = message(files, "silo-hello-1"), message(files, "silo-hello-2")
    node = open_node(config)
    if client == offered["client"]:
        # one offer gets one answer, however often it comes
        answers = [
            read_introduction(node.hello(message_from_json(one["asked"])))
            for one in (offered, planned)
        ]
        given = [read_introduction(message_from_json(one["answer"])) for one in (offered, planned)]
        assert [one.certificate for one in answers] == [one.certificate for one in given]
        assert answers[0].certificate


def test_a_silo_answers_the_task_that_was_not_answered(told, files):
    stored = message(files, "silo-task-not-answered")
    config = node_toml(files, stored["client"], "silos")
    before = told("node", "balance", "--config", config)["records"]
    answer = read_answer(open_node(config).task(message_from_json(stored["asked"])))
    assert isinstance(answer, Contribution)
    after = told("node", "balance", "--config", config)["records"]
    assert all(now["spent"] > was["spent"] for was, now in zip(before, after, strict=True))
    assert all(now["spent"] <= now["budget"] for now in after)


# --- whole runs, where they were made ---


def grid_of(folder, names):
    keys = read_keys(folder / "keys.csv")
    places = {
        n + 50: Place(open_node(folder / "nodes" / name / "node.toml"), keys[name].encode() + b"\n")
        for n, name in enumerate(names)
    }
    return InProcessGrid(places)


def train(monkeypatch, config, grid, folder, **options):
    with monkeypatch.context() as patch:
        patch.setattr(line, "Clock", lambda: grid.clock)
        return fedspend.train(config, grid=grid, output=folder, **options)


@pytest.mark.full
@pytest.mark.usefixtures("quick_verify")
def test_a_run_over_flower_goes_on_and_the_next_begins(told, done, in_its_place, monkeypatch):
    """The slices of the second run were approved; those of the third are approved here. South has
    a new key, which the server hears of first.
    """
    home, ledger = in_its_place / "consortium", in_its_place / "ledgers/clients.db"
    project = ("--ledger", ledger, "--project", "consortium")
    statement = home / "nodes/south/rotation.json"
    why = ("--reason", "yearly change", "--keys", home / "keys.csv")
    done("ledger", "rotate-key", statement, *why, *project)
    before = told("ledger", "balance", *project)
    result = train(
        monkeypatch,
        home / "second.toml",
        grid_of(home, NODES),
        in_its_place / "runs/consortium-stopped",
        resume=True,
        moved=True,
    )
    assert [bool(one.get("skipped")) for one in result.metrics] == [False, False, True, False]
    for was, now in zip(before, told("ledger", "balance", *project), strict=True):
        assert was["spent"] < now["spent"] < now["budget"]
    for client in ("north", "west", "harbour"):
        slice = home / f"third/{client}.slice.json"
        done("node", "approve", slice, "--config", home / f"nodes/{client}/node.toml")
    # not all have approved, so it does not begin: south's slice is for the key that it gave up
    with pytest.raises(InvalidInput, match=r"takes no part|cannot take part|no slice"):
        train(monkeypatch, home / "third.toml", grid_of(home, NODES), in_its_place / "runs/third")
    done("flower", "slices", home / "third.toml", "-o", home / "fourth")
    for client in NODES:
        slice = home / f"fourth/{client}.slice.json"
        done("node", "approve", slice, "--config", home / f"nodes/{client}/node.toml")
    config = (home / "third.toml").read_text().replace('"third"', '"fourth"')
    (home / "fourth.toml").write_text(config)
    result = train(
        monkeypatch, home / "fourth.toml", grid_of(home, NODES), in_its_place / "runs/fourth"
    )
    assert len(result.metrics) == 4
    done("ledger", "verify", "--ledger", ledger)
    for client in NODES:
        done("ledger", "verify", "--ledger", home / f"nodes/{client}/ledger.db")


@pytest.mark.full
@pytest.mark.usefixtures("quick_verify")
def test_a_run_over_silos_goes_on(done, told, in_its_place, monkeypatch):
    home, folder = in_its_place / "silos", in_its_place / "runs/silos-stopped"
    result = train(
        monkeypatch, home / "server.toml", grid_of(home, SILOS), folder, resume=True, moved=True
    )
    assert [bool(one.get("skipped")) for one in result.metrics] == [False, True, False]
    done("ledger", "verify", "--ledger", in_its_place / "ledgers/silos.db", "--runs", folder)
    for silo in SILOS:
        at = ("--config", home / f"nodes/{silo}/node.toml")
        assert all(one["spent"] <= one["budget"] for one in told("node", "balance", *at)["records"])
        done("ledger", "verify", "--ledger", told("node", "balance", *at)["ledger"])
