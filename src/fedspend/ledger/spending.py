"""What every account has spent, what open runs hold, and what a new plan could still claim.

Guarantee: an epsilon is composed from the recorded mechanisms at the account's lifetime delta,
never added up from epsilons, and is never too low: it is read with the exact kernel at one Rényi
order, or by pessimistic PLD. An account with a private tune is read at a Rényi order, whatever else
it has. Accounts with equal histories are computed once.

A later run may be planned by looking at what earlier ones released. So runs are admitted by a
filter: at the account's order, which was fixed when it was registered, the divergences of all that
was begun and of all that open runs hold must convert to its budget at most (Feldman and Zrnic 2021,
theorem 4.5 in the Rényi form). Who stops a run early, and why, makes no difference to that: rounds
that never began are free again.

One run may use what its own accountant reads lower: the only one on its account. It is then
*alone*: it counts with all of its rounds once it has begun, is not replanned, and a later run must
fit into the filter beside all of it. Whether one can is known when the first is admitted, from its
plan and the budget: if the whole plan exceeds the filter, nothing else is ever admitted, and the
account is what that one plan, fixed beforehand, spends; else everything is within the filter. (With
a budget that is raised later, the same holds for the raised one.)

So an account with one run is read by that run's accountant, one with several at its order. Accounts
of a ledger without orders are read as before: at the best of all orders, or by PLD if a run was
planned so, which assumes plans that were fixed beforehand.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from fedspend.accounting.calibration import first_guess, solve
from fedspend.accounting.curves import Curve, curve
from fedspend.accounting.mechanisms import Mechanisms, conversion_cost_at, conversion_costs
from fedspend.accounting.rdp import NOISE_RANGE, ORDERS, WHOLE_ORDERS
from fedspend.basics.arrays import BoolArray, FloatArray, IntArray, distinct_rows
from fedspend.basics.progress import OnProgress
from fedspend.ledger.state import STOPPED_EARLY, Run, State

_FULL = 1e-6  # if less than this share of a budget is left, no plan can use it
_ROWS = 512  # accounts solved at once
# For more different accounts than this, `remaining` is read at every fourth order: that is faster,
# and fewer orders can only read lower here.
_MANY = 4096
_VERY_MANY = 200_000  # for more accounts, `remaining` is read from budgets rounded down
# Up to this many distinct histories are read by PLD, which takes up to a second each. If there are
# more, only those that are over their budget by Rényi curves are: for the others these are a bound,
# too.
MAX_PLD = 1000


@dataclass(frozen=True, eq=False)
class Histories:
    """The distinct histories of accounts: what each ran, and which accounts share it.

    `mechanisms` are bound to the accounts' orders, at which new runs are admitted.
    """

    mechanisms: Mechanisms
    several: BoolArray  # (histories,) whether more than one run has spent, of which some by orders
    of_account: IntArray
    by_pld: BoolArray  # (histories,) whether it is read by PLD

    @property
    def read(self) -> Mechanisms:
        """How each history is read: one of a single run at any order."""
        return self.mechanisms.bound_to(np.where(self.several, self.mechanisms.bound, 0.0))

    def for_accounts(self, who: IntArray) -> Mechanisms:
        return self.mechanisms.take(self.of_account[who])


def histories(state: State, unit: str, *, held: bool, without: str | None = None) -> Histories:
    """The histories of all accounts, except for the run `without`.

    With `held`, as if all open runs had finished.
    """
    runs = [run for run in state.runs_of(unit) if run.id != without]
    first, of_account = distinct_rows(state.accounts[unit].order)
    order = state.accounts[unit].order[first]
    classes: list[IntArray] = []  # for each run, the class of every history; -1 for none
    for run in runs:
        joined = np.full(of_account.size, -1, dtype=np.int64)
        joined[run.accounts] = run.of_class
        first, now = distinct_rows(of_account, joined)
        order = order[of_account[first]]
        classes = [before[of_account[first]] for before in classes] + [joined[first]]
        of_account = now
    count = order.size
    taking_part = [np.flatnonzero(of_class >= 0) for of_class in classes]
    by_pld, by_order = np.zeros((2, count), dtype=bool)
    spending = np.zeros(count, dtype=np.int64)  # how many runs have spent anything
    for run, of_class, members in zip(runs, classes, taking_part, strict=True):
        by_pld[members] |= run.accountant != "rdp"
        spends = run.mechanisms(held).busy()[of_class[members]]
        by_order[members] |= run.by_order & spends
        spending[members] += spends
    several = by_order & (spending > 1)

    parts = [
        run.mechanisms(held).take(of_class[members]).renamed(members, count)
        for run, of_class, members in zip(runs, classes, taking_part, strict=True)
    ]
    return Histories(
        Mechanisms.joined(parts, count).bound_to(order), several, of_account, by_pld & ~several
    )


def epsilons(
    mechanisms: Mechanisms,
    delta: FloatArray,
    by_pld: BoolArray,
    budget: FloatArray,
    progress: OnProgress | None = None,
) -> tuple[FloatArray, FloatArray]:
    """Epsilon of each history at its delta, by its accountant, and the order read (PLD: 0).

    `budget` is the smallest one of the accounts with this history.
    """
    epsilon, order = mechanisms.best(delta)
    rows = np.flatnonzero(by_pld & (epsilon > 0) & (mechanisms.bound == 0))
    if rows.size > MAX_PLD:
        rows = rows[~(epsilon[rows] <= budget[rows])]
    for done, row in enumerate(rows.tolist(), 1):
        rough = float(epsilon[row])
        epsilon[row] = pld_epsilon(mechanisms, row, float(delta[row]), rough)
        order[row] = order[row] if epsilon[row] == rough else 0.0
        if progress:
            progress(done, rows.size)
    return epsilon, order


def pld_epsilon(mechanisms: Mechanisms, history: int, delta: float, rough: float) -> float:
    """One history by PLD, or `rough` if that is lower or PLD cannot express the history."""
    from fedspend.accounting.pld import schedule_epsilon

    mine = np.flatnonzero(mechanisms.history == history)
    if not np.all(
        (mechanisms.client_rate[mine] == 1)
        & (mechanisms.steps[mine] == 1)
        & ~mechanisms.discrete[mine]
        & (mechanisms.curve[mine] < 0)
    ):
        return rough
    counts = mechanisms.count[mine].astype(np.int64)
    noise, rate = (
        np.repeat(column[mine], counts) for column in (mechanisms.noise, mechanisms.rate)
    )
    return min(rough, schedule_epsilon(noise, rate, delta))


@dataclass(frozen=True, eq=False)
class Balances:
    """One value per account, in the order of registration."""

    names: list[str]
    budget: FloatArray
    delta: FloatArray
    spent: FloatArray
    reserved: FloatArray  # by how much `spent` will rise if all open runs finish
    remaining: FloatArray
    withdrawn: BoolArray
    order: FloatArray  # at which `spent` was read; 0 if by PLD
    total: FloatArray  # what will have been spent if all open runs finish
    total_order: FloatArray
    admitted_at: FloatArray  # the account's own order; 0 in a ledger without orders

    def rows(
        self, who: Iterable[int] | None = None, unit: str = "client"
    ) -> Iterator[dict[str, Any]]:
        """The accounts `who`, or all, as dicts; the name is under the key `unit`."""
        for n in range(len(self.names)) if who is None else who:
            yield {
                unit: self.names[n],
                "budget": float(self.budget[n]),
                "delta": float(self.delta[n]),
                "spent": float(self.spent[n]),
                "reserved": float(self.reserved[n]),
                "remaining": float(self.remaining[n]),
                "withdrawn": bool(self.withdrawn[n]),
                **({"order": float(self.admitted_at[n])} if self.admitted_at[n] else {}),
            }


def balances(
    state: State,
    unit: str,
    *,
    accountant: str = "rdp",
    progress: OnProgress | None = None,
    quick: bool = False,
) -> Balances:
    """What every account of a unit has spent, holds and has left.

    By Rényi curves, or by PLD where a run was planned by PLD; `accountant` "pld" means for all.
    `quick` is by Rényi curves alone: never too low, but higher where PLD would have been used.
    `progress` counts PLD readings, which take up to a second each: (done, all), first for what was
    spent, then for what is held.
    """
    accounts = state.accounts[unit]
    past = future = histories(state, unit, held=False)
    by = "quick" if quick else accountant
    spent, order = _per_account(state, unit, past, by, progress)
    total, total_order = spent, order
    if any(run.closed is None for run in state.runs_of(unit)):
        future = histories(state, unit, held=True)
        total, total_order = _per_account(state, unit, future, by, progress)
    return Balances(
        names=accounts.names,
        budget=accounts.budget,
        delta=accounts.delta,
        spent=spent,
        reserved=np.maximum(total - spent, 0.0),
        remaining=np.where(accounts.withdrawn, 0.0, remaining(state, unit, future)),
        withdrawn=accounts.withdrawn,
        order=order,
        total=total,
        total_order=total_order,
        admitted_at=accounts.order,
    )


def spent_by_members(
    state: State, run: str, *, over: bool = False, quick: bool = False
) -> FloatArray:
    """What the accounts of a run have spent in all runs, as `balances` reads it, in the order of
    the run's members. `over`: the run has ended, and all of its rounds stay spent.
    """
    mine = state.runs[run]
    if over and mine.closed is None:
        ended = replace(mine, closed=STOPPED_EARLY, stopped=True)
        state = replace(state, runs={**state.runs, run: ended})
    past = histories(state, mine.unit, held=False)
    by = "quick" if quick else "rdp"
    return _per_account(state, mine.unit, past, by, None, mine.accounts)[0]


def _per_account(
    state: State,
    unit: str,
    past: Histories,
    by: str,
    progress: OnProgress | None,
    who: IntArray | slice = slice(None),
) -> tuple[FloatArray, FloatArray]:
    """Epsilon of the accounts `who`, and the order at which it was read."""
    delta, history = state.accounts[unit].delta[who], past.of_account[who]
    # equal histories at different deltas are different readings
    first, of_account = distinct_rows(history, delta)
    rows = history[first]
    whole = {"pld": np.ones_like, "quick": np.zeros_like}.get(by)
    by_pld = past.by_pld[rows] if whole is None else whole(past.by_pld[rows])
    budget = _strictest(state.accounts[unit].budget[who], of_account, first.size)
    epsilon, order = epsilons(past.read.take(rows), delta[first], by_pld, budget, progress)
    epsilon, order = epsilon[of_account], order[of_account]
    for run in state.runs_of(unit):
        if run.gave_back:
            _at_least_the_plan(state, run, epsilon, order, who, by)
    return epsilon, order


def _at_least_the_plan(
    state: State,
    run: Run,
    epsilon: FloatArray,
    order: FloatArray,
    who: IntArray | slice,
    by: str,
) -> None:
    """What a run that ended early gave back is free, but when it ended may depend on its results:
    as a statement about what was released, only its plan as a whole holds.
    """
    accounts = state.accounts[run.unit]
    place = np.full(len(accounts), -1, dtype=np.int64)
    place[who] = np.arange(epsilon.size)
    spends = run.mechanisms(held=False).busy()[run.of_class]  # a record may have rested until then
    mine = np.flatnonzero((place[run.accounts] >= 0) & spends)
    delta = accounts.delta[run.accounts[mine]]
    first, of_member = distinct_rows(run.of_class[mine], delta)
    whole = run.mechanisms(held=False, whole=True).take(run.of_class[mine[first]])
    by_pld = np.full(first.size, by != "quick" and (by == "pld" or run.accountant != "rdp"))
    least, at = epsilons(whole, delta[first], by_pld, np.full(first.size, np.inf))
    rows = place[run.accounts[mine]]
    higher = least[of_member] > epsilon[rows]
    epsilon[rows[higher]], order[rows[higher]] = least[of_member][higher], at[of_member][higher]


def _strictest(budget: FloatArray, of_account: IntArray, kinds: int) -> FloatArray:
    """The smallest budget of the accounts of each kind."""
    least = np.full(kinds, np.inf)
    np.minimum.at(least, of_account, budget)
    return least


def remaining(state: State, unit: str, past: Histories) -> FloatArray:
    """The largest epsilon that a new plan like the account's last could claim, on top of `past`.

    Such a plan spends evenly, with the last rate and the number of rounds of that plan; for
    records, it is one unsampled release. An account without a plan so far has its whole budget.
    """
    accounts = state.accounts[unit]
    rate, rounds = np.ones(len(accounts)), np.ones(len(accounts), dtype=np.int64)
    started = np.zeros(len(accounts), dtype=bool)
    for run in state.runs_of(unit):
        started[run.accounts] = True
        if unit == "client" and not run.is_tune:
            rate[run.accounts], rounds[run.accounts] = run.rate[-1][run.of_class], run.planned
    left = accounts.budget.copy()
    who = np.flatnonzero(started)
    budget = accounts.budget if who.size <= _VERY_MANY else rounded_down(accounts.budget)
    first, of_account = distinct_rows(
        *(column[who] for column in (past.of_account, budget, accounts.delta, rate, rounds))
    )
    one = who[first]  # an account of each kind
    found = np.zeros(one.size)
    orders = (
        WHOLE_ORDERS
        if past.mechanisms.whole().any()
        else ORDERS
        if one.size <= _MANY
        else tuple(sorted({*ORDERS[::4], *accounts.order[accounts.order > 0].tolist()}))
    )
    curves = past.mechanisms.curves(orders)
    kinds, of_one = distinct_rows(rate[one], rounds[one])
    for kind in range(kinds.size):
        alike = np.flatnonzero(of_one == kind)
        even, repeats = curve(float(rate[one[alike[0]]]), orders), int(rounds[one[alike[0]]])
        for rows in np.split(alike, range(_ROWS, alike.size, _ROWS)):
            mine = one[rows]
            found[rows] = _claim(
                curves[past.of_account[mine]], budget[mine], accounts.delta[mine], even, repeats
            )
    left[who] = found[of_account]
    return left


def rounded_down(budget: FloatArray) -> FloatArray:
    """Budgets lowered by at most 0.1%, so that a million become a few thousand different ones.

    >>> rounded_down(np.array([1.0, 2.0, 2.0005])).round(4).tolist()
    [1.0, 1.9997, 1.9997]
    """
    return np.minimum(budget, np.exp(np.floor(np.log(budget) / 5e-4) * 5e-4 - 1e-9))


def _claim(
    past: FloatArray, budget: FloatArray, delta: FloatArray, even: Curve, rounds: int
) -> FloatArray:
    """What a plan of `rounds` equal rounds alone claims if it uses up each budget."""
    cost = conversion_costs(delta, even.orders)
    already = past + cost
    out = np.zeros(budget.size)
    rows = np.flatnonzero(budget * (1 - _FULL) > already.min(axis=1))
    if rows.size:
        start = first_guess(budget[rows], float(delta.min()), even.rate, rounds)
        found = solve(
            even, float(rounds), already[rows], budget[rows] * (1 - _FULL), start, tolerance=1e-6
        )
        alone = (rounds * even.rdp(found.log_noise) + cost[rows]).min(axis=1)
        usable = found.log_noise < np.log(NOISE_RANGE[1]) - 1e-9
        out[rows] = np.where(usable, np.clip(alone, 0.0, budget[rows]), 0.0)
    return out


@dataclass(frozen=True, eq=False)
class Fit:
    """How a run fits its accounts."""

    over: IntArray  # positions in `run.accounts` of those whose budget it would exceed
    alone: bool  # whether some have room for it only as their one run


def fit(state: State, run: Run, *, joining: bool, hint: FloatArray | None = None) -> Fit:
    """Whose budget the run would exceed by its end, counting what open runs hold.

    `joining` means that the run is not in the state yet. `hint` is an order for each class to try
    first on accounts that have none: any order at which the total fits will do.
    """
    accounts = state.accounts[run.unit]
    before = histories(state, run.unit, held=True, without=None if joining else run.id)
    history, budget, delta = (
        before.of_account[run.accounts],
        accounts.budget[run.accounts],
        accounts.delta[run.accounts],
    )
    first, of_account = distinct_rows(history, run.of_class, delta)
    past, own = (
        before.mechanisms.take(history[first]),
        run.mechanisms(held=True).take(run.of_class[first]),
    )
    total = Mechanisms.joined([past, own], first.size)
    by_pld = before.by_pld[history[first]] | (run.accountant != "rdp")
    least = _strictest(budget, of_account, first.size)
    at = None if hint is None else hint[run.of_class[first]]
    over = ~(_readings(total, least, delta[first], by_pld, at)[of_account] <= budget)
    over &= own.busy()[of_account]  # a record that rests adds nothing, whatever it has spent
    # as the only run of its account, it is read by its own accountant, at any order
    single = np.unique(of_account[over])
    single = single[(total.bound > 0)[single] & ~past.busy()[single] & (joining or run.alone)]
    free = total.take(single).bound_to(np.zeros(single.size))
    by_itself = np.full(first.size, np.inf)
    by_itself[single] = _readings(free, least[single], delta[first][single], by_pld[single], None)
    alone = over & (by_itself[of_account] <= budget)
    return Fit(np.flatnonzero(over & ~alone), bool(alone.any()))


def _readings(
    total: Mechanisms,
    budget: FloatArray,
    delta: FloatArray,
    by_pld: BoolArray,
    hint: FloatArray | None,
) -> FloatArray:
    """Epsilon of each history, or 0 where it is within its smallest `budget` by a hint."""
    fits = np.zeros(budget.size, dtype=bool)
    if hint is not None:
        order = np.clip(hint, ORDERS[0], ORDERS[-1])  # the hint of a plan by PLD is 0
        proves = (total.bound == 0) & (~total.whole() | (order == np.floor(order)))
        fits = proves & (total.rdp_at(order) + conversion_cost_at(order, delta) <= budget)
    rest, found = np.flatnonzero(~fits), np.zeros(budget.size)
    found[rest] = epsilons(total.take(rest), delta[rest], by_pld[rest], budget[rest])[0]
    return found
