"""`fedspend explain`, as people use it."""

from __future__ import annotations

import json

import pytest

import fedspend


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory):
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    fedspend.plan({"a": 2.0, "b": 2.0, "c": 8.0}, delta=1e-5, rounds=6, rate=0.5).save(path)
    return path


def test_a_bare_epsilon_in_words(run):
    done = run("explain", "10", "--delta", "1e-5")
    assert (done.code, done.err) == (0, "")
    assert "odds that you took part by at most 22,027" in done.out
    assert "except with a chance of 1 in 100,000" in done.out
    assert "fedspend explain PLAN.json" in done.out


def test_a_bare_epsilon_as_json(run):
    done = run("explain", "1", "--delta", "1e-6", "--json")
    found = json.loads(done.out)
    assert found["epsilon"] == 1
    assert [one["false_positives"] for one in found["tests"]] == [0.001, 0.01, 0.05, 0.1, 0.5]
    assert found["tests"][1]["true_positives"] == pytest.approx(0.0271838)
    assert found["sure_at_most"]["1:1"] == pytest.approx(0.7310586)


@pytest.mark.full
def test_a_plan_by_group_and_by_client(run, plan_file):
    whole = run("explain", plan_file)
    assert whole.code == 0
    assert "budget 2: 2 clients, epsilon 2" in whole.out
    assert "budget 8: 1 client, epsilon 8" in whole.out
    one = run("explain", plan_file, "--client", "c")
    assert "client c, epsilon 8" in one.out
    assert "by epsilon" in one.out
    assert "participation revealed" in one.out
    found = json.loads(run("explain", plan_file, "--group", "8.0", "--json").out)["subjects"]
    assert [one["who"] for one in found] == ["budget 8: 1 client"]
    assert [one["observer"] for one in found[0]["observers"]][:2] == [
        "plan",
        "participation revealed",
    ]
    mine, alone = found[0]["observers"][0]["tests"][1], found[0]["by_epsilon_alone"]["tests"][1]
    assert 0.01 < mine["true_positives"] < alone["true_positives"]


@pytest.mark.full
def test_one_observer_and_a_plot(run, plan_file, tmp_path):
    picture = tmp_path / "curve.png"
    done = run("explain", plan_file, "--observer", "picked every round", "--plot", picture)
    assert done.code == 0
    assert "The plan promises nothing here." in done.out
    assert "plan (promised)" not in done.out
    assert picture.read_bytes()[:4] == b"\x89PNG"
    assert run("explain", "3", "--delta", "1e-5", "--plot", tmp_path / "bare.svg").code == 0
    assert "<svg" in (tmp_path / "bare.svg").read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("10",), "epsilon 10 means nothing without its delta; add --delta"),
        (("-1", "--delta", "1e-5"), "epsilon must be 0 or more, got '-1'"),
        (("10", "--delta", "2"), "delta must lie strictly between 0 and 1, got '2'"),
        (("10", "--delta", "x"), "delta must be a number, got 'x'"),
        (("10", "--delta", "1e-5", "--client", "a"), "--client is for plans"),
        (("no.json",), "'no.json' is neither a number nor a file"),
        (("PLAN", "--delta", "1e-5"), "a plan has its own delta"),
        (("PLAN", "--client", "z"), "unknown client 'z'; choose one of a, b, c"),
        (("PLAN", "--record", "a"), "this plan protects clients; name one with --client"),
        (("PLAN", "--client", "a", "--group", "2"), "--client and --group were both given"),
        (("PLAN", "--group", "3"), "unknown group '3'; choose one of 2, 8"),
        (("PLAN", "--observer", "God"), "unknown observer 'God'; choose one of plan,"),
        (("PLAN", "--colluders", "0"), "--colluders must be at least 1, got 0"),
        (("PLAN", "--colluders", "3"), "fewer than the 3 clients of the plan, got 3"),
        (
            ("PLAN", "--observer", "plan", "--colluders", "2"),
            "and only 'plan' is asked about; drop",
        ),
        (("PLAN", "--plot", "x.gif"), "--plot 'x.gif' must end in .png, .svg, .pdf"),
    ],
)
def test_bad_input_is_one_line(refused, plan_file, arguments, words):
    assert words in refused("explain", *(plan_file if one == "PLAN" else one for one in arguments))


def test_the_glossary(run, refused):
    assert run("glossary", "clip").out.startswith("clip: The length that a contribution is cut to")
    whole = run("glossary")
    assert "zero-out: " in whole.out
    assert "ledger: " in whole.out
    assert json.loads(run("glossary", "trade-off", "curve", "--json").out).keys() == {
        "trade-off curve"
    }
    assert len(json.loads(run("glossary", "--json").out)) > 40
    assert "unknown term 'cilp'; did you mean 'clip'?" in refused("glossary", "cilp")
