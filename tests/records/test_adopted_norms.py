"""A run directory of version 0.1.0, which holds all clients' norms in one file of the server's:
they go to the clients, once.
"""

import json

import numpy as np
import pytest
from lib.configs import small
from lib.runs import stopped
from safetensors.numpy import save

import fedspend
from fedspend.basics.tensors import read_tensors
from fedspend.client.state import FolderStates, folder_beside
from fedspend.configuration.config import config_of
from fedspend.errors import InvalidInput
from fedspend.runs import directory as runs
from fedspend.runs.norm_states import adopt_norms, norm_budgets
from fedspend.runs.setup import from_config
from fedspend.stored.files import OLD_NORMS
from fedspend.stored.run import StoredRun

pytestmark = pytest.mark.full

OLD_FILE = OLD_NORMS.name


@pytest.fixture
def config():
    return small("record", method={"name": "filter", "charge": "norm"})


def state_of(folder, client):
    return read_tensors(FolderStates(folder_beside(folder))._path(client))


def as_written_by_version_0_1_0(folder):
    """The clients' states put back into one file in the run directory: records in the order of the
    plan.
    """
    plan = StoredRun(folder).plan()
    arrays = {"before": np.zeros(len(plan.records)), "after": np.zeros(len(plan.records))}
    for number, client in enumerate(plan.clients):
        own, about = state_of(folder, client)
        for name in arrays:
            arrays[name][plan.owner == number] = own[name]
        FolderStates(folder_beside(folder))._path(client).unlink()
    about = {"about": json.dumps({"round": about["round"], "plan": plan.hash})}
    (folder / OLD_FILE).write_bytes(save(arrays, about))
    return plan, arrays


@pytest.mark.parametrize("randomness", ["seeded", "os"])
def test_norms_go_to_the_clients_and_the_run_goes_on(config, tmp_path, randomness):
    config["privacy"]["randomness"] = randomness
    config["ledger"] = {"project": "norms"}
    stopped(config, tmp_path / "old", 2)
    plan, arrays = as_written_by_version_0_1_0(tmp_path / "old")
    setup = from_config(config_of(config), stored=plan)
    states = FolderStates(folder_beside(tmp_path / "old"))
    adopt_norms(tmp_path / "old", norm_budgets(with_run(setup, tmp_path / "old"), states), setup)
    assert not (tmp_path / "old" / OLD_FILE).exists(), "what is private is with the clients alone"
    for number, client in enumerate(plan.clients):
        own, about = state_of(tmp_path / "old", client)
        assert about["round"] == 1
        for name in ("before", "after"):
            np.testing.assert_array_equal(own[name], arrays[name][plan.owner == number])
    assert len(fedspend.train(config, output=tmp_path / "old", resume=True).metrics) == 4


def with_run(setup, folder):
    import dataclasses

    return dataclasses.replace(
        setup, training=dataclasses.replace(setup.training, run=runs.RunDirectory(folder).run_id)
    )


def test_a_run_that_was_adopted_ends_as_if_nothing_had_happened(config, tmp_path):
    fedspend.train(config, output=tmp_path / "whole")
    stopped(config, tmp_path / "old", 2)
    as_written_by_version_0_1_0(tmp_path / "old")
    fedspend.train(config, output=tmp_path / "old", resume=True)
    for name in ("metrics.jsonl", "model.safetensors", "checkpoint.safetensors"):
        assert (tmp_path / "old" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "old" / OLD_FILE).exists()


def test_norms_go_to_the_clients_once(config, tmp_path):
    """A kill in the middle leaves some with a state of their own: that is newer, and stays, also if
    the old file comes back.
    """
    config["privacy"]["randomness"] = "os"
    config["ledger"] = {"project": "norms"}
    folder = tmp_path / "old"
    stopped(config, folder, 2)
    plan, arrays = as_written_by_version_0_1_0(folder)
    old = (folder / OLD_FILE).read_bytes()
    stopped(config, folder, 3, resume=True)
    newer = state_of(folder, "0")
    assert newer[1]["round"] == 2
    (folder / OLD_FILE).write_bytes(old)
    FolderStates(folder_beside(folder))._path("1").unlink()
    setup = with_run(from_config(config_of(config), stored=plan), folder)
    adopt_norms(folder, norm_budgets(setup, FolderStates(folder_beside(folder))), setup)
    for name in ("before", "after"):
        np.testing.assert_array_equal(state_of(folder, "0")[0][name], newer[0][name])
        np.testing.assert_array_equal(state_of(folder, "1")[0][name], arrays[name][plan.owner == 1])
    assert not (folder / OLD_FILE).exists()


@pytest.mark.parametrize(
    "change",
    [
        {"plan": "another"},
        {"round": -1},
        {"round": 1.0},
        {"arrays": {"before": np.zeros(60)}},
        {"arrays": {"before": np.zeros(3), "after": np.zeros(3)}},
    ],
)
def test_norms_of_another_run_are_refused_and_stay_where_they_are(config, tmp_path, change):
    folder = tmp_path / "old"
    stopped(config, folder, 2)
    plan, arrays = as_written_by_version_0_1_0(folder)
    about = {"round": 1, "plan": plan.hash} | {
        name: value for name, value in change.items() if name != "arrays"
    }
    (folder / OLD_FILE).write_bytes(
        save(change.get("arrays", arrays), {"about": json.dumps(about)})
    )
    with pytest.raises(InvalidInput, match="another run"):
        fedspend.train(config, output=folder, resume=True)
    assert (folder / OLD_FILE).exists()
    assert FolderStates(folder_beside(folder)).read("0") is None
    (folder / OLD_FILE).write_bytes(b"")
    with pytest.raises(InvalidInput, match="damaged"):
        fedspend.train(config, output=folder, resume=True)
