"""What benchmarks/evidence has of Cheng et al. (2022): choices, verdicts, the page."""

from __future__ import annotations

import re

import cheng
import cheng_page
import cheng_verdicts
import experiment
import lus_final
import norms
import papers_page
import pytest
import shaping
import writers_cnn
from experiment import HELD_OUT, TUNING_SEED, Finished, Results

pytestmark = pytest.mark.full


@pytest.fixture
def results(tmp_path):
    return Results.read(tmp_path / "runs.jsonl")


@pytest.fixture
def fake(monkeypatch):
    """Runs that only say what a function makes of their settings; gives the list of them."""

    def with_score(score):
        made = []

        def measured(settings, _curve=True):
            made.append(settings)
            value = score(settings)
            return {"last": value, "tail": value, "seconds": 1.0}

        monkeypatch.setattr(experiment, "measured", measured)
        return made

    return with_score


def finished(results: Results) -> Finished:
    return Finished(results.path, results.found)


def line(page: str, start: str) -> str:
    (found,) = [row for row in page.splitlines() if row.startswith(start)]
    return found


# --- choices ---


def test_sparsity_and_lambda_are_chosen_on_held_out_rows_by_the_last_batch(results, fake):
    """Best are sparsity 0.3 and lambda lr 0.04, at the learning rate and clip found for plain."""

    def score(s):
        if not s["shape.lus"]:
            return 0.5 - abs(s["train.lr"] - 0.2) - abs(s["privacy.clip"] - 0.4)
        pull = s["shape.blur"] * s["train.lr"]
        defaults = -abs(s["train.lr"] - 0.1) if s["shape.lus"] == 0.7 else 0.0
        return 0.5 - abs(s["shape.lus"] - 0.3) - abs(pull - 0.04) + s["train.lr"] / 100 + defaults

    made = fake(score)
    arm = cheng.chosen("femnist", 4.0)
    experiment.finish(results, arm)
    tries, runs = ([s for s in made if bool(s["data.validation"]) is one] for one in (True, False))
    assert {(s["data.validation"], s["train.seed"]) for s in tries} == {(HELD_OUT, TUNING_SEED)}
    assert all("engine.name" not in s for s in tries), "the cheap form, to choose"
    assert [s["train.seed"] for s in runs] == [1, 2, 3]
    for s in runs:
        assert s["engine.name"] == lus_final.NAME, "the paper's form, in the end"
        assert (s["shape.lus"], s["train.lr"], s["privacy.clip"]) == (0.3, 0.2, 0.4)
        assert s["shape.blur"] * s["train.lr"] == pytest.approx(0.04)
    found = experiment.outcome(finished(results), arm)
    searched = [s for s in tries if s["shape.lus"]]
    twice = 1  # the defaults at plain's choice: the search had met them
    assert found.tried == len(searched) + twice
    assert "| 0.3, 0.04; 0.2, 0.4 |" in cheng_page.judged_tables(finished(results))


def test_the_defaults_at_the_final_model_have_the_choice_of_the_last_batch(results, fake):
    made = fake(lambda s: s["train.lr"] if s["train.lr"] < 0.5 else 0.0)
    experiment.finish(results, cheng.both("femnist", 4.0))
    tuning = len(made) - 3
    experiment.finish(results, cheng.final_gradient("femnist", 4.0))
    final = made[tuning + 3 :]
    assert [s.get("engine.name") for s in final] == 3 * [lus_final.NAME], "nothing is tuned again"
    assert {s["train.lr"] for s in final} == {0.4}
    assert {s["shape.lus"] for s in final} == {cheng.SPARSITY}


def test_votes_are_chosen_by_the_mean_of_three_runs(results, fake):
    """With 300 rows a single run may be lucky."""

    def score(s):
        if s["votes.queries"] == 300:
            return 0.9 if s["train.seed"] == TUNING_SEED else 0.1
        return 0.5 if s["votes.queries"] == 1000 else 0.4

    made = fake(score)
    experiment.finish(results, cheng.one_shot("femnist", 4.0))
    assert {s["train.seed"] for s in made if s["data.validation"]} == set(cheng.VOTING_SEEDS)
    assert {s["votes.queries"] for s in made if not s["data.validation"]} == {1000}


def test_every_cell_of_figures_3_and_4_is_tuned_for_itself(results, fake):
    made = fake(lambda s: -abs(s["train.lr"] - 1 / s["train.local_steps"]))
    for steps in (10, 40):
        for ours in (False, True):
            experiment.finish(results, cheng.by_steps(steps, ours=ours))
    for steps, lr in ((10, 0.1), (40, 0.025)):
        runs = [s for s in made if s["train.local_steps"] == steps and not s["data.validation"]]
        assert {s["train.lr"] for s in runs} == {lr}
        assert len(runs) == 6


# --- verdicts ---


@pytest.mark.parametrize(
    ("chosen", "default", "word"),
    [
        (0.1, -0.1, "reproduced"),
        (-0.1, 0.1, "not reproduced"),
        (0.0, -0.1, "not reproduced"),
    ],
)
def test_tables_1_and_2_go_by_what_was_chosen(results, fake, chosen, default, word):
    def score(s):
        if not s["shape.lus"]:
            return 0.5
        if s["data.validation"]:
            return 0.9 - s["shape.lus"]  # 0.1 is chosen
        return 0.5 + (default if s["shape.lus"] == 0.7 else chosen)

    fake(score)
    for epsilon in shaping.EPSILONS:
        for make in (cheng.plain, cheng.chosen, cheng.final_gradient):
            experiment.finish(results, make("femnist", epsilon))
    found, why = cheng_verdicts.shaped_over(cheng.plain, "plain")(finished(results))
    assert found == word
    there, against = (4 if default > 0 else 0), (4 if default < 0 else 0)
    assert f"at the paper's defaults in {there} of 4" in why
    assert ("(the other way: 4)" in why) == bool(against)
    for alpha in shaping.ALPHAS:
        for make in (cheng.plain_by_alpha, cheng.chosen_by_alpha):
            experiment.finish(results, make(alpha))
    judge = cheng_verdicts.shaped_by_alpha(cheng.plain_by_alpha, "plain")
    assert judge(finished(results))[0] == word


def test_a_table_that_is_not_run_whole_is_not_reproduced(results, fake):
    fake(lambda s: 0.6 if s["shape.lus"] else 0.5)
    for make in (cheng.plain, cheng.chosen):
        experiment.finish(results, make("femnist", 4.0))
    word, why = cheng_verdicts.shaped_over(cheng.plain, "plain")(finished(results))
    assert word == "reproduced in part"
    assert "1 of 1 lines, 3 not run" in why


@pytest.mark.parametrize(
    ("votes", "word", "why"),
    [
        (0.6, "reproduced in part", "ahead of one-shot votes in 1 of 1; study"),
        (0.4, "not reproduced", "but plain is ahead of them in 1, too: 300 voters where"),
        (0.8, "not reproduced", "ahead of one-shot votes in 0 of 1"),
    ],
)
def test_votes_must_lie_between_plain_and_shaped_as_in_the_paper(results, fake, votes, word, why):
    """Plain has 0.5, BLUR and LUS have 0.7."""

    def score(settings):
        if settings["method.name"] == "ae-dpfl":
            return votes
        return 0.7 if settings["shape.lus"] else 0.5

    fake(score)
    for make in (cheng.plain, cheng.chosen, cheng.one_shot):
        experiment.finish(results, make("femnist", 4.0))
    found = cheng_verdicts.around_votes_by_epsilon(finished(results))
    assert found[0] == word, found
    assert why in found[1]
    assert "3 not run" in found[1]


@pytest.mark.parametrize(
    ("plain_falls", "ours_falls", "word"),
    [(0.1, 0.0, "reproduced"), (0.1, 0.1, "reproduced in part"), (-0.1, -0.1, "not reproduced")],
)
def test_figure_3_is_about_the_fall_at_many_steps(results, fake, plain_falls, ours_falls, word):
    """Ours is ahead everywhere, which is not what the figure is about."""

    def score(s):
        ours = bool(s["shape.lus"])
        fall = ours_falls if ours else plain_falls
        return 0.5 + 0.2 * ours - (fall if s["train.local_steps"] == 40 else 0.0)

    fake(score)
    for steps in cheng.STEPS:
        for ours in (False, True):
            experiment.finish(results, cheng.by_steps(steps, ours=ours))
    found = cheng_verdicts.by_steps(finished(results))
    assert found[0] == word, found
    assert "with both ahead of plain in 4 of 4" in found[1]


@pytest.mark.parametrize(("ours", "word"), [(0.1, "reproduced"), (0.3, "not reproduced")])
def test_figure_4_is_about_the_change_with_the_rate(results, fake, ours, word):
    fake(lambda s: 0.5 + s["privacy.rate"] * (ours if s["shape.lus"] else 0.2))
    for rate in cheng.RATES:
        for one in (False, True):
            experiment.finish(results, cheng.by_rate(rate, ours=one))
    assert cheng_verdicts.by_rate(finished(results))[0] == word


@pytest.mark.parametrize(
    ("norm", "high", "clipped", "word"),
    [
        (0.09, 0.1, 0.3, "reproduced"),
        (0.5, 0.6, 1.0, "reproduced in part"),
        (0.9, 2.0, 1.0, "not reproduced"),
    ],
)
def test_figure_2_asks_for_shorter_norms_that_vary_less_and_are_below_the_clip(
    results, monkeypatch, norm, high, clipped, word
):
    def measured(settings):
        shaped = bool(settings["shape.lus"])
        return {
            "norm": 3 * [norm if shaped else 0.8],
            "quantiles": 3 * [[0.05, 0.1, high if shaped else 1.0]],
            "clipped": 3 * [clipped if shaped else 1.0],
            "seconds": 1.0,
        }

    monkeypatch.setattr(norms, "measured", measured)
    assert cheng_verdicts.shorter_norms(finished(results)) is None
    norms.run(results)
    assert cheng_verdicts.shorter_norms(finished(results))[0] == word
    assert f"| {norm:.3f} | {norm:.3f}, {norm:.3f} |" in cheng_page.norms_by_round(
        finished(results)
    )


@pytest.mark.parametrize(
    ("plain", "lead", "word"),
    [(0.7, 0.1, "reproduced in part"), (0.7, -0.1, "not reproduced"), (0.5, 0.1, "not run")],
)
def test_the_cnn_of_cheng_counts_unless_it_drowns(results, fake, plain, lead, word):
    made = fake(lambda s: plain + (lead if s["shape.lus"] else 0.0))
    for pull in (0.0, cheng.CNN_PULL):
        experiment.finish(results, cheng.with_cnn(pull))
    assert cheng_verdicts.with_its_cnn(finished(results))[0] == word
    assert {one["train.lr"] for one in made} == {0.1}, "only the clip is searched"
    assert {one["privacy.clip"] for one in made} == {0.3, 0.6}


# --- the page ---


def test_once_the_studies_are_run_verdicts_and_tables_are_there(results, fake, monkeypatch):
    """A page that asks for other settings than the study runs would never say a word."""
    fake(lambda settings: settings["train.lr"] / 10)
    monkeypatch.setattr(results, "add", lambda line: results.found.update({line["key"]: line}))
    made = {"norm": [0.2], "quantiles": [[0.1, 0.2, 0.3]], "clipped": [1.0], "seconds": 1.0}
    monkeypatch.setattr(norms, "measured", lambda _: made)
    for arms in (shaping.arms(), cheng.arms(), cheng.cnn_arms(), writers_cnn.arms()):
        experiment.run_arms(results, arms)
    norms.run(results)
    told = {item.name: item.judge(finished(results)) for item in cheng_verdicts.ITEMS}
    assert [name for name, verdict in told.items() if verdict is None] == [
        "Table 1, ResNet-18",
        "Table 2, ResNet-18",
    ]
    reasons = [one[1] for name, one in told.items() if one and "CNN of 1.0M" not in name]
    assert not [why for why in reasons if re.search(r"\d+ not run", why)]
    for name, block in cheng_page.BLOCKS.items():
        text = block(finished(results))
        assert not re.search(r"[|/] - \|", text), name
        assert "CPU: " in text, name


def test_the_papers_numbers_are_as_printed(results):
    judged, others, sparse = (
        papers_page.BLOCKS[name](finished(results))
        for name in ("cheng-tables", "cheng-others", "cheng-sparsity")
    )
    # its text: 4.83 points at epsilon 2 and 2.73 at 8, 5.11 at alpha 0.1 and 2.32 at 100
    for title, gain in (
        ("femnist, epsilon 2", "+4.83"),
        ("femnist, epsilon 8", "+2.73"),
        ("cifar10, alpha 0.1", "+5.11"),
        ("cifar10, alpha 100", "+2.32"),
    ):
        assert line(judged, f"| {title} |").split("|")[3].strip() == f"*{gain}* / -"
    assert "| *69.65* / - | *71.16* / - | *69.35* / - | *74.48* / - |" in others
    assert "| *53.84* / - | *55.79* / - | *53.55* / - | *58.95* / - |" in others
    assert "| sparsity 0.7: gain | *+1.30* | - | - | *+4.08* | - | - |" in sparse
