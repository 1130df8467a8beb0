"""What every ledger must do, on every database."""

import hashlib
import json
import multiprocessing
import zlib
from dataclasses import replace

import numpy as np
import pytest
from before.since import as_it_was
from places import forge, rows_of, tamper

import fedspend
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Damaged, Ledger, spending, storage
from fedspend.ledger.audit import audit
from fedspend.ledger.rules import OF_ACCOUNTS, Proposal, check_names, said_of

DELTA = 1e-4


def make_plan(budget, rounds=6, clients=4, **options):
    terms = {"delta": DELTA, "rounds": rounds, "rate": 0.5, "accountant": "rdp"}
    if not options.keys() & {"policy", "saving_rate", "weights", "method"}:
        terms["policy"] = "uniform"
    return fedspend.plan(np.full(clients, budget), **(terms | options))


def admit(ledger, run, plan, **options):
    ledger.admit(run, Proposal.of_plan(plan), simulation=True, **options)


@pytest.fixture
def ledger(place):
    with Ledger.create(place, simulation=True) as made:
        yield made


@pytest.fixture
def older(place, monkeypatch):
    """A ledger whose accounts have no orders, as versions before 0.3 made it."""
    monkeypatch.setattr("fedspend.ledger.book.FORMAT", 1)
    with Ledger.create(place, simulation=True) as made:
        yield made


def test_a_run_from_admission_to_close(ledger):
    check_a_run(ledger)


def test_a_database_on_a_server_keeps_an_account(postgres):
    """The one test of PostgreSQL that is quick; `place` brings in the others."""
    with Ledger.create(postgres.new_database(), simulation=True) as ledger:
        check_a_run(ledger)


def check_a_run(ledger):
    plan = make_plan(5.0)
    admit(ledger, "one", plan)
    held = ledger.balances()
    assert held.spent.tolist() == [0.0] * 4
    np.testing.assert_allclose(held.reserved, 5.0, rtol=1e-6)
    assert held.remaining.tolist() == [0.0] * 4
    for round in range(6):
        ledger.reserve("one", round)
        # Composition, not a sum: what is spent after each round is what the plan says.
        np.testing.assert_allclose(ledger.balances().spent, plan.spent()[round], rtol=1e-6)
        ledger.commit("one", round, f"release {round}")
    ledger.close_run("one", reason="finished")
    end = ledger.balances()
    np.testing.assert_allclose(end.spent, 5.0, rtol=1e-6)
    assert np.all(end.spent <= 5.0)
    assert end.reserved.tolist() == end.remaining.tolist() == [0.0] * 4


def test_an_old_copy_behind_another_name_is_noticed(tmp_path):
    """The head is beside the file itself, and so is found through a link, too."""
    path, link = tmp_path / "accounts.db", tmp_path / "link.db"
    link.symlink_to(path)
    with Ledger.create(path, simulation=True) as ledger:
        ledger.register(["north"], [5.0], delta=1e-5)
    old = path.read_bytes()
    with Ledger.open(link, write=True) as ledger:
        ledger.change(["north"], [1.0], reason="asked")
    path.write_bytes(old)
    for name in (path, link):
        with pytest.raises(Refused, match=r"restored|does not contain|older"):
            Ledger.open(name)


def test_another_reader_sees_the_same(ledger, place):
    admit(ledger, "one", make_plan(5.0))
    ledger.reserve("one", 0)
    with Ledger.open(place) as other:
        assert other.state.head == ledger.state.head
        assert list(other.balances().rows()) == list(ledger.balances().rows())
        ledger.reserve("one", 1)
        other.read()
        assert other.run("one").next_round == 2


def test_early_stop_gives_back_what_never_began(ledger):
    admit(ledger, "one", make_plan(5.0))
    ledger.reserve("one", 0)
    ledger.close_run("one", reason="stopped")
    spent = ledger.balances()
    assert 0 < spent.spent[0] < 5
    assert spent.reserved[0] == 0
    assert spent.remaining[0] > 5 - spent.spent[0] > 0, (
        "epsilons do not add up, so more is left than the difference"
    )
    with pytest.raises(Refused, match="closed"):
        ledger.reserve("one", 1)


def test_remaining_is_what_the_next_plan_can_claim(ledger):
    admit(ledger, "one", make_plan(5.0))
    for round in range(3):
        ledger.reserve("one", round)
    ledger.close_run("one", reason="stopped")
    left = float(ledger.balances().remaining[0])
    assert not ledger.over(Proposal.of_plan(make_plan(0.999 * left))).size
    assert ledger.over(Proposal.of_plan(make_plan(1.001 * left))).size == 4


def test_readings_by_pld_tell_how_far_they_are(ledger):
    admit(ledger, "one", make_plan(5.0))
    ledger.reserve("one", 0)
    heard = []
    running = ledger.balances(
        accountant="pld", progress=lambda done, total: heard.append((done, total))
    )
    assert heard == [(1, 1), (1, 1)], "what is spent, and what the open run holds"
    assert running.reserved[0] > 0
    ledger.close_run("one", reason="stopped")
    heard.clear()
    closed = ledger.balances(
        accountant="pld", progress=lambda done, total: heard.append((done, total))
    )
    assert heard == [(1, 1)]
    assert closed.reserved[0] == 0
    # the rest is free again, but as a statement on one run only its whole plan holds
    assert closed.spent[0] == closed.total[0] == running.total[0]
    assert closed.remaining[0] > running.remaining[0]


def test_of_very_many_histories_by_pld_only_those_that_need_it_are_read_by_pld(ledger, monkeypatch):
    """By Rényi curves a plan by PLD is over its budget at the end, and within it before."""
    plan = fedspend.plan([3.0, 5.0], delta=DELTA, rounds=2, rate=0.5, accountant="pld")
    admit(ledger, "one", plan)
    ledger.reserve("one", 0)
    monkeypatch.setattr(spending, "MAX_PLD", 1)
    found = ledger.balances()
    assert np.all(found.order > 0), "a Rényi bound, and within the budget"
    assert np.all(found.spent < [3.0, 5.0])
    assert np.all(found.total_order == 0), "what is held to the end is read by PLD"
    assert np.all(found.total <= [3.0, 5.0])
    ledger.reserve("one", 1)
    assert np.all(ledger.balances().spent <= [3.0, 5.0])


def test_remaining_of_very_many_is_read_a_little_lower(ledger, monkeypatch):
    budgets = np.random.default_rng(0).uniform(0.5, 9, 200)
    admit(ledger, "one", fedspend.plan(budgets, delta=DELTA, rounds=6, rate=0.5))
    ledger.reserve("one", 0)
    ledger.close_run("one", reason="stopped")
    exact = ledger.balances().remaining
    monkeypatch.setattr(spending, "_VERY_MANY", 100)
    rounded = ledger.balances().remaining
    assert np.all(rounded <= exact)
    np.testing.assert_allclose(rounded, exact, rtol=2e-3)
    assert not np.array_equal(rounded, exact)


def test_the_second_plan_spends_the_rest_exactly(ledger):
    admit(ledger, "one", make_plan(5.0))
    for round in range(3):
        ledger.reserve("one", round)
    ledger.close_run("one", reason="stopped")
    names = ledger.accounts().names
    second = fedspend.plan(
        [5.0] * 4, delta=DELTA, rounds=9, rate=0.3, clients=names, past=ledger.past(names)
    )
    admit(ledger, "two", second)
    for round in range(9):
        ledger.reserve("two", round)
    spent = ledger.balances().spent
    assert np.all(spent <= 5.0)
    np.testing.assert_allclose(spent, 5.0, rtol=1e-6)


def test_a_plan_that_would_overspend_leaves_everything_as_it_was(ledger, place):
    admit(ledger, "one", make_plan(5.0))
    before = rows_of(place)
    with pytest.raises(Refused, match="lifetime budget of 5"):
        admit(ledger, "two", make_plan(1.0))
    assert rows_of(place) == before
    assert ledger.state.entries == len(before)


def test_reserving_and_committing_twice_is_once(ledger):
    admit(ledger, "one", make_plan(5.0))
    for _ in range(2):
        admit(ledger, "one", make_plan(5.0))
        ledger.reserve("one", 0)
        ledger.commit("one", 0, "abc")
    assert [row[0] for row in ledger.entries()] == list(range(1, 6)), (
        "ledger, register, open, reserve, commit"
    )
    with pytest.raises(Refused, match="different release"):
        ledger.commit("one", 0, "xyz")


@pytest.mark.parametrize("round", [1, 6, -1])
def test_rounds_begin_in_order_and_none_beyond_the_plan(ledger, round):
    admit(ledger, "one", make_plan(5.0))
    with pytest.raises(Refused, match="not the next one planned"):
        ledger.reserve("one", round)


def test_a_round_that_was_not_reserved_is_not_released(ledger):
    admit(ledger, "one", make_plan(5.0))
    with pytest.raises(Refused, match="not reserved"):
        ledger.commit("one", 0, "abc")


def test_a_lost_round_stays_spent(ledger):
    admit(ledger, "one", make_plan(5.0))
    ledger.reserve("one", 0)
    spent = ledger.balances().spent[0]
    ledger.lose("one", 0)
    assert ledger.balances().spent[0] == spent > 0
    with pytest.raises(Refused):
        ledger.commit("one", 0, "abc")


def test_one_delta_for_a_lifetime(ledger):
    ledger.register(["a", "b"], [5.0, 5.0], delta=1e-6)
    plan = fedspend.plan([1.0, 1.0], delta=1e-5, rounds=3, rate=0.5, clients=["a", "b"])
    with pytest.raises(Refused, match=r"delta 1e-05.*registered at 1e-06"):
        admit(ledger, "one", plan)


def test_simulated_and_real_accounts_never_mix(ledger, place):
    with pytest.raises(Refused, match=r"simulated accounts.*real"):
        ledger.admit("one", Proposal.of_plan(make_plan(5.0)), simulation=False)
    assert len(rows_of(place)) == 1


def test_changes_and_withdrawals_are_entries_with_a_reason(ledger):
    ledger.register(["a", "b"], [5.0, 2.0], delta=DELTA)
    ledger.change(["a"], 8.0, reason="new  consent")
    ledger.withdraw(["b"], reason="asked")
    kinds = [json.loads(text) for _, text, _ in ledger.entries()][-2:]
    assert [(entry["kind"], entry["names"], entry["reason"]) for entry in kinds] == [
        ("change", ["a"], "new consent"),
        ("withdraw", ["b"], "asked"),
    ]
    assert ledger.balances().budget.tolist() == [8.0, 2.0]
    assert ledger.balances().remaining.tolist() == [8.0, 0.0]
    with pytest.raises(InvalidInput, match="reason"):
        ledger.change(["a"], 9.0, reason="  ")


def test_a_budget_cannot_fall_below_what_is_spent(ledger):
    admit(ledger, "one", make_plan(5.0))
    ledger.reserve("one", 0)
    with pytest.raises(Refused, match="already spent"):
        ledger.change(["2"], 0.01, reason="stricter")


def test_a_run_stops_when_a_member_lowers_its_budget_or_withdraws(ledger):
    admit(ledger, "one", make_plan(5.0))
    ledger.reserve("one", 0)
    ledger.change(["1"], 4.0, reason="stricter")
    with pytest.raises(Refused, match="client '1' would exceed the lifetime budget of 4"):
        ledger.reserve("one", 1)
    ledger.change(["1"], 6.0, reason="changed its mind")
    ledger.reserve("one", 1)
    ledger.withdraw(["3"], reason="asked")
    with pytest.raises(Refused, match="'3' has withdrawn"):
        ledger.reserve("one", 2)
    with pytest.raises(Refused, match="'3' has withdrawn"):
        admit(ledger, "two", make_plan(0.1))


@pytest.mark.parametrize(
    ("names", "budgets", "delta", "message"),
    [
        ([], [], DELTA, "epsilon is empty|nobody"),
        (["a", "a"], [1, 1], DELTA, "twice"),
        (["a", " "], [1, 1], DELTA, "non-empty"),
        (["a"], [float("nan")], DELTA, "positive and finite"),
        (["a"], [-1.0], DELTA, "positive and finite"),
        (["a", "b", "c"], [1.0, 2.0], DELTA, "one budget per name"),
        (["a"], [1.0], 0.0, "strictly between"),
        (["a"], [1.0], float("nan"), "finite"),
    ],
)
def test_bad_registrations(ledger, names, budgets, delta, message):
    with pytest.raises(InvalidInput, match=message):
        ledger.register(names, budgets, delta=delta)
    assert ledger.state.entries == 1


def test_unknown_names_and_runs(ledger):
    ledger.register(["a"], 1.0, delta=DELTA)
    with pytest.raises(Refused, match="already registered"):
        ledger.register(["b", "a"], 1.0, delta=DELTA)
    with pytest.raises(InvalidInput, match="'zoe' is not in the ledger"):
        ledger.withdraw(["zoe"], reason="asked")
    with pytest.raises(InvalidInput, match="no run 'zoe'"):
        ledger.close_run("zoe", reason="asked")
    with pytest.raises(InvalidInput, match="run id"):
        admit(ledger, "a b", make_plan(1.0))
    with pytest.raises(InvalidInput, match="unit must be"):
        ledger.balances("patient")


def test_a_second_ledger_is_not_made_over_the_first(ledger, place):
    with pytest.raises(InvalidInput, match="already holds a ledger"):
        Ledger.create(place, simulation=True)
    with Ledger.open_or_create(place, simulation=False) as again:
        assert again.simulation
        assert again.state.id == ledger.state.id


# --- the chain, checked without fedspend ---


def test_an_outsider_can_follow_the_chain(ledger, place):
    admit(ledger, "one", make_plan(5.0, clients=200))
    ledger.reserve("one", 0)
    previous = bytes(32)
    for number, (stored_number, stored, stored_hash) in enumerate(rows_of(place), 1):
        assert stored_number == number
        text = bytes(stored) if bytes(stored[:1]) == b"{" else zlib.decompress(stored)
        previous = hashlib.sha256(previous + number.to_bytes(8, "big") + text).digest()
        assert bytes(stored_hash) == previous
        json.loads(text)
    assert f"{number}:{previous.hex()}" == str(ledger.state.head)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE fedspend_entries SET body = (SELECT body FROM fedspend_entries WHERE number = 4) "
        "WHERE number = 5",
        "UPDATE fedspend_entries SET hash = (SELECT hash FROM fedspend_entries WHERE number = 4) "
        "WHERE number = 5",
        "UPDATE fedspend_entries SET number = 50 WHERE number = 3",
        "DELETE FROM fedspend_entries WHERE number = 3",
        "DELETE FROM fedspend_entries WHERE number = 1",
        "DELETE FROM fedspend_entries",
        "INSERT INTO fedspend_entries SELECT number + 6, body, hash FROM fedspend_entries WHERE "
        "number = 6",
        "UPDATE fedspend_schema SET version = 7",
        "UPDATE fedspend_schema SET version = 0",
        "DELETE FROM fedspend_schema",
        "DROP TABLE fedspend_entries",
    ],
)
def test_whatever_is_changed_is_noticed(ledger, place, statement):
    admit(ledger, "one", make_plan(5.0))
    for round in range(2):
        ledger.reserve("one", round)
        ledger.commit("one", round, "abc")
    ledger.close()
    assert audit(place).ok
    tamper(place, statement)
    assert not audit(place).ok
    with pytest.raises(Damaged):
        Ledger.open(place)
    with pytest.raises(Damaged):
        Ledger.open_or_create(place, simulation=True)


def test_reordered_rows_are_noticed(ledger, place):
    admit(ledger, "one", make_plan(5.0))
    ledger.reserve("one", 0)
    ledger.close()
    for old, new in ((3, 90), (4, 3), (90, 4)):
        tamper(place, f"UPDATE fedspend_entries SET number = {new} WHERE number = {old}")
    assert not audit(place).ok


def test_a_cut_off_tail_is_noticed_by_a_head(ledger, place, tmp_path):
    admit(ledger, "one", make_plan(5.0))
    ledger.reserve("one", 0)
    head = str(ledger.state.head)
    ledger.close()
    tamper(place, "DELETE FROM fedspend_entries WHERE number = 4")
    (tmp_path / "ledger.db.head").unlink(missing_ok=True)
    assert audit(place).ok, "by itself a shorter chain is a chain"
    verdict = audit(place, heads=[head])
    assert not verdict.ok
    assert "cut off" in str(verdict.to_dict())


def test_a_chain_made_anew_is_noticed_by_a_head(ledger, place):
    """Who can rewrite everything can make a sound chain, but not the one that others have seen."""
    ledger.register(["a"], 1.0, delta=DELTA)
    seen = str(ledger.state.head)
    ledger.close()
    rows = rows_of(place)
    text = bytes(rows[1][1]).replace(b"[1.0]", b"[9.0]")
    forged = hashlib.sha256(bytes(rows[0][2]) + (2).to_bytes(8, "big") + text).digest()
    tamper(place, "UPDATE fedspend_entries SET body = ?, hash = ? WHERE number = 2", text, forged)
    if not place.startswith("postgres"):
        with pytest.raises(Damaged, match="entry 2 differs"):
            Ledger.open(place)
        return
    assert audit(place).ok
    assert not audit(place, heads=[seen]).ok


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "reserve", "run": "nobody", "round": 0},
        {"kind": "reserve", "run": "one", "round": 3},
        {"kind": "commit", "run": "one", "round": 0, "release": "x"},
        {"kind": "change", "unit": "client", "names": ["0"], "budgets": [-1.0], "reason": "x"},
        {"kind": "register", "unit": "client", "names": ["0"], "budgets": [1.0], "delta": 0.1},
        {"kind": "register", "unit": "client", "names": ["x"], "budgets": [1.0, 2.0], "delta": 0.1},
        {
            "kind": "replan",
            "run": "one",
            "plan": "x",
            "classes": [0, 0, 0, 0],
            "rate": [[0.5]],
            "noise": [[0.0]],
        },
        {"kind": "ledger", "format": 1, "ledger": "x", "simulation": True},
        {"kind": "gift"},
        {},
    ],
)
def test_an_entry_that_does_not_fit_is_damage_even_if_the_chain_is_sound(ledger, place, body):
    admit(ledger, "one", make_plan(5.0))
    forge(ledger, body)
    with pytest.raises(Damaged, match="does not fit"):
        Ledger.open(place)


def test_what_could_not_be_read_again_is_not_stored(ledger, place):
    """A proposal that makes no sense must not brick the ledger."""
    plan = Proposal.of_plan(make_plan(5.0))
    before = rows_of(place)
    for nonsense in (
        {"of_class": np.array([0, 0, 0, -1])},
        {"steps": 0},
        {"steps": np.zeros_like(plan.rate)},
        {"steps": np.full_like(plan.rate, 0.5)},
        {"steps": np.full_like(plan.rate, np.nan)},
        {"steps": np.ones((1, 1))},
        {"client_rate": 0.0},
        {"names": ("0", "1", "2", "2")},
    ):
        with pytest.raises((Damaged, InvalidInput, Refused)):
            ledger.admit("one", replace(plan, **nonsense), simulation=True)
        assert rows_of(place) == before
    admit(ledger, "one", make_plan(5.0))


def test_a_closed_run_loses_and_commits_nothing(ledger, place):
    admit(ledger, "one", make_plan(5.0))
    ledger.reserve("one", 0)
    ledger.close_run("one", reason="abandoned")
    for late in (
        lambda: ledger.lose("one", 0),
        lambda: ledger.commit("one", 0, "x"),
        lambda: ledger.close_run("one", reason="x"),
    ):
        with pytest.raises(Refused, match="abandoned"):
            late()
    ledger.close()
    assert audit(place).ok


def test_a_real_round_is_begun_by_one_process_only(place):
    """Whoever began it may have released it: fresh noise would be a second release."""
    with Ledger.create(place, simulation=False) as first:
        first.admit("one", Proposal.of_plan(make_plan(5.0)), simulation=False)
        with Ledger.open(place, write=True) as second:
            first.reserve("one", 0)
            with pytest.raises(Refused, match="begun by another process"):
                second.reserve("one", 0)


def test_a_new_plan_keeps_the_kind_of_mechanism(ledger):
    admit(ledger, "one", make_plan(5.0))
    longer = Proposal.of_plan(make_plan(4.0))
    for other in ({"accountant": "pld"}, {"client_rate": 0.5}):
        with pytest.raises(Refused, match="differs"):
            ledger.replan("one", replace(longer, **other))
    ledger.replan("one", longer)
    np.testing.assert_allclose(ledger.balances().total, 4.0, rtol=1e-6)
    ledger.reserve("one", 0)
    with pytest.raises(Refused, match="differs"):
        ledger.replan("one", replace(longer, steps=3, plan="sha256:other"))


@pytest.mark.full
def test_reading_while_others_write_raises_no_alarm(ledger, place):
    """The head beside the file may be newer than the rows that were just read."""
    admit(ledger, "one", make_plan(5.0, rounds=60))
    context = multiprocessing.get_context("fork")
    writer = context.Process(target=reserve_all, args=(place, 60))
    writer.start()
    looks = 0
    while writer.is_alive() or looks < 5:
        with Ledger.open(place) as reader:
            assert reader.state.entries >= 3
        looks += 1
    writer.join()
    assert writer.exitcode == 0


def reserve_all(place, rounds):
    with Ledger.open(place, write=True) as ledger:
        for round in range(rounds):
            ledger.reserve("one", round)


# --- versions ---


def test_an_older_version_is_brought_up_to_date_and_a_newer_one_refused(ledger, place, monkeypatch):
    ledger.register(["a"], 1.0, delta=DELTA)
    head = ledger.state.head
    ledger.close()
    more = [*storage.MIGRATIONS, ("CREATE TABLE fedspend_notes (words {blob})",)]
    with monkeypatch.context() as newer:
        for module in ("storage", "book"):
            newer.setattr(f"fedspend.ledger.{module}.MIGRATIONS", more)
        with Ledger.open(place) as reading:
            assert reading._storage.version() == 1, "reading changes nothing"
        with Ledger.open(place, write=True) as migrated:
            assert migrated._storage.version() == 2
            assert migrated.state.head == head
    with pytest.raises(Damaged, match=r"version 2.*newer fedspend"):
        Ledger.open(place)


# --- several at once ---


def take(place, run, budget, barrier, results):
    """One process that wants its share; everybody starts at once."""
    plan = make_plan(budget)
    with Ledger.open(place, write=True) as ledger:
        barrier.wait()
        try:
            admit(ledger, run, plan)
            results.put((run, "granted"))
        except Refused:
            results.put((run, "refused"))


@pytest.mark.full(but=["sqlite-2"])
@pytest.mark.parametrize("racers", [2, 8])
def test_racing_for_the_last_of_a_budget(ledger, place, racers, tmp_path):
    """Two ask for all of it, eight for two fifths each: what fits when they come one by one is
    granted, and no more.
    """
    share = 5.0 if racers == 2 else 2.0
    names = make_plan(share).clients
    with Ledger.create(tmp_path / "rehearsal.db", simulation=True) as rehearsal:
        rehearsal.register(names, 5.0, delta=DELTA)
        fits = 0
        while not rehearsal.over(Proposal.of_plan(make_plan(share))).size:
            admit(rehearsal, f"run{fits}", make_plan(share))
            fits += 1
    assert 1 <= fits < racers
    ledger.register(names, 5.0, delta=DELTA)
    context = multiprocessing.get_context("fork")
    barrier, results = context.Barrier(racers), context.Queue()
    processes = [
        context.Process(target=take, args=(place, f"run{n}", share, barrier, results))
        for n in range(racers)
    ]
    for process in processes:
        process.start()
    outcomes = [results.get(timeout=600)[1] for _ in processes]
    for process in processes:
        process.join()
    assert outcomes.count("granted") == fits
    ledger.read()
    assert np.all(ledger.balances().total <= 5.0)
    ledger.close()
    assert audit(place).ok


# --- discrete noise ---


@pytest.fixture
def as_planned_by_version_01():
    with as_it_was(discrete=True):
        yield


@pytest.mark.usefixtures("as_planned_by_version_01")
def test_discrete_noise_of_version_01_is_read_at_whole_orders(older, place):
    """At fractional orders nothing is proven for it; one discrete run in a history decides for all
    of it.
    """
    ledger = older
    discrete = make_plan(5.0, noise="discrete")
    admit(ledger, "one", discrete)
    for round in range(6):
        ledger.reserve("one", round)
    ledger.close_run("one", reason="finished")
    found = ledger.balances()
    assert np.all(found.order == np.floor(found.order))
    assert np.all(found.spent <= 5.0)
    np.testing.assert_allclose(found.spent, 5.0, rtol=1e-6)
    names = ledger.accounts().names
    ledger.change(names, 8.0, reason="consent")
    for kind in ("continuous", "discrete"):
        second = fedspend.plan(
            [8.0] * 4,
            delta=DELTA,
            rounds=4,
            rate=0.5,
            clients=names,
            past=ledger.past(names),
            noise=kind,
        )
        assert all(order == int(order) for order in second.orders)
        assert not ledger.over(Proposal.of_plan(second)).size
    admit(ledger, "two", second)
    total = ledger.balances().total
    assert np.all(total <= 8.0)
    np.testing.assert_allclose(total, 8.0, rtol=1e-6)
    with pytest.raises(Refused, match="differs"):
        ledger.replan("two", replace(Proposal.of_plan(second), discrete=False, plan="sha256:other"))
    ledger.close()
    assert audit(place).ok


def test_discrete_noise_is_charged_as_the_continuous_noise_that_it_counts_for(ledger, place):
    discrete = make_plan(5.0, noise="discrete")
    admit(ledger, "one", discrete)
    for round in range(6):
        ledger.reserve("one", round)
    ledger.close_run("one", reason="finished")
    found = ledger.balances()
    assert np.all(found.spent <= 5.0)
    np.testing.assert_allclose(found.spent, 5.0, rtol=1e-6)
    assert np.all(found.order != np.floor(found.order))
    run = ledger.run("one")
    assert (run.discrete, run.grid_steps) == (False, discrete.grid_steps)
    assert np.array_equal(run.noise, discrete.accounted_noise)
    assert (run.noise < discrete.schedules.noise_multiplier).all()
    ledger.close()
    assert audit(place).ok


def test_the_same_rounds_cost_no_less_with_discrete_noise(ledger):
    plain = Proposal.of_plan(make_plan(2.0))
    ledger.register(plain.names, 20.0, delta=DELTA)
    ledger.admit("plain", plain, simulation=True)
    continuous = ledger.balances().total[0]
    ledger.close_run("plain", reason="never began")
    ledger.admit("discrete", replace(plain, discrete=True), simulation=True)
    assert ledger.balances().total[0] > continuous


# --- records ---


def test_record_accounts_with_two_stages_of_sampling(ledger, place):
    from fedspend.accounting import epsilon, rdp

    names = tuple(f"clinic/{n}" for n in range(1000))
    classes = np.arange(1000) % 3
    rate, noise = np.tile([0.02, 0.05, 0.1], (20, 1)), np.full((20, 3), 1.0)
    proposal = Proposal(
        names,
        np.full(1000, 6.0),
        1e-3,
        classes,
        rate,
        noise,
        plan="sha256:x",
        unit="record",
        client_rate=0.5,
        steps=5,
    )
    ledger.admit("one", proposal, simulation=True)
    for round in range(20):
        ledger.reserve("one", round)
    spent = ledger.balances("record").spent
    orders = np.arange(2, 65)  # all of them can only read lower
    for own, q in enumerate((0.02, 0.05, 0.1)):
        inner = 5 * rdp(q, 1.0, orders)
        curve = 20 * np.logaddexp(np.log(0.5), np.log(0.5) + (orders - 1) * inner) / (orders - 1)
        assert spent[own] <= epsilon(curve, orders, 1e-3)
        np.testing.assert_allclose(spent[own], epsilon(curve, orders, 1e-3), rtol=0.05)
    assert epsilon(curve, orders, 1e-3) == pytest.approx(4.20990690, abs=1e-8)
    assert len(ledger.accounts("client")) == 0
    ledger.close()
    verdict = audit(place)
    assert verdict.ok, verdict.to_dict()


def test_steps_may_differ_by_round_and_class(ledger, place):
    """A record that stops in the middle of a round is charged for the steps it took: three ways to
    read it agree.
    """
    from fedspend.accounting import epsilon, rdp
    from fedspend.accounting.rdp import ORDERS

    steps = np.array([[5.0, 5.0], [5.0, 2.0], [3.0, 0.0]])
    rate, noise = np.where(steps > 0, 0.1, 0.0), np.full((3, 2), 1.0)
    proposal = Proposal(
        ("a", "b"),
        np.full(2, 6.0),
        1e-3,
        np.arange(2),
        rate,
        noise,
        "sha256:x",
        unit="record",
        client_rate=0.5,
        steps=steps,
    )
    ledger.admit("one", proposal, simulation=True)
    orders = np.asarray(ORDERS)
    for round in range(3):
        ledger.reserve("one", round)
        for own in range(2):
            inner = steps[: round + 1, own, None] * rdp(0.1, 1.0, orders)
            curve = (
                np.logaddexp(np.log(0.5), np.log(0.5) + (orders - 1) * inner) / (orders - 1)
            ).sum(axis=0)
            assert ledger.balances("record").spent[own] == pytest.approx(
                epsilon(curve, orders, 1e-3), rel=1e-9
            )
    ledger.close()
    verdict = audit(place)
    assert verdict.ok, verdict.to_dict()
    with Ledger.open(place) as again:
        np.testing.assert_array_equal(again.run("one").steps, steps)


# --- projects ---


def test_accounts_belong_to_a_project(ledger, place):
    """The same names, and nothing in common: budgets, spending, withdrawals."""
    for project in ("clinics", "schools"):
        with Ledger.open(place, write=True, project=project) as own:
            admit(own, f"run-{project}", make_plan(3.0))
            own.reserve(f"run-{project}", 0)
    with Ledger.open(place, write=True, project="schools") as schools:
        schools.withdraw(["1"], reason="asked")
        schools.change(["0"], 9.0, reason="asked")
        with pytest.raises(InvalidInput, match="belongs to project 'clinics'; name it with"):
            schools.reserve("run-clinics", 1)
    with Ledger.open(place, write=True, project="clinics") as clinics:
        clinics.reserve("run-clinics", 1)
        assert clinics.accounts().budget.tolist() == [3.0] * 4
        assert not clinics.accounts().withdrawn.any()
        with pytest.raises(Refused, match="lifetime budget"):
            admit(clinics, "more", make_plan(3.0))
    ledger.read()
    assert len(ledger.accounts()) == 0
    assert ledger.state.projects == ["clinics", "schools"]
    checks = audit(place)
    assert checks.ok
    assert {"client balances, clinics", "client balances, schools"} <= {
        one.check for one in checks.checks
    }


def test_overspending_in_a_project_is_noticed(place):
    with Ledger.create(place, simulation=True, project="clinics") as own:
        admit(own, "one", make_plan(3.0))
        for round in range(6):
            own.reserve("one", round)
        names = [f"{n}" for n in range(4)]
        forge(
            own,
            {
                "kind": "change",
                "unit": "client",
                "project": "clinics",
                "names": names,
                "budgets": [1.0] * 4,
                "reason": "forged",
            },
        )
    found = audit(place)
    assert not found.ok


@pytest.mark.parametrize(
    "body",
    [
        {"kind": "project", "name": "clinics"},
        {"kind": "project", "name": ""},
        {"kind": "project", "name": 7},
        {"kind": "project"},
        {
            "kind": "register",
            "unit": "client",
            "project": "unheard of",
            "delta": 1e-3,
            "names": ["x"],
            "budgets": [1.0],
        },
    ],
)
def test_an_entry_that_does_not_fit_the_projects_is_damage(place, body):
    with Ledger.create(place, simulation=True, project="clinics") as own:
        own.register(["a"], [1.0], delta=DELTA)
        forge(own, body)
    with pytest.raises(Damaged, match="does not fit"):
        Ledger.open(place)


def test_what_has_no_project_is_written_as_it_always_was(place):
    """Older versions can read such a ledger; one with projects they refuse, by its new kind."""
    with Ledger.create(place, simulation=True) as plain:
        admit(plain, "one", make_plan(3.0))
    kinds = [entry["kind"] for entry in entries(place)]
    assert kinds == ["ledger", "register", "open"]
    assert not any("project" in entry for entry in entries(place))
    with Ledger.open(place, write=True, project="clinics") as own:
        with pytest.raises(Refused, match="has an account in the ledger, outside of projects"):
            admit(own, "two", make_plan(3.0))
        others = {"delta": DELTA, "rounds": 6, "rate": 0.5, "accountant": "rdp"}
        admit(own, "two", fedspend.plan({"north": 3.0, "south": 3.0}, **others))
    assert [entry["kind"] for entry in entries(place)][3:] == ["project", "register", "open"]


def entries(place):
    texts = [bytes(body) for _, body, _ in rows_of(place)]
    return [json.loads(text if text[:1] == b"{" else zlib.decompress(text)) for text in texts]


# --- clients and records ---


def of_records(budget=3.0, records=4):
    from fedspend.records import Terms
    from fedspend.records.planning import plan_records

    terms = Terms(delta=DELTA, rounds=2, local_steps=1, client_rate=1.0, noise_multiplier=4.0)
    return plan_records(np.full(records, budget), [0] * records, terms, clients=["a"])


@pytest.mark.parametrize("project", ["", "clinics"])
@pytest.mark.parametrize("first", ["client", "record"])
def test_clients_and_records_do_not_share_accounts(place, first, project):
    """A run on clients exposes their records at a price that record accounts do not know, and a
    run on records has no useful bound for a client.
    """
    plans = {"client": make_plan(3.0), "record": of_records()}
    second = "record" if first == "client" else "client"
    with Ledger.create(place, simulation=True, project=project) as own:
        admit(own, "one", plans[first])
        head = own.state.head
        with pytest.raises(Refused, match=f"has {first} accounts, .* a run on {second}s") as no:
            admit(own, "two", plans[second])
        assert "\n" not in str(no.value)
        with pytest.raises(Refused, match=f"has {first} accounts"):
            own.register(["x"], [1.0], delta=DELTA, unit=second)
        assert own.state.head == head
        own.reserve("one", 0)
    with Ledger.open(place, write=True, project="other people") as others:
        admit(others, "two", plans[second])


@pytest.mark.parametrize("first", ["client", "record"])
def test_registered_accounts_alone_are_enough_to_refuse_the_other_kind(ledger, first):
    second = "record" if first == "client" else "client"
    ledger.register(["0"], [1.0], delta=DELTA, unit=first)
    with pytest.raises(Refused, match=f"has {first} accounts"):
        admit(ledger, "one", {"client": make_plan(3.0), "record": of_records()}[second])


def test_an_old_ledger_with_both_opens_goes_on_and_says_what_is_missing(ledger, place):
    admit(ledger, "one", make_plan(3.0))
    forge(ledger, of_records().proposal().registration(by_order=True))
    ledger.reserve("one", 0)
    found = audit(place)
    assert found.ok
    (about,) = [one for one in found.checks if one.check == "one unit"]
    assert about.good is None
    assert "not in the record's balance" in about.words
    for plan in (make_plan(3.0), of_records()):
        with pytest.raises(Refused, match="accounts, which cannot pay"):
            admit(ledger, "two", plan)


def test_entries_name_a_project_only_if_they_are_about_its_accounts():
    (about, *_), other = sorted(OF_ACCOUNTS), {"kind": "begin"}
    assert said_of("north", {"kind": about}) == {"kind": about, "project": "north"}
    assert said_of("", {"kind": about}) == {"kind": about}
    assert said_of("north", other) == other


def test_nobody_cannot_be_entered():
    with pytest.raises(InvalidInput, match="nobody to enter"):
        check_names([])
