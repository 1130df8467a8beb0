"""Run with version 0.2.0; never again: `PYTHONPATH=tests python -m before.v0_2.make_vectors`.

Writes `vectors.npz`: what every run of `runs.py` gives, the probe of the machine, and the versions
it had.
"""

from __future__ import annotations

import time
import warnings
from pathlib import Path

import numpy as np
import torch
from before.v0_2 import probe, runs

import fedspend

VECTORS = Path(__file__).parent / "vectors.npz"


def main() -> None:
    assert fedspend.__version__ == "0.2.0"
    assert not VECTORS.exists(), "these vectors are what later versions are held to"
    warnings.simplefilter("ignore", fedspend.FedspendWarning)
    torch.set_num_threads(1)
    arrays: dict[str, np.ndarray] = {
        "probe": np.frombuffer(probe.computed(), dtype=np.uint8),
        "torch": np.array(str(torch.__version__)),
        "versions": np.array(probe.versions()),
    }
    for name in [*runs.CONFIGS, *runs.ARRAYS]:
        begun = time.perf_counter()
        model, metrics = arrays[f"{name}/model"], arrays[f"{name}/metrics"] = runs.result_of(name)
        again = runs.result_of(name)
        assert np.array_equal(again[0], model), f"{name} gives another model the second time"
        assert np.array_equal(again[1], metrics, equal_nan=True), f"{name} tells other metrics"
        seconds = (time.perf_counter() - begun) / 2
        print(f"{name:45} {seconds:5.2f} s  {metrics[-1].round(3)}", flush=True)
    np.savez_compressed(VECTORS, **arrays)
    print(f"{VECTORS.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
