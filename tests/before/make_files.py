"""Run with version 0.1.0; never again: `PYTHONPATH=tests python -m before.make_files`.

Writes configs, plans, ledgers and run directories into `files/`, beside the rows that
`make_vectors` wrote, and `expected.json`: what the ledgers said.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shutil
import tempfile
from pathlib import Path
from unittest import mock

import torch
from before.old_files import FILES, LEDGERS, PLACEHOLDER, PLANS

import fedspend
from fedspend.cli.main import main as command

SMALL = """[data]
name = "synthetic"
examples = 120
features = 5
classes = 3
clients = 6
partition = "iid"

[model]
name = "logistic"

[engine]
name = "reference"

[train]
rounds = 5
local_steps = 3
batch_size = 8
lr = 0.3
seed = 4
"""
PEOPLE = """[data]
name = "csv"
path = "people.csv"
classes = 2
partition = "natural"

[model]
name = "logistic"

[engine]
name = "reference"
"""
RECORDS = """[data]
name = "csv"
path = "patients.csv"
classes = 2
budget = "epsilon"
partition = "natural"

[model]
name = "logistic"

[train]
rounds = 4
local_steps = 5
lr = 0.4
seed = 6
"""
FIVE = "\n[train]\nrounds = 5\nlocal_steps = 3\nbatch_size = 8\nlr = 0.3\nseed = 4\n"
GROUPS = (
    "groups = [{epsilon = 4, share = 1}, {epsilon = 12, share = 2}]\ndelta = 1e-3\nrate = "
    "0.8\nclip = 0.5\n"
)

CONFIGS = {
    "simulated": SMALL
    + "tail_average = 2\nserver_momentum = 0.5\n"
    + '\n[method]\nname = "dp-fedavg"\n'
    + "\n[privacy]\nepsilon = 6\ndelta = 1e-3\nrate = 0.8\nclip = 0.5\n",
    "adaptive": SMALL
    + '\n[method]\nname = "adaptive-clip"\n'
    + f'\n[privacy]\n{GROUPS}saving_rate = 0.5\npolicy = "spend-as-you-go"\n',
    "votes": SMALL.replace('partition = "iid"', 'partition = "iid"\npublic_share = 0.3')
    + '\n[method]\nname = "ae-dpfl"\n'
    + f"\n[privacy]\n{GROUPS.replace('4', '20').replace('12', '40')}\n[votes]\nqueries = 4\n",
    "plain": SMALL + '\n[method]\nname = "fedavg"\n\n[privacy]\nrate = 0.8\n',
    "real": PEOPLE
    + FIVE
    + '\n[method]\nname = "idp-fedavg"\n'
    + '\n[privacy]\nbudgets = "budgets.csv"\ndelta = 1e-3\nrate = 0.7\nrandomness = "os"\n',
    "named": PEOPLE
    + FIVE
    + '\n[method]\nname = "idp-fedavg"\n'
    + '\n[privacy]\nbudgets = "spending.csv"\ndelta = 1e-3\nrate = 0.7\nrandomness = "os"\n'
    + '\n[ledger]\nexhausted = "leave-out"\n',
    "rest": PEOPLE.replace("people.csv", "people-left.csv")
    + FIVE
    + '\n[method]\nname = "idp-fedavg"\n'
    + '\n[privacy]\nbudgets = "spending-left.csv"\ndelta = 1e-3\nrate = 0.7\nrandomness = "os"\n'
    + '\n[ledger]\nspend = "remaining"\n',
    "patients": RECORDS
    + '\n[method]\nname = "rpdp"\n'
    + '\n[privacy]\ndelta = 1e-3\nnoise_multiplier = 8\nclip = 0.7\nrandomness = "seeded"\n',
    "by-norm": RECORDS
    + '\n[method]\nname = "filter"\ncharge = "norm"\n'
    + "\n[privacy]\ndelta = 1e-3\nnoise_multiplier = 4\n"
    + 'clip = 1\nrandomness = "seeded"\n',
    "drawn": SMALL.replace("batch_size = 8\n", "")
    + '\n[method]\nname = "rpdp"\n'
    + '\n[privacy]\npreferences = "three-levels"\ndelta = 1e-3\nrate = 0.8\nnoise_multiplier = 8\n',
}


class Killed(BaseException):
    """Stands for a kill: nothing catches it."""


def say(*argv: str) -> str:
    """The answer of one command, which must succeed."""
    with contextlib.redirect_stdout(io.StringIO()) as out:
        assert command(list(argv)) == 0, argv
    return out.getvalue()


def stop_after_two(record: dict, _rounds: int) -> None:
    if record["round"] == 2:
        raise Killed


def cut(name: str, folder: str, **options: str) -> None:
    with contextlib.suppress(Killed):
        fedspend.train(f"{name}.toml", output=f"runs/{folder}", on_round=stop_after_two, **options)
        raise AssertionError("the run was not cut")


def killed(name: str, folder: str, at: str) -> None:
    """Killed in round 3: at `commit` with the release on disk, at `keep` without it."""
    from fedspend.runs.directory import RunDirectory

    real = getattr(RunDirectory, at)

    def dies(self: RunDirectory, round: int, *more: object) -> None:
        if round == 2:
            raise Killed
        real(self, round, *more)

    with mock.patch.object(RunDirectory, at, dies), contextlib.suppress(Killed):
        fedspend.train(f"{name}.toml", output=f"runs/{folder}")
        raise AssertionError("the run was not killed")


def make_runs() -> None:
    for name in ("simulated", "adaptive", "votes", "plain", "patients", "by-norm"):
        fedspend.train(f"{name}.toml", output=f"runs/{name}-finished")
        cut(name, f"{name}-stopped")
    cut("real", "real-stopped")
    for name in ("simulated", "real"):
        killed(name, f"{name}-killed-with-release", "commit")
        killed(name, f"{name}-killed-without-release", "keep")


def make_ledgers() -> None:
    place = {name: f"ledgers/{name}" for name in LEDGERS}
    fedspend.train(
        "simulated.toml",
        output="aside/one",
        ledger=place["simulated.db"],
        overrides=["privacy.epsilon=6"],
    )
    say(
        "ledger",
        "change",
        "3",
        "--epsilon",
        "15",
        "--reason",
        "more allowed",
        "--ledger",
        place["simulated.db"],
    )
    for name in map(str, (0, 1, 2, 4, 5)):
        say(
            "ledger",
            "change",
            name,
            "--epsilon",
            "10",
            "--reason",
            "more allowed",
            "--ledger",
            place["simulated.db"],
        )

    say("ledger", "init", "--ledger", place["named.db"])
    say("ledger", "register", "budgets.csv", "--delta", "1e-3", "--ledger", place["named.db"])
    say(
        "train",
        "named.toml",
        "-o",
        "aside/two",
        "--ledger",
        place["named.db"],
        "--set",
        "train.rounds=3",
        "--quiet",
    )
    say("ledger", "withdraw", "south", "--reason", "asked by letter", "--ledger", place["named.db"])
    cut("rest", "named-stopped", ledger=place["named.db"])

    fedspend.train(
        "patients.toml",
        output="aside/three",
        ledger=place["records.db"],
        overrides=["train.rounds=3"],
    )
    say(
        "ledger",
        "change",
        "5",
        "--epsilon",
        "7",
        "--reason",
        "more",
        "--unit",
        "record",
        "--ledger",
        place["records.db"],
    )
    say(
        "ledger",
        "withdraw",
        "7",
        "9",
        "--reason",
        "asked",
        "--unit",
        "record",
        "--ledger",
        place["records.db"],
    )


def what_ledgers_say() -> dict:
    found = {}
    for name, unit in LEDGERS.items():
        at = ("--ledger", f"ledgers/{name}", "--json")
        found[name] = {
            "balances": json.loads(say("ledger", "balance", *at, "--unit", unit)),
            "history": [
                line["kind"] for line in json.loads(say("ledger", "history", *at, "--unit", unit))
            ],
            "head": json.loads(say("ledger", "verify", *at))["head"],
        }
    return found


def anonymous(folder: Path) -> None:
    """Take the place where they were made out of the files, and see that it is nowhere else."""
    here = os.path.realpath(folder)
    for path in folder.rglob("run.json"):
        path.write_text(path.read_text().replace(here, PLACEHOLDER))
    for path in folder.rglob("*"):
        assert not path.name.endswith(("-wal", "-shm")), path
        assert path.is_dir() or here.encode() not in path.read_bytes(), path


def main() -> None:
    assert fedspend.__version__ == "0.1.0"
    assert not (FILES / "runs").exists(), "these files are what later versions are held to"
    torch.set_num_threads(1)
    from fedspend.ledger import Ledger

    admit = Ledger.admit

    def admit_anonymously(self: Ledger, *more: object, folder: str = "", **named: object) -> None:
        # An entry is hashed with the folder of its run, so it cannot be taken out later. Nothing
        # reads it but people.
        admit(self, *more, folder=f"runs/{Path(folder).name}", **named)  # type: ignore[arg-type]

    with (
        tempfile.TemporaryDirectory() as temporary,
        mock.patch.object(Ledger, "admit", admit_anonymously),
    ):
        work = Path(temporary) / "files"
        shutil.copytree(FILES, work)
        os.chdir(work)
        for name, text in CONFIGS.items():
            Path(f"{name}.toml").write_text(text)
        Path("spending.csv").write_text(
            "client,epsilon,group\neast,8,open\nnorth,0.4,strict\nwest,12,open\nsouth,0.8,strict\n"
        )
        Path("wishes.csv").write_text(
            "client,epsilon,saving_rate,transition,group\n"
            "north,1,0.2,4,strict\nsouth,2,0.3,4,strict\neast,20,0.5,3,open\nwest,30,0.5,2,open\n"
        )
        # a client that withdrew must be in neither, else nothing is planned
        for name in ("people", "spending"):
            lines = Path(f"{name}.csv").read_text().splitlines(keepends=True)
            Path(f"{name}-left.csv").write_text(
                "".join(line for line in lines if not line.startswith("south,"))
            )
        for name in ("plans", "ledgers", "runs", "aside"):
            Path(name).mkdir()
        make_runs()
        make_ledgers()
        for name, arguments in PLANS.items():
            say("plan", *arguments, "-o", f"plans/{name}", "--quiet")
        Path("expected.json").write_text(json.dumps(what_ledgers_say(), indent=1) + "\n")
        shutil.rmtree("aside")
        anonymous(work)
        os.chdir(FILES)
        shutil.copytree(work, FILES, dirs_exist_ok=True)


if __name__ == "__main__":
    main()
