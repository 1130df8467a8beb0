"""A record-level method on a real SuperLink and real SuperNodes: every silo plans its own records,
and the model is that of one machine. `FEDSPEND_SILOS=1 make test-deployment` runs it; without it
this file is not collected, since it takes some minutes more.
"""

import shutil

from deployment.watching import EXAMPLE, PATIENCE, logs
from flower.test_silos import SILOS, node_config, on_one_machine, server_config, written
from safetensors.numpy import load_file

import fedspend
from fedspend.basics.toml_text import config_text
from fedspend.flower.loopback import federation, settings_of, wait_for
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.runs.verifying import verify_run
from fedspend.stored.run import StoredRun


def project(folder, rows):
    """Silos with their own records, and a server that knows their keys and the public terms."""
    shutil.copytree(EXAMPLE / "app", folder / "app")
    server = server_config(rows)
    server["train"]["rounds"] = 2
    server["engine"] = {"name": "flower", "keys": "keys.csv", "deadline": 120}
    server["ledger"] = {"location": "ledger.db"}
    (folder / "server").mkdir()
    (folder / "server" / "training.toml").write_text(config_text(server))
    for silo in SILOS:
        (folder / "nodes" / silo).mkdir(parents=True)
        config = node_config(rows, silo)
        config["node"] |= {"state": "state", "key": "node.key"}
        config["ledger"] = {"location": "ledger.db"}
        (folder / "nodes" / silo / "node.toml").write_text(config_text(config))
    return folder


def test_records_stay_at_their_silos_and_the_model_is_that_of_one_machine(tmp_path):
    (tmp_path / "rows").mkdir()
    rows = written(tmp_path / "rows")
    (tmp_path / "project").mkdir()
    with federation(project(tmp_path / "project", rows), tmp_path / "federation") as made:
        run = tmp_path / "run"
        status, _ = wait_for(made, made.submit(**settings_of(made.folder, run, {})), PATIENCE)
        assert status == "finished:completed", logs(made.folder)
    alone = on_one_machine(rows)
    alone["train"]["rounds"] = 2
    fedspend.train(alone, output=tmp_path / "alone")
    found, expected = (load_file(one / "model.safetensors") for one in (run, tmp_path / "alone"))
    assert {name: array.tobytes() for name, array in found.items()} == {
        name: array.tobytes() for name, array in expected.items()
    }
    server = made.folder / "server" / "ledger.db"
    assert verify_run(run, ledger=server).ok
    assert audit(str(server), runs=[str(run)]).ok
    assert len(StoredRun(run).metrics()) == 2
    for silo in SILOS:
        ledger = made.node(silo) / "ledger.db"
        assert audit(str(ledger)).ok
        with Ledger.open(ledger) as book:
            accounts = list(book.balances("record").rows())
        records = (rows / silo / "records.csv").read_text().splitlines()[1:]
        assert len(accounts) == len(records)
        for row in accounts:
            assert 0 < row["spent"] <= row["budget"] + 1e-9
    # what the server has says nothing about any record or its budget
    kept = b"".join(path.read_bytes() for path in run.iterdir() if path.is_file())
    assert not any(f"{silo}-{number}".encode() in kept for silo in SILOS for number in range(9))
