"""What a round costs on a real deployment: ours beside Flower's own FedAvg.

    python benchmarks/speed/deployment.py                                   # half an hour
    python benchmarks/speed/deployment.py --models small --rounds 3 --blocks 1    # five minutes
    python benchmarks/speed/deployment.py --models --write docs/how-to/flower.md  # only the table

A SuperLink and three SuperNodes with TLS and node keys run on the loopback address, as `make
flower` starts them, and Flower starts a process for every message. Each model has its federation,
on which three apps take turns, in blocks of rounds, so that another load on the machine falls on
all alike:

- ours: a real run, with approved slices, the ledgers of both sides, discrete distributed noise;
- FedAvg (`fedavg_app`), with the same model, rows, local steps and evaluation at the server;
- the same FedAvg without `torch.optim`, whose first use imports another second of torch: the
  leanest client that one can write. Our own client does not need `torch.optim` for this model.

A round lasts from the line that the server writes about one round to the line about the next; the
first round of a block only marks the beginning. CPU seconds are those of SuperLink, SuperNodes and
everything that they started. Every round is one line of `deployment.jsonl`, beside this file; a
model that is there is not measured again. Linux only: CPU seconds are read from /proc.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import json
import os
import platform
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

import numpy as np
from page import written

from fedspend.basics.arrays import Float32Array, IntArray
from fedspend.flower.loopback import Loopback, descendants, federation, settings_of, wait_for

HERE = Path(__file__).parent
EXAMPLE, FEDAVG = HERE.parents[1] / "examples" / "flower", HERE / "fedavg_app"
RESULTS = HERE / "deployment.jsonl"
MARK = "<!-- made by benchmarks/speed/deployment.py -->"
CLIENTS = ("harbour", "north", "south")
HIDDEN = {"small": 0, "large": 256}  # units of the hidden layer of each model, if it has one
FEATURES, CLASSES, ROWS, PUBLIC_ROWS = 784, 10, 400, 200
STEPS, BATCH, LR = 20, 20, 0.1
OURS, PLAIN, LEAN = "fedspend", "FedAvg", "FedAvg without torch.optim"
NAMES = (OURS, PLAIN, LEAN)
POLL, PATIENCE = 0.02, 600.0  # seconds

MODEL = """[model]
name = "{name}"
"""
SERVER = """[data]
name = "csv"
test_path = "public.csv"
classes = {classes}

{model}
[method]
name = "idp-fedavg"

[privacy]
budgets = "budgets.csv"
delta = 1e-3
rate = 1.0
clip = 1.0
noise = "discrete-distributed"
randomness = "os"

[train]
rounds = {rounds}
local_steps = {steps}
batch_size = {batch}
lr = {lr}

[ledger]
location = "ledger-{block}.db"

[engine]
name = "flower"
keys = "keys.csv"
slices = "slices-{block}"
"""
NODE = """[node]
client = "{client}"
budget = 1000
delta = 1e-3
key = "node.key"

[data]
name = "npz"
path = "rows.npz"
classes = {classes}

{model}
[privacy]
randomness = "os"

[ledger]
location = "ledger.db"
"""


def model_section(model: str) -> str:
    hidden = HIDDEN[model]
    return (
        MODEL.format(name="mlp") + f"hidden = [{hidden}]\n"
        if hidden
        else MODEL.format(name="logistic")
    )


def parameters(model: str) -> int:
    hidden = HIDDEN[model]
    return (FEATURES + 1) * hidden + (hidden + 1) * CLASSES if hidden else (FEATURES + 1) * CLASSES


def training(model: str, block: int, rounds: int) -> str:
    """The server's config of one block of ours. It has a ledger of its own: what earlier blocks
    spent does not count. The nodes' accounts are over all of them.
    """
    return SERVER.format(
        classes=CLASSES,
        model=model_section(model),
        rounds=rounds,
        steps=STEPS,
        batch=BATCH,
        lr=LR,
        block=block,
    )


def make_project(folder: Path, model: str) -> None:
    """Server and nodes with rows of their own, and the example's app."""
    generator = np.random.default_rng(15)
    truth = generator.normal(size=(FEATURES, CLASSES))

    def drawn(path: Path, rows: int) -> tuple[Float32Array, IntArray]:
        features = generator.uniform(-1, 1, (rows, FEATURES)).astype(np.float32)
        labels = np.argmax(features @ truth, axis=1)
        np.savez(path, features=features, label=labels)
        return features, labels

    shutil.copytree(EXAMPLE / "app", folder / "app", ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "server").mkdir()
    features, labels = drawn(folder / "server" / "public.npz", PUBLIC_ROWS)
    with (folder / "server" / "public.csv").open("w", newline="") as file:  # the same, for ours
        table = csv.writer(file)
        table.writerow([*(f"feature {n}" for n in range(FEATURES)), "label"])
        table.writerows([*row, label] for row, label in zip(features, labels, strict=True))
    budgets = "".join(f"{client},8\n" for client in CLIENTS)
    (folder / "server" / "budgets.csv").write_text("client,epsilon\n" + budgets)
    for client in CLIENTS:
        own = folder / "nodes" / client
        own.mkdir(parents=True)
        drawn(own / "rows.npz", ROWS)
        text = NODE.format(client=client, classes=CLASSES, model=model_section(model))
        (own / "node.toml").write_text(text)


def cpu_seconds(pids: Iterable[int]) -> float:
    """Of these processes and of those that they started and that have ended since."""
    ticks = 0
    for pid in pids:
        with suppress(OSError):
            ticks += ticks_of(Path(f"/proc/{pid}/stat").read_text())
    return ticks / os.sysconf("SC_CLK_TCK")


def ticks_of(stat: str) -> int:
    """User and system time of a process and of its children that have ended: fields 14 to 17 of
    /proc/PID/stat, in which the name, field 2, may hold spaces.

    >>> ticks_of("7 (a (b) c) S 1 7 7 0 -1 0 0 0 0 0 10 2 300 4 20 0 1 0 5")
    316
    """
    return sum(map(int, stat.rpartition(")")[2].split()[11:15]))


@dataclass(frozen=True)
class Spent:
    """When, and the CPU seconds so far."""

    when: float
    server: float  # of SuperLink and ServerApp
    nodes: float  # of SuperNodes and ClientApps


def spent(made: Loopback) -> Spent:
    def seconds(names: Iterable[str]) -> float:
        pids = [made.running[name].pid for name in names]
        return cpu_seconds([*pids, *(one for pid in pids for one in descendants(pid))])

    when = time.monotonic()
    return Spent(when, seconds(["superlink"]), seconds(made.clients))


@dataclass(frozen=True)
class Round:
    """One round of one app, as a line of the results."""

    model: str
    name: str
    block: int
    round: int
    seconds: float
    server: float  # CPU seconds
    nodes: float
    machine: str  # that it was measured on

    @property
    def cpu(self) -> float:
        return self.server + self.nodes


def machine() -> str:
    return (
        f"{platform.machine()} with {os.cpu_count()} cores, Python {platform.python_version()}, "
        f"torch {version('torch')}, flwr {version('flwr')}"
    )


def rounds_between(marks: Sequence[Spent], model: str, name: str, block: int) -> list[Round]:
    """One for each mark but the first."""
    return [
        Round(
            *(model, name, block, number),
            round(after.when - before.when, 3),
            round(after.server - before.server, 2),
            round(after.nodes - before.nodes, 2),
            machine(),
        )
        for number, (before, after) in enumerate(itertools.pairwise(marks), start=2)
    ]


def marks(made: Loopback, told: Path, rounds: int) -> Iterator[Spent]:
    """What was spent when each of the first `rounds` lines was written."""
    seen, end = 0, time.monotonic() + PATIENCE * rounds
    while seen < rounds:
        lines = told.read_bytes().count(b"\n") if told.exists() else 0
        if lines > seen + 1:
            raise SystemExit(f"two lines of {told} came at once: nobody knows when")
        if lines > seen:
            seen = lines
            yield spent(made)
        if time.monotonic() > end:
            raise SystemExit(f"{told} had {seen} lines after {PATIENCE * rounds:g} seconds")
        time.sleep(POLL)


def start_ours(made: Loopback, model: str, block: int, rounds: int) -> tuple[str, Path]:
    """The run's id at Flower, and the file that has a line for each round."""
    config = made.folder / "server" / "training.toml"
    config.write_text(training(model, block, rounds))
    made.approve(f"slices-{block}")
    run = made.folder / f"run-{block}"
    return made.submit(**settings_of(made.folder, run, {})), run / "metrics.jsonl"


def start_fedavg(
    made: Loopback, model: str, block: int, rounds: int, descent: str
) -> tuple[str, Path]:
    told = made.folder / f"{descent}-{block}.csv"
    settings = {
        "public": str(made.folder / "server" / "public.npz"),
        "output": str(told),
        "rounds": rounds,
        "hidden": HIDDEN[model],
        "local-steps": STEPS,
        "batch-size": BATCH,
        "lr": LR,
        "descent": descent,
    }
    return made.submit(FEDAVG, **settings), told


STARTS: dict[str, Callable[[Loopback, str, int, int], tuple[str, Path]]] = {
    OURS: start_ours,
    PLAIN: lambda *order: start_fedavg(*order, "torch"),
    LEAN: lambda *order: start_fedavg(*order, "by-hand"),
}


def measured(model: str, names: Sequence[str], blocks: int, rounds: int) -> Iterator[list[Round]]:
    """One list for each block of each app. Apps take turns, in another order in each block."""
    with tempfile.TemporaryDirectory() as folder:
        make_project(Path(folder) / "project", model)
        with federation(Path(folder) / "project", Path(folder) / "federation") as made:
            for block in range(blocks):
                turn = block % len(names)
                for name in (*names[turn:], *names[:turn]):
                    run, told = STARTS[name](made, model, block, rounds + 1)
                    found = [*marks(made, told, rounds + 1)]
                    status, log = wait_for(made, run)
                    if status != "finished:completed":
                        raise SystemExit(f"{name}: {status}\n{log}")
                    yield rounds_between(found, model, name, block)


def table(found: Sequence[Round]) -> list[str]:
    """One row for each model and app: medians, and how much more than each FedAvg ours takes."""
    columns = ("model", "app", "seconds", "CPU seconds", "at the server", "at the nodes")
    rows = [
        f"| {' | '.join((*columns, 'ours over it, seconds', 'ours over it, CPU'))} |",
        "|---" * 8 + "|",
    ]
    for model in HIDDEN:
        every = {name: of(found, model, name) for name in NAMES}
        for name, own in every.items():
            if not own:
                continue
            middle = {what: median(own, what) for what in ("seconds", "cpu", "server", "nodes")}
            over = (
                f"{median(every[OURS], what) / middle[what] - 1:+.0%}"
                if name != OURS and every[OURS]
                else ""
                for what in ("seconds", "cpu")
            )
            numbers = " | ".join(f"{value:.1f}" for value in middle.values())
            rows.append(
                f"| {parameters(model):,} numbers | {name} | {numbers} | {' | '.join(over)} |"
            )
    return rows


def of(found: Iterable[Round], model: str, name: str) -> list[Round]:
    return [one for one in found if (one.model, one.name) == (model, name)]


def median(rounds: Iterable[Round], what: str) -> float:
    return statistics.median(getattr(one, what) for one in rounds)


def conditions(found: Sequence[Round]) -> str:
    counts = {len(of(found, model, name)) for model in HIDDEN for name in NAMES} - {0}
    many, where = " or ".join(map(str, sorted(counts))), {one.machine for one in found}
    return (
        f"`python benchmarks/speed/deployment.py`: medians of {many} rounds, in blocks that take "
        f"turns, each after a first round; SuperLink and {len(CLIENTS)} SuperNodes with TLS and "
        f"node keys on one machine, {' or '.join(sorted(where))}; everyone in every round, {STEPS} "
        f"local steps on batches of {BATCH} out of {ROWS} rows of {FEATURES} features."
    )


def read(results: Path) -> list[Round]:
    if not results.exists():
        return []
    return [Round(**json.loads(line)) for line in results.read_text().splitlines()]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="*", choices=[*HIDDEN], default=[*HIDDEN])
    parser.add_argument("--apps", nargs="+", choices=NAMES, default=[*NAMES])
    parser.add_argument("--blocks", type=int, default=2, help="of each app")
    parser.add_argument("--rounds", type=int, default=5, help="of a block, after its first")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="a line a round; its models are kept"
    )
    parser.add_argument(
        "--write", type=Path, help="a page with two marks, to put the table between"
    )
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything is shut down
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
        os.environ[name] = "1"  # of the processes that are started
    # an installed package is compiled; one that is run from its sources would be, at every message
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
    for model in args.models:
        if any(one.model == model for one in read(args.results)):
            continue
        lines: list[Round] = []
        for block in measured(model, args.apps, args.blocks, args.rounds):
            lines += block
            print("\n".join(map(str, block)), flush=True)
        with args.results.open("a") as file:  # whole, or it would count as measured
            file.writelines(json.dumps(asdict(one)) + "\n" for one in lines)
    found = read(args.results)
    text = "\n".join([conditions(found), "", *table(found)])
    print(text)
    if args.write is not None:
        written(args.write, MARK, text)


if __name__ == "__main__":
    main()
