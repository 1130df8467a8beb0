"""From the raw file to the sums of gradients: what one record holds, or all records of a client,
changes nothing for anybody else, under every method that protects records.

The unit is the record. Neighbours differ in what one record holds, or in whether it has a row at
all; ids, budgets and the roster stay. So the plan is the same; every other client's contribution
has the same bytes; and within the client, given the same earlier releases, the sum of a step moves
by at most one clip against the version without the row.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts.raw_files import Row, merged, mixed, repeatable, rows_of, with_split, write_rows
from lib.configs import small

from fedspend.basics.arrays import FloatArray
from fedspend.basics.tensors import unpack
from fedspend.client import record_steps, work
from fedspend.client.norm_budgets import Payments
from fedspend.client.state import MemoryStates
from fedspend.configuration import record_plans
from fedspend.data import dataset, tables
from fedspend.data.declared import Declared
from fedspend.data.partition import ABSENT, Federation
from fedspend.errors import InvalidInput
from fedspend.models import feature_cache
from fedspend.noise.randomness import Randomness
from fedspend.runs.running import open_engine
from fedspend.runs.setup import flat_parameters
from fedspend.server.rounds import begin, round_task, tasks_of

SIZES = {"west": 7, "north": 5, "south": 6, "east": 12}
VICTIM, RECORD = "east", "east-3"  # which every hold-out and sample below leaves in
CLIP, ROUNDS, STEPS = 0.2, 2, 3
RELEASE = record_steps.release_step

Rows = dict[str, list[Row]]
Change = Callable[[Rows], Rows]

HOSPITALS: Rows = {
    client: rows_of(client, count, number) for number, (client, count) in enumerate(SIZES.items())
}
# The victim has the largest budget, so that every method trains on it; the strictest budget is at
# its client, too.
BUDGETS = {
    row.record: (8.0 if row.record == RECORD else 1.0 + number % 5 + number / 100)
    for number, row in enumerate(row for own in HOSPITALS.values() for row in own)
} | {"east-1": 0.9}
METHODS: dict[str, dict[str, Any]] = {
    "rpdp": {"method": {"name": "rpdp"}},
    "rpdp that saves": {"method": {"name": "rpdp", "saving_share": 0.5}},
    "minimum": {"method": {"name": "minimum"}},
    "dropout": {"method": {"name": "dropout"}},
    "filter by clip": {"method": {"name": "filter", "charge": "clip"}},
    "filter by norm": {"method": {"name": "filter", "charge": "norm"}},
}


def one(new: Callable[[Row], list[Row]], record: str = RECORD) -> Change:
    """Another version of one record's row."""
    return lambda found: (
        found
        | {
            VICTIM: [
                other
                for row in found[VICTIM]
                for other in (new(row) if row.record == record else [row])
            ]
        }
    )


# Records hold something else. Who is in the data stays there, however the roster is made.
HELD: dict[str, Change] = {
    "all replaced": lambda found: found | {VICTIM: rows_of(VICTIM, SIZES[VICTIM], 99, 3.0)},
    "one replaced": one(lambda row: [replace(row, values=(0.5, -1.0, 2.0, 0.0, 1.0))]),
    "one far away": one(lambda row: [replace(row, values=(90.0,) * 5, label=(row.label + 1) % 3)]),
}
# Whether there are rows: for a roster that is fixed before rows are read.
THERE: dict[str, Change] = {
    # which rows are for tests, only rows can say
    "all missing": lambda found: (
        found | {VICTIM: [row for row in found[VICTIM] if row.split == "test"]}
    ),
    "one missing": one(lambda _: []),
}


def write(
    folder: Path,
    found: Rows,
    form: str = "csv",
    *,
    split: bool = False,
    listed: bool = True,
    suggested: bool = False,
) -> dict[str, Any]:
    """The files of a run, and its config. `listed`: the file of budgets says whose each record is,
    so that it is the roster. `suggested`: the noise follows from the budgets.
    """
    folder.mkdir(parents=True)
    # a roster that was listed does not care where in the file a row stands
    rows = mixed(found) if listed else sorted(mixed(found), key=lambda row: row.record[::-1])
    data = write_rows(folder, rows, form, records=True)
    lines = [
        f"{record},{record.partition('-')[0]},{epsilon}" if listed else f"{record},{epsilon}"
        for record, epsilon in sorted(BUDGETS.items(), key=lambda item: item[0][::-1])
    ]
    header = "record,client,epsilon" if listed else "record,epsilon"
    (folder / "budgets.csv").write_text("\n".join([header, *lines]) + "\n")
    privacy = {
        "budgets": str(folder / "budgets.csv"),
        "delta": 1e-3,
        "clip": CLIP,
        "randomness": "os",
    }
    return small(
        "record",
        data=with_split(data, rows) if split else data,
        privacy=privacy | ({} if suggested else {"noise_multiplier": 2.0}),
        # with its seed the victim is drawn under every method
        train__rounds=ROUNDS,
        train__local_steps=STEPS,
    )


@dataclass(frozen=True, eq=False)
class Seen:
    """All that left the clients, and the sums that it was made of."""

    plan: str
    records: tuple[str, ...]
    contributions: dict[tuple[int, str], bytes]
    sums: dict[tuple[str, int], FloatArray]
    divided_by: dict[tuple[str, int], float]
    # by round, what all but the victim have left at its client, where records pay for their norms
    left: list[dict[str, float]]
    at: str  # the victim's client

    def others(self) -> dict[Any, bytes]:
        """What all but the victim's client contributed, and the sums behind it."""
        given = {key: value for key, value in self.contributions.items() if key[1] != self.at}
        return given | {
            key: value.tobytes() for key, value in self.sums.items() if key[0] != self.at
        }

    def own(self) -> dict[int, FloatArray]:
        """The victim's client: the sum of each step."""
        return {step: value for (client, step), value in self.sums.items() if client == self.at}


def seen(config: dict[str, Any], monkeypatch: pytest.MonkeyPatch, at: str = VICTIM) -> Seen:
    """All rounds from the same model on. What the victim's client releases is made up, and the same
    every time: a step is compared given what was released before.
    """
    setup = repeatable(config)
    plan, clients = setup.plan, setup.training.clients
    assert plan is not None
    sums, divided_by = {}, {}

    def release(
        total: FloatArray,
        deviation: float,
        batch: float,
        chance: Randomness,
        step: int,
        client: int,
    ) -> FloatArray:
        sums[clients[client], step], divided_by[clients[client], step] = total.copy(), batch
        if clients[client] == at:
            return 0.2 * np.random.default_rng(step).normal(size=total.size)
        return RELEASE(total, deviation, batch, chance, step, client)

    monkeypatch.setattr(record_steps, "release_step", release)
    states = MemoryStates()
    engine = open_engine(setup, states)
    progress, given, left = begin(flat_parameters(setup.module), setup.method), {}, []
    for t in range(ROUNDS):
        now = replace(progress, done=t)
        terms = setup.method.terms(t, now.method)
        tasks = tasks_of(
            np.arange(len(clients)), terms, clients, round_task(now, terms, setup.training)
        )
        given |= {
            (t, reply.contribution.client): reply.contribution.vector.tobytes()
            for reply in engine.run(tasks)
        }
        stored = states.read(at)
        if stored is not None:
            mine = [name for name in plan.names if name.startswith(VICTIM)]
            left.append(dict(zip(mine, unpack(stored, "", "")[0]["after"].tolist(), strict=True)))
            left[-1].pop(RECORD, None)
    return Seen(plan.hash, plan.names, given, sums, divided_by, left, at)


def same(found: object, wanted: object, otherwise: str) -> None:
    """A plain comparison: pytest would spell out the difference of whole vectors, for minutes."""
    if found != wanted:
        raise AssertionError(otherwise)


def check(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    changes: dict[str, Change],
    at: str = VICTIM,
    **files: Any,
) -> None:
    """All that independence means, for every change of one record and of one client's records."""
    hospitals = HOSPITALS
    if not files.get("split"):
        hospitals = {
            client: [replace(row, split="train") for row in own]
            for client, own in hospitals.items()
        }

    def run(name: str, change: Change) -> Seen:
        folder = tmp_path / name
        return seen(merged(write(folder, change(hospitals), **files), options), monkeypatch, at)

    before = run("as it was", lambda found: found)
    found = {name: run(name, change) for name, change in changes.items()}
    for name, after in found.items():
        same(after.others(), before.others(), f"{name}: others changed")
        same(after.divided_by, before.divided_by, f"{name}: another batch")
        same((after.plan, after.records), (before.plan, before.records), f"{name}: another plan")
    moved = {
        name: max(np.linalg.norm(total - before.own()[step]) for step, total in after.own().items())
        for name, after in found.items()
    }
    for name, distance in moved.items():
        assert distance > 0, f"{name}: nothing was tested"
        if name.startswith("one "):
            same(found[name].left, before.left, f"{name}: others paid something else")
            limit = 1 if name == "one missing" else 2
            assert distance <= limit * CLIP * (1 + 1e-9), name
    if "one missing" in found:
        without = found["one missing"].own()
        for name in {"one replaced", "one far away"} & set(found):
            for step, total in found[name].own().items():
                assert np.linalg.norm(total - without[step]) <= CLIP * (1 + 1e-9), name
    if "all missing" in found:
        assert not any(total.any() for total in found["all missing"].own().values())


@pytest.mark.full(but=["os-filter by norm"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("randomness", ["os", "seeded"])
def test_every_method_for_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, randomness: str
) -> None:
    options = merged(METHODS[method], {"privacy": {"randomness": randomness}})
    check(tmp_path, monkeypatch, options, HELD | THERE)


# How the data of a real run may be read, with a file of budgets that is the roster.
LISTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "hold-out": ({"data": {"validation": 0.3}}, {}),
    "part of the rows": ({"data": {"share": 0.6}}, {}),
    "both": ({"data": {"validation": 0.2, "share": 0.7, "test_share": 0.5}}, {}),
    "bounds": ({"data": {"bounds": [-3, 3]}}, {}),
    "natural": ({"data": {"partition": "natural", "clients": 4}}, {}),
    "left out": ({"data": {"leave_out": ["south"]}}, {}),
    "column of test rows": ({}, {"split": True}),
    "arrays": ({}, {"form": "npz"}),
    "all of it, of arrays": (
        {
            "data": {
                "bounds": [-3, 3],
                "validation": 0.2,
                "share": 0.7,
                "leave_out": ["south"],
            }
        },
        {"form": "npz"},
    ),
    "features of images": ({"model": {"features": "gabor"}}, {"form": "images"}),
    "words and missing cells": ({"data": {"validation": 0.3}}, {"form": "declared"}),
    "parquet": ({}, {"form": "parquet"}),
    "some clients in a round": ({"privacy": {"rate": 0.5}}, {}),
    "momentum": ({"train": {"momentum": 0.5}}, {}),
    "layers": ({"model": {"name": "mlp", "hidden": [4]}}, {}),
}


@pytest.mark.full(but=["all of it, of arrays"])
@pytest.mark.parametrize("kind", LISTED)
def test_every_way_of_reading_the_records_of_a_real_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    options, files = LISTED[kind]
    check(tmp_path, monkeypatch, options, HELD | THERE, **files)


@pytest.mark.full(only=["rpdp"])
@pytest.mark.parametrize("method", ["rpdp", "filter by clip"])
def test_noise_and_rates_that_are_suggested_come_from_the_roster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str
) -> None:
    check(tmp_path, monkeypatch, METHODS[method], HELD | THERE, suggested=True)


# Where the roster is the records in the data: there, a row that is missing is another roster.
UNLISTED: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "budgets by id": ({}, {}),
    "hold-out and part of the rows": ({"data": {"validation": 0.3, "share": 0.6}}, {}),
    "arrays, hold-out": ({"data": {"validation": 0.3}}, {"form": "npz"}),
    "hold-out, one rate for all": ({"data": {"validation": 0.3}} | METHODS["minimum"], {}),
    "suggested noise": ({"data": {"validation": 0.3}}, {"suggested": True}),
    "one silo": ({"data": {"partition": "iid", "clients": 1, "validation": 0.3}}, {}),
}


@pytest.mark.full(but_every=3)
@pytest.mark.parametrize("kind", UNLISTED)
def test_what_records_hold_does_not_decide_who_is_in_the_plan(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    options, files = UNLISTED[kind]
    at = "0" if kind == "one silo" else VICTIM
    check(tmp_path, monkeypatch, options, HELD, at, listed=False, **files)


@pytest.mark.parametrize("name", ["validation", "share"])
def test_records_without_ids_are_not_chosen_by_what_they_hold(tmp_path: Path, name: str) -> None:
    """With a budget for all, no ids are needed; but then nothing else could say who is held out."""
    config = write(tmp_path / "run", HOSPITALS)
    config["data"] = write_rows(tmp_path / "run", mixed(HOSPITALS)) | {name: 0.5}
    config["privacy"]["epsilon"] = 3.0
    del config["privacy"]["budgets"]
    with pytest.raises(InvalidInput, match=rf"data\.{name} = 0\.5 chooses records without ids"):
        repeatable(config)


def check_nan_is_refused(folder: Path, form: str, options: dict[str, Any]) -> None:
    """One record, or all of a client."""
    for name, change in {
        "one": one(lambda row: [replace(row, values=(float("nan"), *row.values[1:]))]),
        "all": lambda found: (
            found | {VICTIM: [replace(row, values=(float("nan"),) * 5) for row in found[VICTIM]]}
        ),
    }.items():
        with pytest.raises(InvalidInput, match="nan") as refusal:
            repeatable(merged(write(folder / name, change(HOSPITALS), form), options))
        assert "\n" not in str(refusal.value)


@pytest.mark.parametrize("form", ["csv", "npz"])
@pytest.mark.parametrize("kind", ["natural", "bounds", "both"])
def test_a_record_that_is_no_number_is_refused_where_it_is_read(
    tmp_path: Path, form: str, kind: str
) -> None:
    check_nan_is_refused(tmp_path, form, LISTED[kind][0])


# --- broken readers and mechanisms ----------------------------------------------------------------


def forgets_records_without_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it once was: the plan is for the records that have rows."""
    monkeypatch.setattr(record_plans, "listed_budgets", lambda _: None)


def chooses_by_content(monkeypatch: pytest.MonkeyPatch) -> None:
    """As it once was: what a record holds decides whether it is held out."""
    real = dataset.chosen_rows
    monkeypatch.setattr(dataset, "chosen_rows", lambda *given: real(*given[:6]))


def joins_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """A client's rows, in the order of the file, go to its records as they are listed."""
    real = record_plans.of_listed

    def by_position(*given: Any) -> Federation:
        found = real(*given)
        return replace(
            found,
            shards=tuple(
                np.concatenate([np.sort(rows[rows != ABSENT]), rows[rows == ABSENT]])
                for rows in found.shards
            ),
        )

    monkeypatch.setattr(record_plans, "of_listed", by_position)


def budgets_by_position(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first budget goes to the first row, and so on."""

    def in_order(_: Any, found: Any, names: tuple[str, ...], __: Any) -> FloatArray:
        return np.resize(found.budget, len(names))

    monkeypatch.setattr(record_plans, "listed_budgets", lambda _: None)
    monkeypatch.setattr(record_plans, "budgets_by_id", in_order)


def learns_a_scale(monkeypatch: pytest.MonkeyPatch) -> None:
    """Columns are scaled by the mean and the deviation of everybody's rows."""
    real_csv, real_npz = Declared.read, tables.as_features

    def standard(values: np.ndarray) -> np.ndarray:
        return ((values - values.mean(axis=0)) / (values.std(axis=0) + 1e-9)).astype(np.float32)

    monkeypatch.setattr(Declared, "read", lambda *given: standard(real_csv(*given)))
    monkeypatch.setattr(tables, "as_features", lambda *given: standard(real_npz(*given)))


def learns_a_scale_at_each_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Others are safe from it, and the other records of the client are not."""
    real = record_steps.record_update

    def scaled(task: Any, rows: Any, *rest: Any) -> Any:
        own = rows.features[rows.numbers[rows.numbers >= 0]]
        centre = own.mean(dim=0) if len(own) else 0.0
        return real(task, replace(rows, features=rows.features - centre), *rest)

    monkeypatch.setattr(work, "record_update", scaled)


def draws_over_the_pool(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is held out is drawn over all rows together, by position."""
    monkeypatch.setattr(
        dataset,
        "chosen_rows",
        lambda clients, *_: np.random.default_rng(0).random(len(clients)) < 0.3,
    )
    monkeypatch.setattr(record_plans, "listed_budgets", lambda _: None)


def divides_by_those_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is the sum of rates of the records that have rows, not the planned one."""
    real = record_steps.record_update

    def counting(task: Any, rows: Any, *rest: Any) -> Any:
        there = np.where(rows.numbers >= 0, task.records.rate, 0.0).sum()
        batch = np.full(task.records.batch.shape, max(there, 1e-3))
        return real(replace(task, records=replace(task.records, batch=batch)), rows, *rest)

    monkeypatch.setattr(work, "record_update", counting)


def clips_too_far_out(monkeypatch: pytest.MonkeyPatch) -> None:
    real = record_steps.clipped_sum
    monkeypatch.setattr(
        record_steps,
        "clipped_sum",
        lambda module, clip, *rest, **how: real(module, 3 * clip, *rest, **how),
    )


def pays_from_one_purse(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has more left than the mean: who goes on follows from everybody."""
    real = Payments.__call__

    def shared(self: Payments, norms: FloatArray) -> FloatArray:
        factors = real(self, norms)
        self.left[:] = np.minimum(self.left, self.left.sum() / max(1, len(norms)))
        return factors

    monkeypatch.setattr(Payments, "__call__", shared)


def centres_features(monkeypatch: pytest.MonkeyPatch) -> None:
    """Features of images, less the mean over all of them."""
    real = feature_cache._made

    def centred(*given: Any) -> np.ndarray:
        found = real(*given)
        return found - found.mean(axis=0)

    monkeypatch.setattr(feature_cache, "_made", centred)


Break = Callable[[pytest.MonkeyPatch], None]
BROKEN: list[tuple[Break, dict[str, Change], dict[str, Any], dict[str, Any]]] = [
    *((forgets_records_without_rows, THERE, options, {}) for options in METHODS.values()),
    (forgets_records_without_rows, {"one missing": THERE["one missing"]}, {}, {"suggested": True}),
    (forgets_records_without_rows, {"one missing": THERE["one missing"]}, METHODS["dropout"], {}),
    (
        chooses_by_content,
        HELD,
        {"data": {"validation": 0.3}} | METHODS["minimum"],
        {"listed": False},
    ),
    (chooses_by_content, HELD, {"data": {"share": 0.6}}, {"listed": False, "form": "npz"}),
    (joins_by_position, HELD | THERE, {}, {}),
    (joins_by_position, HELD | THERE, METHODS["dropout"], {}),
    (budgets_by_position, HELD | THERE, {}, {}),
    (learns_a_scale, HELD | THERE, {"data": {"bounds": [-3, 3]}}, {}),
    (learns_a_scale, HELD | THERE, {}, {"form": "npz"}),
    (learns_a_scale, HELD | THERE, {}, {"split": True}),
    (learns_a_scale_at_each_client, HELD | THERE, {}, {}),
    (draws_over_the_pool, HELD | THERE, {"data": {"validation": 0.3}}, {}),
    (divides_by_those_there, HELD | THERE, {}, {}),
    *((clips_too_far_out, HELD | THERE, METHODS[name], {}) for name in ("rpdp", "filter by clip")),
    (pays_from_one_purse, HELD | THERE, METHODS["filter by norm"], {}),
    (centres_features, HELD | THERE, {"model": {"features": "gabor"}}, {"form": "images"}),
]


@pytest.mark.parametrize(
    ("broken", "changes", "options", "files"),
    BROKEN,
    ids=[f"{broken.__name__}-{number}" for number, (broken, *_) in enumerate(BROKEN)],
)
def test_a_broken_reader_or_mechanism_would_be_noticed(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    broken: Break,
    changes: dict[str, Change],
    options: dict[str, Any],
    files: dict[str, Any],
) -> None:
    broken(monkeypatch)
    with pytest.raises(AssertionError) as noticed:
        check(tmp_path, monkeypatch, options, changes, **files)
    assert "nothing was tested" not in str(noticed.value)


def test_records_that_are_filled_in_from_others_would_be_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = tables.as_features

    def filled(*given: Any) -> np.ndarray:
        values = real(*given)
        return np.where(np.isnan(values), np.nanmean(values, axis=0), values)

    monkeypatch.setattr(tables, "as_features", filled)
    with pytest.raises(pytest.fail.Exception, match="DID NOT RAISE"):
        check_nan_is_refused(tmp_path, "npz", {})
