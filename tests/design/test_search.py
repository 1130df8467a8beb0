"""The search: its points are real trainings, it survives a kill, it touches public data only, and
it recommends what it says.
"""

import contextlib
import dataclasses
import json
import math
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
from lib.configs import changed, write_toml

from fedspend.configuration.config import config_of, load_config
from fedspend.configuration.plan_inputs import resolve
from fedspend.design.analysis import Findings, analyse
from fedspend.design.candidates import proxy_by_round, read_search
from fedspend.design.recommendation import config_of_point, recommend
from fedspend.design.searching import run_search
from fedspend.design.trainings import Line
from fedspend.errors import InvalidInput, Refused
from fedspend.planning.making import plan
from fedspend.runs.running import run
from fedspend.runs.setup import from_config
from fedspend.server.methods.dp_fedsgd import budget_of

GRID = {
    "data": {"name": "synthetic", "examples": 120, "features": 5, "classes": 2, "clients": 6},
    "model": {"name": "logistic"},
    "privacy": {"rate": 0.5, "clip": 0.5, "delta": 1e-3},
    "train": {"rounds": 6, "local_steps": 2, "batch_size": 8, "lr": 0.5, "seed": 4},
    "design": {"noise_levels": [0.6, 0.2, 0.05], "rates": [0.5, 1.0], "seeds": 2},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("search") / "grid"


@pytest.fixture(scope="module")
def outcome(folder):
    return run_search(GRID, folder, workers=1)


@pytest.fixture(scope="module")
def findings(outcome) -> Findings:
    return outcome.findings


# --- the points are what training gives ---


@pytest.mark.full
@pytest.mark.usefixtures("quick_verify")
def test_a_point_is_the_mean_of_real_trainings_of_that_many_rounds(findings):
    """One search training serves every T: training T rounds with `fedspend train` gives the same
    loss.
    """
    n = 4
    one = findings.search.candidates[n]
    for rounds in (3, 6):
        losses = []
        for seed in (4, 5):
            config = changed(
                GRID,
                method__name="dp-fedsgd",
                method__noise_level=one.noise_level,
                privacy__rate=one.rate,
            )
            metrics = run(
                from_config(config_of(config, [f"train.rounds={rounds}", f"train.seed={seed}"])),
                None,
            ).metrics
            losses.append(metrics[-1]["loss"])
        # The plan for T rounds has the same noise up to 1e-8, on the safe side.
        assert findings.loss[n, rounds - 1] == pytest.approx(np.mean(losses), rel=1e-6)


def test_every_point_has_its_real_epsilon_and_its_proxy(findings):
    for n, one in enumerate(findings.search.candidates):
        for rounds in (1, 4, 6):
            cost = budget_of(
                one.noise_level, rate=one.rate, clients=6, clip=0.5, rounds=rounds, delta=1e-3
            )
            assert findings.epsilon[n, rounds - 1] == pytest.approx(cost, rel=1e-6)
            assert findings.proxy[n, rounds - 1] == pytest.approx(
                math.sqrt(one.rate * rounds) / one.noise_level, rel=1e-6
            )


def test_fronts_are_what_comparing_all_pairs_finds(findings):
    for privacy, front in (
        (findings.proxy, findings.front),
        (findings.epsilon, findings.real_front),
    ):
        points = np.column_stack([findings.loss.ravel(), privacy.ravel()])
        expected = [not any((p <= q).all() and (p < q).any() for p in points) for q in points]
        assert front.ravel().tolist() == expected
        assert 1 < sum(expected) < len(points)


def test_the_document_is_the_findings(findings, folder):
    document = json.loads((folder / "pareto.json").read_text())
    assert document["tuning"].startswith("Tuning data must be public")
    assert document["randomness"] == "seeded"
    assert len(document["front"]) == int(findings.front.sum())
    assert document["cost"] == {
        "trainings": 12,
        "rounds": 72,
        "client_updates": 2 * 6 * 3 * (3 + 6),
    }
    assert [row["noise_level"] for row in document["candidates"]] == [0.05, 0.2, 0.6] * 2
    assert "seconds" not in json.dumps(document), "a measurement would differ from run to run"


def test_a_varying_schedule_has_a_proxy_too():
    made = plan([5.0] * 6, delta=1e-3, rounds=4, rate=0.8, saving_rate=0.4, transition=3)
    rate, z = made.sampling_rate[:, 0], made.noise_multiplier[:, 0]
    level = z * made.clip / np.sqrt(rate * 6)
    assert proxy_by_round(made)[-1] == pytest.approx(
        math.sqrt(sum(q / s**2 for q, s in zip(rate, level, strict=True)))
    )


# --- it survives a kill ---


@pytest.mark.full
@pytest.mark.usefixtures("outcome")
def test_interrupted_and_resumed_is_the_same(folder, tmp_path):
    class Enough(Exception):
        pass

    def stop_after_five(done, _total):
        if done == 5:
            raise Enough

    with pytest.raises(Enough):
        run_search(GRID, tmp_path / "again", workers=1, progress=stop_after_five)
    file = tmp_path / "again" / "trainings.jsonl"
    whole = file.read_text()
    file.write_text(whole[:-40])  # as if the power had gone in the middle of the last line
    seen = []
    run_search(
        GRID, tmp_path / "again", workers=1, progress=lambda done, total: seen.append((done, total))
    )
    assert seen[0] == (4, 12)
    assert seen[-1] == (12, 12)
    assert (tmp_path / "again" / "pareto.json").read_bytes() == (
        folder / "pareto.json"
    ).read_bytes()


@pytest.mark.full
@pytest.mark.usefixtures("outcome")
def test_killed_with_two_workers_and_resumed_is_the_same(folder, tmp_path, fork_server):
    config, target = write_toml(tmp_path / "grid.toml", GRID), tmp_path / "killed"
    process = fork_server.start("design", config, "-o", target, "--workers", "2", "--quiet")
    deadline = time.monotonic() + 600
    while time.monotonic() < deadline and process.poll() is None:
        if (target / "trainings.jsonl").exists() and (target / "trainings.jsonl").read_text().count(
            "\n"
        ) >= 1:
            break
        time.sleep(0.02)
    with contextlib.suppress(ProcessLookupError):  # all twelve may be done before the shot
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    assert (target / "trainings.jsonl").read_text().count("\n") >= 1
    run_search(config, target, workers=1)
    assert (target / "pareto.json").read_bytes() == (folder / "pareto.json").read_bytes()


@pytest.mark.full
@pytest.mark.usefixtures("outcome")
def test_levels_and_seeds_can_be_added_later(tmp_path, folder):
    run_search(
        changed(GRID, design__seeds=1, design__noise_levels=[0.2]), tmp_path / "grows", workers=1
    )
    seen = []
    run_search(GRID, tmp_path / "grows", workers=1, progress=lambda done, _: seen.append(done))
    assert seen[0] == 2
    assert (tmp_path / "grows" / "pareto.json").read_bytes() == (
        folder / "pareto.json"
    ).read_bytes()


@pytest.mark.usefixtures("outcome")
def test_another_search_or_a_stranger_folder_is_not_touched(folder, tmp_path):
    before = (folder / "pareto.json").read_bytes()
    with pytest.raises(InvalidInput, match=r"train.lr was 0.5 and is now 0.25"):
        run_search(changed(GRID, train__lr=0.25), folder, workers=1)
    assert (folder / "pareto.json").read_bytes() == before
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(InvalidInput, match="not empty and is not the folder of a search"):
        run_search(GRID, tmp_path, workers=1)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "search.json").write_text("{")
    with pytest.raises(InvalidInput, match="damaged"):
        run_search(GRID, tmp_path / "broken", workers=1)
    (tmp_path / "broken" / "search.json").write_bytes((folder / "search.json").read_bytes())
    for line in ('{"seed": 3}', "[1]", "null"):
        (tmp_path / "broken" / "trainings.jsonl").write_text(line + "\n")
        with pytest.raises(InvalidInput, match="jsonl:1: not the record of a training"):
            run_search(GRID, tmp_path / "broken", workers=1)


# --- public data and seeded randomness only ---


@pytest.mark.parametrize("name", ["csv", "npz"])
def test_private_data_is_refused_unread(name, tmp_path):
    with pytest.raises(Refused, match="no budget covers that"):
        run_search(changed(GRID, data__name=name, data__path="/nowhere/at.all"), tmp_path / "x")
    assert not (tmp_path / "x").exists()


def test_real_randomness_is_refused():
    with pytest.raises(Refused, match="seeded simulation"):
        read_search(config_of(changed(GRID, privacy__randomness="os")))


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"design__noise_levels": None}, "noise_levels is missing"),
        ({"train__lr_schedule": "cosine"}, "lr_schedule must be 'constant'"),
        ({"train__tail_average": 3}, "tail_average must be 1"),
        ({"train__rounds": None}, "rounds is missing"),
        ({"data__clients": None}, "clients is missing"),
        ({"privacy__delta": None}, "delta is missing"),
        ({"design__noise_levels": [0.1, 0.1]}, "different values"),
        ({"design__noise_levels": [0.1, math.nan]}, "noise_levels"),
        ({"design__noise_levels": []}, "noise_levels"),
        ({"design__rates": [0.5, 1.5]}, "rates"),
        ({"design__seeds": 0}, "seeds"),
        ({"design__sigmas": [1]}, "unknown key 'sigmas'"),
        ({"design__noise_levels": [1e-6]}, "noise multiplier"),
    ],
)
def test_bad_searches(changes, word, tmp_path):
    config = changed(GRID, **changes)
    config = {
        section: {key: value for key, value in table.items() if value is not None}
        for section, table in config.items()
    }
    with pytest.raises(InvalidInput, match=word):
        run_search(config, tmp_path / "x", workers=1)
    assert not (tmp_path / "x").exists(), "nothing is written"


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_a_search_whose_trainings_all_diverge_is_refused(tmp_path):
    config = changed(
        GRID,
        privacy__clip=1e30,
        train__server_lr=1e10,
        design__noise_levels=[1e30],
        design__seeds=1,
    )
    with pytest.raises(Refused, match="every training of the search diverged"):
        run_search(config, tmp_path / "x", workers=1)


def test_a_training_that_diverges_is_infinitely_bad():
    search = read_search(config_of(changed(GRID, design__rates=[0.5], design__seeds=1)))
    curves = [[2.0, 1.5, 1.0, 0.9, 0.8, 0.7], [2.0, 1.0, None, None, None, None], [None] * 6]
    found = analyse(
        search,
        [
            [Line(candidate=one.fields, seed=4, loss=loss, accuracy=[0.5] * 6, seconds=0.1)]
            for one, loss in zip(search.candidates, curves, strict=True)
        ],
    )
    assert np.isinf(found.loss[1, 2:]).all()
    assert found.counted.sum() == 8
    assert not (found.front | found.real_front)[~found.counted].any()
    assert found.front[1, 1]
    document = json.loads(json.dumps(found.document(), allow_nan=False))
    assert document["candidates"][1]["loss"] == [2.0, 1.0, None, None, None, None]


# --- recommendations ---


def test_the_recommended_setting_is_the_best_within_the_limits(outcome, findings):
    limit = float(np.quantile(findings.epsilon, 0.4))
    seconds = [0.5] * 3 + [2.0] * 3
    found = recommend(findings, seconds, max_epsilon=limit, max_seconds=4.0)
    points = [
        (findings.loss[n, t - 1], findings.epsilon[n, t - 1], seconds[n] * t)
        for n in range(6)
        for t in range(1, 7)
    ]
    assert found["loss"] == min(
        loss for loss, cost, time in points if cost <= limit and time <= 4.0
    )
    assert found["epsilon"] <= limit
    assert found["seconds"] <= 4.0
    assert recommend(findings, outcome.seconds)["loss"] == findings.loss.min()


def test_the_config_to_paste_trains_within_the_budget(findings, tmp_path):
    found = recommend(findings, [1.0] * 6, max_epsilon=30)
    (tmp_path / "paste.toml").write_text(config_of_point(findings, found))
    pasted = load_config(tmp_path / "paste.toml")
    made = resolve(pasted).request.plan()
    assert made.rounds == found["rounds"]
    assert made.epsilon.max() <= 30
    assert made.epsilon.max() == pytest.approx(found["epsilon"], rel=1e-6)


@pytest.mark.parametrize(
    ("limits", "word"),
    [({"max_epsilon": 1e-6}, "smallest epsilon is"), ({"max_seconds": 1e-9}, "shortest")],
)
def test_limits_that_nothing_meets(findings, limits, word):
    with pytest.raises(Refused, match=word):
        recommend(findings, [1.0] * 6, **limits)
    with pytest.raises(InvalidInput, match="must be positive"):
        recommend(findings, [1.0] * 6, **dict.fromkeys(limits, -1.0))


def test_k_and_the_gap_of_theory_on_losses_that_obey_it():
    """Losses put in place of the trained ones that are exactly f1: the search then finds k, and
    theory loses next to nothing.
    """
    levels = [float(f"{x:.4g}") for x in np.geomspace(0.1, 1.5, 28)]
    search = read_search(
        config_of(
            changed(
                GRID,
                train__rounds=120,
                design__noise_levels=levels,
                design__rates=[1.0],
                design__seeds=1,
            )
        )
    )
    rounds, noise = np.arange(1, 121), np.array(levels)
    loss = 1 / rounds[None] + 0.9 * noise[:, None] ** 2 / 6
    proxy = np.sqrt(rounds)[None] / noise[:, None]
    made = Findings(search, loss[:, None, :], loss[:, None, :], proxy, proxy)
    assert made.k.k == pytest.approx(0.9, rel=0.1)
    assert made.k.exponent == pytest.approx(1, abs=0.1)
    assert made.gap.largest < 0.003
    wrong = dataclasses.replace(
        made, loss_by_seed=(1 / rounds[None] + 9 * noise[:, None] ** 2 / 6)[:, None, :]
    )
    assert wrong.k.k > 5 * made.k.k


def test_examples_are_searches():
    folder = Path(__file__).parents[2] / "examples" / "design"
    names = sorted(path.name for path in folder.glob("*.toml"))
    assert len(names) >= 4
    for name in names:
        assert read_search(load_config(folder / name)).candidates
