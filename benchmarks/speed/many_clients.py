"""Memory and time of a round with very many clients whose rows are mapped from files.

    python benchmarks/speed/many_clients.py 10000 100000

Each number of clients is run in a process of its own: 10 rows of 16 features a client, logistic
regression, one local epoch, a cohort of about 1,000, seeded. Memory is what the process has of its
own (RssAnon: not the pages of mapped files, which the system may drop at any time), at the highest
point seen between and after rounds, less what it had after imports: what is in use, and, as
`with_free`, also what the allocator keeps although it was freed. What one more client costs is the
difference between two runs. `--real` draws noise from the operating system and charges a ledger.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import json
import os

os.environ.setdefault("OMP_NUM_THREADS", "1")

import resource
import subprocess
import sys
import tempfile
import time
import warnings
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

ROWS, FEATURES, COHORT, ROUNDS = 10, 16, 1000, 5


def write(folder: Path, clients: int) -> None:
    """The arrays of a folder, a block of clients at a time."""
    rows = clients * ROWS
    features = np.lib.format.open_memmap(
        folder / "features.npy", mode="w+", dtype=np.float32, shape=(rows, FEATURES)
    )
    labels = np.lib.format.open_memmap(
        folder / "label.npy", mode="w+", dtype=np.int64, shape=(rows,)
    )
    owners = np.lib.format.open_memmap(
        folder / "client.npy", mode="w+", dtype=np.int64, shape=(rows,)
    )
    generator = np.random.default_rng(0)
    for start in range(0, rows, 100_000):
        part = slice(start, min(rows, start + 100_000))
        labels[part] = generator.integers(0, 2, len(labels[part]))
        features[part] = generator.normal(size=features[part].shape) + labels[part][:, None] / 2
        owners[part] = np.arange(part.start, part.stop) // ROWS
    np.save(folder / "test_features.npy", features[:1000])
    np.save(folder / "test_label.npy", labels[:1000])


def own_bytes() -> int:
    """Memory of this process that no file is behind."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("RssAnon"))


def measure(folder: Path, clients: int, real: bool) -> dict[str, Any]:
    import torch  # noqa: F401

    import fedspend
    import fedspend.design
    import fedspend.runs.training

    warnings.simplefilter("ignore")
    gc.collect()
    trim = ctypes.CDLL("libc.so.6").malloc_trim
    before, began, seen, kept, times = own_bytes(), time.perf_counter(), [], [], []
    config = {
        "data": {"name": "npy", "path": str(folder), "classes": 2},
        "model": {"name": "logistic"},
        "method": {"name": "dp-fedavg"},
        "privacy": {
            "epsilon": 4.0,
            "delta": 1e-7,
            "rate": min(1.0, COHORT / clients),
            "accountant": "rdp",
            "randomness": "os" if real else "seeded",
        },
        "train": {"rounds": ROUNDS, "batch_size": ROWS, "local_epochs": 1, "lr": 0.1},
    }

    def on_round(*_: Any) -> None:
        times.append(time.perf_counter())
        kept.append(own_bytes())
        trim(0)
        seen.append(own_bytes())

    charged = {"ledger": folder / "ledger.db", "project": "speed"} if real else {}
    fedspend.train(config, on_round=on_round, **charged)
    gaps = np.diff(times)
    return {
        "clients": clients,
        "bytes": max(seen) - before,
        "with_free": max(kept) - before,
        "peak_rss": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "seconds before the first round": round(times[0] - began - float(np.median(gaps)), 2),
        "seconds a round": round(float(np.median(gaps)), 4),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("clients", type=int, nargs="+")
    parser.add_argument("--real", action="store_true", help="with real noise and a ledger")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.folder is not None:
        print(json.dumps(measure(args.folder, args.clients[0], args.real)))
        return
    found = []
    for clients in args.clients:
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder), clients)
            command = [sys.executable, __file__, str(clients), "--folder", folder]
            done = subprocess.run(
                command + ["--real"] * args.real, capture_output=True, text=True, check=True
            )
        found.append(json.loads(done.stdout.splitlines()[-1]))
        print(found[-1], flush=True)
    for less, more in pairwise(found):
        each = (more["bytes"] - less["bytes"]) / (more["clients"] - less["clients"])
        print(f"{less['clients']:,} to {more['clients']:,} clients: {each:.0f} bytes a client")


if __name__ == "__main__":
    main()
