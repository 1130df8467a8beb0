"""Forged plans, certificates, ledgers, run directories and checkpoints: none passes, none raises,
and each is judged in bounded time.

They are generated from seeds. `make test` makes some of each kind;
FEDSPEND_FORGERIES=100 python -m pytest tests/runs/test_forgeries.py makes a hundred of each.
"""

import copy
import gzip
import json
import os
import random
import shutil
import sqlite3
import time
import zlib
from pathlib import Path

import numpy as np
import pytest
from lib.configs import small
from lib.runs import killed
from lib.verdicts import remembering
from owners import verify_run

import fedspend.server.rounds
from fedspend import train
from fedspend.basics.tensors import pack, read_tensors, seal
from fedspend.cli.main import main
from fedspend.errors import FedspendError
from fedspend.ledger.audit import audit
from fedspend.ledger.chain import START, link
from fedspend.ledger.chain import pack as pack_text
from fedspend.ledger.chain import unpack as unpack_text
from fedspend.planning.plan import Plan
from fedspend.planning.plan_json import canonical, hash_of
from fedspend.records.planning import plan_records
from fedspend.records.terms import Terms
from fedspend.report.html import write_report
from fedspend.stored.files import REPORT

EACH = int(os.environ.get("FEDSPEND_FORGERIES", "30"))
SECONDS = 40.0  # of processor time that judging one forgery may take; most take a tenth of one
WILD = (
    *(float("nan"), float("inf"), -float("inf"), -1.0, 0.0),
    *("", "1", "x" * 5000, None, True, [], {}, [[]], {"a": {"b": []}}, -(10**30), [1e308] * 50),
)


class Watch:
    """How long judging takes."""

    def __enter__(self):
        self.began = time.process_time()

    def __exit__(self, *_):
        assert time.process_time() - self.began < SECONDS


VERIFY = remembering(Plan.verify)


@pytest.fixture(autouse=True)
def quick_accountants(monkeypatch, request):
    """Where the plan is not what is forged, the accountants read it once."""
    if "plan" not in request.node.name:
        monkeypatch.setattr(Plan, "verify", VERIFY)


@pytest.fixture(scope="module")
def originals(tmp_path_factory):
    """A finished run, another of the same config, and one that was killed in its third round."""
    place = tmp_path_factory.mktemp("originals")
    config = small(privacy__randomness="os")
    for name in ("one", "two", "killed"):
        ledger = place / f"{name}.db"
        if name == "killed":
            with killed(at="play", round=3):
                train(config, output=place / name, ledger=ledger)
        else:
            train(config, output=place / name, ledger=ledger)
            write_report([place / name], REPORT.of(place / name))
        assert verify_run(place / name).ok
    return place, config


@pytest.fixture
def run(originals, tmp_path):
    """A copy of the first run, with its ledger beside it."""
    return with_ledger(originals[0], "one", tmp_path)


def with_ledger(place, name, to):
    folder = Path(shutil.copytree(place / name, to / name))
    for suffix in ("", ".head"):
        shutil.copy(place / f"{name}.db{suffix}", to / f"{name}.db{suffix}")
    return folder


# --- plans ---


@pytest.fixture(scope="module")
def contents():
    groups = fedspend.plan([2.0, 2.0, 5.0], delta=1e-3, rounds=4, rate=0.5, saving_rate=0.4)
    by_pld = fedspend.plan([3.0], delta=1e-3, rounds=2, rate=0.5, accountant="pld")
    terms = Terms.checked(
        delta=1e-3, rounds=3, local_steps=2, client_rate=1.0, noise_multiplier=2.0
    )
    records = plan_records([1.0, 2.0, 4.0], [0, 0, 1], terms, clients=["north", "south"])
    return [plan.content() for plan in (groups, by_pld, records)]


def lists_of(content):
    return content.get("schedules") or content["classes"]


def leaves(value, path=()):
    """The keys that lead to every number and text, but for what is free to be anything."""
    if isinstance(value, dict):
        for key, one in value.items():
            if path or key not in ("parameters", "format", "version"):
                yield from leaves(one, (*path, key))
    elif isinstance(value, list):
        for n, one in enumerate(value):
            yield from leaves(one, (*path, n))
    else:
        yield path


def put(content, path, value):
    for key in path[:-1]:
        content = content[key]
    content[path[-1]] = value


def forged_plan(content, chance):
    """A plan that promises what it does not keep, or that is none; and what was done to it."""
    content = copy.deepcopy(content)
    schedules, units = lists_of(content), content.get("records") or content["clients"]
    one, factor = chance.choice(schedules), chance.uniform(0.2, 0.98)
    clients = "schedules" in content
    kinds = ["claim", "budget", "wild", "wild", "delta", "order", "more rounds", "text", "key"]
    kind = chance.choice([*kinds, *(("noise", "rate", "clip") if clients else ("rate",))])
    if kind == "noise":
        one["noise_multiplier"] = [[value * factor, n] for value, n in one["noise_multiplier"]]
        one["clip_norm"] = [[value / factor, n] for value, n in one["clip_norm"]]
    elif kind == "rate":
        column = "sampling_rate" if clients else "rate"
        one[column] = [[min(1.0, value / factor + 1e-6), n] for value, n in one[column]]
    elif kind == "clip":
        one["clip_norm"] = [[value * factor, n] for value, n in one["clip_norm"]]
    elif kind == "claim":
        one["epsilon"] *= chance.choice([factor, 1 / factor])
    elif kind == "budget":
        n = chance.randrange(len(units["budget"]))
        units["budget"][n] *= factor
    elif kind == "delta":
        content["guarantee"]["delta"] *= factor
        if not clients:
            content["terms"]["delta"] *= factor
    elif kind == "order":
        one["order"] = chance.choice([1.0, 1e308, -3.0, one["order"] * 3 + 1])
        if clients and content["guarantee"]["accountant"] == "pld":
            one["epsilon"] *= factor  # a claim by PLD has no order
    elif kind == "more rounds":
        for schedule in schedules:
            for name, column in schedule.items():
                if isinstance(column, list):
                    schedule[name] = [*column, column[-1]]
        place = content if clients else content["terms"]
        place["rounds"] *= 2
    elif kind == "wild":
        put(content, chance.choice(list(leaves(content))), chance.choice(WILD))
    elif kind == "key":
        del content[chance.choice([key for key in content if key != "parameters"])]
    text = json.dumps(content | {"hash": hash_or_nothing(content)}).encode()
    if kind == "text":
        text = bytearray(text)
        for _ in range(chance.randrange(1, 5)):
            text[chance.randrange(len(text))] = chance.randrange(256)
        if chance.random() < 0.3:
            text = text[: chance.randrange(len(text))]
    return kind, bytes(text)


def hash_or_nothing(content):
    try:
        return hash_of(canonical(content))
    except ValueError:
        return "sha256:" + "0" * 64


@pytest.mark.full(but=["1"])
@pytest.mark.parametrize("part", range(5))
def test_forged_plans(contents, tmp_path, capsys, part):
    for seed in range(part, EACH, 5):
        chance = random.Random(f"plan {seed}")
        original = chance.choice(contents)
        kind, body = forged_plan(original, chance)
        path = tmp_path / ("plan.json.gz" if seed % 7 == 0 else "plan.json")
        path.write_bytes(gzip.compress(body) if seed % 7 == 0 else body)
        if body == json.dumps(original | {"hash": hash_of(canonical(original))}).encode():
            continue
        with Watch():
            code = main(["verify", str(path), "--json"])
        said = capsys.readouterr().err.strip().splitlines()
        assert code in (1, 2), (seed, kind)
        assert len(said) <= 1, (seed, kind, said)


@pytest.mark.full
def test_originals_of_the_plans_pass(contents, tmp_path, capsys):
    for content in contents:
        (tmp_path / "plan.json").write_text(
            json.dumps(content | {"hash": hash_of(canonical(content))})
        )
        assert main(["verify", str(tmp_path / "plan.json")]) == 0
    capsys.readouterr()


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 100_000,
        b'{"format": "fedspend-plan", "version": 1, "hash": 1e999}',
        b'{"a":' * 990 + b"1" + b"}" * 990,
        b'{"format": "fedspend-plan", "version": 1, "rounds": ' + b"9" * 10_000 + b"}",
        b'"' + b"x" * 1_000_000 + b'"',
        gzip.compress(b"\0" * 50_000_000),
        b"\x1f\x8b",
    ],
)
def test_what_is_no_plan_at_all_is_one_line(tmp_path, capsys, text):
    (tmp_path / "plan.json").write_bytes(text)
    with Watch():
        assert main(["verify", str(tmp_path / "plan.json")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


@pytest.mark.full(only=["few-0.001", "98,000-0.001", "98,000-10000000000.0"])
@pytest.mark.parametrize("noise", [5e-324, 1e-300, 1e-3, 1e10, 1e200, 1.7e308])
@pytest.mark.parametrize("orders", ["few", "98,000"])
def test_numbers_that_nobody_plans_with_are_judged_without_a_warning(
    contents, tmp_path, capsys, recwarn, noise, orders
):
    content = copy.deepcopy(contents[0])
    for one in content["schedules"]:
        one["noise_multiplier"] = [[noise, 4]]
    if orders == "98,000":
        content["orders"] = [*content["orders"], *np.linspace(2, 9e4, 98_000).tolist()]
    text = json.dumps(content | {"hash": hash_of(canonical(content))})
    (tmp_path / "plan.json").write_text(text)
    with Watch():
        assert main(["verify", str(tmp_path / "plan.json")]) == 1
    assert capsys.readouterr().err == ""
    assert [str(one.message) for one in recwarn] == []


@pytest.mark.parametrize("order", [2e5, 2.0**28, 1e100, 1.7e308])
def test_an_order_that_no_accountant_reads_is_refused(contents, tmp_path, capsys, order):
    content = copy.deepcopy(contents[0])
    content["orders"] = [*content["orders"], order]
    text = json.dumps(content | {"hash": hash_of(canonical(content))})
    (tmp_path / "plan.json").write_text(text)
    with Watch():
        assert main(["verify", str(tmp_path / "plan.json")]) == 2
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_plan_with_hardly_any_sampling(tmp_path, capsys, recwarn):
    """`--rate 1e-300`: planned and verified, or refused in one line."""
    out = tmp_path / "plan.json"
    asked = ("--epsilon=1", "--clients=3", "--delta=1e-3", "--rounds=2", "--rate=1e-300")
    code = main(["plan", *asked, "--quiet", "-o", str(out)])
    assert code in (0, 2)
    if code == 0:
        assert main(["verify", str(out)]) in (0, 1)
    assert len(capsys.readouterr().err.strip().splitlines()) <= 1
    assert [str(one.message) for one in recwarn] == []


# --- certificates ---


@pytest.mark.full(but=["1"])
@pytest.mark.parametrize("part", range(3))
def test_forged_certificates(run, part):
    path = run / "certificate.json"
    original = path.read_bytes()
    for seed in range(part, EACH, 3):
        chance = random.Random(f"certificate {seed}")
        content = json.loads(original)
        kind = chance.choice(["leaf", "leaf", "key", "bytes", "other"])
        if kind == "leaf":
            place = chance.choice(list(leaves(content)))
            put(content, place, chance.choice([one for one in WILD if one is not True]))
        elif kind == "key":
            content.pop(chance.choice(list(content)))
        elif kind == "other":
            content["plan_hash"] = "sha256:" + chance.randbytes(32).hex()
        body = json.dumps(content, indent=1).encode() + b"\n"
        if kind == "bytes":
            body = bytearray(original)
            body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
        path.write_bytes(body)
        with Watch():
            assert not verify_run(run).ok, (seed, kind)
    path.write_bytes(original)
    assert verify_run(run).ok


# --- ledgers ---


def rows(path):
    connection = sqlite3.connect(path)
    found = connection.execute("SELECT number, body FROM fedspend_entries").fetchall()
    connection.close()
    return [json.loads(unpack_text(body)) for _, body in sorted(found)]


def rewrite(path, bodies, *, chained):
    """The entries in place of those of a ledger, with a chain of their own or without."""
    connection = sqlite3.connect(path)
    old = connection.execute("SELECT hash FROM fedspend_entries ORDER BY number").fetchall()
    connection.execute("DELETE FROM fedspend_entries")
    previous = START
    for number, body in enumerate(bodies, start=1):
        text = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
        previous = link(previous, number, text)
        stored = previous if chained else old[min(number, len(old)) - 1][0]
        connection.execute(
            "INSERT INTO fedspend_entries VALUES (?, ?, ?)", (number, pack_text(text), stored)
        )
    connection.commit()
    connection.close()
    return previous


def forged_entries(bodies, chance):
    bodies = copy.deepcopy(bodies)
    n = chance.randrange(1, len(bodies))
    kind = chance.choice(
        ["drop", "twice", "swap", "wild", "noise", "budget", "release", "cut", "alien", "bytes"]
    )
    if kind == "drop":
        del bodies[n]
    elif kind == "twice":
        bodies.insert(n, bodies[n])
    elif kind == "swap":
        n = chance.randrange(1, len(bodies) - 1)
        bodies[n], bodies[n + 1] = bodies[n + 1], bodies[n]
    elif kind == "cut":
        bodies = bodies[:n]
    elif kind == "alien":
        bodies.insert(n, {"kind": chance.choice(["gift", "", 3, None]), "run": "x"})
    elif kind == "bytes":
        bodies[n] = chance.choice([b"{", b"\xff", zlib.compress(b"x" * 10**7), b"[" * 9000, b""])
    elif kind == "budget":
        one = next(body for body in bodies if body["kind"] == "register")
        one["budgets"] = [budget * 10 for budget in one["budgets"]]
    elif kind == "release":
        one = chance.choice([body for body in bodies if body["kind"] == "commit"])
        one["release"] = chance.randbytes(20).hex()
    elif kind == "noise":
        one = next(body for body in bodies if body["kind"] == "open")
        one["noise"] = [
            {**column, "all": column["all"] * 2}
            if isinstance(column, dict)
            else [value * 2 for value in column]
            for column in one["noise"]
        ]
    else:
        one = chance.choice(bodies)
        key = chance.choice([key for key in one if key not in ("time", "reason", "method")])
        one[key] = chance.choice([value for value in WILD if value != one[key]])
    return kind, bodies


def audited(path, folder):
    """What `fedspend ledger verify` says; a ledger that it cannot open, it refuses."""
    try:
        return audit(str(path), runs=[str(folder)]).ok
    except FedspendError:
        return False


@pytest.mark.full
@pytest.mark.parametrize("part", range(3))
def test_forged_ledgers(originals, tmp_path, part):
    folder = with_ledger(originals[0], "one", tmp_path)
    path = tmp_path / "one.db"
    original, head = path.read_bytes(), Path(f"{path}.head").read_bytes()
    bodies = rows(path)
    for seed in range(part, EACH, 3):
        chance = random.Random(f"ledger {seed}")
        path.write_bytes(original)
        kind, forged = forged_entries(bodies, chance)
        chained = chance.random() < 0.7
        try:
            last = rewrite(path, forged, chained=chained)
        except (TypeError, ValueError):  # what JSON cannot hold
            continue
        if chained and chance.random() < 0.5:  # the head beside it is forged as well
            new = {"ledger": bodies[0]["ledger"], "entries": len(forged), "hash": last.hex()}
            Path(f"{path}.head").write_text(json.dumps(new) + "\n")
        with Watch():
            assert not verify_run(folder, ledger=path).ok, (seed, kind)
            assert not audited(path, folder), (seed, kind)
        Path(f"{path}.head").write_bytes(head)
    path.write_bytes(original)
    assert verify_run(folder, ledger=path).ok


# --- run directories ---


def change_tensors(path, chance, *, resealed):
    arrays, about = read_tensors(path)
    about.pop("digest", None)
    name = chance.choice(sorted(arrays))
    arrays[name] = arrays[name] + np.ones_like(arrays[name])
    if chance.random() < 0.3:
        about |= {"round": 7, "done": 3, "plan": "sha256:0", "metrics": "0"}
    path.write_bytes(seal(arrays, about)[0] if resealed else pack(arrays, about))


def forge_run(folder, other, chance):
    kind = chance.choice(
        ["settings", "facts", "metrics", "model", "last", "swap", "lost", "report", "folder", "all"]
    )
    if kind in ("settings", "facts"):
        facts = json.loads((folder / "run.json").read_text())
        place = facts["settings"] if kind == "settings" else facts
        key = chance.choice(sorted(place))
        place[key] = chance.choice([one for one in WILD[:-1] if one is not place[key]])
        (folder / "run.json").write_text(json.dumps(facts, indent=1) + "\n")
    elif kind == "metrics":
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").open()]
        line = chance.choice(lines)
        line[chance.choice(sorted(line))] = chance.choice(["x", -1, 7, None, {}, 0.999])
        text = "".join(json.dumps(one) + "\n" for one in lines)
        (folder / "metrics.jsonl").write_text(text)
    elif kind == "model":
        change_tensors(folder / "model.safetensors", chance, resealed=chance.random() < 0.7)
    elif kind == "last":
        name = chance.choice(["checkpoint", "release"])
        resealed = chance.random() < 0.7
        change_tensors(folder / f"{name}.safetensors", chance, resealed=resealed)
    elif kind == "swap":
        names = ["run.json", "model.safetensors", "release.safetensors", "ledger_head.json"]
        name = chance.choice([*names, "checkpoint.safetensors", "metrics.jsonl", "report.html"])
        shutil.copy(other / name, folder / name)
    elif kind == "all":  # everything that learning left behind is another run's
        for name in ("model.safetensors", "release.safetensors", "checkpoint.safetensors"):
            shutil.copy(other / name, folder / name)
        shutil.copy(other / "metrics.jsonl", folder / "metrics.jsonl")
        write_report([folder], REPORT.of(folder))
    elif kind == "lost":
        needed = [path.name for path in folder.iterdir() if path.name != REPORT.name]
        (folder / chance.choice(sorted(needed))).unlink()
    elif kind == "report":
        page = (folder / "report.html").read_text()
        (folder / "report.html").write_text(page.replace("PASS", "FAIL").replace("12", "1"))
    else:  # a folder or a loop where a file was
        path = folder / chance.choice(sorted(path.name for path in folder.iterdir()))
        path.unlink()
        path.mkdir() if chance.random() < 0.5 else path.symlink_to(path)
    return kind


@pytest.mark.full
@pytest.mark.parametrize("part", range(3))
def test_forged_run_directories(originals, tmp_path, part):
    place = originals[0]
    for seed in range(part, EACH, 3):
        chance = random.Random(f"run {seed}")
        folder = Path(shutil.copytree(place / "one", tmp_path / f"{seed}"))
        kind = forge_run(folder, place / "two", chance)
        with Watch():
            assert not verify_run(folder).ok, (seed, kind)
        shutil.rmtree(folder)


# --- checkpoints ---


@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("part", range(3))
def test_forged_checkpoints(originals, tmp_path, part):
    """Neither verified nor gone on from. In the run's own place, since a copy does not go on."""
    place, config = originals
    here = place / "killed"
    for seed in range(part, EACH, 3):
        chance = random.Random(f"checkpoint {seed}")
        name = chance.choice(["checkpoint", "checkpoint", "release"]) + ".safetensors"
        path, aside = here / name, tmp_path / "aside"
        shutil.copy(path, aside)
        kind = chance.choice(["resealed", "unsealed", "bytes", "cut", "swap", "lost", "noise"])
        if kind in ("resealed", "unsealed"):
            change_tensors(path, chance, resealed=kind == "resealed")
        elif kind == "swap":
            shutil.copy(place / "two" / name, path)
        elif kind == "lost":
            path.unlink()
        else:
            body = bytearray(path.read_bytes())
            body[chance.randrange(len(body))] ^= 1 << chance.randrange(8)
            cut, noise = body[: chance.randrange(len(body))], chance.randbytes(chance.randrange(99))
            path.write_bytes({"bytes": body, "cut": cut, "noise": noise}[kind])
        with Watch():
            assert not verify_run(here).ok, (seed, kind, name)
            with pytest.raises(FedspendError) as refused:
                train(config, output=here, resume=True)
        assert "\n" not in str(refused.value), (seed, kind, name)
        shutil.copy(aside, path)
    assert verify_run(here).ok
