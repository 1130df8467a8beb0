"""`fedspend train`, `compare` and `data` as a user meets them."""

import contextlib
import json
import os
import shlex
import subprocess
import sys

import pytest
from lib.configs import small, write_toml

from fedspend.cli.main import main

GROUPS = [
    {"epsilon": 5, "share": 2, "saving_rate": 0.4},
    {"epsilon": 15, "share": 3, "saving_rate": 0.6},
]


@pytest.fixture
def config(tmp_path):
    settings = small(
        data__partition=None,
        data__alpha=None,
        privacy__groups=GROUPS,
        privacy__saving_rate=None,
        train__rounds=3,
        train__seed=None,
    )
    return str(write_toml(tmp_path / "tiny.toml", settings))


@pytest.mark.usefixtures("quick_verify")
def test_train_leaves_a_whole_run(config, tmp_path, capsys):
    folder = tmp_path / "run"
    assert main(["train", config, "-o", str(folder), "--json"]) == 0
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["round"] for line in lines[:-1]] == [1, 2, 3]
    assert lines[-1]["folder"] == str(folder)
    stored = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert stored == lines[:-1]
    assert set(stored[-1]["epsilon"]) == {"5", "15"}
    for name in (
        "run.json",
        "plan.json",
        "certificate.json",
        "model.safetensors",
        "report.html",
        "checkpoint.safetensors",
    ):
        assert (folder / name).stat().st_size > 0
    assert json.loads((folder / "certificate.json").read_text())["randomness"] == "seeded"


@pytest.mark.usefixtures("quick_verify")
def test_train_in_words(config, tmp_path, capsys):
    assert main(["train", config, "-o", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert "a simulation that protects nobody" in said.out
    assert "round 3/3" in said.err
    assert main(["train", config, "-o", str(tmp_path / "quiet"), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")


@pytest.mark.usefixtures("quick_verify")
def test_fedavg_needs_no_plan(config, tmp_path):
    folder = tmp_path / "run"
    assert main(["train", config, "-o", str(folder), "--quiet", "--set", "method.name=fedavg"]) == 0
    assert not (folder / "plan.json").exists()
    assert "SIMULATION" in (folder / "report.html").read_text().upper()


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["none.toml"], "none.toml"),
        (["CONFIG", "--set", "train.rounds=0"], "rounds"),
        (["CONFIG", "--set", "data.name=mnist"], "fedspend data get mnist"),
        (["CONFIG", "--set", "method.name=dp"], "dp-fedavg"),
        (
            ["CONFIG", "--set", "data.label=x", "--set", "data.name=csv", "--project", "own"],
            "path",
        ),
        (["CONFIG", "--sett", "a=b"], "--set"),
        ([], "CONFIG.toml"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    config, tmp_path, capsys, monkeypatch, arguments, names
):
    monkeypatch.delenv("FEDSPEND_DATA", raising=False)
    monkeypatch.setenv("FEDSPEND_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "run"
    argv = [
        "train",
        *(config if item == "CONFIG" else item for item in arguments),
        "-o",
        str(folder),
    ]
    assert main(argv) == 2
    said = capsys.readouterr()
    assert said.out == ""
    assert len(said.err.splitlines()) == 1
    assert names in said.err
    assert not folder.exists()


@pytest.mark.usefixtures("quick_verify")
def test_another_run_in_the_folder_is_left_alone(config, tmp_path, capsys):
    folder = str(tmp_path / "run")
    assert main(["train", config, "-o", folder, "--quiet"]) == 0
    assert main(["train", config, "-o", folder, "--quiet"]) == 2
    assert "--resume" in capsys.readouterr().err
    assert (
        main(["train", config, "-o", folder, "--quiet", "--resume", "--set", "train.seed=9"]) == 2
    )
    said = capsys.readouterr().err
    assert "train.seed was 0 and is now 9; add --set train.seed=0 to go on with it, or" in said


@pytest.mark.usefixtures("quick_verify")
def test_the_command_that_goes_on_has_all_that_was_given(config, tmp_path, capsys, monkeypatch):
    @contextlib.contextmanager
    def at_once():
        yield lambda: True

    folder, own = tmp_path / "a run", tmp_path / "own.py"
    own.write_text("")
    given = [
        "--ledger",
        str(tmp_path / "my accounts.db"),
        "--project",
        "p",
        "--set",
        "train.lr=0.2",
    ]
    monkeypatch.setattr("fedspend.cli.train.stop_after_round", at_once)
    assert main(["--load", str(own), "train", config, "-o", str(folder), *given, "--quiet"]) == 130
    said = capsys.readouterr().err
    command = shlex.split(said.partition("continue with: ")[2])
    assert command[:3] == ["fedspend", "--load", str(own)]
    assert all(word in command for word in (*given, "--quiet", "--resume"))
    monkeypatch.undo()
    assert main(command[1:]) == 0


@pytest.mark.full
@pytest.mark.parametrize("more", [[], ["--json"]], ids=["lines", "json"])
def test_a_reader_who_goes_away_does_not_end_the_run(config, tmp_path, more):
    folder = tmp_path / "run"
    command = [sys.executable, "-m", "fedspend", "train", config, "-o", str(folder), *more]
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(command, stdout=writer, stderr=writer, check=False)
    os.close(writer)
    assert done.returncode == 0
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 3
    assert (folder / "report.html").exists()


CTRL_C = """
import os, signal, sys
from fedspend.cli.main import main
from fedspend.runs.directory import RunDirectory
signal.signal(signal.SIGINT, signal.default_int_handler)  # whoever started the tests
keep = RunDirectory.keep
def pressed(self, round, kept):
    if round == 1:
        os.kill(os.getpid(), signal.SIGINT)
    keep(self, round, kept)
RunDirectory.keep = pressed
sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.full
def test_ctrl_c_stops_after_the_round_and_resume_finishes(config, tmp_path):
    """It comes in the second round: from inside, so that it comes then on every machine."""
    folder = tmp_path / "run"
    command = ["train", config, "-o", str(folder), "--set", "train.rounds=40"]
    done = subprocess.run(
        [sys.executable, "-c", CTRL_C, *command],
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        timeout=600,
    )
    assert done.returncode == 130, done.stderr
    assert "--resume" in done.stderr.splitlines()[-1]
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 2
    assert (folder / "report.html").exists()
    assert main([*command, "--resume", "--quiet"]) == 0
    assert len((folder / "metrics.jsonl").read_text().splitlines()) == 40


@pytest.mark.full
def test_compare_shows_paired_differences(config, tmp_path, capsys):
    folder = tmp_path / "compare"
    argv = [
        "compare",
        config,
        "--methods",
        "fedavg,idp-fedavg,time-adaptive",
        "--seeds",
        "2",
        "--workers",
        "1",
        "-o",
        str(folder),
        "--json",
    ]
    assert main(argv) == 0
    result = json.loads(capsys.readouterr().out)
    rows = {row["method"]: row for row in result["methods"]}
    assert result["seeds"] == [0, 1]
    for row in rows.values():
        assert row["mean"] == pytest.approx(sum(row["accuracy_by_seed"]) / 2)
        paired = [
            a - b
            for a, b in zip(
                row["accuracy_by_seed"], rows["fedavg"]["accuracy_by_seed"], strict=True
            )
        ]
        assert row["difference"] == pytest.approx(sum(paired) / 2)
    assert (folder / "accuracy.png").read_bytes()[:4] == b"\x89PNG"
    assert (folder / "comparison.csv").read_text().startswith("method,mean")


@pytest.mark.full
def test_compare_varies_settings(config, tmp_path, capsys):
    folder = tmp_path / "compare"
    argv = [
        "compare",
        config,
        "--methods",
        "dp-fedavg",
        "--vary",
        "train.rounds=2,3",
        "--vary",
        "shape.lus=0,0.5",
        "--seeds",
        "2",
    ]
    assert main([*argv, "-o", str(folder), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["methods"]
    assert [row["method"] for row in rows] == [
        f"train.rounds={t}, shape.lus={c}" for t in (2, 3) for c in ("0", "0.5")
    ]
    stored = json.loads((folder / "comparison.json").read_text())
    assert [[len(curve) for curve in method] for method in stored["accuracy"]] == [
        [2, 2],
        [2, 2],
        [3, 3],
        [3, 3],
    ]
    for row, curves in zip(rows, stored["accuracy"], strict=True):
        assert row["accuracy_by_seed"] == [curve[-1] for curve in curves]
    alone = [
        "compare",
        config,
        "--methods",
        "dp-fedavg",
        "--set",
        "train.rounds=3",
        "--set",
        "shape.lus=0.5",
        "--seeds",
        "2",
        "--workers",
        "1",
    ]
    assert main([*alone, "--json"]) == 0
    assert (
        json.loads(capsys.readouterr().out)["methods"][0]["accuracy_by_seed"]
        == rows[3]["accuracy_by_seed"]
    )


@pytest.mark.full
def test_compare_compares_policies(config, capsys):
    """Arms with different policies are different runs, not one run under several names."""
    argv = ["compare", config, "--methods", "idp-fedavg,time-adaptive", "--seeds", "1"]
    argv += ["--workers", "1"]
    policies = "privacy.policy=uniform,spend-as-you-go,geometric"
    assert main([*argv, "--vary", policies, "--set", "train.rounds=12", "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in result["methods"]] == [
        "idp-fedavg, privacy.policy=uniform",
        "time-adaptive, privacy.policy=spend-as-you-go",
        "time-adaptive, privacy.policy=geometric",
    ]
    assert result["equal"] == []


def test_arms_that_came_out_equal_are_named(capsys):
    import numpy as np

    from fedspend.cli.compare import show
    from fedspend.runs.comparison import Comparison

    curves = np.array([[[0.1, 0.2]], [[0.1, 0.3]], [[0.1, 0.2]]])
    result = Comparison(("a", "b", "c"), (1,), curves)
    assert result.twins() == [("c", "a")]
    show(result, "method")
    said = capsys.readouterr().out
    assert "c is equal to a in every round: here the difference has no effect on accuracy" in said


def test_compare_names_the_method_whose_settings_vary(config, capsys):
    assert (
        main(
            [
                "compare",
                config,
                "--methods",
                "dp-fedavg",
                "--vary",
                "train.rounds=2,3",
                "--seeds",
                "1",
                "--workers",
                "1",
                "--quiet",
            ]
        )
        == 0
    )
    assert capsys.readouterr().out.startswith("dp-fedavg with")


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (["--methods", "fedavg", "--vary", "shape.lus"], "section.key=value"),
        (["--methods", "fedavg", "--vary", "shape.lus=0,,1"], "distinct values"),
        (["--methods", "fedavg", "--vary", "shape.lus=0,0"], "distinct values"),
        (
            ["--methods", "fedavg", "--vary", "shape.lus=0,1"],
            "--vary shape.lus=1: lus in [shape] must be",
        ),
        (["--methods", "fedavg", "--vary", "shape.luss=0.1"], "--vary shape.luss=0.1: unknown key"),
        (
            ["--methods", "fedavg", "--vary", "shape.lus=0,0.1", "--vary", "shape.lus=0.2"],
            "--vary shape.lus is given twice",
        ),
        (["--methods", "fedavg", "--vary", "train.seed=1,2"], "--seeds"),
        (["--methods", "fedavg,fedavg"], "listed twice"),
        (["--methods", "sgd"], "sgd"),
        (["--methods", "fedavg", "--seeds", "0"], "--seeds must be at least 1, got 0"),
        (["--methods", "fedavg", "--workers", "0"], "--workers must be at least 1, got 0"),
        (["--methods", "fedavg", "--set", "privacy.randomness=os"], "simulations only"),
    ],
)
def test_compare_refuses(config, capsys, arguments, names):
    assert main(["compare", config, *arguments]) == 2
    said = capsys.readouterr().err
    assert names in said
    assert len(said.splitlines()) == 1


def test_compare_refuses_an_arm_without_a_plan_before_anything_runs(config, tmp_path, capsys):
    argv = ["compare", config, "--methods", "time-adaptive", "--workers", "1"]
    vary = ["--vary", "privacy.policy=geometric,weights", "-o", str(tmp_path / "kept")]
    assert main([*argv, *vary]) == 2
    said = capsys.readouterr().err
    assert said.startswith("fedspend: privacy.policy=weights: ")
    assert len(said.splitlines()) == 1
    assert not (tmp_path / "kept").exists()


def test_compare_makes_no_real_run_on_your_own_data(config, tmp_path, capsys):
    """Nobody has to ask for real randomness there: it is the default. Its releases would be on no
    account.
    """
    lines = [f"{n % 7},{n % 3},{n % 2},{'test' if n % 5 == 0 else 'train'}" for n in range(60)]
    (tmp_path / "own.csv").write_text("\n".join(["x,y,label,split", *lines]) + "\n")
    own = [
        "--set",
        "data.name=csv",
        "--set",
        f"data.path={tmp_path / 'own.csv'}",
        "--set",
        "data.classes=2",
    ]
    argv = [
        "compare",
        config,
        *own,
        "--methods",
        "dp-fedavg",
        "--seeds",
        "1",
        "--workers",
        "1",
        "--quiet",
    ]
    assert main(argv) == 2
    said = capsys.readouterr().err
    assert "no ledger is charged for" in said
    assert len(said.splitlines()) == 1
    assert main([*argv, "--set", "privacy.randomness=seeded"]) == 0


def test_data_list_and_get(capsys, tmp_path, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)
    monkeypatch.setenv("FEDSPEND_CACHE", str(tmp_path))
    monkeypatch.delenv("FEDSPEND_DATA", raising=False)
    assert main(["data", "list", "--json"]) == 0
    listed = {line["name"]: line for line in json.loads(capsys.readouterr().out)}
    assert listed["digits"]["ready"]
    assert listed["mnist"]["hint"] == "fedspend data get mnist"
    assert main(["data", "list"]) == 0
    assert "not found: fedspend data get cifar10" in capsys.readouterr().out
    assert main(["data", "get"]) == 2
    assert main(["data", "get", "mnust"]) == 2
    assert "did you mean 'mnist'" in capsys.readouterr().err
    assert main(["data", "get", "mnist", "--url", "http://127.0.0.1:9/"]) == 3
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.usefixtures("quick_verify")
def test_a_full_disk_loses_nothing(config, tmp_path, capsys, monkeypatch):
    folder = tmp_path / "run"
    real, calls = os.fsync, 0

    def full(handle):
        nonlocal calls
        calls += 1
        if calls == 14:
            raise OSError(28, "No space left on device")
        real(handle)

    monkeypatch.setattr(os, "fsync", full)
    assert main(["train", config, "-o", str(folder), "--quiet"]) == 3
    assert "No space left on device" in capsys.readouterr().err
    monkeypatch.setattr(os, "fsync", real)
    assert main(["train", config, "-o", str(folder), "--quiet", "--resume"]) == 0
    assert main(["train", config, "-o", str(tmp_path / "whole"), "--quiet"]) == 0
    for name in ("metrics.jsonl", "model.safetensors"):
        assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not [path.name for path in folder.iterdir() if path.name.startswith(".")]
