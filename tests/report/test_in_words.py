"""The guarantee in words, what epsilon means, and the dates: said only where they hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from lib.configs import small

import fedspend
from fedspend.report.dates import begun, dates_of, today
from fedspend.report.html import render, write_report
from fedspend.report.in_words import sentences
from fedspend.report.run_data import load_runs


def page_of(*runs: Path) -> str:
    output = runs[0].parent / "report.html"
    write_report(list(runs), output)
    return re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", output.read_text("utf-8")))


def test_a_real_run_states_unit_adjacency_observer_epsilon_and_delta(make, tmp_path):
    run = make(tmp_path / "run", randomness="os")
    said = " ".join(sentences(load_runs([run])[0]))
    for words in (
        "This run keeps the following promise.",
        "Protected: one client, with everything it holds.",
        "became zero",
        "(zero-out)",
        "Against: other clients and the public; participation hidden.",
        "every client has its own epsilon, the largest is 30.00; budgets are from 10 to 30",
        "Delta is 1e-5, a chance of 1 in 100,000 that the bound fails.",
    ):
        assert words in said
    text = page_of(run)
    assert text.index("The guarantee") < text.index("Accuracy")


def test_nothing_is_promised_that_is_not_kept(make, tmp_path):
    simulated = load_runs([make(tmp_path / "simulated", done=7)])[0]
    said = sentences(simulated)
    assert said[0].startswith("This was a simulation and protects nobody.")
    assert "So far 7 rounds of 25 are done." in said[3]
    plain = load_runs([make(tmp_path / "plain", method="fedavg")])[0]
    assert sentences(plain) == [
        "There is none. Nothing was clipped and no noise was added, so nobody is protected."
    ]
    failed = load_runs([make(tmp_path / "failed", randomness="os", certificate={"ok": False})])[0]
    assert sentences(failed)[0].startswith("None can be stated.")
    assert "keeps the following promise" not in render([failed])
    assert "The plan did not verify, so its numbers mean nothing." in render([failed])
    assert "What epsilon means" not in render([plain])


@pytest.mark.full
def test_what_epsilon_means_by_group_and_observer(make, tmp_path):
    text = page_of(make(tmp_path / "run"))
    part = text[text.rindex("What epsilon means") : text.index("Settings")]
    assert "whether one client took part" in part
    assert "recognises at most" in part
    for group in ("ε 10", "ε 20", "ε 30"):
        assert group in part
    assert part.count("participation revealed") == 3
    assert "colluding" not in part  # its noise is central
    mixed = page_of(make(tmp_path / "d", settings={"privacy.noise": "distributed"}))
    assert "10 colluding clients" in mixed[mixed.index("What epsilon means") :]


def test_many_budgets_are_shown_in_bands(make, tmp_path):
    run = make(
        tmp_path / "bands", method="idp-fedavg", rounds=4, epsilons=[1 + 0.4 * n for n in range(13)]
    )
    text = page_of(run)
    assert text[text.rindex("What epsilon means") :].count("picked every round") == 4


@pytest.mark.full
def test_a_report_is_dated_and_its_run_where_a_ledger_knows(make, tmp_path, monkeypatch):
    run = make(tmp_path / "run")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "86400")
    assert today() == "1970-01-02"
    assert "Undated run · report of 1970-01-02" in page_of(run)
    monkeypatch.delenv("SOURCE_DATE_EPOCH")
    assert re.fullmatch(r"\d{4}-\d\d-\d\d", today())
    assert begun(run) is None
    assert begun(tmp_path / "nowhere") is None
    assert "report of" not in render(load_runs([run]))


@pytest.mark.full
def test_the_date_of_a_run_is_that_of_its_beginning(tmp_path):
    fedspend.train(small("plain"), output=tmp_path / "run")
    when = begun(tmp_path / "run")
    assert when is not None
    assert re.fullmatch(r"\d{4}-\d\d-\d\d \d\d:\d\d UTC", when)
    dates = dates_of([tmp_path / "run"], ["run"])
    assert dates.begun == {"run": when}
    assert f"Begun {when} · report of {dates.written}" in page_of(tmp_path / "run")
    (tmp_path / "run" / "run.json").write_bytes(b"damaged")
    assert begun(tmp_path / "run") is None
