"""The state of a run and its last release, as the bytes of their files.

Guarantee: what is read back is what was written, bit for bit; equal content gives equal bytes. Both
files carry a digest of their content, and one that is damaged is refused with one line. A release
and the mechanism's memory after it are one file, so a kill leaves both or neither.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from fedspend.basics.json_values import number
from fedspend.basics.tensors import REMEDY, Sealed, read_sealed, seal
from fedspend.errors import InvalidInput
from fedspend.server.early_stopping import NOTHING_SEEN, Watched
from fedspend.server.methods.base import Release
from fedspend.server.rounds import Kept, TrainingState
from fedspend.stored.files import CHECKPOINT, RELEASE, RunFile

T = TypeVar("T")
_WATCHED = ("best", "best_round", "waited", "stopped")
_MEMORY = "memory."  # prefix of the mechanism's memory in a release's file


@dataclass(frozen=True, eq=False)
class StoredState:
    """A checkpoint: the state, its digest, and that of the metrics so far; None in version 0.1."""

    state: TrainingState
    digest: str | None
    metrics: str | None


@dataclass(frozen=True, eq=False)
class StoredRelease:
    """The release on disk, its round, and the digest of the file's content; None in version 0.1."""

    round: int
    kept: Kept
    digest: str | None


def pack_state(state: TrainingState, metrics: str) -> tuple[bytes, str]:
    """The checkpoint and its digest; `metrics` is the digest of the metrics of its rounds."""
    arrays: dict[str, npt.NDArray[Any]] = {
        "parameters": np.ascontiguousarray(state.parameters),
        "velocity": np.ascontiguousarray(state.velocity),
        "tail_sum": np.ascontiguousarray(state.tail_sum),
    }
    if state.votes.size:
        arrays["votes"] = np.ascontiguousarray(state.votes)
    if state.squares.size:
        arrays["squares"] = np.ascontiguousarray(state.squares)
    about = {"done": state.done, "tail_count": state.tail_count, "method": state.method}
    if state.watched is not NOTHING_SEEN:
        seen = state.watched
        about["watched"] = {name: getattr(seen, name) for name in _WATCHED}
        if seen.model.size:
            arrays["best"] = np.ascontiguousarray(seen.model)
    return seal(arrays, about | {"metrics": metrics})


def read_state(folder: Path, *, sealed: bool) -> StoredState | None:
    """The checkpoint of the run in `folder`, or None if no round was committed."""
    return _read(CHECKPOINT, folder, sealed, _state_of)


def _state_of(found: Sealed) -> StoredState:
    arrays, about = found.arrays, found.about
    size = arrays["parameters"].shape
    whole = type(about["done"]) is type(about["tail_count"]) is int and about["done"] >= 1
    if not (whole and isinstance(about["method"], dict) and len(size) == 1):
        raise ValueError
    if not arrays["velocity"].shape == arrays["tail_sum"].shape == size:
        raise ValueError
    if "squares" in arrays and arrays["squares"].shape != size:
        raise ValueError
    state = TrainingState(
        done=about["done"],
        parameters=arrays["parameters"],
        velocity=arrays["velocity"],
        tail_sum=arrays["tail_sum"],
        tail_count=about["tail_count"],
        method=about["method"],
        **{name: arrays[name] for name in ("votes", "squares") if name in arrays},
        watched=_watched_of(found),
    )
    return StoredState(state, found.digest, about.get("metrics"))


def _watched_of(found: Sealed) -> Watched:
    """What a stopping rule has seen; nothing where there is none."""
    told = found.about.get("watched")
    if told is None:
        return NOTHING_SEEN
    best, round, waited = number(told["best"]), told["best_round"], told["waited"]
    if not (type(waited) is int and type(told["stopped"]) is bool):
        raise ValueError
    if (best is None) != (round is None) or not (round is None or type(round) is int):
        raise ValueError
    if "best" not in found.arrays:
        return Watched(best, round, waited, told["stopped"])
    if found.arrays["best"].shape != found.arrays["parameters"].shape:
        raise ValueError
    return Watched(best, round, waited, told["stopped"], found.arrays["best"])


def pack_kept(round: int, kept: Kept) -> tuple[bytes, str]:
    """The release's file and its digest."""
    release = kept.release
    about = {
        "round": round,
        "bit": release.bit,
        "metric": release.metric,
        "statistics": kept.statistics,
    }
    memory = {f"{_MEMORY}{name}": array for name, array in kept.memory.items()}
    return seal({"update": release.update} | memory, about)


def read_kept(folder: Path, *, sealed: bool) -> StoredRelease | None:
    """The release on disk."""
    return _read(RELEASE, folder, sealed, _release_of)


def _release_of(found: Sealed) -> StoredRelease:
    arrays, about = found.arrays, found.about
    if type(about["round"]) is not int:
        raise ValueError
    memory = {
        name.removeprefix(_MEMORY): array
        for name, array in arrays.items()
        if name.startswith(_MEMORY)
    }
    release = Release(arrays["update"], about["bit"], about.get("metric"))
    return StoredRelease(about["round"], Kept(release, about["statistics"], memory), found.digest)


def _read(file: RunFile, folder: Path, sealed: bool, parse: Callable[[Sealed], T]) -> T | None:
    path = file.of(folder)
    if not path.exists():
        return None
    found = read_sealed(path, demanded=sealed)
    try:
        return parse(found)
    except (KeyError, TypeError, ValueError):
        raise InvalidInput(f"{path} is damaged: something is missing in it; {REMEDY}") from None
