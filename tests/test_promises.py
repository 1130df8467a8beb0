"""What pages promise in numbers and lists, and no other test holds them to."""

from __future__ import annotations

import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from audited import BROKEN

import fedspend
from fedspend.errors import Refused
from fedspend.explanation.meaning import Claim
from fedspend.ledger import Ledger
from fedspend.ledger.book import BY_PEOPLE
from fedspend.ledger.state import _KINDS
from fedspend.publishing.publication import refuse_showing_others
from fedspend.records.planning import plan_records
from fedspend.records.terms import Terms

ROOT = Path(__file__).parents[1]


def page(name: str) -> str:
    """As one line, whatever is wrapped."""
    return " ".join((ROOT / "docs" / name).read_text(encoding="utf-8").split())


def row_of(name: str, row: str) -> list[float]:
    """The numbers of a line of a page's table."""
    lines = (ROOT / "docs" / name).read_text(encoding="utf-8").splitlines()
    line = next(one for one in lines if one.startswith(f"| {row} |"))
    cells = (cell.strip().replace(",", "") for cell in line.split("|")[2:])
    return [float(cell) for cell in cells if re.fullmatch(r"[\d.]+", cell)]


# --- what is left of budgets, and where they are spent --------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize(
    ("budget", "terms"),
    [
        (0.15, {"delta": 1e-7, "rounds": 70, "rate": 0.07, "noise": "discrete"}),
        (5.0, {"delta": 1e-7, "rounds": 31, "rate": 0.9, "policy": "uniform"}),
        (48.0, {"delta": 1e-2, "rounds": 33, "rate": 0.7, "policy": "optimal"}),
    ],
)
def test_the_default_accountant_leaves_about_a_millionth(budget, terms):
    made = fedspend.plan([budget], **terms)
    assert made.accountant == "pld"
    assert 0 <= 1 - made.epsilon[0] / budget < 3e-6
    assert "leaves one to three millionths" in page("explanation/promises.md")


@pytest.mark.full
def test_renyi_curves_leave_next_to_nothing_and_name_their_orders():
    budgets = [0.1, 3.0, 60.0]
    for policy in ("uniform", "optimal"):
        made = fedspend.plan(
            budgets, delta=1e-5, rounds=25, rate=0.3, policy=policy, accountant="rdp"
        )
        left = 1 - made.epsilon / budgets
        assert (left >= 0).all()
        assert (left < 2e-8).all()
        assert set(made.schedules.order) <= set(made.orders)


@pytest.mark.full
def test_little_is_gained_at_low_rates():
    made = fedspend.plan([5.0], delta=1e-4, rounds=25, rate=0.02, accountant="rdp")
    assert made.policy == "optimal"
    assert 0.95 < made.parameters["expected"]["variance_of_uniform"] <= 1


@pytest.mark.full
def test_the_quickstart_gains_what_is_promised_and_means_what_is_said():
    by_default = fedspend.plan(config=ROOT / "examples" / "quickstart.toml")
    stated = fedspend.plan(
        config=ROOT / "examples" / "quickstart.toml", overrides=["privacy.contraction=0.9"]
    )
    left = [plan.parameters["expected"]["variance_of_uniform"] for plan in (by_default, stated)]
    assert left == pytest.approx([0.9, 2 / 3], abs=0.01)
    said = page("explanation/promises.md")
    assert (
        "a tenth less noise (variance) than uniform spending by default, and a third less" in said
    )
    [at_most] = re.findall(r"it is at most (\d+) in 100", said)
    explained = fedspend.explain(by_default)
    assert f"recognises at most {at_most} in 100" in str(explained)
    assert float(Claim(10.0, 1e-5).curve.tpr(0.01)) > 0.99, "of epsilon 10 alone: nearly all"


def test_as_many_mechanisms_are_broken_as_the_page_says():
    assert len(BROKEN) == 15
    assert "Fifteen mechanisms that we broke on purpose" in page("explanation/promises.md")


def test_promises_of_speed_are_what_was_measured():
    measured, said = "results/speed.md", page("explanation/promises.md")
    [most] = re.findall(r"below the budgets by \S+ to (\S+) of them", page(measured))
    assert float(most) <= 1e-4
    assert "at most 1e-4 where rates and noise differ widely" in said
    assert row_of(measured, "clients, each with its own budget")[0] == 100_000
    assert row_of(measured, "rounds")[0] == 100
    assert row_of(measured, "plan, CPU s")[0] <= 3.5
    assert row_of(measured, "verify, CPU s of all workers")[0] < 15
    assert 3_000 < row_of(measured, "that is so many times ours per client")[0] < 10_000
    assert "are planned in about 3 s on one core and checked in less than 15 s" in said
    assert "several thousand times less than calibrating one client with Opacus" in said


@pytest.mark.full
def test_observers_of_the_saving_plan_are_those_of_the_threat_model():
    plan = fedspend.plan(config=ROOT / "examples" / "saving.toml")
    lines = {
        "plan": "other clients and the public",
        "participation revealed": "the same, who learns who took part",
        "picked every round": "the same, of a client that takes part in every round",
        "10 colluding clients": "10 clients who pool their own noise (distributed noise)",
        "sees single updates": "someone who sees single updates (distributed noise)",
    }
    for one in fedspend.verify(plan, max_pld=0).observers:
        found = list(dict(one.by_budget).values())
        assert row_of("explanation/threat-model.md", lines[one.name]) == pytest.approx(
            found, rel=5e-3
        ), one.name


# --- what may be published ------------------------------------------------------------------------


@pytest.mark.full
def test_records_under_noise_that_all_budgets_chose_are_not_published():
    terms = Terms.checked(
        delta=1e-4, rounds=3, local_steps=2, client_rate=1.0, noise_multiplier=3.0
    )
    plan = plan_records([8.0, 2.0], [0, 0], terms, clients=["a"])
    named, suggested = (
        SimpleNamespace(settings={"privacy.noise_multiplier": given}) for given in (3.0, None)
    )
    refuse_showing_others(plan, named, Path("run"))
    with pytest.raises(Refused, match="noise of all records was chosen by all of their budgets"):
        refuse_showing_others(plan, suggested, Path("run"))


# --- the ledger's entries -------------------------------------------------------------------------


def test_every_kind_of_entry_is_on_the_page():
    text = (ROOT / "docs" / "how-to" / "ledger.md").read_text(encoding="utf-8")
    table = text.partition("## Entries")[2]
    named = {
        name
        for line in re.findall(r"^\| (`[^|]*) \|", table, re.M)
        for name in re.findall(r"`([\w-]+)`", line)
    }
    assert named == set(_KINDS)
    assert BY_PEOPLE == ("ledger", "change", "withdraw", "rotate-key", "migrate")
    assert (
        "(`change`, `withdraw`, `rotate-key`, `migrate`, and the first entry) has a time"
        in page("how-to/ledger.md")
    )


@pytest.mark.full
def test_a_round_adds_two_short_entries(tmp_path):
    run, release, digest = "3f09c1d2a4b5", "A" * 43, "0" * 64  # as long as those of a real run
    plan = fedspend.plan([8.0], delta=1e-5, rounds=4, rate=0.1, accountant="rdp")
    with Ledger.create(tmp_path / "accounts.db", simulation=False) as ledger:
        ledger.admit(run, plan.proposal(), simulation=False)
        before = len(ledger._storage.rows_after(0))
        ledger.reserve(run, 0, start=digest)
        ledger.commit(run, 0, release, file=digest)
        added = [
            len(text) + len(hashed) + 8 for _, text, hashed in ledger._storage.rows_after(before)
        ]
    assert len(added) == 2
    assert max(added) < 250
    assert "a round adds two entries, of less than 250 bytes each" in page("how-to/ledger.md")
