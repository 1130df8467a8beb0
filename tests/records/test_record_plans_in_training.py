"""Plans of records that were made before training, that spend what a ledger has left, or that make
up for lost rounds.
"""

import copy
import dataclasses

import numpy as np
import pytest
from lib.configs import changed, small
from lib.runs import killed

import fedspend
from fedspend.basics.files import one_at_a_time
from fedspend.configuration.config import config_of
from fedspend.configuration.data_inputs import federation_of
from fedspend.configuration.record_plans import record_plan
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.records import RecordPlan, Terms, plan_of
from fedspend.records.planning import plan_records
from fedspend.records.policies import Wanted

CONFIG = small(
    "record",
    data__features=4,
    data__clients=3,
    privacy__delta=1e-5,
    privacy__rate=0.8,
    privacy__noise_multiplier=8.0,
    privacy__clip=0.7,
)
TERMS = Terms(delta=1e-5, rounds=4, local_steps=5, client_rate=0.8, noise_multiplier=8.0)


@pytest.fixture
def config():
    return copy.deepcopy(CONFIG)


def balances(place, project=""):
    with Ledger.open(place, project=project) as ledger:
        return ledger.balances("record")


def by_name(plan, values):
    return dict(zip(plan.records, values, strict=True))


# --- a plan that was made before ---


@pytest.mark.full(only=["rpdp"])
@pytest.mark.parametrize("method", ["rpdp", "filter"])
def test_a_run_under_its_own_plan_is_the_same_run(config, method, tmp_path):
    config["method"]["name"] = method
    plan_of(config).save(tmp_path / "plan.json.gz")
    plan = RecordPlan.load(tmp_path / "plan.json.gz")
    given = fedspend.train(config, plan=plan, output=tmp_path / "given")
    made = fedspend.train(config, output=tmp_path / "made")
    assert given.plan.hash == made.plan.hash == plan.hash
    for name in ("metrics.jsonl", "model.safetensors", "plan.json"):
        assert (tmp_path / "given" / name).read_bytes() == (tmp_path / "made" / name).read_bytes()


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (
            {"method__name": "minimum"},
            "the plan is for method 'rpdp', but the config says 'minimum'",
        ),
        (
            {"method__name": "dp-fedavg"},
            "the plan is for records, but the config's method 'dp-fedavg' is for clients",
        ),
        ({"method__saving_share": 0.5}, "the plan has saving_share none, and the config 0.5"),
        ({"method__rates": "search"}, "the plan has rates exact, and the config search"),
        ({"train__rounds": 5}, "the plan has 4 rounds, but the config says 5"),
        ({"train__local_steps": 6}, "the plan has local_steps 5, and the config 6"),
        ({"privacy__clip": 0.8}, "the plan has clip 0.7, and the config 0.8"),
        ({"privacy__rate": 0.5}, "the plan has client_rate 0.8, and the config 0.5"),
        ({"privacy__delta": 1e-6}, "the plan has delta 1e-05, and the config 1e-06"),
        (
            {"privacy__noise_multiplier": 9.0},
            "the plan has noise_multiplier 8.0, and the config 9.0",
        ),
        (
            {"data__examples": 61},
            "the plan has data for 60 records of 3 clients, and the config 61 records of 3 clients",
        ),
        (
            {"data__clients": 4},
            "the plan has data for 60 records of 3 clients, and the config 60 records of 4 clients",
        ),
        ({"train__seed": 3}, "the plan has record number "),
        ({"privacy__preferences": "bounded-pareto"}, "a budget of"),
    ],
)
def test_a_plan_for_something_else_is_refused_in_one_line(config, change, told, tmp_path):
    with pytest.raises(InvalidInput) as refused:
        fedspend.train(changed(config, **change), plan=plan_of(config), output=tmp_path / "run")
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


def test_other_owners_and_budgets_are_named(config):
    plan = plan_of(config)
    owner = plan.owner.copy()
    owner[[0, -1]] = owner[[-1, 0]]
    moved = dataclasses.replace(plan, owner=owner)
    with pytest.raises(InvalidInput, match=r"has record '\d+' at client '2', and the config '0'"):
        fedspend.train(config, plan=moved)
    greedy = dataclasses.replace(plan, budget=plan.budget * 2)
    with pytest.raises(InvalidInput, match=r"for record '\d+' a budget of .*, and the config"):
        fedspend.train(config, plan=greedy)
    clients = dataclasses.replace(plan, clients=("0", "1", "x"))
    with pytest.raises(InvalidInput, match="client number 3 named 'x', and the config '2'"):
        fedspend.train(config, plan=clients)


def test_a_plan_of_clients_is_no_plan_of_records(config):
    plan = fedspend.plan([1.0] * 3, delta=1e-5, rounds=4, rate=0.8)
    with pytest.raises(
        InvalidInput, match="the plan is for clients, but the config's method 'rpdp' is for records"
    ):
        fedspend.train(config, plan=plan)
    with pytest.raises(InvalidInput, match="plans of clients"):
        fedspend.train(
            clients=[],
            model=fedspend.train(config).model,
            plan=plan_of(config),
            test=([], []),
            lr=1,
            batch_size=1,
        )


def test_a_plan_that_breaks_its_promise_trains_nothing(config, tmp_path):
    plan = plan_of(config)
    table = dataclasses.replace(
        plan.schedules, sampling_rate=np.minimum(1, plan.schedules.sampling_rate * 1.05)
    )
    with pytest.raises(Refused, match="failed verification"):
        fedspend.train(
            config, plan=dataclasses.replace(plan, schedules=table), output=tmp_path / "run"
        )
    assert not (tmp_path / "run").exists()


def test_a_resumed_run_keeps_its_plan(config, tmp_path):
    with killed(at="play", round=3):
        fedspend.train(config, output=tmp_path / "run")
    with pytest.raises(InvalidInput, match="started with another plan"):
        fedspend.train(
            config,
            plan=plan_of(changed(config, privacy__clip=0.8)),
            output=tmp_path / "run",
            resume=True,
        )
    with pytest.raises(InvalidInput, match=r"a budget of .*, and the config"):
        fedspend.train(
            changed(config, privacy__preferences="bounded-pareto"),
            output=tmp_path / "run",
            resume=True,
        )
    done = fedspend.train(config, plan=plan_of(config), output=tmp_path / "run", resume=True)
    assert len(done.metrics) == 4


# --- what a ledger has left ---


def stopped_early(config, folder, place, after):
    """A real run that gives up after some rounds: part of every budget is spent."""
    with killed(at="play", round=after + 1):
        fedspend.train(config, output=folder, ledger=place)
    with Ledger.open(place, write=True) as ledger:
        (run,) = [run.id for run in ledger.state.runs.values() if run.closed is None]
        ledger.close_run(run, reason="stopped early")


@pytest.mark.full(but=["filter"])
@pytest.mark.parametrize("method", ["rpdp", "minimum", "dropout", "filter"])
def test_what_is_left_is_spent_and_no_more(config, method, tmp_path):
    config["privacy"]["randomness"] = "os"
    place = tmp_path / "accounts.db"
    stopped_early(config, tmp_path / "one", place, 1)
    before = balances(place)
    config["method"]["name"] = method
    rest = fedspend.train(
        changed(config, ledger__spend="remaining"), output=tmp_path / "two", ledger=place
    ).plan
    found = balances(place)
    assert (found.spent <= found.budget).all()
    assert (found.spent >= before.spent).all()
    assert audit(str(place), runs=[str(tmp_path / "two")]).ok, "the second accountant agrees"
    rate, spent, budget = (
        by_name(rest, values) for values in (rest.rate[0], rest.epsilon, rest.budget)
    )
    assert budget == dict(zip(found.names, found.budget, strict=True)), "budgets are for a lifetime"
    for name, total, before_it, limit in zip(
        found.names, found.spent, before.spent, found.budget, strict=True
    ):
        if method == "rpdp" and 0 < rate[name] < 1:
            assert total >= 0.995 * limit
            assert spent[name] > 0.995 * limit - before_it, (
                "two runs together cost no more than their sum"
            )


def test_a_plan_of_what_is_left_belongs_to_its_ledger(config, tmp_path):
    config["privacy"]["randomness"] = "os"
    place = tmp_path / "accounts.db"
    stopped_early(config, tmp_path / "one", place, 1)
    plan = plan_of(config, ledger=place)
    with pytest.raises(Refused, match="name that ledger"):
        fedspend.train(config, plan=plan, output=tmp_path / "x", project="another")
    result = fedspend.train(config, plan=plan, output=tmp_path / "two", ledger=place)
    assert result.plan.hash == plan.hash
    with pytest.raises(Refused, match="lifetime budget"):
        fedspend.train(config, plan=plan, output=tmp_path / "three", ledger=place)


def test_a_plan_that_names_a_ledger_without_accounts_is_refused(config, tmp_path):
    """Its budgets are not compared with the config's, since the ledger has them: an empty one must
    not take them over.
    """
    with Ledger.create(tmp_path / "accounts.db", simulation=True) as ledger:
        ledger.register(["hospital"], [1.0], delta=1e-5)
        head = str(ledger.state.head)
    plan = plan_of(config)
    larger = plan_records(
        10 * plan.budget,
        plan.owner,
        plan.terms,
        clients=plan.clients,
        records=plan.records,
        clip=plan.clip,
    )
    forged = dataclasses.replace(larger, parameters=larger.parameters | {"ledger": head})
    with pytest.raises(Refused, match="no record accounts"):
        fedspend.train(
            config, plan=forged, output=tmp_path / "run", ledger=tmp_path / "accounts.db"
        )
    assert not (tmp_path / "run").exists()


def test_a_plan_for_one_run_does_not_spend_what_is_left(config, tmp_path):
    plan, rest = plan_of(config), changed(config, ledger__spend="remaining")
    del rest["privacy"]["preferences"]
    with pytest.raises(InvalidInput, match=r"made for one run.s budgets"):
        fedspend.train(rest, plan=plan, output=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.full
def test_remaining_without_budgets_in_the_config_and_with_suggested_noise(
    config, tmp_path, monkeypatch
):
    config["privacy"]["randomness"] = "os"
    place = tmp_path / "accounts.db"
    stopped_early(config, tmp_path / "one", place, 1)
    rest = changed(config, ledger__spend="remaining")
    del rest["privacy"]["preferences"], rest["privacy"]["noise_multiplier"]
    monkeypatch.setattr("fedspend.records.noise_choice.CANDIDATES", (2.0, 9.0, 20.0))
    plan = fedspend.train(rest, output=tmp_path / "two", ledger=place).plan
    assert (balances(place).spent <= balances(place).budget).all()
    assert plan.terms.noise_multiplier == 9.0


def test_records_that_withdrew_or_have_nothing_left_rest(config, tmp_path):
    place = tmp_path / "accounts.db"
    config["data"]["examples"] = 120
    first = fedspend.train(config, output=tmp_path / "a", ledger=place).plan
    rich = [name for name, budget in by_name(first, first.budget).items() if budget == 5]
    with Ledger.open(place, write=True) as ledger:
        ledger.change(rich, 20.0, reason="test", unit="record")
        ledger.withdraw(rich[:1], reason="test", unit="record")
        used = {
            name: spent for name, spent in by_name(first, first.epsilon).items() if name not in rich
        }
        ledger.change(
            list(used), np.array(list(used.values())) * (1 + 1e-9), reason="no more", unit="record"
        )
    with pytest.raises(Refused, match=f"record '{rich[0]}' withdrew"):
        fedspend.train(config, output=tmp_path / "x", ledger=place)
    for n, more in enumerate(({"ledger__spend": "remaining"}, {"ledger__exhausted": "leave-out"})):
        settings = config_of(changed(config, **more))
        with Ledger.open(place) as ledger:
            plan = record_plan(settings, federation_of(settings), ledger)
        assert {name for name, rate in by_name(plan, plan.rate[0]).items() if rate > 0} == set(
            rich[1:]
        ), n
    second = fedspend.train(
        changed(config, ledger__spend="remaining"), output=tmp_path / "b", ledger=place
    )
    assert len(second.metrics) == 4
    found = balances(place)
    assert (found.spent <= found.budget).all()


def test_a_record_that_withdraws_stops_the_run_unless_it_rests(config, tmp_path):
    config["privacy"]["randomness"] = "os"
    config["method"]["name"] = "dropout"
    place = tmp_path / "accounts.db"
    plan = plan_of(config)
    rests = [name for name, rate in by_name(plan, plan.rate[0]).items() if rate == 0]
    takes_part = [name for name, rate in by_name(plan, plan.rate[0]).items() if rate > 0]
    with killed(at="play", round=2):
        fedspend.train(config, output=tmp_path / "run", ledger=place)
    with Ledger.open(place, write=True) as ledger:
        ledger.withdraw(rests[:1], reason="test", unit="record")
    with killed(at="play", round=3):
        fedspend.train(config, output=tmp_path / "run", ledger=place, resume=True)
    with Ledger.open(place, write=True) as ledger:
        ledger.withdraw(takes_part[:1], reason="test", unit="record")
    with pytest.raises(Refused, match=f"record '{takes_part[0]}' has withdrawn"):
        fedspend.train(config, output=tmp_path / "run", ledger=place, resume=True)


@pytest.mark.parametrize(
    ("prepare", "error", "told"),
    [
        (lambda _: None, InvalidInput, "has no record accounts"),
        (
            lambda book: book.register(["a", "b"], 1.0, delta=1e-5),
            InvalidInput,
            "has no record accounts",
        ),
        (
            lambda book: book.register(["0"], 1.0, delta=1e-5, unit="record"),
            InvalidInput,
            "is not in the ledger",
        ),
        (
            lambda book: book.register([str(n) for n in range(60)], 1.0, delta=1e-4, unit="record"),
            Refused,
            "registered at 0.0001",
        ),
        (
            lambda book: (
                book.register([str(n) for n in range(60)], 1.0, delta=1e-5, unit="record"),
                book.withdraw([str(n) for n in range(60)], reason="all", unit="record"),
            ),
            Refused,
            "no record has anything left",
        ),
    ],
)
def test_remaining_needs_accounts(config, tmp_path, prepare, error, told):
    place = tmp_path / "accounts.db"
    with Ledger.create(place, simulation=True) as book:
        prepare(book)
        head = book.state.head
    with pytest.raises(error, match=told):
        fedspend.train(
            changed(config, ledger__spend="remaining"), output=tmp_path / "run", ledger=place
        )
    with Ledger.open(place) as book:
        assert book.state.head == head, "nothing was changed"
    assert not (tmp_path / "run").exists()


# --- lost rounds ---


@pytest.mark.full(but=["0-filter"])
@pytest.mark.parametrize("method", ["rpdp", "minimum", "dropout", "filter"])
@pytest.mark.parametrize("lost", [0, 2])
def test_lost_rounds_can_be_made_up_for(config, method, lost, tmp_path):
    config["privacy"]["randomness"] = "os"
    config["method"]["name"] = method
    place = tmp_path / "accounts.db"
    with killed(at="play", round=lost + 1):
        fedspend.train(config, output=tmp_path / "run", ledger=place)
    old, notes = RecordPlan.load(tmp_path / "run" / "plan.json"), []
    result = fedspend.train(
        config, output=tmp_path / "run", resume=True, replan=True, on_note=notes.append
    )
    assert f"1 lost round is made up for: rounds {lost + 2} to 5 were replanned" in notes
    assert [n for n, line in enumerate(result.metrics) if line.get("skipped")] == [lost]
    new = result.plan
    assert new.rounds == 5
    np.testing.assert_array_equal(new.rate[: lost + 1], old.rate[: lost + 1])
    free = (old.rate[-1] > 0) & (old.rate[-1] < 1)
    if method != "filter":
        assert (new.rate[lost + 1 :, free] < old.rate[-1, free]).all()
        assert (new.epsilon <= old.epsilon).all()
    found = balances(place)
    assert (found.spent <= found.budget).all()
    spent = by_name(new, new.epsilon)
    assert found.spent == pytest.approx([spent[name] for name in found.names], rel=1e-6)
    assert audit(str(place), runs=[str(tmp_path / "run")]).ok
    again = fedspend.train(config, output=tmp_path / "run", resume=True)
    assert again.plan.hash == new.hash, "a finished run stays as it is"


def test_replanning_on_top_of_an_earlier_run(config, tmp_path):
    """What other runs have spent counts too: the lifetime budget is kept, and used."""
    config["privacy"]["randomness"] = "os"
    place = tmp_path / "accounts.db"
    stopped_early(config, tmp_path / "one", place, 1)
    rest = changed(config, ledger__spend="remaining")
    with killed(at="play", round=1):
        fedspend.train(rest, output=tmp_path / "two", ledger=place)
    result = fedspend.train(rest, output=tmp_path / "two", resume=True, replan=True)
    found = balances(place)
    assert (found.spent <= found.budget).all()
    rate = by_name(result.plan, result.plan.rate.max(axis=0))
    free = np.array([0 < rate[name] < 1 for name in found.names])
    assert free.any()
    assert (found.spent[free] >= 0.985 * found.budget[free]).all()
    assert audit(str(place)).ok


@pytest.mark.full
def test_replanning_twice_and_a_simulation(config, tmp_path, ledger_of_this_user):
    real = changed(config, privacy__randomness="os", ledger__project="records")
    with killed(at="play", round=1):
        fedspend.train(real, output=tmp_path / "run")
    with killed(at="play"):
        fedspend.train(real, output=tmp_path / "run", resume=True, replan=True)
    result = fedspend.train(real, output=tmp_path / "run", resume=True, replan=True)
    assert result.plan.rounds == 6
    assert sum(bool(line.get("skipped")) for line in result.metrics) == 2
    found = balances(ledger_of_this_user, "records")
    assert (found.spent <= found.budget).all()
    notes = []
    with killed(at="play", round=2):
        fedspend.train(config, output=tmp_path / "simulated")
    fedspend.train(
        config, output=tmp_path / "simulated", resume=True, replan=True, on_note=notes.append
    )
    assert "no round was lost: the plan stays as it is" in notes


@pytest.mark.full
def test_nothing_is_planned_anew_under_a_run_that_is_going_on(
    config, tmp_path, ledger_of_this_user
):
    """Its round is under way, not lost: if it were marked so, its release could not be committed
    any more.
    """
    real, folder = (
        changed(config, privacy__randomness="os", ledger__project="records"),
        tmp_path / "run",
    )
    with killed(at="play", round=2):
        fedspend.train(real, output=folder)

    def found():
        with Ledger.open(ledger_of_this_user) as ledger:
            return ledger.state.head, {
                name: (folder / name).read_bytes()
                for name in ("plan.json", "run.json", "certificate.json")
            }

    before = found()
    with one_at_a_time(folder), pytest.raises(Refused, match="another process is at work"):
        fedspend.train(real, output=folder, resume=True, replan=True)
    assert found() == before
    assert fedspend.train(real, output=folder, resume=True, replan=True).plan.rounds == 5


def test_planning_anew_needs_the_number_of_rounds(config, tmp_path):
    real = changed(config, privacy__randomness="os", ledger__project="records")
    with killed(at="play", round=2):
        fedspend.train(real, output=tmp_path / "run")
    del real["train"]["rounds"]
    with pytest.raises(InvalidInput, match="rounds is missing"):
        fedspend.train(real, output=tmp_path / "run", resume=True, replan=True)


# --- the data behind a plan ---


def test_a_part_of_the_rows_takes_its_budgets_along(tmp_path):
    """A row's budget is its own, also if only some of the rows are used."""
    lines = ["x,label,client,split,allows"]
    for n in range(80):
        label, split = n % 2, "test" if n % 4 == 3 else "train"
        lines.append(f"{n / 80},{label},{'ab'[n // 40]},{split},{1 + n / 100}")
    path = tmp_path / "own.csv"
    path.write_text("\n".join(lines) + "\n")
    config = changed(CONFIG, data__name="csv")
    config["data"] = {
        "name": "csv",
        "path": str(path),
        "classes": 2,
        "client": "client",
        "split": "split",
        "partition": "natural",
        "budget": "allows",
        "share": 0.5,
    }
    del config["privacy"]["preferences"]
    settings = config_of(config)
    federation = federation_of(settings)
    plan = record_plan(settings, federation)
    rows = np.concatenate(federation.shards)
    assert plan.budget == pytest.approx(1 + federation.dataset.features[rows, 0] * 0.8, rel=1e-6)
    assert 15 < len(plan.records) < 45  # every row decides for itself, so about half of 60
    with pytest.raises(InvalidInput, match=r"data\.share = 0\.5 chooses .* by what they hold"):
        fedspend.train(config, output=tmp_path / "run", project="clinic")
    simulated = changed(config, privacy__randomness="seeded")
    with pytest.raises(InvalidInput, match=r"data\.share = 0\.5 .* keep its number"):
        fedspend.train(simulated, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "accounts.db").exists()
    fedspend.train(simulated, output=tmp_path / "run")  # an account of this run only


def test_plans_of_records_need_every_part_to_fit(config):
    plan = plan_of(config)
    with pytest.raises(InvalidInput, match="every record needs a budget and a client"):
        plan_records(plan.budget[:-1], plan.owner, plan.terms, clients=plan.clients)


@pytest.mark.parametrize("method", ["minimum", "dropout", "filter", "rpdp"])
def test_who_is_left_out_sets_nobody_elses_rate(method):
    budget, owner = np.repeat([0.5, 1.0, 2.0, 4.0], 6), np.tile([0, 1], 12)
    out = budget == 0.5
    wanted = Wanted(method=method)
    plan = plan_records(budget, owner, TERMS, clients=("a", "b"), wanted=wanted, left_out=out)
    alone = plan_records(budget[~out], owner[~out], TERMS, clients=("a", "b"), wanted=wanted)
    assert np.array_equal(plan.rate[:, ~out], alone.rate)
    assert np.array_equal(plan.epsilon[~out], alone.epsilon)
    assert not plan.rate[:, out].any()


@pytest.mark.full
def test_whoever_would_overspend_without_the_strictest_is_left_out_too(config, tmp_path):
    """Under `minimum`, the others are sampled more often once the strictest are left out."""
    config["method"]["name"] = "minimum"
    place = tmp_path / "accounts.db"
    first = fedspend.train(config, output=tmp_path / "a", ledger=place).plan
    names = np.array(first.records)
    with Ledger.open(place, write=True) as ledger:
        ledger.change(list(names[first.budget == 5]), 20.0, reason="test", unit="record")
        ledger.change(list(names[first.budget == 1]), 0.4, reason="test", unit="record")
    settings = config_of(changed(config, ledger__exhausted="leave-out"))
    with Ledger.open(place) as ledger:
        plan = record_plan(settings, federation_of(settings), ledger)
        assert ledger.over(plan.proposal()).size == 0
    sampled = by_name(plan, plan.rate[0])
    assert {name for name, rate in sampled.items() if rate > 0} == set(names[first.budget == 5])
