"""From the raw file to what leaves a client: another client's rows change not a single bit, under
every option of a real run.

One hospital's lines are taken out of the file, or replaced by ten times as many; the others'
contributions must have the same bytes. Its own stays within its clip, its bit and its metric within
1/2, and all are exactly zero without rows. `test_raw_records.py` has the methods that protect
records.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts.raw_files import (
    Given,
    Recording,
    Row,
    merged,
    mixed,
    repeatable,
    rows_of,
    with_split,
    write_rows,
)
from lib.configs import small

from fedspend.client.rows import Rows as OwnRows
from fedspend.client.state import MemoryStates
from fedspend.errors import InvalidInput
from fedspend.runs.running import open_engine
from fedspend.runs.setup import flat_parameters
from fedspend.server.mechanism import NO_MEMORY, Gaussian
from fedspend.server.rounds import begin, play

BUDGETS = {"west": 30, "north": 5, "south": 8, "east": 20}
SIZES = {"north": 23, "east": 41, "south": 12, "west": 30}
METHODS = ("dp-fedavg", "dp-fedsgd", "idp-fedavg", "time-adaptive", "adaptive-clip", "ae-dpfl")
NOISES = ("central", "distributed", "discrete", "discrete-distributed")
VICTIM = "east"

Rows = dict[str, list[Row]]

HOSPITALS: Rows = {
    client: rows_of(client, count, number) for number, (client, count) in enumerate(SIZES.items())
}
CHANGES: dict[str, Rows] = {
    "emptied": HOSPITALS | {VICTIM: []},
    "ten times as many": HOSPITALS | {VICTIM: rows_of(VICTIM, 10 * SIZES[VICTIM], 99, scale=3.0)},
    "one row less": HOSPITALS | {VICTIM: HOSPITALS[VICTIM][1:]},
}


def write(
    folder: Path, found: Rows, form: str = "csv", *, guest: int | None = None, split: bool = False
) -> dict[str, Any]:
    """The files of a run, and its config. The `guest`, with a seed for its rows, is listed
    nowhere.
    """
    folder.mkdir()
    if form == "images":  # their features take time
        found = {client: own[: len(own) // 4] for client, own in found.items()}
    rows = mixed(found | ({} if guest is None else {"guest": rows_of("guest", 9, guest, 2.0)}))
    data = write_rows(folder, rows, form)
    (folder / "budgets.csv").write_text(
        "client,epsilon\n" + "".join(f"{name},{epsilon}\n" for name, epsilon in BUDGETS.items())
    )
    privacy = {
        "budgets": str(folder / "budgets.csv"),
        "delta": 1e-3,
        "rate": 1.0,
        "clip": 0.2,
        "randomness": "seeded",
    }
    train = {"rounds": 3, "batch_size": 8, "lr": 0.5}
    return small(
        "plain", data=with_split(data, rows) if split else data, privacy=privacy, train=train
    )


def contributions(config: dict[str, Any]) -> dict[str, Given]:
    """What each client contributes to the first round."""
    setup = repeatable(config)
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


def completed(config: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    """With a length of local training, unless the options have one; and with public rows, if
    clients vote.
    """
    made = merged(config, options)
    if "local_steps" not in made["train"]:
        made["train"]["local_epochs"] = 2
    if made["method"]["name"] == "ae-dpfl":
        path = Path(made["data"]["path"])
        made["data"]["public_path"] = str(path.with_name(f"public{path.suffix}"))
    return made


def check(
    tmp_path: Path, options: dict[str, Any], form: str = "csv", *, split: bool = False
) -> None:
    """All that independence means, for every change of one client's lines."""
    guest = 50 if "leave_out" in options.get("data", {}) else None
    found = {
        name: contributions(
            completed(write(tmp_path / name, version, form, guest=guest, split=split), options)
        )
        for name, version in {"as it was": HOSPITALS, **CHANGES}.items()
    }
    for name, kept in found.items():
        assert set(kept) == set(BUDGETS), name
        assert {client for client in BUDGETS if kept[client] != found["as it was"][client]} <= {
            VICTIM
        }, name
    assert found["ten times as many"][VICTIM] != found["as it was"][VICTIM], "or nothing was tested"
    if not options.get("privacy", {}).get("noise", "").endswith("distributed"):
        for name, kept in found.items():
            assert kept[VICTIM].norm <= kept[VICTIM].clip * (1 + 1e-9), name
            assert kept[VICTIM].bit in (None, -0.5, 0.0, 0.5), name
            assert abs(kept[VICTIM].metric or 0.0) <= 0.5, name
        assert found["emptied"][VICTIM].norm == 0
        assert found["emptied"][VICTIM].bit in (None, 0.0)
        assert found["emptied"][VICTIM].metric in (None, 0.0)
    metrics = {kept[client].metric is None for kept in found.values() for client in kept}
    assert metrics == {"evaluation" not in options}


@pytest.mark.full(but=["dp-fedavg-central", "dp-fedsgd-distributed"])
@pytest.mark.filterwarnings("ignore:noise on a class")
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("method", METHODS)
def test_every_method_and_noise(tmp_path: Path, method: str, noise: str) -> None:
    saving = {"saving_rate": 0.999} if method == "time-adaptive" else {}
    check(tmp_path, {"method": {"name": method}, "privacy": {"noise": noise} | saving})


OPTIONS: dict[str, dict[str, Any]] = {
    "per-layer": {"privacy": {"clipping": "per-layer"}, "model": {"name": "mlp", "hidden": [6]}},
    "shaped": {"shape": {"blur": 0.5, "lus": 0.3}},
    "momentum": {"train": {"momentum": 0.5}},
    "reference": {"engine": {"name": "reference"}},
    "steps": {"train": {"local_steps": 5}},
}


@pytest.mark.full(but=["momentum"])
@pytest.mark.parametrize("option", OPTIONS)
def test_every_option_of_training(tmp_path: Path, option: str) -> None:
    check(tmp_path, OPTIONS[option])


PRIVATE: dict[str, Any] = {"evaluation": {"mode": "private"}}


@pytest.mark.full(but=["central-local"])
@pytest.mark.parametrize("engine", ["local", "reference"])
@pytest.mark.parametrize("noise", NOISES)
def test_every_noise_and_engine_with_a_private_metric(
    tmp_path: Path, noise: str, engine: str
) -> None:
    options = {
        "data": {"validation": 0.3},
        "method": {"name": "adaptive-clip"},
        "privacy": {"noise": noise},
        "engine": {"name": engine},
    }
    check(tmp_path, options | PRIVATE)


REAL: dict[str, Any] = {"privacy": {"randomness": "os"}}
# how the data of a real run may be read: options, form of the file, and a column of test rows
DATA: dict[str, tuple[dict[str, Any], str, bool]] = {
    "hold-out": ({"data": {"validation": 0.3}}, "csv", False),
    "part of the rows": ({"data": {"share": 0.5}}, "csv", False),
    "both": ({"data": {"validation": 0.2, "share": 0.7, "test_share": 0.8}}, "csv", False),
    "bounds": ({"data": {"bounds": [-3, 3]}}, "csv", False),
    "natural, with a guest": (
        {"data": {"partition": "natural", "leave_out": ["guest"]}},
        "csv",
        False,
    ),
    "column of test rows": ({}, "csv", True),
    "private metric": ({"data": {"validation": 0.3}} | PRIVATE, "csv", False),
    "private metric of a column": (PRIVATE, "csv", True),
    "arrays": ({}, "npz", False),
    "all of it, of arrays": (
        {
            "data": {
                "bounds": [-3, 3],
                "validation": 0.3,
                "share": 0.7,
                "leave_out": ["guest"],
            }
        },
        "npz",
        False,
    ),
    "features of images": ({"model": {"features": "gabor"}}, "images", False),
    "words and missing cells": ({"data": {"validation": 0.3}}, "declared", False),
    "parquet": ({"data": {"validation": 0.3}}, "parquet", False),
    "folders of images": ({}, "folders", False),
}
# adaptive-clip has bits, and ae-dpfl public rows
READ_BY = ("idp-fedavg", "adaptive-clip", "ae-dpfl")


def read_as(kind: str, method: str) -> tuple[dict[str, Any], str, bool]:
    options, form, split = DATA[kind]
    return merged({"method": {"name": method}} | options, REAL), form, split


@pytest.mark.full(but=["idp-fedavg-natural, with a guest", "ae-dpfl-hold-out", "ae-dpfl-parquet"])
@pytest.mark.filterwarnings("ignore:noise on a class")
@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("method", READ_BY)
def test_every_way_of_reading_the_data_of_a_real_run(
    tmp_path: Path, method: str, kind: str
) -> None:
    options, form, split = read_as(kind, method)
    check(tmp_path, options, form, split=split)


TARGETS: dict[str, tuple[dict[str, Any], str]] = {
    "numbers": ({"task": {"loss": "squared"}}, "numbers"),
    "next token": (
        {
            "task": {"loss": "next-token"},
            "model": {"name": "lstm", "vocabulary": 12, "width": 4},
            "data": {"validation": 0.3},
        },
        "texts",
    ),
}


@pytest.mark.full(only=["next token"])
@pytest.mark.parametrize("kind", TARGETS)
def test_every_kind_of_target_of_a_real_run(tmp_path: Path, kind: str) -> None:
    options, form = TARGETS[kind]
    check(tmp_path, merged(options, REAL), form)


@pytest.mark.full(but=["idp-fedavg"])
@pytest.mark.filterwarnings("ignore:noise on a class")
@pytest.mark.parametrize("method", READ_BY)
def test_rows_of_a_client_that_is_left_out_change_nothing_at_all(
    tmp_path: Path, method: str
) -> None:
    options, form, _ = read_as("all of it, of arrays", method)
    found = [
        contributions(completed(write(tmp_path / str(seed), HOSPITALS, form, guest=seed), options))
        for seed in (50, 51)
    ]
    assert found[0] == found[1]


def with_nan(row: Row) -> Row:
    return Row(row.client, (float("nan"), *row.values[1:]), row.label)


def check_nan_is_refused(tmp_path: Path, form: str, options: dict[str, Any]) -> None:
    version = HOSPITALS | {VICTIM: [with_nan(row) for row in HOSPITALS[VICTIM]]}
    with pytest.raises(InvalidInput, match="nan") as refusal:
        contributions(completed(write(tmp_path / "nan", version, form), options))
    assert "\n" not in str(refusal.value)


BAD_CELLS = {
    "nan": ("nan", "a must be a number"),
    "a word": ("many", "a must be a number"),
    "infinite": ("inf", "a must be a number"),
    "another label": ("2;perhaps", "cells where the header has"),
    "two marks": ("1.5", "write decimals one way"),
}


@pytest.mark.parametrize("bad", BAD_CELLS)
def test_one_clients_bad_cells_stop_the_run_before_anything_is_released(
    tmp_path: Path, bad: str
) -> None:
    """A refusal is all that a bad cell can do: it changes no other client's rows, and nothing is
    charged or released. Whoever starts the run sees its line.
    """
    config = completed(write(tmp_path / "bad", HOSPITALS, "declared"), REAL)
    path = Path(config["data"]["path"])
    lines = path.read_text().splitlines()
    place = next(n for n, line in enumerate(lines) if line.startswith(VICTIM))
    cells = lines[place].split(";")
    cells[2], told = BAD_CELLS[bad]
    lines[place] = ";".join(cells)
    path.write_text("\n".join(lines) + "\n")
    with pytest.raises(InvalidInput, match=told) as refusal:
        contributions(config)
    assert f"{path}:" in str(refusal.value)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("form", ["csv", "npz"])
@pytest.mark.parametrize("kind", ["as it is", "bounds", "both"])
def test_a_file_with_nan_is_refused_in_one_line_and_nothing_is_released(
    tmp_path: Path, form: str, kind: str
) -> None:
    """Bounds cut off what lies outside, and NaN must not slip through; nor may a hold-out hide
    it.
    """
    check_nan_is_refused(tmp_path, form, DATA[kind][0] if kind in DATA else {})


# --- broken readers -------------------------------------------------------------------------------


def draws_over_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which rows are held out is drawn over all rows together, as it once was."""
    from fedspend.data import dataset

    monkeypatch.setattr(
        dataset,
        "chosen_rows",
        lambda clients, *_: np.random.default_rng(0).random(len(clients)) < 0.3,
    )


def learns_a_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are scaled by the mean and the deviation of everybody's rows."""
    from fedspend.data import tables
    from fedspend.data.declared import Declared

    real_csv, real_npz = Declared.read, tables.as_features

    def standard(values: np.ndarray) -> np.ndarray:
        return ((values - values.mean(axis=0)) / (values.std(axis=0) + 1e-9)).astype(np.float32)

    monkeypatch.setattr(Declared, "read", lambda *given: standard(real_csv(*given)))
    monkeypatch.setattr(tables, "as_features", lambda *given: standard(real_npz(*given)))


def centres_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of images, less the mean over all of them."""
    from fedspend.models import feature_cache

    real = feature_cache._made

    def centred(name: str, images: np.ndarray, shards: Any) -> np.ndarray:
        found = real(name, images, shards)
        return found - found.mean(axis=0)

    monkeypatch.setattr(feature_cache, "_made", centred)


def fills_in(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is no number becomes the mean of its column."""
    from fedspend.data import dataset, tables

    def filled(*given: Any) -> np.ndarray:
        values = np.asarray(dataset.as_features(*given))
        return np.where(np.isnan(values), np.nanmean(values, axis=0), values)

    monkeypatch.setattr(tables, "as_features", filled)


def fills_in_means(monkeypatch: pytest.MonkeyPatch) -> None:
    """A missing cell becomes the mean of everybody's cells, not what is declared."""
    from fedspend.data.declared import NumberColumn

    real = NumberColumn.read

    def filled(self: Any, column: Any, marks: Any) -> np.ndarray:
        values = real(self, column, marks)
        if self.missing is not None:
            absent = column.absent(marks)
            values[absent, 0] = values[~absent, 0].mean()
        return values

    monkeypatch.setattr(NumberColumn, "read", filled)


BROKEN: dict[str, tuple[Callable[[pytest.MonkeyPatch], None], tuple[str, ...]]] = {
    "draws over the pool": (draws_over_the_pool, ("hold-out", "private metric")),
    "learns a scale": (
        learns_a_scale,
        (
            "bounds",
            "natural, with a guest",
            "column of test rows",
            "arrays",
            "words and missing cells",
        ),
    ),
    "centres features": (centres_features, ("features of images",)),
    "fills in means": (fills_in_means, ("words and missing cells",)),
}


@pytest.mark.full(
    but=[
        "idp-fedavg-draws over the pool-hold-out",
        "adaptive-clip-draws over the pool-private metric",
        "ae-dpfl-learns a scale-bounds",
        "idp-fedavg-learns a scale-natural, with a guest",
        "adaptive-clip-learns a scale-column of test rows",
        "ae-dpfl-learns a scale-arrays",
        "idp-fedavg-learns a scale-words and missing cells",
        "idp-fedavg-centres features-features of images",
        "idp-fedavg-fills in means-words and missing cells",
    ]
)
@pytest.mark.filterwarnings("ignore:noise on a class")
@pytest.mark.parametrize(
    ("method", "broken", "kind"),
    [
        (method, name, kind)
        for name, (_, kinds) in BROKEN.items()
        for kind in kinds
        for method in (
            READ_BY if name in ("draws over the pool", "learns a scale") else READ_BY[:1]
        )
    ],
)
def test_a_reader_that_looks_at_everybody_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, broken: str, kind: str
) -> None:
    BROKEN[broken][0](monkeypatch)
    options, form, split = read_as(kind, method)
    with pytest.raises(AssertionError):
        check(tmp_path, options, form, split=split)


def test_rows_that_are_left_out_and_matter_all_the_same_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    learns_a_scale(monkeypatch)
    with pytest.raises(AssertionError):
        test_rows_of_a_client_that_is_left_out_change_nothing_at_all(tmp_path, "idp-fedavg")


def test_nan_that_is_filled_in_from_other_rows_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fills_in(monkeypatch)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check_nan_is_refused(tmp_path, "npz", {})


def test_a_clip_that_does_not_hold_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from fedspend.client import work

    real = work.bounded
    monkeypatch.setattr(
        work,
        "bounded",
        lambda update, *rest: replace(own := real(update, *rest), vector=2 * own.vector),
    )
    with pytest.raises(AssertionError):
        check(tmp_path, {})


def test_a_bit_of_a_client_without_rows_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As it once was: a client without rows said that it was not clipped."""
    from fedspend.engines import dense

    real = dense.finished
    monkeypatch.setattr(
        dense, "finished", lambda task, update, _, *rest: real(task, update, 1, *rest)
    )
    with pytest.raises(AssertionError):
        check(tmp_path, {"method": {"name": "adaptive-clip"}})


def test_a_metric_of_a_client_without_rows_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client without held-out rows must not say that half of them, or none, are right."""
    from fedspend.client import numbers

    real = numbers.measured
    monkeypatch.setattr(
        numbers,
        "measured",
        lambda task, rows, module, grid, *rest: (
            real(task, rows, module, grid, *rest) if len(rows) else grid.steps // 2
        ),
    )
    with pytest.raises(AssertionError):
        check(tmp_path, {"data": {"validation": 0.3}} | PRIVATE)


def test_a_metric_over_the_pool_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Everybody's held-out rows in one metric: no client's own."""
    from fedspend.engines.base import HeldOut

    monkeypatch.setattr(
        HeldOut,
        "rows",
        lambda self, _, **how: OwnRows(
            self.features, self.labels, np.arange(len(self.labels)), **how
        ),
    )
    with pytest.raises(AssertionError):
        check(tmp_path, {"data": {"validation": 0.3}} | PRIVATE)
