"""Whose rows are behind an id: budgets, data, plan and account are joined by name, whatever the
order, and nobody slips in.
"""

import json

import numpy as np
import pytest
import torch
from lib.configs import small
from lib.runs import stopped

import fedspend
from fedspend.cli.main import main
from fedspend.configuration.config import config_of
from fedspend.configuration.data_inputs import Source
from fedspend.configuration.plan_inputs import resolve
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.runs.setup import from_config

# what every row of a client holds as x
MARK = {"north": 0.1, "south": 0.2, "east": 0.3, "west": 0.4, "isle": 0.5}


def write_rows(path, clients, each=12, column="hospital"):
    """`each` rows of every client, dealt in turn, so that no client's rows stand together."""
    lines = [f"{column},x,y,label"]
    lines += [
        f"{client},{MARK[client]},{n / each},{n % 2}" for n in range(each) for client in clients
    ]
    path.write_text("\n".join(lines) + "\n")


@pytest.fixture
def rows(tmp_path):
    write_rows(tmp_path / "rows.csv", ["south", "west", "north", "east"])
    write_rows(tmp_path / "test.csv", ["south"])
    return tmp_path / "rows.csv"


@pytest.fixture
def config(tmp_path, rows):
    """A real run: your own data, with a client column, and no word about the partition."""
    data = {
        "name": "csv",
        "path": str(rows),
        "test_path": str(tmp_path / "test.csv"),
        "client": "hospital",
        "classes": 2,
    }
    # what is left is planned by Rényi curves, so that all of it can be spent
    privacy = {"epsilon": 3.0, "delta": 1e-2, "rate": 1.0, "accountant": "rdp"}
    train = {"rounds": 1, "local_epochs": 1, "batch_size": 8, "lr": 0.5}
    return small("plain", data=data, privacy=privacy, train=train)


def changed(config, **values):
    new = {section: dict(keys) for section, keys in config.items()}
    for name, value in values.items():
        section, key = name.split("__")
        new.setdefault(section, {})[key] = value
        if key == "budgets":
            new["privacy"].pop("epsilon", None)
    return new


def budgets(tmp_path, **epsilons):
    path = tmp_path / "budgets.csv"
    path.write_text(
        "client,epsilon\n"
        + "".join(f"{client},{epsilon}\n" for client, epsilon in epsilons.items())
    )
    return str(path)


def behind(setup):
    """Who stands behind each id, by the mark that every row carries;
    None where there are no rows.
    """
    marks = setup.federation.dataset.features[:, 0]
    owner = {np.float32(mark): client for client, mark in MARK.items()}
    found = {}
    for client, shard in zip(setup.federation.clients, setup.federation.shards, strict=True):
        (found[client],) = {owner[mark] for mark in marks[shard]} or {None}
    return found


def refusal(function, *args, kind=InvalidInput, **options):
    with pytest.raises(kind) as refused:
        function(*args, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def setup_of(config, ledger=None, **options):
    return from_config(config_of(config), ledger, **options)


@pytest.fixture
def accounts(tmp_path):
    place = tmp_path / "accounts.db"
    with Ledger.create(place, simulation=False) as ledger:
        ledger.register(["north", "south", "east", "west"], [1.0, 2.0, 20.0, 30.0], delta=1e-2)
    return place


# --- which partition ---


def test_a_stated_client_column_is_heeded_without_a_partition(config, tmp_path):
    """It used to be ignored: rows were dealt at random, under a certificate that said PASS."""
    config = changed(config, privacy__budgets=budgets(tmp_path, east=20, north=1, west=30, south=2))
    setup = setup_of(config)
    assert behind(setup) == {client: client for client in ("east", "north", "west", "south")}
    assert setup.plan.budget.tolist() == [20, 1, 30, 2]
    assert setup.settings["data.partition"] == "natural"


def test_a_column_called_client_is_enough(config, tmp_path):
    write_rows(tmp_path / "rows.csv", ["north", "south"], column="client")
    write_rows(tmp_path / "test.csv", ["south"], column="client")
    del config["data"]["client"]
    assert behind(setup_of(config)) == {"north": "north", "south": "south"}


def test_an_array_called_client_is_enough(config, tmp_path):
    x, y = np.repeat([[0.1], [0.2]], 6, axis=0), np.arange(12) % 2
    np.savez(
        tmp_path / "rows.npz",
        features=x,
        label=y,
        client=np.repeat([10, 9], 6),
        test_features=x,
        test_label=y,
    )
    config["data"] = {"name": "npz", "path": str(tmp_path / "rows.npz"), "classes": 2}
    setup = setup_of(config)
    assert setup.plan.clients == setup.federation.clients == ("9", "10")
    assert behind(setup) == {"9": "south", "10": "north"}


@pytest.mark.parametrize(
    ("name", "kind"),
    [("mnist-writers", "natural"), ("heart", "natural"), ("mnist", "iid"), ("digits", "iid")],
)
def test_benchmarks_that_name_clients_are_natural_by_default(name, kind):
    assert Source(config_of({"data": {"name": name}})).partition == kind
    assert Source(config_of({"data": {"name": name, "partition": "shards"}})).partition == "shards"


@pytest.mark.parametrize("kind", ["iid", "dirichlet", "shards", "classes"])
def test_own_rows_are_dealt_in_simulations_only(config, kind):
    config = changed(
        config, data__partition=kind, data__clients=3, data__alpha=1.0, data__classes_per_client=1
    )
    for asked in (config, changed(config, privacy__randomness="os")):
        message = refusal(setup_of, asked)
        assert f"partition '{kind}'" in message
        assert "data.client" in message
        assert 'privacy.randomness = "seeded"' in message
        assert refusal(resolve, config_of(asked)) == message, "plan says the same as train"
    assert setup_of(changed(config, privacy__randomness="seeded")).federation.clients == (
        "0",
        "1",
        "2",
    )


def test_own_rows_without_a_client_column_are_not_dealt_for_real(config, tmp_path):
    write_rows(tmp_path / "rows.csv", ["north", "south"], column="z")
    text = (tmp_path / "rows.csv").read_text().replace("north", "1").replace("south", "2")
    (tmp_path / "rows.csv").write_text(text)
    (tmp_path / "test.csv").write_text(text)
    del config["data"]["client"]
    assert "partition 'iid' deals your own rows to 3" in refusal(
        setup_of, changed(config, data__clients=3)
    )
    named = changed(config, privacy__budgets=budgets(tmp_path, north=1, south=2))
    assert "partition 'iid' deals your own rows to 2" in refusal(setup_of, named)
    whole = setup_of(changed(config, data__clients=1))
    assert (whole.federation.clients, len(whole.federation.shards[0])) == (("0",), 24), (
        "one silo is not dealing"
    )
    silo = setup_of(changed(config, privacy__budgets=budgets(tmp_path, clinic=2)))
    assert (silo.federation.clients, len(silo.federation.shards[0])) == (("clinic",), 24)
    assert "unknown column" in refusal(setup_of, changed(config, data__client="hospital"))


def test_features_are_made_client_by_client_and_not_kept(config, tmp_path, monkeypatch):
    from fedspend.models import feature_cache

    calls, real = [], feature_cache.maps.features
    monkeypatch.setenv("FEDSPEND_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(
        feature_cache.maps, "features", lambda name, rows: calls.append(rows) or real(name, rows)
    )
    generator, labels = np.random.default_rng(0), np.arange(30) % 2
    clients = np.array(["south", "north", "east"] * 10)
    images = generator.random((30, 1, 8, 8)).astype(np.float32)
    np.savez(tmp_path / "rows.npz", features=images, label=labels, client=clients)
    config["data"] = {
        "name": "npz",
        "path": str(tmp_path / "rows.npz"),
        "classes": 2,
        "validation": 0.4,
    }
    config["model"]["features"] = "gabor"
    setup = setup_of(changed(config, data__leave_out=["east"]))
    owner = {image.tobytes(): client for image, client in zip(images, clients, strict=True)}
    owners = [{owner[image.tobytes()] for image in call} for call in calls]
    assert sorted(map(sorted, owners)) == [["north"], ["north"], ["south"], ["south"]], (
        "to train on, and to test on"
    )
    assert setup.module(torch.zeros(1, 449)).shape == (1, 2)
    assert not (tmp_path / "cache").exists()


# --- roster: a file of budgets ---


def test_a_listed_client_without_rows_stays_and_holds_nothing(config, tmp_path):
    config = changed(
        config, privacy__budgets=budgets(tmp_path, isle=4, east=20, north=1, west=30, south=2)
    )
    setup = setup_of(config)
    assert behind(setup) == {"isle": None} | {
        client: client for client in ("east", "north", "west", "south")
    }
    result = fedspend.train(config, project="hospitals")
    assert result.plan.clients == ("isle", "east", "north", "west", "south")


def test_an_id_that_is_not_listed_is_named(config, tmp_path):
    config = changed(config, privacy__budgets=budgets(tmp_path, east=20, north=1, south=2))
    message = refusal(setup_of, config)
    assert "client 'west' has rows in the data but is not in" in message
    assert "budgets.csv" in message
    assert "give it a budget there, or list it under data.leave_out" in message
    assert behind(setup_of(changed(config, data__leave_out=["west"]))) == {
        c: c for c in ("east", "north", "south")
    }


def test_a_lookalike_is_pointed_out(config, tmp_path):
    config = changed(config, privacy__budgets=budgets(tmp_path, east=20, north=1, south=2, West=30))
    assert "client 'west' has rows in the data but is not in" in (
        message := refusal(setup_of, config)
    )
    assert "though 'West' looks like it" in message


def test_leave_out_takes_listed_clients_too_and_refuses_typing_errors(config, tmp_path):
    config = changed(
        config, privacy__budgets=budgets(tmp_path, isle=4, east=20, north=1, west=30, south=2)
    )
    out = setup_of(changed(config, data__leave_out=["isle", " east"]))
    assert behind(out) == {client: client for client in ("north", "west", "south")}
    assert out.plan.budget.tolist() == [1, 30, 2]
    for find in (setup_of, lambda config: resolve(config_of(config))):
        message = refusal(find, changed(config, data__leave_out=["esat"]))
        assert (
            "client 'esat' under leave_out is neither in the data nor among the clients" in message
        )
    assert "though 'east' looks like it" in refusal(
        setup_of, changed(config, data__leave_out=["East"])
    )
    assert "leaves nobody" in refusal(
        setup_of, changed(config, data__leave_out=["isle", "east", "north", "west", "south"])
    )
    dealt = changed(
        config, data__leave_out=["east"], data__partition="iid", privacy__randomness="seeded"
    )
    assert "deals rows to made-up ones" in refusal(setup_of, dealt)
    with pytest.raises(InvalidInput, match="leave_out"):
        config_of(changed(config, data__leave_out=["east", "east"]))


# --- roster: the data ---


def test_without_budgets_by_client_the_ids_of_the_data_are_the_roster(config, tmp_path):
    setup = setup_of(config)
    assert behind(setup) == {client: client for client in ("east", "north", "south", "west")}
    fedspend.train(config, output=tmp_path / "run", ledger=tmp_path / "accounts.db")
    with Ledger.open(tmp_path / "accounts.db") as ledger:
        assert ledger.accounts().names == ["east", "north", "south", "west"]
    assert setup_of(changed(config, train__seed=7)).plan.clients == setup.plan.clients, (
        "no seed changes who is who"
    )


def test_a_hospital_that_joins_takes_nobodys_account(config, tmp_path):
    """Accounts were numbers: with aachen in the data, number 0 was another hospital."""
    place = tmp_path / "accounts.db"
    fedspend.train(config, output=tmp_path / "one", ledger=place)
    write_rows(tmp_path / "rows.csv", ["isle", "south", "west", "north", "east"])
    assert "client 'isle' is not in the ledger" in refusal(
        fedspend.train, config, output=tmp_path / "two", ledger=place
    )
    assert not (tmp_path / "two").exists()
    with Ledger.open(place, write=True) as ledger:
        ledger.register(["isle"], 3.0, delta=1e-2)
        ledger.change(["east", "north", "south", "west"], 30.0, reason="test")
    fedspend.train(config, output=tmp_path / "two", ledger=place)
    with Ledger.open(place) as ledger:
        spent = dict(zip(ledger.accounts().names, ledger.balances().spent, strict=True))
    assert spent["isle"] == pytest.approx(3.0, rel=1e-5)
    assert all(spent[client] > 3.5 for client in ("east", "north", "south", "west"))


def test_a_hospital_that_leaves_takes_its_account_along(config, tmp_path):
    place = tmp_path / "accounts.db"
    with Ledger.create(place, simulation=False) as ledger:
        ledger.register(["east", "north", "south", "west"], 9.0, delta=1e-2)
    fedspend.train(config, output=tmp_path / "one", ledger=place)
    write_rows(tmp_path / "rows.csv", ["south", "west", "north"])
    fedspend.train(config, output=tmp_path / "two", ledger=place)
    with Ledger.open(place) as ledger:
        spent = dict(zip(ledger.accounts().names, ledger.balances().spent, strict=True))
        assert spent["east"] == pytest.approx(3.0, rel=1e-5)
        assert all(spent[client] > 3.5 for client in ("north", "south", "west"))
        setup = setup_of(changed(config, ledger__spend="remaining"), ledger)
    assert behind(setup) == {"east": None} | {
        client: client for client in ("north", "south", "west")
    }


@pytest.mark.full
def test_a_client_whose_rows_are_all_held_out_stays(config, tmp_path):
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    (tmp_path / "rows.csv").write_text("\n".join([*lines, "isle,0.5,0.5,1"]) + "\n")
    del config["data"]["test_path"]
    emptied = 0
    for seed in range(40):
        setup = setup_of(changed(config, data__validation=0.5, train__seed=seed))
        assert setup.plan.clients == ("east", "isle", "north", "south", "west")
        emptied += behind(setup)["isle"] is None
    assert 5 < emptied < 35


def test_a_number_of_natural_clients_is_a_choice_for_simulations(config):
    assert setup_of(changed(config, data__clients=4)).plan.clients == (
        "east",
        "north",
        "south",
        "west",
    )
    message = refusal(setup_of, changed(config, data__clients=3))
    assert "clients = 3, but the data names 4" in message
    assert "data.leave_out" in message
    some = setup_of(changed(config, data__clients=3, privacy__randomness="seeded"))
    assert len(some.plan.clients) == 3
    assert behind(some) == {client: client for client in some.plan.clients}


def test_groups_go_by_position_so_they_are_for_simulations(config):
    config = changed(config, privacy__groups=[{"epsilon": 1.0}, {"epsilon": 5.0}])
    del config["privacy"]["epsilon"]
    message = refusal(setup_of, config)
    assert "groups give budgets to clients by position" in message
    assert "privacy.budgets" in message
    assert refusal(resolve, config_of(config)) == message
    simulated = setup_of(changed(config, privacy__randomness="seeded")).plan
    assert dict(zip(simulated.clients, simulated.budget, strict=True)) == {
        "east": 1,
        "north": 1,
        "south": 5,
        "west": 5,
    }


# --- roster: the ledger ---


def at_own_orders(ledger):
    """What every account has spent, as a new run would find it."""
    accounts = ledger.accounts()
    return ledger.past(accounts.names).best(accounts.delta)[0]


def test_what_remains_is_spent_by_its_owner(config, accounts, tmp_path):
    """It used to be joined by position: east's rows were trained under north's budget."""
    for given in (
        config,
        changed(config, privacy__budgets=budgets(tmp_path, east=20, north=1, west=30, south=2)),
    ):
        with Ledger.open(accounts) as ledger:
            setup = setup_of(changed(given, ledger__spend="remaining"), ledger)
        assert behind(setup) == {client: client for client in setup.plan.clients}
        found = dict(zip(setup.plan.clients, setup.plan.budget, strict=True))
        assert found == {"north": 1, "south": 2, "east": 20, "west": 30}
    del config["privacy"]["epsilon"]
    fedspend.train(
        changed(config, ledger__spend="remaining"), output=tmp_path / "run", ledger=accounts
    )
    with Ledger.open(accounts) as ledger:
        np.testing.assert_allclose(at_own_orders(ledger), [1, 2, 20, 30], rtol=1e-5)
        assert not ledger.balances().remaining.any()


def test_who_withdrew_is_left_out_by_id(config, accounts, tmp_path):
    with Ledger.open(accounts, write=True) as ledger:
        ledger.withdraw(["east"], reason="asked")
    rest = {client: client for client in ("north", "south", "west")}
    listed = changed(
        config, privacy__budgets=budgets(tmp_path, east=0.5, west=0.5, south=0.5, north=0.5)
    )
    with Ledger.open(accounts) as ledger:
        for given in (config, listed):
            assert behind(setup_of(changed(given, ledger__spend="remaining"), ledger)) == rest
        assert behind(setup_of(changed(listed, ledger__exhausted="leave-out"), ledger)) == rest
        message = refusal(setup_of, listed, ledger, kind=Refused)
        assert "client 'east' cannot take part: it has withdrawn" in message
    fedspend.train(
        changed(listed, ledger__exhausted="leave-out"), output=tmp_path / "one", ledger=accounts
    )
    fedspend.train(
        changed(config, ledger__spend="remaining"), output=tmp_path / "two", ledger=accounts
    )
    with Ledger.open(accounts) as ledger:
        spent = dict(zip(ledger.accounts().names, ledger.balances().spent, strict=True))
    assert spent["east"] == 0
    assert spent["north"] == pytest.approx(1, rel=1e-5)


def test_who_is_exhausted_is_left_out_by_id(config, accounts, tmp_path):
    listed = changed(config, privacy__budgets=budgets(tmp_path, east=1, west=1, south=1, north=1))
    fedspend.train(listed, output=tmp_path / "one", ledger=accounts)
    assert "client 'north'" in refusal(
        fedspend.train, listed, output=tmp_path / "two", ledger=accounts, kind=Refused
    )
    with Ledger.open(accounts) as ledger:
        for spend in ("config", "remaining"):
            left = setup_of(
                changed(listed, ledger__exhausted="leave-out", ledger__spend=spend), ledger
            )
            assert behind(left) == {client: client for client in left.plan.clients}
            assert set(left.plan.clients) == {"south", "east", "west"}


def test_rows_without_an_account_are_not_trained_on(config, accounts, tmp_path):
    write_rows(tmp_path / "rows.csv", ["isle", "south", "west", "north", "east"])
    with Ledger.open(accounts) as ledger:
        message = refusal(setup_of, changed(config, ledger__spend="remaining"), ledger)
        assert "client 'isle' has rows in the data but is not in the ledger" in message
        assert "fedspend ledger register" in message
        out = setup_of(
            changed(config, ledger__spend="remaining", data__leave_out=["isle", "west"]), ledger
        )
        assert behind(out) == {client: client for client in ("north", "south", "east")}


def test_an_account_without_rows_stays(config, accounts, tmp_path):
    write_rows(tmp_path / "rows.csv", ["south", "west", "east"])
    with Ledger.open(accounts) as ledger:
        setup = setup_of(changed(config, ledger__spend="remaining"), ledger)
    assert behind(setup) == {"north": None} | {
        client: client for client in ("south", "east", "west")
    }


@pytest.mark.parametrize("tested", ["validation", "split"])
def test_who_takes_no_part_is_not_tested_on_either(config, accounts, tmp_path, tested):
    """Held-out rows are rows: those of a client that withdrew, or is left out, are not used."""
    del config["data"]["test_path"]
    if tested == "split":
        lines = (tmp_path / "rows.csv").read_text().splitlines()
        marked = [
            f"{lines[0]},split",
            *(
                f"{line},{'test' if n // 4 % 3 == 0 else 'train'}"
                for n, line in enumerate(lines[1:])
            ),
        ]
        (tmp_path / "rows.csv").write_text("\n".join(marked) + "\n")
    else:
        config["data"]["validation"] = 0.5

    def tested_on(setup):
        marks = set(setup.federation.dataset.test_features[:, 0].tolist())
        return {client for client, mark in MARK.items() if np.float32(mark) in marks}

    assert tested_on(setup_of(config)) == {"north", "south", "east", "west"}
    assert tested_on(setup_of(changed(config, data__leave_out=["west"]))) == {
        "north",
        "south",
        "east",
    }
    unprotected = changed(config, data__leave_out=["west"], method__name="fedavg")
    assert tested_on(setup_of(unprotected)) == {"north", "south", "east"}
    with Ledger.open(accounts, write=True) as ledger:
        ledger.withdraw(["east"], reason="asked")
        assert tested_on(setup_of(changed(config, ledger__spend="remaining"), ledger)) == {
            "north",
            "south",
            "west",
        }
    only = changed(config, data__leave_out=["north", "south", "east"])
    assert tested_on(setup_of(only)) == {"west"}


def test_somebody_has_to_be_tested_on(config, tmp_path):
    (tmp_path / "rows.csv").write_text(
        "hospital,x,label,split\nnorth,1,0,train\nsouth,2,1,train\nsouth,2,1,test\n"
    )
    del config["data"]["test_path"]
    assert "all test rows belong to clients that take no part" in refusal(
        setup_of, changed(config, data__leave_out=["south"])
    )


# --- plans ---


@pytest.fixture
def files(config, tmp_path):
    """The same config as a file, for the command line."""

    def write(sections=config):
        lines = []
        for section, keys in sections.items():
            lines.append(f"[{section}]")
            lines += [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        (tmp_path / "config.toml").write_text("\n".join(lines) + "\n")
        return str(tmp_path / "config.toml")

    return write


PROJECT = ("--project", "hospitals")  # real runs are charged under a name


def run(*arguments):
    return main([str(argument) for argument in arguments])


def test_plan_and_train_find_the_same_roster(config, files, tmp_path, capsys):
    path, plan = files(), tmp_path / "plan.json"
    assert run("plan", path, "-o", plan, "--quiet") == 0
    assert fedspend.Plan.load(plan).clients == ("east", "north", "south", "west")
    assert run("train", path, "-o", tmp_path / "run", "--plan", plan, "--quiet", *PROJECT) == 0
    assert fedspend.Plan.load(tmp_path / "run" / "plan.json").hash == setup_of(config).plan.hash
    out = files(changed(config, data__leave_out=["east"]))
    assert run("train", out, "-o", tmp_path / "two", "--plan", plan, "--quiet", *PROJECT) == 2
    assert (
        "the plan has client 'east', who is not among the listed clients" in capsys.readouterr().err
    )
    assert run("plan", out, "-o", plan, "--quiet", "--force") == 0
    others = ("--project", "other hospitals")
    assert run("train", out, "-o", tmp_path / "two", "--plan", plan, "--quiet", *others) == 0
    assert run("train", files(), "-o", tmp_path / "three", "--plan", plan, "--quiet", *PROJECT) == 2
    assert "client 'east' is not in the plan; make another plan" in capsys.readouterr().err
    assert not (tmp_path / "three").exists()


def test_one_epsilon_by_flag_is_for_the_same_roster(files, tmp_path):
    assert run("plan", files(), "--epsilon", "8", "-o", tmp_path / "plan.json", "--quiet") == 0
    assert fedspend.Plan.load(tmp_path / "plan.json").clients == ("east", "north", "south", "west")


@pytest.mark.full
def test_budgets_that_changed_after_planning(config, files, tmp_path, capsys):
    config = changed(config, privacy__budgets=budgets(tmp_path, east=20, north=1, west=30, south=2))
    path, plan = files(config), tmp_path / "plan.json"
    assert run("plan", path, "-o", plan, "--quiet") == 0
    for now, told in (
        (
            {"east": 20, "north": 1, "west": 30, "south": 2, "isle": 5},
            "client 'isle' is not in the plan",
        ),
        (
            {"east": 20, "north": 1, "west": 30},
            "the plan has client 'south', who is not among the listed clients",
        ),
        (
            {"east": 1, "north": 20, "west": 30, "south": 2},
            "a budget of 20 for client 'east', but the config has 1",
        ),
        ({"East": 20, "north": 1, "west": 30, "south": 2}, "though 'East' looks like it"),
    ):
        budgets(tmp_path, **now)
        assert run("train", path, "-o", tmp_path / "run", "--plan", plan, "--quiet", *PROJECT) == 2
        assert told in capsys.readouterr().err
        assert not (tmp_path / "run").exists()
    budgets(tmp_path, south=2, west=30, north=1, east=20)  # another order is the same list
    assert run("train", path, "-o", tmp_path / "run", "--plan", plan, "--quiet", *PROJECT) == 0


@pytest.mark.full
def test_a_plan_on_a_ledger_is_for_all_but_those_it_leaves_out(files, accounts, tmp_path, capsys):
    path, plan = files(), tmp_path / "plan.json"
    with Ledger.open(accounts, write=True) as ledger:
        ledger.withdraw(["east"], reason="asked")
    assert run("plan", path, "--ledger", accounts, "-o", plan, "--quiet") == 0
    assert fedspend.Plan.load(plan).clients == ("north", "south", "west")
    assert (
        run("train", path, "-o", tmp_path / "run", "--plan", plan, "--ledger", accounts, "--quiet")
        == 0
    )
    with Ledger.open(accounts, write=True) as ledger:
        np.testing.assert_allclose(at_own_orders(ledger), [1, 2, 0, 30], rtol=1e-5)
        ledger.change(["north", "west"], 40.0, reason="test")
    assert (
        run(
            "plan",
            path,
            "--ledger",
            accounts,
            "-o",
            plan,
            "--quiet",
            "--force",
            "--set",
            "ledger.exhausted=leave-out",
        )
        == 0
    )
    assert fedspend.Plan.load(plan).clients == ("north", "west"), "south has nothing left"
    with Ledger.open(accounts, write=True) as ledger:
        ledger.change(["south"], 40.0, reason="test")
    capsys.readouterr()
    assert (
        run("train", path, "-o", tmp_path / "two", "--plan", plan, "--ledger", accounts, "--quiet")
        == 2
    )
    assert "client 'south' is not in the plan" in capsys.readouterr().err, "it has, since"
    with Ledger.open(accounts, write=True) as ledger:
        ledger.change(["south"], 2.0 * (1 + 1e-6), reason="test")
    assert (
        run("train", path, "-o", tmp_path / "two", "--plan", plan, "--ledger", accounts, "--quiet")
        == 0
    )


def test_a_hospital_that_joins_between_plan_and_train_is_noticed(files, tmp_path, capsys):
    path, plan = files(), tmp_path / "plan.json"
    assert run("plan", path, "-o", plan, "--quiet") == 0
    write_rows(tmp_path / "rows.csv", ["isle", "south", "west", "north", "east"])
    assert run("train", path, "-o", tmp_path / "run", "--plan", plan, "--quiet", *PROJECT) == 2
    assert "client 'isle' is not in the plan" in capsys.readouterr().err
    write_rows(tmp_path / "rows.csv", ["south", "west", "north"])
    assert run("train", path, "-o", tmp_path / "run", "--plan", plan, "--quiet", *PROJECT) == 2
    assert (
        "the plan has client 'east', who is not among the listed clients" in capsys.readouterr().err
    )


def test_a_hospital_that_joins_in_the_middle_of_a_run_is_noticed(config, tmp_path):
    config = changed(config, train__rounds=3)
    stopped(config, tmp_path / "run", rounds=1, project="hospitals")
    write_rows(tmp_path / "rows.csv", ["isle", "south", "west", "north", "east"])
    assert "client 'isle' is not in the plan" in refusal(
        fedspend.train, config, output=tmp_path / "run", resume=True
    )
    # east took its rows back: it stays, with nothing to give
    write_rows(tmp_path / "rows.csv", ["south", "west", "north"])
    result = fedspend.train(config, output=tmp_path / "run", resume=True)
    assert len(result.metrics) == 3
    assert result.plan.clients == ("east", "north", "south", "west")


def test_a_silo_without_a_client_column_spends_what_its_account_has_left(
    config, files, tmp_path, capsys
):
    (tmp_path / "rows.csv").write_text("x,label\n0.1,0\n0.2,1\n0.3,0\n")
    (tmp_path / "test.csv").write_text("x,label\n0.1,0\n")
    del config["data"]["client"]
    place, plan, path = tmp_path / "accounts.db", tmp_path / "plan.json", files(config)
    with Ledger.create(place, simulation=False) as ledger:
        ledger.register(["clinic"], 4.0, delta=1e-2)
    assert run("plan", path, "--ledger", place, "-o", plan, "--quiet") == 0
    assert (
        run("train", path, "-o", tmp_path / "run", "--ledger", place, "--plan", plan, "--quiet")
        == 0
    )
    with Ledger.open(place, write=True) as ledger:
        np.testing.assert_allclose(at_own_orders(ledger), [4.0], rtol=1e-5)
        ledger.register(["other"], 4.0, delta=1e-2)
    assert (
        run("train", path, "-o", tmp_path / "two", "--ledger", place, "--remaining", "--quiet") == 1
    )
    assert "'clinic' cannot take part" in capsys.readouterr().err
    leave = ("--set", "ledger.exhausted=leave-out")
    assert (
        run(
            "train",
            path,
            "-o",
            tmp_path / "two",
            "--ledger",
            place,
            "--remaining",
            "--quiet",
            *leave,
        )
        == 2
    )
    assert "deals your own rows to 2 made-up clients" in capsys.readouterr().err, (
        "whose rows these are nobody said"
    )


def test_a_benchmark_that_is_not_here_is_planned_by_number_and_says_so(
    tmp_path, monkeypatch, capsys
):
    for variable in ("FEDSPEND_DATA", "FEDSPEND_CACHE"):
        monkeypatch.setenv(variable, str(tmp_path))
    monkeypatch.setattr("fedspend.data.sources.DEBIAN", tmp_path)
    flags = [
        "--set",
        "data.name=mnist-writers",
        "--set",
        "privacy.epsilon=5",
        "--rounds",
        "2",
        "--rate",
        "0.5",
        "--delta",
        "1e-3",
    ]
    assert run("plan", *flags) == 2
    assert "the files of data set 'mnist-writers' were not found" in capsys.readouterr().err
    assert run("plan", *flags, "--set", "data.clients=7", "-o", tmp_path / "plan.json") == 0
    assert "is not on this machine, so its clients are numbered" in capsys.readouterr().err
    assert fedspend.Plan.load(tmp_path / "plan.json").clients == tuple("0123456")


def test_own_data_that_is_not_here_is_not_planned_by_number(config, files, tmp_path, capsys):
    (tmp_path / "rows.csv").unlink()
    assert run("plan", files(changed(config, data__clients=4))) == 2
    assert "rows.csv: cannot be read" in capsys.readouterr().err


def test_the_command_line_shows_the_names(files, accounts, tmp_path, capsys):
    assert (
        run(
            "train", files(), "-o", tmp_path / "run", "--ledger", accounts, "--remaining", "--quiet"
        )
        == 0
    )
    assert run("ledger", "balance", "--ledger", accounts, "--json") == 0
    assert [line["client"] for line in json.loads(capsys.readouterr().out)] == [
        "north",
        "south",
        "east",
        "west",
    ]
    assert run("ledger", "history", "--ledger", accounts, "--client", " east") == 0
    assert "plan" in capsys.readouterr().out
    assert run("ledger", "show", "--ledger", accounts, "--client", "East") == 2
    assert "though 'east' looks like it" in capsys.readouterr().err


def test_a_lasting_ledger_takes_named_clients_only(config, tmp_path):
    (tmp_path / "rows.csv").write_text("x,label\n0.1,0\n0.2,1\n0.3,0\n")
    (tmp_path / "test.csv").write_text("x,label\n0.1,0\n")
    del config["data"]["client"]
    config = changed(config, data__clients=1)
    place = tmp_path / "accounts.db"
    message = refusal(fedspend.train, config, output=tmp_path / "run", ledger=place)
    assert "needs named clients" in message
    assert "data.client" in message
    assert not (tmp_path / "run").exists()
    assert not place.exists()
    message = refusal(fedspend.train, config, output=tmp_path / "run", project="clinic")
    assert "needs named clients" in message, "nor does the ledger of this user take others"
    fedspend.train(changed(config, privacy__randomness="seeded"), output=tmp_path / "run")
    fedspend.train(
        changed(config, privacy__budgets=budgets(tmp_path, clinic=2)),
        output=tmp_path / "two",
        ledger=place,
    )
    with Ledger.open(place) as ledger:
        assert ledger.accounts().names == ["clinic"]


# --- arrays ---


def arrays(mark, rows=6):
    return np.full((rows, 2), mark, dtype=np.float32), np.arange(rows) % 2


@pytest.fixture
def options():
    return {
        "model": torch.nn.Linear(2, 2),
        "test": arrays(0.1),
        "lr": 0.1,
        "batch_size": 4,
        "local_steps": 1,
    }


def test_arrays_by_id_meet_the_plan_by_id(options):
    from fedspend.runs.arrays import from_arrays

    plan = fedspend.plan({"north": 2.0, "south": 8.0, "isle": 3.0}, delta=1e-2, rounds=1, rate=1.0)
    clients = {"south": arrays(MARK["south"]), " north": arrays(MARK["north"])}
    setup = from_arrays(clients, plan=plan, **options)
    assert setup.federation.clients == plan.clients
    assert behind(setup) == {"north": "north", "south": "south", "isle": None}
    whole, project = clients | {"isle": ([], [])}, {"project": "hospitals"}
    assert len(fedspend.train(clients=whole, plan=plan, **project, **options).metrics) == 1
    assert "client 'west' has rows but is not in the plan" in refusal(
        fedspend.train, clients=clients | {"west": arrays(0.4)}, plan=plan, **options
    )
    with pytest.raises(InvalidInput, match="'south' and 'South' differ only by case"):
        fedspend.train(clients=clients | {"South": arrays(0.4)}, plan=plan, **options)


class Series:
    """As much of a pandas Series as matters here."""

    def __init__(self, values, index):
        self._values, self.index = list(values), list(index)

    def to_numpy(self):
        column = np.empty(len(self._values), dtype=object)
        column[:] = self._values
        return column

    def __iter__(self):
        return iter(self._values)


def test_a_series_of_clients_is_refused(options):
    plan = fedspend.plan([2.0, 8.0], delta=1e-2, rounds=1, rate=1.0)
    clients = Series([arrays(0.2, rows=3), arrays(0.1, rows=5)], index=["1", "0"])
    assert "write dict(clients)" in refusal(fedspend.train, clients=clients, plan=plan, **options)


@pytest.mark.full
def test_a_list_has_no_names(options, tmp_path):
    clients = [arrays(0.1), arrays(0.2)]
    numbered = fedspend.plan([10.0, 20.0], delta=1e-2, rounds=1, rate=1.0)
    named = fedspend.plan({"north": 10.0, "south": 20.0}, delta=1e-2, rounds=1, rate=1.0)
    assert "a list has no names" in refusal(
        fedspend.train, clients=clients, plan=numbered, **options
    )
    assert (
        len(fedspend.train(clients=clients, plan=numbered, randomness="seeded", **options).metrics)
        == 1
    )
    message = refusal(fedspend.train, clients=clients, plan=named, **options)
    assert "a list has no names" in message
    assert "dict" in message
    assert (
        len(fedspend.train(clients=clients, plan=named, randomness="seeded", **options).metrics)
        == 1
    )
    lasting = {"output": tmp_path / "run", "ledger": tmp_path / "accounts.db"}
    assert "needs named clients" in refusal(
        fedspend.train, clients=clients, plan=numbered, **options, **lasting
    )
    assert list(tmp_path.iterdir()) == []
    fedspend.train(
        clients=dict(zip(named.clients, clients, strict=True)), plan=named, **options, **lasting
    )
    with Ledger.open(tmp_path / "accounts.db") as ledger:
        assert ledger.accounts().names == ["north", "south"]


@pytest.mark.full(but=["config"])
@pytest.mark.parametrize("spend", ["config", "remaining"])
def test_a_client_that_withdraws_in_the_middle_of_a_run_stops_it(config, accounts, tmp_path, spend):
    """The plan counts on it: the run goes no further, and the refusal says what to do."""

    config = changed(config, train__rounds=3, ledger__spend=spend, privacy__epsilon=0.5)
    stopped(config, tmp_path / "run", rounds=1, ledger=accounts)
    with Ledger.open(accounts, write=True) as ledger:
        ledger.withdraw(["east"], reason="asked")
    message = refusal(
        fedspend.train, config, output=tmp_path / "run", ledger=accounts, resume=True, kind=Refused
    )
    assert "'east' has withdrawn; close the run and plan without it" in message
