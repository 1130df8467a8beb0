"""The inputs that stopped people in trials: each is one line, and leaves nothing behind."""

import errno
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from lib.configs import write_toml

from fedspend.ledger import Ledger

PLAN = ("plan", "--rounds", "3", "--rate", "1", "--delta", "1e-5")


@pytest.fixture
def config(tiny, tmp_path):
    path = tmp_path / "tiny.toml"
    return write_toml(path, tiny)


def test_epsilon_that_is_no_number(refused):
    said = refused(*PLAN, "--clients", 3, "--epsilon", "abc")
    assert said == "fedspend: epsilon must be a finite number, got 'abc'"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((*PLAN, "--epsilon", "-1:10"), "epsilon in group '-1:10' must be positive, got '-1'"),
        (("explain", 1, "--delta", "-1e-5"), "delta must lie strictly between 0 and 1"),
        ((*PLAN, "--epsilon", 3, "--clients", "-.5"), "must be a whole number, got '-.5'"),
    ],
)
def test_a_value_that_begins_like_a_negative_number_is_one(refused, arguments, words):
    assert words in refused(*arguments)


@pytest.mark.parametrize("action", ["history", "show"])
def test_a_client_without_its_flag(refused, tmp_path, action):
    said = refused("ledger", action, "north wing", "--ledger", tmp_path / "accounts.db")
    assert "if it is a client: --client 'north wing'" in said
    assert f"fedspend ledger {action} --help" in said


def test_an_abbreviated_flag_is_named_in_full(refused):
    assert refused(*PLAN, "--eps", 3).endswith("did you mean '--epsilon'?")
    assert refused(*PLAN, "--roudns", 3).endswith("did you mean '--rounds'?")


def test_a_budgets_file_with_semicolons_is_read(run, tmp_path):
    path = tmp_path / "budgets.csv"
    path.write_text("client;epsilon\nanna;1,5\nbert;2\n")
    done = run(*PLAN, "--budgets", path, "--json")
    assert done.code == 0, done.err
    assert "1.5" in done.out


def test_a_spreadsheet_as_budgets(refused, tmp_path):
    path = tmp_path / "budgets.xlsx"
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("xl/workbook.xml", "<workbook/>")
    assert "save it as CSV" in refused(*PLAN, "--budgets", path)


@pytest.mark.parametrize("rounds", [10**6 + 1, 10**9, 10**30])
def test_too_many_rounds(refused, config, tmp_path, rounds):
    plain = ("plan", "--rate", 1, "--delta", "1e-5", "--epsilon", 3, "--clients", 3)
    assert "rounds" in refused(*plain, "--rounds", rounds)
    assert "rounds" in refused(
        "train", config, "-o", tmp_path / "run", "--set", f"train.rounds={rounds}"
    )


def test_weights_of_another_length(refused):
    said = refused(
        *(*PLAN, "--epsilon", 3, "--clients", 3, "--policy", "weights", "--weights", "1,2")
    )
    assert said == "fedspend: weights must be one number per round: got 2 for 3 rounds"


@pytest.mark.parametrize("where", ["/", "FOLDER", "FOLDER/nowhere/ledger.db", "FOLDER/tiny.toml/x"])
def test_a_ledger_that_cannot_be_there_leaves_nothing_behind(refused, config, tmp_path, where):
    where = where.replace("FOLDER", str(tmp_path))
    before = sorted(tmp_path.rglob("*"))
    refused("train", config, "-o", tmp_path / "run", "--ledger", where)
    refused("ledger", "init", "--ledger", where)
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("name", ["run.json", "metrics.jsonl", "model.safetensors", "plan.json"])
def test_a_file_without_rights_is_not_called_damaged(run, config, tmp_path, monkeypatch, name):
    """Tests may run as root, whom no rights stop: here the system says no."""
    folder = tmp_path / "run"
    assert run("train", config, "-o", folder, "--quiet").code == 0
    opened, whole = open, os.open

    def deny(path, *rest, **named):
        if isinstance(path, str | Path) and Path(path) == folder / name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return opened(path, *rest, **named)

    def deny_low(path, *rest, **named):
        if isinstance(path, str | Path) and Path(path) == folder / name:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return whole(path, *rest, **named)

    asked = ("predict", folder, config) if name == "model.safetensors" else ("report", folder)
    with monkeypatch.context() as patched:
        patched.setattr("io.open", deny)
        patched.setattr("builtins.open", deny)
        patched.setattr("os.open", deny_low)
        outcome = run(*asked)
    assert outcome.code == 2
    assert outcome.err.count("\n") == 1
    assert "Permission denied" in outcome.err
    assert "damaged" not in outcome.err


WITHOUT = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "sklearn", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
import importlib.util
found = importlib.util.find_spec
importlib.util.find_spec = lambda name, *more: None if name == "torch" else found(name, *more)
sys.meta_path.insert(0, Block())
from fedspend.cli.main import main
for argv in COMMANDS:
    print(main(argv), flush=True)
import fedspend
try:
    fedspend.train
except fedspend.errors.InvalidInput as error:
    print(isinstance(error, ImportError), "fedspend[train]" in str(error))
"""


@pytest.mark.full
def test_a_plain_install_names_the_extra(config, tmp_path):
    """One process for all commands: what they need is not there."""
    commands = [
        ["train", str(config), "-o", str(tmp_path / "run")],
        ["compare", str(config), "--methods", "fedavg,dp-fedavg", "--quiet"],
        ["predict", str(tmp_path), str(config)],
        ["audit", str(config)],
    ]
    done = subprocess.run(
        [sys.executable, "-c", WITHOUT.replace("COMMANDS", repr(commands))],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split("\n")[:-1] == ["2"] * 4 + ["True True"], done.stderr
    lines = done.stderr.splitlines()
    assert len(lines) == 4
    assert all("pip install 'fedspend[train]'" in line for line in lines)
    assert not (tmp_path / "run").exists()


@pytest.fixture
def book(tmp_path):
    """A ledger with two open runs."""
    import fedspend

    path = tmp_path / "ledger.db"
    plan = fedspend.plan(epsilons=[3.0, 3.0], rounds=2, rate=1.0, delta=1e-3, clients=["a", "b"])
    with Ledger.open_or_create(str(path), simulation=True) as ledger:
        ledger.register(["a", "b"], [30.0, 30.0], delta=1e-3)
        for run in ("c0ffee123456", "c0ffab123456"):
            ledger.admit(run, plan.proposal(), simulation=True)
    return path


def test_close_run_takes_the_beginning_of_an_id_if_it_is_the_only_one(run, refused, book):
    asked = ("--reason", "over", "--ledger", book)
    said = refused("ledger", "close-run", "c0ff", *asked)
    assert "2 runs begin with 'c0ff'" in said
    assert "c0ffee123456" in said
    refused("ledger", "close-run", "", *asked)
    refused("ledger", "close-run", "beef", *asked)
    done = run("ledger", "close-run", "c0ffe", *asked)
    assert done.code == 0
    assert "run c0ffee123456 is closed" in done.out
    assert "c0ffee123456" in run("ledger", "show", "--run", "c0ffe", "--ledger", book).out


@pytest.mark.full(only=["60"])
@pytest.mark.parametrize("columns", [80, 60])
def test_a_narrow_window_cuts_no_id(run, book, monkeypatch, columns):
    for asked in (("show",), ("history",)):
        monkeypatch.setenv("COLUMNS", str(columns))
        done = run("ledger", *asked, "--ledger", book)
        assert "c0ffee123456" in done.out
        assert "…" not in done.out


# --- what a newcomer types ---


@pytest.mark.parametrize(
    ("cell", "why"),
    [
        ('"1,000"', "must be a positive number, got '1,000'; write 1000 or 1.000, whichever"),
        ("1'000", 'got "1\'000"; write 1000'),
        ("1_000.5", "got '1_000.5'; write 1000.5"),
        ("nan", "got 'nan'"),
        ("inf", "got 'inf'"),
        ("0", "got '0'"),
        ("-1", "got '-1'"),
    ],
)
def test_budgets_that_are_no_positive_numbers(refused, tmp_path, cell, why):
    budgets = tmp_path / "budgets.csv"
    budgets.write_text(f"client,epsilon\na,2\nb,{cell}\n")
    terms = ("--delta", "1e-3", "--rounds", "2", "--rate", "0.5")
    line = refused("plan", "--budgets", budgets, *terms)
    assert "budgets.csv:3: epsilon" in line
    assert why in line


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            '[data]\nname = "csv"\nlabels = ["no"]\n',
            "labels in [data] must be a list of at least 2",
        ),
        ('[data]\nname = "cvs"\npath = "x"\n', ":2: unknown data set 'cvs'; did you mean 'csv'?"),
        ("rounds = 3\n", ":1: unknown section 'rounds'; it is a key of [train]"),
        (
            "[privacy]\nmomentum = 3\n",
            ":2: unknown key 'momentum' in [privacy]; it is a key of [train",
        ),
        ("[privcy]\n", ":1: unknown section 'privcy'; did you mean 'privacy'?"),
        ("[train]\nround = 3\n", ":2: unknown key 'round' in [train]; did you mean 'rounds'?"),
        ("[train]\nseed = 1.5\n", "seed in [train] must be a whole number of at least 0, got 1.5"),
    ],
)
def test_configs_that_are_misspelt(refused, tmp_path, text, why):
    config = tmp_path / "config.toml"
    config.write_text(text)
    terms = ("--epsilon", "2:5", "--delta", "1e-3", "--rounds", "2", "--rate", "0.5")
    assert f"config.toml{why}" in (line := refused("plan", config, *terms)) or why in line


def test_a_config_that_is_a_directory(refused, tmp_path):
    for command in (("plan",), ("train", "-o", tmp_path / "run")):
        line = refused(*command, tmp_path)
        assert line.endswith(f"{tmp_path} is a directory; name a config file in it, NAME.toml")


def test_flags_of_other_commands_and_kinds(refused):
    line = refused("train", "examples/quickstart.toml", "--epsilon", "3")
    assert "fedspend train has no --epsilon, which is for plan; see its --help" in line
    line = refused("compare", "examples/quickstart.toml", "--seeds", "1.5")
    assert "--seeds: must be a whole number, got '1.5'" in line
    line = refused("plan", "--epsilon", "2:3", "--delta", "small")
    assert "--delta: must be a number, got 'small'" in line
    assert "epsilon must be a finite number, got 'abc'" in refused("plan", "--epsilon", "abc")


def test_a_budget_of_next_to_nothing_is_planned_without_a_word_of_numpy(recwarn):
    from fedspend.accounting.calibration import first_guess

    guess = first_guess(np.array([1e-300, 2.0]), 1e-3, 0.5, 2)
    assert np.isfinite(guess).all()
    assert guess[0] > guess[1]
    assert not list(recwarn)
