"""The filter by norms: no record ever pays more than it has, whatever its gradients, kills and lost
rounds do.
"""

import dataclasses
import json
import stat
from pathlib import Path

import numpy as np
import pytest
import torch
from boundary import record_engine, record_task
from hypothesis import given, settings
from hypothesis import strategies as st
from lib.configs import small
from lib.runs import Killed, check_killed_at_every_write, killed
from torch import nn

import fedspend
import fedspend.runs.certifying
from fedspend.basics.tensors import read_tensors
from fedspend.client import norm_budgets as norm_payments
from fedspend.client import record_steps
from fedspend.client.norm_budgets import NormBudget, Payments
from fedspend.client.state import FolderStates, folder_beside
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit
from fedspend.records import Terms
from fedspend.records.filtering import norm_budgets
from fedspend.records.planning import RecordPlan, plan_records
from fedspend.records.policies import Wanted
from fedspend.records.verification import verify_records
from fedspend.runs import directory as runs
from fedspend.verification.second_accountant import epsilon_at

ORDERS = np.asarray(fedspend.records.ORDERS)
TERMS = Terms(delta=1e-3, rounds=6, local_steps=5, client_rate=1.0, noise_multiplier=6.0)


@pytest.fixture
def config():
    return small("record", method={"name": "filter", "charge": "norm"})


def by_norm(budget, terms=TERMS, clip=1.0, charge="norm", **more):
    wanted = Wanted(
        method="filter", charge=charge, **({"common_rate": 1.0} if charge == "clip" else {})
    )
    return plan_records(
        budget, np.zeros(len(budget)), terms, clients=["a"], clip=clip, wanted=wanted, **more
    )


def an_engine(plan, rows):
    return record_engine(
        plan, nn.Linear(rows.shape[1], 2), rows, torch.zeros(len(rows), dtype=torch.long)
    )


def play(plan, rows):
    """All rounds from zero parameters that never move: (gradient sums without noise, by step), and
    who was active.
    """
    sums, counts = [], []
    engine, size = an_engine(plan, rows), 2 * rows.shape[1] + 2
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            record_steps, "release_step", lambda total, *_: sums.append(total) or np.zeros(size)
        )
        for t in range(plan.rounds):
            (reply,) = engine.run([record_task(plan, size, t)])
            counts.extend(reply.remarks.active.tolist())
    return np.array(sums), counts


# --- the budget of norms ---


def test_norm_budgets_are_those_of_one_gaussian():
    """`b` squared clips cost what one Gaussian with multiplier sigma / sqrt(b) costs: just within
    the budget.
    """
    budget = np.array([0.3, 0.9, 1.8, 4.2])
    found = norm_budgets(budget, dataclasses.replace(TERMS, rounds=1000))
    for epsilon, b in zip(budget, found, strict=True):
        sigma = TERMS.noise_multiplier / np.sqrt(b)
        spent = float(epsilon_at(ORDERS / (2 * sigma**2), ORDERS, TERMS.delta).min())
        assert spent <= epsilon
        assert spent == pytest.approx(epsilon, rel=1e-6)
    assert norm_budgets(np.array([1e-9]), dataclasses.replace(TERMS, delta=1e-9)).tolist() == [0.0]
    assert norm_budgets(np.array([1e9]), TERMS).tolist() == [30.0], (
        "nobody can pay more than every step at the clip"
    )


def test_the_plan_verifies_and_survives_its_file(tmp_path):
    plan = by_norm([0.7, 0.7, 50.0])
    verdict = verify_records(plan)
    assert verdict.ok, verdict.failures
    assert verdict.pld_schedules > 0
    assert (plan.epsilon <= plan.budget).all()
    assert plan.epsilon[:2] == pytest.approx(plan.budget[:2], rel=1e-6), "nothing is left over"
    plan.save(tmp_path / "plan.json")
    again = RecordPlan.load(tmp_path / "plan.json")
    assert again.by_norm
    assert again.hash == plan.hash
    assert (again.expected_batch(5) == 3).all(), (
        "the denominator is the number of records, however many are left"
    )
    with pytest.raises(InvalidInput, match="not planned"):
        _ = plan.active_by_step


def test_many_budgets_share_classes():
    budget = np.geomspace(0.3, 10, 20_000)
    plan = by_norm(budget, dataclasses.replace(TERMS, rounds=300))
    assert plan.schedules.count < 2100
    assert (plan.epsilon <= budget).all()
    assert (plan.epsilon > budget * 0.99).all()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: by_norm([1.0], dataclasses.replace(TERMS, client_rate=0.9)), "privacy.rate"),
        (lambda: Wanted(method="filter", charge="norm", common_rate=0.5), "common_rate must be 1"),
        (lambda: Wanted(method="rpdp", charge="norm"), "charge is for method filter"),
        (lambda: Wanted(method="filter", charge="norms"), "did you mean 'norm'"),
        (
            lambda: dataclasses.replace(by_norm([1.0]), short=by_norm([1.0]).steps[::-1].copy()),
            "(?s)step",
        ),
        (
            lambda: dataclasses.replace(
                by_norm([1.0]), parameters={"policy": "uniform", "method": "filter"}
            ),
            "whole number of steps",
        ),
    ],
)
def test_bad_plans(make, told):
    with pytest.raises(InvalidInput, match=told):
        make()


def test_a_plan_that_allows_longer_norms_does_not_verify():
    plan = by_norm([1.0, 50.0])
    steps = plan.steps.copy()
    at = int(np.flatnonzero(steps[:, 0])[-1])
    steps[at, 0] *= 1.01
    assert not verify_records(dataclasses.replace(plan, short=steps)).ok


@settings(max_examples=40)
@given(
    st.floats(0.1, 3.0),
    st.floats(0.0, 1.0),
    st.lists(st.floats(0.0, 1.0), min_size=2, max_size=2),
    st.floats(-3, 3),
    st.floats(1.1, 12),
)
def test_the_bound_holds_for_gradients_that_follow_releases(b, first, shares, threshold, order):
    """The theorem, by quadrature: a first step, then one of two second steps, chosen by what the
    first released.
    """
    y = np.linspace(-80, 80, 40_001)
    shift = np.sqrt(first * b)
    # squared norms of the second step
    later = np.where(y > threshold, shares[0], shares[1]) * (b - shift**2)
    for sign in (1.0, -1.0):  # with the record over without it, and the other way round
        start = 0.0 if sign > 0 else shift
        log_ratio = sign * (y * shift - shift**2 / 2)
        base = -((y - start) ** 2) / 2 - np.log(2 * np.pi) / 2
        moment = np.exp(base + order * log_ratio + order * (order - 1) * later / 2).sum() * (
            y[1] - y[0]
        )
        assert np.log(moment) / (order - 1) <= order * b / 2 * (1 + 1e-9) + 1e-9


# --- the filter ---


@settings(max_examples=60)
@given(st.lists(st.floats(0.0, 3.0), min_size=1, max_size=40), st.floats(0.0, 12.0))
def test_what_is_paid_never_exceeds_what_there_is(norms, budget):
    payments, left, paid, stopped = Payments(1.0), np.array([budget]), 0.0, False
    for norm in norms:
        payments.begin(left)
        factor = float(payments(np.array([norm]))[0])
        left = payments.left
        paid += (factor * norm) ** 2
        stopped = stopped or factor == 0
        assert factor * norm <= 1
        assert not (stopped and factor * norm > 0), "who has stopped does not come back"
    assert paid <= budget + 1e-9 * len(norms)


def test_boundaries():
    payments = Payments(2.0)
    payments.begin(np.array([1.0, 0.25, 0.25, 0.2, 3.0, 3.0, 3.0, 0.5]))
    norms = np.array([2.0, 1.0, 1.0 + 1e-9, 1.0, float("nan"), float("inf"), 9.0, 0.0])
    factors = payments(norms)
    assert payments.left == pytest.approx([0, 0, 0, 0, 3, 3, 2, 0.5]), (
        "just enough pays; not finite is free; long: the clip"
    )
    assert (factors > 0).tolist() == [True, True, False, False, False, False, True, True]
    assert payments.paid == 6


def test_norms_at_the_clip_last_as_long_as_planned_by_the_clip():
    budget = [0.4, 0.7, 1.0, 50.0]
    long, steps = by_norm(budget, clip=0.01), by_norm(budget, clip=0.01, charge="clip")
    _, counts = play(long, torch.ones(4, 3))
    assert counts == steps.active_by_step.tolist()


def test_short_gradients_last_longer():
    # norms 0.7, 1.4 and 11 at zero parameters
    rows = torch.tensor([[0.0] * 3, [1.0] * 3, [9.0] * 3])
    _, counts = play(by_norm([0.4] * 3, clip=100.0), rows)
    assert counts == [3] * 30, "far below the clip a step costs next to nothing"
    _, counts = play(by_norm([0.6] * 3, clip=3.0), rows)
    assert counts[0] == 3
    assert counts[2] == 2, "the longest pays the clip, and soon stops"
    assert counts[-1] == 1, "the shortest for all"


def sound():
    """The squares of what every single record contributes, measured from outside, add up to at most
    its budget.
    """
    generator = torch.Generator().manual_seed(3)
    rows = (
        torch.randn(5, 3, generator=generator) * torch.tensor([0.01, 0.3, 1.0, 3.0, 30.0])[:, None]
    )
    budget = np.array([0.5, 0.9, 0.7, 0.6, 0.8])
    for n in range(5):
        plan = by_norm(budget[n : n + 1], dataclasses.replace(TERMS, rounds=20), clip=1.3)
        sums, counts = play(plan, rows[n : n + 1])
        paid = float((np.linalg.norm(sums, axis=1) ** 2).sum() / 1.3**2)
        if not paid <= plan.steps.sum() or not (np.diff(counts) <= 0).all():
            return False
    return True


def test_no_record_contributes_more_than_its_budget():
    assert sound()


@pytest.mark.parametrize("broken", ["counts half", "comes back", "pays later", "forgets a round"])
def test_broken_filters_are_caught(broken, monkeypatch):
    real = Payments.__call__

    def half(self, norms):
        before = self.left.copy()
        factors = real(self, norms)
        self.left = (before + self.left) / 2
        return factors

    def comes_back(self, norms):
        left = self.left.copy()
        factors = real(self, norms)
        self.left = np.where(factors > 0, self.left, left)
        return np.ones_like(factors)

    def later(self, norms):
        had = self.left.copy()
        real(self, norms)
        self.left = np.where(had > 0, np.maximum(self.left, 1e-12), 0.0)
        return norm_payments.clip_factors(norms, self._clip)

    if broken == "forgets a round":
        monkeypatch.setattr(NormBudget, "before", lambda self: self._full)
    else:
        monkeypatch.setattr(
            Payments,
            "__call__",
            {"counts half": half, "comes back": comes_back, "pays later": later}[broken],
        )
    assert not sound()


def test_noise_goes_on_when_nobody_is_left(monkeypatch):
    """Who is left is private, so a step without anybody is noised and divided like any other."""
    plan, seen = by_norm([0.4, 0.4], clip=0.01), []
    real = record_steps.release_step
    monkeypatch.setattr(
        record_steps, "release_step", lambda *args: seen.append(args[1:3]) or real(*args)
    )
    engine = an_engine(plan, torch.ones(2, 3))
    for t in range(6):
        (last,) = engine.run([record_task(plan, 8, t)])
    assert last.remarks.active.tolist() == [0] * 5
    assert bool(last.contribution.vector.any())
    assert seen == [(0.06, 2.0)] * 30


# --- kill, resume, loss ---


def state_file(folder, client):
    """Where a client of the run in `folder` keeps what its records have left: beside the run
    directory, not in it.
    """
    return Path(FolderStates(folder_beside(folder)).place(client))


def state_of(folder, client):
    """The arrays, and what is said about them; the id of the run is told apart, since every run has
    its own.
    """
    arrays, about = read_tensors(state_file(folder, client))
    assert about.pop("run") == runs.RunDirectory(folder).run_id
    return {name: array.tobytes() for name, array in arrays.items()}, about


@pytest.mark.full
def test_a_killed_simulation_goes_on_bit_for_bit(config, tmp_path):
    """Killed after the norms were written and before the release was: the round is played again
    from the same norms.
    """
    whole = fedspend.train(config, output=tmp_path / "whole")
    with killed(at="keep", round=3):
        fedspend.train(config, output=tmp_path / "cut")
    assert (
        json.loads((tmp_path / "cut" / "metrics.jsonl").read_text().splitlines()[-1])["round"] == 2
    )
    assert state_of(tmp_path / "cut", "0")[1]["round"] == 2, "it was paid for, and is played again"
    fedspend.train(config, output=tmp_path / "cut", resume=True)
    for name in ("metrics.jsonl", "model.safetensors", "plan.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    for client in whole.plan.clients:
        assert state_of(tmp_path / "cut", client) == state_of(tmp_path / "whole", client)
    lines = [
        json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()
    ]
    counts = [count for line in lines for count in line["active"]]
    assert len(counts) == 20
    assert counts[0] > counts[-1] > 0
    with Ledger.open(tmp_path / "whole" / "ledger.db") as ledger:
        assert ledger.balances("record").spent.sum() == pytest.approx(
            whole.plan.epsilon.sum(), rel=1e-6
        )
    assert audit(tmp_path / "whole" / "ledger.db").ok


@pytest.mark.full
def test_a_simulation_killed_at_every_write_ends_the_same(config, tmp_path):
    """Also between one client's state and the next one's, and between the last state and the
    release.
    """
    config["train"] |= {"rounds": 2}

    def outcome(folder):
        names = ("metrics.jsonl", "model.safetensors", "checkpoint.safetensors", "plan.json")
        return [(folder / name).read_bytes() for name in names] + [
            state_of(folder, client) for client in ("0", "1")
        ]

    def go(folder, resume):
        fedspend.train(config, output=folder, resume=resume)

    check_killed_at_every_write(tmp_path, go, outcome, writes=25)


def test_a_real_run_publishes_nothing_of_it(config, tmp_path):
    config["privacy"]["randomness"] = "os"
    config["ledger"] = {"project": "norms"}
    fedspend.train(config, output=tmp_path / "run")
    for client in ("0", "1"):
        path = state_file(tmp_path / "run", client)
        assert tmp_path / "run" not in path.parents, "it is the client's own, not the server's"
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        assert {
            stat.S_IMODE(folder.stat().st_mode) for folder in (path.parent, path.parent.parent)
        } == {0o700}
    assert "active" not in (tmp_path / "run" / "metrics.jsonl").read_text()
    from fedspend.report.html import write_report

    write_report([tmp_path / "run"], tmp_path / "report.html")
    assert "Active records" not in (tmp_path / "report.html").read_text()


def test_the_report_of_a_simulation_shows_who_was_left(config, tmp_path):
    fedspend.train(config, output=tmp_path / "run")
    from fedspend.report.html import write_report

    write_report([tmp_path / "run"], tmp_path / "report.html")
    page = (tmp_path / "report.html").read_text()
    assert "took part in a local step" in page
    assert (
        'data-mark="simulation"'
        in page[: page.index("took part in a local step")].rpartition("<figure")[2]
    )


def killed_in_the_second_round(config, folder, monkeypatch, *, norms_kept):
    """In the middle of it: client 0 has done its work, and client 1 was not asked any more."""
    real = NormBudget.keep

    def keep(self, before, after):
        round = self._task.shared.round
        if round == 0 or norms_kept:
            real(self, before, after)
        if round == 1:
            raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(NormBudget, "keep", keep)
        with pytest.raises(Killed):
            fedspend.train(config, output=folder)


def seen_when_resumed(config, folder, monkeypatch, notes=None):
    """What each client starts from, in the order in which they are asked: (round, client, what its
    records have left).
    """
    seen, real = [], NormBudget.before

    def look(self):
        seen.append((self._task.shared.round, self._task.client, real(self)))
        return seen[-1][2]

    with monkeypatch.context() as patch:
        patch.setattr(NormBudget, "before", look)
        fedspend.train(
            config, output=folder, resume=True, on_note=[].append if notes is None else notes.append
        )
    return seen


@pytest.mark.full(but=["after the norms"])
@pytest.mark.parametrize("when", ["before the norms", "after the norms"])
def test_a_lost_round_of_a_real_run_is_paid_as_written_down_or_at_the_clip(
    config, tmp_path, monkeypatch, when
):
    """The release is gone for good. What a client has paid it does not get back; a state without
    the round may be an old copy.
    """
    config["privacy"]["randomness"] = "os"
    config["ledger"] = {"project": "norms"}
    folder, clients = tmp_path / "run", ("0", "1")
    killed_in_the_second_round(config, folder, monkeypatch, norms_kept=when != "before the norms")
    found = {client: read_tensors(state_file(folder, client)) for client in clients}
    assert [found[client][1]["round"] for client in clients] == (
        [0, 0] if when == "before the norms" else [1, 0]
    )
    notes = []
    seen = seen_when_resumed(config, folder, monkeypatch, notes)
    assert len(notes) == 1, "nobody's state is gone"
    assert [(round, client) for round, client, _ in seen] == [
        (2, "0"),
        (2, "1"),
        (3, "0"),
        (3, "1"),
    ], "the lost round is skipped"
    for _, client, left in seen[:2]:
        arrays, about = found[client]
        np.testing.assert_array_equal(
            left, np.maximum(arrays["after"] - 5 * (1 - about["round"]), 0)
        )


def test_a_state_that_is_gone_counts_as_paid_at_the_clip_in_all_rounds_so_far(
    config, tmp_path, monkeypatch
):
    """Nobody knows what was paid, so it was the most that could be;
    also for rounds that were lost.
    """
    config["privacy"]["randomness"] = "os"
    config["ledger"] = {"project": "norms"}
    folder = tmp_path / "run"
    killed_in_the_second_round(config, folder, monkeypatch, norms_kept=True)
    kept = read_tensors(state_file(folder, "1"))[0]["after"]
    state_file(folder, "0").unlink()
    notes = []
    seen = seen_when_resumed(config, folder, monkeypatch, notes)
    assert notes[-1] == (
        "the states of some clients are gone: for them, all rounds so far count as paid at the clip"
    )
    plan = RecordPlan.load(folder / "plan.json")
    full = plan.steps.sum(axis=0)[plan.schedules.of_client]
    np.testing.assert_array_equal(seen[0][2], np.maximum(full[plan.owner == 0] - 2 * 5, 0))
    np.testing.assert_array_equal(
        seen[1][2],
        np.maximum(kept - 5, 0),
        "it was not asked in the lost round, and cannot show it",
    )
    assert (seen[0][2] < full[plan.owner == 0]).all()


def test_a_new_run_does_not_take_over_the_states_of_another(config, tmp_path):
    """The run directory was removed or moved away, and what belongs to it is still beside it: it is
    not overwritten.
    """
    fedspend.train(config, output=tmp_path / "run")
    (tmp_path / "run").rename(tmp_path / "moved")
    before = state_file(tmp_path / "run", "0").read_bytes()
    with pytest.raises(
        InvalidInput, match="belongs to another run; choose another folder, or remove it"
    ) as refused:
        fedspend.train(config, output=tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists(), "nothing was begun"
    assert state_file(tmp_path / "run", "0").read_bytes() == before
    for client in ("0", "1"):
        state_file(tmp_path / "run", client).unlink()
    assert len(fedspend.train(config, output=tmp_path / "run").metrics) == 4


def budget_at(plan, folder, round, simulation=True):
    return NormBudget(record_task(plan, 8, round), FolderStates(folder), simulation)


def test_a_run_directory_that_was_set_back_is_refused(tmp_path):
    plan = by_norm([0.5, 1.0])
    for simulation in (True, False):
        budget = budget_at(plan, tmp_path, 3, simulation)
        budget.keep(budget._full, budget._full / 2)
        assert (budget_at(plan, tmp_path, 4, simulation).before() == budget._full / 2).all()
        with pytest.raises(Refused, match="restored from an older copy"):
            budget_at(plan, tmp_path, 2, simulation).before()
    with pytest.raises(Refused, match="restored from an older copy"):
        budget_at(plan, tmp_path, 3, simulation=False).before()
    assert (budget_at(plan, tmp_path, 3, simulation=True).before() == budget._full).all()


def test_an_old_copy_of_a_state_gives_nothing_back(tmp_path):
    """A folder restored from a backup: rounds since then were paid, and nobody knows how much."""
    plan = by_norm([0.5, 1.0])
    first = budget_at(plan, tmp_path, 0, simulation=False)
    first.enrol()
    path = Path(FolderStates(tmp_path).place("a"))
    old = path.read_bytes()
    for round in range(3):
        budget = budget_at(plan, tmp_path, round, simulation=False)
        budget.keep(budget.before(), np.maximum(budget.before() - budget._steps, 0.0))
    spent = budget_at(plan, tmp_path, 3, simulation=False).before()
    path.write_bytes(old)
    assert (budget_at(plan, tmp_path, 3, simulation=False).before() <= spent).all()


def test_a_state_of_another_client_is_refused(tmp_path):
    task, states = record_task(by_norm([0.5, 1.0]), 8, 0), FolderStates(tmp_path)
    NormBudget(task, states, simulation=False).enrol()
    other = dataclasses.replace(task, client="b")
    states.write("b", states.read("a"))
    with pytest.raises(InvalidInput, match="another run or client"):
        NormBudget(other, states, simulation=False).before()


@pytest.mark.parametrize("value", [-1.0, 1e9, float("nan")])
def test_a_file_that_cannot_be_is_refused(tmp_path, value):
    plan = by_norm([0.5, 1.0])
    budget = budget_at(plan, tmp_path, 0)
    budget.keep(budget._full, np.array([value, 0.0]))
    with pytest.raises(InvalidInput, match="restore"):
        budget_at(plan, tmp_path, 1).before()
    Path(FolderStates(tmp_path).place("a")).write_bytes(b"")
    with pytest.raises(InvalidInput, match="damaged"):
        budget_at(plan, tmp_path, 1).before()
    other = budget_at(by_norm([0.5, 2.0]), tmp_path, 0)
    other.keep(other._full, other._full)
    with pytest.raises(InvalidInput, match="another run"):
        budget_at(plan, tmp_path, 1).before()


def test_a_damaged_file_is_refused_before_a_round_is_charged(
    config, tmp_path, monkeypatch, ledger_of_this_user
):
    config["privacy"]["randomness"] = "os"
    config["ledger"] = {"project": "norms"}
    killed_in_the_second_round(config, tmp_path / "run", monkeypatch, norms_kept=True)
    path = state_file(tmp_path / "run", "0")
    whole = path.read_bytes()
    path.write_bytes(whole[:-9])
    with Ledger.open(ledger_of_this_user) as ledger:
        before = ledger.state.head
    for _ in range(2):
        with pytest.raises(InvalidInput, match="damaged"):
            fedspend.train(config, output=tmp_path / "run", resume=True)
    with Ledger.open(ledger_of_this_user) as ledger:
        assert ledger.state.head == before
    path.write_bytes(whole)
    metrics = fedspend.train(config, output=tmp_path / "run", resume=True).metrics
    assert [bool(line.get("skipped")) for line in metrics] == [False, True, False, False]


def test_bad_configs(config):
    config["privacy"]["rate"] = 0.5
    with pytest.raises(InvalidInput, match=r"privacy\.rate"):
        fedspend.train(config)
    config["privacy"]["rate"], config["method"]["charge"] = 1.0, "gradient"
    with pytest.raises(InvalidInput, match='"clip", "norm"'):
        fedspend.train(config)
