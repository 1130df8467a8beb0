"""`fedspend flower new` and `fedspend flower check`: a project that can be deployed, and what is
wrong with one that cannot.
"""

import datetime
import json
import os
import re
import shlex
import shutil
import socket
import ssl
import subprocess
import threading
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("flwr")

from cryptography import x509
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from flower.in_process import InProcessGrid, Place

from fedspend.basics.toml_text import config_text
from fedspend.cli.main import main, parse
from fedspend.configuration.config import load_config
from fedspend.configuration.data_inputs import Source
from fedspend.engines.flower.keys import read_keys
from fedspend.errors import InvalidInput, Refused
from fedspend.flower.checking import check
from fedspend.flower.looking import findings, look
from fedspend.flower.node import open_node
from fedspend.flower.project import Project
from fedspend.ledger import Ledger

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
RECORDS = {
    "data": {"name": "csv", "test_path": "public.csv", "classes": 2, "label": "sick"},
    "model": {"name": "logistic"},
    "method": {"name": "rpdp"},
    "privacy": {"delta": 1e-3, "noise_multiplier": 2.0, "clip": 0.8, "randomness": "os"},
    "train": {"rounds": 2, "local_steps": 3, "lr": 0.3},
    "engine": {"name": "flower", "silos": ["north", "south"]},
}


def blocks(readme, kind):
    """The commands of a README, by who types them."""
    found = re.findall(r"^```sh ([a-z ]+)\n(.*?)^```", readme, re.M | re.S)
    return [text for who, text in found if who == kind]


def sh(folder, *commands):
    done = subprocess.run(
        ["sh", "-e", "-c", "\n".join(commands)],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def keyed(folder, clients):
    """Keys, as the README says."""
    sh(folder, "sh keys.sh server localhost")
    for client in clients:
        sh(
            folder,
            f"sh keys.sh node {client}",
            f"cp nodes/{client}/node.key.pub server/public/{client}.pub",
            f"cp server/tls/ca.crt nodes/{client}/server-ca.crt",
        )
    sh(folder, "sh keys.sh roster")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """The project of the example, with keys and rows; not to be changed."""
    folder = tmp_path_factory.mktemp("project") / "consortium"
    project = Project.read(EXAMPLE / "server" / "training.toml")
    project.write(folder)
    keyed(folder, project.clients)
    for client in project.clients:
        shutil.copy(
            EXAMPLE / "nodes" / client / "patients.csv", folder / f"nodes/{client}/rows.csv"
        )
    return folder


@pytest.fixture
def copied(made, tmp_path):
    shutil.copytree(made, tmp_path / "here")
    return tmp_path / "here"


@pytest.fixture(scope="module")
def silos(tmp_path_factory):
    folder = tmp_path_factory.mktemp("silos")
    (folder / "training.toml").write_text(config_text(RECORDS))
    shutil.copy(EXAMPLE / "server" / "public.csv", folder)
    Project.read(folder / "training.toml").write(folder / "made")
    keyed(folder / "made", ("north", "south"))
    for client in ("north", "south"):
        lines = (EXAMPLE / "nodes" / client / "patients.csv").read_text().splitlines()
        rows = [f"{client}-{n},{1 + n % 3},{line}" for n, line in enumerate(lines[1:])]
        text = "\n".join([f"id,epsilon,{lines[0]}", *rows])
        (folder / "made" / "nodes" / client / "rows.csv").write_text(text + "\n")
    return folder / "made"


def verdicts(place, **settings):
    return {one.check: one for one in check(place, **settings).checks}


def wrong(place, **settings):
    return {
        name: one.words for name, one in verdicts(place, **settings).items() if one.good is False
    }


# --- new ------------------------------------------------------------------------------------------


def test_a_project_holds_what_server_and_nodes_need_and_nothing_private_in_the_app(made):
    names = {str(path.relative_to(made)) for path in made.rglob("*") if path.is_file()}
    assert {name for name in names if name.startswith("app/")} == {
        "app/pyproject.toml",
        "app/fedspend_app/__init__.py",
        "app/fedspend_app/client.py",
        "app/fedspend_app/server.py",
    }
    for path in made.rglob("*"):
        if path.is_dir() or path.suffix in (".key", ".toml", ".csv"):
            assert path.stat().st_mode & 0o077 == 0 or path.name == "rows.csv", path
    config = load_config(made / "server" / "training.toml")
    assert config.engine.name == "flower"
    assert (
        Path(config.privacy.budgets).read_text() == (EXAMPLE / "server" / "budgets.csv").read_text()
    )
    assert not (made / "server" / "rows.csv").exists()
    assert list(read_keys(made / "server" / "keys.csv")) == ["harbour", "north", "south"]
    node = load_config(made / "nodes" / "north" / "node.toml")
    assert node.node.client == "north"
    assert "budgets" not in (made / "nodes" / "north" / "node.toml").read_text()
    assert "@" not in re.sub(r'"\$@"|"\$\*"', "", (made / "README.md").read_text())


def test_columns_of_a_node_are_found_by_name(copied):
    """In another order they are the same rows; one of another name is refused."""
    place = copied / "nodes" / "south"
    head, *lines = [line.split(",") for line in (place / "rows.csv").read_text().splitlines()]
    order = list(reversed(range(len(head))))

    def rows(head):
        text = "\n".join(",".join(line[n] for n in order) for line in (head, *lines))
        (place / "rows.csv").write_text(text + "\n")
        return Source(load_config(place / "node.toml")).rows

    before = Source(load_config(place / "node.toml")).rows
    np.testing.assert_array_equal(rows(head).features, before.features)
    assert verdicts(place / "node.toml")["client"].good
    rows_or_not = [name if name != "age" else "weight" for name in head]
    with pytest.raises(InvalidInput, match="age"):
        rows(rows_or_not)
    assert not verdicts(place / "node.toml")["client"].good


def test_a_project_of_other_files_is_refused(tmp_path):
    config = load_config(EXAMPLE / "server" / "training.toml").values
    config["data"]["name"] = "npz"
    (tmp_path / "training.toml").write_text(config_text(config))
    with pytest.raises(InvalidInput, match=r"made for CSV files, and data\.name is 'npz'"):
        Project.read(tmp_path / "training.toml")


def test_nodes_have_the_task_of_the_server(tmp_path):
    config = {
        **load_config(EXAMPLE / "server" / "training.toml").values,
        "task": {"loss": "squared", "metrics": ["mae"]},
    }
    config["data"] = {
        **{key: value for key, value in config["data"].items() if key not in ("classes", "labels")},
        "test_path": str(EXAMPLE / "server" / "public.csv"),
        "label": "heart_rate",
        "label_bounds": [0, 1],
    }
    config["privacy"] = {**config["privacy"], "budgets": str(EXAMPLE / "server" / "budgets.csv")}
    (tmp_path / "training.toml").write_text(config_text(config))
    project = Project.read(tmp_path / "training.toml")
    project.write(tmp_path / "made")
    client = project.clients[0]
    node = load_config(tmp_path / "made" / "nodes" / client / "node.toml")
    assert node.values["task"] == config["task"]
    keyed(tmp_path / "made", project.clients)
    rows = EXAMPLE / "nodes" / client / "patients.csv"
    shutil.copy(rows, tmp_path / "made" / "nodes" / client / "rows.csv")
    assert verdicts(tmp_path / "made" / "nodes" / client / "node.toml")["client"].good


def test_an_existing_folder_is_left_alone(tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "mine.txt").write_text("precious")
    with pytest.raises(InvalidInput, match="exists already"):
        Project.read(EXAMPLE / "server" / "training.toml").write(tmp_path / "there")
    assert [path.name for path in (tmp_path / "there").iterdir()] == ["mine.txt"]


@pytest.mark.parametrize(
    ("changes", "settings", "why"),
    [
        ({"method": {"name": "fedavg"}}, {}, "protects nobody"),
        ({"engine": {"name": "flower"}}, {}, "--clients"),
        ({"engine": {"silos": ["a b"]}}, {}, "name folders"),
        ({"engine": {"silos": ["x;rm"]}}, {}, "name folders"),
        ({"data": {"name": "csv", "classes": 2}}, {}, "test_path"),
        ({"data": RECORDS["data"] | {"test_path": "gone.csv"}}, {}, r"gone\.csv"),
        ({}, {"host": "a host"}, "--host"),
        ({}, {"port": 0}, "--port"),
        ({"method": {"name": "idp-fedavg"}}, {}, "file of budgets"),
    ],
)
def test_what_cannot_be_deployed_is_refused_and_nothing_is_written(
    tmp_path, changes, settings, why
):
    shutil.copy(EXAMPLE / "server" / "public.csv", tmp_path)
    (tmp_path / "run.toml").write_text(config_text(RECORDS | changes))
    with pytest.raises(InvalidInput, match=why):
        Project.read(tmp_path / "run.toml", **settings).write(tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_keys_are_private_and_are_not_made_twice(copied):
    for command in (
        "sh keys.sh node north",
        "sh keys.sh server localhost",
        "sh keys.sh",
        "sh keys.sh node nobody",
    ):
        done = subprocess.run(command.split(), cwd=copied, capture_output=True, check=False)
        assert done.returncode == 2, command
    before = (copied / "server" / "keys.csv").read_text()
    sh(copied, "sh keys.sh roster")
    assert (copied / "server" / "keys.csv").read_text() == before


def test_units_of_systemd_are_sound(made):
    for unit in (made / "server" / "superlink.service", made / "nodes/north/supernode.service"):
        text = unit.read_text()
        assert "ExecStart=/bin/sh /srv/fedspend/" in text
        assert "@" not in text
    for script in made.rglob("*.sh"):
        sh(made, f"sh -n {script}")


def test_a_config_is_written_as_it_was_read():
    values = {
        "a": {"x": 1e-05, "y": [1, "two"], "z": True, "s": 'quo"te\\', "t": [{"epsilon": 2.0}]}
    }
    import tomllib

    assert tomllib.loads(config_text(values)) == values


# --- check ----------------------------------------------------------------------------------------


def test_a_good_deployment_passes(made, silos, monkeypatch):
    for name in ("FLWR_TELEMETRY_ENABLED", "FLWR_DISABLE_UPDATE_CHECK"):
        monkeypatch.delenv(name, raising=False)
    for folder in (made, silos):
        assert wrong(folder / "server" / "training.toml") == {}
        assert wrong(folder / "nodes" / "north" / "node.toml") == {}
    told = verdicts(made / "nodes" / "north" / "node.toml")
    assert told["telemetry"].good is None
    monkeypatch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    monkeypatch.setenv("FLWR_DISABLE_UPDATE_CHECK", "1")
    told = verdicts(made / "nodes" / "north" / "node.toml")
    assert told["telemetry"].good is True
    assert told["superlink"].good is None
    assert "each record is protected" in verdicts(silos / "nodes/north/node.toml")["client"].words


def edited(path, before, after):
    text = path.read_text()
    assert before in text
    path.write_text(text.replace(before, after))


def add_line(path, line):
    path.write_text(path.read_text() + line)


SERVER_FAULTS = {
    "keys: missing client": (
        lambda here: (here / "server/keys.csv").write_text(
            "\n".join((here / "server/keys.csv").read_text().splitlines()[:-1]) + "\n"
        ),
        "roster",
        "no key for client 'south'",
    ),
    "keys: stranger": (
        lambda here: edited(here / "server/keys.csv", "harbour,", "harbor,"),
        "roster",
        "harbour",
    ),
    "keys: duplicate": (
        lambda here: add_line(
            here / "server/keys.csv",
            "west," + (here / "server/keys.csv").read_text().splitlines()[1].split(",")[1] + "\n",
        ),
        "keys",
        "another client has",
    ),
    "keys: open to all": (
        lambda here: (here / "server/keys.csv").chmod(0o666),
        "keys",
        "may be changed by others",
    ),
    "keys: gone": (lambda here: (here / "server/keys.csv").unlink(), "keys", "keys.csv"),
    "budgets: not a number": (
        lambda here: edited(here / "server/budgets.csv", "north,8", "north,none"),
        "roster",
        "epsilon",
    ),
    "engine": (
        lambda here: edited(here / "server/training.toml", 'name = "flower"', 'name = "local"'),
        "config",
        "engine.name",
    ),
    "evaluation rows": (lambda here: (here / "server/public.csv").unlink(), "config", "public.csv"),
    "ledger: place": (
        lambda here: edited(here / "server/training.toml", "ledger.db", "gone/ledger.db"),
        "ledger",
        "is not there",
    ),
    "ledger: simulation": (
        lambda here: Ledger.create(here / "server/ledger.db", simulation=True).close(),
        "ledger",
        "is for simulations",
    ),
    "ledger: damaged": (
        lambda here: (here / "server/ledger.db").write_bytes(b"not a database" * 100),
        "ledger",
        "ledger.db",
    ),
    "app: a file too many": (
        lambda here: (here / "app/patients.csv").write_text("a,b\n"),
        "app",
        "holds patients.csv",
    ),
    "app: a file is missing": (
        lambda here: (here / "app/fedspend_app/client.py").unlink(),
        "app",
        "client.py",
    ),
    "certificate: key open": (
        lambda here: (here / "server/tls/server.key").chmod(0o644),
        "certificate",
        "chmod 600",
    ),
    "certificate: gone": (
        lambda here: shutil.rmtree(here / "server/tls"),
        "certificate",
        "keys.sh",
    ),
    "certificate: another key": (
        lambda here: shutil.copy(here / "nodes/north/tls/server.key", here / "server/tls"),
        "certificate",
        "is not the key of",
    ),
    "certificate: another authority": (
        lambda here: shutil.copy(here / "nodes/north/tls/ca.crt", here / "server/tls"),
        "certificate",
        "does not vouch",
    ),
    "certificate: expired": (
        lambda here: expire(here / "server/tls"),
        "certificate",
        "is valid from",
    ),
}


def expire(folder):
    """The same certificate, until yesterday."""
    old = x509.load_pem_x509_certificate((folder / "server.crt").read_bytes())
    authority = ec.generate_private_key(ec.SECP384R1())
    key = load_pem_private_key((folder / "server.key").read_bytes(), None)
    now = datetime.datetime.now(datetime.UTC)
    root = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "authority")])

    def signed(name, public, end):
        return (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(root)
            .public_key(public)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - datetime.timedelta(days=9))
            .not_valid_after(now + datetime.timedelta(days=end))
            .add_extension(x509.SubjectAlternativeName([x509.DNSName("localhost")]), critical=False)
            .sign(authority, hashes.SHA256())
        )

    pem = Encoding.PEM
    (folder / "ca.crt").write_bytes(signed(root, authority.public_key(), 9).public_bytes(pem))
    (folder / "server.crt").write_bytes(signed(old.subject, key.public_key(), -1).public_bytes(pem))


@pytest.mark.parametrize("fault", SERVER_FAULTS)
def test_a_fault_at_the_server_is_found_with_its_remedy(copied, fault):
    break_it, name, words = SERVER_FAULTS[fault]
    break_it(copied)
    found = wrong(copied / "server" / "training.toml")
    assert words in found[name], found
    assert not (copied / "server" / "runs").exists()


def other_bounds(node):
    """A config of the node with bounds that the server's does not have."""
    edited(node, "[data]\n", "[data]\nbounds = [-1, 1]\n")


NODE_FAULTS = {
    "declaration": (
        lambda here: other_bounds(here / "node.toml"),
        "declaration",
        "this node declares its data otherwise than",
    ),
    "rows are gone": (lambda here: (here / "rows.csv").unlink(), "client", "rows.csv"),
    "rows of others": (
        lambda here: edited(here / "node.toml", 'client = "north"', 'client = ""'),
        "client",
        "client",
    ),
    "key: open": (lambda here: (here / "node.key").chmod(0o640), "key", "chmod 600"),
    "key: gone": (lambda here: (here / "node.key").unlink(), "key", "there is no key"),
    "key: damaged": (lambda here: (here / "node.key").write_text("x"), "key", "not a private key"),
    "key: of another kind": (lambda here: rsa(here / "node.key"), "key", "of another kind"),
    "key: another public one": (
        lambda here: shutil.copy(here.parent / "south/node.key.pub", here),
        "key",
        "is not the public key",
    ),
    "state: open": (lambda here: (here / "state").mkdir(mode=0o755), "state", "chmod 700"),
    "ledger: of records": (lambda here: record_ledger(here / "ledger.db"), "ledger", "records"),
}


def rsa(path):
    path.write_bytes(
        ec.generate_private_key(ec.SECP256R1()).private_bytes(
            Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()
        )
    )


def record_ledger(path):
    with Ledger.create(path, simulation=False) as book:
        book.register(["a"], [1.0], delta=1e-3, unit="record")


@pytest.mark.parametrize("fault", NODE_FAULTS)
def test_a_fault_at_a_node_is_found_with_its_remedy(copied, fault):
    break_it, name, words = NODE_FAULTS[fault]
    break_it(copied / "nodes" / "north")
    if fault == "rows of others":
        with pytest.raises(InvalidInput, match="client"):
            check(copied / "nodes" / "north" / "node.toml")
        return
    found = wrong(copied / "nodes" / "north" / "node.toml")
    assert words in found[name], found


def test_what_is_declared_is_shown_and_compared_where_both_configs_are(copied, tmp_path):
    server, node = copied / "server/training.toml", copied / "nodes/north/node.toml"
    ours = verdicts(server)["declaration"]
    assert re.match(r"columns [0-9a-f]{12}, bounds .*; must be the same everywhere", ours.words)
    theirs = verdicts(node)["declaration"]
    assert theirs.good is True
    assert theirs.words.partition(";")[0] == ours.words.partition(";")[0]
    assert theirs.words.endswith(f"the same as in {server}")
    away = shutil.copytree(node.parent, tmp_path / "away") / "node.toml"
    assert verdicts(away)["declaration"].words == ours.words
    other_bounds(away)
    assert verdicts(away)["declaration"].good is True  # there is nothing to compare it with
    found = wrong(away, server=server)["declaration"]
    assert found.startswith(f"this node declares its data otherwise than {server} does, in bounds")
    (away.parent / "rows.csv").unlink()
    told = verdicts(away, server=server)["declaration"]
    assert (told.good, told.words) == (None, "cannot be told until the rows can be read")


@pytest.fixture
def superlink(made):
    """Something that speaks TLS with the server's certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(made / "server/tls/server.crt", made / "server/tls/server.key")
    line = socket.create_server(("127.0.0.1", 0))

    def serve():
        while True:
            try:
                accepted = line.accept()[0]
            except OSError:
                return
            try:
                with context.wrap_socket(accepted, server_side=True):
                    pass
            except OSError:
                pass

    threading.Thread(target=serve, daemon=True).start()
    yield f"localhost:{line.getsockname()[1]}"
    line.close()


def test_a_superlink_is_tried_with_the_certificate_that_a_node_has(copied, superlink):
    node = copied / "nodes" / "north" / "node.toml"
    assert verdicts(node, superlink=superlink)["superlink"].good is True
    shutil.copy(copied / "nodes/north/tls/ca.crt", copied / "nodes/north/server-ca.crt")
    assert "is not good here" in wrong(node, superlink=superlink)["superlink"]
    (copied / "nodes/north/server-ca.crt").unlink()
    assert "server's tls/ca.crt" in wrong(node, superlink=superlink)["superlink"]


def test_a_superlink_that_is_not_there_or_has_another_name_is_found(copied):
    server = copied / "server" / "training.toml"
    with socket.create_server(("127.0.0.1", 0)) as line:
        port = line.getsockname()[1]
    found = wrong(server, superlink=f"localhost:{port}")
    assert "cannot be reached" in found["superlink"]
    found = wrong(server, superlink=f"server.example.org.invalid:{port}")
    assert "is for localhost" in found["certificate"]
    assert "HOST:PORT" in wrong(server, superlink="nonsense")["superlink"]


# --- run.sh ---------------------------------------------------------------------------------------

FLWR = """#!/bin/sh
echo "$@" >> "$FLWR_HOME/typed"
case $1 in
    run) {run} ;;
    log) {log} ;;
    list) {list} ;;
esac
"""
# as Flower 1.41 prints it; a failure is said in the same way, with exit code 0
STARTED = """printf '{\\n  "success": true,\\n  "run-id": "77",\\n  "fab-id": "a"\\n}\\n'"""
NOT_STARTED = """printf '{\\n  "success": false,\\n  "error-message": "unavailable"\\n}\\n'"""
LISTED = (
    """printf '{\\n  "runs": [{\\n  "run-id": "77",\\n  "status": "%s",\\n"""
    """  "status-details": "N/A"\\n}]}\\n' """
)


@pytest.mark.parametrize(
    ("answers", "code", "said"),
    [
        ({}, 0, ""),
        ({"list": f"{LISTED} finished:failed"}, 1, "did not complete (Flower says finished:failed"),
        ({"list": f"{LISTED} finished:stopped"}, 1, "(Flower says finished:stopped of run 77)"),
        (
            {"list": f"{LISTED} running", "log": "exit 1"},
            1,
            "first is not over (Flower says running of run 77): follow it with 'flwr log 77 "
            "consortium --stream', or end it with 'flwr stop 77 consortium'",
        ),
        ({"list": f"{LISTED} running", "log": "kill -INT $PPID; exit 130"}, 1, "is not over"),
        ({"log": "echo gone; exit 1"}, 0, ""),  # a line that broke says nothing about the run
        ({"list": "exit 1"}, 1, "(Flower says nothing"),
        ({"list": NOT_STARTED}, 1, "(Flower says nothing"),
        ({"run": NOT_STARTED}, 1, "first did not start; what Flower says is above"),
        ({"run": "echo broken >&2; exit 1"}, 1, "first did not start"),
    ],
)
def test_run_sh_exits_as_the_run_ended(copied, tmp_path, answers, code, said):
    fake = tmp_path / "bin" / "flwr"
    fake.parent.mkdir()
    usual = {
        "run": STARTED,
        "log": "echo a line of the log",
        "list": f"{LISTED} finished:completed",
    }
    text = FLWR
    for command, answer in (usual | answers).items():
        text = text.replace(f"{{{command}}}", answer)
    fake.write_text(text)
    fake.chmod(0o700)
    done = subprocess.run(
        ["sh", "server/run.sh", "first", "check=true"],
        cwd=copied,
        env={**os.environ, "PATH": f"{fake.parent}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == code, done.stderr
    told = [line for line in done.stderr.splitlines() if line.startswith("run.sh: ")]
    assert len(told) == code
    assert said in "".join(told)
    typed = (copied / "server" / "flwr" / "typed").read_text().splitlines()
    here = copied.resolve() / "server"
    assert typed[0] == (
        "run ../app consortium --format json --run-config "
        f'config="{here}/training.toml" output="{here}/runs/first" check=true'
    )
    if "run" in answers:
        assert len(typed) == 1
    else:
        assert typed[1:] == [
            "log 77 consortium --stream",
            "list consortium --run-id 77 --format json",
        ]
        assert "first is Flower's run 77" in done.stdout


# --- a look at connected nodes --------------------------------------------------------------------


@pytest.fixture
def federation(copied):
    config = copied / "server" / "training.toml"
    keys = read_keys(copied / "server" / "keys.csv")
    places = {
        n + 7: Place(open_node(copied / "nodes" / client / "node.toml"), keys[client].encode())
        for n, client in enumerate(keys)
    }
    return config, InProcessGrid(places)


def seen(config, grid):
    return {one.check: one for one in findings(grid, load_config(config), grid.clock)}


def test_everyone_is_seen_and_nothing_is_begun(federation):
    config, grid = federation
    told = seen(config, grid)
    assert {name: one.good for name, one in told.items()} == dict.fromkeys(
        ("north", "south", "harbour"), True
    )
    assert "a model of 10 numbers" in told["north"].words
    look(grid, config, grid.clock)
    assert {kind for kind, _, _ in grid.sent} == {"query.fedspend_look"}
    assert not list(config.parent.glob("*.db"))


@pytest.mark.parametrize(
    "fault",
    ["missing", "stranger", "twice", "seeded", "clock", "version", "swapped", "declaration"],
)
def test_what_is_wrong_with_a_node_is_seen(federation, fault, monkeypatch):
    config, grid = federation
    first, second, *_ = grid.places.values()
    if fault == "missing":
        grid.places.pop(7)
    elif fault == "stranger":
        first.key = b"nobody's"
    elif fault == "twice":
        grid.places[99] = first
    elif fault == "swapped":
        first.key, second.key = second.key, first.key
    elif fault == "declaration":
        place = config.parent.parent / "nodes" / second.node.client / "node.toml"
        other_bounds(place)
        second.node = open_node(place)
    elif fault == "seeded":
        object.__setattr__(first.node, "simulation", True)
    elif fault == "clock":
        import fedspend.flower.node

        real = fedspend.flower.node.time.time

        class Ahead:
            @staticmethod
            def time():
                return real() + 7200

        monkeypatch.setattr(fedspend.flower.node, "time", Ahead)
    elif fault == "version":
        import fedspend.flower.looking

        class Other:
            __version__ = "9.9"

        monkeypatch.setattr(fedspend.flower.looking, "fedspend", Other)
    words = {
        "missing": "no node is connected",
        "stranger": "file of keys",
        "twice": "twice",
        "swapped": "with a key of",
        "declaration": "otherwise than this server does, in bounds: compare data.bounds of",
        "seeded": "draws from a seed",
        "clock": "7,200 seconds ahead",
        "version": "install the same",
    }[fault]
    found = findings(grid, load_config(config), grid.clock)
    assert any(one.good is False and words in one.words for one in found), found
    with pytest.raises(Refused, match="put right before a run"):
        look(grid, config, grid.clock)


# --- the command line -----------------------------------------------------------------------------


def says(capsys, *arguments):
    code = main(list(map(str, arguments)))
    return code, *capsys.readouterr()


def test_the_command_line_makes_and_checks_a_project(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    config = EXAMPLE / "server" / "training.toml"
    code, out, _ = says(
        capsys, "flower", "new", "here", "--config", config, "--host", "example.org"
    )
    assert (code, "README.md" in out) == (0, True)
    assert "--superlink example.org:9092" in Path("here/nodes/north/supernode.sh").read_text()
    assert "--host 0.0.0.0" in Path("here/server/superlink.sh").read_text()
    code, out, err = says(capsys, "flower", "new", "here", "--config", config)
    assert (code, out) == (2, "")
    assert err.startswith("fedspend: here exists already")
    assert err.count("\n") == 1
    code, out, _ = says(capsys, "flower", "check", "here/server/training.toml")
    assert code == 1
    assert "FAIL  keys" in out
    code, out, _ = says(capsys, "flower", "check", "here/nodes/north/node.toml", "--json")
    found = json.loads(out)
    assert (code, found["ok"], found["role"]) == (1, False, "node")
    assert {one["check"] for one in found["checks"] if one["ok"] is False} >= {"key", "client"}
    assert says(capsys, "flower", "check", "gone.toml")[0] == 2
    assert says(capsys, "flower")[0] == 2


def test_a_node_of_records_has_an_account_to_look_at(silos, capsys, tmp_path):
    node = shutil.copytree(silos / "nodes" / "north", tmp_path / "north") / "node.toml"
    code, _, err = says(capsys, "node", "balance", "--config", node)
    assert code == 1
    assert "there is no ledger" in err
    record_ledger(tmp_path / "north" / "ledger.db")
    code, out, _ = says(capsys, "node", "balance", "--config", node, "--json")
    assert (code, json.loads(out)["records"][0]["record"]) == (0, "a")
    code, _, err = says(capsys, "node", "approve", "gone.slice.json", "--config", node)
    assert code == 2


def test_every_command_of_the_readmes_is_known(made, silos, capsys):
    """What is typed to fedspend parses; what is a script is there. They are played, with Flower, by
    `make test-deployment`.
    """
    for folder in (made, silos):
        readme = (folder / "README.md").read_text()
        commands = [
            line
            for who in ("server", "node", "server background", "node background")
            for block in blocks(readme, who)
            for line in block.splitlines()
        ]
        assert len(commands) >= 14
        for line in commands:
            program, *words = shlex.split(line)
            if program == "fedspend":
                parse(words)
            elif program == "sh":
                assert (folder / words[0]).exists(), line
            else:
                assert program == "cp", line
    capsys.readouterr()
