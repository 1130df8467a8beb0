"""Publications of version 0.2.0 verify, open to each client's own numbers, and can be made again
from the runs of version 0.2.0.
"""

from __future__ import annotations

import json

import pytest
from before.v0_2.kept import read_json
from before.v0_2.same import differences
from safetensors.numpy import load_file

pytestmark = pytest.mark.filterwarnings("ignore::fedspend.errors.FedspendWarning")
RUNS = {
    "simulation": "central-finished",
    "clients": "real-finished",
    "records": "real-records-finished",
    "people": "people-finished",
    "consortium": "consortium-finished",
    "votes": "votes-finished",
    "metric": "metric-finished",
}
KEY = ("--key", "keys/fedspend.pub")


@pytest.fixture(params=RUNS)
def published(request, files):
    """The name of a publication; it and its openings are there."""
    name = f"publications/{request.param}"
    files.bring(f"{name}.openings", name)
    return request.param


def test_every_publication_is_there(original, said):
    found = {path.name for path in (original / "publications").iterdir()}
    assert found == {*RUNS, *(f"{name}.openings" for name in RUNS)}
    assert {*said["publications"]} == {*RUNS}
    assert all(one["ok"] for one in said["publications"].values())


@pytest.mark.full(but=["clients", "records", "consortium"])
def test_a_publication_verifies_as_it_did(told, published, said):
    found = told("verify", f"publications/{published}", *KEY)
    stored = said["publications"][published]
    assert not differences(found, stored, 1e-9)


@pytest.mark.full(but_every=4)
def test_every_opening_opens_its_own_commitment_only(run, files, published):
    openings = sorted((files.folder / f"publications/{published}.openings/clients").iterdir())
    outcome = run("verify", f"publications/{published}", *KEY, "--open", openings[0])
    assert outcome.code == 0, outcome
    forged = read_json(openings[0])
    text = json.dumps(forged)
    secret = next(value for value in _texts(forged) if len(value) == 64 and _is_hex(value))
    openings[0].write_text(text.replace(secret, secret[::-1]))
    assert run("verify", f"publications/{published}", "--open", openings[0]).code in (1, 2)


def _texts(document):
    if isinstance(document, str):
        yield document
    for one in document.values() if isinstance(document, dict) else ():
        yield from _texts(one)


def _is_hex(text):
    return set(text) <= set("0123456789abcdef")


def test_another_number_is_noticed(run, files):
    folder = files.bring("publications/clients")
    path = next(path for path in folder.iterdir() if path.suffix == ".json")
    content = path.read_text()
    assert run("verify", folder, "--key", "keys/fedspend.pub").code == 0
    path.write_text(content.replace('"delta": 0.001', '"delta": 0.0001'))
    assert path.read_text() != content
    assert run("verify", folder).code == 1


@pytest.mark.full
@pytest.mark.parametrize("name", ["clients", "records", "simulation"])
def test_a_run_is_published_again(run, told, files, said, name):
    folder = files.run(RUNS[name])
    made = told("publish", folder, "-o", "public", "--sign", "keys/fedspend.key")
    assert run("verify", "public", *KEY).code == 0
    again = files.bring(f"publications/{name}")
    ours, theirs = (
        load_file(folder / "model.safetensors") for folder in (files.folder / "public", again)
    )
    assert ours.keys() == theirs.keys()
    assert all(ours[key].tobytes() == theirs[key].tobytes() for key in theirs)
    assert made["signed_by"]
    assert said["runs"][RUNS[name]]["simulation"] == made["simulation"]
