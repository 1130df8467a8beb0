"""Run with version 0.1.0; never again: `PYTHONPATH=tests python -m before.make_vectors`.

Writes `people.csv`, `patients.csv` and `budgets.csv`, which some runs read, and `vectors.npz`: what
every run of `runs.py` gives, the probe of the machine, and the versions it had.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import numpy as np
import torch
from before import runs
from before.v0_2 import probe

import fedspend

VECTORS = Path(__file__).parent / "vectors.npz"


def write_rows() -> None:
    """Two classes at four places; patients also have budgets."""
    generator = np.random.Generator(np.random.Philox(7))
    for path, count in ((runs.PEOPLE, 160), (runs.PATIENTS, 80)):
        lines = ["client,split,label,a,b,c,d" + (",epsilon" if path == runs.PATIENTS else "")]
        for number in range(count):
            place, label = (
                ("north", "south", "east", "west")[number % 4],
                int(generator.integers(2)),
            )
            cells = [
                f"{value / 100:.2f}"
                for value in generator.integers(-100, 101, 4) + 60 * (2 * label - 1)
            ]
            split = "test" if number % 5 == 4 else "train"
            budget = (
                [str((0.5, 1, 2, 5)[int(generator.integers(4))])] if path == runs.PATIENTS else []
            )
            lines.append(",".join([place, split, str(label), *cells, *budget]))
        path.parent.mkdir(exist_ok=True)
        path.write_text("\n".join(lines) + "\n")
    runs.BUDGETS.write_text("client,epsilon\nnorth,1\nsouth,2\neast,20\nwest,30\n")


def check_no_client_is_empty() -> None:
    from fedspend.configuration.config import config_of
    from fedspend.configuration.data_inputs import federation_of

    for name, config in (runs.EXACT | runs.DENSE).items():
        sizes = [len(shard) for shard in federation_of(config_of(config)).shards]
        assert (min(sizes) == 0) == name.endswith("with-empty-clients"), (name, sizes)


def main() -> None:
    assert fedspend.__version__ == "0.1.0"
    assert not VECTORS.exists(), "these vectors are what later versions are held to"
    warnings.filterwarnings("ignore", message="noise on a class")
    torch.set_num_threads(1)
    write_rows()
    check_no_client_is_empty()
    arrays: dict[str, np.ndarray] = {
        "probe": np.frombuffer(probe.computed(), dtype=np.uint8),
        "torch": np.array(str(torch.__version__)),
        "versions": np.array(probe.versions()),
    }
    for name in [*runs.EXACT, *runs.ARRAYS, *runs.DENSE]:
        begun = time.perf_counter()
        arrays[f"{name}/model"], arrays[f"{name}/metrics"] = runs.result_of(name)
        # logistic regression starts at zero
        if name in runs.DENSE and runs.DENSE[name]["model"]["name"] == "mlp":
            arrays[f"{name}/start"] = start_of(runs.DENSE[name])
        again = runs.result_of(name)
        assert np.array_equal(again[0], arrays[f"{name}/model"]), (
            f"{name} gives another model the second time"
        )
        assert np.array_equal(again[1], arrays[f"{name}/metrics"], equal_nan=True), (
            f"{name} tells other metrics the second time"
        )
        print(
            f"{name:45} {(time.perf_counter() - begun) / 2:5.2f} s  accuracy "
            f"{arrays[f'{name}/metrics'][-1, 0]:.3f}",
            flush=True,
        )
    for name in runs.ACCURACY:
        begun = time.perf_counter()
        arrays[f"accuracy/{name}"] = runs.accuracies(name)
        print(
            f"accuracy of {name:33} {time.perf_counter() - begun:5.2f} s  "
            f"{arrays[f'accuracy/{name}'].round(3)}",
            flush=True,
        )
    np.savez_compressed(VECTORS, **arrays)
    print(f"{VECTORS.stat().st_size:,} bytes")


def start_of(config: runs.Config) -> np.ndarray:
    from fedspend.configuration.config import config_of
    from fedspend.runs.setup import flat_parameters, from_config

    return flat_parameters(from_config(config_of(config)).module)


if __name__ == "__main__":
    main()
