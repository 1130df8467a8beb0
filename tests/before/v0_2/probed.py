"""The vectors, and the rule by which they are compared: bits where the kernels are the same, else
up to rounding.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import torch
from before.v0_2 import probe

ROUNDING = 1e-5  # of the largest entry
# On a coarse grid a number that is rounded at random may fall to the next step.
ONE_STEP = {"reference-sixteen-bits": 5e-5}


@cache
def vectors() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "vectors.npz") as file:
        return {name: file[name] for name in file.files}


@cache
def same_machine() -> bool:
    """Whether this machine has the kernels of the one where the vectors and files were made."""
    return probe.computed() == vectors()["probe"].tobytes() and str(torch.__version__) == str(
        vectors()["torch"]
    )


def machine() -> str:
    """For messages: which rule holds here, and why."""
    if same_machine():
        return "bit for bit"
    return (
        f"up to rounding, since this machine's probe differs ({probe.versions()}; it was "
        f"{vectors()['versions']})"
    )


def apart(found: np.ndarray, stored: np.ndarray) -> float:
    """The largest difference, in units of the largest entry."""
    assert found.shape == stored.shape
    difference = np.abs(found.astype(np.float64) - stored.astype(np.float64))
    if np.isnan(difference).any():
        return float("inf")
    return float(difference.max(initial=0.0) / (np.abs(stored).max(initial=0.0) or 1.0))


def check_same(found: np.ndarray, stored: np.ndarray, about: str) -> None:
    assert found.dtype == stored.dtype, about
    off = apart(found, stored)
    good = np.array_equal(found, stored) if same_machine() else off <= ONE_STEP.get(about, ROUNDING)
    assert good, f"{about}: {off:.1e} of the largest entry off; compared {machine()}"
