"""A node's key is rotated in both ledgers, and the old one is refused from then on."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import pytest

pytest.importorskip("cryptography")

from approval.offers import DELTA, offered
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from fedspend.approval.node_ledger import NodeLedger
from fedspend.approval.rotation import Rotation, read_rotation, signed_by
from fedspend.cli.main import main
from fedspend.engines.flower.keys import public_of, read_keys, read_public, replaced, short
from fedspend.errors import InvalidInput, Refused
from fedspend.flower.loopback import make_node_key
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit

pytestmark = pytest.mark.usefixtures("quick_verify")


def key_in(folder):
    folder.mkdir()
    make_node_key(folder)
    return folder / "node.key"


@pytest.fixture
def keys(tmp_path):
    """Files of private keys, the node's now and the next."""
    return key_in(tmp_path / "old"), key_in(tmp_path / "new")


def rotation_of(old, new, client="north"):
    return signed_by(old, Rotation(client, public_of(old), public_of(new)))


@pytest.fixture
def server(tmp_path, keys):
    with Ledger.create(tmp_path / "accounts.db", simulation=False) as ledger:
        ledger.register(["north", "south"], [8.0, 9.0], delta=DELTA)
        others = public_of(key_in(tmp_path / "south"))
        ledger.enter_keys({"north": public_of(keys[0]), "south": others})
    return tmp_path / "accounts.db"


def test_a_statement_is_checked_by_the_old_key_alone(keys, tmp_path):
    statement = rotation_of(*keys)
    statement.check()
    statement.save(tmp_path / "rotation.json")
    assert read_rotation(tmp_path / "rotation.json") == statement
    for change in ({"client": "south"}, {"new": public_of(keys[0])}, {"signature": "AAAA"}):
        with pytest.raises(Refused, match="not signed with the old key"):
            replace(statement, **change).check()
    forged = signed_by(keys[1], Rotation("north", public_of(keys[0]), public_of(keys[1])))
    with pytest.raises(Refused, match="not signed with the old key"):
        forged.check()
    with pytest.raises(Refused, match="--lost"):
        replace(statement, signature=None).check()


def test_other_kinds_of_keys_sign_too(tmp_path, keys):
    made = Ed25519PrivateKey.generate()
    path = tmp_path / "ed25519"
    path.write_bytes(made.private_bytes(Encoding.PEM, PrivateFormat.OpenSSH, NoEncryption()))
    rotation_of(path, keys[1]).check()


def test_fingerprints_are_those_of_ssh(keys):
    shown = subprocess.run(
        ["ssh-keygen", "-lf", str(keys[0].with_suffix(".key.pub"))],
        capture_output=True,
        text=True,
        check=False,
    )
    if shown.returncode == 0:
        assert short(public_of(keys[0])) in shown.stdout
    assert public_of(keys[0]) == read_public(keys[0].with_suffix(".key.pub"))
    assert short(public_of(keys[0])).startswith("SHA256:")


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"format": "fedspend-key-rotation", "version": 1, "client": "north"}'],
)
def test_what_is_no_statement_is_bad_input(tmp_path, text):
    (tmp_path / "rotation.json").write_text(text)
    with pytest.raises(InvalidInput, match=r"rotation\.json"):
        read_rotation(tmp_path / "rotation.json")


def test_keys_are_entered_once_and_others_are_refused(server, keys):
    with Ledger.open(server, write=True) as ledger:
        old, new = map(public_of, keys)
        before = ledger.state.entries
        ledger.enter_keys({"north": old})
        assert ledger.state.entries == before
        with pytest.raises(Refused, match="another key than the ledger knows"):
            ledger.enter_keys({"north": new})
        with pytest.raises(Refused, match="a key that client 'north' has"):
            ledger.enter_keys({"west": old})
        assert ledger.state.entries == before


def test_the_server_enters_a_rotation_and_the_old_key_is_refused(server, keys, tmp_path, capsys):
    old, new = map(public_of, keys)
    lines = [
        f"{name},{(tmp_path / folder / 'node.key.pub').read_text()}"
        for name, folder in (("north", "old"), ("south", "south"))
    ]
    (tmp_path / "keys.csv").write_text("client,key\n" + "".join(lines))
    rotation_of(*keys).save(tmp_path / "rotation.json")
    command = ["ledger", "rotate-key", str(tmp_path / "rotation.json"), "--reason", "yearly"]
    command += ["--ledger", str(server), "--keys", str(tmp_path / "keys.csv")]
    assert main(command) == 0
    assert short(new) in capsys.readouterr().out
    assert read_keys(tmp_path / "keys.csv")["north"] == new
    with Ledger.open(server, write=True) as ledger:
        assert ledger.state.keys["north"] == [old, new]
        ledger.enter_keys({"north": new})
        for client in ("north", "south", "west"):
            with pytest.raises(Refused, match=r"a key that client 'north' has given up|another"):
                ledger.enter_keys({client: old})
        with pytest.raises(Refused, match="from another key"):
            ledger.rotate_key("north", old, "another", reason="again")
        with pytest.raises(Refused, match="was used before"):
            ledger.rotate_key("north", new, old, reason="back")
        with pytest.raises(Refused, match="knows no key of client 'west'"):
            ledger.rotate_key("west", old, new, reason="who?")
    entries = entry_count(server)
    assert main(command) == 0  # the same again changes nothing
    assert entry_count(server) == entries
    assert audit(str(server)).ok
    assert main(["ledger", "history", "--ledger", str(server)]) == 0
    shown = capsys.readouterr()
    assert "signed with the old one" in shown.out
    assert "warning" not in shown.err


def entry_count(path):
    with Ledger.open(path) as ledger:
        return ledger.state.entries


def test_a_forged_or_unsigned_rotation_changes_nothing(server, keys, tmp_path, capsys):
    forged = signed_by(keys[1], Rotation("north", public_of(keys[0]), public_of(keys[1])))
    forged.save(tmp_path / "forged.json")
    replace(forged, signature=None).save(tmp_path / "unsigned.json")
    before = entry_count(server)
    rest = ["--reason", "x", "--ledger", str(server)]
    assert main(["ledger", "rotate-key", str(tmp_path / "forged.json"), *rest]) == 1
    assert main(["ledger", "rotate-key", str(tmp_path / "forged.json"), "--lost", *rest]) == 1
    assert main(["ledger", "rotate-key", str(tmp_path / "unsigned.json"), *rest]) == 1
    assert "--lost" in capsys.readouterr().err
    assert entry_count(server) == before
    assert main(["ledger", "rotate-key", str(tmp_path / "unsigned.json"), "--lost", *rest]) == 0


def node_toml(tmp_path, key):
    (tmp_path / "node.toml").write_text(
        f'[node]\nclient = "north"\nbudget = 3\ndelta = {DELTA}\nkey = "{key}"\n'
        '[data]\nname = "csv"\npath = "rows.csv"\n'
    )
    return str(tmp_path / "node.toml")


def test_a_node_rotates_its_key_and_both_sides_agree(server, keys, tmp_path, capsys):
    old, new = map(public_of, keys)
    offer = replace(offered(), keys={"north": short(old)})
    (tmp_path / "slice.json").write_bytes(offer.slice_of(0).to_bytes())
    config = node_toml(tmp_path, keys[0])
    assert main(["node", "approve", str(tmp_path / "slice.json"), "--config", config]) == 0
    said = str(tmp_path / "rotation.json")
    command = ["node", "rotate-key", str(keys[1]), "-o", said, "--config", config]
    assert main([*command, "--reason", "yearly"]) == 0
    out = capsys.readouterr().out
    assert short(new) in out
    with Ledger.open(tmp_path / "ledger.db") as ledger:
        assert ledger.state.keys == {"north": [old, new]}
    assert main(["ledger", "rotate-key", said, "--reason", "x", "--ledger", str(server)]) == 0
    with Ledger.open(server) as ledger:
        assert ledger.state.keys["north"] == [old, new]
    # slices for the old key are refused once the config has the new one, and the other way round
    (tmp_path / "next.json").write_bytes(
        replace(offered(run="next"), keys={"north": short(old)}).slice_of(0).to_bytes()
    )
    approve = ["node", "approve", str(tmp_path / "next.json"), "--config", config]
    assert main(approve) == 1
    assert "which this client has given up" in capsys.readouterr().err
    node_toml(tmp_path, keys[1])
    assert main(approve) == 1
    assert "was made for a node with the key" in capsys.readouterr().err


def test_a_lost_key_is_replaced_without_a_signature(keys, tmp_path, capsys):
    config = node_toml(tmp_path, keys[0])
    offer = replace(offered(), keys={})
    (tmp_path / "slice.json").write_bytes(offer.slice_of(0).to_bytes())
    assert main(["node", "approve", str(tmp_path / "slice.json"), "--config", config]) == 0
    keys[0].unlink()
    said, public = str(tmp_path / "rotation.json"), str(keys[0].with_suffix(".key.pub"))
    command = ["node", "rotate-key", str(keys[1]), "-o", said, "--config", config]
    assert main([*command, "--reason", "lost"]) == 2
    assert "cannot read the key" in capsys.readouterr().err
    assert main([*command, "--reason", "lost", "--lost", public, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["signed"] is False
    assert read_rotation(said).signature is None


def test_a_file_without_the_old_key_is_left_alone(keys, tmp_path):
    other = key_in(tmp_path / "other")
    text = f"client,key\nsouth,{other.with_suffix('.key.pub').read_text()}"
    (tmp_path / "keys.csv").write_text(text)
    assert not replaced(tmp_path / "keys.csv", public_of(keys[0]), public_of(keys[1]))
    assert replaced(tmp_path / "keys.csv", public_of(keys[0]), public_of(other))  # is there
    assert (tmp_path / "keys.csv").read_text() == text


def test_a_ledger_with_a_key_that_comes_back_is_damaged(server, keys):
    from fedspend.ledger.chain import Damaged
    from fedspend.ledger.state import State

    with Ledger.open(server) as ledger:
        bodies = [json.loads(body) for _, body, _ in ledger.entries()]
    state = State()
    for number, body in enumerate(bodies, 1):
        state.apply(number, body, b"")
    again = {"kind": "rotate-key", "names": ["south"], "key": public_of(keys[0]), "reason": "x"}
    with pytest.raises(Damaged):
        state.apply(len(bodies) + 1, again, b"")


@pytest.mark.full
def test_the_commands_need_no_flower(tmp_path):
    """A client's people may sit at a machine without it."""
    code = (
        "import sys; sys.modules['flwr'] = None\n"
        "from fedspend.cli.main import main\n"
        f"sys.exit(main(['node', 'balance', '--config', {node_toml(tmp_path, 'no.key')!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "cannot read the key" in done.stderr


def test_an_account_knows_its_own_key(keys, tmp_path):
    mine = NodeLedger(
        client="north",
        location=str(tmp_path / "ledger.db"),
        folder=tmp_path / "state",
        simulation=False,
        budget=9.0,
        delta=DELTA,
        key=public_of(keys[0]),
    )
    mine.approve(replace(offered(), keys={}).slice_of(0))
    with mine.reading() as ledger:
        assert ledger.state.keys == {"north": [public_of(keys[0])]}
    with pytest.raises(Refused, match="fedspend node rotate-key"):
        replace(mine, key=public_of(keys[1])).approve(
            replace(offered(run="next"), keys={}).slice_of(0)
        )


@pytest.mark.full
def test_a_client_keeps_its_account_without_torch(keys, tmp_path):
    config = node_toml(tmp_path, keys[0])
    offer = replace(offered(), keys={})
    (tmp_path / "slice.json").write_bytes(offer.slice_of(0).to_bytes())
    said = str(tmp_path / "rotation.json")
    commands = (
        ["approve", str(tmp_path / "slice.json")],
        ["balance"],
        ["history"],
        ["rotate-key", str(keys[1]), "-o", said, "--reason", "yearly"],
    )
    lines = [["node", *command, "--config", config] for command in commands]
    script = (
        "import sys\n"
        "from fedspend.cli.main import main\n"
        f"for line in {lines!r}:\n    assert main(line) == 0, line\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, timeout=600)
