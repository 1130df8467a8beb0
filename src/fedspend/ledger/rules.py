"""What the ledger refuses, and why: pure functions of a state and a request."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspend.accounting.rdp import ORDERS
from fedspend.basics.arrays import BoolArray, FloatArray, IntArray
from fedspend.basics.choices import near
from fedspend.budgets.identity import (
    hint_alike,
    look,
    normal,
    plain,
    read_ids,
    refuse_lookalikes,
)
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger.chain import Body, Head
from fedspend.ledger.orders import default_orders, leaves_room
from fedspend.ledger.spending import fit
from fedspend.ledger.state import (
    UNITS,
    Accounts,
    Place,
    Run,
    State,
    steps_table,
    to_ranges,
    to_table,
)
from fedspend.stored.files import HEAD_SUFFIX

if TYPE_CHECKING:
    from fedspend.planning.protocol import AnyPlan

MOST_COMPARED = 10_000  # names that a misspelt one is compared with
APPROVED = "slice.json"  # the first file of a run in a client's own ledger: what it has approved


@dataclass(frozen=True, eq=False)
class Proposal:
    """What a run wants to spend: each class's rate and noise by round, and each name's class."""

    names: tuple[str, ...]
    budgets: FloatArray
    delta: float
    of_class: IntArray
    rate: FloatArray  # (rounds, classes)
    noise: FloatArray
    plan: str  # hash of the plan
    method: str = ""
    accountant: str = "rdp"
    order: FloatArray | None = None  # (classes,) the order at which the claim is read
    unit: str = "client"
    client_rate: float = 1.0
    steps: int | FloatArray = 1  # in a round: the same for all, or (rounds, classes)
    discrete: bool = False  # of version 0.1: read at whole orders
    # discrete noise since then: `noise` is continuous noise that costs no less, as long as what is
    # drawn has so many steps of its grid
    grid_steps: int | None = None
    # a private tune has no rounds (`rate` and `noise` are empty), but Rényi curves that are spent
    # at once: (classes, orders)
    curves: FloatArray | None = None
    orders: FloatArray | None = None
    # the accounts are of this run alone, and opened with it
    own: bool = False
    stops: bool = False  # the run has a rule by which it may end early

    @staticmethod
    def of_plan(plan: AnyPlan) -> Proposal:
        return plan.proposal()

    def as_run(self, id: str, accounts: IntArray) -> Run:
        return Run(
            id=id,
            unit=self.unit,
            about={"plan": self.plan},
            accountant=self.accountant,
            accounts=accounts,
            of_class=self.of_class,
            rate=self.rate,
            noise=self.noise,
            client_rate=self.client_rate,
            steps=steps_table(self.steps, self.rate),
            discrete=self.discrete,
            grid_steps=self.grid_steps,
            curves=self.curves,
            orders=np.zeros(0) if self.orders is None else self.orders,
            stops=self.stops,
        )

    @property
    def kind(self) -> str:
        """The kind of the entry that admits the run."""
        return "open" if self.curves is None else "tune"

    @property
    def busy(self) -> BoolArray:
        """Which members can be sampled at all."""
        if self.curves is not None:
            return np.ones(self.of_class.size, dtype=bool)
        return busy(self.rate, self.of_class)

    def account_orders(self) -> FloatArray:
        """For accounts that the run opens: the order at which the plan is read, so that the run
        fits them by it.
        """
        spent = self.as_run("", np.zeros(0, dtype=np.int64)).mechanisms(held=True)
        delta = np.full(spent.histories, self.delta)
        order = spent.best(delta)[1] if self.order is None else np.asarray(self.order)
        order = np.where(order > 0, order, spent.best(delta)[1])[self.of_class]
        usable = spent.busy()[self.of_class] & np.isin(order, ORDERS)
        orders = default_orders(self.budgets, self.delta)
        return np.where(usable & leaves_room(order, self.budgets, self.delta), order, orders)

    def registration(self, by_order: bool) -> Body:
        """The entry that opens its accounts."""
        body = {
            "kind": "register",
            "unit": self.unit,
            "delta": self.delta,
            "names": list(self.names),
            "budgets": self.budgets.tolist(),
        }
        return body | {"orders": self.account_orders().tolist()} if by_order else body

    def tables(self) -> Body:
        return {
            "plan": self.plan,
            "classes": self.of_class.tolist(),
            "rate": to_table(self.rate),
            "noise": to_table(self.noise),
            "steps": self.steps if isinstance(self.steps, int) else to_table(self.steps),
        }

    def opening(self, accounts: IntArray, alone: bool = False) -> Body:
        """What the entry that admits the run says of it."""
        if self.curves is not None and self.orders is not None:
            return {
                "unit": self.unit,
                "method": self.method,
                "plan": self.plan,
                "accounts": to_ranges(accounts),
                "classes": self.of_class.tolist(),
                "orders": self.orders.tolist(),
                "curves": self.curves.tolist(),
            }
        about = {"unit": self.unit, "method": self.method, "accountant": self.accountant}
        mechanism: Body = {"client_rate": self.client_rate, "discrete": self.discrete}
        if self.grid_steps is not None:
            mechanism["grid_steps"] = self.grid_steps
        if self.stops:
            mechanism["stops"] = True
        if alone:
            mechanism["alone"] = True
        return about | mechanism | {"accounts": to_ranges(accounts)} | self.tables()


# --- which project ---

# entries that say which accounts
OF_ACCOUNTS = (
    *("register", "change", "withdraw", "rows", "accept-rows", "open", "tune"),
    *("keys", "rotate-key"),
)


def project_name(name: str) -> str:
    """The name of a project in normal form; "" for none."""
    if name == "":
        return name
    return check_text("the project", read_ids([name], what="project")[0])


def refuse_like_projects(state: State) -> None:
    """A slip in a project's name must not open new accounts with full budgets."""
    asked = [state.project] if state.project else []
    read_ids(asked, what="project", known=state.projects, where="the ledger")


def refuse_second_accounts(state: State, unit: str, names: Sequence[str]) -> None:
    """Leaving a project out, or naming one, must not open new accounts with full budgets. In two
    named projects the same name may be two people: there, somebody has said so.
    """
    asked = {look(name): name for name in names}
    for other in [""] if state.project else state.projects:
        there = state.by_project[other][unit].number
        twice = next((name for name in there if look(name) in asked), None)
        if twice is None:
            continue
        own = asked[look(twice)]
        looks = "" if own == twice else f", which {own!r} looks like,"
        has, change, else_use = (
            (f"in project {other!r} of the ledger", f"name it with --project {other!r}", "project")
            if other
            else ("in the ledger, outside of projects", "drop --project", "name")
        )
        raise Refused(
            f"{unit} {twice!r}{looks} has an account {has}, and another one would hold all of its "
            f"budget anew; {change}, or, if it is someone else, use another {else_use} or ledger"
        )


def said_of(project: str, body: Body) -> Body:
    """The entry, marked as one about the accounts of `project`; unchanged without a project."""
    return body | {"project": project} if project and body["kind"] in OF_ACCOUNTS else body


def refuse_mixed(state: State, unit: str) -> None:
    """Client accounts and record accounts cannot pay for the same people.

    A run on clients also exposes their records, at a price that no record account is charged (a
    record can change its client's update by two clips, not one), and a run on records has no useful
    bound for a client as a whole.
    """
    other = next(name for name in UNITS if name != unit)
    if len(state.accounts[other]):
        where = f"project {state.project!r} of the ledger" if state.project else "the ledger"
        raise Refused(
            f"{where} has {other} accounts, which cannot pay for what a run on {unit}s gives away; "
            f"protect {other}s here, or, if they are other people, name another project or ledger"
        )


# --- who ---


def account_numbers(state: State, unit: str, names: Sequence[str]) -> IntArray:
    """The accounts of these names.

    A name from an older version is also found under its normal form.
    """
    accounts = state.accounts[check_unit(unit)]
    known: Mapping[str, int] = accounts.number
    if any(name not in known for name in names):
        known = (
            dict(zip(names_today(accounts), range(len(accounts)), strict=True)) | accounts.number
        )
    missing = next((name for name in names if name not in known), None)
    if missing is not None:
        meant = near(missing, known, "; ") if len(known) <= MOST_COMPARED else ""
        hint = hint_alike(missing, known) or meant
        raise InvalidInput(
            f"{unit} {missing!r} is not in the ledger{hint}"
            f"{' Otherwise' if hint.endswith('?') else ';'} register it first: fedspend ledger "
            "register"
        )
    return np.array([known[name] for name in names], dtype=np.int64)


def names_today(accounts: Accounts) -> list[str]:
    """All account names in today's normal form, or unchanged if two would become the same."""
    today = list(map(normal, accounts.names))
    return today if len(set(today)) == len(today) else accounts.names


def known_names(state: State, unit: str, names: Sequence[str]) -> list[str]:
    """The names of these accounts, as the ledger writes them."""
    accounts = state.accounts[check_unit(unit)]
    asked = [name if name in accounts.number else normal(name) for name in names]
    return [accounts.names[n] for n in account_numbers(state, unit, asked)]


def members(state: State, proposal: Proposal) -> IntArray:
    """Account numbers of the participants; refuses another delta, and anyone who has withdrawn."""
    accounts, who = (
        state.accounts[proposal.unit],
        account_numbers(state, proposal.unit, proposal.names),
    )
    other = np.flatnonzero(accounts.delta[who] != proposal.delta)
    if other.size:
        at = int(other[0])
        raise Refused(
            f"the plan is at delta {proposal.delta:g}, but {proposal.unit} {proposal.names[at]!r} "
            f"is registered at {accounts.delta[who[at]]:g}; a lifetime budget has one delta, so "
            "plan with that one"
        )
    refuse_withdrawn(state, proposal.unit, who[proposal.busy])
    return who


def busy(rate: FloatArray, of_class: IntArray) -> BoolArray:
    """Which members can be sampled in these rounds; at rate 0, a record spends nothing."""
    sampled: BoolArray = np.any(rate > 0, axis=0)
    return sampled[of_class]


def refuse_withdrawn(state: State, unit: str, who: IntArray) -> None:
    gone = who[state.accounts[unit].withdrawn[who]]
    if gone.size:
        raise Refused(
            f"{unit} {state.accounts[unit].names[gone[0]]!r} has withdrawn; close the run and plan "
            "without it"
        )


def refuse_known(state: State, unit: str, names: Sequence[str]) -> None:
    there = state.accounts[unit].number
    known = next((name for name in names if name in there), None)
    if known is not None:
        raise Refused(
            f"{unit} {known!r} is already registered; to change its budget: fedspend ledger change"
        )


# --- by which key ---


def refuse_other_keys(known: Mapping[str, list[str]], keys: Mapping[str, str]) -> None:
    """A client's node keeps its key, unless it was rotated; and no key comes back."""
    for client, key in keys.items():
        of_client = known.get(client, [])
        if of_client and key == of_client[-1]:
            continue
        owner = next((name for name, past in known.items() if key in past), None)
        if owner is not None:
            was = "has given up" if key in known[owner][:-1] else "has"
            raise Refused(
                f"engine.keys: client {client!r} is listed with a key that client {owner!r} {was}; "
                "give it one of its own"
            )
        if of_client:
            raise Refused(
                f"engine.keys: client {client!r} has another key than the ledger knows; if it was "
                "rotated, enter that first: fedspend ledger rotate-key"
            )


def refuse_no_rotation(known: Mapping[str, list[str]], client: str, old: str, new: str) -> None:
    """A rotation is from the key that counts to one that nobody has had."""
    if client not in known:
        raise Refused(
            f"the ledger knows no key of client {client!r}: there is none to rotate; a run enters "
            "the keys that it begins with"
        )
    if known[client][-1] != old:
        raise Refused(
            f"the rotation is from another key than the one that client {client!r} has in the "
            "ledger"
        )
    if any(new in past for past in known.values()):
        raise Refused("the new key was used before, by this client or another; make a fresh one")


# --- how much ---


def refuse_overdrawn(
    state: State, run: Run, *, joining: bool, hint: FloatArray | None = None
) -> bool:
    """Refuse a run that some budget cannot pay for; gives whether it fits only as the one run of
    some account.
    """
    found = fit(state, run, joining=joining, hint=hint)
    over = found.over
    if over.size:
        accounts, first = state.accounts[run.unit], int(run.accounts[over[0]])
        others = f" and {over.size - 1} more" if over.size > 1 else ""
        who, budget = (
            f"{run.unit} {accounts.names[first]!r}{others}",
            f"lifetime budget of {accounts.budget[first]:g}",
        )
        if not joining:
            raise Refused(
                f"{who} would exceed the {budget} if run {run.id} went on; close it (fedspend "
                f"ledger close-run {run.id}) and plan with what is left"
            )
        raise Refused(
            f"{who} would exceed the {budget}, counting what is spent and what open runs hold; "
            "nothing was changed. See fedspend ledger balance; plan with what is left "
            "(--remaining), or leave out those with too little left (ledger.exhausted=leave-out)"
        )
    return found.alone


def refuse_below_spent(
    unit: str, names: Sequence[str], budgets: FloatArray, spent: FloatArray
) -> None:
    low = np.flatnonzero(~(budgets >= spent))
    if low.size:
        at = int(low[0])
        raise Refused(
            f"{unit} {names[at]!r} has already spent {spent[at]:.4g}, so its budget cannot become "
            f"{budgets[at]:g}; to stop all further spending: fedspend ledger withdraw"
        )


def orders_of(budgets: FloatArray, deltas: FloatArray) -> list[float]:
    """The default order of accounts with these budgets, at their deltas."""
    orders = np.zeros(budgets.size)
    for delta in np.unique(deltas):
        mine = deltas == delta
        orders[mine] = default_orders(budgets[mine], float(delta))
    return orders.tolist()


# --- which run ---


def find_run(state: State, run: str) -> Run:
    found = state.runs.get(run)
    if found is None:
        raise InvalidInput(
            f"there is no run {run!r} in the ledger; fedspend ledger history lists all runs"
        )
    if found.project != state.project:
        belongs = f"to project {found.project!r}" if found.project else "to no project"
        change = f"name it with --project {found.project!r}" if found.project else "drop --project"
        raise InvalidInput(f"run {run!r} belongs {belongs}; {change}")
    return found


def open_run(state: State, run: str) -> Run:
    found = find_run(state, run)
    if found.closed is not None:
        raise Refused(f"run {run} was closed ({found.closed}); start a new one")
    return found


def refuse_tune(run: Run) -> None:
    """A tune is spent whole from its beginning: it has no rounds to begin or to replan."""
    if run.is_tune:
        raise Refused(
            f"run {run.id} is a private tune: it was charged as a whole and does not go on; start "
            "a new one"
        )


def refuse_elsewhere(run: Run, place: Place | None) -> None:
    """A run goes on in one place only. The place of a run of version 0.1 is not known, and what a
    person enters by hand has none.
    """
    if place is not None and run.place is not None and run.place != place:
        said = (
            f"in {run.place.folder}, and {place.folder} is a copy of it or it was moved"
            if run.place.folder != place.folder
            else f"in another directory that was at {place.folder} before, so this one is a copy"
        )
        raise Refused(
            f"run {run.id} is {said}; go on where it is, or, if it was moved, add --moved: it then "
            "cannot go on in its old place"
        )


def refuse_disturbed(state: State, run: Run, round: int) -> None:
    """A run whose clients withdrew, or lowered their budgets, may not be able to begin a round."""
    if run.disturbed:
        busy_ones = run.accounts[busy(run.rate[round:], run.of_class)]
        refuse_withdrawn(state, run.unit, busy_ones)
        refuse_overdrawn(state, run, joining=False)


def refuse_freeing(run: Run) -> None:
    """In a client's own ledger nothing is freed: rounds that it has not heard of may have begun."""
    if APPROVED in run.files:
        raise Refused(
            f"run {run.id} was approved by a node, which cannot know how many of its rounds took "
            "place; leave it with: fedspend node leave"
        )


def refuse_second_hand(state: State, run: str, round: int) -> None:
    if not state.simulation:
        raise Refused(
            f"round {round + 1} of run {run} was begun by another process; let that process "
            "finish, or stop it and use --resume"
        )


def refuse_replanning(run: Run) -> None:
    """What is planned after looking at releases must go through the accounts' filter."""
    if run.alone:
        raise Refused(
            f"run {run.id} fits its accounts only as it was planned (it is the one run that their "
            "budgets have room for, by its own accountant), so its rounds are not planned anew; "
            "drop --replan; a run that was planned with --remaining can be"
        )


def same_beginning(new: Run, old: Run) -> bool:
    """Whether two plans of a run agree on who takes part, the mechanism and every round begun.

    A plan by PLD is replanned by Rényi curves; the account goes on reading it by PLD, which is
    never higher.
    """
    alike = all(
        getattr(new, name) == getattr(old, name)
        for name in ("unit", "client_rate", "discrete", "grid_steps")
    )
    same = new.accountant in (old.accountant, "rdp")
    return alike and same and np.array_equal(new.accounts, old.accounts) and old.begins_like(new)


def check_kind(state: State, simulation: bool, location: str) -> None:
    if simulation != state.simulation:
        kept, asked = (
            ("simulated", "real (randomness os)")
            if state.simulation
            else ("real", "a simulation (randomness seeded)")
        )
        raise Refused(
            f"the ledger {location} keeps {kept} accounts, and this run is {asked}; use another "
            "ledger (--ledger, or ledger.location in the config)"
        )


# --- names and texts ---


def check_unit(unit: str) -> str:
    if unit not in UNITS:
        raise InvalidInput(f"unit must be one of {', '.join(UNITS)}; got {unit!r}")
    return unit


def new_names(names: Sequence[str], state: State, unit: str) -> list[str]:
    """New names in normal form; none may look like one that is already in the ledger."""
    if not len(names):
        raise InvalidInput("there is nobody to enter: give at least one name")
    ids = read_ids(names, what=unit, known=state.accounts[unit].number, where="the ledger")
    for name in ids:
        check_text("a name", name)
    return list(ids)


def refuse_alike(names: Sequence[str], unit: str) -> None:
    """Refuse two names of a plan that look alike; a plan's names are registered unchanged."""
    if not plain(names):
        refuse_lookalikes(names, names, unit, lambda _: "")


def check_names(names: Sequence[str]) -> list[str]:
    from fedspend.planning.plan import check_client_ids

    if not names:
        raise InvalidInput("there is nobody to enter: give at least one name")
    check_client_ids(names)
    for name in names:
        check_text("a name", name)
    return list(names)


def check_reason(reason: Any) -> str:
    if not (isinstance(reason, str) and reason.strip()):
        raise InvalidInput(
            "a reason is missing: say why in a few words, for example --reason 'asked by letter'"
        )
    return check_text("the reason", " ".join(reason.split()))


def check_text(what: str, text: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:
        raise InvalidInput(
            f"{what} holds bytes that are not text: {text!r}; write it in UTF-8"
        ) from None
    return text


def check_run_id(run: str) -> str:
    if not re.fullmatch(r"[0-9A-Za-z._-]{1,64}", run):
        raise InvalidInput(
            f"a run id must have 1 to 64 letters, digits, dots, dashes or underscores; got {run!r}"
        )
    return run


def head_beside(path: Path) -> Path:
    """Beside the file itself, by whichever link it is reached."""
    return Path(f"{path.resolve()}{HEAD_SUFFIX}")


def refuse_lost(path: Path) -> None:
    """Where there is no ledger at `path`: one that vanished is not replaced by an empty one, which
    would give every budget out again.
    """
    beside = head_beside(path)
    if beside.exists():
        head = Head.load(beside)
        raise Refused(
            f"the ledger {path} is gone, but {beside} has seen {head.entries} entries of it; "
            f"restore it, or remove {beside} to begin a new ledger"
        )
