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


@pytest.mark.parametrize("name", [None, "nothing.csv", "."])
def test_what_cannot_be_checked_is_said_in_one_line(name, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["data", "check", *([] if name is None else [name])]) == 2
    assert "Traceback" not in capsys.readouterr().err
