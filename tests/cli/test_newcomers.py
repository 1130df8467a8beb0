"""What somebody types who does not know the commands yet, and what they are told."""

from __future__ import annotations

import pytest
from lib.configs import write_toml

import fedspend


@pytest.fixture
def config(tiny, tmp_path):
    path = tmp_path / "tiny.toml"
    return write_toml(path, tiny)


@pytest.fixture
def plan_file(tmp_path):
    path = tmp_path / "plan.json"
    fedspend.plan([2.0, 8.0], delta=1e-2, rounds=2, rate=1.0, accountant="rdp").save(path)
    return path


def test_verify_says_what_checks_a_file_that_is_no_plan(run, config, tmp_path):
    assert f"fedspend plan {config} -o plan.json" in run("verify", config).err

    book = tmp_path / "accounts.db"
    run("ledger", "init", "--ledger", book)
    said = run("verify", book)
    assert said.code == 2
    assert f"fedspend ledger verify --ledger {book}" in said.err

    (tmp_path / "publication.json").write_text("{}")
    for name in ("publication.json", "guarantee.txt"):
        (tmp_path / name).touch()
        said = run("verify", tmp_path / name)
        assert said.code == 2
        assert said.err.rstrip().endswith(f"fedspend verify {tmp_path}")


@pytest.mark.parametrize("command", ["plan", "train"])
def test_a_plan_in_the_place_of_a_config_is_recognised(run, plan_file, command):
    said = run(command, plan_file)
    assert said.code == 2
    assert f"fedspend train CONFIG.toml --plan {plan_file}" in said.err


def test_a_taken_folder_is_refused_before_anything_is_planned(run, config, plan_file, monkeypatch):
    def planned(*_, **__):
        raise AssertionError("planned first")

    monkeypatch.setattr("fedspend.runs.training._planned", planned)
    assert "is not empty" in run("train", config, "-o", plan_file.parent).err
    assert "is a file, and a run needs a folder" in run("train", config, "-o", plan_file).err


def test_a_method_that_is_listed_twice_is_named(run, config):
    said = run("compare", config, "--methods", "dp-fedavg,fedavg,dp-fedavg")
    assert said.code == 2
    assert "method 'dp-fedavg' is listed twice; remove one" in said.err


def test_an_empty_cell_says_how_to_declare_a_number_for_it(run, tmp_path):
    (tmp_path / "rows.csv").write_text("clinic,age,sick\nnorth,41,0\nnorth,,1\n")
    (tmp_path / "rows.toml").write_text(
        '[data]\nname = "csv"\npath = "rows.csv"\nlabel = "sick"\nclasses = 2\nclient = "clinic"\n'
    )
    said = run("data", "check", tmp_path / "rows.toml")
    assert said.code == 2
    assert "rows.csv:3: age is empty" in said.err
    assert "missing = {age = NUMBER}" in said.err


def test_without_a_ledger_of_this_user_one_is_to_be_named(run, tmp_path, monkeypatch):
    monkeypatch.delenv("FEDSPEND_LEDGER", raising=False)
    monkeypatch.setattr("fedspend.ledger.default.check_lasts", lambda _: None)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    said = run("ledger", "balance")
    assert said.code == 2
    assert "no --ledger was given" in said.err


def test_explain_says_what_a_folder_without_a_plan_is(run, tmp_path):
    said = run("explain", tmp_path)
    assert said.code == 2
    assert "is a folder without a plan; name a plan file or a run directory" in said.err
