"""How fast a round is: seven workloads beside pfl, fedjax, a plain torch loop and the
matrix-multiply bound.

    .venv/bin/python benchmarks/speed/rounds.py     # ours, the plain loop and the bound
    .venv/bin/python benchmarks/speed/rounds.py --peers-python PEERS/bin/python     # with peers

Peers are in an environment of their own:

    python -m venv PEERS
    PEERS/bin/pip install --constraint constraints.txt 'pfl[pytorch]==0.6.0' fedjax==0.0.17 torch

Every client takes 10 steps of `--batch` examples, one pass over its data. The default of 16 favours
the dense engine, which saves cost per step: with `--batch 64` matrix products take over and the
lead shrinks. Quote both. In the uneven cases the same number of rows is divided by Dirichlet(0.5)
proportions and every client takes one pass over its own: there padding costs, and the bound is that
of the rows that are there. Peers take clients of equal size only. 90 clients take part in a round
of the dense models, 8 in a round of the CNN, whose cost is linear in clients. Updates are clipped
to norm 1, except by fedjax, which has no clipping. Everything is pinned to one core; all
contestants run one round each in turn; medians of their CPU seconds are compared. Equal work: the
same number of steps and examples, the same mean update up to rounding (of a smooth twin in the case
of the CNN). What BLUR and LUS cost is measured with rounds without and with them in turn, BLUR
acting in every step but the first. Then: the CNN with 2 workers against 1 (wall time, all cores),
and the memory of 10,000 clients.
"""

from __future__ import annotations

import os

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import argparse
import json
import multiprocessing
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from bounds import cnn_bound, dense_bound, uneven_bound
from torch import nn

from fedspend.client.batches import step_batches, step_count
from fedspend.client.shaping import UNSHAPED, Shape
from fedspend.client.task import ClientTask, LocalTraining, RoundTask
from fedspend.engines.base import Engine, Workload
from fedspend.engines.clientwise import ClientwiseEngine
from fedspend.engines.local import make_engine
from fedspend.models import build
from fedspend.noise.randomness import Randomness
from fedspend.server.answers import Answers, gather

STEPS, LR, CLIP = 10, 0.1, 1.0
SHAPE, SMALL_CLIP = (
    Shape(blur=0.4, lus=0.7),
    1e-3,
)  # everybody leaves so small a ball at once: BLUR acts in every step but the first
RANDOMNESS = Randomness(0)
# how far mean updates may be apart, relative to their norm; rounding alone gives about 3e-6
AGREEMENT = 1e-4


VOCABULARY = 32
SEQUENCES: dict[str, dict[str, Any]] = {
    "lstm": {"vocabulary": VOCABULARY, "width": 32},
    "transformer": {"vocabulary": VOCABULARY, "width": 32, "layers": 2, "heads": 2},
}


@dataclass(frozen=True)
class Setting:
    name: str
    shape: tuple[int, ...]
    widths: list[int]
    cohort: int
    clients: int = 100
    uneven: bool = False

    def training(self, batch: int, shape: Shape = UNSHAPED) -> LocalTraining:
        if self.uneven:
            return LocalTraining(batch_size=batch, epochs=1, shape=shape)
        return LocalTraining(batch_size=batch, steps=STEPS, shape=shape)

    @property
    def tokens(self) -> bool:
        return self.name in SEQUENCES

    def module(self) -> nn.Module:
        options: dict[str, Any] = {"hidden": self.widths[1:-1]} if self.name == "mlp" else {}
        if self.tokens:
            options = SEQUENCES[self.name]
        return build(self.name, input_shape=self.shape, classes=self.widths[-1], seed=0, **options)

    def work(self, batch: int) -> Workload:
        generator = np.random.default_rng(0)
        rows = self.clients * STEPS * batch
        features = torch.from_numpy(
            generator.standard_normal((rows, *self.shape), dtype=np.float32)
        )
        if self.tokens:
            drawn = generator.integers(1, VOCABULARY, (rows, *self.shape))
            features = torch.from_numpy(drawn.astype(np.float32))
        labels = torch.from_numpy(generator.integers(0, self.widths[-1], rows))
        ends = np.arange(1, self.clients) * STEPS * batch
        if self.uneven:
            ends = np.rint(
                np.cumsum(generator.dirichlet(np.full(self.clients, 0.5)))[:-1] * rows
            ).astype(np.int64)
        shards = np.split(generator.permutation(rows), ends)
        return Workload(
            self.module(),
            features,
            labels,
            dict(zip(map(str, range(self.clients)), shards, strict=True)),
            RANDOMNESS,
            integers=self.tokens,
        )


def tasks(
    start: torch.Tensor, training: LocalTraining, cohort: int, clip: float, round: int
) -> list[ClientTask]:
    shared = RoundTask(
        round=round, parameters=start.numpy(), training=training, lr=LR, size=start.numel()
    )
    return [ClientTask(str(n), n, clip, shared) for n in range(cohort)]


def answers(engine: Engine, asked: list[ClientTask]) -> Answers:
    return gather(asked, engine.run(asked), asked[0].shared.size)


WORKLOADS = {
    "logistic": Setting("logistic", (784,), [784, 10], 90),
    "mlp": Setting("mlp", (104,), [104, 64, 32, 2], 90),
    "cnn": Setting("cnn", (1, 28, 28), [784, 10], 8),
    "lstm": Setting("lstm", (24,), [24, 10], 8),
    "transformer": Setting("transformer", (24,), [24, 10], 8),
    "logistic-uneven": Setting("logistic", (784,), [784, 10], 90, uneven=True),
    "mlp-uneven": Setting("mlp", (104,), [104, 64, 32, 2], 90, uneven=True),
}


def smooth(module: nn.Module) -> nn.Module:
    """The CNN with Tanh and average pooling, for the comparison of updates.

    Rounding decides now and then on which side of a ReLU or in which pixel of a pool a value falls.
    After one such flip two correct float32 runs drift apart, up to a seventh of a client's update
    in 10 steps, so that no tolerance would mean anything.
    """
    twins = {nn.ReLU: nn.Tanh, nn.MaxPool2d: lambda: nn.AvgPool2d(2)}
    return nn.Sequential(
        *(twins[type(layer)]() if type(layer) in twins else layer for layer in module.children())
    )


class Contest:
    """One workload with everybody who runs it: a function that does one round and returns its CPU
    seconds.
    """

    def __init__(self, work: Setting, batch: int, peers_python: str | None, folder: Path) -> None:
        self.work, self.batch, self.folder = work, batch, folder
        self.training = work.training(batch)
        self.processes: list[subprocess.Popen[str]] = []
        self.notes: dict[str, str] = {}
        terms = work.work(batch)
        self.start = nn.utils.parameters_to_vector(terms.module.parameters()).detach()
        ours, plain = make_engine("local", terms, workers=1), make_engine("reference", terms)
        self.runs: dict[str, Callable[[int], float]] = {
            "fedspend": self._engine(ours, CLIP, self.training),
            "plain torch": self._engine(plain, CLIP, self.training),
        }
        self.shaped = self._engine(ours, SMALL_CLIP, work.training(batch, SHAPE))
        for number, bound in enumerate(self._bounds(terms)):
            self.runs[f"bound {number}"] = _timed(bound)
        if work.name == "cnn":
            terms = replace(terms, module=smooth(terms.module))
            ours, plain = make_engine("local", terms, workers=1), make_engine("reference", terms)
        free = self._mean(ours, np.inf)
        self.updates = {"plain torch": (self._mean(plain, CLIP), self._mean(ours, CLIP))}
        for peer in ("pfl", "fedjax"):
            if work.uneven:
                self.notes[peer] = "takes clients of equal size"
            elif peers_python is None:
                self.notes[peer] = "not installed, see --help"
            elif not (peer == "fedjax" and (work.name == "cnn" or work.tokens)):
                self._join(
                    peer,
                    peers_python,
                    terms,
                    self.updates["plain torch"][1] if peer == "pfl" else free,
                )

    def _bounds(self, terms: Workload) -> list[Callable[[], None]]:
        amount = (self.work.cohort, STEPS, self.batch)
        if self.work.tokens:
            return []  # a bound of matrix products says little of them
        if self.work.name == "cnn":
            return cnn_bound(*amount)
        if not self.work.uneven:
            return dense_bound(self.work.widths, *amount)
        sizes = [len(terms.shards[str(n)]) for n in range(self.work.cohort)]
        return [uneven_bound(self.work.widths, sizes, self.batch)]

    def _engine(
        self, engine: Engine, clip: float, training: LocalTraining
    ) -> Callable[[int], float]:
        def one_round(number: int) -> float:
            began = time.process_time()
            total = answers(
                engine, tasks(self.start, training, self.work.cohort, clip, number)
            ).total
            self.start + torch.from_numpy(total / self.work.cohort).float()
            return time.process_time() - began

        return one_round

    def _mean(self, engine: Engine, clip: float) -> np.ndarray:
        found = answers(engine, tasks(self.start, self.training, self.work.cohort, clip, 0))
        assert not found.statistics.zeroed.any()
        assert len(found.answered) == self.work.cohort
        return found.total / self.work.cohort

    def _join(self, peer: str, python: str, terms: Workload, expected: np.ndarray) -> None:
        features, labels, shards = (
            terms.features,
            terms.labels,
            [terms.shards[str(n)] for n in range(self.work.cohort)],
        )
        steps = sum(step_count(len(shard), self.training) for shard in shards)
        if not (self.folder / "work.json").exists():
            rows = [
                shard[
                    np.concatenate(
                        step_batches(
                            RANDOMNESS.generator("batches", 0, n), len(shard), self.training
                        )
                    )
                ]
                for n, shard in enumerate(shards)
            ]
            np.save(self.folder / "features.npy", features.numpy()[np.stack(rows)])
            np.save(self.folder / "labels.npy", labels.numpy()[np.stack(rows)])
            np.save(self.folder / "start.npy", self.start.numpy())
            settings = {
                "kind": self.work.name,
                "widths": self.work.widths,
                "batch": self.batch,
                "lr": LR,
                "clip": CLIP,
                "options": SEQUENCES.get(self.work.name, {}),
                "shape": self.work.shape,
            }
            (self.folder / "work.json").write_text(json.dumps(settings))
        script = str(Path(__file__).with_name("peers.py"))
        log = (self.folder / f"{peer}.log").open("w")
        process = subprocess.Popen(
            [python, script, peer, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
        self.processes.append(process)
        assert process.stdin is not None
        assert process.stdout is not None
        first = process.stdout.readline()
        if not first.startswith("{"):
            self.notes[peer] = (
                "did not start: "
                f"{(self.folder / f'{peer}.log').read_text().strip().splitlines()[-1:]}"
            )
            return
        done = json.loads(first)
        assert done == {"steps": steps, "examples": steps * self.batch}, (
            f"{peer} did {done}, not {steps} steps"
        )
        self.updates[peer] = (np.load(self.folder / "update.npy"), expected)
        inlet, outlet = process.stdin, process.stdout

        def one_round(number: int) -> float:
            inlet.write(f"{number}\n")
            inlet.flush()
            return float(json.loads(outlet.readline())["seconds"])

        self.runs[peer] = one_round

    def measure(self, repeats: int) -> dict[str, Any]:
        apart = {
            name: float(np.linalg.norm(a - b) / np.linalg.norm(b))
            for name, (a, b) in self.updates.items()
        }
        assert max(apart.values()) < AGREEMENT, f"mean updates disagree: {apart}"
        seconds: dict[str, list[float]] = {name: [] for name in self.runs}
        for number in range(repeats + 1):  # the first one warms up
            for name, one_round in self.runs.items():
                seconds[name].append(one_round(number + 1))
        shaping: tuple[list[float], list[float]] = ([], [])
        for number in range(2 * repeats + 1):
            for times, one_round in zip(shaping, (self.runs["fedspend"], self.shaped), strict=True):
                times.append(one_round(number + 1))
        medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
        bounds = [medians.pop(name) for name in list(medians) if name.startswith("bound")]
        bound = min(bounds, default=None)
        return {
            "cpu_seconds": medians | ({} if bound is None else {"bound": bound}),
            "times_the_bound": {}
            if bound is None
            else {name: value / bound for name, value in medians.items()},
            "fedspend_is_faster_by": {
                name: value / medians["fedspend"]
                for name, value in medians.items()
                if name != "fedspend"
            },
            "shaping_costs": statistics.median(shaping[1][1:]) / statistics.median(shaping[0][1:]),
            "updates_apart": apart,
            "notes": self.notes,
        }

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait()


def _timed(work: Callable[[], None]) -> Callable[[int], float]:
    def one_round(_: int) -> float:
        began = time.process_time()
        with torch.no_grad():
            work()
        return time.process_time() - began

    return one_round


def worker_scaling(repeats: int, batch: int, cohort: int = 32) -> dict[str, Any]:
    """Wall seconds of the CNN with one worker and with two, in turn."""
    work, training = WORKLOADS["cnn"], WORKLOADS["cnn"].training(batch)
    terms = work.work(batch)
    start = nn.utils.parameters_to_vector(terms.module.parameters()).detach()
    engines = {count: ClientwiseEngine(terms, workers=count) for count in (1, 2)}
    seconds: dict[int, list[float]] = {count: [] for count in engines}
    others = []
    totals = {}
    for number in range(repeats):
        for count, engine in engines.items():
            if number == 0:
                answers(engine, tasks(start, training, 2 * count, CLIP, 0))
            busy, began = _busy_elsewhere(), time.perf_counter()
            totals[count] = answers(engine, tasks(start, training, cohort, CLIP, 1)).total
            seconds[count].append(time.perf_counter() - began)
            others.append((_busy_elsewhere() - busy) / seconds[count][-1])
    for engine in engines.values():
        engine.close()
    assert np.array_equal(totals[1], totals[2]), "the number of workers changed the result"
    return {
        "wall_seconds": seconds,
        "ratio_of_best": min(seconds[1]) / min(seconds[2]),
        "cores_taken_by_others": statistics.median(others),
    }


def _busy_elsewhere() -> float:
    """CPU seconds that this machine has spent on anything but this process and its workers."""
    ticks = [int(word) for word in Path("/proc/stat").read_text().splitlines()[0].split()[1:]]
    busy = sum(ticks[:8]) - ticks[3] - ticks[4]  # all but idle and waiting for disks
    for pid in (os.getpid(), *(child.pid for child in multiprocessing.active_children())):
        own = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
        busy -= int(own[11]) + int(own[12])
    return busy / os.sysconf("SC_CLK_TCK")


def memory() -> dict[str, float]:
    """MiB beyond libraries and data for rounds with 10,000 clients of a 60,000 x 784 data set."""
    script = """
import sys, numpy as np, torch
from fedspend.client.task import ClientTask, LocalTraining, RoundTask
from fedspend.engines.base import Workload
from fedspend.engines.local import make_engine
from fedspend.models import build
from fedspend.noise.randomness import Randomness
from fedspend.server.answers import gather
def peak():  # not ru_maxrss, which starts at the parent's
    return int(open("/proc/self/status").read().split("VmHWM:")[1].split()[0]) / 1024
torch.set_num_threads(1)
before = peak()
features, labels = torch.rand(60_000, 1, 28, 28), torch.randint(0, 10, (60_000,))
module = build(sys.argv[1], input_shape=(1, 28, 28), classes=10, seed=0)
shards = np.array_split(np.random.default_rng(0).permutation(60_000), 10_000)
rows = {str(n): shard for n, shard in enumerate(shards)}
work = Workload(module, features, labels, rows, Randomness(0))
start = torch.nn.utils.parameters_to_vector(module.parameters()).detach()
training = LocalTraining(batch_size=64, steps=int(sys.argv[3]))
shared = RoundTask(1, start.numpy(), training, 0.1, start.numel())
tasks = [ClientTask(str(n), n, 1.0, shared) for n in range(int(sys.argv[2]))]
gather(tasks, make_engine("local", work, workers=1).run(tasks), start.numel())
print(peak() - before - features.numel() * 4 / 2**20)
"""
    found = {}
    for name, cohort, steps in (("logistic", 9_000, 10), ("cnn", 400, 1)):
        done = subprocess.run(
            [sys.executable, "-c", script, name, str(cohort), str(steps)],
            capture_output=True,
            text=True,
            check=True,
        )
        found[name] = float(done.stdout)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--peers-python", help="interpreter of an environment with pfl and fedjax")
    parser.add_argument(
        "--only",
        choices=[*WORKLOADS, "workers", "memory"],
        action="append",
        help="default: everything",
    )
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    chosen = args.only or [*WORKLOADS, "workers", "memory"]
    torch.set_num_threads(1)
    result: dict[str, Any] = {}
    cores = os.sched_getaffinity(0)
    for name in [name for name in chosen if name in WORKLOADS]:
        os.sched_setaffinity(0, {max(cores)})
        with tempfile.TemporaryDirectory() as folder:
            contest = Contest(WORKLOADS[name], args.batch, args.peers_python, Path(folder))
            try:
                result[name] = contest.measure(
                    args.repeats if WORKLOADS[name].name != "cnn" else min(args.repeats, 5)
                )
            finally:
                contest.close()
        os.sched_setaffinity(0, cores)
        if not args.json:
            _print_workload(name, result[name])
    if "workers" in chosen:
        result["workers"] = worker_scaling(min(args.repeats, 3), args.batch)
        if not args.json:
            found = result["workers"]
            print(f"cnn, 2 workers are {found['ratio_of_best']:.2f} times as fast as 1 (same bits)")
            if found["cores_taken_by_others"] > 0.1:
                print(
                    "  not a measurement: other processes took "
                    f"{found['cores_taken_by_others']:.1f} cores meanwhile"
                )
    if "memory" in chosen:
        result["memory_mib_beyond_data"] = memory()
        if not args.json:
            print(
                "10,000 clients, MiB beyond the data:",
                {name: round(size) for name, size in result["memory_mib_beyond_data"].items()},
            )
    if args.json:
        print(json.dumps(result))


def _print_workload(name: str, found: dict[str, Any]) -> None:
    print(f"{name:12} {'CPU s a round':>14} {'x bound':>9} {'fedspend is faster by':>22}")
    for who, seconds in found["cpu_seconds"].items():
        times, faster = (
            found["times_the_bound"].get(who, 1.0),
            found["fedspend_is_faster_by"].get(who),
        )
        print(
            f"  {who:10} {seconds:14.4f} {times:9.2f} "
            f"{'' if faster is None else format(faster, '22.1f')}"
        )
    print(
        f"  a round with BLUR and LUS takes {found['shaping_costs']:.2f} times as long as one "
        "without"
    )
    print(
        "  mean updates apart: "
        + ", ".join(f"{who} {apart:.0e}" for who, apart in found["updates_apart"].items())
    )
    for who, note in found["notes"].items():
        print(f"  {who:10} {note}")


if __name__ == "__main__":
    main()
