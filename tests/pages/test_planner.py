"""The planner page's numbers are those of the command line, and its settings are checked."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import random
import re
import shlex
import time

import pytest

import fedspend
from fedspend.cli.main import main
from fedspend.errors import InvalidInput, Refused
from fedspend.explanation.observed import at_once, sights
from fedspend.pages.planner.answers import answer, plan_of
from fedspend.pages.planner.page import planner_page
from fedspend.pages.planner.settings import (
    POLICIES_SHOWN,
    Settings,
    read_settings,
    settings_of,
    used_by,
)


def drawn(seed: int) -> Settings:
    """Settings as a person might move them."""
    at = random.Random(seed)
    policy = at.choice([one for one in POLICIES_SHOWN if not one.endswith("literal")])
    rounds, rate = at.randint(1, 12), round(at.uniform(0.05, 1), 2)
    epsilons = sorted({round(math.exp(at.uniform(-0.5, 3.4)), 2) for _ in range(at.randint(1, 4))})
    options = {
        "saving_rate": round(rate * at.uniform(0.3, 1), 3),
        "transition": at.choice([None, at.randint(1, rounds)]),
        "ratio": round(at.uniform(0.8, 1.25), 3),
        "contraction": at.choice([None, round(at.uniform(0.5, 1), 2)]),
        "tail": at.choice([None, at.randint(1, rounds)]),
    }
    return Settings(
        groups=tuple((epsilon, at.randint(1, 60)) for epsilon in epsilons),
        rounds=rounds,
        rate=rate,
        delta=at.choice([1e-5, 1e-6, 0.003]),
        policy=policy,
        clip=at.choice([1.0, 0.3]),
        accountant="auto" if seed % 5 == 0 else "rdp",
        **{name: value for name, value in options.items() if name in used_by(policy)},
    )


def printed(command: str) -> dict:
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        assert main([*shlex.split(command)[1:], "--json"]) == 0
    return json.loads(out.getvalue())


@pytest.mark.full(but=["4", "8", "12"])
@pytest.mark.parametrize("seed", range(int(os.environ.get("FEDSPEND_SETTINGS", "15"))))
def test_the_numbers_are_those_of_the_command(seed):
    settings = drawn(seed)
    # by Rényi curves the quick answer is the exact one
    shown = answer(settings, exact=settings.accountant == "auto")
    theirs = printed(shown["command"])
    assert shown["plan"] == {name: theirs[name] for name in shown["plan"]}
    for ours, one in zip(shown["groups"], theirs["groups"], strict=True):
        assert ours["spent"][-1] == one["spent"]["mean"]
        assert ours["noise"][0] == one["noise_multiplier"]["1"]["mean"]
    assert json.loads(json.dumps(shown, allow_nan=False)) == shown  # fit to be sent


@pytest.mark.full(but=["21"])
@pytest.mark.parametrize("seed", range(0, 50, 7))
def test_page_config_and_plan_file_bring_the_settings_back(seed):
    settings = drawn(seed)
    assert read_settings(json.loads(json.dumps(settings.to_dict()))) == settings
    plan = plan_of(settings, exact=True)
    again = settings_of(settings.config())
    assert plan_of(again, exact=True).hash == plan.hash
    if settings.policy != "individual-rates":  # whose rates are not one number
        from_plan = settings_of(plan.file_text())
        assert from_plan.groups == settings.groups
        assert (from_plan.rounds, from_plan.delta) == (settings.rounds, settings.delta)


@pytest.mark.full
def test_the_quick_answer_promises_no_more_than_the_exact_one():
    """Both are upper bounds on the same plan; the quick one is above."""
    plan = plan_of(Settings(rounds=5, accountant="rdp"), exact=True)
    for schedule in range(plan.schedules.count):
        quick, exact = at_once(plan, schedule), sights(plan, schedule, central=True)[0].curve
        for fpr in (0.001, 0.01, 0.1, 0.5):
            assert float(exact.tpr(fpr)) <= float(quick.tpr(fpr)) * (1 + 1e-6)


def test_noise_that_drowns_the_update_is_said():
    loud = answer(Settings(rounds=4, policy="uniform", parameters=10**7), exact=False)["average"]
    calm = answer(Settings(rounds=4, policy="uniform", parameters=10), exact=False)["average"]
    assert loud["drowned"]
    assert "smaller model" in loud["words"]
    assert not calm["drowned"]
    few = Settings(groups=((10.0, 3),), delta=1e-3, parameters=650)  # logistic regression on digits
    assert answer(few, exact=False)["average"]["drowned"], "three clients hide nobody"
    assert loud["ratio"] / calm["ratio"] == pytest.approx(1000)
    plan = plan_of(Settings(rounds=4, policy="uniform"), exact=False)
    assert calm["noise"][0] == pytest.approx(math.sqrt(10) * plan.noise_of_average[0])


def test_what_optimal_would_gain_is_shown_for_other_policies():
    gain = answer(Settings(policy="uniform", rounds=12), exact=True)["gain"]
    assert 0.5 < gain["variance"] <= 1.01
    assert "uniform" in gain["words"]


BAD = {
    "groups": [
        [],
        "x",
        [[10]],
        [[10, 0]],
        [[math.nan, 3]],
        [[-1, 3]],
        [[10, 2], [10, 3]],
        [[1, 1]] * 13,
    ],
    "rounds": [0, -1, 2.5, "x", 10**9, True, math.inf],
    "rate": [0, 2, math.nan, "x", []],
    "delta": [0, 1, -1, "1e-5x"],
    "policy": ["best", 3, "weights"],
    "clip": [0, -1, math.inf],
    "contraction": [0, 1.5, "x"],
    "tail": [0, -1, 2.5],
    "accountant": ["gdp", 7],
    "parameters": [0, -3, 0.5],
    "colour": [1],
}


@pytest.mark.parametrize(("name", "value"), [(k, v) for k, found in BAD.items() for v in found])
def test_bad_settings_are_named(name, value):
    with pytest.raises(InvalidInput) as refusal:
        plan_of(read_settings({name: value}), exact=False)
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "privacy.groups"),
        ("{", "not JSON|JSON"),
        ("{}", "plan"),
        ("a = ", "neither a plan nor a config"),
        ("[privacy]\nbudgets = 'b.csv'\n", "budgets by group"),
        ("[privacy]\nepsilon = 1\nnoise_multiplier = 2\n", "records"),
        ("[privacy]\nepsilon = 1\n", "set data.clients, or, .* fedspend plan mine -o plan.json"),
        ("[privacy]\nepsilon = -1\n[data]\nclients = 4\n", "epsilon"),
    ],
)
def test_files_that_are_no_plan_are_refused(text, why):
    with pytest.raises(InvalidInput, match=why):
        settings_of(text, "mine")


def test_a_plan_that_was_altered_is_refused_by_its_own_name():
    text = fedspend.plan([4.0], delta=1e-3, rounds=2, rate=0.5).file_text()
    with pytest.raises(Refused, match=r"^mine: the content does not match its hash"):
        settings_of(text.replace('"rounds": 2', '"rounds": 3'), "mine")


def test_a_name_in_a_page_cannot_end_its_data():
    page = planner_page(Settings(policy="uniform"))
    assert "</script" not in re.search(r'id="data">(.*?)</script>', page, re.DOTALL)[1]
    assert "connect-src &#x27;self&#x27;" in page


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (["--port", "70000"], "65535"),
        (["--port", "x"], "must be a whole number"),
        (["missing.toml"], "missing.toml"),
    ],
)
def test_bad_flags_are_named_and_nothing_is_written(arguments, why, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["planner", *arguments]) == 2
    said = capsys.readouterr().err
    assert why in said
    assert said.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


@pytest.mark.full
def test_a_change_is_answered_at_once():
    """100 clients in 3 groups; benchmarks/speed/planner.py has the figures of a quiet machine, and
    a slow and busy one may take twenty times as long.
    """
    answer(Settings(), exact=False)
    taken = []
    for rounds in (26, 27, 28, 29, 30):
        began = time.process_time()
        json.dumps(answer(Settings(rounds=rounds), exact=False))
        taken.append(time.process_time() - began)
    assert min(taken) < 2.5


def test_a_process_that_was_ended_is_said(monkeypatch):
    """The system may end the process that computes exact numbers; quick ones go on."""
    from concurrent.futures import Future
    from concurrent.futures.process import BrokenProcessPool

    from fedspend.errors import Refused
    from fedspend.pages.planner import site

    class Ended:
        def __init__(self, *_, **__): ...

        __enter__ = lambda self: self  # noqa: E731
        __exit__ = shutdown = lambda *_, **__: None

        def submit(self, *_):
            found = Future()
            found.set_exception(BrokenProcessPool())
            return found

    monkeypatch.setattr(site, "ProcessPoolExecutor", Ended)
    with site.planner_site(Settings()) as served:
        with pytest.raises(Refused, match="start the planner again"):
            served.asks["exact"]({"rounds": 4})
        assert served.asks["quick"]({"rounds": 4, "policy": "uniform"})["exact"] is False
