"""Liu et al. (2024), Figures 7 and 8 and Table 2: tuned on rows that are held out, resumed, judged
by what was run, and the pages are whole.
"""

from __future__ import annotations

import re
from dataclasses import replace

import experiment
import liu_page
import numpy as np
import pooled
import pooled_page
import pytest
import record_budgets as records
import records_page
import render
from experiment import SEEDS, TUNING_SEED, Finished, Results
from in_memory import held_out_of

from fedspend.data.loading import DATA_SETS
from fedspend.noise.randomness import Randomness

FIGURE_8 = {item.name: item for item in records_page.items()}
TABLE_2 = {item.name: item for item in pooled_page.items()}


pytestmark = [pytest.mark.full, pytest.mark.usefixtures("registries_as_before")]


def noisy(settings) -> float:
    """A little that depends on the seed, so that intervals are not empty."""
    return 1e-4 * np.random.default_rng(settings["train.seed"]).normal()


def peak(settings, best: float) -> float:
    return -0.01 * abs(np.log2(settings["train.lr"] / best))


@pytest.fixture
def made(monkeypatch):
    """Runs of both studies, which only say what is made up here; the list of their settings."""
    runs = []
    lead = {"rpdp": 0.1, "privacy-free": 0.15, "dropout": 0.02}

    def of_records(settings):
        runs.append(settings)
        accuracy = 0.8 + lead.get(settings["method.name"], 0.0) + peak(settings, 0.2)
        accuracy += noisy(settings) * (2 if settings["method.name"] == "rpdp" else 1)
        found = {"accuracy": accuracy, "guess": 0.1, "seconds": 1.0}
        if settings["method.name"] != "privacy-free":
            found |= {"noise": 4.0, "over_batch": 0.03}
        return found

    def of_pooled(settings):
        runs.append(settings)
        sampled = settings["method.name"] == "rpdp"
        by_clip = settings.get("method.charge") == "clip"
        steps = settings["train.rounds"] * settings["train.local_steps"]
        return {
            "accuracy": 0.8 + 0.1 * sampled + peak(settings, 2.0) + noisy(settings) * (1 + sampled),
            "seconds": 1.0,
            "step": 0.2 - 0.05 * sampled - 0.1 * by_clip + noisy(settings) * (1 + sampled),
            "active": [100] * 8 + [30] * (steps - 8) if "method.charge" in settings else [],
        }

    monkeypatch.setattr(records, "measured", of_records)
    monkeypatch.setattr(pooled, "measured", of_pooled)
    return runs


def both(tmp_path) -> Finished:
    """Both studies, run."""
    for study in (records, pooled):
        study.run(Results.read(tmp_path / f"{study.STUDY}.jsonl"))
    return Finished.read(tmp_path / "x.jsonl", also=sorted(tmp_path.glob("*.jsonl")))


@pytest.mark.usefixtures("made")
def test_once_they_are_run_every_verdict_and_table_is_there(tmp_path):
    found = both(tmp_path)
    for name, block in render.BLOCKS["results/records.md"].items():
        text = block(found)
        assert not re.search(r"[|/] - \|", text), name
        assert "not run yet" not in text.lower(), name
        assert "papers.md#cost" not in text, name
    assert "| - |" not in liu_page.BLOCKS["pooled"](found)
    told = {item.name: item.judge(found) for item in (*records_page.items(), *pooled_page.items())}
    assert None not in told.values()
    words = {name: word for name, (word, _) in told.items()}
    in_part = "Figure 7, MNIST"
    assert words.pop(in_part) == "reproduced in part", "its third level lasts longer"
    assert set(words.values()) == {"reproduced"}, words
    assert "1 not run" in told[in_part][1]
    assert "clear of 0 in 6 of 6 lines" in told["Figure 8, heart"][1]
    assert "five were wanted" not in told["Figure 8, heart"][1]
    assert "five were wanted" not in told["Table 2, MNIST, accuracy"][1]
    clip = "but the filter by clip takes **+50.0 ± 0.1** ms less than rpdp"
    assert clip in told["Table 2, MNIST, time a step"][1]


def test_a_learning_rate_that_is_another_arms_is_called_so(tmp_path, made):
    pooled.run(Results.read(tmp_path / "pooled.jsonl"))
    searched = {
        (s["method.name"], s.get("method.charge"), s.get("method.rates"))
        for s in made
        if s["held_out"] and s["data.name"] == "mnist"
    }
    assert searched == {
        ("filter", "norm", None),
        ("rpdp", None, "scf-clamped"),
        ("privacy-free", None, None),
    }
    text = liu_page.BLOCKS["pooled"](Finished.read(tmp_path / "pooled.jsonl"))
    assert text.count("| 2 |") == 3
    assert "| 2, that of filter by norm |" in text
    assert "| 2, that of rpdp, clamped fit |" in text
    assert "largest" not in text
    assert "| rpdp, clamped fit (the paper: SCF) | *94.77* / 90.0 ± " in text
    assert "*2,182.4* / 150" in text


def test_a_search_that_is_cut_off_says_so(tmp_path, monkeypatch):
    def measured(settings):
        return {"accuracy": settings["train.lr"] / 100, "seconds": 1.0, "step": 0.1, "active": [1]}

    monkeypatch.setattr(pooled, "measured", measured)
    monkeypatch.setattr(pooled, "arms", lambda: [pooled.arm("mnist", "no privacy")])
    pooled.run(Results.read(tmp_path / "pooled.jsonl"))
    text = pooled_page.table("mnist", Finished.read(tmp_path / "pooled.jsonl"))
    assert "| 32, the largest of 8 tried |" in text


@pytest.mark.parametrize(
    ("lead", "word"), [(0.1, "reproduced"), (0.0, "not reproduced"), (-0.1, "not reproduced")]
)
def test_figure_8_is_what_the_differences_say(tmp_path, monkeypatch, lead, word):
    def measured(settings):
        ahead = lead if settings["method.name"] == "rpdp" else 0.0
        return {"accuracy": 0.5 + ahead + noisy(settings) * (1 + bool(ahead)), "guess": 0.1} | {
            "seconds": 1.0,
            "noise": 4.0,
            "over_batch": 0.1,
        }

    monkeypatch.setattr(records, "measured", measured)
    results = Results.read(tmp_path / "records.jsonl")
    item = FIGURE_8["Figure 8, MNIST-IID"]
    assert item.found(Finished.read(results.path))[0] == "not run"
    records.run(results)
    found, why = item.found(Finished.read(results.path))
    assert found == word
    assert ("clearly the other way in 6" in why) == (lead < 0)


def test_seeds_go_side_by_side_and_nothing_is_said_of_one_alone(tmp_path, made, monkeypatch):
    """Killed at any time, all cells have as many seeds; with two there is an interval."""
    results = Results.read(tmp_path / "records.jsonl")
    item = FIGURE_8["Figure 8, heart"]
    for seeds, word in (((1,), "not run"), ((1, 2), "reproduced")):
        monkeypatch.setattr(records, "SEEDS", seeds)
        records.run(results)
        found, why = item.found(Finished.read(results.path))
        assert found == word
    assert "two seeds where five were wanted" in why
    once = len(made)
    records.run(Results.read(results.path))
    assert len(made) == once, "what is there is not repeated"
    lines = results.path.read_bytes().splitlines(keepends=True)
    results.path.write_bytes(b"".join(lines[:-1]) + lines[-1][:-9])  # killed while writing
    records.run(Results.read(results.path))
    assert len(made) == once + 1


def test_figure_8_is_tuned_on_rows_that_are_held_out(tmp_path, made):
    records.run(Results.read(tmp_path / "records.jsonl"))
    tested = [s for s in made if not s.get("data.validation")]
    assert {s["train.seed"] for s in tested} == set(SEEDS)
    assert len(tested) == len(SEEDS) * len(records.arms())
    tuning = [s for s in made if s.get("data.validation")]
    assert {s["train.seed"] for s in tuning if s["data.name"] == "mnist"} == {TUNING_SEED}
    hearts = [s for s in tuning if s["data.name"] == "heart"]
    assert {s["train.seed"] for s in hearts} == set(SEEDS), "each within its own training rows"
    keys = [experiment.key_of(s) for s in made]
    assert len(set(keys)) == len(keys)


def test_heart_tries_every_learning_rate_as_neighbours_are_often_equally_good(
    tmp_path, monkeypatch
):
    """Where the start's neighbours are as good as the start, a search that moves on only to better
    ones never leaves it.
    """

    def measured(settings):
        better = 0.2 * (settings["train.lr"] > 0.15)
        found = {"accuracy": 0.5 + better + noisy(settings), "guess": 0.1, "seconds": 1.0}
        return found | {"noise": 4.0, "over_batch": 0.1}

    monkeypatch.setattr(records, "measured", measured)
    one = records.cell("heart", "minimum", "three-levels")
    results = Results.read(tmp_path / "records.jsonl")
    assert records.first_chosen(results, one, 1) == 0.05
    assert records.chosen(results, one, 1) == 0.2, "the nearest to the start of those that are best"
    records.run(results)
    text = records_page.table("heart", Finished.read(results.path))
    assert "In 80 of 80 searches another learning rate was exactly as good" in text
    assert "| minimum | 0.2 | 0.2 | 0.2 |" in text
    assert "By the first" not in text, "its choices were not run"
    for seed in SEEDS:
        for each in records.arms():
            records.line_of(results, each, records.first_chosen(results, each, seed), seed)
    text = records_page.table("heart", Finished.read(results.path))
    assert "By the first, which ended where neither neighbour was better" in text


def test_every_cell_is_a_config_without_idle_keys():
    from fedspend.configuration.config import config_of
    from fedspend.configuration.effects import refuse_without_effect

    for one in records.arms():
        for held_out in (False, True):
            settings = one.settings(0.1, 1, held_out=held_out)
            refuse_without_effect(config_of(experiment.by_section(settings)))


@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("method", records.METHODS)
def test_a_run_of_figure_8_is_a_run_of_fedspend(method, monkeypatch):
    """Small and real; classes are mixed alike everywhere, so nearly the plain accuracy."""
    from fedspend.configuration.config import config_of
    from fedspend.runs.running import run
    from fedspend.runs.setup import from_config

    small = {"data.name": "digits", "data.share": 0.8, "data.clients": 3, "data.partition": "iid"}
    monkeypatch.setitem(
        records.FEDERATIONS,
        "mnist-iid",
        replace(
            records.IID,
            settings=small | {"model.name": "logistic", "model.features": "none"},
        ),
    )
    monkeypatch.setattr(
        records, "TRAINING", records.TRAINING | {"train.rounds": 2, "train.local_steps": 2}
    )
    one = records.cell("mnist-iid", method, "bounded-pareto")
    settings = one.settings(0.2, 1, held_out=False)
    found = records.measured(settings)
    plain = run(from_config(config_of(experiment.by_section(settings))), None).metrics
    assert found["accuracy"] == pytest.approx(plain[-1]["accuracy"], abs=0.05)
    assert ("over_batch" in found) == (method != records.FREE)
    assert records.measured(one.settings(0.2, 1, held_out=True))["accuracy"] > 0


@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("method", pooled.METHODS)
def test_pooled_records_are_tuned_on_rows_that_are_held_out(method, monkeypatch):
    monkeypatch.setattr(pooled, "LONGER", 2)
    task = replace(pooled.TASKS["mnist"], features="none")
    monkeypatch.setitem(pooled.TASKS, "digits", task)
    one = pooled.Pooled(method, "digits", rounds=1, steps=2)
    found = pooled.measured(one.settings(0.5, 1000, 0.1))
    assert 0 < found["accuracy"] < 1
    (held_out,) = [name for name in DATA_SETS.names if "-without-" in name]
    rows = DATA_SETS[held_out].read(None, 0)
    assert (len(rows.labels), len(rows.test_labels)) == (1293, 144), "none is a test row"


def test_rows_that_are_held_out_are_of_the_seeds_own_split():
    """Heart is split by the seed: what another seed trains on may be a test row of this one."""
    import fedspend
    from fedspend.data.dataset import Rows

    everything = np.arange(40, dtype=np.float32)[:, None]

    def read(_folder, seed):
        order = Randomness(seed).generator("data", 5, 0).permutation(40)
        labels = np.arange(40) % 2
        train, test = order[:30], order[30:]
        return Rows(everything[train], labels[train], 2, everything[test], labels[test])

    fedspend.register("data set", "by-seed", read, help="split by the seed", public=True)
    for seed in (1, 2):
        settings = {"data.name": "by-seed", "train.seed": seed}
        assert held_out_of(settings, 0.2) == 24
        rows = DATA_SETS[settings["data.name"]].read(None, 0)
        used = {*rows.features.ravel().tolist(), *rows.test_features.ravel().tolist()}
        assert used == set(read(None, seed).features.ravel().tolist())


def test_heart_is_tuned_for_every_seed_in_learning_rate_and_steps(tmp_path, made):
    pooled.run(Results.read(tmp_path / "pooled.jsonl"))
    hearts = [s for s in made if s["data.name"] == "heart"]
    tuning = [s for s in hearts if s["held_out"]]
    assert {s["train.seed"] for s in tuning} == set(SEEDS)
    private = {s["train.local_steps"] for s in tuning if s["method.name"] != "privacy-free"}
    free = {s["train.local_steps"] for s in tuning if s["method.name"] == "privacy-free"}
    assert private >= {8, 16, 32}
    assert free == {160}, "to the end"
    longest = pooled.TASKS["heart"].longest
    charged = {s["train.local_steps"] for s in hearts if not s["held_out"] and "levels" in s}
    assert longest in charged, "Figure 7"


def test_what_the_curve_fit_explains_is_computed(monkeypatch, tmp_path):
    import liu_curves

    nothing = Finished.read(tmp_path / "none.jsonl")
    name = "Figure 5 (right), the curve fit"
    ((word, why),) = [row[1:] for row in liu_page.rows(nothing) if row[0] == name]
    assert word == "reproduced"
    assert "R^2 is 0.998" in why
    monkeypatch.setattr(liu_curves, "r_squared", lambda: 0.9)
    ((word, why),) = [row[1:] for row in liu_page.rows(nothing) if row[0] == name]
    assert word == "not reproduced"
    assert "R^2 is 0.900" in why
