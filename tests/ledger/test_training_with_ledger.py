"""Training against a ledger: charged, enforced, recovered,
and nothing written when it is refused.
"""

import json
import sqlite3
import stat
from pathlib import Path

import numpy as np
import pytest
from lib.runs import Killed, killed, stopped

import fedspend
import fedspend.runs.directory
import fedspend.server.rounds
from fedspend import train
from fedspend.basics.tensors import read_tensors, seal
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Damaged, Ledger, Unavailable
from fedspend.ledger.account import place_of
from fedspend.ledger.audit import audit
from fedspend.stored.files import RELEASE

pytestmark = pytest.mark.usefixtures("quick_verify")


def balances(place):
    with Ledger.open(place) as ledger:
        return ledger.balances()


def run_of(folder):
    return json.loads((folder / "run.json").read_text())["ledger"]["run"]


# --- charged ---


def test_a_run_makes_the_ledger_and_registers_its_clients(tiny, tmp_path, place):
    train(tiny, output=tmp_path / "run", ledger=place)
    found = balances(place)
    assert found.names == [str(n) for n in range(6)]
    assert found.budget.tolist() == [4.0] * 2 + [12.0] * 4
    np.testing.assert_allclose(found.spent, found.budget, rtol=1e-6)
    with Ledger.open(place) as ledger:
        assert ledger.simulation, "seeded runs are simulations"
        assert ledger.run(run_of(tmp_path / "run")).closed == "finished"


def test_without_a_ledger_there_is_one_in_the_run_directory(tiny, tmp_path):
    train(tiny, output=tmp_path / "run")
    found = balances(tmp_path / "run" / "ledger.db")
    np.testing.assert_allclose(found.spent, found.budget, rtol=1e-6)
    assert stat.S_IMODE((tmp_path / "run" / "ledger.db").stat().st_mode) == 0o600
    assert stat.S_IMODE((tmp_path / "run" / "ledger.db.head").stat().st_mode) == 0o600


def test_a_moved_run_directory_still_finds_its_own_ledger(tiny, tmp_path):
    stopped(tiny, tmp_path / "run", 2)
    (tmp_path / "run").rename(tmp_path / "moved")
    train(tiny, output=tmp_path / "moved", resume=True, moved=True)
    assert audit(str(tmp_path / "moved" / "ledger.db")).ok


def choose_method(config, method):
    """Change the method, and drop what only others use."""
    config["method"] = {"name": method}
    if method in ("fedavg", "dp-fedavg", "idp-fedavg"):
        config["privacy"].pop("saving_rate", None)
    if method == "ae-dpfl":
        config["votes"] = {"queries": 1}


def test_fedavg_spends_nothing_and_has_no_ledger(tiny, tmp_path):
    choose_method(tiny, "fedavg")
    train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    assert not (tmp_path / "accounts.db").exists()
    assert not (tmp_path / "run" / "ledger.db").exists()


@pytest.mark.full(but_every=5)
@pytest.mark.parametrize(
    "method", ["dp-fedavg", "idp-fedavg", "time-adaptive", "adaptive-clip", "ae-dpfl"]
)
def test_every_method_is_charged_what_it_planned(tiny, tmp_path, method):
    choose_method(tiny, method)
    tiny |= {"data": tiny["data"] | {"public_share": 0.1}}
    result = train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    np.testing.assert_allclose(
        balances(tmp_path / "accounts.db").spent, result.plan.epsilon, rtol=1e-6
    )


def test_the_round_is_charged_before_anyone_is_sampled(tiny, tmp_path, monkeypatch):
    charged = []

    def look(*_):
        with Ledger.open(tmp_path / "accounts.db") as ledger:
            charged.append(ledger.balances().spent.min())
        raise Killed

    monkeypatch.setattr(fedspend.server.rounds, "draw_cohort", look)
    with pytest.raises(Killed):
        train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    assert charged[0] > 0, "every client of the plan, sampled or not"


def test_a_ledger_is_charged_without_a_run_directory(tiny, tmp_path):
    result = train(tiny, ledger=tmp_path / "accounts.db")
    with Ledger.open(tmp_path / "accounts.db") as ledger:
        assert ledger.run(result.run).closed == "finished"


# --- enforced ---


def test_a_second_run_is_refused_and_nothing_is_written(tiny, tmp_path, place):
    train(tiny, output=tmp_path / "one", ledger=place)
    with Ledger.open(place) as ledger:
        before = ledger.state.head
    with pytest.raises(Refused, match="client '0' and 5 more"):
        train(tiny, output=tmp_path / "two", ledger=place)
    with Ledger.open(place) as ledger:
        assert ledger.state.head == before
    assert not (tmp_path / "two").exists()


def test_a_raised_budget_lets_it_through(tiny, tmp_path):
    place = tmp_path / "accounts.db"
    train(tiny, output=tmp_path / "one", ledger=place)
    with Ledger.open(place, write=True) as ledger:
        ledger.change(ledger.accounts().names, 30.0, reason="new consent")
    train(tiny, output=tmp_path / "two", ledger=place)
    found = balances(place)
    assert np.all(
        (found.spent > [4.0] * 2 + [12.0] * 4) & (found.spent < [8.0] * 2 + [24.0] * 4)
    ), "composed, not added"


def test_the_rest_is_spent_exactly(tiny, tmp_path, place):
    stopped(tiny, tmp_path / "one", 2, ledger=place)
    with Ledger.open(place, write=True) as ledger:
        ledger.close_run(run_of(tmp_path / "one"), reason="stopped early")
    left = balances(place).remaining
    assert np.all((0.1 * balances(place).budget < left) & (left < balances(place).budget))
    result = train(tiny | {"ledger": {"spend": "remaining"}}, output=tmp_path / "two", ledger=place)
    found = balances(place)
    assert np.all(found.spent <= found.budget)
    np.testing.assert_allclose(found.spent, found.budget, rtol=1e-3)
    assert result.plan.parameters["ledger"].count(":") == 1
    assert audit(place).ok
    with pytest.raises(Refused, match="used up"):
        train(tiny | {"ledger": {"spend": "remaining"}}, output=tmp_path / "three", ledger=place)


def test_a_closed_run_is_not_resumed(tiny, tmp_path):
    stopped(tiny, tmp_path / "one", 2)
    with Ledger.open(tmp_path / "one" / "ledger.db", write=True) as ledger:
        ledger.close_run(run_of(tmp_path / "one"), reason="stopped early")
    with pytest.raises(Refused, match="stopped early"):
        train(tiny, output=tmp_path / "one", resume=True)


def test_who_has_too_little_is_left_out_if_so_configured(tiny, tmp_path):
    place = tmp_path / "accounts.db"
    with Ledger.create(place, simulation=True) as ledger:
        ledger.register([str(n) for n in range(6)], [4.0, 1.0, 12.0, 12.0, 3.0, 12.0], delta=1e-3)
    with pytest.raises(Refused, match="client '1' and 1 more"):
        train(tiny, output=tmp_path / "one", ledger=place)
    result = train(
        tiny | {"ledger": {"exhausted": "leave-out"}}, output=tmp_path / "one", ledger=place
    )
    assert result.plan.clients == ("0", "2", "3", "5")
    assert balances(place).spent[[1, 4]].tolist() == [0.0, 0.0]
    with pytest.raises(Refused, match="nobody can take part"):
        train(tiny | {"ledger": {"exhausted": "leave-out"}}, output=tmp_path / "two", ledger=place)


def test_leaving_out_the_strictest_looks_again_at_the_others(tiny, tmp_path):
    """Under dp-fedavg all follow the strictest: without it the noise falls, and the next may not
    fit any more.
    """
    choose_method(tiny, "dp-fedavg")
    tiny["privacy"]["groups"] = [{"epsilon": 2.0, "share": 1}, {"epsilon": 12.0, "share": 2}]
    place = tmp_path / "accounts.db"
    with Ledger.create(place, simulation=True) as ledger:
        ledger.register([str(n) for n in range(6)], [1.0, 1.0, 6.0, 12.0, 12.0, 12.0], delta=1e-3)
    result = train(
        tiny | {"ledger": {"exhausted": "leave-out"}}, output=tmp_path / "one", ledger=place
    )
    assert result.plan.clients == ("3", "4", "5")
    assert np.all(balances(place).spent <= balances(place).budget)


def test_data_stays_with_its_client_when_others_are_left_out(tiny, tmp_path):
    from fedspend.configuration.config import config_of
    from fedspend.runs.setup import from_config

    place = tmp_path / "accounts.db"
    with Ledger.create(place, simulation=True) as ledger:
        ledger.register([str(n) for n in range(6)], [4.0, 1.0, 12.0, 12.0, 12.0, 12.0], delta=1e-3)
        some = from_config(
            config_of(tiny | {"ledger": {"exhausted": "leave-out"}}), ledger
        ).federation
    everyone = from_config(config_of(tiny)).federation
    assert some.clients == ("0", "2", "3", "4", "5")
    for client, shard in zip(some.clients, some.shards, strict=True):
        np.testing.assert_array_equal(shard, everyone.shards[int(client)])


@pytest.mark.parametrize(("randomness", "simulation"), [("os", True), ("seeded", False)])
def test_simulations_and_real_runs_never_share_a_ledger(tiny, tmp_path, randomness, simulation):
    tiny["privacy"]["randomness"] = randomness
    Ledger.create(tmp_path / "accounts.db", simulation=simulation).close()
    with pytest.raises(Refused, match="use another ledger"):
        train(tiny, output=tmp_path / "one", ledger=tmp_path / "accounts.db")


def test_another_delta_is_refused(tiny, tmp_path):
    train(tiny, output=tmp_path / "one", ledger=tmp_path / "accounts.db")
    tiny["privacy"]["delta"] = 1e-4
    with pytest.raises(Refused, match="one delta"):
        train(tiny, output=tmp_path / "two", ledger=tmp_path / "accounts.db")


def test_clients_that_are_not_registered_are_named(tiny, tmp_path):
    with Ledger.create(tmp_path / "accounts.db", simulation=True) as ledger:
        ledger.register(["0", "1"], 30.0, delta=1e-3)
    with pytest.raises(InvalidInput, match="client '2' is not in the ledger"):
        train(tiny, output=tmp_path / "two", ledger=tmp_path / "accounts.db")


def test_own_arrays_are_charged_too(tmp_path):
    import torch

    rng = np.random.default_rng(0)
    clients = {
        str(n): (rng.normal(size=(8, 3)).astype(np.float32), rng.integers(0, 2, 8))
        for n in range(4)
    }
    plan = fedspend.plan([5.0] * 4, delta=1e-3, rounds=3, rate=0.5)
    options = {
        "model": torch.nn.Linear(3, 2),
        "plan": plan,
        "test": clients["0"],
        "lr": 0.1,
        "batch_size": 4,
        "local_steps": 2,
    }
    train(clients=clients, output=tmp_path / "one", ledger=tmp_path / "accounts.db", **options)
    with Ledger.open(tmp_path / "accounts.db") as ledger:
        assert not ledger.simulation
        np.testing.assert_allclose(ledger.balances().spent, 5.0, rtol=1e-5)
    with pytest.raises(Refused, match="lifetime budget"):
        train(clients=clients, output=tmp_path / "two", ledger=tmp_path / "accounts.db", **options)
    assert not (tmp_path / "two").exists()


def test_a_plan_by_pld_is_admitted_by_pld(tmp_path):
    """Read by Rényi curves it would be over: the account of such a run is read by PLD."""
    from fedspend.ledger.rules import Proposal

    plan = fedspend.plan([5.0] * 3, delta=1e-3, rounds=4, rate=0.5, accountant="pld")
    with Ledger.create(tmp_path / "accounts.db", simulation=True) as ledger:
        ledger.admit("one", Proposal.of_plan(plan), simulation=True)
        for round in range(4):
            ledger.reserve("one", round)
        spent = ledger.balances().spent
        assert np.all(spent <= 5.0)
        np.testing.assert_allclose(spent, plan.epsilon, rtol=1e-4)
        with pytest.raises(Refused):
            ledger.admit("two", Proposal.of_plan(plan), simulation=True)
    assert audit(str(tmp_path / "accounts.db")).ok


def test_pld_on_demand_reads_lower(tiny, tmp_path):
    train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    with Ledger.open(tmp_path / "accounts.db") as ledger:
        by_rdp, by_pld = ledger.balances().spent, ledger.balances(accountant="pld").spent
    assert np.all((by_pld < by_rdp) & (by_pld > 0.8 * by_rdp))


# --- recovered ---


def test_recovery_says_what_happened(tiny, tmp_path):
    tiny["privacy"]["randomness"] = "os"
    stopped(tiny, tmp_path / "run", 1, ledger=tmp_path / "accounts.db")
    notes = []
    with killed(at="play"):
        train(tiny, output=tmp_path / "run", resume=True, on_note=notes.append)
    assert notes == ["1 round is committed; no round was under way"]
    with killed(at="kept"):
        train(tiny, output=tmp_path / "run", resume=True, on_note=notes.append)
    assert (
        "round 2 was under way and its release is lost: its budget stays spent and it is skipped"
        in notes[1]
    )
    train(tiny, output=tmp_path / "run", resume=True, on_note=notes.append)
    assert notes[2] == (
        "2 rounds are committed; round 3 was under way and its release is stored: it is used again"
    )


def test_killed_between_the_release_and_its_entry(tiny, tmp_path, monkeypatch):
    tiny["privacy"]["randomness"] = "os"
    with killed(at="enter"):
        train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    unfinished, other = (tmp_path / "run" / f".{name}.a1b2c3d_" for name in (RELEASE, "notes"))
    for path in (unfinished, other):
        path.write_bytes(b"cut off")
    played = []
    real = fedspend.server.rounds.play

    def watched(progress, *rest):
        played.append(progress.done)
        return real(progress, *rest)

    monkeypatch.setattr(fedspend.server.rounds, "play", watched)
    train(tiny, output=tmp_path / "run", resume=True)
    assert played == [1, 2, 3], "the stored release of round 1 was used again"
    assert (unfinished.exists(), other.exists()) == (False, True)
    with Ledger.open(tmp_path / "accounts.db") as ledger:
        assert list(ledger.run(run_of(tmp_path / "run")).rounds.values()) == ["committed"] * 4


def test_another_release_in_place_of_the_committed_one_is_refused(tiny, tmp_path):
    from safetensors.numpy import load_file, save_file

    tiny["privacy"]["randomness"] = "os"
    with killed(at="kept"):
        train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    path = tmp_path / "run" / "release.safetensors"
    arrays, about = read_tensors(path)
    assert load_file(path).keys() == {"update"}
    save_file({"update": arrays["update"] + 1}, path, {"about": json.dumps(about)})
    with pytest.raises(InvalidInput, match="not that of its digest"):
        train(tiny, output=tmp_path / "run", resume=True)
    del about["digest"]
    path.write_bytes(seal({"update": arrays["update"] + 1}, about)[0])
    with pytest.raises(Refused, match="not the release of round 1 that the ledger has seen"):
        train(tiny, output=tmp_path / "run", resume=True)


@pytest.mark.full(but=["0-dp-fedavg"])
@pytest.mark.parametrize(
    "method", ["dp-fedavg", "idp-fedavg", "time-adaptive", "adaptive-clip", "ae-dpfl"]
)
@pytest.mark.parametrize("lost", [0, 3, 6])
@pytest.mark.filterwarnings("ignore:noise on a class")
def test_lost_rounds_can_be_made_up_for(tiny, tmp_path, method, lost):
    tiny |= {"data": tiny["data"] | {"public_share": 0.1}}
    tiny["privacy"]["randomness"] = "os"
    choose_method(tiny, method)
    tiny["train"]["rounds"] = 8
    with killed(at="play", round=lost + 1):
        train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    old = fedspend.Plan.load(tmp_path / "run" / "plan.json")
    notes = []
    result = train(tiny, output=tmp_path / "run", resume=True, replan=True, on_note=notes.append)
    assert f"1 lost round is made up for: rounds {lost + 2} to 9 were replanned" in notes
    assert [n for n, line in enumerate(result.metrics) if line.get("skipped")] == [lost]
    assert result.plan.rounds == 9
    begun = slice(0, lost + 1)
    np.testing.assert_array_equal(result.plan.noise_multiplier[begun], old.noise_multiplier[begun])
    assert np.all(result.plan.noise_multiplier[lost + 1 : 8] > old.noise_multiplier[lost + 1 :])
    found = balances(tmp_path / "accounts.db")
    assert np.all(found.spent <= old.epsilon)
    np.testing.assert_allclose(found.spent, old.epsilon, rtol=1e-6)
    assert audit(str(tmp_path / "accounts.db"), runs=[str(tmp_path / "run")]).ok
    if method == "time-adaptive":
        from fedspend.verification.verify import verify

        assert verify(result.plan).ok


def test_replanning_on_top_of_an_earlier_run(tiny, tmp_path, place):
    """What other runs have spent counts too: the lifetime budget is kept, and used."""
    tiny["privacy"]["randomness"] = "os"
    stopped(tiny, tmp_path / "one", 2, ledger=place)
    with Ledger.open(place, write=True) as ledger:
        ledger.close_run(run_of(tmp_path / "one"), reason="stopped early")
    rest = tiny | {"ledger": {"spend": "remaining"}}
    with killed(at="play"):
        train(rest, output=tmp_path / "two", ledger=place)
    train(rest, output=tmp_path / "two", resume=True, replan=True)
    found = balances(place)
    assert np.all(found.spent <= found.budget)
    np.testing.assert_allclose(found.spent, found.budget, rtol=1e-3)
    assert audit(place).ok


def test_when_the_last_round_is_lost_nothing_is_left_to_spread(tiny, tmp_path):
    tiny["privacy"]["randomness"] = "os"
    stopped(tiny, tmp_path / "run", 3, ledger=tmp_path / "accounts.db")
    with killed(at="play"):
        train(tiny, output=tmp_path / "run", resume=True)
    notes = []
    result = train(tiny, output=tmp_path / "run", resume=True, replan=True, on_note=notes.append)
    assert "no budget is left" in notes[0]
    assert result.metrics[-1]["skipped"]


def test_replanning_is_safe_against_a_kill(tiny, tmp_path):
    """Killed after the new plan was stored and before the ledger heard of it."""
    tiny["privacy"]["randomness"] = "os"
    with killed(at="play"):
        train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    with killed(at="fedspend.ledger.Ledger.replan"):
        train(tiny, output=tmp_path / "run", resume=True, replan=True)
    result = train(tiny, output=tmp_path / "run", resume=True)
    assert result.plan.rounds == 5
    found = balances(tmp_path / "accounts.db")
    np.testing.assert_allclose(found.spent, found.budget, rtol=1e-6)
    assert np.all(found.spent <= found.budget)


def test_replanning_a_simulation_or_a_whole_run_changes_nothing(tiny, tmp_path):
    stopped(tiny, tmp_path / "run", 2)
    notes = []
    result = train(tiny, output=tmp_path / "run", resume=True, replan=True, on_note=notes.append)
    assert result.plan.rounds == 4
    assert "no round was lost: the plan stays as it is" in notes


def test_a_run_is_resumed_under_the_budgets_it_began_with(tiny, tmp_path):
    (tmp_path / "budgets.csv").write_text(
        "client,epsilon\n" + "".join(f"c{n},5\n" for n in range(6))
    )
    del tiny["privacy"]["groups"]
    tiny["privacy"]["budgets"] = str(tmp_path / "budgets.csv")
    stopped(tiny, tmp_path / "run", 2)
    (tmp_path / "budgets.csv").write_text(
        "client,epsilon\n" + "".join(f"c{n},{5 + n}\n" for n in range(6))
    )
    with pytest.raises(InvalidInput, match="budget of 5 for client 'c1', but the config has 6"):
        train(tiny, output=tmp_path / "run", resume=True)


def test_two_processes_do_not_train_in_one_directory(tiny, tmp_path):
    from fedspend.basics.files import one_at_a_time

    stopped(tiny, tmp_path / "run", 1)
    with (
        one_at_a_time(tmp_path / "run"),
        pytest.raises(Refused, match="another process is at work"),
    ):
        train(tiny, output=tmp_path / "run", resume=True)
    train(tiny, output=tmp_path / "run", resume=True)


def test_a_copied_run_directory_cannot_release_a_round_again(tiny, tmp_path):
    import shutil

    tiny["privacy"]["randomness"] = "os"
    place = tmp_path / "accounts.db"
    stopped(tiny, tmp_path / "run", 1, ledger=place)
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    train(tiny, output=tmp_path / "run", resume=True)
    with pytest.raises(Refused, match="is from after round 1, but the ledger has 4 rounds"):
        train(tiny, output=tmp_path / "copy", resume=True)
    assert audit(str(place)).ok


def test_a_closed_run_that_lost_a_round_leaves_the_ledger_sound(tiny, tmp_path):
    tiny["privacy"]["randomness"] = "os"
    with killed(at="play"):
        train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    with Ledger.open(tmp_path / "accounts.db", write=True) as ledger:
        ledger.close_run(run_of(tmp_path / "run"), reason="abandoned")
    for options in ({}, {"replan": True}):
        with pytest.raises(Refused, match="abandoned"):
            train(tiny, output=tmp_path / "run", resume=True, **options)
    assert audit(str(tmp_path / "accounts.db")).ok


def test_a_ledger_in_the_config_is_charged_without_a_run_directory_too(tiny, tmp_path):
    train(tiny | {"ledger": {"location": str(tmp_path / "accounts.db")}})
    assert balances(tmp_path / "accounts.db").spent.min() > 0


def test_a_run_that_names_no_ledger_is_not_resumed_uncharged(tiny, tmp_path):
    stopped(tiny, tmp_path / "run", 1)
    about = json.loads((tmp_path / "run" / "run.json").read_text())
    del about["ledger"]
    (tmp_path / "run" / "run.json").write_text(json.dumps(about))
    with pytest.raises(Refused, match="names no ledger"):
        train(tiny, output=tmp_path / "run", resume=True)


def test_a_plan_that_spends_the_rest_of_a_ledger_charges_that_ledger(tiny, tmp_path):
    place = tmp_path / "accounts.db"
    stopped(tiny, tmp_path / "one", 2, ledger=place)
    with Ledger.open(place, write=True) as ledger:
        ledger.close_run(run_of(tmp_path / "one"), reason="stopped early")
        from fedspend.configuration.config import config_of
        from fedspend.runs.setup import from_config

        plan = from_config(config_of(tiny | {"ledger": {"spend": "remaining"}}), ledger).plan
    with pytest.raises(Refused, match="name that ledger"):
        train(tiny, output=tmp_path / "two", plan=plan)
    Ledger.create(tmp_path / "others.db", simulation=True).close()
    with pytest.raises(Damaged, match="the plan has seen"):
        train(tiny, output=tmp_path / "two", plan=plan, ledger=tmp_path / "others.db")
    assert not (tmp_path / "two").exists()
    train(tiny, output=tmp_path / "two", plan=plan, ledger=place)
    with pytest.raises(Refused, match="lifetime budget"):
        train(tiny, output=tmp_path / "three", plan=plan, ledger=place)


def test_killed_while_the_ledger_is_made(tiny, tmp_path):
    """A file in which nothing was stored yet is no ledger; the run begins anew."""
    with killed(at="fedspend.ledger.sqlite.SQLite.append"):
        train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    assert (tmp_path / "accounts.db").exists()
    train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db", resume=True)
    assert audit(str(tmp_path / "accounts.db")).ok


@pytest.mark.parametrize("trouble", ["engine", "place", "kind"])
def test_what_is_refused_leaves_nothing_behind(tiny, tmp_path, trouble):
    place = tmp_path / "accounts.db"
    if trouble == "engine":
        tiny["engine"] = {"name": "elsewhere"}
    elif trouble == "place":
        place = tmp_path / "nowhere" / "accounts.db"
    else:
        Ledger.create(place, simulation=False).close()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises((InvalidInput, Refused)):
        train(tiny, output=tmp_path / "run", ledger=place)
    assert sorted(tmp_path.rglob("*")) == before


def test_an_insert_that_did_not_happen_is_noticed(tmp_path):
    place = tmp_path / "accounts.db"
    Ledger.create(place, simulation=True).close()
    connection = sqlite3.connect(place)
    connection.execute(
        "CREATE TRIGGER lazy BEFORE INSERT ON fedspend_entries BEGIN SELECT RAISE(IGNORE); END"
    )
    connection.close()
    with Ledger.open(place, write=True) as ledger, pytest.raises(Damaged, match="did not keep"):
        ledger.register(["a"], 1.0, delta=1e-3)
    assert not audit(str(place)).ok


def test_another_ledger_under_the_same_name_is_noticed(tiny, tmp_path):
    """Rewritten from scratch with another id: the run directory remembers the one it charged."""
    place = tmp_path / "accounts.db"
    result = train(tiny, output=tmp_path / "run", ledger=place)
    for path in (place, Path(f"{place}.head")):
        path.unlink()
    with Ledger.create(place, simulation=True) as forged:
        from fedspend.ledger.rules import Proposal

        forged.register(result.plan.clients, 100.0, delta=1e-3)
        forged.admit(
            run_of(tmp_path / "run"),
            Proposal.of_plan(result.plan),
            simulation=True,
            place=place_of(tmp_path / "run"),
        )
    verdict = audit(str(place))
    assert not verdict.ok
    assert "belongs to ledger" in str(verdict.to_dict())


@pytest.mark.full
def test_many_accounts_with_little_left(tmp_path):
    """What is rounded is the rest, not the budget; who has nothing left is left out."""
    from fedspend.ledger.participants import plan_within
    from fedspend.ledger.rules import Proposal
    from fedspend.planning.request import PlanRequest

    budget = np.linspace(2.0, 9.0, 5000)
    names = tuple(f"c{n}" for n in range(5000))
    with Ledger.create(tmp_path / "accounts.db", simulation=True) as ledger:
        ledger.register(names, budget, delta=1e-5)
        first = fedspend.plan(
            np.where(np.arange(5000) % 2, budget, 0.8 * budget),
            delta=1e-5,
            rounds=5,
            rate=0.2,
            clients=names,
            policy="uniform",
        )
        ledger.admit("one", Proposal.of_plan(first), simulation=True)
        for round in range(5):
            ledger.reserve("one", round)
        ledger.close_run("one", reason="finished")
        left = budget - ledger.balances().spent
        request = PlanRequest(
            epsilons=budget, clients=names, delta=1e-5, rounds=5, rate=0.2, policy="uniform"
        )
        second = plan_within(ledger, request, spend="remaining", exhausted="leave-out")
        ledger.admit("two", Proposal.of_plan(second), simulation=True)
        total = ledger.balances().total
    assert np.all(total <= budget)
    even = np.arange(5000) % 2 == 0
    assert np.all(budget[even] - total[even] <= 1.1e-3 * left[even] + 1e-6), (
        "within 0.1% of what was left"
    )


# --- a ledger that is not what it was ---


def test_a_restored_old_copy_is_noticed(tiny, tmp_path):
    place = tmp_path / "accounts.db"
    stopped(tiny, tmp_path / "run", 1, ledger=place)
    old = place.read_bytes()
    stopped(tiny, tmp_path / "run", 3, resume=True)
    place.write_bytes(old)
    with pytest.raises(Damaged, match="old copy was restored"):
        train(tiny, output=tmp_path / "run", resume=True)
    assert not audit(str(place)).ok
    Path(f"{place}.head").unlink()
    with pytest.raises(Damaged, match=r"old copy was restored.*ledger_head\.json"):
        train(tiny, output=tmp_path / "run", resume=True)
    assert not audit(str(place)).ok, "the ledger knows the run directory, and that has seen more"


@pytest.mark.parametrize("how", ["removed", "emptied"])
def test_a_ledger_that_vanished_is_not_replaced_by_an_empty_one(tiny, tmp_path, how):
    place = tmp_path / "accounts.db"
    stopped(tiny, tmp_path / "run", 1, ledger=place)
    place.unlink() if how == "removed" else place.write_bytes(b"")
    with pytest.raises(Refused, match="gone"):
        train(tiny, output=tmp_path / "run", resume=True)
    with pytest.raises(Refused, match="is gone, but"):
        train(tiny, output=tmp_path / "new", ledger=place)


def test_a_run_keeps_to_its_ledger(tiny, tmp_path):
    stopped(tiny, tmp_path / "run", 1, ledger=tmp_path / "accounts.db")
    with pytest.raises(InvalidInput, match="keeps its account in"):
        train(tiny, output=tmp_path / "run", ledger=tmp_path / "others.db", resume=True)


# --- a database in trouble ---


@pytest.mark.full
def test_a_server_that_goes_away_between_rounds(tiny, tmp_path, failing_postgres):
    tiny["privacy"]["randomness"] = "os"
    place = failing_postgres.new_database()

    def cut(record, _):
        if record["round"] == 2:
            failing_postgres.vanish()

    try:
        with pytest.raises(Unavailable, match="cannot use the ledger"):
            train(tiny, output=tmp_path / "run", ledger=place, on_round=cut)
    finally:
        failing_postgres.start()
    result = train(tiny, output=tmp_path / "run", resume=True)
    assert not any(line.get("skipped") for line in result.metrics)
    assert audit(place, runs=[str(tmp_path / "run")]).ok


@pytest.mark.full
def test_a_server_that_goes_away_in_the_middle_of_a_round(
    tiny, tmp_path, failing_postgres, monkeypatch
):
    """The release is stored, its entry is not: it is used again and entered later."""
    tiny["privacy"]["randomness"] = "os"
    place = failing_postgres.new_database()
    real = fedspend.server.rounds.play

    def play_and_cut(progress, *rest):
        made = real(progress, *rest)
        if progress.done == 1:
            failing_postgres.vanish()
        return made

    try:
        with monkeypatch.context() as cutting:
            cutting.setattr(fedspend.server.rounds, "play", play_and_cut)
            with pytest.raises(Unavailable):
                train(tiny, output=tmp_path / "run", ledger=place)
    finally:
        failing_postgres.start()
    result = train(tiny, output=tmp_path / "run", resume=True)
    assert not any(line.get("skipped") for line in result.metrics)
    np.testing.assert_allclose(balances(place).spent, balances(place).budget, rtol=1e-6)


@pytest.mark.full
def test_a_full_disk_stops_the_run_and_loses_nothing(tiny, tmp_path, monkeypatch):
    from fedspend.ledger import sqlite

    place = tmp_path / "accounts.db"
    tiny["train"]["rounds"] = 40  # a page of the file holds the entries of ten
    stopped(tiny, tmp_path / "run", 1, ledger=place)
    opened = sqlite.SQLite._open

    def open_full(self, write):
        opened(self, write)
        (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
        self._connection.execute(f"PRAGMA max_page_count = {pages}")

    with monkeypatch.context() as full:
        full.setattr(sqlite.SQLite, "_open", open_full)
        with pytest.raises(Unavailable, match="full"):
            train(tiny, output=tmp_path / "run", resume=True)
    done = len((tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    assert 1 < done < 40
    assert audit(str(place), runs=[str(tmp_path / "run")]).ok
    train(tiny, output=tmp_path / "run", resume=True)
    np.testing.assert_allclose(balances(place).spent, balances(place).budget, rtol=1e-6)


def test_a_ledger_that_cannot_be_written(tmp_path):
    Ledger.create(tmp_path / "accounts.db", simulation=True).close()
    with (
        Ledger.open(tmp_path / "accounts.db") as reading,
        pytest.raises(Unavailable, match="readonly"),
    ):
        reading.register(["a"], 1.0, delta=1e-3)


@pytest.mark.parametrize("content", [b"hello", b"SQLite format 3\0" + b"\xff" * 4000, b"{}" * 3000])
def test_a_file_that_is_no_ledger(tiny, tmp_path, content):
    (tmp_path / "accounts.db").write_bytes(content)
    with pytest.raises(Damaged):
        train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    assert (tmp_path / "accounts.db").read_bytes() == content
    assert not (tmp_path / "run").exists()


def test_a_database_of_somebody_else(tiny, tmp_path):
    connection = sqlite3.connect(tmp_path / "accounts.db")
    connection.execute("CREATE TABLE invoices (n INTEGER)")
    connection.close()
    with pytest.raises(Damaged, match="holds no ledger"):
        train(tiny, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
