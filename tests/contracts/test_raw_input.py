"""From the raw file to what leaves a client: another client's rows change not a single bit, under
every option of a real run.

One hospital's lines are taken out of the file, or replaced by ten times as many; the others'
contributions must have the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedspend.client.contribution import Reply
from fedspend.client.state import MemoryStates
from fedspend.client.task import ClientTask
from fedspend.configuration.config import any_config
from fedspend.errors import InvalidInput
from fedspend.runs.running import open_engine
from fedspend.runs.setup import flat_parameters, from_config
from fedspend.server.mechanism import NO_MEMORY, Gaussian
from fedspend.server.rounds import begin, play

BUDGETS = {"west": 30, "north": 5, "south": 8, "east": 20}
SIZES = {"north": 23, "east": 41, "south": 12, "west": 30}
METHODS = ("dp-fedavg", "dp-fedsgd", "idp-fedavg", "time-adaptive", "adaptive-clip", "ae-dpfl")
NOISES = ("central", "distributed", "discrete", "discrete-distributed")
VICTIM = "east"

Lines = dict[str, list[str]]


def lines(client: str, count: int, seed: int) -> list[str]:
    generator = np.random.default_rng(seed)
    return [
        f"{client},{','.join(f'{x:.4f}' for x in generator.normal(size=5))},{generator.integers(3)}"
        for _ in range(count)
    ]


HOSPITALS: Lines = {
    client: lines(client, count, number) for number, (client, count) in enumerate(SIZES.items())
}
CHANGES: dict[str, Lines] = {
    "emptied": HOSPITALS | {VICTIM: []},
    "ten times as many": HOSPITALS | {VICTIM: lines(VICTIM, 10 * SIZES[VICTIM], 99)},
    "one row less": HOSPITALS | {VICTIM: HOSPITALS[VICTIM][1:]},
}


def shuffled(found: Lines) -> list[str]:
    """One file for all, as a consortium would keep it: lines of all hospitals mixed, in an order
    that follows from each line alone.
    """
    return sorted((line for own in found.values() for line in own), key=lambda line: line[::-1])


def write(folder: Path, found: Lines) -> dict[str, Any]:
    """The files of a run, and what its config says about them."""
    folder.mkdir()
    header = "hospital,a,b,c,d,e,sick"
    (folder / "rows.csv").write_text("\n".join([header, *shuffled(found)]) + "\n")
    (folder / "test.csv").write_text("\n".join([header, *lines("test", 20, 7)]) + "\n")
    (folder / "public.csv").write_text("\n".join([header, *lines("public", 24, 8)]) + "\n")
    (folder / "budgets.csv").write_text(
        "client,epsilon\n" + "".join(f"{name},{epsilon}\n" for name, epsilon in BUDGETS.items())
    )
    return {
        "data": {
            "name": "csv",
            "path": str(folder / "rows.csv"),
            "test_path": str(folder / "test.csv"),
            "label": "sick",
            "client": "hospital",
            "classes": 3,
        },
        "model": {"name": "logistic"},
        "method": {"name": "idp-fedavg"},
        "privacy": {
            "budgets": str(folder / "budgets.csv"),
            "delta": 1e-3,
            "rate": 1.0,
            "clip": 0.2,
            "randomness": "seeded",  # so that two runs can be compared
        },
        "train": {"rounds": 3, "batch_size": 8, "lr": 0.5},
    }


class Recording:
    """Runs another engine and keeps what every client contributed."""

    def __init__(self, inner: Any) -> None:
        self._inner, self.outside, self.name = inner, inner.outside, inner.name
        self.kept: dict[str, tuple[bytes, float | None]] = {}

    def run(self, tasks: Sequence[ClientTask]) -> Iterator[Reply]:
        for reply in self._inner.run(tasks):
            self.kept[reply.contribution.client] = (
                reply.contribution.vector.tobytes(),
                reply.contribution.bit,
            )
            yield reply

    def close(self) -> None:
        self._inner.close()


def contributions(config: dict[str, Any]) -> dict[str, tuple[bytes, float | None]]:
    """What each client contributes to the first round."""
    setup = from_config(any_config(config))
    engine = Recording(open_engine(setup, MemoryStates()))
    progress = begin(flat_parameters(setup.module), setup.method)
    try:
        play(
            progress,
            setup.method,
            engine,
            setup.training,
            setup.randomness,
            Gaussian(setup.randomness),
            NO_MEMORY,
        )
    finally:
        engine.close()
    return engine.kept


def merged(config: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    if "local_steps" not in options.get("train", {}):
        config["train"]["local_epochs"] = 2
    return {
        section: config.get(section, {}) | options.get(section, {})
        for section in {*config, *options}
    }


def check(tmp_path: Path, options: dict[str, Any], *, votes: bool = False) -> None:
    found = {}
    for name, version in {"as it was": HOSPITALS, **CHANGES}.items():
        config = merged(write(tmp_path / name, version), options)
        if votes:
            config["data"]["public_path"] = str(tmp_path / name / "public.csv")
        found[name] = contributions(config)
    for name, kept in found.items():
        assert set(kept) == set(BUDGETS), name
        assert {client for client in BUDGETS if kept[client] != found["as it was"][client]} <= {
            VICTIM
        }, name
    assert found["ten times as many"][VICTIM] != found["as it was"][VICTIM], "or nothing was tested"
    if not options.get("privacy", {}).get("noise", "").endswith("distributed"):
        vector, bit = found["emptied"][VICTIM]
        assert not np.frombuffer(vector).any()
        assert bit in (None, 0.0)


@pytest.mark.filterwarnings("ignore:noise on a class")
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_and_noise(tmp_path: Path, method: str, noise: str) -> None:
    saving = {"saving_rate": 0.999} if method == "time-adaptive" else {}
    check(
        tmp_path,
        {"method": {"name": method}, "privacy": {"noise": noise} | saving},
        votes=method == "ae-dpfl",
    )


OPTIONS: dict[str, dict[str, Any]] = {
    "hold-out": {"data": {"validation": 0.3}},
    "part of the rows": {"data": {"share": 0.5}},
    "both": {"data": {"validation": 0.2, "share": 0.7}},
    "per-layer": {"privacy": {"clipping": "per-layer"}, "model": {"name": "mlp", "hidden": [6]}},
    "shaped": {"shape": {"blur": 0.5, "lus": 0.3}},
    "momentum": {"train": {"momentum": 0.5}},
    "bounds": {"data": {"bounds": [-3, 3]}},
    "reference": {"engine": {"name": "reference"}},
    "steps": {"train": {"local_steps": 5}},
}


@pytest.mark.parametrize("option", OPTIONS)
def test_every_option(tmp_path: Path, option: str) -> None:
    check(tmp_path, OPTIONS[option])


def test_features_of_images_are_made_client_by_client(tmp_path: Path) -> None:
    found = {}
    for name, version in {"as it was": HOSPITALS, **CHANGES}.items():
        config = write(tmp_path / name, version)
        order = shuffled(version)
        images = [np.random.default_rng(list(line.encode())).random((1, 12, 12)) for line in order]
        path = tmp_path / name / "rows.npz"
        np.savez(
            path,
            features=np.array(images, dtype=np.float32),
            label=np.array([int(line.rpartition(",")[2]) for line in order]),
            client=np.array([line.partition(",")[0] for line in order]),
            test_features=np.random.default_rng(0).random((5, 1, 12, 12), dtype=np.float32),
            test_label=np.array([0, 1, 2, 0, 1]),
        )
        config["data"] = {"name": "npz", "path": str(path), "classes": 3}
        found[name] = contributions(merged(config, {"model": {"features": "gabor"}}))
    for name, kept in found.items():
        assert {client for client in BUDGETS if kept[client] != found["as it was"][client]} <= {
            VICTIM
        }, name


def test_a_file_with_nan_is_refused_in_one_line_and_nothing_is_released(tmp_path: Path) -> None:
    version = HOSPITALS | {
        VICTIM: [line.replace(line.split(",")[1], "nan") for line in HOSPITALS[VICTIM]]
    }
    with pytest.raises(InvalidInput, match="nan") as refusal:
        contributions(merged(write(tmp_path / "nan", version), {}))
    assert "\n" not in str(refusal.value)


def test_hold_out_over_pooled_rows_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broken reader: which rows are held out is drawn over all rows together,
    as it once was.
    """
    from fedspend.data import dataset

    monkeypatch.setattr(
        dataset,
        "chosen_rows",
        lambda clients, *_: np.random.default_rng(0).random(len(clients)) < 0.3,
    )
    with pytest.raises(AssertionError):
        check(tmp_path, {"data": {"validation": 0.3}})
