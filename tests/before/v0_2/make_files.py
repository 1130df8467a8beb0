"""Run with version 0.2.0; never again: `PYTHONPATH=tests python -m before.v0_2.make_files`.

Writes everything that version 0.2.0 writes into `files.tar.xz`, small: configs, rows, plans,
ledgers, run directories, folders of many runs, publications, and both sides of runs over Flower.
And `expected.json.gz`: what 0.2.0 said about them. It works in `kept.WHERE`.
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import platform
import shutil
import tarfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import places
import torch
from before.v0_2.configs import (
    CLIENTS,
    CONFIGS,
    FOLDERS,
    LOGISTIC,
    PLANS,
    RECORDS,
    SEARCH,
    TUNED,
    method,
)
from before.v0_2.kept import ARCHIVE, WHERE, message_as_json
from flower.in_process import InProcessGrid, Place

import fedspend
from fedspend.cli.main import main as command
from fedspend.configuration.config import load_config
from fedspend.engines.flower import line
from fedspend.flower.loopback import make_node_key
from fedspend.flower.node import open_node
from fedspend.runs.directory import RunDirectory

PLACES = ("north", "south", "east", "west")
SILOS = ("north", "south", "harbour")
NODES = ("north", "south", "west", "harbour")


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def say(*argv: object, code: int = 0) -> str:
    """The answer of one command."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        found = command(list(map(str, argv)))
    assert found == code, (found, argv)
    return out.getvalue()


def told(*argv: object, code: int = 0) -> Any:
    return json.loads(say(*argv, "--json", code=code))


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


# --- rows and budgets ---


def make_inputs() -> None:
    generator = np.random.Generator(np.random.Philox(7))

    def row(label: int) -> str:
        values = generator.integers(-100, 101, 4) + 60 * (2 * label - 1)
        return ",".join(f"{value / 100:.2f}" for value in values)

    def label() -> int:
        return int(generator.integers(2))

    people = []
    for number in range(80):
        found = label()
        people.append(f"{PLACES[number % 4]},{found},{row(found)}")
    for name, kept in (("people", PLACES), ("people-left", ("north", "east", "west"))):
        lines = [line for line in people if line.split(",")[0] in kept]
        write(f"{name}.csv", "\n".join(["client,label,a,b,c,d", *lines]) + "\n")
    public = [f"{found},{row(found)}" for found in (label() for _ in range(30))]
    write("public.csv", "\n".join(["label,a,b,c,d", *public]) + "\n")
    patients, theirs = ["id,client,label,a,b,c,d,epsilon"], ["record,epsilon"]
    for number in range(48):
        found, budget = label(), (0.5, 1, 2, 5)[int(generator.integers(4))]
        patients.append(f"p{number},{PLACES[number % 4]},{found},{row(found)},{budget}")
        theirs.append(f"p{number},{3 * budget}")
    write("lifetimes-of-patients.csv", "\n".join(theirs) + "\n")
    write("patients.csv", "\n".join(patients) + "\n")
    strict_and_open = ("strict", "strict", "open", "open")
    for name, budgets in (
        ("spending", (4, 5, 8, 12)),
        ("small", (1, 1, 2, 2)),
        ("lifetimes", (30, 30, 60, 60)),
    ):
        lines = [
            f"{client},{budget},{group}"
            for client, budget, group in zip(PLACES, budgets, strict_and_open, strict=True)
        ]
        write(f"{name}.csv", "\n".join(["client,epsilon,group", *lines]) + "\n")
        if name == "spending":
            del lines[1]
            write("spending-left.csv", "\n".join(["client,epsilon,group", *lines]) + "\n")
    write(
        "lifetimes.csv",
        Path("lifetimes.csv")
        .read_text()
        .replace(",strict", "")
        .replace(",open", "")
        .replace(",group", ""),
    )
    write(
        "wishes.csv",
        "client,epsilon,saving_rate,transition,group\n"
        "north,3,0.2,3,strict\nsouth,4,0.3,3,strict\neast,20,0.5,3,open\nwest,30,0.5,2,open\n",
    )
    for name, text in CONFIGS.items():
        write(f"{name}.toml", text)
    write("search.toml", SEARCH)
    say("keys", "new", "--out", "keys")


# --- run directories ---


def stop_after_two(record: dict[str, Any], _rounds: int) -> None:
    if record["round"] == 2:
        raise Killed


def stopped(config: Any, folder: str, **options: Any) -> None:
    with contextlib.suppress(Killed):
        fedspend.train(config, output=folder, on_round=stop_after_two, **options)
        raise AssertionError("the run was not stopped")


def killed(config: Any, folder: str, at: str, **options: Any) -> None:
    """Killed in round 3: at `commit` with the release on disk, at `keep` without it."""
    real = getattr(RunDirectory, at)

    def dies(self: RunDirectory, round: int, *more: object) -> None:
        if round == 2:
            raise Killed
        real(self, round, *more)

    with mock.patch.object(RunDirectory, at, dies), contextlib.suppress(Killed):
        fedspend.train(config, output=folder, **options)
        raise AssertionError("the run was not killed")


def own_ledger(folder: str) -> dict[str, str]:
    """A real run with its ledger in its own directory, so that both can be moved."""
    Path(folder).mkdir(parents=True)
    return {"ledger": f"{folder}/ledger.db"}


def make_runs() -> None:
    for name in (*CLIENTS, *RECORDS):
        reported = name in ("central", "votes", "records-by-norm", "plain")
        if reported:
            say("train", f"{name}.toml", "-o", f"runs/{name}-finished", "--quiet")
        else:
            fedspend.train(f"{name}.toml", output=f"runs/{name}-finished")
        stopped(f"{name}.toml", f"runs/{name}-stopped")
    for name in ("central", "adaptive-distributed", "records"):
        killed(f"{name}.toml", f"runs/{name}-killed-with-release", "commit")
        killed(f"{name}.toml", f"runs/{name}-killed-without-release", "keep")
    for name in ("real", "real-records"):
        folder = f"runs/{name}-finished"
        say(
            *("train", f"{name}.toml", "-o", folder, "--quiet", "--sign", "keys/fedspend.key"),
            *("--ledger", own_ledger(folder)["ledger"]),
        )
        folder = f"runs/{name}-stopped"
        stopped(f"{name}.toml", folder, **own_ledger(folder))
        for how, at in (("with", "commit"), ("without", "keep")):
            folder = f"runs/{name}-killed-{how}-release"
            killed(f"{name}.toml", folder, at, **own_ledger(folder))
        folder = f"runs/{name}-replanned"
        killed(f"{name}.toml", folder, "keep", **own_ledger(folder))
        with contextlib.suppress(Killed):
            fedspend.train(
                f"{name}.toml", output=folder, resume=True, replan=True, on_round=stop_after_round_4
            )
            raise AssertionError("the run was not stopped")
    folder = "runs/people-held-out-finished"
    say(
        *("train", "people-held-out.toml", "-o", folder, "--quiet"),
        *("--ledger", own_ledger(folder)["ledger"]),
    )
    folder = "runs/people-held-out-stopped"
    stopped("people-held-out.toml", folder, **own_ledger(folder))
    # priced, drawn and charged; an interrupted one is charged, and nothing of it goes on
    say("tune", "central.toml", *TUNED, "-o", "runs/tuned-finished")
    import fedspend.tuning.private as private

    with mock.patch.object(private, "play", side_effect=Killed), contextlib.suppress(Killed):
        say("tune", "central.toml", *TUNED, "-o", "runs/tuned-interrupted")
        raise AssertionError("the tune was not interrupted")


def stop_after_round_4(record: dict[str, Any], _rounds: int) -> None:
    if record["round"] == 4:
        raise Killed


def make_folders() -> None:
    for arguments in FOLDERS.values():
        say(*arguments)
    say("design", "influence", "central.toml", "-o", "folders/influence.json", "--quiet")
    say("audit", "central.toml", "--trials", "20", "-o", "folders/audit.json", "--quiet")
    say("audit", "records.toml", "--trials", "4", "-o", "folders/audit-records.json", "--quiet")


# --- ledgers of real accounts: every kind of entry ---


def fill(ledger: str, runs: str) -> None:
    """Clients and records, in projects, with everything that can happen to them."""
    at = ("--ledger", ledger)
    clinics = (*at, "--project", "clinics")
    say("ledger", "init", *at)
    say("ledger", "register", "lifetimes.csv", "--delta", "1e-3", *clinics)
    say("train", "people.toml", "-o", f"{runs}-finished", "--quiet", *clinics)
    say("ledger", "change", "east", "--epsilon", "61", "--reason", "new consent form", *clinics)
    say("ledger", "accept-rows", "north", "--reason", "a typing error was mended", *clinics)
    killed("people.toml", f"{runs}-lost", "keep", ledger=ledger, project="clinics")
    shutil.move(f"{runs}-lost", f"{runs}-replanned")
    say(
        *("train", "people.toml", "-o", f"{runs}-replanned", "--quiet", *clinics),
        *("--resume", "--replan", "--moved"),
    )
    say(
        *("train", "people-stopping.toml", "-o", f"{runs}-stopped-early", "--quiet", *clinics),
        *("--set", "stop.least=0.9"),
    )
    say("tune", "people.toml", *TUNED, "-o", f"{runs}-tuned", *clinics)
    say("ledger", "withdraw", "south", "--reason", "asked by letter", *clinics)
    stopped("people-rest.toml", f"{runs}-stopped", ledger=ledger, project="clinics")
    patients = (*at, "--project", "patients")
    say("train", "patients.toml", "-o", f"{runs}-patients-finished", "--quiet", *patients)
    unit = ("--unit", "record")
    say("ledger", "change", "p5", "--epsilon", "7", "--reason", "more", *unit, *patients)
    say("ledger", "withdraw", "p7", "p9", "--reason", "asked", *unit, *patients)
    say("ledger", "accept-rows", "p1", "--reason", "mended", *unit, *patients)


def make_ledgers() -> None:
    Path("ledgers").mkdir()
    fill("ledgers/clients.db", "runs/people")
    # of which every account has something left
    at = ("--ledger", "ledgers/left.db", "--quiet")
    say("ledger", "init", *at[:2])
    for config, project, lifetimes, unit in (
        ("people.toml", "clinics", "lifetimes.csv", "client"),
        ("patients.toml", "patients", "lifetimes-of-patients.csv", "record"),
    ):
        terms = ("--delta", "1e-3", "--unit", unit, "--project", project)
        say("ledger", "register", lifetimes, *terms, *at[:2])
        say("train", config, "-o", f"aside/{project}", "--project", project, *at)
    # a simulation's, with accounts of records alone
    fedspend.train(
        "records.toml",
        output="runs/records-charged-finished",
        ledger="ledgers/simulated.db",
        overrides=["train.rounds=3"],
    )
    with server() as place:
        os.environ["FEDSPEND_ROWS"] = f"{WHERE}/ledgers/rows"
        fill(place, "aside/people")
        make_consortium("aside/consortium", {"location": place, "project": "consortium"})
        write("ledgers/postgres.sql", as_sql(place))
        EXPECTED["ledgers"]["postgres"] = what_a_ledger_says(place)
        del os.environ["FEDSPEND_ROWS"]


@contextlib.contextmanager
def server() -> Iterator[str]:
    """A database of its own on a PostgreSQL server."""
    folder = f"{WHERE}-postgres"
    os.mkdir(folder)
    running = places.Server(folder)
    try:
        yield running.new_database()
    finally:
        running.close()
        shutil.rmtree(folder, ignore_errors=True)


def as_sql(place: str) -> str:
    """The tables as statements for psql or a driver."""
    lines = [
        "CREATE TABLE fedspend_schema (version INTEGER NOT NULL);",
        "INSERT INTO fedspend_schema VALUES (1);",
        "CREATE TABLE fedspend_entries (number BIGINT PRIMARY KEY, body BYTEA NOT NULL, "
        "hash BYTEA NOT NULL);",
    ]
    lines += [
        rf"INSERT INTO fedspend_entries VALUES ({number}, '\x{body.hex()}', '\x{hash.hex()}');"
        for number, body, hash in places.rows_of(place)
    ]
    return "\n".join(lines) + "\n"


def opened(place: str, project: str) -> Any:
    from fedspend.ledger import Ledger

    return Ledger.open(place, **({"project": project} if project else {}))


def what_a_ledger_says(place: str) -> dict[str, Any]:
    at = ("--ledger", place)
    from fedspend.ledger import Ledger

    found: dict[str, Any] = {"show": told("ledger", "show", *at), "accounts": {}}
    with Ledger.open(place) as ledger:
        names = ledger.state.projects
    for project in ("", *names):
        named = ("--project", project) if project else ()
        for unit in ("client", "record"):
            with opened(place, project) as ledger:
                if not len(ledger.accounts(unit)):
                    continue
            found["accounts"][f"{project}/{unit}"] = {
                "balances": told("ledger", "balance", *at, *named, "--unit", unit),
                "history": told("ledger", "history", *at, *named, "--unit", unit),
            }
    with Ledger.open(place) as ledger:
        found["kinds"] = [json.loads(text)["kind"] for _, text, _ in ledger.entries()]
    found["head"] = told("ledger", "verify", *at)["head"]
    return found


# --- runs over Flower ---

SERVER = """[data]
name = "csv"
classes = 2
test_path = "{public}"
{model}
[train]
rounds = 4
local_steps = 3
batch_size = 8
lr = 0.3
seed = 5
{method}
[privacy]
budgets = "budgets.csv"
delta = 1e-3
rate = 0.9
clip = 0.5
{more}
[engine]
name = "flower"
keys = "keys.csv"
slices = "{slices}"
deadline = 9.0

[ledger]
location = "../ledgers/clients.db"
project = "consortium"
"""
NODE = """[node]
client = "{client}"
budget = {budget}
delta = 1e-3
key = "node.key"

[data]
name = "csv"
classes = 2
path = "rows.csv"

[model]
name = "logistic"

[train]
seed = 5
"""
BUDGETS = dict(zip(NODES, (3, 4, 6, 8), strict=True))
OFFERS = {  # a folder of slices -> the method, and what else the server's config says
    "first": ("idp-fedavg", ""),
    "second": ("adaptive-clip", 'noise = "discrete-distributed"\n'),
    "third": ("idp-fedavg", 'noise = "discrete-distributed"\n'),
}


class Listening:
    """A node whose messages are heard; `heard` may raise in place of an answer."""

    def __init__(self, node: Any, heard: Callable[[str, str, Any, Any], None]) -> None:
        self._node, self._heard = node, heard

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def hello(self, content: Any) -> Any:
        return self._asked("hello", content)

    def task(self, content: Any) -> Any:
        return self._asked("task", content)

    def _asked(self, kind: str, content: Any) -> Any:
        self._heard(self._node.client, kind, content, None)
        answer = getattr(self._node, kind)(content)
        self._heard(self._node.client, kind, content, answer)
        return answer


def keep_message(name: str, client: str, asked: Any, answer: Any = None) -> None:
    said = {"client": client, "asked": message_as_json(asked)}
    said |= {} if answer is None else {"answer": message_as_json(answer)}
    write(f"wire/{name}.json", json.dumps(said, indent=1) + "\n")


def round_of(asked: Any) -> int:
    from fedspend.engines.flower.wire import read_task

    return read_task(asked).shared.round


def nodes_in(folder: str, names: tuple[str, ...]) -> dict[int, Place]:
    return {
        n + 50: Place(
            open_node(f"{folder}/nodes/{name}/node.toml"),
            key.encode() + b"\n" if (key := pem(folder, name)) else b"",
        )
        for n, name in enumerate(names)
    }


def pem(folder: str, name: str) -> str:
    from fedspend.engines.flower.keys import read_keys

    path = Path(f"{folder}/keys.csv")
    return read_keys(path)[name] if path.exists() else ""


def federated(config: Any, grid: InProcessGrid, folder: str, **options: Any) -> Any:
    with mock.patch.object(line, "Clock", return_value=grid.clock):
        return fedspend.train(config, grid=grid, output=folder, **options)


def make_consortium(folder: str, ledger: dict[str, str] | None = None) -> None:
    """Four organisations with keys, accounts and slices that they approve. Without a `ledger`: a
    finished run, one that was killed when a node got its third task, and slices that nobody has
    approved yet; two nodes have new keys, of which the server knows one.
    """
    generator = np.random.Generator(np.random.Philox(8))
    lines, budgets, tests = ["client,key"], ["client,epsilon"], ["a,b,c,label"]
    for number, client in enumerate(NODES):
        rows = ["a,b,c,label"]
        for _ in range(12 + 3 * number):
            values = generator.integers(-100, 101, 3) / 100
            rows.append(",".join(f"{x:.2f}" for x in values) + f",{int(values.sum() > 0)}")
        tests += rows[1:5]
        write(f"{folder}/nodes/{client}/rows.csv", "\n".join(rows) + "\n")
        budget = 5 * BUDGETS[client]
        write(f"{folder}/nodes/{client}/node.toml", NODE.format(client=client, budget=budget))
        lines.append(f"{client},{make_node_key(Path(f'{folder}/nodes/{client}'))}")
        budgets.append(f"{client},{BUDGETS[client]}")
    write(f"{folder}/keys.csv", "\n".join(lines) + "\n")
    write(f"{folder}/budgets.csv", "\n".join(budgets) + "\n")
    write(f"{folder}/public.csv", "\n".join(tests) + "\n")
    lifetimes = [f"{client},{5 * BUDGETS[client]}" for client in NODES]
    write(f"{folder}/lifetimes.csv", "\n".join(["client,epsilon", *lifetimes]) + "\n")
    server = "ledgers/clients.db" if ledger is None else ledger["location"]
    say(
        *("ledger", "register", f"{folder}/lifetimes.csv", "--delta", "1e-3"),
        *("--ledger", server, "--project", "consortium"),
    )
    for offer, (name, more) in OFFERS.items():
        text = SERVER.format(
            public="public.csv", model=LOGISTIC, method=method(name), more=more, slices=offer
        )
        if ledger is not None:
            text = text.replace("../ledgers/clients.db", ledger["location"])
        write(f"{folder}/{offer}.toml", text)

    def offered(offer: str, *, approve: bool) -> None:
        say("flower", "slices", f"{folder}/{offer}.toml", "-o", f"{folder}/{offer}")
        for client in NODES if approve else ():
            say(
                *("node", "approve", f"{folder}/{offer}/{client}.slice.json"),
                *("--config", f"{folder}/nodes/{client}/node.toml"),
            )

    def rotated(client: str) -> None:
        home = Path(f"{folder}/nodes/{client}")
        (home / "new").mkdir()
        make_node_key(home / "new")
        say(
            *("node", "rotate-key", home / "new" / "node.key", "--config", home / "node.toml"),
            *("-o", home / "rotation.json", "--reason", "yearly change"),
        )
        for name in ("node.key", "node.key.pub"):
            shutil.move(home / name, home / f"old-{name}")
            shutil.move(home / "new" / name, home / name)
        (home / "new").rmdir()

    runs = "runs/consortium" if ledger is None else f"{folder}/run"
    offered("first", approve=True)
    federated(f"{folder}/first.toml", InProcessGrid(nodes_in(folder, NODES)), f"{runs}-finished")
    rotated("north")
    say(
        *("ledger", "rotate-key", f"{folder}/nodes/north/rotation.json"),
        *("--keys", f"{folder}/keys.csv", "--reason", "yearly change", "--project", "consortium"),
        *("--ledger", server),
    )
    if ledger is not None:
        return
    offered("second", approve=True)
    grid = InProcessGrid(nodes_in(folder, NODES))

    def heard(client: str, kind: str, asked: Any, answer: Any) -> None:
        if kind == "hello" and answer is not None and client == "north":
            keep_message("hello", client, asked, answer)
        if kind != "task":
            return
        if round_of(asked) == 2:
            keep_message("task-not-answered", client, asked)
            raise Killed
        if answer is not None:
            keep_message(f"task-{round_of(asked)}-{client}", client, asked, answer)

    for place in grid.places.values():
        place.node = Listening(place.node, heard)
    with contextlib.suppress(Killed):
        federated(f"{folder}/second.toml", grid, f"{runs}-stopped")
        raise AssertionError("the run was not stopped")
    offered("third", approve=False)
    rotated("south")
    for client in NODES:
        at = ("--config", f"{folder}/nodes/{client}/node.toml")
        EXPECTED["nodes"][client] = {
            "balance": told("node", "balance", *at),
            "history": told("node", "history", *at),
        }
    for offer in OFFERS:
        for client in NODES:
            EXPECTED["slices"][f"{offer}/{client}"] = slice_in_words(folder, offer, client)


def slice_in_words(folder: str, offer: str, client: str) -> Any:
    """What a client is shown of a slice. A key that changed since would be refused."""
    from fedspend.approval.slices import load_slice
    from fedspend.approval.words import approved

    found = load_slice(f"{folder}/{offer}/{client}.slice.json")
    return approved(found) | {"epsilon": float(found.plan.epsilon[0]), "run": found.terms.run}


def make_simulated_messages() -> None:
    """Tasks and answers of seeded runs, of every kind: answers that can be computed again."""
    for kind in ("central", "distributed", "discrete", "adaptive", "adaptive-distributed"):
        config = {
            section: dict(values) for section, values in load_config(f"{kind}.toml").values.items()
        }
        config["engine"] = {"name": "flower", "deadline": 9.0}
        nodes = {}
        for number in range(6):
            text = simulated_node(kind, number)
            write(f"simulated/{kind}-{number}.toml", text)
            nodes[number + 50] = Place(open_node(f"simulated/{kind}-{number}.toml"))
        grid = InProcessGrid(nodes)

        def heard(client: str, asked_for: str, asked: Any, answer: Any, kind: str = kind) -> None:
            if asked_for == "task" and answer is not None and round_of(asked) == 1:
                name = f"simulated-{kind}"
                if not Path(f"wire/{name}.json").exists():
                    keep_message(name, client, asked, answer)

        for place in grid.places.values():
            place.node = Listening(place.node, heard)
        federated(config, grid, f"aside/simulated-{kind}")
    for path in Path("simulated").glob("*.toml"):
        if not any(
            json.loads(found.read_text())["client"] == path.stem[-1]
            and found.stem == f"simulated-{path.stem[:-2]}"
            for found in Path("wire").glob("simulated-*.json")
        ):
            path.unlink()
    shutil.rmtree("simulated/state", ignore_errors=True)


def simulated_node(kind: str, number: int) -> str:
    model = '\n[model]\nname = "mlp"\nhidden = [5]\n' if kind == "distributed" else LOGISTIC
    return (
        f'[node]\nclient = "{number}"\nstate = "state/{kind}-{number}"\n\n'
        f'[data]\nname = "synthetic"\nexamples = {20 + number}\nfeatures = 5\nclasses = 3\n'
        f"clients = 1\n{model}\n[train]\nseed = 4\n"
    )


SILO_SERVER = """[data]
name = "csv"
classes = 2
label = "label"
test_path = "public.csv"

[model]
name = "logistic"

[train]
rounds = 3
local_steps = 4
lr = 0.3
seed = 5

[method]
name = "rpdp"

[privacy]
delta = 1e-3
noise_multiplier = 2.0
rate = 1.0
clip = 0.8
randomness = "os"

[engine]
name = "flower"
keys = "keys.csv"
deadline = 20.0

[ledger]
location = "../ledgers/silos.db"
"""
SILO = """[node]
client = "{client}"
state = "state"
unit = "record"

[data]
name = "csv"
classes = 2
label = "label"
path = "rows.csv"
record = "id"
budget = "epsilon"

[model]
name = "logistic"

[privacy]
delta = 1e-3
randomness = "os"

[train]
seed = 5
"""


def make_silos() -> None:
    """Records that stay at three silos: a run that was killed when a silo got its second task."""
    generator = np.random.Generator(np.random.Philox(9))
    lines, tests = ["client,key"], ["a,b,c,label"]
    for n, client in enumerate(SILOS):
        rows = ["id,a,b,c,epsilon,label"]
        for number in range(6 + 2 * n):
            values = generator.integers(-100, 101, 3) / 100
            row = ",".join(f"{x:.2f}" for x in values)
            label = int(values.sum() > 0)
            rows.append(f"{client}-{number},{row},{(1, 3, 8)[number % 3] + n},{label}")
            tests.append(f"{row},{label}")
        write(f"silos/nodes/{client}/rows.csv", "\n".join(rows) + "\n")
        write(f"silos/nodes/{client}/node.toml", SILO.format(client=client))
        lines.append(f"{client},{make_node_key(Path(f'silos/nodes/{client}'))}")
    write("silos/keys.csv", "\n".join(lines) + "\n")
    write("silos/public.csv", "\n".join(tests[:12]) + "\n")
    write("silos/server.toml", SILO_SERVER)
    grid, hellos = InProcessGrid(nodes_in("silos", SILOS)), []

    def heard(client: str, kind: str, asked: Any, answer: Any) -> None:
        if kind == "hello" and answer is not None and client == "north":
            hellos.append(client)
            keep_message(f"silo-hello-{len(hellos)}", client, asked, answer)
        if kind == "task" and round_of(asked) == 1:
            keep_message("silo-task-not-answered", client, asked)
            raise Killed
        if kind == "task" and answer is not None:
            keep_message(f"silo-task-{round_of(asked)}-{client}", client, asked, answer)

    for place in grid.places.values():
        place.node = Listening(place.node, heard)
    with contextlib.suppress(Killed):
        federated("silos/server.toml", grid, "runs/silos-stopped")
        raise AssertionError("the run was not stopped")
    for client in SILOS:
        at = ("--config", f"silos/nodes/{client}/node.toml")
        EXPECTED["silos"][client] = {
            "balance": told("node", "balance", *at),
            "history": told("node", "history", *at),
        }


# --- publications, exports, plans ---

PUBLISHED = {
    "simulation": "central-finished",
    "clients": "real-finished",
    "records": "real-records-finished",
    "people": "people-finished",
    "consortium": "consortium-finished",
    "votes": "votes-finished",
    "metric": "metric-finished",
}


def make_publications() -> None:
    for name, run in PUBLISHED.items():
        folder = f"publications/{name}"
        say("publish", f"runs/{run}", "-o", folder, "--sign", "keys/fedspend.key")
        EXPECTED["publications"][name] = told("verify", folder, "--key", "keys/fedspend.pub")


def make_exports() -> None:
    for name in ("clients", "simulated"):
        for ending in ("json", "csv"):
            at = ("--ledger", f"ledgers/{name}.db", *in_a_project(name))
            say("ledger", "export", "-o", f"ledgers/{name}.{ending}", *at)
    write("ledgers/clients.json.head", EXPECTED["ledgers"]["clients"]["head"] + "\n")


def in_a_project(name: str) -> tuple[str, ...]:
    return ("--project", "clinics") if name == "clients" else ("--unit", "record")


def make_plans() -> None:
    Path("plans").mkdir()
    for name, arguments in PLANS.items():
        say("plan", *arguments, "-o", f"plans/{name}", "--quiet")
        EXPECTED["plans"][name] = told("verify", f"plans/{name}")


def make_predictions() -> None:
    for run, rows in (("people-finished", "public.csv"), ("real-records-finished", None)):
        if rows is None:
            rows = "rows.npz"
            generator = np.random.Generator(np.random.Philox(3))
            features = (generator.integers(-100, 101, (10, 5)) / 50).astype(np.float32)
            np.savez(rows, features=features)
        EXPECTED["predictions"][run] = told("predict", f"runs/{run}", rows, "--outputs")


def verify_runs() -> None:
    for folder in sorted(Path("runs").iterdir()):
        if folder.name.endswith(".clients"):
            continue
        with contextlib.redirect_stdout(io.StringIO()) as out:
            code = command(["verify", str(folder), "--json"])
        EXPECTED["runs"][folder.name] = {"code": code, **json.loads(out.getvalue())}


# --- all of it ---

PARTS = (
    *("ledgers", "nodes", "silos", "slices", "publications", "plans", "predictions", "runs"),
    "made with",
)
EXPECTED: dict[str, Any] = {part: {} for part in PARTS}


def refuse_traces(folder: Path) -> None:
    """Nothing may say where or by whom this was run, and no database may have been left open."""
    places = {str(Path(fedspend.__file__).parents[2]), str(ARCHIVE.parents[2]), platform.node()}
    traces = {one for one in places if len(one) > 3}  # shorter names are anywhere
    for path in sorted(folder.rglob("*")):
        assert not path.name.endswith(("-wal", "-shm")), path
        if path.suffix == ".png":
            path.unlink()  # plots are for people, and nothing reads them
            continue
        body = b"" if path.is_dir() else path.read_bytes()
        if path.suffix == ".gz":
            body = gzip.decompress(body)
        assert not [one for one in traces if one.encode() in body], path


def pack() -> None:
    """All files in one archive, with their modes."""

    def nobodys(member: tarfile.TarInfo) -> tarfile.TarInfo:
        member.uid = member.gid = 0
        member.uname = member.gname = ""
        return member

    with tarfile.open(ARCHIVE, "w:xz", preset=9) as archive:
        archive.add(WHERE, arcname=".", filter=nobodys)
    print(f"{ARCHIVE.stat().st_size:,} bytes")


def main() -> None:
    assert fedspend.__version__ == "0.2.0"
    assert not ARCHIVE.exists(), "these files are what later versions are held to"
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", fedspend.FedspendWarning)
    WHERE.mkdir()
    os.chdir(WHERE)
    os.environ["FEDSPEND_LEDGER"] = f"{WHERE}/aside/ledger.db"
    for part in (
        *(make_inputs, make_runs, make_folders, make_ledgers),
        *(lambda: make_consortium("consortium"), make_simulated_messages, make_silos),
        *(make_publications, make_plans, make_predictions),
    ):
        part()
        print(getattr(part, "__name__", part), flush=True)
    for name in ("clients", "left", "simulated", "silos"):
        EXPECTED["ledgers"][name] = what_a_ledger_says(f"ledgers/{name}.db")
    make_exports()
    verify_runs()
    EXPECTED["made with"] = json.loads(Path("runs/central-finished/run.json").read_text())[
        "environment"
    ]
    body = json.dumps(EXPECTED, indent=0).encode()
    Path("expected.json.gz").write_bytes(gzip.compress(body, mtime=0))
    shutil.rmtree("aside")
    refuse_traces(WHERE)
    os.chdir("/")
    pack()
    shutil.rmtree(WHERE)


if __name__ == "__main__":
    main()
