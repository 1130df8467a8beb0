"""Measures everything that docs/results/speed.md shows: a line of the results for each benchmark.

    .venv/bin/python benchmarks/speed/measure.py --peers-python PEERS/bin/python    # everything
    .venv/bin/python benchmarks/speed/measure.py --only plan rounds     # and plan-saving ...
    .venv/bin/python benchmarks/speed/measure.py --only schedules -- --schedules 1000
    .venv/bin/python benchmarks/speed/measure.py --only plan --results DIR -- --clients 1000

Then `make results` writes the page. Opacus is measured beside plans if it is installed (`make
bench` installs it); `rounds.py --help` says how to make the environment of the other peers.

A benchmark is not repeated if its line has the same arguments and no package is there now that was
missing then; with `--again` it is. The new line replaces the old one, whatever machine that was
measured on, so that the page shows one number each. A line has what was found, the arguments,
versions, the processor, and the load average of the last minute at the beginning and at the end:
benchmarks add one or two to it, and run one after the other. What stands after `--` is given to
each benchmark that is chosen, and is in its line.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspend.basics.files import as_line, write_whole

HERE = Path(__file__).parent
RESULTS = HERE / "results"
LINES, ROWS = "measured.jsonl", "schedules.jsonl"
PEERS = {"pfl": "pfl", "fedjax": "fedjax", "jax": "jax", "peers' torch": "torch"}
FOR_PLANS, FOR_ROUNDS = ("numpy", "scipy", "dp-accounting"), ("numpy", "torch")


@dataclass(frozen=True)
class Benchmark:
    script: str
    arguments: tuple[str, ...]
    packages: tuple[str, ...]  # whose versions matter
    peers: bool = False  # whether it takes --peers-python
    rows: bool = False  # whether it takes --rows, a file that it goes on with


BENCHMARKS = {
    "plan": Benchmark("plan.py", ("--verify",), (*FOR_PLANS, "opacus")),
    "plan-saving": Benchmark(
        "plan.py", ("--verify", "--saving-rate", "0.5"), (*FOR_PLANS, "opacus")
    ),
    "plan-low-rate": Benchmark("plan.py", ("--verify", "--rate", "0.01"), (*FOR_PLANS, "opacus")),
    "plan-pld": Benchmark("plan.py", ("--pld",), FOR_PLANS),
    "schedules": Benchmark("../accounting/pld.py", ("--schedules", "100"), FOR_PLANS, rows=True),
    **{
        f"rounds-{model}-{batch}": Benchmark(
            "rounds.py", ("--only", model, "--batch", str(batch)), FOR_ROUNDS, peers=True
        )
        for model in ("logistic", "mlp", "cnn")
        for batch in (16, 64)
    },
    "workers": Benchmark("rounds.py", ("--only", "workers"), FOR_ROUNDS),
    "memory": Benchmark("rounds.py", ("--only", "memory"), FOR_ROUNDS),
    "sorting": Benchmark("sorting.py", (), ("numpy",)),
}


def chosen(only: Sequence[str] | None) -> list[str]:
    """The benchmarks of these names, and those whose names go on after one with a hyphen.

    >>> chosen(["memory", "rounds-cnn"])
    ['rounds-cnn-16', 'rounds-cnn-64', 'memory']
    """
    if only is None:
        return [*BENCHMARKS]
    for one in only:
        if not any(f"{name}-".startswith(f"{one}-") for name in BENCHMARKS):
            raise SystemExit(f"--only {one}: no such benchmark; there are {', '.join(BENCHMARKS)}")
    return [name for name in BENCHMARKS if any(f"{name}-".startswith(f"{one}-") for one in only)]


def installed(python: str) -> dict[str, str]:
    """The version of every package that this interpreter finds."""
    code = (
        "import json; from importlib.metadata import distributions as found\n"
        "print(json.dumps({one.name.lower(): one.version for one in found()}))"
    )
    done = subprocess.run([python, "-c", code], stdout=subprocess.PIPE, text=True, check=True)
    versions: dict[str, str] = json.loads(done.stdout)
    return versions


def versions_for(
    benchmark: Benchmark, ours: Mapping[str, str], peers: Mapping[str, str]
) -> dict[str, str]:
    """Versions of what is there and matters; of peers, as they are named in the results."""
    found = {name: ours[name] for name in benchmark.packages if name in ours}
    if benchmark.peers:
        found |= {told: peers[name] for told, name in PEERS.items() if name in peers}
    return {"python": platform.python_version()} | found


def is_done(
    line: Mapping[str, Any] | None, arguments: Sequence[str], versions: Mapping[str, str]
) -> bool:
    """Whether a line may stay: a run without peers does not replace one with them.

    >>> line = {"arguments": ["--pld"], "versions": {"numpy": "1", "opacus": "1"}}
    >>> is_done(line, ["--pld"], {"numpy": "2"}), is_done(line, ["--pld"], {"torch": "2"})
    (True, False)
    """
    return (
        line is not None
        and line["arguments"] == list(arguments)
        and set(versions) <= set(line["versions"])
    )


def processor() -> str:
    """Its name and how many cores this machine has."""
    try:
        told = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        told = ""
    names = [line.partition(":")[2].strip() for line in told.splitlines() if "model name" in line]
    return f"{names[0] if names else platform.machine()}, {os.cpu_count()} cores"


def read(path: Path) -> dict[str, dict[str, Any]]:
    """The lines by benchmark."""
    if not path.exists():
        return {}
    lines = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {line["benchmark"]: line for line in lines}


def write(path: Path, lines: Mapping[str, dict[str, Any]]) -> None:
    """All lines, in the order of the benchmarks."""
    body = b"".join(as_line(lines[name]) for name in BENCHMARKS if name in lines)
    write_whole(path, body, private=False)


def measured(
    benchmark: Benchmark, arguments: Sequence[str], folder: Path, peers_python: str | None
) -> dict[str, Any] | None:
    """What the script found and the load around it; None if it failed, which it says itself."""
    command = [sys.executable, str(HERE / benchmark.script), "--json", *arguments]
    if benchmark.rows:
        command += ["--rows", str(folder / ROWS)]
    if benchmark.peers and peers_python is not None:
        command += ["--peers-python", peers_python]
    before = os.getloadavg()[0]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        return None
    load = [round(before, 2), round(os.getloadavg()[0], 2)]
    return {"found": json.loads(done.stdout), "processor": processor(), "load": load}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="+", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--peers-python", help="interpreter of an environment with pfl and fedjax")
    parser.add_argument("--again", action="store_true", help="also what is measured already")
    parser.add_argument("--results", type=Path, default=RESULTS, help="folder of the lines")
    parser.add_argument("more", nargs="*", help="after --: further arguments of the benchmarks")
    args = parser.parse_args()
    args.results.mkdir(parents=True, exist_ok=True)
    ours = installed(sys.executable)
    peers = {} if args.peers_python is None else installed(args.peers_python)
    failed = []
    for name in chosen(args.only):
        benchmark, lines = BENCHMARKS[name], read(args.results / LINES)
        arguments = [*benchmark.arguments, *args.more]
        versions = versions_for(benchmark, ours, peers)
        if is_done(lines.get(name), arguments, versions) and not args.again:
            print(f"{name}: measured already")
            continue
        if benchmark.rows and args.again:
            (args.results / ROWS).unlink(missing_ok=True)
        began = time.monotonic()
        line = measured(benchmark, arguments, args.results, args.peers_python)
        if line is None:
            failed.append(name)
            continue
        lines[name] = {"benchmark": name, "arguments": arguments, "versions": versions, **line}
        write(args.results / LINES, lines)
        print(f"{name}, {time.monotonic() - began:.0f} s: {json.dumps(line)}", flush=True)
    if failed:
        print(f"failed: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


if __name__ == "__main__":
    sys.exit(main())
