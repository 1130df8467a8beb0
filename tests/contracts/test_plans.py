"""The contract of plans: whatever verifies, trains, charges or reports may rely on this, for every
kind of plan.

A new kind has a line in `KINDS`, and nothing else here changes. Plans come from `fedspend plan`, on
the way that users take.
"""

import ast
import dataclasses
import json
import subprocess
import sys
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from lib.configs import changed, small, write_toml

import fedspend
import fedspend.cli.views
import fedspend.report.views
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.cli.main import main
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.participants import check_planned_on, plan_fits
from fedspend.planning.plan import Plan
from fedspend.planning.protocol import AnyPlan, Unit, load_any_plan
from fedspend.records import RecordPlan, verify_records
from fedspend.report.html import write_report
from fedspend.verification.verify import verify_clients

TRAIN = {"rounds": 4, "local_steps": 5, "lr": 0.3, "seed": 2}
OF_CLIENTS = small(
    "plain",
    data__classes=3,
    data__clients=3,
    method=None,
    privacy={
        "groups": [{"epsilon": 4.0, "share": 1}, {"epsilon": 12.0, "share": 2}],
        "delta": 1e-3,
        "rate": 0.8,
        "clip": 0.5,
        "accountant": "rdp",
    },
    train=TRAIN | {"batch_size": 8},
)
OF_RECORDS = small(
    "record", data__features=4, data__clients=3, privacy__clip=0.7, privacy__rate=0.8, train=TRAIN
)
# config, unit, headline, and what else tells this kind from the others
KINDS = {
    "rdp": (OF_CLIENTS, "client", "optimal", {"accountant": "rdp", "discrete": False}),
    "pld": (
        changed(OF_CLIENTS, privacy__accountant="pld"),
        "client",
        "optimal",
        {"accountant": "pld"},
    ),
    "auto": (
        changed(OF_CLIENTS, privacy__accountant="auto"),
        "client",
        "optimal",
        {"accountant": "pld"},
    ),
    "discrete": (
        changed(OF_CLIENTS, privacy__noise="discrete"),
        "client",
        "optimal",
        {"discrete": True},
    ),
    "time-adaptive": (
        changed(OF_CLIENTS, privacy__saving_rate=0.4, method__name="time-adaptive"),
        "client",
        "spend-as-you-go",
        {"filters": False},
    ),
    "rpdp": (OF_RECORDS, "record", "rpdp, uniform", {"filters": False}),
    "filter by clip": (
        changed(OF_RECORDS, method__name="filter"),
        "record",
        "filter by clip, uniform",
        {"filters": True, "by_norm": False},
    ),
    "filter by norm": (
        changed(OF_RECORDS, method={"name": "filter", "charge": "norm"}, privacy__rate=None),
        "record",
        "filter by norm, uniform",
        {"filters": True, "by_norm": True},
    ),
}
OF_UNIT = {"client": Plan, "record": RecordPlan}
SOURCES = Path(fedspend.__file__).parent


@dataclasses.dataclass(frozen=True)
class Made:
    kind: str
    config: Path
    file: Path
    plan: AnyPlan

    @property
    def unit(self):
        return KINDS[self.kind][1]


@pytest.fixture(scope="module", params=KINDS)
def made(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("plan")
    config, file = folder / "run.toml", folder / "plan.json"
    write_toml(config, KINDS[request.param][0])
    assert main(["plan", str(config), "--output", str(file), "--quiet"]) == 0
    return Made(request.param, config, file, load_any_plan(file))


@pytest.fixture
def fedspend_says(capsys):
    def says(*argv):
        capsys.readouterr()
        code = main([str(argument) for argument in argv])
        return code, capsys.readouterr().out

    return says


def forged(plan, **tables):
    """The plan with other tables and the old claims, as someone would write it who wants to spend
    more.
    """
    return dataclasses.replace(plan, schedules=dataclasses.replace(plan.schedules, **tables))


# --- what it is ---


@pytest.mark.full(but_every=4)
def test_a_plan_offers_the_whole_protocol(made):
    plan = made.plan
    offered = [name for name in vars(AnyPlan) if not name.startswith("_")]
    assert {"unit", "names", "verify", "proposal", "headline", "hash"} < set(offered)
    assert [name for name in offered if not hasattr(plan, name)] == []
    _, unit, headline, others = KINDS[made.kind]
    assert (plan.unit, plan.headline) == (unit, headline)
    assert {name: getattr(plan, name) for name in others} == others
    assert type(plan) is OF_UNIT[unit]


def test_every_unit_has_a_name_a_budget_an_owner_and_a_claim(made):
    plan = made.plan
    units = len(plan.names)
    assert len(set(plan.names)) == units == {"client": 3, "record": 60}[made.unit]
    assert (
        plan.budget.shape
        == plan.owner.shape
        == plan.epsilon.shape
        == plan.schedules.of_client.shape
        == (units,)
    )
    assert plan.owner.min() >= 0
    assert set(plan.owner.tolist()) <= set(range(len(plan.clients)))
    assert np.all(plan.epsilon <= plan.budget)
    assert np.all(plan.epsilon[plan.left_out] == 0)
    assert plan.spent_by_schedule().shape == (plan.rounds, plan.schedules.count)
    assert plan.spent_by_schedule()[-1] == pytest.approx(plan.schedules.epsilon, rel=1e-4)


def test_its_repr_says_what_it_is_in_one_short_line(made):
    words = repr(made.plan)
    for word in (
        type(made.plan).__name__,
        made.plan.who,
        "4 rounds",
        made.plan.headline,
        "budgets",
    ):
        assert word in words
    assert len(words) < 150
    assert "\n" not in words


# --- files ---


@pytest.mark.parametrize("name", ["again.json", "again.json.gz"])
def test_a_plan_comes_back_from_its_file_as_it_was(made, tmp_path, name):
    made.plan.save(tmp_path / name)
    for again in (load_any_plan(tmp_path / name), type(made.plan).load(tmp_path / name)):
        assert type(again) is type(made.plan)
        assert again.hash == made.plan.hash
        assert again.content() == made.plan.content()
    assert json.loads(made.file.read_text())["hash"] == made.plan.hash


def test_another_plan_has_another_hash(made):
    table = made.plan.schedules
    assert forged(made.plan, epsilon=table.epsilon * 0.999).hash != made.plan.hash


def test_a_file_that_was_altered_is_refused(made, tmp_path):
    content = json.loads(made.file.read_text())
    content["clip"] *= 2
    (tmp_path / "altered.json").write_text(json.dumps(content))
    with pytest.raises(Refused, match="does not match its hash"):
        fedspend.verify(tmp_path / "altered.json")


def test_the_other_kind_of_plan_does_not_take_it(made):
    other = OF_UNIT["record" if made.unit == "client" else "client"]
    with pytest.raises(InvalidInput, match="not a plan"):
        other.load(made.file)
    with pytest.raises(InvalidInput, match=r"^nobody wants it$"):
        other.expect(made.plan, "nobody wants it")
    assert type(made.plan).expect(made.plan, "") is made.plan


# --- the independent check ---


@pytest.mark.full(but=["rpdp", "filter by clip", "filter by norm"])
def test_a_sound_plan_verifies_by_object_and_by_file(made):
    by_object, by_file = fedspend.verify(made.plan), fedspend.verify(str(made.file))
    assert by_object.ok
    assert by_object.to_dict() == by_file.to_dict()
    assert by_object.plan_hash == made.plan.hash
    assert by_object.epsilon.shape == made.plan.budget.shape
    assert len(by_object.observers) > made.plan.promised_observers


@pytest.mark.full(but=["rpdp", "filter by clip", "filter by norm"])
def test_its_own_verifier_says_the_same(made):
    own = {"client": verify_clients, "record": verify_records}[made.unit](made.plan)
    assert own.to_dict() == fedspend.verify(made.plan).to_dict() == made.plan.verify().to_dict()


@pytest.mark.full(only=["pld", "auto", "discrete"])
def test_sampling_more_than_was_paid_for_is_caught(made):
    # everyone is always sampled, and stops when its squared norms add up to so much
    if made.plan.by_norm:
        forgery = dataclasses.replace(
            made.plan, short=np.minimum(made.plan.short * 1.02, made.plan.terms.local_steps)
        )
    else:
        forgery = forged(
            made.plan, sampling_rate=np.minimum(made.plan.schedules.sampling_rate * 1.02, 1.0)
        )
    verdict = fedspend.verify(forgery)
    assert not verdict.ok
    assert verdict.failures


@pytest.mark.full(only=["rdp", "pld", "auto", "discrete"])
def test_less_noise_than_was_paid_for_is_caught(made):
    tables = dataclasses.replace(
        made.plan.schedules, noise_multiplier=made.plan.schedules.noise_multiplier * 0.98
    )
    changes = {"schedules": tables}
    if made.unit == "record":  # one noise for all, which is in the terms too
        changes["terms"] = dataclasses.replace(
            made.plan.terms, noise_multiplier=made.plan.terms.noise_multiplier * 0.98
        )
    assert not fedspend.verify(dataclasses.replace(made.plan, **changes)).ok


def test_a_claim_above_the_budget_is_caught(made):
    greedy = (
        made.plan.schedules.epsilon * 1.01
        + (made.plan.schedules.epsilon > 0) * made.plan.budget.max()
    )
    verdict = fedspend.verify(forged(made.plan, epsilon=greedy))
    assert not verdict.ok
    assert any(name in verdict.failures[0] for name in ("claims", "budget"))


@pytest.mark.full(only=["pld", "auto"])
def test_a_forged_file_fails_and_exits_1(made, tmp_path, fedspend_says):
    file = tmp_path / "forged.json"
    forged(made.plan, epsilon=made.plan.schedules.epsilon * 0.9).save(file)
    code, out = fedspend_says("verify", file)
    assert code == 1
    assert out.startswith("FAIL")
    assert not fedspend.verify(file).ok


@pytest.mark.full(but_every=3)
def test_colluders_are_for_clients(made):
    if made.unit == "client":
        assert fedspend.verify(made.plan, colluders=2).ok
    else:
        with pytest.raises(InvalidInput, match=r"^colluders is only for client-level plans"):
            fedspend.verify(made.plan, colluders=2)


# --- the ledger ---


def test_an_empty_ledger_admits_it_once(made, tmp_path):
    proposal = made.plan.proposal()
    assert (proposal.unit, proposal.names, proposal.plan) == (
        made.plan.unit,
        made.plan.names,
        made.plan.hash,
    )
    with Ledger.create(tmp_path / "accounts.db", simulation=True) as ledger:
        plan_fits(ledger, made.plan)
        ledger.admit("one", proposal, simulation=True)
        held = ledger.balances(made.unit).total
        assert np.all(held <= made.plan.budget)
        assert held == pytest.approx(made.plan.epsilon, rel=1e-4)
        with pytest.raises(Refused, match="would exceed the lifetime budget"):
            plan_fits(ledger, made.plan)


def test_a_plan_for_another_ledger_is_refused(made):
    elsewhere = dataclasses.replace(
        made.plan, parameters=made.plan.parameters | {"ledger": "3:" + "0" * 64}
    )
    with pytest.raises(Refused, match="there is none here"):
        check_planned_on(None, elsewhere)


@pytest.mark.full(but=["filter by clip", "filter by norm"])
def test_rounds_planned_anew_claim_no_more(made):
    plan, units = made.plan, len(made.plan.names)
    nothing = {
        "elsewhere": Mechanisms.none(1),
        "of_unit": np.zeros(units, dtype=np.int64),
        "lifetime": plan.budget,
    }
    stages = (plan.terms.client_rate, plan.steps[:2]) if made.unit == "record" else ()
    spent = Mechanisms.of_schedules(
        plan.schedules.noise_multiplier[:2], plan.schedules.sampling_rate[:2], *stages
    )
    if made.kind == "filter by norm":
        with pytest.raises(InvalidInput, match="--replan"):
            plan.extended(2, 1, spent=spent, **nothing)
        return
    longer = plan.extended(2, 1, spent=spent, **nothing)
    assert longer.rounds == plan.rounds + 1
    assert np.all(longer.epsilon <= (plan.budget if plan.filters else plan.epsilon) * (1 + 1e-9))
    old, new = (
        (one.schedules.wide("sampling_rate"), one.schedules.wide("noise_multiplier"))
        for one in (plan, longer)
    )
    for before, after in zip(old, new, strict=True):
        assert np.array_equal(before[:2], after[:2]), "what was begun stays"
    assert longer.accountant == "rdp", "what is planned later is read at a Rényi order"
    assert fedspend.verify(longer).ok


# --- commands, runs and reports ---


@pytest.mark.full(but=["time-adaptive", "rpdp", "filter by clip", "filter by norm"])
def test_the_command_line_shows_makes_and_checks_it(made, tmp_path, fedspend_says):
    code, out = fedspend_says("plan", made.config, "--plot", tmp_path / "plan.svg")
    assert code == 0
    for words in (made.plan.who, "zero-out", made.plan.policy, f"delta {made.plan.delta:g}"):
        assert words in out
    assert (tmp_path / "plan.svg").stat().st_size > 1000
    code, out = fedspend_says("plan", made.config, "--json")
    assert (code, json.loads(out)["hash"]) == (0, made.plan.hash)
    code, out = fedspend_says("verify", made.file)
    assert (code, out[:4]) == (0, "PASS")
    assert f"{made.plan.who}, 4 rounds, {made.plan.headline}, delta" in " ".join(out.split())
    code, out = fedspend_says("verify", made.file, "--json")
    assert (code, json.loads(out)["plan_hash"]) == (0, made.plan.hash)


@pytest.mark.full(but=["filter by clip", "filter by norm"])
def test_a_run_takes_it_and_its_report_and_account_name_its_units(made, tmp_path, fedspend_says):
    result = fedspend.train(made.config, plan=made.plan, output=tmp_path / "run")
    assert result.plan.hash == made.plan.hash
    assert all(line.keys().isdisjoint(made.plan.hidden_statistics) for line in result.metrics)
    for t, line in enumerate(result.metrics):
        facts = made.plan.planned_facts(t)
        assert {name: line[name] for name in facts} == facts
    write_report([tmp_path / "run"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    view = fedspend.report.views.VIEWS[made.unit]
    for words in (
        view.protected,
        view.observer,
        f"charged to every {made.unit}",
        *view.sizes(made.plan),
    ):
        assert words in page
    code, out = fedspend_says(
        "ledger",
        "balance",
        "--unit",
        made.unit,
        "--ledger",
        tmp_path / "run" / "ledger.db",
        "--json",
    )
    assert code == 0
    rows = json.loads(out)
    assert [row[made.unit] for row in rows] == list(made.plan.names)
    assert list(rows[0]) == [
        made.unit,
        "budget",
        "delta",
        "spent",
        "reserved",
        "remaining",
        "withdrawn",
        "order",
    ]
    assert np.array([row["spent"] for row in rows]) == pytest.approx(made.plan.epsilon, rel=1e-4)


def test_arrays_go_with_plans_of_clients_only(made):
    if made.unit == "record":
        with pytest.raises(InvalidInput, match="is for plans of clients"):
            fedspend.train(
                clients=[], model=object(), plan=made.plan, test=([], []), lr=0.1, batch_size=1
            )


# --- the house ---


@pytest.mark.parametrize("views", [fedspend.report.views.VIEWS, fedspend.cli.views.VIEWS])
def test_every_unit_has_its_views(views):
    assert tuple(views) == get_args(Unit) == tuple(OF_UNIT)


@pytest.mark.full
def test_nobody_asks_for_the_type_of_a_plan():
    """Whoever has a plan asks it; a place that takes one kind only says so with `expect`."""
    found = []
    for path in SOURCES.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and getattr(node.func, "id", "") in (
                "isinstance",
                "issubclass",
                "type",
            ):
                named = {
                    one.id
                    for kind in node.args[1:]
                    for one in ast.walk(kind)
                    if isinstance(one, ast.Name)
                }
                if named & {"Plan", "RecordPlan", "BasePlan"}:
                    found.append(f"{path.relative_to(SOURCES)}:{node.lineno}")
    assert not found


@pytest.mark.full
def test_a_plan_names_its_verifier_and_lends_it_no_accounting():
    """The planner's formulas must not reach the check of its claims by way of the plan."""
    for path in (
        *(SOURCES / "verification").rglob("*.py"),
        SOURCES / "records" / "verification.py",
    ):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        modules = {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
        modules |= {
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for name in node.names
        }
        assert not [module for module in modules if module.startswith("fedspend.accounting")], path
    code = (
        "import sys, fedspend.verification.verify; print(*(name for name in sys.modules if "
        "name.startswith('fedspend.')))"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout.split()
    assert "fedspend.verification.verify" in loaded
    assert not [
        name for name in loaded if "accounting" in name or "planning" in name or "records" in name
    ]
