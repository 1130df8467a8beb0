"""What a round on Flower costs: our engine beside the local one, and beside Flower's own FedAvg
with and without its differential privacy, on the same work.

    python benchmarks/speed/flower.py                             # hours: all cells
    python benchmarks/speed/flower.py --cells small:3,100,1000    # 10 minutes on a quiet core
    python benchmarks/speed/flower.py --cells --memory 100 1000   # what is held in memory
    python benchmarks/speed/flower.py --cells --split               # what our round does more
    python benchmarks/speed/flower.py --write docs/how-to/flower.md      # and puts the table there

It goes on where it stopped: a cell that is in `flower.jsonl`, beside this file, is not measured
again.

Everything runs in one process on one thread: clients are functions, and messages go through
Flower's own packing both ways, as between machines. All four do the same local training with the
same code (`engines.local`), and evaluate the model on the same rows after each round; ours also
charge a ledger, clip, add discrete noise, and write release, checkpoint and metrics to disk. Rounds
of the four take turns, and CPU seconds are counted, so that another load on the machine falls on
all alike.
"""

from __future__ import annotations

import os

for _name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[_name] = "1"

import argparse
import json
import logging
import platform
import statistics
import sys
import tempfile
import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from page import written

ROOT = Path(__file__).parents[2]
# the grid in this process is that of the tests; this folder has another module of its name
sys.path[0] = str(ROOT / "tests")

import flwr
from flower.apps import AppGrid
from flower.in_process import InProcessGrid, nodes_of
from flwr.app import ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.strategy import DifferentialPrivacyServerSideFixedClipping, FedAvg, Strategy

from fedspend.client import answering
from fedspend.client.state import MemoryStates
from fedspend.client.task import ClientTask
from fedspend.configuration.config import any_config
from fedspend.engines import dense
from fedspend.engines.flower import wire
from fedspend.engines.local import local
from fedspend.models.evaluation import evaluate
from fedspend.runs.beginning import opened_store
from fedspend.runs.directory import RunDirectory
from fedspend.runs.metrics import Observer
from fedspend.runs.run_ledger import RunLedger
from fedspend.runs.running import open_engine
from fedspend.runs.setup import Setup, flat_parameters, from_config
from fedspend.server.mechanism import Gaussian
from fedspend.server.rounds import begin, prepared, run_rounds

MODELS: dict[str, dict[str, Any]] = {
    "small": {"name": "logistic"},
    "medium": {"name": "mlp", "hidden": [64]},
    "large": {"name": "mlp", "hidden": [256]},
}
FEATURES, CLASSES, BATCH, CLIP = 784, 10, 20, 1.0
FEWEST_ROWS, MOST_ROWS, STEPS = 40, 4000, 20  # of a client
RESULTS = Path(__file__).with_name("flower.jsonl")
MARK = "<!-- made by benchmarks/speed/flower.py -->"
Round = Callable[[], None]


class Nothing(MemoryStates):
    """Nodes that remember no answers, as if each remembered its own on its own machine."""

    def write(self, client: str, body: bytes) -> None:
        pass


def rows_of(steps: int) -> int:
    """How many rows a client has."""
    return FEWEST_ROWS if steps == STEPS else min(MOST_ROWS, steps * BATCH)


def config_of(clients: int, model: str, rounds: int, steps: int) -> dict[str, Any]:
    return {
        "data": {
            "name": "synthetic",
            "examples": rows_of(steps) * clients + 200,
            "features": FEATURES,
            "classes": CLASSES,
            "clients": clients,
            "partition": "iid",
        },
        "model": MODELS[model],
        "method": {"name": "idp-fedavg"},
        "privacy": {
            "epsilon": 10.0,
            "delta": 1e-5,
            "rate": 1.0,
            "clip": CLIP,
            "noise": "discrete",
            "accountant": "rdp",
        },
        "train": {"rounds": rounds, "local_steps": steps, "batch_size": BATCH, "lr": 0.1},
    }


@dataclass
class Contender:
    name: str
    play: Round  # one round
    carried: Callable[[], int]  # bytes that went over the line so far, both ways
    close: Round = lambda: None


def ours(setup: Setup, folder: Path, grid: InProcessGrid | None) -> Contender:
    """A whole run, one round at a time: on this machine, or on the grid."""

    def rounds() -> Iterator[None]:
        with RunLedger.of_run(folder, None, resume=False) as ledger:
            engine = open_engine(setup, MemoryStates())
            store = opened_store(setup, folder, ledger, resume=False)
            store.write_certificate(setup.plan, {"ok": True})  # not verified: it takes no round
            training = replace(setup.training, run=store.run_id)
            start = begin(flat_parameters(setup.module), setup.method)
            with store.charging(setup.plan, ledger, simulation=True):
                for _ in run_rounds(
                    start,
                    setup.method,
                    engine,
                    training,
                    setup.randomness,
                    store,
                    Observer.of(setup).line,
                ):
                    yield

    playing = rounds()
    name = "fedspend, one machine" if grid is None else "fedspend on Flower"
    return Contender(
        name,
        lambda: next(playing),
        lambda: 0 if grid is None else grid.carried,
        playing.close,
    )


def client_of(setup: Setup) -> Callable[[str], Callable[[Message], Message]]:
    """Flower's clients: the same training by the same engine, answered as Flower does it."""
    work = setup.workload()
    engine, shapes = local(work, 0), [p.shape for p in setup.module.parameters()]
    _, shared = prepared(
        begin(flat_parameters(setup.module), setup.method), setup.method, setup.training
    )
    shared = replace(shared, grid=None)
    number = {client: n for n, client in enumerate(work.shards)}

    def node(client: str) -> Callable[[Message], Message]:
        def answer(message: Message) -> Message:
            arrays = message.content["arrays"].to_numpy_ndarrays()
            start = np.concatenate([one.reshape(-1) for one in arrays])
            task = ClientTask(client, number[client], np.inf, replace(shared, parameters=start))
            (reply,) = engine.run([task])
            moved = (start + reply.contribution.vector).astype(np.float32)
            ends = np.cumsum([one.numel() for one in shapes])[:-1]
            pieces = [
                one.reshape(shape) for one, shape in zip(np.split(moved, ends), shapes, strict=True)
            ]
            return Message(
                RecordDict(
                    {
                        "arrays": ArrayRecord(pieces),
                        "metrics": MetricRecord({"num-examples": len(work.shards[client])}),
                    }
                ),
                reply_to=message,
            )

        return answer

    return node


def theirs(name: str, strategy: Strategy, setup: Setup) -> Contender:
    """Flower's own loop, one round at a time."""
    node = client_of(setup)
    clients = setup.federation.clients
    grid = AppGrid({100 + n: node(client) for n, client in enumerate(clients)})
    names = [name for name, _ in setup.module.named_parameters()]
    arrays = [p.detach().numpy().copy() for p in setup.module.parameters()]
    dataset, state = setup.federation.dataset, {"round": 0, "arrays": ArrayRecord(arrays)}
    tests = torch.from_numpy(dataset.test_features), torch.from_numpy(dataset.test_labels)

    def play() -> None:
        state["round"] += 1
        sent = strategy.configure_train(state["round"], state["arrays"], ConfigRecord(), grid)
        found, _ = strategy.aggregate_train(state["round"], grid.send_and_receive(sent))
        assert found is not None
        state["arrays"] = found
        flat = np.concatenate([one.reshape(-1) for one in found.to_numpy_ndarrays()])
        evaluate(setup.module, torch.from_numpy(flat.astype(np.float32)), *tests)

    assert len(names) == len(arrays)
    return Contender(name, play, lambda: grid.carried)


def contenders(
    clients: int, model: str, rounds: int, folder: Path, steps: int = STEPS
) -> list[Contender]:
    config = config_of(clients, model, rounds, steps)
    here = from_config(any_config(config))
    grid = InProcessGrid(nodes_of(here.workload(), Nothing))
    elsewhere = from_config(any_config(config | {"engine": {"name": "flower"}}), grid=grid)
    plain = {"fraction_evaluate": 0.0, "min_train_nodes": clients, "min_available_nodes": clients}
    return [
        ours(here, folder / "local", None),
        ours(elsewhere, folder / "flower", grid),
        theirs("Flower's FedAvg", FedAvg(**plain), here),
        theirs(
            "Flower's FedAvg with its DP",
            DifferentialPrivacyServerSideFixedClipping(FedAvg(**plain), 1.0, CLIP, clients),
            here,
        ),
    ]


@dataclass(frozen=True)
class Line:
    model: str
    parameters: int
    clients: int
    steps: int  # of local training
    name: str
    seconds: float  # CPU, median
    bytes: int  # per client and round, both ways


def measured(clients: int, model: str, rounds: int, steps: int) -> list[Line]:
    with tempfile.TemporaryDirectory() as folder:
        each = contenders(clients, model, rounds + 1, Path(folder), steps)
        times: dict[str, list[float]] = {one.name: [] for one in each}
        before: dict[str, int] = {}
        for number in range(rounds + 1):
            turn = number % len(each)
            for one in (*each[turn:], *each[:turn]):
                began = time.process_time()
                one.play()
                times[one.name].append(time.process_time() - began)
                if number == 0:  # the first warms up, and has the greetings
                    before[one.name] = one.carried()
        for one in each:
            one.close()
        tiny = from_config(any_config(config_of(3, model, 1, STEPS)))
        parameters = flat_parameters(tiny.module).size
        return [
            Line(
                *(model, parameters, clients, steps, one.name),
                statistics.median(times[one.name][1:]),
                (one.carried() - before[one.name]) // (rounds * clients),
            )
            for one in each
        ]


def peaks(clients: int, model: str) -> dict[str, float]:
    """Megabytes that Python and numpy hold at most in the second round."""
    with tempfile.TemporaryDirectory() as folder:
        found = {}
        for one in contenders(clients, model, 2, Path(folder)):
            one.play()
            tracemalloc.start()
            one.play()
            found[one.name] = tracemalloc.get_traced_memory()[1] / 1e6
            tracemalloc.stop()
            one.close()
        return found


# what FedAvg does not do, and the functions that do it
PARTS: dict[str, tuple[tuple[Any, str], ...]] = {
    "ledger, release, checkpoint": tuple((RunDirectory, n) for n in ("reserve", "keep", "commit")),
    "exact discrete noise": ((Gaussian, "release"),),
    "clip, grid and checks at clients": ((dense, "finished"),),
    "what nodes keep": ((answering.Answered, "keep"), (answering, "_digest")),
    "masks": ((wire, "_masked"), (wire, "_numbers")),
}


def timed(function: Callable[..., Any], note: Callable[[float], None]) -> Callable[..., Any]:
    """The function, with its CPU seconds noted."""

    def call(*arguments: Any, **named: Any) -> Any:
        began = time.process_time()
        try:
            return function(*arguments, **named)
        finally:
            note(time.process_time() - began)

    return call


def split(model: str, rounds: int) -> dict[str, float]:
    """CPU milliseconds of a round of three clients: all of ours, all of FedAvg's, parts of ours."""
    spent = dict.fromkeys(PARTS, 0.0)
    whole: dict[str, list[float]] = {"ours": [], "FedAvg": []}
    with tempfile.TemporaryDirectory() as folder, ExitStack() as changes:
        _, ours, plain, _ = contenders(3, model, rounds + 1, Path(folder))
        for part, functions in PARTS.items():

            def note(seconds: float, part: str = part) -> None:
                spent[part] += seconds

            for owner, name in functions:
                counted = timed(getattr(owner, name), note)
                changes.enter_context(patch.object(owner, name, counted))
        for number in range(rounds + 1):
            began = time.process_time()
            ours.play()
            whole["ours"].append(time.process_time() - began)
            before = dict(spent) if number else dict.fromkeys(PARTS, 0.0)
            began = time.process_time()
            plain.play()
            whole["FedAvg"].append(time.process_time() - began)
            spent |= before  # neither the first round nor FedAvg's counts
        ours.close()
    found = {name: statistics.median(times[1:]) for name, times in whole.items()}
    found |= {part: seconds / rounds for part, seconds in spent.items()}
    return {name: 1e3 * seconds for name, seconds in found.items()}


def table(lines: list[Line]) -> list[str]:
    """One row for each model and number of clients."""
    names = ("model", "clients", "steps", "one machine", "on Flower", "FedAvg", "FedAvg with DP")
    columns = (*names, "over FedAvg", "bytes, ours", "bytes, FedAvg")
    rows = [f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]
    for first in range(0, len(lines), 4):
        alone, ours, plain, private = lines[first : first + 4]
        times = " | ".join(f"{one.seconds:.3g}" for one in (alone, ours, plain, private))
        over = ours.seconds / plain.seconds - 1
        rows.append(
            f"| {ours.parameters:,} numbers | {ours.clients:,} | {ours.steps} | {times} | "
            f"{over:+.0%} | "
            f"{ours.bytes:,} | {plain.bytes:,} |"
        )
    return rows


def conditions(rounds: int) -> str:
    return (
        f"`python benchmarks/speed/flower.py`: median CPU seconds of {rounds} rounds after a first "
        f"one; one thread, {platform.machine()}, Python {platform.python_version()}, "
        f"torch {torch.__version__}, "
        f"flwr {flwr.__version__}; everyone in every round, {FEATURES} features. {STEPS} local "
        f"steps are on batches of {BATCH} out of {FEWEST_ROWS} rows of a client; 1,000 are "
        f"{1000 * BATCH // MOST_ROWS} epochs of {MOST_ROWS:,} rows. Bytes are those of Flower's "
        "packed messages, there and back, per client and round."
    )


def read(results: Path) -> list[Line]:
    """What has been measured already, smallest first, in the order of the contenders."""
    if not results.exists():
        return []
    lines = [Line(**json.loads(text)) for text in results.read_text().splitlines()]
    return sorted(lines, key=lambda line: (line.parameters, line.clients, line.steps))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--cells",
        nargs="*",
        default=[f"{model}:3,3/1000,100,1000" for model in MODELS],
        help="models, each with numbers of clients, and of local steps if it is not 20",
    )
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--split", action="store_true", help="what our round does more")
    parser.add_argument("--memory", type=int, nargs="*", default=[], help="for so many clients")
    parser.add_argument(
        "--results", type=Path, default=RESULTS, help="one line each; cells that it has are kept"
    )
    parser.add_argument(
        "--write", type=Path, help="a page with two marks, to put the table between"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)
    # noise for three clients is large: probabilities underflow, and processors are slow at that
    torch.set_flush_denormal(True)
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for cell in args.cells:
        model, _, numbers = cell.partition(":")
        for number in numbers.split(","):
            clients, _, given = number.partition("/")
            wanted = (model, int(clients), int(given or STEPS))
            if any((one.model, one.clients, one.steps) == wanted for one in read(args.results)):
                continue
            found = measured(wanted[1], model, args.rounds, wanted[2])
            with args.results.open("a") as file:
                file.writelines(json.dumps(asdict(one)) + "\n" for one in found)
            print("\n".join(map(str, found)), flush=True)
    for model in MODELS if args.split else ():
        parts = {name: round(value, 1) for name, value in split(model, args.rounds).items()}
        print(f"CPU milliseconds of a round of 3 clients, {model} model: {parts}", flush=True)
    for clients in args.memory:
        each = "; ".join(f"{name} {size:.0f} MB" for name, size in peaks(clients, "small").items())
        print(f"held at most in a round of {clients:,} clients, small model: {each}", flush=True)
    text = "\n".join([conditions(args.rounds), "", *table(read(args.results))])
    print(text)
    if args.write is not None:
        written(args.write, MARK, text)


if __name__ == "__main__":
    main()
