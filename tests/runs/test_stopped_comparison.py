"""A comparison that is stopped ends at once, keeps what is done, and goes on to the same end."""

import json
import os
import shlex
import signal
import stat
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from lib.configs import changed, small, write_toml

import fedspend
from fedspend.cli.going_on import saying_how_to_go_on
from fedspend.cli.main import main
from fedspend.errors import InvalidInput, Refused
from fedspend.runs import comparison, kept
from fedspend.runs.stopping import Stopped

SHORT = small(privacy__saving_rate=None, train__rounds=2, train__tail_average=1)
# the second arm is far from finished when the first one is
LONG = ["--vary", "train.rounds=2,3000"]


@pytest.fixture
def config(tmp_path):
    return write_toml(tmp_path / "short.toml", SHORT)


def command(config, *more):
    return [
        *("compare", str(config), "--methods", "dp-fedavg", "--seeds", "2", "--json"),
        *("--set", "privacy.accountant=rdp", *LONG, *more),
    ]


def wait_for(condition, patience=300.0):
    until = time.monotonic() + patience
    while not condition():
        assert time.monotonic() < until, "it did not happen in time"
        time.sleep(0.02)


def lines_in(file):
    return file.read_text().count("\n") if file.exists() else 0


def members(session):
    """The processes of a session that have not ended."""
    found = []
    for place in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, of = place.read_text().rpartition(")")[2].split()[:4]
        except OSError:
            continue
        if int(of) == session and state != "Z":
            found.append(int(place.parent.name))
    return found


@pytest.mark.full
@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at processes in /proc")
@pytest.mark.parametrize(
    ("workers", "kind", "to_all"),
    [("2", signal.SIGINT, True), ("2", signal.SIGTERM, False), ("1", signal.SIGTERM, False)],
)
def test_it_stops_at_once_and_goes_on_to_the_same_bytes(
    config, tmp_path, finished, fork_server, workers, kind, to_all
):
    asked = command(config, "-o", "kept here", "--workers", workers)
    runs = tmp_path / "kept here" / "runs.jsonl"
    going = fork_server.start(*asked, folder=tmp_path)
    wait_for(lambda: lines_in(runs) == 2 or going.poll() is not None)
    assert going.poll() is None, going.err
    began = time.monotonic()
    (os.killpg if to_all else os.kill)(going.pid, kind)  # Ctrl-C reaches workers, too
    assert (going.wait(), going.out) == (130, "")
    assert time.monotonic() - began < 300
    wait_for(lambda: members(going.pid) == [], patience=120.0)
    again = shlex.join(["fedspend", *asked])
    assert going.err == (
        f"fedspend: stopped; 2 of 4 runs are kept in kept here; go on with: {again}\n"
    )
    assert lines_in(runs) == 2
    assert not (runs.parent / "comparison.json").exists()
    for file in runs.parent.iterdir():
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    first = runs.read_text()

    resumed = finished(asked)
    assert runs.read_text().startswith(first)
    assert lines_in(runs) == 4
    assert resumed == finished([*asked, "-o", "whole"])
    for name in ("comparison.json", "comparison.csv", "comparison.md", "comparison.tex"):
        kept_file, whole_file = (tmp_path / place / name for place in ("kept here", "whole"))
        assert kept_file.read_bytes() == whole_file.read_bytes()


@pytest.fixture
def finished(monkeypatch, tmp_path, capsys):
    """Runs a command to its end, with long runs cut off after four rounds."""
    real = comparison.curves_of_run

    def cut_off(config, seed):
        train = {**config.values["train"], "rounds": min(config.train.rounds, 4)}
        return real(replace(config, values={**config.values, "train": train}), seed)

    def run(arguments):
        monkeypatch.setattr(comparison, "curves_of_run", cut_off)
        monkeypatch.chdir(tmp_path)
        assert main([*arguments, "--workers", "1"]) == 0
        return capsys.readouterr().out

    return run


def test_without_a_folder_it_says_that_nothing_is_kept():
    asked = SimpleNamespace(output=None, typed=["compare", "short.toml"])

    def stop():
        with saying_how_to_go_on(asked, None) as progress:
            progress(2, 4)
            raise KeyboardInterrupt

    with pytest.raises(Stopped) as stopped:
        stop()
    assert str(stopped.value) == (
        "stopped; the 2 of 4 runs that were finished are lost, because no folder was "
        "named; with -o DIR they are kept, and the same command goes on"
    )


@pytest.fixture
def numbered(monkeypatch):
    """Runs that take no time. Lists what was run."""
    ran = []

    def curves(config, seed):
        ran.append((config.method.name, config.train.lr, seed))
        return {"accuracy": [None, config.train.lr + seed / 100], "loss": [2.0, 1 / 3]}

    monkeypatch.setattr(comparison, "curves_of_run", curves)
    return ran


def compared(config, folder, methods=("dp-fedavg",), **more):
    return fedspend.compare(
        config, list(methods), **{"seeds": 2, "workers": 1, "output": folder} | more
    )


@pytest.mark.full
def test_arms_values_and_seeds_may_be_added(config, numbered, tmp_path):
    folder = tmp_path / "kept"
    compared(config, folder, vary=["train.lr=0.1,0.4"])
    del numbered[:]
    found = compared(config, folder, ("dp-fedavg", "idp-fedavg"), seeds=3, vary=["train.lr=0.1"])
    assert numbered == [
        ("dp-fedavg", 0.1, 7),
        *(("idp-fedavg", 0.1, seed) for seed in (5, 6, 7)),
    ]
    assert found.final[:, 0].tolist() == [0.1 + 5 / 100] * 2
    del numbered[:]
    again = compared(config, folder, ("dp-fedavg", "idp-fedavg"), seeds=3, vary=["train.lr=0.1"])
    assert numbered == []
    assert again.rows() == found.rows()
    assert json.dumps(again.curves()) == json.dumps(found.curves())


def test_a_changed_config_is_refused_and_nothing_is_lost(config, numbered, tmp_path):
    folder = tmp_path / "kept"
    compared(config, folder)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(
        InvalidInput,
        match=r"another comparison: train\.lr of method\.name=dp-fedavg was 0\.3 and is now 0\.2",
    ):
        compared(config, folder, overrides=["train.lr=0.2"])
    assert len(numbered) == 2
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_a_policy_for_all_is_not_the_policy_of_the_files_method(numbered, tmp_path):
    """The same values, but `overrides` gives the file's policy to the other method, too."""
    own = changed(SHORT, privacy__policy="uniform", method__name="idp-fedavg")
    compared(own, tmp_path / "kept", ("idp-fedavg", "adaptive-clip"))
    with pytest.raises(InvalidInput, match=r"privacy\.policy of method\.name=adaptive-clip was"):
        compared(
            own,
            tmp_path / "kept",
            ("idp-fedavg", "adaptive-clip"),
            overrides=["privacy.policy=uniform"],
        )
    assert len(numbered) == 4


@pytest.mark.full(but=["fedspend"])
@pytest.mark.parametrize("changed", ["code", "fedspend", "torch"])
@pytest.mark.usefixtures("numbered")
def test_runs_of_other_code_are_not_used_again(config, tmp_path, monkeypatch, changed):
    compared(config, tmp_path / "kept")
    real = kept.code_and_machine
    monkeypatch.setattr(kept, "code_and_machine", lambda: {**real(), changed: "newer"})
    with pytest.raises(InvalidInput, match=f"{changed} was .* and is now 'newer'; choose another"):
        compared(config, tmp_path / "kept")


@pytest.mark.full
@pytest.mark.usefixtures("numbered")
def test_runs_of_other_data_are_not_used_again(tmp_path):
    rows = [f"{n % 7},{n % 3},{n % 2},{'test' if n % 5 == 0 else 'train'}" for n in range(60)]
    table = tmp_path / "own.csv"
    table.write_text("\n".join(["x,y,label,split", *rows]) + "\n")
    data = {"name": "csv", "path": str(table), "classes": 2, "clients": 6, "label": "label"}
    data |= {"split": "split", "partition": "iid"}
    own = changed(SHORT, data=data, privacy__randomness="seeded")
    compared(own, tmp_path / "kept")
    compared(own, tmp_path / "kept")
    table.write_text(table.read_text().replace("1,1,1", "2,1,1", 1))
    with pytest.raises(InvalidInput, match=r"holds runs made before .*own\.csv was changed"):
        compared(own, tmp_path / "kept")


@pytest.mark.full
@pytest.mark.usefixtures("numbered")
def test_folders_of_others_are_refused(config, tmp_path):
    fedspend.tune(SHORT, ["train.lr=0.1"], seeds=1, output=tmp_path / "tune", workers=1)
    with pytest.raises(InvalidInput, match="holds a tune and not a comparison"):
        compared(config, tmp_path / "tune")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="not the folder of a comparison"):
        compared(config, tmp_path / "other")
    compared(config, tmp_path / "kept")
    with (tmp_path / "kept" / "runs.jsonl").open("ab") as file:
        file.write(b'{"setting": "method.name=dp-fedavg", "seed": 5, "accuracy": "good"}\n')
    with pytest.raises(InvalidInput, match=r"runs\.jsonl:3: not the record of a run"):
        compared(config, tmp_path / "kept")


@pytest.mark.usefixtures("numbered")
def test_one_process_at_a_time_works_in_a_folder(config, tmp_path):
    from fedspend.basics.files import one_at_a_time

    compared(config, tmp_path / "kept")
    with one_at_a_time(tmp_path / "kept"), pytest.raises(Refused, match="another process"):
        compared(config, tmp_path / "kept")


def test_real_runs_are_refused_before_a_folder_is_made(config, numbered, tmp_path):
    with pytest.raises(InvalidInput, match="simulations only"):
        compared(config, tmp_path / "kept", overrides=["privacy.randomness=os"])
    assert numbered == []
    assert not (tmp_path / "kept").exists()
