"""Ids: one way to write each, and no two that a reader would take for one, wherever names enter."""

import time
import unicodedata

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import fedspend
from fedspend.budgets import identity
from fedspend.budgets.csv_file import read_budgets_csv
from fedspend.data import from_arrays, from_clients
from fedspend.data.tables import read_csv, read_npz
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger

COMPOSED, DECOMPOSED = "caf\u00e9", "cafe\u0301"
PAIRS = {
    "case": ("north", "North"),
    "sharp s": ("stra\u00dfe", "STRASSE"),
    "accent": (COMPOSED, DECOMPOSED),
    "non-breaking space at the end": ("north", "north\u00a0"),
    "wide space in front": ("north", "\u3000north"),
    "zero width space": ("north", "nor\u200bth"),
    "byte order mark": ("north", "\ufeffnorth"),
    "soft hyphen": ("north", "nor\u00adth"),
    "variation selector": ("north", "north\ufe0f"),
    "hangul filler": ("north", "north\u3164"),
    "two spaces": ("north clinic", "north  clinic"),
    "no space": ("north clinic", "northclinic"),
    "a thin space inside": ("northclinic", "north\u2009clinic"),
    "a dotted capital I": ("izmir", "\u0130zmir"),
    "hyphen bullet": ("north-clinic", "north\u2043clinic"),
    "hyphenation point": ("north-clinic", "north\u2027clinic"),
    "swung dash": ("north-clinic", "north\u2053clinic"),
}
TERMS = {"delta": 1e-2, "rounds": 2, "rate": 1.0}


@pytest.fixture(params=PAIRS.values(), ids=PAIRS.keys())
def pair(request):
    return request.param


def refusal(function, *args, **options):
    with pytest.raises(InvalidInput) as refused:
        function(*args, **options)
    message = str(refused.value)
    assert "\n" not in message
    return message


def names_both(message, pair):
    return all(repr(one) in message or ascii(one) in message for one in pair)


# --- pure ---


def test_an_id_is_composed_and_trimmed():
    assert identity.read_ids(["\u00a0" + DECOMPOSED + "\u2003", " b\t"]) == (COMPOSED, "b")


@given(st.text())
def test_writing_an_id_once_more_changes_nothing(text):
    once = identity.normal(text)
    assert identity.normal(once) == once
    assert identity.look(once) == identity.look(text)


@given(st.lists(st.text(min_size=1), min_size=1, max_size=5))
def test_what_enters_is_printable_distinct_and_stays_as_it_is(texts):
    try:
        ids = identity.read_ids(texts)
    except InvalidInput:
        return
    assert ids == identity.read_ids(ids)
    assert all(
        name.isprintable() and name == unicodedata.normalize("NFC", name).strip() != ""
        for name in ids
    )
    assert len({name.casefold() for name in ids}) == len(ids)


@given(st.lists(st.text(st.characters(codec="ascii"), max_size=3), max_size=6))
def test_the_quick_look_agrees_with_the_slow_one(texts):
    if identity.plain(texts):
        assert list(map(identity.normal, texts)) == texts
        assert len(set(map(identity.look, texts))) == len(texts)
        assert all(text.isprintable() and text for text in texts)


def test_lookalikes_are_refused_and_both_are_named(pair):
    assert names_both(refusal(identity.read_ids, ["first", *pair]), pair)


@pytest.mark.parametrize("bad", ["", "  ", "\u00a0", None, 3, 1.5, b"x"])
def test_an_id_is_text_that_is_not_empty(bad):
    assert repr(bad) in refusal(identity.read_ids, ["a", bad])


@pytest.mark.parametrize("bad", ["a\nb", "a\x1b[31m", "a\u200bb", "a\u202eb"])
def test_what_nobody_can_see_is_refused_even_alone(bad):
    assert ascii(bad) in refusal(identity.read_ids, [bad])


def test_a_column_may_repeat_ids_but_write_each_in_one_way(pair):
    assert identity.read_column(["a", " b", "a", " b"]) == ["a", "b", "a", "b"]
    assert names_both(refusal(identity.read_column, [pair[0], pair[0], pair[1]]), pair)


@pytest.mark.full
def test_a_million_ids_take_a_fraction_of_a_second():
    ids = [f"client-{n}" for n in range(1_000_000)]
    start = time.process_time()
    assert identity.read_ids(ids) == tuple(ids)
    assert time.process_time() - start < 12  # 0.5 on one quiet core


# --- where names enter ---


def test_a_file_of_budgets(tmp_path, pair):
    (tmp_path / "budgets.csv").write_text(
        f"client,epsilon\nfirst,3\n{pair[0]},1\n{pair[1]},2\n", encoding="utf-8"
    )
    message = refusal(read_budgets_csv, tmp_path / "budgets.csv")
    assert names_both(message, pair)
    assert message.startswith(f"{tmp_path / 'budgets.csv'}:4: ")


def test_budgets_are_normalised(tmp_path):
    (tmp_path / "budgets.csv").write_text(
        f"client,epsilon\n{DECOMPOSED}\u00a0,1\n", encoding="utf-8"
    )
    assert read_budgets_csv(tmp_path / "budgets.csv").clients == (COMPOSED,)


def test_a_client_column(tmp_path, pair):
    (tmp_path / "rows.csv").write_text(
        f"client,x,label\n{pair[0]},1,0\n{pair[0]},2,1\n{pair[1]},3,1\n", encoding="utf-8"
    )
    message = refusal(read_csv, tmp_path / "rows.csv", classes=2)
    assert names_both(message, pair)
    assert message.startswith(f"{tmp_path / 'rows.csv'}:4: ")


def test_a_client_column_is_normalised(tmp_path):
    (tmp_path / "rows.csv").write_text(
        f"client,x,label\n{DECOMPOSED}\u00a0,1,0\n{DECOMPOSED}\u00a0,2,1\n", encoding="utf-8"
    )
    assert read_csv(tmp_path / "rows.csv", classes=2).client_of.tolist() == [COMPOSED] * 2


def test_an_array_of_clients(tmp_path, pair):
    np.savez(
        tmp_path / "rows.npz",
        features=np.eye(3),
        label=[0, 1, 1],
        client=np.array([pair[0], *pair]),
    )
    assert names_both(refusal(read_npz, tmp_path / "rows.npz", classes=2), pair)
    assert names_both(
        refusal(from_arrays, np.eye(2), [0, 1], classes=2, client_of=list(pair), validation=0.5),
        pair,
    )


def test_an_array_of_clients_may_be_numbers_or_bytes_but_nothing_vague(tmp_path):
    def clients(values):
        np.savez(tmp_path / "rows.npz", features=np.eye(2), label=[0, 1], client=values)
        return read_npz(tmp_path / "rows.npz", classes=2).clients

    assert clients(np.array([10, 9])) == ("9", "10")
    assert clients(np.array([b"north", b"east"])) == ("east", "north")
    assert "float64" in refusal(clients, np.array([1.0, np.nan]))
    assert "not text" in refusal(clients, np.array([b"\xff", b"b"]))


def test_registration(tmp_path, pair):
    with Ledger.create(tmp_path / "accounts.db", simulation=True) as ledger:
        assert names_both(refusal(ledger.register, list(pair), 1.0, delta=1e-3), pair)
        ledger.register([pair[0]], 1.0, delta=1e-3)
        with pytest.raises((InvalidInput, Refused)) as refused:
            ledger.register([pair[1]], 1.0, delta=1e-3)
        assert ledger.accounts().names == [pair[0]]
    assert repr(pair[0]) in str(refused.value) or names_both(str(refused.value), pair)


def test_registered_names_are_normalised_and_found_in_any_form(tmp_path):
    with Ledger.create(tmp_path / "accounts.db", simulation=True) as ledger:
        ledger.register([DECOMPOSED + "\u00a0", "b"], 1.0, delta=1e-3)
        assert ledger.accounts().names == [COMPOSED, "b"]
        ledger.change([DECOMPOSED], 2.0, reason="test")
        ledger.withdraw([f" {DECOMPOSED}"], reason="test")
        assert (ledger.accounts().budget[0], ledger.accounts().withdrawn[0]) == (2.0, True)
        message = refusal(ledger.withdraw, ["B"], reason="test")
        assert "'B' is not in the ledger, though 'b' looks like it" in message
        assert "twice" in refusal(ledger.withdraw, ["b", " b"], reason="test")


def test_plans(pair):
    assert names_both(refusal(fedspend.plan, 1.0, clients=list(pair), **TERMS), pair)
    assert names_both(refusal(fedspend.plan, dict.fromkeys(pair, 1.0), **TERMS), pair)
    assert fedspend.plan(1.0, clients=[f" {DECOMPOSED}"], **TERMS).clients == (COMPOSED,)


def test_mappings_of_rows(pair):
    rows = ([[1.0]], [0])
    assert names_both(refusal(from_clients, dict.fromkeys(pair, rows), test=rows, classes=2), pair)


# --- files of older versions ---


def test_a_plan_with_names_of_before_still_opens(tmp_path):
    """Checks run when names enter, not when a file is read."""
    made = fedspend.plan([1.0, 2.0], **TERMS)
    made.replace(clients=("North", "north ")).save(tmp_path / "plan.json")
    assert fedspend.Plan.load(tmp_path / "plan.json").clients == ("North", "north ")


@pytest.fixture
def older(tmp_path, monkeypatch):
    """A ledger of a version that took names as they came."""
    from fedspend.ledger import rules

    def make(names):
        with (
            monkeypatch.context() as before,
            Ledger.create(tmp_path / "accounts.db", simulation=True) as ledger,
        ):
            before.setattr(rules, "new_names", lambda names, *_: list(names))
            ledger.register(names, np.arange(1.0, 1 + len(names)), delta=1e-3)
        return Ledger.open(tmp_path / "accounts.db", write=True)

    return make


def planned(ledger):
    from fedspend.ledger.participants import plan_within, registered
    from fedspend.planning.request import PlanRequest

    who = registered(ledger).population
    request = PlanRequest(
        epsilons=who.epsilons, clients=who.clients, delta=1e-3, rounds=2, rate=1.0
    )
    return plan_within(ledger, request, spend="remaining", exhausted="refuse")


def test_a_ledger_with_names_of_before_still_opens_and_is_planned_with(older):
    with older(["North", "north"]) as ledger:
        assert planned(ledger).clients == ("North", "north")
        ledger.withdraw(["north"], reason="test")
        assert ledger.accounts().withdrawn.tolist() == [False, True]
        with pytest.raises(InvalidInput, match="'NORTH' differ only by case"):
            ledger.register(["NORTH"], 1.0, delta=1e-3)


def test_an_account_of_before_is_found_under_its_name_of_today(older):
    """Else the rows of a client whose name was stored in another form could never be
    charged again.
    """
    from fedspend.ledger.rules import Proposal

    with older([DECOMPOSED, "b"]) as ledger:
        plan = planned(ledger)
        assert plan.clients == (COMPOSED, "b")
        ledger.admit("run", Proposal.of_plan(plan), simulation=True)
        ledger.reserve("run", 0)
        ledger.reserve("run", 1)
        found = ledger.balances()
        together = ledger.past(found.names).best(found.delta)[0]
        np.testing.assert_allclose(together, [1.0, 2.0], rtol=1e-5)
        assert found.remaining.tolist() == [0.0, 0.0]
        ledger.withdraw([COMPOSED], reason="test")
        assert ledger.accounts().withdrawn.tolist() == [True, False]
        assert names_both(
            refusal(ledger.register, [COMPOSED], 1.0, delta=1e-3), (COMPOSED, DECOMPOSED)
        )


def test_accounts_of_before_whose_names_are_one_today_stay_two(older):
    with older([COMPOSED, DECOMPOSED]) as ledger:
        assert planned(ledger).clients == (COMPOSED, DECOMPOSED)


# --- plans by id ---


class Series:
    """As much of a pandas Series as matters here."""

    def __init__(self, values, index):
        self._values, self.index = np.asarray(values), list(index)

    def to_numpy(self):
        return self._values

    def __array__(self, *_args, **_options):
        return self._values

    def __len__(self):
        return len(self._values)


def real_series(values, index):
    return pytest.importorskip("pandas").Series(values, index=index)


@pytest.mark.full(but=["Series"])
@pytest.mark.parametrize(
    "make", [lambda values, index: dict(zip(index, values, strict=True)), Series, real_series]
)
def test_budgets_by_id_name_the_clients(make):
    plan = fedspend.plan(make([2.0, 8.0], ["south", "north"]), **TERMS)
    assert (plan.clients, plan.budget.tolist()) == (("south", "north"), [2.0, 8.0])
    ordered = fedspend.plan(
        make([2.0, 8.0], ["south", "north"]), clients=["north", "south"], **TERMS
    )
    assert (ordered.clients, ordered.budget.tolist()) == (("north", "south"), [8.0, 2.0])
    saving = fedspend.plan(
        make([2.0, 8.0], ["south", "north"]),
        **TERMS | {"rounds": 4},
        saving_rate=make([0.4, 0.7], ["north", "south"]),
        transition=make([2, 3], ["south", "north"]),
    )
    assert saving.sampling_rate.T.tolist() == [[0.7, 1.0, 1.0, 1.0], [0.4, 0.4, 1.0, 1.0]]
    assert fedspend.plan(make([2.0, 8.0], [7, 5]), **TERMS).clients == ("7", "5")


@pytest.mark.parametrize(
    "make", [lambda values, index: dict(zip(index, values, strict=True)), Series]
)
def test_both_sides_must_have_the_same_clients(make):
    budgets = make([2.0, 8.0], ["south", "north"])
    assert "no value for client 'east'" in refusal(
        fedspend.plan, budgets, clients=["south", "north", "east"], **TERMS
    )
    assert "a value for 'north', which is not" in refusal(
        fedspend.plan, budgets, clients=["south"], **TERMS
    )
    assert "'North', though 'north' looks" in refusal(
        fedspend.plan, budgets, clients=["south", "North"], **TERMS
    )
    saving = make([0.5, 0.5], ["south", "west"])
    assert "saving_rate has no value for client 'north'" in refusal(
        fedspend.plan, budgets, saving_rate=saving, **TERMS
    )
    assert "epsilon" in refusal(
        fedspend.plan, make([2.0, float("nan")], ["south", "north"]), **TERMS
    )
    assert "client ids must be" in refusal(fedspend.plan, make([2.0], [1.5]), **TERMS)


def test_a_list_of_budgets_still_numbers_its_clients():
    assert fedspend.plan([1.0, 2.0], **TERMS).clients == ("0", "1")
    assert fedspend.plan(np.array([1.0, 2.0]), **TERMS).clients == ("0", "1")
    assert fedspend.plan(3.0, clients=["a", "b"], **TERMS).budget.tolist() == [3.0, 3.0]
