"""Sweeps: every combination, resumed where it stopped, tidy at the end; never on private rows."""

import csv
import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from lib.configs import small, write_toml

import fedspend
from fedspend.cli.main import main
from fedspend.errors import InvalidInput
from fedspend.tuning import sweeping

TINY = small()
SHORT = small(train__rounds=2, train__tail_average=1)
LRS = {"train.lr": [0.1, 0.4]}


@pytest.fixture
def numbered(monkeypatch):
    """Runs that take no time. Lists what was run."""
    ran = []

    def numbers(config, seed):
        ran.append((config.train.lr, config.method.name, seed))
        return {"accuracy": config.train.lr + seed / 100, "loss": 1.0, "epsilon": 12.0, "rounds": 4}

    monkeypatch.setattr(sweeping, "final_numbers", numbers)
    return ran


def test_every_combination_and_seed_is_a_row(numbered):
    over = {"train.lr": [0.1, 0.4], "method.name": ["dp-fedavg", "idp-fedavg"]}
    plain = small(privacy__saving_rate=None)
    found = fedspend.sweep(plain, over, seeds=2, workers=1)
    assert len(found.rows()) == len(numbered) == 8
    frame = found.frame()
    assert set(frame["method.name"]) == {"dp-fedavg", "idp-fedavg"}
    row = frame[(frame["train.lr"] == 0.4) & (frame["seed"] == 6)].iloc[0]
    assert row["accuracy"] == pytest.approx(0.46)
    assert found.metrics == ("accuracy", "loss")


@pytest.mark.full
def test_a_real_run_of_one_setting_is_the_run_of_train():
    found = fedspend.sweep(TINY, {"train.lr": [0.3]}, workers=1)
    alone = fedspend.train(TINY)
    assert found.rows()[0]["accuracy"] == alone.accuracy
    assert found.rows()[0]["loss"] == alone.metrics[-1]["loss"]
    assert found.rows()[0]["epsilon"] == max(alone.metrics[-1]["epsilon"].values())


def test_it_goes_on_where_it_stopped_and_values_may_be_added(numbered, tmp_path):
    fedspend.sweep(TINY, LRS, output=tmp_path / "s", workers=1)
    with (tmp_path / "s" / "runs.jsonl").open("ab") as file:
        file.write(b'{"setting": "train.lr=0.1", "se')  # a kill in the middle of a line
    del numbered[:]
    grown = {"train.lr": [0.1, 0.4, 0.8]}
    found = fedspend.sweep(TINY, grown, seeds=2, output=tmp_path / "s", workers=1)
    assert sorted(one[::2] for one in numbered) == [(0.1, 6), (0.4, 6), (0.8, 5), (0.8, 6)]
    rows = list(csv.DictReader(io.StringIO((tmp_path / "s" / "sweep.csv").read_text())))
    assert len(rows) == len(found.rows()) == 6
    assert rows[0]["train.lr"] == "0.1"


def test_a_killed_sweep_keeps_what_was_finished(tmp_path, monkeypatch):
    def killed(config, _seed):
        if config.train.lr == 0.4:
            raise KeyboardInterrupt
        return {"accuracy": 0.5, "loss": 1.0, "epsilon": None, "rounds": 4}

    monkeypatch.setattr(sweeping, "final_numbers", killed)
    with pytest.raises(KeyboardInterrupt):
        fedspend.sweep(TINY, LRS, output=tmp_path / "s", workers=1)
    assert len((tmp_path / "s" / "runs.jsonl").read_text().splitlines()) == 1


@pytest.mark.usefixtures("numbered")
def test_another_sweep_is_not_mixed_in(tmp_path):
    fedspend.sweep(TINY, LRS, output=tmp_path / "s", workers=1)
    with pytest.raises(InvalidInput, match=r"another sweep: train\.rounds was 4 and is now 2"):
        fedspend.sweep(TINY, LRS, overrides=["train.rounds=2"], output=tmp_path / "s", workers=1)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "notes.txt").write_text("mine")
    with pytest.raises(InvalidInput, match="not the folder of a sweep"):
        fedspend.sweep(TINY, LRS, output=tmp_path / "other", workers=1)


@pytest.mark.usefixtures("numbered")
def test_few_seeds_are_marked_and_enough_are_not():
    few = fedspend.sweep(TINY, LRS, seeds=3, workers=1).table()
    assert "*" in few.rows[0][2]
    assert few.note.startswith("* an interval from two or three seeds")
    enough = fedspend.sweep(TINY, LRS, seeds=4, workers=1).table()
    assert "*" not in enough.rows[0][2]
    assert enough.note == ""
    one = fedspend.sweep(TINY, LRS, workers=1).table()
    assert one.rows[0][2] == "needs 2 seeds"


@pytest.mark.parametrize(
    ("over", "says"),
    [
        ({}, "nothing to choose among"),
        ({"train.lr": 0.1}, "must have a list of values"),
        ({"train.lr": "0.1"}, "must have a list of values"),
        ({"train.lr": [0.1, 0.1]}, "distinct values"),
        ({"train.lr": [0.1, -1]}, "over 'train.lr=-1': lr in"),
        ({"train.seed": [1, 2]}, "seeds for that"),
        ({"shape.blurr": [1]}, "did you mean 'blur'"),
        ({"privacy.policy": ["uniform", "nothing"]}, "privacy.policy"),
        ({"method.target_quantile": [0.3, 0.5]}, "has no effect"),
        ({"privacy.randomness": ["os"]}, "seeded simulations only"),
        (["train.lr=0.1,0.10"], "same value twice"),
        ("train.lr=1", "must be a list"),
    ],
)
def test_it_refuses_before_anything_runs(numbered, tmp_path, over, says):
    with pytest.raises(InvalidInput) as refused:
        fedspend.sweep(TINY, over, output=tmp_path / "s", workers=1)
    assert says in str(refused.value)
    assert numbered == []
    assert not (tmp_path / "s").exists()


@pytest.mark.usefixtures("numbered")
def test_the_command_prints_rows_and_tables(tmp_path, capsys):

    path = tmp_path / "config.toml"
    write_toml(path, TINY)
    told = ["sweep", str(path), "--over", "train.lr=0.1,0.4", "--workers", "1", "--quiet"]
    assert main([*told, "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == 2
    assert main([*told, "--table", "latex"]) == 0
    assert r"\begin{tabular}{lrrrr}" in capsys.readouterr().out
    assert main([*told, "-o", str(tmp_path / "s")]) == 0
    assert "2 settings, 1 seed each" in capsys.readouterr().out
    assert main(["sweep", str(path), "--over", "train.lrr=1"]) == 2
    assert "--over train.lrr=1: unknown key 'lrr'" in capsys.readouterr().err


@pytest.mark.full
def test_two_processes_find_what_one_finds_and_a_kill_loses_only_what_was_running(tmp_path):
    """Workers of their own, a kill of the process that started them, and then the rest."""
    over = {"train.lr": [0.1, 0.4], "privacy.clip": [0.5, 1.0]}
    folder, script = tmp_path / "s", tmp_path / "killed.py"
    script.write_text(
        textwrap.dedent(
            """
            import multiprocessing, os, signal, sys
            import fedspend
            from fedspend.runs.kept import Kept
            from lib.configs import small

            def add(self, *done, keep=Kept.add):
                keep(self, *done)
                print(*(child.pid for child in multiprocessing.active_children()), flush=True)
                os.kill(os.getpid(), signal.SIGKILL)

            if __name__ == "__main__":
                Kept.add = add
                short = small(train__rounds=2, train__tail_average=1)
                over = {"train.lr": [0.1, 0.4], "privacy.clip": [0.5, 1.0]}
                fedspend.sweep(short, over, output=sys.argv[1], workers=2, progress=False)
            """
        )
    )
    places = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
    done = subprocess.run(
        [sys.executable, str(script), str(folder)],
        env={**os.environ, "PYTHONPATH": places},
        stdout=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    assert done.returncode == -signal.SIGKILL
    workers = [int(pid) for pid in done.stdout.split()]
    assert len(workers) == 2
    assert ended(workers)
    kept = (folder / "runs.jsonl").read_text().splitlines()
    assert len(kept) == 1
    assert not (folder / "sweep.csv").exists()
    ran = []
    with pytest.MonkeyPatch.context() as patched:
        real = sweeping.final_numbers

        def counted(config, seed):
            ran.append((config.train.lr, config.privacy.clip))
            return real(config, seed)

        patched.setattr(sweeping, "final_numbers", counted)
        resumed = fedspend.sweep(SHORT, over, output=folder, workers=1, progress=False)
        assert len(ran) == 3
        whole = fedspend.sweep(SHORT, over, workers=1, progress=False)
    # one of the rows was found by a worker
    assert resumed.rows() == whole.rows()
    assert (folder / "sweep.csv").read_bytes().decode() == whole.csv()


def ended(pids, patience=120.0):
    """Whether these processes end by themselves, without their parent."""
    until = time.monotonic() + patience
    left = list(pids)
    while left and time.monotonic() < until:
        left = [pid for pid in left if alive(pid)]
        time.sleep(0.05)
    return not left


def alive(pid):
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"  # one that has ended and was not waited for
