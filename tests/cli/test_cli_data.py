"""`fedspend data check`: how your own data is read, for the data holder only."""

from __future__ import annotations

import json

import pytest

from fedspend.cli.main import main

CSV = "hospital;age;blood;note\nnorth;41,5;A;x\nsouth;NA;secretlevel;y\n"


@pytest.fixture
def patients(tmp_path):
    path = tmp_path / "patients.csv"
    path.write_text(CSV)
    return path


def test_a_file_is_described_and_no_value_of_a_row_is_shown(patients, capsys):
    assert main(["data", "check", str(patients)]) == 0
    out, err = capsys.readouterr()
    assert "private" in err
    assert "columns separated by semicolons, 2 rows" in out
    told = " ".join(out.split())
    assert 'categories = {blood = ["...", "..."]}' in told
    assert "missing = {age = A NUMBER}" in told
    for value in ("secretlevel", "41,5", "41.5", "north"):  # 41 may be in the path
        assert value not in out


def test_as_json(patients, capsys):
    assert main(["data", "check", str(patients), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["rows"] == 2
    cells = {one["column"]: (one["cells"], one["missing"]) for one in found["columns"]}
    assert cells == {
        "hospital": ("words", 0),
        "age": ("numbers", 1),
        "blood": ("words", 0),
        "note": ("words", 0),
    }


def test_a_config_says_what_it_reads(patients, capsys):
    config = patients.with_name("own.toml")
    config.write_text(
        '[data]\nname = "csv"\npath = "patients.csv"\nlabel = "note"\nlabels = ["x", "y"]\n'
        'client = "hospital"\ncolumns = ["age"]\nmissing = {age = 50}\n'
    )
    assert main(["data", "check", str(config), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["rows"], found["clients"], found["features"]) == (2, 2, [1])
    assert main(["data", "check", str(config)]) == 0
    assert "rows of a client: smallest 1, median 1, largest 1" in capsys.readouterr().out
    config.write_text(config.read_text().replace("missing", "#"))
    assert main(["data", "check", str(config)]) == 2
    assert "patients.csv:3: age must be a number" in capsys.readouterr().err


OWN = (
    '[data]\nname = "csv"\npath = "patients.csv"\nlabel = "note"\nlabels = ["x", "y"]\n'
    'client = "hospital"\ncolumns = ["age"]\nmissing = {age = 50}\n'
)


@pytest.mark.parametrize(
    ("listed", "more", "found"),
    [
        ("north,1\nsouth,2\neast,3\n", "", {"clients": 3, "without rows": 1}),
        ("north,1\n", "", "client 'south' has rows in the data but is not in "),
        ("north,1\nSouth,1\n", "", "'South'"),
        ("north,1\n", 'leave_out = ["south"]\n', {"clients": 1, "without rows": 0}),
        ("north,1\nsouth,2\n", 'leave_out = ["west"]\n', "'west'"),
    ],
)
def test_clients_in_rows_are_compared_with_the_file_of_budgets(
    patients, capsys, listed, more, found
):
    patients.with_name("budgets.csv").write_text(f"client,epsilon\n{listed}")
    config = patients.with_name("own.toml")
    config.write_text(f'{OWN}{more}[privacy]\nbudgets = "budgets.csv"\n')
    code = main(["data", "check", str(config), "--json"])
    out, err = capsys.readouterr()
    if isinstance(found, str):
        assert (code, out) == (2, "")
        assert found in err
    else:
        assert (code, json.loads(out)["budgets"]) == (0, found)


def test_records_in_rows_are_compared_with_the_file_of_budgets(patients, capsys):
    patients.write_text("record;hospital;age;note\n1;north;41;x\n2;south;50;y\n")
    budgets = patients.with_name("budgets.csv")
    budgets.write_text("record,epsilon\n1,1\n2,2\n")
    config = patients.with_name("own.toml")
    config.write_text(
        f'{OWN}record = "record"\n[method]\nname = "rpdp"\n[privacy]\nbudgets = "budgets.csv"\n'
    )
    assert main(["data", "check", str(config)]) == 0
    assert "budgets: records 2" in capsys.readouterr().out
    budgets.write_text("record,epsilon\n1,1\n")
    assert main(["data", "check", str(config)]) == 2
    assert "record '2' has no budget in " in capsys.readouterr().err


@pytest.mark.parametrize("name", [None, "nothing.csv", "."])
def test_what_cannot_be_checked_is_said_in_one_line(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "check", *([] if name is None else [name])]) == 2
    assert "Traceback" not in capsys.readouterr().err
