"""What all entries add up to: who has which budget, which runs there are, what they have begun.

Guarantee: the state is a function of the entries alone. An entry that does not fit what came before
it (a round of an unknown run, a budget for an unknown client, a second registration) is refused as
damage, whoever wrote it.

An account is (project, unit, name): unrelated projects may share a ledger, and both may have a
client 1. What has no project is in the one without a name, "".

| entry | says |
|---|---|
| `ledger` | the first: format, id, and whether this is a simulation |
| `project` | a new project's name; entries about its accounts say which project they mean |
| `register` | names, lifetime budgets, the one delta of these accounts, and the order of each |
| `migrate` | all accounts of a ledger of format 1 get orders; with a reason |
| `change`, `withdraw` | new budgets, or names that no longer take part; with a reason |
| `open` | a run was admitted: accounts, their classes, each class's rates, noise and steps |
| `tune` | a private tune was admitted and is spent: accounts, their classes, each class's curve |
| `reserve` | a round is about to be sampled: from here on every account of the run has spent it |
| `commit` | its release was stored; the SHA-256 of the release |
| `lost` | the round began, but there is no release; it stays spent |
| `replan` | the rounds not yet begun were replanned |
| `rows` | a commitment to the HMACs of the rows behind these accounts (`row_seals`) |
| `accept-rows` | the rows behind these accounts may be others from now on; with a reason |
| `keys` | the public keys of these clients' nodes, which are met for the first time |
| `rotate-key` | a client's node has a new key, and the old one is not used again; with a reason |
| `move` | the run's directory has a new place; it begins no further round in the old one |
| `close` | the run is over; what it held for rounds that never began is free again |
| `stop` | a run with a rule for that ended early; all of its rounds stay spent, unless it `frees` |

Since version 0.1, entries also tie the files of a run directory to the chain, by digests: `open`
and `replan` its first files, `reserve` the checkpoint that a round starts from, `commit` the file
of the release, `close` the last checkpoint and the model. `open` also has the directory's place.
Entries without these are read as before.

In a ledger of format 1 accounts have no order: that is 0. What they have spent was read at the best
of all orders, or by PLD, which assumes that no plan was chosen by looking at earlier results.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedspend.accounting.mechanisms import Mechanisms
from fedspend.basics.arrays import BoolArray, FloatArray, IntArray
from fedspend.ledger.chain import START, Body, Damaged, Head

FORMAT = 2  # since then every account has an order, and runs are admitted by it
FINISHED, STOPPED_EARLY = "finished", "stopped early by its own rule"  # why a run ends by itself
UNITS = ("client", "record")
# Cells of a table in an entry: at most 2 GiB, and no more than a plan of clients can have, or than
# `ROUNDS` for each class that is listed: a short entry must not fill the memory.
MOST_CELLS, MOST_MADE, ROUNDS = 1 << 28, 50_000_000, 1000


@dataclass(eq=False)
class Accounts:
    """The accounts of one kind of unit, numbered in the order of registration."""

    names: list[str] = field(default_factory=list)
    number: dict[str, int] = field(default_factory=dict)
    budget: FloatArray = field(default_factory=lambda: np.zeros(0))
    delta: FloatArray = field(default_factory=lambda: np.zeros(0))
    # the Rényi order at which the account admits runs; 0 for those of a ledger without orders
    order: FloatArray = field(default_factory=lambda: np.zeros(0))
    registered: FloatArray = field(default_factory=lambda: np.zeros(0))  # the first budget
    withdrawn: BoolArray = field(default_factory=lambda: np.zeros(0, dtype=bool))
    # who holds the rows that were sealed for an account, by its name; and each holder's last seal
    rows_of: dict[str, str] = field(default_factory=dict)
    row_seals: dict[str, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.names)

    def add(
        self, names: list[str], budgets: FloatArray, delta: float, orders: FloatArray | None = None
    ) -> None:
        if orders is None:
            orders = np.zeros(len(names))
        else:
            require(orders.size == len(names) and bool(np.all(np.isfinite(orders) & (orders > 1))))
        fresh = dict(zip(names, range(len(self), len(self) + len(names)), strict=True))
        require(len(fresh) == len(names) == budgets.size and not fresh.keys() & self.number.keys())
        require(bool(np.all(np.isfinite(budgets) & (budgets > 0))) and 0 < delta < 1)
        self.names.extend(names)
        self.number.update(fresh)
        self.budget = np.append(self.budget, budgets)
        self.delta = np.append(self.delta, np.full(len(names), delta))
        self.order = np.append(self.order, orders)
        self.registered = np.append(self.registered, budgets)
        self.withdrawn = np.append(self.withdrawn, np.zeros(len(names), dtype=bool))

    def numbers(self, names: list[str]) -> IntArray:
        return np.array([self.number[name] for name in names], dtype=np.int64)

    def first(self, count: int) -> Accounts:
        """The first `count` accounts, without seals."""
        names = self.names[:count]
        return Accounts(
            names,
            {name: number for number, name in enumerate(names)},
            self.budget[:count],
            self.delta[:count],
            self.order[:count],
            self.registered[:count],
            self.withdrawn[:count],
        )


@dataclass(frozen=True)
class Place:
    """Where a run directory is: its path, and the number that its file system gave it.

    A copy has another number even if it takes the path of the original.
    """

    folder: str
    inode: int


@dataclass(eq=False)
class Run:
    """A run that was admitted: what it may spend, and how far it has got."""

    id: str
    unit: str
    about: dict[str, Any]  # plan hash, method, folder, time
    accountant: str
    accounts: IntArray  # numbers of the accounts that take part
    of_class: IntArray  # and the class of each
    rate: FloatArray  # (rounds, classes)
    noise: FloatArray
    client_rate: float
    steps: FloatArray  # (rounds, classes); 0 where the rate is 0
    discrete: bool  # discrete noise of version 0.1: read at whole orders only
    rounds: dict[int, str] = field(default_factory=dict)  # begun: reserved, committed or lost
    releases: dict[int, str] = field(default_factory=dict)
    closed: str | None = None  # the reason
    stops: bool = False  # it has a rule by which it may end early
    stopped: bool = False  # and has: rounds that never began are spent, too
    grid_steps: int | None = None  # discrete noise: `noise` is what it counts for
    disturbed: bool = False  # a budget was lowered or a client withdrew since it was admitted
    by_order: bool = False  # it was admitted to accounts that have orders
    # it fits some of its accounts only as their one run, which its own accountant reads as a whole:
    # all of its rounds stay spent once it has begun, and it is not replanned
    alone: bool = False
    project: str = ""
    place: Place | None = None  # of the run directory; None: version 0.1 did not say
    # SHA-256 of what the run directory holds, as far as it was recorded
    files: dict[str, str] = field(default_factory=dict)  # of its first files, by name
    states: dict[int, str] = field(default_factory=dict)  # of the checkpoint a round started from
    kept: dict[int, str] = field(default_factory=dict)  # of the file of a round's release
    ending: dict[str, str] = field(default_factory=dict)  # of the last checkpoint and the model
    # A private tune has no rounds but a Rényi curve for each class, (classes, orders), spent whole
    # when it is admitted.
    curves: FloatArray | None = None
    orders: FloatArray = field(default_factory=lambda: np.zeros(0))  # ascending

    @property
    def planned(self) -> int:
        return int(self.noise.shape[0])

    @property
    def next_round(self) -> int:
        """The first round not yet begun; rounds begin in order."""
        return len(self.rounds)

    @property
    def status(self) -> str:
        return "open" if self.closed is None else "closed"

    @property
    def stopped_itself(self) -> bool:
        """Whether its own rule has ended it, and not a person."""
        return self.stopped and self.closed == STOPPED_EARLY

    @property
    def keeps_all(self) -> bool:
        """Whether all of its rounds stay spent if it is ended now: nobody may choose by its results
        what it costs, unless the accounts' orders allow for that.
        """
        if not 0 < self.next_round < self.planned:
            return False
        return self.alone if self.by_order else self.stops

    @property
    def is_tune(self) -> bool:
        return self.curves is not None

    def begins_like(self, other: Run) -> bool:
        """Whether another run's tables agree with this one's on every round begun here."""
        begun = slice(0, self.next_round)
        return all(
            np.array_equal(
                getattr(other, name)[begun][:, other.of_class],
                getattr(self, name)[begun][:, self.of_class],
            )
            for name in ("rate", "noise", "steps")
        )

    @property
    def frees_nothing(self) -> bool:
        """Whether it is over, and the rounds that it left out stay spent."""
        if self.closed is None:
            return False
        if not self.by_order:
            return self.stopped
        return self.alone and 0 < self.next_round < self.planned

    @property
    def gave_back(self) -> bool:
        """Whether it ended early, and the rounds that it left out are free again by the accounts'
        orders.
        """
        early = self.closed is not None and 0 < self.next_round < self.planned
        return early and self.by_order and not self.alone

    def charged(self, held: bool, whole: bool = False) -> int:
        """How many rounds count as spent; with `held`, also those that it may still spend; with
        `whole`, also those that it gave back.
        """
        if self.closed is None:
            return self.planned if held else self.next_round
        return self.planned if self.frees_nothing or (whole and self.gave_back) else self.next_round

    def of_first(self, count: int) -> Run:
        """What the run is to the first `count` accounts alone."""
        mine = self.accounts < count
        classes, of_class = np.unique(self.of_class[mine], return_inverse=True)
        return replace(
            self,
            accounts=self.accounts[mine],
            of_class=of_class,
            rate=self.rate[:, classes],
            noise=self.noise[:, classes],
            steps=self.steps[:, classes],
            curves=None if self.curves is None else self.curves[classes],
        )

    def mechanisms(self, held: bool, whole: bool = False) -> Mechanisms:
        """What each class has spent, as one history; `held` and `whole` are those of `charged`."""
        if self.curves is not None:
            return Mechanisms.of_tunes(self.orders, self.curves)
        upto = self.charged(held, whole)
        return Mechanisms.of_schedules(
            self.noise[:upto], self.rate[:upto], self.client_rate, self.steps[:upto], self.discrete
        )


def _no_accounts() -> dict[str, Accounts]:
    return {unit: Accounts() for unit in UNITS}


@dataclass(eq=False)
class State:
    """What the first `entries` entries add up to, as one `project` sees it."""

    id: str = ""
    simulation: bool = False
    by_order: bool = False  # every account has an order
    entries: int = 0
    hash: bytes = START
    project: str = ""  # whose accounts are `accounts`, and whose runs `runs_of` gives
    by_project: dict[str, dict[str, Accounts]] = field(default_factory=lambda: {"": _no_accounts()})
    runs: dict[str, Run] = field(default_factory=dict)  # of all projects
    # by project and client, the public keys of its node, the one that counts last
    node_keys: dict[str, dict[str, list[str]]] = field(default_factory=dict)

    @property
    def keys(self) -> dict[str, list[str]]:
        """The project's clients' node keys."""
        return self.node_keys.get(self.project, {})

    @property
    def head(self) -> Head:
        return Head(self.id, self.entries, self.hash.hex())

    @property
    def accounts(self) -> dict[str, Accounts]:
        """The project's accounts by unit; none if the ledger does not know the project yet."""
        return self.by_project.get(self.project) or _no_accounts()

    @property
    def projects(self) -> list[str]:
        """The names of all projects, in the order of their first entries."""
        return [name for name in self.by_project if name]

    def of(self, project: str) -> State:
        """The same entries, as another project sees them."""
        return replace(self, project=project)

    def of_first(self, unit: str, count: int) -> State:
        """What these entries say about the first `count` accounts of a unit: enough for balances,
        which depend on nobody else's account.
        """
        few = {**self.accounts, unit: self.accounts[unit].first(count)}
        runs = {run.id: run.of_first(count) for run in self.runs_of(unit)}
        return replace(self, by_project={**self.by_project, self.project: few}, runs=runs)

    def runs_of(self, unit: str) -> list[Run]:
        """The project's runs on this kind of account."""
        return [
            run for run in self.runs.values() if run.unit == unit and run.project == self.project
        ]

    def apply(self, number: int, body: Body, hash: bytes) -> None:
        """Add one entry."""
        try:
            require((number == 1) == (body["kind"] == "ledger"))
            _KINDS[body["kind"]](self, body)
        except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError):
            raise Damaged(
                f"the ledger is damaged: entry {number} does not fit the entries before it"
            ) from None
        self.entries, self.hash = number, hash


def require(good: bool) -> None:
    if not good:
        raise ValueError


def _begin(state: State, body: Body) -> None:
    require(
        type(body["format"]) is int
        and 1 <= body["format"] <= FORMAT
        and isinstance(body["ledger"], str)
        and isinstance(body["simulation"], bool)
    )
    state.id, state.simulation = body["ledger"], body["simulation"]
    state.by_order = body["format"] >= 2


def _project(state: State, body: Body) -> None:
    name = body["name"]
    require(isinstance(name, str) and name != "" and name not in state.by_project)
    state.by_project[name] = _no_accounts()


def _accounts(state: State, body: Body) -> Accounts:
    """The accounts that an entry is about."""
    return state.by_project[body.get("project", "")][body["unit"]]


def _register(state: State, body: Body) -> None:
    require(all(isinstance(name, str) and name for name in body["names"]))
    require(("orders" in body) is state.by_order)
    orders = numbers(body["orders"]) if state.by_order else None
    _accounts(state, body).add(
        body["names"], numbers(body["budgets"]), float(body["delta"]), orders
    )


def _migrate(state: State, body: Body) -> None:
    """From here on every account has the order that its first budget would have given it."""
    require(not state.by_order and isinstance(body["reason"], str))
    for project, units in state.by_project.items():
        for unit, accounts in units.items():
            orders = numbers(body["orders"][project][unit])
            require(orders.size == len(accounts))
            require(bool(np.all(np.isfinite(orders) & (orders > 1))))
            accounts.order = orders
    state.by_order = True


def _change(state: State, body: Body) -> None:
    accounts, budgets = _accounts(state, body), numbers(body["budgets"])
    who = accounts.numbers(body["names"])
    require(budgets.size == who.size and bool(np.all(np.isfinite(budgets) & (budgets > 0))))
    if np.any(budgets < accounts.budget[who]):
        _disturb(state, body, who)
    accounts.budget[who] = budgets
    if "orders" in body:  # nothing was charged to these accounts yet
        orders = numbers(body["orders"])
        require(state.by_order and orders.size == who.size and not charged_to(state, body, who))
        require(bool(np.all(np.isfinite(orders) & (orders > 1))))
        accounts.order[who] = orders


def charged_to(state: State, body: Body, who: IntArray) -> bool:
    """Whether a run was ever admitted to any of these accounts."""
    runs = state.of(body.get("project", "")).runs_of(body["unit"])
    return any(bool(np.isin(who, run.accounts).any()) for run in runs)


def _withdraw(state: State, body: Body) -> None:
    accounts = _accounts(state, body)
    who = accounts.numbers(body["names"])
    accounts.withdrawn[who] = True
    _disturb(state, body, who)


def _rows(state: State, body: Body) -> None:
    accounts, names = _accounts(state, body), body["names"]
    holder, seal = body["holder"], body["seal"]
    require(isinstance(holder, str) and isinstance(seal, str) and len(names) > 0)
    accounts.numbers(names)
    accounts.rows_of.update(dict.fromkeys(names, holder))
    accounts.row_seals[holder] = seal


def _accept_rows(state: State, body: Body) -> None:
    accounts = _accounts(state, body)
    accounts.numbers(body["names"])
    for name in body["names"]:
        accounts.rows_of.pop(name, None)


def _keys(state: State, body: Body) -> None:
    known = state.node_keys.setdefault(body.get("project", ""), {})
    require(len(body["names"]) > 0)
    for name, key in zip(body["names"], body["keys"], strict=True):
        _new_key(known, name, key)
        require(name not in known)
        known[name] = [key]


def _rotate_key(state: State, body: Body) -> None:
    known = state.node_keys[body.get("project", "")]
    (name,) = body["names"]
    _new_key(known, name, body["key"])
    known[name].append(body["key"])


def _new_key(known: dict[str, list[str]], name: Any, key: Any) -> None:
    """No key comes twice: neither another client's, nor one that was given up."""
    require(isinstance(name, str) and name != "" and isinstance(key, str) and key != "")
    require(not any(key in keys for keys in known.values()))


def _disturb(state: State, body: Body, who: IntArray) -> None:
    for run in state.of(body.get("project", "")).runs_of(body["unit"]):
        if run.closed is None and np.isin(who, run.accounts).any():
            run.disturbed = True


def _open(state: State, body: Body) -> None:
    accounts = _accounts(state, body)
    who = from_ranges(body["accounts"], len(accounts))
    of_class = np.array(body["classes"], dtype=np.int64)
    rate, noise = table(body["rate"], rest=True), table(body["noise"])
    require(
        body["run"] not in state.runs
        and who.size == of_class.size > 0
        and rate.shape == noise.shape
    )
    require(
        bool(
            who.min() >= 0
            and who.max() < len(accounts)
            and of_class.min() >= 0
            and of_class.max() < noise.shape[1]
        )
    )
    require(
        np.unique(who).size == who.size
        and 0 < body["client_rate"] <= 1
        and isinstance(body["discrete"], bool)
        and (body.get("grid_steps") is None or type(body["grid_steps"]) is int)
        and isinstance(body.get("stops", False), bool)
        and isinstance(body.get("alone", False), bool)
    )
    state.runs[body["run"]] = Run(
        id=body["run"],
        unit=body["unit"],
        about={name: body.get(name) for name in ("plan", "method", "folder", "time")},
        accountant=body["accountant"],
        accounts=who,
        of_class=of_class,
        rate=rate,
        noise=noise,
        client_rate=float(body["client_rate"]),
        steps=read_steps(body["steps"], rate, float(body["client_rate"])),
        discrete=body["discrete"],
        grid_steps=body.get("grid_steps"),
        stops=body.get("stops", False),
        by_order=state.by_order,
        alone=body.get("alone", False),
        project=body.get("project", ""),
        place=_place(body) if "inode" in body else None,
        files=_digests(body, "files"),
    )


def _tune(state: State, body: Body) -> None:
    accounts = _accounts(state, body)
    who = from_ranges(body["accounts"], len(accounts))
    of_class, orders = np.array(body["classes"], dtype=np.int64), numbers(body["orders"])
    require(0 < len(body["curves"]) * orders.size <= MOST_CELLS)
    curves = np.stack([numbers(curve) for curve in body["curves"]])
    require(
        body["run"] not in state.runs
        and who.size == of_class.size > 0
        and np.unique(who).size == who.size
        and curves.shape[1] == orders.size
    )
    require(
        bool(
            who.min() >= 0
            and who.max() < len(accounts)
            and of_class.min() >= 0
            and of_class.max() < len(curves)
        )
    )
    # anything else would not be a curve that can be read at the next higher order
    require(bool(orders[0] > 1 and np.isfinite(orders[-1]) and np.all(np.diff(orders) > 0)))
    require(bool(np.all(np.isfinite(curves) & (curves >= 0)) and np.all(np.diff(curves) >= 0)))
    nothing = np.zeros((0, len(curves)))
    state.runs[body["run"]] = Run(
        id=body["run"],
        unit=body["unit"],
        about={name: body.get(name) for name in ("plan", "method", "folder", "time")},
        accountant="rdp",
        accounts=who,
        of_class=of_class,
        rate=nothing,
        noise=nothing,
        client_rate=1.0,
        steps=nothing,
        discrete=False,
        by_order=state.by_order,
        project=body.get("project", ""),
        place=_place(body) if "inode" in body else None,
        files=_digests(body, "files"),
        curves=curves,
        orders=orders,
    )


def _place(body: Body) -> Place:
    require(isinstance(body["folder"], str) and type(body["inode"]) is int)
    return Place(body["folder"], body["inode"])


def _digests(body: Body, name: str) -> dict[str, str]:
    found = body.get(name, {})
    require(isinstance(found, dict) and all(isinstance(one, str) for one in found.values()))
    return dict(found)


def _move(state: State, body: Body) -> None:
    run = open_run(state, body)
    run.place = _place(body)
    run.about["folder"] = body["folder"]


def _reserve(state: State, body: Body) -> None:
    run = open_run(state, body)
    require(body["round"] == run.next_round < run.planned)
    run.rounds[body["round"]] = "reserved"
    if "state" in body:
        require(isinstance(body["state"], str))
        run.states[body["round"]] = body["state"]


def _commit(state: State, body: Body) -> None:
    run = open_run(state, body)
    require(run.rounds[body["round"]] == "reserved" and isinstance(body["release"], str))
    run.rounds[body["round"]], run.releases[body["round"]] = "committed", body["release"]
    if "file" in body:
        require(isinstance(body["file"], str))
        run.kept[body["round"]] = body["file"]


def _lost(state: State, body: Body) -> None:
    run = open_run(state, body)
    require(run.rounds[body["round"]] == "reserved")
    run.rounds[body["round"]] = "lost"


def _replan(state: State, body: Body) -> None:
    """New classes for the rounds to come; rounds already begun must stay the same."""
    run = open_run(state, body)
    require(not run.is_tune and not run.alone)
    of_class = np.array(body["classes"], dtype=np.int64)
    rate, noise = table(body["rate"], rest=True), table(body["noise"])
    require(
        of_class.size == run.accounts.size
        and rate.shape == noise.shape
        and noise.shape[0] >= run.next_round
    )
    require(bool(of_class.min() >= 0 and of_class.max() < noise.shape[1]))
    steps = read_steps(
        body["steps"] if "steps" in body else max(1, int(run.steps.max())), rate, run.client_rate
    )
    new = replace(run, rate=rate, noise=noise, steps=steps, of_class=of_class)
    require(run.begins_like(new))
    run.rate, run.noise, run.steps, run.of_class = rate, noise, steps, of_class
    run.about["plan"], run.files = body["plan"], _digests(body, "files")


def _close(state: State, body: Body) -> None:
    run = open_run(state, body)
    run.closed, run.ending = str(body["reason"]), _digests(body, "ending")


def _stop(state: State, body: Body) -> None:
    run = open_run(state, body)
    require(not run.is_tune and body.get("frees", False) is (run.by_order and not run.alone))
    run.closed, run.ending, run.stopped = stopped_because(body), _digests(body, "ending"), True


def stopped_because(body: Body) -> str:
    """By its own rule, unless a person ended it and said why."""
    return str(body.get("reason", STOPPED_EARLY))


def open_run(state: State, body: Body) -> Run:
    run = state.runs[body["run"]]
    require(run.closed is None)
    return run


_KINDS = {
    "ledger": _begin,
    "project": _project,
    "register": _register,
    "migrate": _migrate,
    "change": _change,
    "withdraw": _withdraw,
    "rows": _rows,
    "accept-rows": _accept_rows,
    "keys": _keys,
    "rotate-key": _rotate_key,
    "open": _open,
    "tune": _tune,
    "reserve": _reserve,
    "commit": _commit,
    "lost": _lost,
    "replan": _replan,
    "move": _move,
    "close": _close,
    "stop": _stop,
}


# --- how arrays are stored in entries ---


def numbers(values: Any) -> FloatArray:
    require(isinstance(values, list))
    return np.array(values, dtype=np.float64).reshape(len(values))


def table(columns: Any, rest: bool = False) -> FloatArray:
    """A table (rounds, classes), stored class by class.

    A class that never changes is stored as {"all": value, "rounds": how many}. With `rest`, values
    may be 0: a record may rest in a round.
    """
    # a forged entry must not fill the memory
    lengths = [column["rounds"] if isinstance(column, dict) else len(column) for column in columns]
    require(all(type(length) is int and length >= 0 for length in lengths))
    require(sum(lengths) <= min(MOST_CELLS, max(MOST_MADE, ROUNDS * len(lengths))))
    made = [
        np.full(column["rounds"], column["all"]) if isinstance(column, dict) else numbers(column)
        for column in columns
    ]
    values = np.stack(made, axis=1).astype(np.float64, copy=False)
    require(bool(np.all(np.isfinite(values) & ((values > 0) | (rest & (values == 0))))))
    return values


def read_steps(stored: Any, rate: FloatArray, client_rate: float) -> FloatArray:
    """Steps as (rounds, classes), from one number or from a table.

    A fractional step is a Gaussian on a short gradient; it cannot be sampled.
    """
    if isinstance(stored, list):
        steps = table(stored, rest=True)
        require(steps.shape == rate.shape and bool(np.all((steps > 0) == (rate > 0))))
        require(bool(np.all((steps == np.floor(steps)) | ((rate == 1) & (client_rate == 1)))))
        return steps
    require(type(stored) is int and stored >= 1)
    return steps_table(stored, rate)


def steps_table(steps: int | FloatArray, rate: FloatArray) -> FloatArray:
    """Steps as (rounds, classes), 0 where nothing is sampled."""
    return np.where(rate > 0, np.asarray(steps, dtype=np.float64), 0.0)


def to_table(values: FloatArray) -> list[Any]:
    constant = np.all(values == values[:1], axis=0)
    rounds = values.shape[0]
    return [
        {"all": float(column[0]), "rounds": rounds} if same else column.tolist()
        for column, same in zip(values.T, constant, strict=True)
    ]


def to_ranges(numbers: IntArray) -> list[list[int]]:
    """Consecutive numbers as [first, how many]."""
    breaks = np.flatnonzero(np.diff(numbers) != 1) + 1
    return [[int(part[0]), int(part.size)] for part in np.split(numbers, breaks)]


def from_ranges(ranges: Any, most: int) -> IntArray:
    """The numbers in `to_ranges`, if there are at most this many."""
    parts = []
    for first, many in ranges:
        require(first >= 0 and 1 <= many <= most)
        most -= many
        parts.append(np.arange(first, first + many, dtype=np.int64))
    return np.concatenate(parts)
