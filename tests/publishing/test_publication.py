"""A publication: what a stranger can check, what a client can check, and what nobody can learn."""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
import shutil
import stat
from pathlib import Path

import numpy as np
import pytest
from published import BUDGETS, train_real

import fedspend
from fedspend import publish, train, verify_publication
from fedspend.basics.tensors import read_tensors
from fedspend.cli.main import main
from fedspend.errors import InvalidInput, Refused
from fedspend.planning.plan_json import canonical, hash_of
from fedspend.planning.protocol import load_any_plan
from fedspend.publishing.publication import with_hash
from fedspend.publishing.words import DOCUMENT, GUARANTEE, text
from fedspend.records.planning import plan_records
from fedspend.records.policies import Wanted
from fedspend.records.terms import Terms
from fedspend.signing.commitments import commitment, new_opening, opens, sealed
from fedspend.signing.keys import new_keys
from fedspend.stored.files import MODEL, PLAN


def failed(result):
    return [one.check for one in result.checks if one.good is False]


@pytest.mark.full
def test_a_stranger_checks_all_that_a_stranger_can(published):
    result = verify_publication(published.folder, key=published.public)
    assert result.ok, result.checks
    good = {one.check: one.good for one in result.checks}
    passed = {"form", "signature", "guarantee", "files", "words"}
    assert {name for name, verdict in good.items() if verdict} == passed
    # what only the publisher or a client can know is said, and not called checked
    assert {name for name, verdict in good.items() if verdict is None} == {
        "certificate",
        "releases",
        "budgets",
    }
    assert result.document["guarantee"]["epsilon"] >= max(BUDGETS.values()) * (1 - 1e-6)
    assert "epsilon at most 8 at delta 0.001, for each of 4 clients" in result.words


@pytest.mark.full(only=["north"])
@pytest.mark.parametrize("client", list(BUDGETS))
def test_each_client_opens_its_own(published, client):
    result = verify_publication(published.folder, opening=published.opening(client))
    assert result.ok, result.checks
    words = {one.check: one.words for one in result.checks}
    assert repr(client) in words["opening"]
    assert f"its budget is {BUDGETS[client]:g}" in words["own budget"]


def test_nothing_in_it_tells_ids_budgets_or_a_digest_that_could_be_tried(published):
    """Neither in plain text nor as a hash of few unknown numbers."""
    plan = load_any_plan(PLAN.of(published.run))
    everything = b"".join(path.read_bytes() for path in published.folder.iterdir()).decode(
        "latin-1"
    )
    for client in BUDGETS:  # as words: "east" is somewhere in random base64 with chance 2e-5
        assert not re.search(rf"(?<![\w+/-]){client}(?![\w+/=-])", everything)
    for secret in (plan.hash, plan.hash.partition(":")[2]):
        assert secret not in everything
    document = published.document
    # a schedule per budget would tell the budgets: there is one, for all
    assert len(document["bound"]["schedules"]) == 1
    assert document["bound"]["clients"]["id"] == ["anyone"]
    _, about = read_tensors(published.folder / MODEL.name)
    assert set(about) == {"publication", "simulation"}
    _, about = read_tensors(MODEL.of(published.run))
    assert about["plan"] == plan.hash  # so the run's own file was not simply copied
    assert "accuracy" not in everything
    assert set(document["run"]) <= {"method", "policy", "noise", "fedspend", "rounds", "lost"}


def test_the_public_part_is_the_same_whatever_the_smaller_budgets_are():
    """Nothing but the largest budget, and the number of clients, can be told from it."""
    one, other = (
        fedspend.plan(budgets, delta=1e-3, rounds=3, rate=0.8).bound().content()
        for budgets in ([3.0, 5.0, 8.0, 8.0], [0.5, 7.0, 1.0, 8.0])
    )
    assert one == other


def test_openings_are_private_and_not_in_the_folder_that_is_published(published):
    for path in [published.openings, *published.openings.rglob("*")]:
        mode = stat.S_IMODE(path.stat().st_mode)
        assert mode == (0o700 if path.is_dir() else 0o600), path
    names = {path.name for path in published.folder.iterdir()}
    assert names == {DOCUMENT, GUARANTEE, MODEL.name}


def test_no_client_learns_of_another_from_its_opening(published):
    text = published.opening("north").read_text()
    assert not any(other in text for other in BUDGETS if other != "north")


def test_publishing_again_gives_other_commitments(original, tmp_path):
    again = publish(original.run, tmp_path / "again")
    document = json.loads((again.folder / DOCUMENT).read_text())
    mine, others = (one["commitments"] for one in (document, original.document))
    assert not set(mine["clients"]) & set(others["clients"])
    assert all(mine[name] != others[name] for name in ("noise", "plan", "ledger"))


def test_the_owner_can_show_an_auditor_that_it_is_this_run(published):
    result = verify_publication(published.folder, opening=published.openings / "owner.json")
    assert result.ok
    words = next(one.words for one in result.checks if one.check == "opening")
    assert load_any_plan(PLAN.of(published.run)).hash in words


# --- forgeries ------------------------------------------------------------------------------------


def test_a_changed_file_is_noticed(published):
    for name in (MODEL.name, GUARANTEE):
        path = published.folder / name
        body = path.read_bytes()
        path.write_bytes(body[:-1] + bytes([body[-1] ^ 1]))
        assert "files" in failed(verify_publication(published.folder))
        path.unlink()
        assert "files" in failed(verify_publication(published.folder))
        path.write_bytes(body)
    assert verify_publication(published.folder).ok


def leaves(value, place=()):
    if isinstance(value, dict):
        for key, one in value.items():
            yield from leaves(one, (*place, key))
    elif isinstance(value, list):
        for number, one in enumerate(value):
            yield from leaves(one, (*place, number))
    else:
        yield place


def changed(value, generator):
    """Another value of the same kind, or of another."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, int | float):
        return generator.choice([value * 2, -value or 1, value + 1e-9, 1e308, 0 if value else 1])
    if isinstance(value, str) and value:
        at = generator.randrange(len(value))
        other = "0" if value[at] != "0" else "1"
        return generator.choice([value[:at] + other + value[at + 1 :], "", None, 7])
    return "x"


@pytest.mark.parametrize("seed", range(40))
def test_whatever_is_changed_a_signed_publication_fails_and_nothing_raises(published, seed):
    generator = random.Random(seed)
    document = published.document
    place = generator.choice([one for one in leaves(document) if "orders" not in one])
    parent = document
    for key in place[:-1]:
        parent = parent[key]
    if generator.random() < 0.3 and isinstance(parent, dict):
        del parent[place[-1]]
    else:
        parent[place[-1]] = changed(parent[place[-1]], generator)
    published.rewrite(document)
    result = verify_publication(published.folder, key=published.public)
    assert not result.ok, place


@pytest.mark.parametrize("seed", range(20))
def test_a_changed_opening_fails_and_nothing_raises(published, seed):
    generator = random.Random(seed)
    path = published.opening("south")
    opening = json.loads(path.read_text())
    place = generator.choice([one for one in leaves(opening) if one[0] not in ("version",)])
    parent = opening
    for key in place[:-1]:
        parent = parent[key]
    parent[place[-1]] = changed(parent[place[-1]], generator)
    path.write_text(json.dumps(opening))
    result = verify_publication(published.folder, opening=path)
    assert "opening" in failed(result), place


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b"\xff\xfe", b'{"a": NaN}', b"[" * 100_000, b'{"a": 1, "a": 2}']
)
def test_a_document_that_is_none_is_one_failed_check(published, body):
    (published.folder / DOCUMENT).write_bytes(body)
    assert failed(verify_publication(published.folder)) == ["form"]
    (published.folder / DOCUMENT).unlink()
    os.mkfifo(published.folder / DOCUMENT)  # must not be waited for
    assert failed(verify_publication(published.folder)) == ["form"]


def unsigned(published, **changes):
    """The publication with changes, as somebody without the key could make it."""
    document = published.document | changes
    document.pop("signature", None)
    published.rewrite(document)


def test_an_epsilon_that_its_rounds_do_not_give_is_not_believed(published):
    guarantee = published.document["guarantee"] | {"epsilon": 1.0}
    unsigned(published, guarantee=guarantee)
    assert "guarantee" in failed(verify_publication(published.folder))
    # nor if the bound claims it too
    bound = published.document["bound"]
    del bound["hash"]
    bound["schedules"][0]["epsilon"] = 0.9
    bound["clients"]["budget"] = [1.0]
    unsigned(published, guarantee=guarantee, bound=with_hash(bound))
    assert "guarantee" in failed(verify_publication(published.folder))


def test_a_bound_that_is_too_good_is_noticed_by_the_clients_it_does_not_cover(published):
    """A stranger cannot know whether all clients are within the bound; they can."""
    careful = fedspend.plan([3.0], delta=1e-3, rounds=3, rate=0.8, accountant="rdp").bound()
    document = published.document
    guarantee = document["guarantee"] | {"epsilon": float(careful.budget[0])}
    document |= {"guarantee": guarantee, "bound": with_hash(careful.content())}
    words = text(document, careful).encode()
    (published.folder / GUARANTEE).write_bytes(words)
    document["files"][GUARANTEE] = hashlib.sha256(words).hexdigest()
    unsigned(published, **document)
    assert failed(verify_publication(published.folder)) == []
    assert failed(verify_publication(published.folder, opening=published.opening("north"))) == []
    assert failed(verify_publication(published.folder, opening=published.opening("east"))) == [
        "own budget",
        "own noise",
    ]


def test_words_that_say_more_than_the_numbers_fail(published):
    words = (published.folder / GUARANTEE).read_bytes().replace(b"at most 8 ", b"at most 1 ")
    (published.folder / GUARANTEE).write_bytes(words)
    files = published.document["files"] | {GUARANTEE: hashlib.sha256(words).hexdigest()}
    unsigned(published, files=files)
    assert failed(verify_publication(published.folder)) == ["words"]


def test_noise_cannot_be_told_differently_to_two_clients(published):
    """The noise has one commitment, so an opening with other noise fits nothing."""
    path = published.opening("east")
    opening = json.loads(path.read_text())
    stated, noise = sealed("noise", opening["noise"]["content"] | {"deviation": [[9.0, 3]]})
    path.write_text(json.dumps(opening | {"noise": noise}))
    assert "opening" in failed(verify_publication(published.folder, opening=path))
    unsigned(published, commitments=published.document["commitments"] | {"noise": stated})
    assert failed(verify_publication(published.folder, opening=path)) == ["own noise"]


def test_huge_numbers_of_rounds_and_orders_are_not_computed(published):
    bound = published.document["bound"]
    del bound["hash"]
    for change in (
        {"rounds": 10**12},
        {"orders": [1.5 + n / 1e6 for n in range(100_000)]},
        {"rounds": 1e300},
        {"orders": {}},
    ):
        unsigned(published, bound=with_hash(bound | change))
        assert "guarantee" in failed(verify_publication(published.folder))


# --- commitments ----------------------------------------------------------------------------------


def test_a_commitment_hides_and_binds():
    stated, opening = sealed("client", {"budget": 10.0})
    assert opens("client", stated, opening) == {"budget": 10.0}
    assert opens("noise", stated, opening) is None
    assert opens("client", stated, opening | {"content": {"budget": 9.0}}) is None
    assert opens("client", stated, opening | {"opening": "00" * 32}) is None
    assert opens("client", stated, None) is None
    # trying budgets without the opening finds nothing, and no two commitments are alike
    assert all(commitment("client", bytes(32), {"budget": float(b)}) != stated for b in range(99))
    assert len({sealed("client", {"budget": 10.0})[0] for _ in range(50)}) == 50
    assert len(new_opening()) == 32


# --- what may not be published --------------------------------------------------------------------


@pytest.mark.full
def test_a_simulation_says_so_loudly(tiny, tmp_path, capsys):
    train(tiny, output=tmp_path / "run")
    assert main(["publish", str(tmp_path / "run")]) == 0
    assert "SIMULATION" in capsys.readouterr().out
    assert main(["verify", str(tmp_path / "run.publication")]) == 0
    assert "SIMULATION" in capsys.readouterr().out
    assert (tmp_path / "run.publication" / GUARANTEE).read_text().count("SIMULATION") == 1
    assert main(["verify", str(tmp_path / "run.publication"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["simulation"] is True


@pytest.mark.usefixtures("quick_verify")
def test_a_simulation_on_rows_that_are_not_public_is_not_published(tmp_path):
    train_real(tmp_path / "run", randomness="seeded")
    with pytest.raises(Refused, match="simulation on rows that are not known to be public"):
        publish(tmp_path / "run")
    assert not (tmp_path / "run.publication").exists()


@pytest.mark.full
@pytest.mark.usefixtures("quick_verify")
def test_what_is_not_finished_or_does_not_belong_together_is_not_published(tiny, tmp_path):
    train(tiny, output=tmp_path / "run")
    whole = tmp_path / "whole"
    shutil.copytree(tmp_path / "run", whole)

    def refused(words):
        with pytest.raises((Refused, InvalidInput), match=words) as said:
            publish(tmp_path / "run")
        assert "\n" not in str(said.value)
        assert not (tmp_path / "run.publication").exists()
        assert not (tmp_path / "run.publication.openings").exists()
        shutil.rmtree(tmp_path / "run")
        shutil.copytree(whole, tmp_path / "run")

    MODEL.of(tmp_path / "run").unlink()
    refused("has no model yet")
    (tmp_path / "run" / "ledger.db").unlink()
    refused("is gone")
    (tmp_path / "run" / "certificate.json").write_text('{"ok": false}')
    refused("does not say that the run's plan was verified")
    tiny["train"]["seed"] = 6
    tiny["privacy"]["delta"] = 1e-4
    train(tiny, output=tmp_path / "other")
    shutil.copy(MODEL.of(tmp_path / "other"), MODEL.of(tmp_path / "run"))
    refused("was not trained under the plan")
    shutil.copy(PLAN.of(tmp_path / "other"), PLAN.of(tmp_path / "run"))
    refused("does not say that the run's plan was verified")
    (tmp_path / "run" / "run.json").write_text("{")
    refused("damaged")
    metrics = tmp_path / "run" / "metrics.jsonl"  # not published, but no longer this run's
    metrics.write_text(metrics.read_text().replace('"accuracy"', '"Accuracy"', 1))
    refused("does not verify")


def test_nothing_is_overwritten(original, tmp_path):
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "x").write_text("")
    with pytest.raises(InvalidInput, match="is not overwritten"):
        publish(original.run, tmp_path / "there")
    (tmp_path / "new.openings").mkdir()
    (tmp_path / "new.openings" / "x").write_text("")
    with pytest.raises(InvalidInput, match="is not overwritten"):
        publish(original.run, tmp_path / "new")
    assert not (tmp_path / "new").exists()


# --- bounds ---------------------------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    "more",
    [{"accountant": "rdp"}, {"saving_rate": 0.5, "accountant": "rdp"}, {"accountant": "pld"}],
)
def test_nobody_costs_more_than_the_bound(more):
    """The claim of every client is at most that of the bound, which covers it and verifies."""
    plan = fedspend.plan([2.0, 4.0, 9.0, 9.5], delta=1e-4, rounds=6, rate=0.7, **more)
    bound = plan.bound()
    assert bound.verify().ok
    assert float(bound.budget[0]) >= float(bound.epsilon[0]) >= plan.epsilon.max() * (1 - 1e-9)
    for client in range(4):
        part = plan.part_of(client)
        assert part.verify().ok
        assert bound.covers(part)
        assert part.epsilon[0] == plan.epsilon[client]
        assert part.clients == (plan.clients[client],)
    other = fedspend.plan([9.6], delta=1e-4, rounds=6, rate=0.7, **more)
    assert not bound.covers(other.part_of(0))


@pytest.mark.full
@pytest.mark.usefixtures("quick_verify")
def test_a_run_that_also_releases_bits_is_published_with_one_noise_for_all(tiny, tmp_path):
    """A bit takes its part of every round, so updates have noise multipliers of their own."""
    tiny["method"] = {"name": "adaptive-clip"}
    del tiny["privacy"]["saving_rate"]
    tiny["evaluation"] = {"mode": "private"}
    tiny["data"]["validation"] = 0.2
    made = train(tiny, output=tmp_path / "run")
    assert np.all(made.plan.update_noise > made.plan.schedules.noise_multiplier)
    folder = publish(tmp_path / "run").folder
    for client in ("0", "5"):
        opening = tmp_path / "run.publication.openings" / "clients" / f"{client}.json"
        result = verify_publication(folder, opening=opening)
        assert result.ok, failed(result)
    assert "metric_noise" not in (folder / DOCUMENT).read_text()


def test_the_bound_of_schedules_that_cross_is_above_both():
    """Where no client has the highest rate and the lowest noise in all rounds, the bound is that of
    a made-up one who has.
    """
    early = np.array([[1.0, 3.0], [1.0, 3.0], [3.0, 1.0], [3.0, 1.0]])
    plan = fedspend.plan([9.0, 9.0], delta=1e-4, rounds=4, rate=0.7)
    crossing = plan.replace(noise_multiplier=early)
    bound = crossing.bound()
    assert np.all(bound.noise_multiplier == 1.0)
    assert bound.verify().ok
    assert all(bound.covers(crossing.part_of(n)) for n in range(2))


@pytest.mark.full(only=["rpdp"])
@pytest.mark.parametrize("method", ["rpdp", "filter"])
def test_plans_of_records_have_bounds_and_parts_too(method):
    terms = Terms.checked(
        delta=1e-3, rounds=4, local_steps=3, client_rate=1.0, noise_multiplier=4.0
    )
    wanted = Wanted(method=method) if method == "rpdp" else Wanted(method=method, charge="clip")
    plan = plan_records(
        [0.5, 1.0, 2.0, 1.0, 3.0], [0, 0, 1, 1, 1], terms, clients=("a", "b"), wanted=wanted
    )
    bound = plan.bound()
    assert bound.verify().ok
    assert bound.records == ("anyone",)
    assert float(bound.budget[0]) >= plan.epsilon.max() * (1 - 1e-9)
    for client, records in ((0, 2), (1, 3)):
        part = plan.part_of(client)
        assert part.verify().ok
        assert len(part.records) == records
        assert bound.covers(part)
    assert hash_of(canonical(bound.content())) == bound.hash


# --- the docs -------------------------------------------------------------------------------------


def test_the_check_of_an_opening_without_fedspend_is_right(published, monkeypatch):
    """The program in docs/how-to/publishing.md, as it stands there."""
    page = (Path(__file__).parents[2] / "docs" / "how-to" / "publishing.md").read_text(
        encoding="utf-8"
    )
    program = page.partition("```python\n")[2].partition("```")[0]
    shutil.copy(published.opening("north"), published.folder / "north.json")
    monkeypatch.chdir(published.folder)
    exec(compile(program, "publishing.md", "exec"), {})
    body = (published.folder / "north.json").read_text()
    (published.folder / "north.json").write_text(body.replace("3.0", "2.0", 1))
    with pytest.raises(AssertionError):
        exec(compile(program, "publishing.md", "exec"), {})


@pytest.mark.full
def test_a_run_under_a_project_is_signed_published_and_checked(tmp_path):
    """Its account is found under the project that the run names."""
    private, public = new_keys(tmp_path / "keys")
    train_real(tmp_path / "run", sign=private, ledger=tmp_path / "ledger.db", project="clinics")
    ledger = ["--ledger", str(tmp_path / "ledger.db")]
    assert main(["publish", str(tmp_path / "run"), "--sign", str(private), *ledger]) == 0
    for folder, more in (("run", ledger), ("run.publication", [])):
        assert main(["verify", str(tmp_path / folder), "--key", str(public), *more]) == 0
