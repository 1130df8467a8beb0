"""Accounts hold whatever comes next: a later run may be chosen by looking at what earlier ones
released, and all of them together stay within the budget.

What an adversary reaches is computed exactly, from the densities of the releases, by no accountant.
"""

import json

import numpy as np
import pytest
from approval.offers import offered
from scipy.stats import norm

import fedspend
import fedspend.ledger.book as book
from fedspend.accounting.calibration import noise_multiplier
from fedspend.accounting.conversion import conversion_cost
from fedspend.accounting.rdp import ORDERS, rdp
from fedspend.approval.node_ledger import NodeLedger
from fedspend.errors import FedspendError, InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.audit import audit, recheck_balances
from fedspend.ledger.chain import Damaged
from fedspend.ledger.export_check import audit_export
from fedspend.ledger.orders import default_orders
from fedspend.ledger.rules import Proposal

BUDGET, DELTA = 2.0, 1e-3
RATES = (1.0, 0.5, 0.2, 0.1, 0.03, 0.01, 1e-3, 1e-4, 1e-5)


# --- what is really reached ---


def upper(q, s, loss):
    """Of one release by N(0, s^2) or, with the client, (1-q) N(0, s^2) + q N(1, s^2): from which
    value on its privacy loss is above `loss`.
    """
    part = (np.expm1(np.minimum(loss, 600)) + q) / q  # exp of the loss if it were sampled
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.where(part > 0, s**2 * np.log(part) + 0.5, -np.inf)


def hockey(q, s, loss, with_client):
    """P(loss above) - e^loss Q(loss above), of one release, in either direction."""
    if with_client:
        t = upper(q, s, loss)
        present = (1 - q) * norm.sf(t / s) + q * norm.sf((t - 1) / s)
        return present - np.exp(np.minimum(loss, 600)) * norm.sf(t / s)
    t = upper(q, s, -loss)
    absent = norm.cdf(t / s)
    present = (1 - q) * norm.cdf(t / s) + q * norm.cdf((t - 1) / s)
    return np.maximum(absent - np.exp(np.minimum(loss, 600)) * present, 0)


def outcomes(q, s, with_client):
    """Of one release: privacy losses and their masses, finely."""
    x = np.linspace(-9 * s - 1, 9 * s + 2, 4001)
    loss = np.logaddexp(np.log1p(-q) if q < 1 else -np.inf, np.log(q) + (2 * x - 1) / (2 * s**2))
    absent, present = norm.pdf(x, 0, s), norm.pdf(x, 0, s) * np.exp(loss)
    mass = (present if with_client else absent) * (x[1] - x[0])
    return (loss if with_client else -loss), mass / mass.sum()


def reached(first, options):
    """How many times delta an adversary reaches that sees run `first` and then chooses among the
    `options`, pairs of rate and noise, or nothing.
    """
    worst = 0.0
    for with_client in (True, False):
        loss, mass = outcomes(*first, with_client)
        left = BUDGET - loss
        after = [np.maximum(-np.expm1(np.minimum(left, 0)), 0)]
        after += [hockey(q, s, left, with_client) for q, s in options]
        worst = max(worst, float(mass @ np.max(after, axis=0)))
    return worst / DELTA


# --- what the ledger admits ---


def proposal(rate, noise, rounds=1, accountant="rdp", unit="client", **more):
    table = np.full((rounds, 1), float(rate))
    return Proposal(
        names=("anna",),
        budgets=np.array([BUDGET]),
        delta=DELTA,
        of_class=np.zeros(1, dtype=np.int64),
        rate=table,
        noise=np.full((rounds, 1), float(noise)),
        plan=f"{rate} {noise} {rounds}",
        accountant=accountant,
        unit=unit,
        **more,
    )


def least_noise(ledger, rate, **kind):
    """The smallest noise with which the ledger admits one more round at this rate."""
    low, high = 0.06, 1e5
    if ledger.over(proposal(rate, high, **kind)).size:
        return None
    while high / low > 1 + 1e-4:
        middle = np.sqrt(low * high)
        low, high = (
            (middle, high) if ledger.over(proposal(rate, middle, **kind)).size else (low, middle)
        )
    return high


def after_one_run(path, noise, **kind):
    """A ledger in which one run of one round is over."""
    ledger = Ledger.create(path, simulation=False)
    ledger.register(["anna"], BUDGET, delta=DELTA, unit=kind.get("unit", "client"))
    ledger.admit("one", proposal(1.0, noise, **kind), simulation=False)
    ledger.reserve("one", 0)
    ledger.close_run("one", reason="finished")
    return ledger


def menu(ledger, **kind):
    found = [(rate, least_noise(ledger, rate, **kind)) for rate in RATES]
    return [(rate, noise) for rate, noise in found if noise is not None]


@pytest.mark.parametrize("unit", ["client", "record"])
@pytest.mark.parametrize("noise", [2.6, 4.0])
def test_whoever_chooses_the_next_run_by_looking_stays_within_the_budget(tmp_path, noise, unit):
    kind = {"unit": unit}
    with after_one_run(tmp_path / "a.db", noise, **kind) as ledger:
        options = menu(ledger, **kind)
    assert len(options) >= 5
    assert 0 < reached((1.0, noise), options) <= 1


@pytest.mark.full
def test_without_orders_it_exceeds_it(tmp_path, monkeypatch):
    """The attack is one: it works on ledgers of 0.2, which read accounts by PLD."""
    monkeypatch.setattr(book, "FORMAT", 1)
    with after_one_run(tmp_path / "a.db", 2.6, accountant="pld") as ledger:
        assert not ledger.state.by_order
        options = menu(ledger, accountant="pld")
    assert all(reached((1.0, 2.6), [one]) <= 1.001 for one in options), "each alone fits"
    assert reached((1.0, 2.6), options) > 1.4


@pytest.mark.full(only=["pld"])
@pytest.mark.parametrize("accountant", ["pld", "rdp"])
def test_beside_a_run_that_used_up_the_account_nothing_is_admitted(tmp_path, accountant):
    """By its own accountant a first run may spend all of it; by the filter that leaves nothing,
    also if the run is ended early.
    """
    plan = fedspend.plan(
        {"anna": BUDGET}, delta=DELTA, rounds=4, rate=0.7, policy="uniform", accountant=accountant
    )
    with Ledger.create(tmp_path / "a.db", simulation=False) as ledger:
        ledger.register(["anna"], BUDGET, delta=DELTA)
        ledger.admit("one", plan.proposal(), simulation=False)
        assert ledger.run("one").alone
        ledger.reserve("one", 0)
        assert ledger.balances().spent[0] < BUDGET
        ledger.close_run("one", reason="a machine broke")
        assert ledger.balances().spent[0] == pytest.approx(BUDGET, rel=1e-5)
        assert ledger.balances().remaining[0] < 0.1 * BUDGET
        one = ledger.run("one").mechanisms(held=False)
        at = ledger.accounts().order
        room = BUDGET - float(conversion_cost(at, DELTA)[0]) - float(one.rdp_at(at)[0])
        for rate in RATES:
            noise = least_noise(ledger, rate)
            if noise is not None:
                assert float(rdp(rate, noise, at)[0]) <= room
    assert audit(str(tmp_path / "a.db")).ok


def test_a_run_that_never_began_leaves_the_account_new(tmp_path):
    plan = fedspend.plan({"anna": BUDGET}, delta=DELTA, rounds=4, rate=0.7, accountant="pld")
    with Ledger.create(tmp_path / "a.db", simulation=False) as ledger:
        ledger.register(["anna"], BUDGET, delta=DELTA)
        for name in ("one", "two"):
            ledger.admit(name, plan.proposal(), simulation=False)
            ledger.close_run(name, reason="the server is gone")
        assert ledger.balances().spent[0] == 0
        ledger.admit("three", plan.proposal(), simulation=False)
        with pytest.raises(Refused, match="lifetime budget"):
            ledger.admit("four", plan.proposal(), simulation=False)


# --- what closing gives back ---


@pytest.mark.parametrize("stops", [False, True])
def test_what_a_run_within_the_filter_leaves_is_free(tmp_path, stops):
    """Whoever ended it, and why: a stopping rule has seen its releases, and so may a person."""
    with Ledger.create(tmp_path / "a.db", simulation=False) as ledger:
        ledger.register(["anna"], BUDGET, delta=DELTA)
        plan = fedspend.plan(
            {"anna": BUDGET}, delta=DELTA, rounds=4, rate=0.7, past=ledger.past(["anna"])
        )
        asked = plan.proposal()
        ledger.admit("one", Proposal(**(vars(asked) | {"stops": stops})), simulation=False)
        assert not ledger.run("one").alone
        ledger.reserve("one", 0)
        held = ledger.balances()
        assert held.remaining[0] == 0
        (ledger.stop_run("one") if stops else ledger.close_run("one", reason="looked"))
        found = ledger.balances()
        assert found.remaining[0] > 0.4 * BUDGET
        # as a statement about this one run, only its whole plan is one
        assert found.spent[0] == pytest.approx(plan.epsilon[0], rel=1e-6)
        rest = fedspend.plan(
            {"anna": BUDGET}, delta=DELTA, rounds=3, rate=0.7, past=ledger.past(["anna"])
        )
        ledger.admit("two", rest.proposal(), simulation=False)
        total = ledger.balances()
        assert total.total[0] == pytest.approx(BUDGET, rel=1e-6)
        assert total.total_order[0] == ledger.accounts().order[0]
    assert audit(str(tmp_path / "a.db")).ok


# --- orders ---


def test_the_default_order_is_the_best_of_a_typical_run():
    for budget, delta in ((1.0, 1e-5), (5.0, 1e-5), (10.0, 1e-3), (0.3, 1e-8)):
        order = float(default_orders(np.array([budget]), delta)[0])
        noise = noise_multiplier(budget, delta, 0.5, 100)
        claims = 100 * rdp(0.5, noise, ORDERS) + conversion_cost(ORDERS, delta)
        assert claims[ORDERS.index(order)] <= claims.min() * 1.01


def test_no_account_has_another_order_because_of_others():
    budgets = np.random.default_rng(3).uniform(0.01, 50, 300)
    together = default_orders(budgets, 1e-6)
    assert all(
        default_orders(budgets[n : n + 1], 1e-6)[0] == together[n] for n in range(0, 300, 29)
    )


def test_an_order_is_fixed_once_anything_was_charged(tmp_path):
    with Ledger.create(tmp_path / "a.db", simulation=False) as ledger:
        ledger.register(["anna"], BUDGET, delta=DELTA)
        before = ledger.accounts().order[0]
        ledger.change(["anna"], [8.0], reason="new consent form")
        fresh = ledger.accounts().order[0]
        assert fresh == default_orders(np.array([8.0]), DELTA)[0] < before
        ledger.admit("one", proposal(0.5, 5.0), simulation=False)
        ledger.reserve("one", 0)
        ledger.change(["anna"], [2.0], reason="less")
        assert ledger.accounts().order[0] == fresh
        (row,) = ledger.balances().rows()
        assert row["order"] == fresh


def test_an_order_may_be_named_if_it_leaves_room(tmp_path):
    with Ledger.create(tmp_path / "a.db", simulation=False) as ledger:
        ledger.register(["anna"], BUDGET, delta=DELTA, order=10)
        assert ledger.accounts().order[0] == min(ORDERS, key=lambda one: abs(one - 10))
        with pytest.raises(InvalidInput, match=r"order 1\.9974 leaves a budget of 2 nothing"):
            ledger.register(["ben"], BUDGET, delta=DELTA, order=2)
        with pytest.raises(InvalidInput, match="order must lie between"):
            ledger.register(["ben"], BUDGET, delta=DELTA, order=1)
        assert ledger.accounts().names == ["anna"]


def test_accounts_that_a_run_opens_have_the_order_at_which_its_plan_is_read(tmp_path):
    plan = fedspend.plan([1.0, 5.0], delta=DELTA, rounds=6, rate=0.3, accountant="rdp")
    with Ledger.create(tmp_path / "a.db", simulation=False) as ledger:
        ledger.admit("one", plan.proposal(), simulation=False)
        assert not ledger.run("one").alone
        assert ledger.accounts().order.tolist() == plan.proposal().order.tolist()


# --- ledgers without orders ---


def test_an_older_ledger_is_moved_over_with_a_reason(tmp_path, monkeypatch, run):
    place = tmp_path / "a.db"
    with monkeypatch.context() as older:
        older.setattr(book, "FORMAT", 1)
        with Ledger.create(place, simulation=False) as ledger:
            ledger.register(["anna", "ben"], [2.0, 4.0], delta=DELTA)
            ledger.admit("one", proposal(0.5, 6.0, 4), simulation=False)
            ledger.reserve("one", 0)
            ledger.change(["anna"], [3.0], reason="more")
            spent = ledger.balances().spent
    assert run("ledger", "migrate", "--ledger", place).code == 2, "a reason is missing"
    unfinished = run("ledger", "migrate", "--reason", "results decide", "--ledger", place)
    assert (unfinished.code, "has open runs: one; finish" in unfinished.err) == (1, True)
    with Ledger.open(place, write=True) as ledger:
        ledger.close_run("one", reason="the server is gone")
    assert run("ledger", "migrate", "--reason", "results decide", "--ledger", place).code == 0
    again = run("ledger", "migrate", "--reason", "results decide", "--ledger", place)
    assert (again.code, "have orders already" in again.err) == (1, True)
    with Ledger.open(place, write=True) as ledger:
        # the order of the first budget: a later one may have been chosen by looking
        assert (
            ledger.accounts().order.tolist() == default_orders(np.array([2.0, 4.0]), DELTA).tolist()
        )
        assert ledger.balances().spent.tolist() == spent.tolist()
        ledger.register(["carl"], 1.0, delta=DELTA)
        ledger.admit("two", proposal(0.5, 6.0, 2), simulation=False)
        assert ledger.balances().total_order[0] == ledger.accounts().order[0]
    assert audit(str(place)).ok
    history = json.loads(run("ledger", "history", "--ledger", place, "--json").out)
    assert [line["about"] for line in history if line["kind"] == "migrate"] == ["results decide"]


def test_an_export_cannot_state_another_order(tmp_path, run):
    place, export = tmp_path / "a.db", tmp_path / "a.json"
    with Ledger.create(place, simulation=False) as ledger:
        ledger.register(["anna"], BUDGET, delta=DELTA)
    assert run("ledger", "export", "--ledger", place, "-o", export).code == 0
    assert audit_export(export).ok
    document = json.loads(export.read_text())
    for forged in (3.0, None):
        document["balances"]["client"][0]["order"] = forged
        export.write_text(json.dumps(document))
        assert not audit_export(export).ok


def test_an_older_ledger_takes_no_order(tmp_path, monkeypatch):
    monkeypatch.setattr(book, "FORMAT", 1)
    with (
        Ledger.create(tmp_path / "a.db", simulation=False) as ledger,
        pytest.raises(Refused, match="fedspend ledger migrate"),
    ):
        ledger.register(["anna"], BUDGET, delta=DELTA, order=10)


def test_an_entry_without_an_order_is_damage(tmp_path):
    with Ledger.create(tmp_path / "a.db", simulation=False) as ledger:
        bare = {
            "kind": "register",
            "unit": "client",
            "delta": DELTA,
            "names": ["a"],
            "budgets": [1.0],
        }
        for body in (bare, bare | {"orders": [1.0]}, bare | {"orders": [2.0, 3.0]}):
            with pytest.raises(Damaged):
                ledger.state.apply(2, body, b"")


# --- a node's own account ---


@pytest.mark.usefixtures("quick_verify")
def test_a_server_that_sends_slices_by_looking_stays_within_a_nodes_budget(tmp_path):
    """Its first run may use up the account; a second one, made after that, is not approved."""
    offer = offered()
    node = NodeLedger("north", str(tmp_path / "l.db"), tmp_path / "state", False, 3.0, 1e-3)
    node.approve(offer.slice_of(0))
    with node.reading() as ledger:
        (run,) = ledger.state.runs.values()
        first, order = run.mechanisms(held=True), ledger.accounts().order
        used = float(first.rdp_at(order)[0] + conversion_cost(order, 1e-3)[0])
        assert run.alone == (used > 3.0)
        assert np.all(order == default_orders(np.array([3.0]), 1e-3))


# --- records that rest, and budgets that are lowered ---


def two_records(rates, noise):
    table = np.array(rates, dtype=float)
    return Proposal(
        names=("anna", "ben"),
        budgets=np.full(2, BUDGET),
        delta=DELTA,
        of_class=np.arange(2),
        rate=table,
        noise=np.full(table.shape, float(noise)),
        plan=f"{rates} {noise}",
        unit="record",
    )


def with_records(place):
    ledger = Ledger.create(place, simulation=False)
    ledger.register(["anna", "ben"], BUDGET, delta=DELTA, unit="record")
    return ledger


def test_a_record_that_rests_in_a_run_does_not_keep_others_from_it(tmp_path):
    """Its first run used it up as its only one, which is more than fits at its order."""
    with with_records(tmp_path / "a.db") as ledger:
        order = ledger.accounts("record").order
        low, high = 1.0, 50.0
        for _ in range(30):
            middle = np.sqrt(low * high)
            over = ledger.over(two_records([[0.7, 0.0]] * 4, middle)).size
            low, high = (middle, high) if over else (low, middle)
        ledger.admit("one", two_records([[0.7, 0.0]] * 4, high), simulation=False)
        assert ledger.run("one").alone
        ledger.reserve("one", 0)
        used = ledger.run("one").mechanisms(held=True).rdp_at(order)[0]
        assert used + conversion_cost(order[:1], DELTA)[0] > BUDGET
        ledger.admit("two", two_records([[0.0, 0.5]], 6.0), simulation=False)
        ledger.reserve("two", 0)
        with pytest.raises(Refused, match="record 'anna' would exceed"):
            ledger.admit("three", two_records([[0.001, 0.5]], 60.0), simulation=False)
    assert audit(str(tmp_path / "a.db")).ok


def test_what_a_closed_run_had_planned_for_a_record_that_rested_until_then_is_not_spent(tmp_path):
    with with_records(tmp_path / "a.db") as ledger:
        ledger.admit("one", two_records([[1.0, 0.0]], 3.0), simulation=False)
        ledger.reserve("one", 0)
        ledger.close_run("one", reason="finished")
        spent = ledger.balances("record").spent[0]
        later = two_records([[0.0, 0.02]] + [[0.02, 0.02]] * 60, 0.9)
        ledger.admit("two", later, simulation=False)
        ledger.reserve("two", 0)
        ledger.close_run("two", reason="looked")
        assert ledger.balances("record").spent[0] == spent
    assert audit(str(tmp_path / "a.db")).ok


@pytest.mark.parametrize("alone", [False, True])
def test_a_run_that_was_closed_under_a_lowered_budget_is_no_overdraft(tmp_path, alone):
    place = tmp_path / "a.db"
    with Ledger.create(place, simulation=False) as ledger:
        ledger.register(["anna"], BUDGET, delta=DELTA)
        past = None if alone else ledger.past(["anna"])
        plan = fedspend.plan({"anna": BUDGET}, delta=DELTA, rounds=4, rate=0.7, past=past)
        ledger.admit("one", plan.proposal(), simulation=False)
        assert ledger.run("one").alone is alone
        ledger.reserve("one", 0)
        ledger.change(["anna"], [1.5], reason="less")
        with pytest.raises(Refused, match="close it"):
            ledger.reserve("one", 1)
        ledger.close_run("one", reason="less")
        assert ledger.balances().spent[0] > 1.5
    found = audit(str(place))
    assert found.ok
    assert "over it only by rounds that never began" in found.checks[-1].words
    assert "open runs" not in found.checks[-1].words

    with Ledger.open(place) as ledger:
        state = ledger.state
    state.accounts["client"].budget[0] = 0.5  # less than what the round that began has spent
    with pytest.raises(FedspendError, match=r"budget of 0\.5 but has spent"):
        recheck_balances(state, "client")


@pytest.mark.usefixtures("quick_verify")
def test_nothing_ends_a_run_in_a_nodes_ledger_so_that_its_rounds_are_free(tmp_path):
    node = NodeLedger("north", str(tmp_path / "l.db"), tmp_path / "state", False, 30.0, 1e-3)
    node.approve(offered().slice_of(0))
    with node.opened() as ledger:
        (run,) = ledger.state.runs
        assert not ledger.run(run).alone
        ledger.reserve_through(run, 0)
        for end in (lambda: ledger.stop_run(run), lambda: ledger.close_run(run, reason="looked")):
            with pytest.raises(Refused, match="fedspend node leave"):
                end()
