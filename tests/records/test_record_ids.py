"""Records with ids of their own: budgets and accounts stay with a person when rows are added,
removed or reordered.
"""

import numpy as np
import pytest
from lib.configs import small

import fedspend
from fedspend.configuration.config import config_of
from fedspend.data.tables import read_csv, read_npz
from fedspend.errors import InvalidInput
from fedspend.ledger import Ledger
from fedspend.records import plan_of
from fedspend.runs.setup import from_config


def people(count=40, start=0):
    """Patients of two hospitals; what a patient holds is a function of their number."""
    return [(f"p{n}", "ab"[n % 2], n / 100, n % 2) for n in range(start, start + count)]


def write(path, patients):
    path.write_text(
        "\n".join(["patient,hospital,x,label", *(",".join(map(str, one)) for one in patients)])
        + "\n"
    )


@pytest.fixture
def config(tmp_path):
    """A real run on your own records, with budgets in a file of their own."""
    write(tmp_path / "rows.csv", people())
    write(tmp_path / "test.csv", people(4))
    (tmp_path / "budgets.csv").write_text(
        "record,epsilon\n" + "".join(f"p{n},{1 + n / 100}\n" for n in reversed(range(200)))
    )
    data = {
        "name": "csv",
        "path": str(tmp_path / "rows.csv"),
        "test_path": str(tmp_path / "test.csv"),
        "client": "hospital",
        "record": "patient",
        "classes": 2,
    }
    budgets = str(tmp_path / "budgets.csv")
    privacy = {"budgets": budgets, "delta": 1e-4, "noise_multiplier": 8.0}
    return small("record", data=data, privacy=privacy, train__rounds=2, train__local_steps=2)


def without(config, section, *keys):
    return config | {
        section: {key: value for key, value in config[section].items() if key not in keys}
    }


def refusal(function, *args, **options):
    with pytest.raises(InvalidInput) as refused:
        function(*args, **options)
    assert "\n" not in str(refused.value)
    return str(refused.value)


def budgets_fit(plan):
    return all(
        budget == pytest.approx(1 + int(name[1:]) / 100)
        for name, budget in zip(plan.records, plan.budget, strict=True)
    )


@pytest.mark.full
def test_the_column_is_no_feature_and_names_every_row(config):
    setup = from_config(config_of(config))
    assert setup.federation.dataset.features.shape == (40, 1)
    assert setup.randomness.source == "os"
    rows = np.concatenate(setup.federation.shards)
    held = setup.federation.dataset.features[rows, 0]
    assert [f"p{round(float(x) * 100)}" for x in held] == list(setup.plan.records)


def test_budgets_go_by_id_in_whatever_order(config, tmp_path):
    plan = plan_of(config)
    assert budgets_fit(plan)
    write(tmp_path / "rows.csv", people(30, start=7)[::-1])
    moved = plan_of(config)
    assert budgets_fit(moved)
    assert set(moved.records) == {f"p{n}" for n in range(7, 37)}, (
        "a budget without a row is not planned for"
    )


def test_a_record_without_a_budget_is_named(config, tmp_path):
    (tmp_path / "budgets.csv").write_text(
        "record,epsilon\n" + "".join(f"p{n},1\n" for n in range(40) if n != 11) + "P11,1\n"
    )
    message = refusal(plan_of, config)
    assert "record 'p11' has no budget in" in message
    assert "though 'P11' looks like it" in message
    (tmp_path / "budgets.csv").write_text("epsilon\n" + "1\n" * 40)
    assert "has no column 'record'" in refusal(plan_of, config)


@pytest.mark.full
def test_accounts_stay_with_a_person_when_rows_are_added(config, tmp_path):
    place = tmp_path / "accounts.db"
    fedspend.train(config, output=tmp_path / "one", ledger=place)
    with Ledger.open(place, write=True) as ledger:
        first = dict(
            zip(ledger.accounts("record").names, ledger.balances("record").spent, strict=True)
        )
        ledger.register(["p40"], 1.4, delta=1e-4, unit="record")
        ledger.change(["p7"], 30.0, reason="test", unit="record")
        ledger.withdraw(["p3"], reason="asked", unit="record")
    # p40 comes first: all numbers of rows have moved
    write(tmp_path / "rows.csv", [people(1, start=40)[0], *people()])
    rest = without(config, "privacy", "budgets") | {"ledger": {"spend": "remaining"}}
    result = fedspend.train(rest, output=tmp_path / "two", ledger=place)
    rate = dict(zip(result.plan.records, result.plan.rate[0], strict=True))
    assert {name for name in rate if rate[name] > 0} >= {"p40", "p7"}
    assert rate["p3"] == 0
    with Ledger.open(place) as ledger:
        now = dict(
            zip(ledger.accounts("record").names, ledger.balances("record").spent, strict=True)
        )
    assert now["p3"] == first["p3"]
    assert now["p7"] > first["p7"] + 0.1
    assert 0 < now["p40"] <= 1.4


def test_a_stranger_among_the_records_is_named(config, tmp_path):
    place = tmp_path / "accounts.db"
    fedspend.train(config, output=tmp_path / "one", ledger=place)
    write(tmp_path / "rows.csv", [*people(), *people(1, start=40)])
    rest = config | {"ledger": {"spend": "remaining"}}
    assert "record 'p40' is not in the ledger" in refusal(
        fedspend.train, rest, output=tmp_path / "two", ledger=place
    )


def test_hold_out_and_samples_leave_names_alone(config, tmp_path):
    some = without(config, "data", "test_path")
    some["data"] = some["data"] | {"validation": 0.3, "share": 0.7}
    plan = plan_of(some)
    assert budgets_fit(plan)
    assert 5 < len(plan.records) < 35
    # names, not numbers: a ledger may last
    fedspend.train(some, output=tmp_path / "one", ledger=tmp_path / "accounts.db")


def test_without_ids_no_account_of_your_own_records_outlives_a_real_run(config, tmp_path):
    nameless = without(without(config, "data", "record"), "privacy", "budgets")
    nameless["privacy"]["epsilon"] = 2.0
    write(tmp_path / "rows.csv", [(n, *rest[1:]) for n, rest in enumerate(people())])
    write(tmp_path / "test.csv", [(n, *rest[1:]) for n, rest in enumerate(people(4))])
    message = refusal(
        fedspend.train, nameless, output=tmp_path / "run", ledger=tmp_path / "accounts.db"
    )
    assert "data.record" in message
    assert "by row number" in message
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "accounts.db").exists()
    message = refusal(fedspend.train, nameless, output=tmp_path / "run", project="clinic")
    assert "by row number" in message, "nor does the ledger of this user take them"
    simulated = nameless | {"privacy": nameless["privacy"] | {"randomness": "seeded"}}
    fedspend.train(simulated, output=tmp_path / "two", ledger=tmp_path / "accounts.db")


def test_budgets_in_a_file_do_not_go_to_real_records_by_position(config, tmp_path):
    nameless = without(config, "data", "record")
    write(tmp_path / "rows.csv", [(n, *rest[1:]) for n, rest in enumerate(people())])
    write(tmp_path / "test.csv", [(n, *rest[1:]) for n, rest in enumerate(people(4))])
    (tmp_path / "budgets.csv").write_text(
        "record,epsilon\n" + "".join(f"q{n},2\n" for n in range(40))
    )
    assert "by position, which is for simulations" in (message := refusal(plan_of, nameless))
    assert "data.record" in message
    assert (
        len(plan_of(nameless | {"privacy": nameless["privacy"] | {"randomness": "seeded"}}).records)
        == 40
    )


def test_a_plan_is_for_these_records(config, tmp_path):
    plan = plan_of(config)
    assert fedspend.train(config, plan=plan, project="clinic").plan.hash == plan.hash
    patients = people()
    patients[4], patients[6] = patients[6], patients[4]
    write(tmp_path / "rows.csv", patients)
    message = refusal(fedspend.train, config, plan=plan, project="clinic")
    assert "record number 3 named 'p4', and the config 'p6'" in message, "not joined by position"


@pytest.mark.parametrize(
    ("ids", "told"),
    [
        (["p1", "p2", "p1"], "record 'p1'"),
        (["p1", "p2", "P1"], "differ only by case"),
        (["p1", "p2", "p1\u00a0"], "the same except for space"),
        (["p1", "p2", ""], "is empty"),
    ],
)
def test_ids_are_unique_in_the_data(tmp_path, ids, told):
    lines = [f"{one},{n},{n % 2},{'test' if n == 2 else 'train'}" for n, one in enumerate(ids)]
    (tmp_path / "rows.csv").write_text(
        "\n".join(["record,x,label,split", *lines]) + "\n", encoding="utf-8"
    )
    message = refusal(read_csv, tmp_path / "rows.csv", classes=2, record="record")
    assert told in message
    assert f"{tmp_path / 'rows.csv'}:4: " in message


def test_ids_in_arrays(tmp_path):
    arrays = {"features": np.eye(3), "label": [0, 1, 1], "client": ["a", "a", "b"]}
    np.savez(tmp_path / "rows.npz", **arrays, who=[12, 7, 9])
    assert read_npz(tmp_path / "rows.npz", classes=2, record="who").record_of.tolist() == [
        "12",
        "7",
        "9",
    ]
    np.savez(tmp_path / "rows.npz", **arrays, who=[12, 7, 12])
    assert "'12' appears twice" in refusal(read_npz, tmp_path / "rows.npz", classes=2, record="who")
    np.savez(tmp_path / "rows.npz", **arrays, who=[1.0, 2.0, 3.0])
    assert "text or whole numbers" in refusal(
        read_npz, tmp_path / "rows.npz", classes=2, record="who"
    )
    np.savez(tmp_path / "rows.npz", **arrays, who=[1, 2])
    config = {
        "data": {
            "name": "npz",
            "path": str(tmp_path / "rows.npz"),
            "classes": 2,
            "record": "who",
            "validation": 0.4,
        }
    }
    assert "record_of has shape (2,)" in refusal(
        from_config,
        config_of(
            config
            | {
                "method": {"name": "rpdp"},
                "model": {"name": "logistic"},
                "train": {"rounds": 1, "local_steps": 1, "lr": 0.1},
                "privacy": {"epsilon": 1.0, "delta": 1e-3},
            }
        ),
    )


def test_benchmarks_have_no_ids(config):
    config["data"] = {"name": "digits", "record": "patient", "clients": 3}
    assert ("record is for your own data (csv, parquet, npz, npy, images)") in refusal(
        plan_of, config
    )


def test_the_file_of_budgets_is_checked_for_lookalikes(config, tmp_path):
    (tmp_path / "budgets.csv").write_text("record,epsilon\np1,1\nP1,2\n")
    assert "budgets.csv:3: record ids 'p1' and 'P1' differ only by case" in refusal(plan_of, config)


@pytest.mark.full
def test_records_are_registered_from_the_same_file(config, tmp_path, capsys):
    from fedspend.cli.main import main

    place = str(tmp_path / "accounts.db")
    assert main(["ledger", "init", "--ledger", place]) == 0
    register = [
        "ledger",
        "register",
        config["privacy"]["budgets"],
        "--delta",
        "1e-4",
        "--unit",
        "record",
        "--ledger",
        place,
    ]
    assert main(register) == 0
    assert "registered 200 records" in capsys.readouterr().out
    rest = without(config, "privacy", "budgets") | {"ledger": {"spend": "remaining"}}
    plan = fedspend.train(rest, output=tmp_path / "run", ledger=place).plan
    assert budgets_fit(plan)
    assert len(plan.records) == 40


# --- a file of budgets that is the roster ---


@pytest.fixture
def listed(config, tmp_path):
    """The same, with whose each record is in the file of budgets."""
    (tmp_path / "budgets.csv").write_text(
        "record,client,epsilon\n"
        + "".join(f"p{n},{'ab'[n % 2]},{1 + n / 100}\n" for n in reversed(range(40)))
    )
    return config


def test_a_listed_record_without_a_row_has_its_place_all_the_same(listed, tmp_path):
    plan = plan_of(listed)
    assert budgets_fit(plan)
    assert [*plan.records] == [f"p{n}" for n in (*range(39, 0, -2), *range(38, -1, -2))]
    write(tmp_path / "rows.csv", [one for one in people() if one[1] == "a" and one[0] != "p8"])
    assert plan_of(listed).hash == plan.hash
    setup = from_config(config_of(listed))
    assert [len(rows) for rows in setup.federation.shards] == [20, 20]
    assert [len(rows) for rows in setup.federation.held] == [0, 19]
    result = fedspend.train(listed, output=tmp_path / "run", plan=plan, ledger=tmp_path / "book.db")
    assert result.plan.hash == plan.hash
    with Ledger.open(tmp_path / "book.db") as ledger:
        spent = dict(
            zip(ledger.accounts("record").names, ledger.balances("record").spent, strict=True)
        )
    assert spent["p8"] > 0, "or its account would tell that it has no row"


@pytest.mark.parametrize("charge", ["clip", "norm"])
def test_a_filter_goes_on_without_rows(listed, tmp_path, charge):
    listed["method"] = {"name": "filter", "charge": charge}
    write(tmp_path / "rows.csv", [one for one in people() if one[1] == "a" and one[0] != "p8"])
    result = fedspend.train(listed, output=tmp_path / "run", project="clinic")
    assert result.plan.clients == ("b", "a")


def test_a_record_is_where_its_file_says(listed, tmp_path):
    rows = [(name, "b" if name == "p6" else home, *rest) for name, home, *rest in people()]
    write(tmp_path / "rows.csv", rows)
    message = refusal(plan_of, listed)
    assert "record 'p6' is a record of client 'a' in" in message
    assert "and of 'b' in the data" in message
    listed["data"]["leave_out"] = ["b"]
    assert "record 'p6' is a record of client 'a' in" in refusal(plan_of, listed)


def test_a_record_that_is_not_listed_is_named_unless_its_client_is_left_out(listed, tmp_path):
    write(tmp_path / "rows.csv", [*people(), ("p90", "c", 0.9, 0)])
    assert "record 'p90' has no budget in" in refusal(plan_of, listed)
    listed["data"]["leave_out"] = ["c"]
    assert len(plan_of(listed).records) == 40
    listed["data"]["leave_out"] = ["c", "b"]
    assert plan_of(listed).clients == ("a",)


def test_some_of_the_listed_clients_are_for_simulations(listed):
    listed["data"]["clients"] = 1
    assert "the file of budgets lists 2" in refusal(plan_of, listed)
    listed["privacy"]["randomness"] = "seeded"
    assert len(plan_of(listed).clients) == 1


def test_clients_in_the_file_of_budgets_are_ids(listed, tmp_path):
    text = (tmp_path / "budgets.csv").read_text()
    (tmp_path / "budgets.csv").write_text(text.replace("p3,b,", "p3,B,"))
    assert "'b' and 'B' differ only by case" in refusal(plan_of, listed)


def test_who_is_held_out_is_known_by_id(listed, tmp_path):
    """Whatever a record holds, and whether or not it has a row."""
    del listed["data"]["test_path"]
    listed["data"] |= {"validation": 0.3, "share": 0.7}
    plan = plan_of(listed)
    write(
        tmp_path / "rows.csv",
        [(name, home, 0.25, 1) for name, home, *_ in people() if name != "p8"],
    )
    assert plan_of(listed).hash == plan.hash
    rows = from_config(config_of(listed)).federation
    used = {str(rows.dataset.record_of[row]) for own in rows.held for row in own}
    assert used == set(plan.records) - {"p8"}
