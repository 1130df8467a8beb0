"""The experiments of benchmarks/evidence: fair, resumable, and the pages say what the files say."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import as_printed
import by_influence
import cheng
import claims
import client_losses
import experiment
import figures
import gu
import gu_page
import in_memory
import influence
import influence_page
import judging
import kiani
import kiani_page
import left_out
import liu_page
import lus_final
import networks
import norms
import numpy as np
import over_time
import papers_page
import pooled
import pytest
import record_budgets as records
import records_cnn
import render
import run_all
import shaping
import tables
import targets
import targets_page
import writers_cnn
from experiment import HELD_OUT, SEEDS, TUNING_SEED, Arm, Finished, Results

from fedspend.runs import certifying

ROOT = Path(__file__).parents[1]

SMALL = {
    "data.name": "digits",
    "data.clients": 6,
    "data.partition": "dirichlet",
    "data.alpha": 0.5,
    "model.name": "logistic",
    "model.features": "none",
    "method.name": "idp-fedavg",
    "privacy.policy": "uniform",
    "privacy.epsilon": 20.0,
    "privacy.delta": 1e-3,
    "privacy.rate": 0.8,
    "privacy.accountant": "rdp",
    "privacy.noise": "central",
    "privacy.randomness": "seeded",
    "train.rounds": 3,
    "train.local_steps": 2,
    "train.batch_size": 8,
    "train.tail_average": 1,
}
ARM = Arm("small", ("digits",), SMALL, (0.2, 1.0))
pytestmark = [pytest.mark.full, pytest.mark.usefixtures("registries_as_before")]


def fake(monkeypatch, score):
    """Runs that only say what `score` makes of their settings; returns the list of them."""
    made = []

    def measured(settings, _curve=True):
        made.append(settings)
        value = score(settings)
        return {"last": value, "tail": value, "clipped": 0.0, "seconds": 1.0}

    monkeypatch.setattr(experiment, "measured", measured)
    return made


def test_pages_and_files_agree():
    assert render.disagreements() == [], "run `make results`"


def test_a_number_that_was_typed_is_noticed(tmp_path):
    page = next(iter(render.BLOCKS))
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    forged = text.replace("arms are finished", "arms are  finished", 1)
    assert forged != text
    (tmp_path / page).parent.mkdir()
    (tmp_path / page).write_text(forged, encoding="utf-8")
    shutil.copytree(ROOT / "docs" / "figures", tmp_path / "figures")
    figure = next(iter(figures.FIGURES))
    drawn = (tmp_path / figure).read_text(encoding="utf-8")
    forged_figure = drawn.replace("drawn from ", "drawn from 0")
    (tmp_path / figure).write_text(forged_figure, encoding="utf-8")
    for other in set(render.BLOCKS) - {page}:
        shutil.copy(ROOT / "docs" / other, tmp_path / other)
    assert render.disagreements(docs=tmp_path, write=True) == [page, figure]
    assert (tmp_path / page).read_text(encoding="utf-8") == text
    assert (tmp_path / figure).read_text(encoding="utf-8") != forged_figure


def test_a_run_here_is_a_run_of_fedspend():
    from fedspend.configuration.config import config_of
    from fedspend.runs.running import run
    from fedspend.runs.setup import from_config

    settings = ARM.at((0.2, 1.0), seed=3)
    found = experiment.measured(settings)
    lines = run(from_config(config_of(experiment.by_section(settings))), None).metrics
    assert found["curve"] == [round(line["accuracy"], 5) for line in lines]
    assert found["last"] == found["curve"][-1]
    short = experiment.measured(settings, curve=False)
    assert found == {**short, "curve": found["curve"], "seconds": found["seconds"]}
    averaged = {**settings, "train.tail_average": 3}
    lines = run(from_config(config_of(experiment.by_section(averaged))), None).metrics
    assert found["tail"] == round(lines[-1]["accuracy"], 5), "all three rounds are in the tail"


@pytest.mark.parametrize("held_out", [0.0, 0.2])
def test_features_in_memory_change_nothing(monkeypatch, held_out):
    settings = ARM.at((0.2, 1.0), 3, held_out) | {"model.features": "gabor"}
    fast = experiment.measured(settings)
    monkeypatch.setattr(experiment, "in_memory", lambda settings: settings)
    plain = experiment.measured(settings)
    assert {**fast, "seconds": 0} == {**plain, "seconds": 0}


def test_what_is_refused_is_a_result():
    found = experiment.measured(ARM.at((0.2, 1.0), 1) | {"privacy.policy": "geometric"})
    assert "contradicts method" in found["refused"]


def test_finished_runs_are_not_repeated_and_a_torn_line_is(tmp_path, monkeypatch):
    made = fake(monkeypatch, lambda settings: settings["train.lr"])
    path = tmp_path / "small.jsonl"
    experiment.finish(Results.read(path), ARM)
    once = len(made)
    experiment.finish(Results.read(path), ARM)
    assert len(made) == once
    whole = path.read_bytes()
    path.write_bytes(whole[:-10])  # killed while writing
    experiment.finish(Results.read(path), ARM)
    assert len(made) == once + 1
    assert made[-1] == made[once - 1]
    stored = Results.read(path).found
    assert len(stored) == once
    experiment.finish(Results.read(tmp_path / "other.jsonl", also=[path]), ARM)
    assert len(made) == once + 1


def test_nothing_is_chosen_on_test_rows(tmp_path, monkeypatch):
    made = fake(monkeypatch, lambda settings: settings["train.lr"])
    experiment.finish(Results.read(tmp_path / "small.jsonl"), ARM)
    chosen = max(settings["train.lr"] for settings in made)
    for settings in made:
        if settings["data.validation"]:
            assert (settings["data.validation"], settings["train.seed"]) == (HELD_OUT, TUNING_SEED)
        else:
            assert settings["train.seed"] in SEEDS
            assert settings["train.lr"] == chosen
    assert TUNING_SEED not in SEEDS


def test_a_table_says_what_its_runs_took_and_counts_each_once(tmp_path, monkeypatch):
    made = fake(monkeypatch, lambda settings: settings["train.lr"])
    results = Results.read(tmp_path / "small.jsonl")
    other = replace(ARM, label=("other",), settings={**ARM.settings, "train.rounds": 7})

    def block(finished):
        return " and ".join(
            "-" if experiment.outcome(finished, arm) is None else "there" for arm in (ARM, ARM)
        )

    costed = tables.with_seconds(block)
    assert costed(Finished(results.path, {})) == "- and -"
    experiment.run_arms(results, [ARM, other])
    tuning = sum(1 for one in made if one["train.rounds"] != 7 and one["data.validation"])
    runs = tuning + len(ARM.seeds)
    assert costed(Finished(results.path, results.found)) == (
        f"there and there\n\nCPU: {runs} s in {runs} runs, {tuning} of them for tuning."
    )


def test_pages_can_be_made_before_anything_is_run(tmp_path):
    nothing = Finished.read(tmp_path / "none.jsonl")
    for blocks in render.BLOCKS.values():
        for name, block in blocks.items():
            assert block(nothing).strip(), name


def chosen_by_spending(settings):
    """A score whose best learning rate is another for every way of spending and number of rounds,
    so that no arm at another's choice is a run that was made anyway.
    """
    ways = ["uniform", "spend-as-you-go", "spend-as-you-go-literal", "optimal", "geometric"]
    best = 0.2 * 2 ** ways.index(settings.get("privacy.policy", "uniform"))
    return 0.5 - 0.01 * abs(np.log2(settings["train.lr"] / best))


def test_geometric_spending_has_a_search_of_its_own_or_the_choice_of_uniform_spending():
    """The page marks the second kind, so an arm is of one kind in every schedule."""
    for data, budgets in over_time.cells():
        own = (data, budgets) in over_time.GEOMETRIC_TUNED
        for schedule in over_time.SCHEDULES:
            uniform = over_time.arm(data, budgets, schedule, "uniform")
            for spending in over_time.SPENDING:
                like = over_time.arm(data, budgets, schedule, spending).like
                alike = spending in over_time.GEOMETRIC and not own
                assert like == (uniform if alike else None)


def test_once_the_experiment_on_time_is_run_its_page_is_whole(tmp_path, monkeypatch):
    fake(monkeypatch, chosen_by_spending)
    results = Results.read(tmp_path / "all.jsonl")
    monkeypatch.setattr(results, "add", lambda line: results.found.update({line["key"]: line}))
    for study in (over_time, kiani, networks):
        experiment.run_arms(results, study.arms())
    value = {"last": 0.5, "tail": 0.5, "seconds": 1.0}
    monkeypatch.setattr(by_influence, "_measure", lambda *_: {"document": {}, "seconds": 1.0})
    monkeypatch.setattr(by_influence, "_trained", lambda *_: value)
    by_influence.run(results)
    finished = Finished(results.path, results.found)
    time = render.BLOCKS["results/time.md"]
    for name in (
        "time-tables",
        "time-signs",
        "time-crossed",
        "time-untuned",
        "time-untuned-large",
        "time-readings",
        "time-networks",
        "time-networks-clip",
    ):
        text = time[name](finished)
        assert "| - |" not in text, name
        assert "papers.md#cost" not in text, name
    for table in kiani.tables():
        assert None not in kiani_page.at_same_choice(finished, table), table.name
    assert "288 of 288" in time["time-status"](finished)
    assert " - " not in papers_page.in_the_readme(finished)
    short = time["time-short"](finished)
    assert "planned with measured influence" in short
    assert "A small CNN shows the same" in short
    assert "Spending early" in short
    for table in (*kiani.tables(), kiani.figure_1()):
        word, why = kiani_page.verdict(finished, table)
        assert "not run" not in word + why.partition(";")[0], table.name


def test_plans_by_influence_are_made_with_what_was_measured(tmp_path, monkeypatch):
    """A real measurement and a real run, small; the second time nothing is done."""
    cell = by_influence.Cell("fashion-mnist", "annealed", over_time.AS_SHIPPED)
    small = replace(ARM, tries=1, settings={**SMALL, "train.rounds": 4})
    monkeypatch.setattr(by_influence.Cell, "uniform", small)
    monkeypatch.setattr(by_influence, "arms", lambda: [cell])
    monkeypatch.setattr(by_influence, "SEEDS", (1, 2))
    results = Results.read(tmp_path / "by-influence.jsonl")
    by_influence.run(results)
    document, *runs = results.found.values()
    assert len(document["document"]["influence"]["1"]) == 4
    uniform = experiment.measured(small.at(small.start, 1))
    assert runs[0]["plan"] != uniform["plan"]
    by_influence.run(Results.read(results.path))
    assert len(experiment.lines_of(results.path)) == 3
    found = by_influence.outcome(Finished.read(results.path), cell)
    assert found.percent().tolist() == [100 * line["last"] for line in runs]


def test_arms_that_are_finished_are_passed_over_and_the_rest_counted(tmp_path, monkeypatch, capsys):
    made = fake(monkeypatch, lambda _: 0.5)
    results = Results.read(tmp_path / "small.jsonl")
    other = replace(ARM, label=("other",), settings={**ARM.settings, "train.rounds": 7})
    experiment.run_arms(results, [ARM])
    before = len(made)
    capsys.readouterr()
    experiment.run_arms(results, [ARM, other])
    assert "1 of 1 arms; less than a minute left" in capsys.readouterr().out
    assert len(made) == 2 * before
    assert all(settings["train.rounds"] == 7 for settings in made[before:])
    experiment.run_arms(results, [ARM, other])
    assert not capsys.readouterr().out


def test_processes_share_the_arms_and_no_run_is_made_twice(tmp_path, monkeypatch):
    """Threads stand for processes: a claim is of an open file, not of a process."""
    made, second = [], threading.Event()

    def measured(settings, _curve=True):
        made.append((threading.get_ident(), experiment.key_of(settings)))
        if len({thread for thread, _ in made}) > 1:
            second.set()
        second.wait(120)  # who is first does not do it all before anybody else has begun
        time.sleep(0.01)
        return {"last": 0.5, "tail": 0.5, "seconds": 0.01}

    monkeypatch.setattr(experiment, "measured", measured)
    monkeypatch.setattr(claims, "PAUSE", 0.01)
    alone = [
        replace(ARM, settings={**ARM.settings, "train.rounds": rounds}) for rounds in range(4, 9)
    ]
    like = [replace(one, settings={**one.settings, "data.alpha": 9.0}, like=one) for one in alone]
    path = tmp_path / "small.jsonl"

    def help_out(_):
        experiment.run_arms(Results.read(path), [*like, *alone])

    with ThreadPoolExecutor(3) as pool:
        list(pool.map(help_out, range(3)))
    keys = [key for _, key in made]
    assert len(set(keys)) == len(keys)
    assert sorted(line["key"] for line in experiment.lines_of(path)) == sorted(keys)
    assert len({thread for thread, _ in made}) > 1, "nobody helped"
    finished = Finished.read(path)
    assert all(experiment.outcome(finished, arm) is not None for arm in (*alone, *like))


def test_what_a_process_had_claimed_is_free_when_it_is_killed(tmp_path):
    code = (
        "import sys, time; sys.path.insert(0, sys.argv[1]); import claims; from pathlib import Path"
        "\nwith claims.claimed(Path(sys.argv[2]), 'arm') as ours: print(ours, flush=True)"
        "; time.sleep(600)"
    )
    command = [sys.executable, "-c", code, str(Path(claims.__file__).parent), str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "True\n"
        with claims.claimed(tmp_path, "arm") as ours, claims.claimed(tmp_path, "else") as free:
            assert (ours, free) == (False, True)
        other.kill()
    with claims.claimed(tmp_path, "arm") as ours:
        assert ours


def test_a_plan_is_verified_once_and_another_one_anew(monkeypatch):
    import fedspend.runs.training  # noqa: F401  # else its modules would keep the patched function

    seen = []
    examine = certifying.examine
    monkeypatch.setattr(experiment, "_VERIFIED", set())
    monkeypatch.setattr(
        certifying, "examine", lambda setup, _: seen.append(setup.plan.hash) or examine(setup, None)
    )
    for lr, seed, rounds in ((0.2, 1, 3), (0.4, 2, 3), (0.2, 1, 4)):
        experiment.measured({**ARM.at((lr, 1.0), seed), "train.rounds": rounds}, curve=False)
    assert len(seen) == len(set(seen)) == 2


def test_several_cores_from_the_command_line(tmp_path):
    whole = run_all.HERE / "results"
    for place in whole.glob("*.jsonl"):
        shutil.copy(place, tmp_path)
    script = Path(run_all.__file__)
    command = [sys.executable, str(script), "--only", as_printed.STUDY, "--results", str(tmp_path)]
    done = subprocess.run([*command, "--cores", "2"], capture_output=True, text=True, timeout=900)
    assert (done.returncode, done.stderr) == (0, "")
    for place in whole.glob("*.jsonl"):
        assert (tmp_path / place.name).read_bytes() == place.read_bytes(), "nothing was left to do"
    wrong = subprocess.run([*command, "--cores", "0"], capture_output=True, text=True, timeout=900)
    assert wrong.returncode == 2
    assert "'0' is not a number of cores" in wrong.stderr


def test_a_table_runs_nothing(tmp_path, monkeypatch):
    made = fake(monkeypatch, lambda _: 0.5)
    results = Finished.read(tmp_path / "none.jsonl")
    assert experiment.outcome(results, ARM) is None
    assert made == []


def test_differences_are_paired_by_seed(tmp_path, monkeypatch):
    fake(monkeypatch, lambda settings: 0.1 * settings["train.seed"] * settings["privacy.rate"])
    results = Results.read(tmp_path / "small.jsonl")
    better = Arm("small", ("more",), SMALL | {"privacy.rate": 0.9}, ARM.start)
    for arm in (ARM, better):
        experiment.finish(results, arm)
    ours, base = experiment.outcome(results, better), experiment.outcome(results, ARM)
    mean, half = experiment.difference(ours, base)
    by_seed = [10 * seed * (0.9 - 0.8) for seed in SEEDS]
    assert mean == pytest.approx(sum(by_seed) / 5)
    assert half == pytest.approx(2.776 * 1.5811 / 5**0.5, rel=1e-3)


def test_arms_differ_only_in_what_they_are_named_after():
    """Same data, model, training and start; so no arm has an advantage that the table hides."""
    spends = {name: set(policy) for name, policy in over_time.SPENDING.items()}
    for data, budgets in (("fashion-mnist", (2, 5, 10)), ("adult", (5, 5, 5))):
        for schedule in over_time.SCHEDULES:
            arms = {name: over_time.arm(data, budgets, schedule, name) for name in spends}
            base = arms["uniform"]
            for name, arm in arms.items():
                free = spends[name] | spends["uniform"] | {"privacy.groups"}
                assert {k: v for k, v in arm.settings.items() if k not in free} == {
                    k: v for k, v in base.settings.items() if k not in free
                }
                assert (arm.start, arm.readout, arm.seeds, arm.tries) == (
                    base.start,
                    base.readout,
                    base.seeds,
                    base.tries,
                )
                stated = {"privacy.accountant", "privacy.noise", "privacy.clip_schedule"}
                assert stated <= set(arm.settings), "no default decides a result"


def test_a_setting_may_depend_on_the_learning_rate_and_an_arm_on_anothers_choice(
    tmp_path, monkeypatch
):
    made = fake(monkeypatch, lambda settings: settings["train.lr"])
    results = Results.read(tmp_path / "small.jsonl")
    shaped = replace(ARM, label=("shaped",), over_lr={"shape.blur": 0.01}, like=ARM)
    experiment.finish(results, ARM)
    tuning = len(made)
    experiment.finish(results, shaped)
    chosen, _ = experiment.tuned(results, ARM)
    assert len(made) == tuning + len(SEEDS), "nothing is tuned anew"
    assert {settings["train.lr"] for settings in made[tuning:]} == {chosen[0]}
    assert made[-1]["shape.blur"] == pytest.approx(0.01 / chosen[0])


@pytest.mark.parametrize(
    "study",
    [over_time, kiani, shaping, networks, records_cnn, cheng, norms, writers_cnn, as_printed],
)
def test_every_arm_is_a_config_without_idle_keys(study):
    from fedspend.configuration.config import config_of
    from fedspend.configuration.effects import refuse_without_effect

    found = study.arms()
    names = [arm.name for arm in found]
    assert len(set(names)) == len(names)
    in_memory.register()
    for arm in found:
        for changes in (*arm.among, *arm.next_among, arm.then):
            settings = experiment.changed(arm, changes).at(arm.start, 1)
            refuse_without_effect(config_of(experiment.by_section(settings)))


def test_the_readme_lists_every_study_with_its_size():
    text = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    rows = {line.split("`")[1]: line.split("|") for line in text.splitlines() if "| `" in line[:3]}
    assert set(run_all.STUDIES) <= set(rows)
    counted = (over_time, kiani, shaping, networks, records_cnn, influence, cheng, as_printed)
    counted += (norms, writers_cnn)
    sizes = {
        study.STUDY: len(study.arms())
        for study in (*counted, client_losses, records, pooled, by_influence)
    }
    sizes |= {study: len(gu.trainings(study)) for study in gu.STUDIES}
    sizes[cheng.CNN_STUDY] = len(cheng.cnn_arms())
    sizes[targets.STUDY] = len(targets.CELLS)
    for study, size in sizes.items():
        assert rows[study][3].split()[0].rstrip(",") == str(size)


NETWORKS_LEFT = {"networks", "cheng-cnn", "records-cnn", "gu-lenet", "gu-lenet-rest"}


def test_what_is_left_out_is_listed_until_it_is_run(tmp_path, monkeypatch):
    fake(monkeypatch, lambda _: 0.5)
    monkeypatch.setattr(gu, "losses", lambda _: {"loss": [1.0] * gu.ROUNDS, "seconds": 1.0})
    results = Results(tmp_path / "all.jsonl")
    monkeypatch.setattr(results, "add", lambda line: results.found.update({line["key"]: line}))
    finished = Finished(results.path, results.found)
    of_before = {one.study for one in (*left_out.of_arms(finished), *left_out.of_gu(finished))}
    assert of_before >= NETWORKS_LEFT
    assert {one.seconds for one in left_out.of_arms(finished)} == {None}, "nobody knows"
    for arms in (networks.arms(), cheng.cnn_arms(), records_cnn.arms()):
        experiment.run_arms(results, arms)
    assert not list(left_out.of_arms(finished))
    for study in gu.STUDIES:
        monkeypatch.setattr(results, "read_again", lambda: None)
        gu.run(results, study)
    assert left_out.table(finished) == "Every study is finished."


def test_what_is_left_out_is_estimated_from_what_was_run(tmp_path, monkeypatch):
    fake(monkeypatch, lambda _: 0.5)
    results = Results(tmp_path / "networks.jsonl")
    first, *others = [arm for arm in networks.arms() if arm.label[:2] == ("LeNet", "2/5/10")]
    experiment.finish(results, first)
    finished = Finished(results.path, results.found)
    (left,) = [one for one in left_out.of_arms(finished) if one.what.startswith("LeNet, 2/5/10")]
    searches = {arm.label[2] for arm in others if arm.like is None}
    assert len(searches) == 2
    network = networks.NETWORKS["LeNet"]
    assert left.runs == len(others) * network.seeds + len(searches) * network.tries
    assert left.seconds == left.runs, "one second each"
    assert left.what.endswith("8 of 9 arms")


def test_what_is_left_of_a_push():
    """All of it after the last round; none of what averaging leaves out."""
    settings = ARM.at((0.2, 1.0), 1) | {"train.rounds": 25}
    left = influence.measured(settings, "last", 1)
    assert left["parameters"][-1] == left["scores"][-1] == pytest.approx(1, abs=1e-3)
    assert all(0 < value < 1.5 for value in left["parameters"])
    averaged = influence.measured(settings, "tail", 1)
    assert averaged["parameters"][-1] == pytest.approx(1 / experiment.TAIL, rel=0.05)


def test_what_a_push_does_to_the_loss():
    """The loss is convex: after the last round any push does harm, and an eighth of it about the
    64th part. A push in the first round is corrected in part.
    """
    settings = ARM.at((0.2, 1.0), 1) | {"train.rounds": 25}
    last, averaged = (influence.harm(settings, readout, 1) for readout in ("last", "tail"))
    assert last["harm"][-1] > 0
    assert averaged["harm"][-1] == pytest.approx(last["harm"][-1] / experiment.TAIL**2, rel=0.5)
    assert last["harm"][0] < last["harm"][-1]


def test_noise_is_weighed_by_round():
    """Weights on late rounds favour saving, weights on early ones uniform spending."""
    uniform, saving = (
        over_time.arm("fashion-mnist", (2, 5, 10), "annealed", one) for one in ("uniform", "exact")
    )
    late = np.array([0.0] * 8 + [1.0])
    assert influence.noise_over(late, saving, uniform) < 1
    assert influence.noise_over(late[::-1], saving, uniform) > 1
    assert influence.noise_over(late, uniform, uniform) == 1


def test_results_files_hold_whole_runs():
    for path in sorted(render.RESULTS.glob("*.jsonl")):
        for text in path.read_text(encoding="utf-8").splitlines():
            line = json.loads(text)
            assert {"key", "study", "label", "lr", "clip", "seed", "held_out"} <= set(line)


def test_a_target_is_measured_once_and_goes_on(tmp_path, monkeypatch):
    """The study on small data, after a search: which seeds, and that it resumes."""
    small = {**SMALL, "train.lr": 0.2, "privacy.clip": 1.0}
    best = {"train.lr": 0.4, "privacy.clip": 1.0, "schedule": "constant", "policy": "uniform"}
    cell = targets.Cell("digits", (20.0, 20.0, 20.0), 50.0, 3, 1, 1)
    monkeypatch.setattr(targets.Cell, "settings", lambda _: dict(small))
    monkeypatch.setattr(targets, "CELLS", (cell,))
    monkeypatch.setattr(targets, "without_privacy", lambda _: replace(ARM, tries=1))
    monkeypatch.setattr(targets, "SEEDS", (1, 2))
    monkeypatch.setattr(targets_page, "CELLS", (cell,))
    monkeypatch.setattr(targets_page, "SEEDS", (1, 2))
    monkeypatch.setitem(targets_page.NAMES, "digits", "digits")
    results = Results.read(tmp_path / "targets.jsonl")
    line = {"study": targets.STUDY, "label": [*cell.label, "search"], "best": best, "tried": 3}
    line |= {"lr": 0.4, "clip": 1.0, "seed": 9, "held_out": HELD_OUT, "worth": [], "seconds": 1.0}
    results.add({"key": targets.search_key(cell), **line})
    targets.run(results)
    _, *runs = [line for line in results.found.values() if line["study"] == targets.STUDY]
    assert [line["seed"] for line in runs] == [1, 2]
    assert all((line["held_out"], line["lr"]) == (0, 0.4) for line in runs)
    before = (tmp_path / "targets.jsonl").read_bytes()
    targets.run(Results.read(tmp_path / "targets.jsonl"))
    assert (tmp_path / "targets.jsonl").read_bytes() == before
    table = targets_page.table(Finished.read(tmp_path / "targets.jsonl"))
    mean = 50 * sum(line["accuracy"] for line in runs)
    assert f"| {mean:.1f} ± " in table


# --- the other studies, each on a few rows ---


@pytest.mark.usefixtures("quick_verify")
def test_losses_of_clients_are_those_on_their_own_rows():
    settings = ARM.at((0.2, 1.0), 1) | {
        "privacy.groups": [{"epsilon": 5.0, "share": 1}, {"epsilon": 20.0, "share": 2}]
    }
    del settings["privacy.epsilon"]
    found = client_losses.measured(settings)
    assert len(found["loss"]) == len(found["loss_by_budget"]) == SMALL["train.rounds"]
    assert found["budgets"] == [5.0, 20.0]
    means = np.array(found["loss_by_budget"]) @ [2 / 6, 4 / 6]
    np.testing.assert_allclose(found["loss"], means, atol=2e-4)


@pytest.mark.usefixtures("quick_verify")
def test_lus_at_the_final_model_keeps_as_much_and_sometimes_other_values(monkeypatch):
    in_memory.register()
    shaped = ARM.at((0.5, 1.0), 1) | {"shape.lus": 0.7, "privacy.epsilon": 1e4}
    without = shaped | {"shape.lus": 0.0}
    other = {"engine.name": lus_final.NAME}
    plain, same = (experiment.measured(one) for one in (without, without | other))
    assert same["curve"] == plain["curve"], "without LUS it is the same training"
    last_batch, final = (experiment.measured(one) for one in (shaped, shaped | other))
    assert final["curve"] != last_batch["curve"]
    monkeypatch.setattr(lus_final, "fast", lus_final.FinalGradient)
    one_by_one = experiment.measured(shaped | other)
    np.testing.assert_allclose(final["curve"], one_by_one["curve"], atol=0.01)


def test_the_final_gradient_is_that_of_the_local_model():
    """By differences of the loss at the end of local training."""
    import torch

    from fedspend.client.rows import Rows
    from fedspend.tasks.task import CLASSIFY

    module = torch.nn.Linear(3, 2)
    rng = np.random.default_rng(0)
    rows = Rows(
        torch.from_numpy(rng.normal(size=(7, 3)).astype(np.float32)),
        torch.from_numpy(rng.integers(0, 2, 7)),
        np.arange(7),
    )
    start, update = (rng.normal(size=8).astype(np.float32) for _ in range(2))
    slope = lus_final.gradient(start, torch.from_numpy(update), rows, CLASSIFY, module)

    def loss(flat):
        weight, bias = torch.from_numpy(flat[:6].reshape(2, 3)), torch.from_numpy(flat[6:])
        features, labels = rows.take(np.arange(7))
        return float(CLASSIFY.mean(features.double() @ weight.T + bias, labels))

    end = (start + update).astype(np.float64)
    for place in range(8):
        step = np.zeros(8)
        step[place] = 1e-5
        expected = (loss(end + step) - loss(end - step)) / 2e-5
        assert float(slope[place]) == pytest.approx(expected, abs=1e-4)


# --- Gu et al.: grids of trainings, and figures as windows on them ---


def test_every_grid_is_of_configs_without_idle_keys():
    from fedspend.configuration.config import config_of
    from fedspend.configuration.effects import refuse_without_effect
    from fedspend.configuration.plan_inputs import resolve

    firsts = [panel.grid.trainings()[0] for model in gu.LEVELS for panel in gu.panels(model)]
    for one in firsts:
        refuse_without_effect(config_of(experiment.by_section(one.settings)))
    least = min(
        gu.trainings(gu.LENET),
        key=lambda one: one.level * (one.rate * one.settings["data.clients"]) ** 0.5,
    )
    assert resolve(config_of(experiment.by_section(least.settings))).request.plan(), (
        "even the least noise has a plan"
    )


def test_the_rest_completes_the_grids_of_the_paper():
    first, rest = ({one.key for one in gu.trainings(study)} for study in (gu.LENET, gu.REST))
    whole = {one.key for panel in gu.panels("lenet") for one in panel.grid.trainings()}
    assert not first & rest
    assert first | rest == whole


def test_levels_that_the_end_of_training_cuts_off_are_run_last():
    """By k of about 62: T = q K / (62 sigma^2)."""
    counts = {5: 7, 10: 5, 20: 3}
    for in_a_round, count in counts.items():
        assert gu.telling(gu.LEVELS["lenet"], in_a_round) == gu.LEVELS["lenet"][-count:]
    (free,) = [one for one in gu.panels("lenet") if one.figure == "Figure 2"]
    assert [len(free.first.levels_at(rate)) for rate in gu.FEW_RATES] == [7, 5, 3]
    assert len(free.grid.levels_at(0.5)) == 9
    (five,) = [one for one in gu.panels("lenet") if one.title == "K = 5"]
    assert len(five.first.trainings()) == 7


def test_trainings_of_lenet_are_in_order():
    names = ("data.clients", "train.local_steps", "data.share")
    found = [(*(one.settings[name] for name in names), one.rate) for one in gu.trainings(gu.LENET)]
    assert list(dict.fromkeys(found)) == [
        (40, 20, 1.0, 0.125),  # Figure 3
        (10, 20, 1.0, 1.0),  # Figure 4, and 5
        (10, 10, 1.0, 1.0),
        (10, 5, 1.0, 1.0),
        (5, 20, 1.0, 1.0),  # Figure 5
        (10, 20, 0.1, 1.0),  # Figure 6
        (40, 20, 1.0, 0.25),  # Figure 2
        (40, 20, 1.0, 0.5),  # Figure 2, and 6
        (20, 20, 1.0, 1.0),  # Figure 5
    ]


def test_trainings_that_are_finished_are_found_by_their_keys():
    for name in (gu.LOGISTIC, gu.LENET):
        lines = (render.RESULTS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()
        keys = {one.key for one in gu.trainings(name)}
        assert {json.loads(line)["key"] for line in lines} <= keys


def tiny(level, rounds):
    return SMALL | {
        "method.name": "dp-fedsgd",
        "method.noise_level": level,
        "privacy.clip": 0.5,
        "train.lr": 0.1,
        "train.rounds": rounds,
        "train.seed": 1,
    }


def test_a_training_serves_every_smaller_limit_on_rounds():
    """Why cases II and III need no training of their own."""
    longer, shorter = (tiny(0.05, rounds) for rounds in (5, 3))
    for settings in (longer, shorter):
        del settings["privacy.policy"], settings["privacy.epsilon"]
    assert gu.losses(longer)["loss"][:3] == gu.losses(shorter)["loss"]


def theory(one, k):
    """The loss that theory expects of a training."""
    t = np.arange(1, gu.ROUNDS + 1)
    share = one.rate * one.settings["data.clients"]
    return (1 / t + k * one.level**2 / share).tolist()


def as_if(trainings, k):
    """Results of trainings whose losses are theory's; k may depend on the training."""
    of = k if callable(k) else lambda _: k
    return {one.key: {"loss": theory(one, of(one))} for one in trainings}


def test_a_killed_grid_goes_on_where_it_stopped(tmp_path, monkeypatch):
    trained = []

    def losses(settings):
        if len(trained) == 3:
            raise KeyboardInterrupt
        trained.append(settings["method.noise_level"])
        return {"loss": [1.0], "accuracy": 0.5, "seconds": 1.0}

    monkeypatch.setattr(gu, "losses", losses)
    levels = gu.LEVELS["lenet"][-5:]
    monkeypatch.setattr(gu, "grids", lambda _: [gu.Grid("lenet", levels)])
    path = tmp_path / f"{gu.LENET}.jsonl"
    with pytest.raises(KeyboardInterrupt):
        gu.run(Results.read(path), gu.LENET)
    path.write_bytes(path.read_bytes()[:-5])  # killed while writing the third line
    before = list(trained)
    trained.clear()
    gu.run(Results.read(path), gu.LENET)
    assert before[:2] + trained == sorted(levels, reverse=True)
    assert len(Results.read(path).found) == len(levels)


def test_fronts_of_theory_lie_where_theory_says(tmp_path):
    results = Finished(tmp_path / "none", as_if(gu.trainings(gu.LENET), 110.0))
    for panel in gu.panels("lenet"):
        read = gu_page.reading(results, panel)
        assert read.shares[0] > 0.9
        assert read.seen.as_theory_says(110.0) == 1
        assert read.verdict == (gu_page.CANNOT_TELL if read.indifferent else "reproduced")
        assert read.theory == pytest.approx(110, rel=0.15)
    word, why = gu_page.judge("lenet", "Figure 3", "case III")(results)
    assert word == gu_page.CANNOT_TELL
    assert "with a wrong k" in why
    assert "wrong k" not in gu_page.judge("lenet", "Figure 3", "case I")(results)[1]
    told = gu_page.judge("lenet", "Figure 4")(results)
    assert told[0] == "reproduced"
    assert "E = 20" not in told[1], "k comes from there, so it proves nothing"
    assert "5 of 9 noise levels" in told[1]
    free = gu_page.judge("lenet", "Figure 2")(results)[1]
    assert "3 to 7 of 9 noise levels, 3 of 9 rates" in free
    assert "levels" not in gu_page.judge("lenet", "Figure 3", "case II")(results)[1]


def lenet(title):
    return next(one for one in gu.panels("lenet") if one.title == title)


def held_to(results, title, k):
    """A panel's first part, held to a k of ours."""
    panel = lenet(title)
    seen = gu_page.window(results, panel.first, panel)
    return gu_page.Reading(panel, panel.first, seen, seen.estimate(), k)


@pytest.mark.parametrize("title", ["K = 5", "E = 20", "K = 20"])
def test_a_k_four_times_too_small_is_noticed_even_with_few_levels(tmp_path, title):
    """Almost every level has its first rounds on theory's front, and that must not put all of its
    rounds in their place.
    """
    results = Finished(tmp_path / "none", as_if(gu.trainings(gu.LENET), 4 * 62.0))
    read = held_to(results, title, 62.0)
    right, _, larger = read.shares
    assert right < 1 / 2
    assert larger == 1
    assert read.misplaced
    assert read.verdict == "not reproduced"


@pytest.mark.parametrize(
    ("shares", "verdict"),
    [
        ((57 / 60, 58 / 60, 26 / 60), "cannot tell"),  # one point of 60 is no difference
        ((0.80, 0.70, 0.30), "cannot tell"),
        ((0.80, 0.60, 0.30), "reproduced"),
        ((0.70, 0.95, 0.20), "not reproduced"),
        ((0.55, 0.60, 0.20), "cannot tell"),
        ((0.55, 0.50, 0.20), "reproduced in part"),
        ((0.40, 0.30, 0.20), "not reproduced"),
    ],
)
def test_a_verdict_needs_a_wrong_k_to_do_worse(tmp_path, shares, verdict):
    results = Finished(tmp_path / "none", as_if(lenet("E = 20").first.trainings(), 62.0))
    read = held_to(results, "E = 20", 62.0)
    read.__dict__["shares"] = shares  # as if they had been found
    assert read.verdict == verdict
    assert ("but" in read.told) == (verdict == "cannot tell")
    assert ("less than with a wrong k" in read.told) == (shares[1] > shares[0] + 0.1)


def test_a_slope_rests_on_four_levels(tmp_path):
    results = Finished(tmp_path / "none", as_if(gu.trainings(gu.LENET), 62.0))
    few, enough = (gu_page.reading(results, lenet(title)) for title in ("E = 20", "K = 5"))
    assert (few.k.levels, few.slope) == (3, None)
    assert "slope" not in few.told
    assert enough.k.levels == 4
    assert enough.slope == pytest.approx(1, abs=0.1)
    assert "slope" in enough.told


def test_the_papers_k_is_beside_ours(tmp_path):
    results = Finished(tmp_path / "none", as_if(gu.trainings(gu.LENET), 62.0))
    _, why = gu_page.judge("lenet", "Figure 3", "case I")(results)
    assert re.search(r"case I: 9\d%, k = (5[89]|6\d), the paper's 110", why)
    shown = gu_page.table(results)
    rows = {cells[1].strip(): cells for cells in map(row_of, shown.splitlines()) if len(cells) > 2}
    heading, free, case = (
        [cell.strip() for cell in rows[name]]
        for name in ("", "Figure 2, LeNet, K = 40, rate free", "Figure 3, LeNet, case I")
    )
    assert (free[2], case[2]) == ("*110*", "*(110)*"), "the paper has no k for Figure 3"
    share = case[heading.index("with the paper's k")]
    assert int(share.rstrip("%")) < 70
    assert case[heading.index("from levels")] == "4"
    count = re.search(r"leaves out the paper's k: LeNet (\d+) of (\d+)", shown)
    assert count[1] == count[2]


def row_of(line):
    return line.split("|")


def test_a_k_that_does_not_serve_is_noticed(tmp_path):
    """If k depended on local steps and clients, Figures 4 and 5 would not be reproduced."""

    def k(one):
        clients, steps = (one.settings[name] for name in ("data.clients", "train.local_steps"))
        return 110 * {5: 8, 20: 1 / 8}.get(clients, 1) * (20 / steps) ** 3

    results = Finished(tmp_path / "none", as_if(gu.trainings(gu.LENET), k))
    for figure in ("Figure 4", "Figure 5"):
        assert gu_page.judge("lenet", figure)(results)[0] == "not reproduced"
    assert gu_page.judge("lenet", "Figure 3", "case I")(results)[0] == "reproduced"


def test_a_front_in_its_place_is_not_enough_if_theorys_settings_are_poor():
    (panel,) = [one for one in gu.panels("lenet") if one.title == "E = 20"]
    found = as_if(panel.grid.trainings(), 110.0)
    results = Finished(Path("none"), found)
    read = gu_page.reading(results, panel)
    assert (read.verdict, read.price) == ("reproduced", pytest.approx(0, abs=0.01))
    for one in panel.grid.trainings():
        picked = round(10 / (read.theory * one.level**2))
        if picked < gu.ROUNDS:
            found[one.key]["loss"][picked - 1] += 0.2
    poor = replace(read, seen=gu_page.window(results, panel.grid, panel))
    assert poor.shares[0] > 0.9
    assert poor.price > gu_page.PRICE
    assert poor.verdict == "reproduced in part"


def test_a_grid_is_shown_whole_once_it_is_and_not_before_its_first_part(tmp_path):
    (panel,) = [
        one for one in gu.panels("lenet") if (one.figure, one.title) == ("Figure 4", "E = 20")
    ]
    first, whole = (as_if(grid.trainings(), 110.0) for grid in (panel.first, panel.grid))
    for found, part in (
        ({}, None),
        (dict(list(first.items())[:4]), None),
        (first, "5 of 9 noise levels"),
        (whole, "all"),
    ):
        read = gu_page.reading(Finished(tmp_path / "none", found), panel)
        assert (read and read.part) == part


# --- verdicts ---

EFFECTS = {"reproduced", "reproduced in part", "not reproduced", "cannot be as printed", "not run"}
WORDS = EFFECTS | {f"{word}, better" for word in EFFECTS - {"not run"}}


def test_every_table_and_figure_has_a_verdict_and_a_reason(tmp_path):
    rows = papers_page.verdicts(Finished.read(tmp_path / "none.jsonl")).splitlines()[2:]
    cells = [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    names = [(paper, name) for paper, name, _, _ in cells]
    assert len(set(names)) == len(names) >= 45
    papers = [paper for paper, _ in names]
    assert papers == sorted(papers, key=list(papers_page.PAPERS).index), (
        "each paper's lines together"
    )
    assert {verdict for _, _, verdict, _ in cells} <= WORDS
    assert all(why for _, _, _, why in cells)
    studies = {word for *_, why in cells for word in why.split("`") if word.startswith("--only")}
    assert {study.split()[1] for study in studies} <= set(run_all.STUDIES)


@pytest.mark.parametrize(
    ("gains", "word"),
    [
        ([(2.0, 1.0), (3.0, 0.5)], "reproduced"),
        ([(2.0, 1.0), (0.5, 1.0)], "reproduced in part"),
        ([(0.5, 1.0), (-3.0, 0.5)], "not reproduced"),
        ([(5.0, None)], "not reproduced"),  # one seed has no interval
    ],
)
def test_a_gain_is_there_if_its_interval_is_above_zero(gains, word):
    assert judging.judged(gains, "gain")[0] == word
    assert "1 not run" in judging.judged([*gains, None], "gain")[1]
    assert judging.judged([None], "gain") is None


def test_a_clip_that_is_too_large_is_four_times_the_chosen_one(tmp_path, monkeypatch):
    made = fake(monkeypatch, lambda s: -abs(np.log2(s["privacy.clip"] / 0.25)))
    results = Results.read(tmp_path / "networks.jsonl")
    experiment.finish(results, networks.with_large_clip("small CNN", (2, 5, 10), "exact"))
    tried = [one for one in made if one["privacy.policy"] == "uniform"]
    large = [one for one in made if one["privacy.policy"] != "uniform"]
    assert all(one["data.validation"] for one in tried), "the choice is that of uniform spending"
    assert {one["privacy.clip"] for one in large} == {1.0}


@pytest.mark.parametrize("harmful", [0.5, 2.0])
def test_harm_agrees_with_accuracy_where_that_is_clear(tmp_path, monkeypatch, harmful):
    """Saving gains a point everywhere; harm below 1 says the same, above 1 the opposite."""
    fake(monkeypatch, lambda s: 0.51 if s["privacy.policy"] == "spend-as-you-go" else 0.5)
    results = Results.read(tmp_path / "time.jsonl")
    monkeypatch.setattr(results, "add", lambda line: results.found.update({line["key"]: line}))
    arm = over_time.arm("mnist", (2, 5, 10), "annealed", "uniform")
    for one in (arm, over_time.arm("mnist", (2, 5, 10), "annealed", "exact")):
        experiment.finish(results, one)
    monkeypatch.setattr(influence, "arms", lambda: [arm])
    monkeypatch.setattr(influence, "harmed", lambda *_: np.ones(len(influence.ROUNDS)))
    monkeypatch.setattr(influence, "noise_over", lambda *_: harmful)
    found = influence_page.harm_and_accuracy(Finished(results.path, results.found))
    assert ("agrees in 1 of the 1 lines" in found) == (harmful < 1)
    assert ("It disagrees in: MNIST" in found) == (harmful > 1)


@pytest.mark.parametrize("lead", [0.1, -0.1])
def test_the_cnn_of_figure_8_is_reproduced_in_part_if_rpdp_leads(tmp_path, monkeypatch, lead):
    fake(monkeypatch, lambda s: 0.5 + (lead if s["method.name"] == "rpdp" else 0.0))
    results = Results.read(tmp_path / "records-cnn.jsonl")
    assert liu_page.with_its_cnn(Finished.read(results.path)) is None
    experiment.run_arms(results, records_cnn.arms())
    finished = Finished.read(results.path)
    word, why = liu_page.with_its_cnn(finished)
    assert word == ("reproduced in part" if lead > 0 else "not reproduced"), "one line of six"
    assert "two seeds where three were wanted" in why
    assert f"**{100 * lead:+.1f} ± 0.0**" in liu_page.with_cnn(finished)


@pytest.mark.parametrize("follows", [0.0, 0.1])
def test_better_stands_beside_the_verdict_on_the_effect(tmp_path, monkeypatch, follows):
    """Saving gains nothing; a clip that follows the learning rate gains `follows`."""
    fake(
        monkeypatch,
        lambda s: (
            0.5
            + 0.01 * s["train.seed"] % 0.05
            + (follows if s.get("privacy.clip_schedule") == "lr" else 0.0)
        ),
    )
    results = Results.read(tmp_path / "kiani.jsonl")
    table = kiani.table_7()
    few = replace(table, rows=table.rows[:2])
    for row in few.rows:
        base, ours = (row.cells[name].arm for name in ("DP-FedAvg", "time-adaptive"))
        for arm in (base, ours, kiani.at_choice_of(base, ours)):
            experiment.finish(results, arm)
        experiment.finish(results, kiani.following(row.cells["time-adaptive"].arm))
    word, why = kiani_page.verdict(Finished.read(results.path), few)
    assert word == ("not reproduced, better" if follows else "not reproduced")
    assert f"ahead of the paper's method in {2 if follows else 0} of 2 lines" in why
    # every line must be compared
    assert judging.beside(("reproduced", ""), [(1.0, 0.5)], "ours")[0] == "reproduced, better"
    assert judging.beside(("reproduced", ""), [(1.0, 0.5), None], "ours")[0] == "reproduced"
    assert judging.beside(("reproduced", ""), [(1.0, 0.5), (1.0, None)], "ours")[0] == "reproduced"


def test_the_alternative_differs_from_saving_in_spending_and_clip_alone():
    for table in kiani.tables():
        for row in table.rows:
            for _, ours in row.gains:
                arm = row.cells[ours].arm
                other = kiani.following(arm)
                names = {
                    name
                    for name in {*arm.settings, *other.settings}
                    if arm.settings.get(name) != other.settings.get(name)
                }
                assert names <= {
                    "method.name",
                    "privacy.policy",
                    "privacy.transition",
                    "privacy.groups",
                    "privacy.clip_schedule",
                }
                assert [one["epsilon"] for one in arm.settings["privacy.groups"]] == [
                    one["epsilon"] for one in other.settings["privacy.groups"]
                ]
    saving = kiani.private("mnist", (10, 20, 30), "exact")
    run_there = over_time.arm("mnist", (10, 20, 30), "following", "uniform")
    assert kiani.following(saving).at((0.2, 1.0), 1) == run_there.at((0.2, 1.0), 1)


def test_the_server_of_table_7_is_chosen_on_held_out_rows(tmp_path, monkeypatch):
    made = fake(monkeypatch, lambda s: s["train.server_lr"] + 0.01 * s["train.lr"])
    results = Results.read(tmp_path / "kiani.jsonl")
    cells = kiani.table_7().rows[0].cells
    plain, tuned = (
        cells[name].arm for name in ("adaptive clipping", "adaptive clipping, tuned server")
    )
    experiment.finish(results, plain)
    before = len(made)
    experiment.finish(results, tuned)
    choice, _ = experiment.tuned(results, plain)
    tries = [one for one in made[before:] if one["data.validation"]]
    assert len(tries) == len(kiani.SERVERS) - 1, "the plain arm is one of them, and was run"
    assert {(one["train.lr"], one["privacy.clip"], one["train.seed"]) for one in tries} == {
        (*choice, TUNING_SEED)
    }
    final = [one for one in made[before:] if not one["data.validation"]]
    assert [(one["train.seed"], one["train.server_lr"]) for one in final] == [
        (1, 2.0),
        (2, 2.0),
        (3, 2.0),
    ]
    found = experiment.outcome(Finished.read(results.path), tuned)
    assert found.arm.settings["train.server_lr"] == 2.0
    mean, _ = experiment.difference(found, experiment.outcome(Finished.read(results.path), plain))
    assert mean == pytest.approx(100), "by the three seeds that both have"


def test_no_client_is_favoured_by_its_number():
    """Groups of budgets follow the numbers of clients, so rows must not."""
    from fedspend.data.partition import PARTITIONS

    labels = np.repeat(np.arange(3), 40)
    sizes = np.array(
        [
            np.bincount(
                PARTITIONS["dirichlet"].deal(labels, 4, np.random.default_rng(seed), alpha=0.1),
                minlength=4,
            )
            for seed in range(1500)
        ]
    )
    error = sizes.std(axis=0) / len(sizes) ** 0.5
    assert np.all(np.abs(sizes.mean(axis=0) - 30) < 4 * error)
    assert np.all(error < 1), "a bias of a few rows would be seen"
