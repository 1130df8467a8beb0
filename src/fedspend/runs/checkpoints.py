"""The state of a run and its last release, as the bytes of their files.

Guarantee: what is read back is what was written, bit for bit; equal content gives equal bytes. A
release and the mechanism's memory after it are one file, so a kill leaves both or neither.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from fedspend.basics.tensors import pack, read_tensors
from fedspend.server.methods.base import Release
from fedspend.server.rounds import Kept, TrainingState
from fedspend.stored.files import CHECKPOINT, RELEASE

_MEMORY = "memory."  # prefix of the mechanism's memory in a release's file


def pack_state(state: TrainingState) -> bytes:
    arrays: dict[str, npt.NDArray[Any]] = {
        "parameters": np.ascontiguousarray(state.parameters),
        "velocity": np.ascontiguousarray(state.velocity),
        "tail_sum": np.ascontiguousarray(state.tail_sum),
    }
    if state.votes.size:
        arrays["votes"] = np.ascontiguousarray(state.votes)
    about = {"done": state.done, "tail_count": state.tail_count, "method": state.method}
    return pack(arrays, about)


def read_state(folder: Path) -> TrainingState | None:
    """The training state of the run in `folder`, or None if no round was committed."""
    path = CHECKPOINT.of(folder)
    if not path.exists():
        return None
    arrays, about = read_tensors(path)
    return TrainingState(
        done=about["done"],
        parameters=arrays["parameters"],
        velocity=arrays["velocity"],
        tail_sum=arrays["tail_sum"],
        tail_count=about["tail_count"],
        method=about["method"],
        **({"votes": arrays["votes"]} if "votes" in arrays else {}),
    )


def pack_kept(round: int, kept: Kept) -> bytes:
    release = kept.release
    about = {
        "round": round,
        "bit": release.bit,
        "metric": release.metric,
        "statistics": kept.statistics,
    }
    memory = {f"{_MEMORY}{name}": array for name, array in kept.memory.items()}
    return pack({"update": release.update} | memory, about)


def read_kept(folder: Path) -> tuple[int, Kept] | None:
    """The release on disk, and its round."""
    path = RELEASE.of(folder)
    if not path.exists():
        return None
    arrays, about = read_tensors(path)
    memory = {
        name.removeprefix(_MEMORY): array
        for name, array in arrays.items()
        if name.startswith(_MEMORY)
    }
    release = Release(arrays["update"], about["bit"], about.get("metric"))
    return about["round"], Kept(release, about["statistics"], memory)
