"""What leaving gives back agrees with what the ledger does when somebody really leaves."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import fedspend
from fedspend.errors import InvalidInput, Refused
from fedspend.explanation.leaving import leaving
from fedspend.ledger import Ledger
from fedspend.planning.protocol import load_any_plan

PLANS = Path(__file__).parent.parent / "before" / "files" / "plans"


def plan_of(accountant="rdp", rate=0.6):
    return fedspend.plan(
        {"a": 2.0, "b": 2.0, "c": 6.0},
        delta=1e-5,
        rounds=10,
        rate=rate,
        saving_rate=None if accountant == "pld" else 0.3,  # PLD is slow with many
        accountant=accountant,
    )


def opened(path, plan, begun):
    ledger = Ledger.create(path, simulation=True)
    ledger.admit("run", plan.proposal(), simulation=True)
    for round in range(begun):
        ledger.reserve("run", round)
    return ledger


@pytest.mark.full(only=["pld"])
@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_as_the_ledger_has_it(tmp_path, accountant):
    plan = plan_of(accountant)
    with opened(tmp_path / "l.db", plan, 3) as ledger:
        said = leaving(plan, "client", "b", 5, ledger.state)
        assert ledger.run("run").next_round == 3  # a question changes nothing
        for round in (3, 4):
            ledger.reserve("run", round)
        now = ledger.balances()
        assert said.spent == now.spent[1]
        assert said.if_it_stays == now.total[1]
        ledger.close_run("run", reason="test")
        then = ledger.balances()
        assert then.spent[1] == said.if_closed == pytest.approx(said.if_it_stays)
        assert then.reserved[1] == 0
        assert said.left == then.remaining[1]
    assert said.given_back == then.remaining[1] - now.remaining[1]
    assert 0 < said.spent < said.if_it_stays <= 2
    if accountant == "pld":  # it fits the accounts as a whole only
        assert said.given_back == 0
    else:
        assert said.budget - said.spent < said.given_back < said.budget


def test_a_withdrawal_stops_the_run(tmp_path):
    plan = plan_of()
    with opened(tmp_path / "l.db", plan, 4) as ledger:
        said = leaving(plan, "client", "b", 4, ledger.state)
        assert said.stops_the_run
        ledger.withdraw(["b"], reason="test")
        with pytest.raises(Refused, match="'b' has withdrawn"):
            ledger.reserve("run", 4)
        assert ledger.balances().remaining[1] == 0
        with pytest.raises(Refused, match="'b' has already withdrawn"):
            leaving(plan, "client", "b", 4, ledger.state)
        with pytest.raises(Refused, match="'b' has withdrawn; close the run"):
            leaving(plan, "client", "a", 6, ledger.state)
        assert leaving(plan, "client", "a", 4, ledger.state).begun == 4
        ledger.close_run("run", reason="gone")
        with pytest.raises(InvalidInput, match=r"was closed \(gone\)"):
            leaving(plan, "client", "a", 4, ledger.state)


def test_without_a_ledger_the_plan_speaks_for_itself(tmp_path):
    plan = plan_of()
    spent = plan.spent()
    for begun in (0, 1, 5, 10):
        said = leaving(plan, "client", "c", begun)
        assert said.spent == pytest.approx(0 if begun == 0 else spent[begun - 1, 2], rel=1e-6)
        assert said.if_it_stays == pytest.approx(plan.epsilon[2], rel=1e-6)
        assert said.stops_the_run == (begun < 10)
        with opened(tmp_path / f"{begun}.db", plan, begun) as ledger:
            assert leaving(plan, "client", "c", begun, ledger.state) == said
    assert (said.given_back, said.left) == (0, 0)


def test_other_runs_count(tmp_path):
    plan = plan_of()
    with Ledger.create(tmp_path / "l.db", simulation=True) as ledger:
        ledger.register(["a", "b", "c"], [5.0, 5.0, 9.0], delta=1e-5)
        ledger.admit("first", plan.proposal(), simulation=True)
        for round in range(10):
            ledger.reserve("first", round)
        ledger.close_run("first", reason="done")
        again = plan_of(rate=0.7)
        said = leaving(again, "client", "a", 2, ledger.state)
        assert said.elsewhere == pytest.approx(2.0, rel=1e-3)
        assert 2 < said.spent < said.if_it_stays <= 5
        assert said.spent < 2 + 2
        ledger.change(["a"], [2.1], reason="less")
        with pytest.raises(Refused, match=r"would exceed the lifetime budget of 2\.1"):
            leaving(again, "client", "a", 2, ledger.state)


def test_records(tmp_path):
    plan = load_any_plan(PLANS / "records-filter-clip.json")
    spent = plan.spent_by_schedule()
    name = plan.names[5]
    column = int(plan.schedules.of_client[5])
    said = leaving(plan, "record", name, 2)
    assert said.spent == pytest.approx(spent[1, column], rel=1e-3)
    # a record that has used up its budget is in no round to come, and may go
    used_up = next(
        n
        for n in range(len(plan.names))
        if plan.schedules.sampling_rate[-1, plan.schedules.of_client[n]] == 0
    )
    said = leaving(plan, "record", plan.names[used_up], plan.rounds - 1)
    assert not said.stops_the_run
    assert said.given_back == 0
    with opened(tmp_path / "l.db", plan, plan.rounds - 1) as ledger:
        ledger.withdraw([plan.names[used_up]], reason="test", unit="record")
        ledger.reserve("run", plan.rounds - 1)


def test_bad_questions(tmp_path):
    plan = plan_of()
    ledger = opened(tmp_path / "l.db", plan, 4)
    with ledger, pytest.raises(InvalidInput, match="run run has begun 4 rounds, which are spent"):
        leaving(plan, "client", "b", 3, ledger.state)
    for begun in (-1, 11):
        with pytest.raises(InvalidInput, match=r"from 0 .* to 10, the plan's last; got"):
            leaving(plan, "client", "b", begun)
    with pytest.raises(InvalidInput, match="made with a ledger"):
        leaving(load_any_plan(PLANS / "remaining.json"), "client", "0", 1)


def test_on_the_command_line(tmp_path, capsys):
    from fedspend.cli.main import main

    plan = plan_of()
    plan.save(tmp_path / "plan.json")
    opened(tmp_path / "l.db", plan, 2).close()
    words = ["explain", str(tmp_path / "plan.json"), "--client", "a", "--leaves", "4"]
    assert main(words) == 0
    shown = capsys.readouterr().out
    assert "client a leaves after round 4 of 10" in shown
    assert "rounds that have begun stay spent" in shown
    assert "The run can begin no further round" in shown
    assert "The mean loses a contribution" in shown
    assert main([*words, "--ledger", str(tmp_path / "l.db"), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["given_back"] == found["left"] - found["left_if_open"] > 0
    for arguments, line in (
        (words[:2] + words[4:], "say who leaves"),
        ([*words, "--record", "a"], "say who leaves"),
        ([*words, "--ledger", str(tmp_path / "no.db")], "no.db"),
        ([*words[:3], "z", *words[4:]], "unknown client 'z'"),
        ([*words[:5], "11"], "got 11"),
    ):
        assert main(arguments) == 2
        assert line in capsys.readouterr().err
