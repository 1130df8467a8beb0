"""The ledger: every change is a checked entry, every reading is recomputed from the entries.

Guarantee: a run is admitted only if everything spent, everything held by open runs and the whole
new plan together stay within every lifetime budget; the check and the entry are one transaction, so
two runs cannot take the same budget. A round is spent from the moment it is reserved. A refusal
leaves the ledger as it was.
"""

from __future__ import annotations

import datetime
import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspend.accounting.calibration import check_epsilons
from fedspend.accounting.conversion import check_delta
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.basics.progress import OnProgress
from fedspend.basics.tables import Table
from fedspend.basics.words import counted
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import rules
from fedspend.ledger.chain import (
    START,
    Body,
    Damaged,
    Head,
    Row,
    follow,
    link,
    pack,
    parse,
    to_text,
)
from fedspend.ledger.orders import check_order, default_orders
from fedspend.ledger.row_seals import RowSeals, refuse_changed
from fedspend.ledger.rules import Proposal, said_of
from fedspend.ledger.spending import Balances, balances, fit, histories
from fedspend.ledger.state import FORMAT, Accounts, Place, Run, State, charged_to
from fedspend.ledger.storage import (
    MIGRATIONS,
    Storage,
    check_version,
    connect,
    is_url,
    may_hold_ledger,
    migrate,
    path_of,
)

if TYPE_CHECKING:
    from fedspend.report.drawing import Drawing

# Entries that say when a person did something. How long a round takes tells how many clients were
# sampled, so all others of a real ledger are dated to the day.
BY_PEOPLE = ("ledger", "change", "withdraw", "rotate-key", "migrate")
SHOWN = 12  # accounts in a notebook


class Ledger:
    """An open ledger, as one `project` sees it: its accounts and runs are those of the project.

    `state` is what the ledger said when last read; every write reads first. A project that the
    ledger does not know has no accounts; it is entered with the first of them.

    >>> from tempfile import TemporaryDirectory
    >>> with TemporaryDirectory() as folder:
    ...     with Ledger.create(f"{folder}/study.db", simulation=True) as ledger:
    ...         ledger.register(["north", "south"], [5.0, 10.0], delta=1e-5)
    ...         found = ledger.balances()
    >>> found.names, found.remaining.tolist()
    (['north', 'south'], [5.0, 10.0])

    `with Ledger.open("study.db") as ledger: plan(budgets, past=ledger.past(clients), ...)`
    """

    def __init__(self, storage: Storage, project: str = "") -> None:
        self._storage = storage
        self.state = State(project=project)

    # --- opening ---

    @classmethod
    def open(cls, location: str | Path, *, write: bool = False, project: str = "") -> Ledger:
        """Open an existing ledger, checking its whole chain."""
        project = rules.project_name(project)
        ledger = cls(connect(str(location), write=write), project)
        return ledger._ready(lambda: ledger._migrate() if write else None)

    @classmethod
    def reopen(cls, location: str | Path, known: State) -> Ledger:
        """Open a ledger that was read before, to look at it: the last entry read must still be what
        it was, and only what was added since is read, into `known`.
        """
        ledger = cls(connect(str(location), write=False))
        ledger.state = known
        return ledger._ready(ledger.look_again)

    @classmethod
    def find(
        cls,
        location: str | Path,
        *,
        write: bool = False,
        copied: bool = False,
        project: str = "",
    ) -> Ledger | None:
        """Open the ledger at `location`; None if there is none, and nothing is made. With `copied`,
        one in a file is read from a copy, and nothing about the file changes.
        """
        project = rules.project_name(project)
        if not may_hold_ledger(str(location)):
            return None
        ledger = cls(connect(str(location), write=write, copied=copied), project)
        if ledger._version() == 0:
            ledger.close()
            return None
        return ledger._ready(lambda: ledger._migrate() if write else None)

    @classmethod
    def create(cls, location: str | Path, *, simulation: bool, project: str = "") -> Ledger:
        """Make a new ledger; refuses if there is one already."""
        return cls._open_new(location, simulation, project, exist_ok=False)

    @classmethod
    def open_or_create(cls, location: str | Path, *, simulation: bool, project: str = "") -> Ledger:
        """The ledger at `location`; if there is none, a new one without accounts."""
        return cls._open_new(location, simulation, project, exist_ok=True)

    @classmethod
    def _open_new(
        cls, location: str | Path, simulation: bool, project: str, *, exist_ok: bool
    ) -> Ledger:
        project = rules.project_name(project)
        path = None if is_url(str(location)) else Path(path_of(str(location)))
        if path is not None and not may_hold_ledger(str(location)):
            rules.refuse_lost(path)  # before a file is made
        ledger = cls(connect(str(location), write=True, create=True), project)

        def begin() -> None:
            with ledger._storage.writing():
                if ledger._storage.version() == 0:
                    if path is not None:
                        rules.refuse_lost(path)
                    migrate(ledger._storage)
                    first = {
                        "kind": "ledger",
                        "format": FORMAT,
                        "ledger": secrets.token_hex(16),
                        "simulation": simulation,
                    }
                    ledger._storage.append(
                        [(number, pack(text), hash) for number, text, hash in ledger._link([first])]
                    )
                elif not exist_ok:
                    raise InvalidInput(
                        f"{ledger.location} already holds a ledger; choose another place"
                    )
            ledger._migrate()

        return ledger._ready(begin)

    def _ready(self, prepare: Callable[[], None]) -> Ledger:
        try:
            prepare()
            check_version(self._storage)
            rules.refuse_like_projects(self.read())
            self._check_own_head()
        except BaseException:
            self.close()
            raise
        return self

    def _version(self) -> int:
        try:
            return self._storage.version()
        except BaseException:
            self.close()
            raise

    def _check_own_head(self) -> None:
        if self.head_file is not None and self.head_file.exists():
            self.check_head(Head.load(self.head_file), str(self.head_file))

    def _migrate(self) -> None:
        if 0 < self._storage.version() < len(MIGRATIONS):
            with self._storage.writing():
                migrate(self._storage)

    @property
    def location(self) -> str:
        """A path or a URL, without a password."""
        return self._storage.location

    @property
    def project(self) -> str:
        """Whose accounts these are; "" outside of all projects."""
        return self.state.project

    @property
    def simulation(self) -> bool:
        """Whether the accounts are simulated ones, which no real run can use."""
        return self.state.simulation

    def __repr__(self) -> str:
        """Says where it is and who is in it, without computing what was spent."""
        told = ", a simulation's" if self.simulation else ""
        told += f", project {self.project!r}" if self.project else ""
        units = [
            counted(len(accounts.names), unit)
            for unit, accounts in self.state.accounts.items()
            if accounts.names
        ]
        runs = sum(len(self.state.runs_of(unit)) for unit in self.state.accounts)
        told += f": {', '.join(units) or 'nobody'}, {counted(runs, 'run')}"
        return f"<Ledger {self.location}{told}>"

    def _repr_html_(self) -> str:
        """In a notebook: the balances, of the first accounts where there are many; no others are
        computed. (Of very many accounts, `balances` reads what remains at fewer orders, and so a
        little lower.)
        """
        tables = []
        for unit, accounts in self.state.accounts.items():
            if not accounts.names:
                continue
            rows = [
                [one[unit], *(f"{one[key]:.4g}" for key in ("budget", "spent", "remaining"))]
                for one in balances(self.state.of_first(unit, SHOWN), unit).rows(unit=unit)
            ]
            more = len(accounts) - len(rows)
            note = f"The first {len(rows)} of {counted(len(accounts), unit)}." if more else ""
            tables.append(Table((unit, "budget", "spent", "remaining"), rows, note).html())
        return f"<p>{escape(repr(self).strip('<>'))}</p>" + "".join(tables)

    def plot(self, unit: str = "client") -> Drawing:
        """What every account has spent, holds and has left."""
        from fedspend.report.balance_plot import balance_figure
        from fedspend.report.drawing import drawing

        found, simulation = self.balances(unit), self.simulation
        return drawing(lambda: balance_figure(found, unit=unit, simulation=simulation))

    def close(self) -> None:
        """Close the database; a `with` statement does it."""
        self._storage.close()

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- reading ---

    def read(self) -> State:
        """Read the entries that were added since the last read."""
        for number, text, hash in follow(
            self._storage.rows_after(self.state.entries), self.state.entries, self.state.hash
        ):
            self.state.apply(number, parse(number, text), hash)
        if self.state.entries == 0:
            raise Damaged(f"the ledger {self.location} is damaged: it has no entries")
        return self.state

    def look_again(self) -> None:
        """What opening it anew would find, for a ledger that has been open for a while: refuse one
        that is no longer what was read, and take in what was added.
        """
        last = self._storage.rows_after(self.state.entries - 1)
        if not last or last[0][2] != self.state.hash:
            raise Damaged(
                f"the ledger {self.location} was changed while it was open: entry "
                f"{self.state.entries} is not what it was"
            )
        self.read()
        self._check_own_head()

    def entries(self, after: int = 0, hash: bytes = START) -> Iterator[tuple[int, bytes, bytes]]:
        """Number, text and hash of every entry, or of those after one with this hash, checked."""
        return follow(self._storage.rows_after(after), after, hash)

    def check_storage(self) -> str:
        """Let the database check itself; says what it found."""
        return self._storage.check()

    def accounts(self, unit: str = "client") -> Accounts:
        """The accounts of clients or of records: names, lifetime budgets, and who has withdrawn."""
        return self.state.accounts[rules.check_unit(unit)]

    def run(self, run: str) -> Run:
        """The run of this name: what it may spend, and how far it has got."""
        return rules.find_run(self.state, run)

    def balances(
        self, unit: str = "client", *, accountant: str = "rdp", progress: OnProgress | None = None
    ) -> Balances:
        """What every account has spent, holds for open runs, and has left.

        `accountant` "pld" reads all accounts by privacy loss distributions, which is slower and
        reads lower; by default, those that a run by them has charged.
        """
        return balances(
            self.state, rules.check_unit(unit), accountant=accountant, progress=progress
        )

    def past(self, names: Sequence[str], unit: str = "client") -> Mechanisms:
        """What these accounts have spent and open runs still hold: where a new plan starts."""
        return histories(self.state, unit, held=True).for_accounts(
            rules.account_numbers(self.state, unit, names)
        )

    def over(self, proposal: Proposal) -> IntArray:
        """Positions of the accounts whose budgets the proposal would exceed, as things stand."""
        return fit(
            self.state,
            proposal.as_run("", rules.members(self.state, proposal)),
            joining=True,
            hint=proposal.order,
        ).over

    # --- heads ---

    @property
    def head_file(self) -> Path | None:
        """The head that is kept beside a ledger in a file: a restored old copy of the ledger does
        not fit it.
        """
        return None if is_url(self.location) else rules.head_beside(Path(self.location))

    def check_head(self, head: Head, where: str) -> None:
        """Refuse a ledger that does not contain `head`."""
        if head.ledger not in ("", self.state.id):
            raise Damaged(
                f"{where} belongs to ledger {head.ledger[:12]}, but {self.location} is ledger "
                f"{self.state.id[:12]}"
            )
        if head.entries > self.state.entries:
            self.read()  # it may have been written since
        if head.entries > self.state.entries:
            raise Damaged(
                f"the ledger {self.location} was cut off, or an old copy was restored: it has "
                f"{self.state.entries} entries, and {where} has seen {head.entries}"
            )
        if self._storage.rows_after(head.entries - 1)[0][2].hex() != head.hash:
            raise Damaged(
                f"the ledger {self.location} is not the one that {where} has seen: entry "
                f"{head.entries} differs"
            )

    # --- accounts ---

    def register(
        self,
        names: Sequence[str],
        budgets: Any,
        *,
        delta: float,
        unit: str = "client",
        order: float | None = None,
    ) -> None:
        """Open accounts, each with a lifetime budget, at one delta that never changes.

        `order` is the Rényi order at which all runs on an account are added up; by default the
        best one for a typical run that spends the whole budget. It never changes either, once
        anything was charged.
        """
        unit, delta, names = rules.check_unit(unit), check_delta(delta), list(names)
        epsilons = _one_each(budgets, names)
        orders = (
            default_orders(epsilons, delta)
            if order is None
            else check_order(order, epsilons, delta)
        )
        if order is not None and not self.read().by_order:
            raise Refused(
                f"the accounts of the ledger {self.location} have no orders; give them some with: "
                "fedspend ledger migrate"
            )
        self._register(names, epsilons, orders, delta=delta, unit=unit)

    def register_for(self, proposal: Proposal, new: Sequence[int]) -> None:
        """Open accounts for these members of a run that has its own."""
        rows = np.asarray(new)
        self._register(
            [proposal.names[n] for n in new],
            proposal.budgets[rows],
            proposal.account_orders()[rows],
            delta=proposal.delta,
            unit=proposal.unit,
        )

    def _register(
        self,
        names: list[str],
        budgets: FloatArray,
        orders: FloatArray,
        *,
        delta: float,
        unit: str,
    ) -> None:

        def entry(state: State) -> list[Body]:
            rules.refuse_mixed(state, unit)
            ids = rules.new_names(names, state, unit)
            rules.refuse_known(state, unit, ids)
            return [
                {
                    "kind": "register",
                    "unit": unit,
                    "delta": delta,
                    "names": ids,
                    "budgets": budgets.tolist(),
                    **({"orders": orders.tolist()} if state.by_order else {}),
                }
            ]

        self._write(entry)

    def change(
        self, names: Sequence[str], budgets: Any, *, reason: str, unit: str = "client"
    ) -> None:
        """Set new lifetime budgets, but not below what is spent."""
        names, reason = rules.check_names(names), rules.check_reason(reason)
        epsilons = _one_each(budgets, names)

        def entry(state: State) -> list[Body]:
            known = rules.known_names(state, unit, names)
            who = rules.account_numbers(state, unit, known)
            rules.refuse_below_spent(unit, known, epsilons, balances(state, unit).spent[who])
            body: Body = {
                "kind": "change",
                "unit": unit,
                "names": known,
                "budgets": epsilons.tolist(),
                "reason": reason,
            }
            if state.by_order and not charged_to(state, said_of(self.project, body), who):
                # as if they had been registered with these budgets
                body["orders"] = rules.orders_of(epsilons, state.accounts[unit].delta[who])
            return [body]

        self._write(entry)

    def migrate(self, *, reason: str) -> None:
        """Give an order to every account of a ledger that was made before accounts had one: that
        of its first budget. From then on runs are admitted by these orders.
        """
        reason = rules.check_reason(reason)

        def entry(state: State) -> list[Body]:
            if state.by_order:
                raise Refused(f"the accounts of the ledger {self.location} have orders already")
            unfinished = [run.id for run in state.runs.values() if run.closed is None]
            if unfinished:  # they were admitted by another rule, and may not fit the orders
                raise Refused(
                    f"the ledger {self.location} has open runs: {', '.join(unfinished)}; finish "
                    "them, or close them (fedspend ledger close-run), and migrate then"
                )
            orders = {
                project: {
                    unit: rules.orders_of(accounts.registered, accounts.delta)
                    for unit, accounts in units.items()
                }
                for project, units in state.by_project.items()
            }
            return [{"kind": "migrate", "orders": orders, "reason": reason}]

        self._write(entry)

    def withdraw(self, names: Sequence[str], *, reason: str, unit: str = "client") -> None:
        """Withdraw accounts: they no longer take part in anything.

        A run that still needs them can begin no further round.
        """
        names, reason = rules.check_names(names), rules.check_reason(reason)

        def entry(state: State) -> list[Body]:
            known = rules.check_names(rules.known_names(state, unit, names))
            gone = np.flatnonzero(
                state.accounts[unit].withdrawn[rules.account_numbers(state, unit, known)]
            )
            if gone.size:
                raise Refused(f"{unit} {known[int(gone[0])]!r} has already withdrawn")
            return [{"kind": "withdraw", "unit": unit, "names": known, "reason": reason}]

        self._write(entry)

    # --- rows ---

    def group(self, unit: str) -> str:
        """The project's accounts of one unit, as a data holder's file of rows names them."""
        unit = rules.check_unit(unit)
        return f"{unit} {self.project}" if self.project else unit

    def seal_rows(self, unit: str, digests: Mapping[str, bytes], seals: RowSeals) -> None:
        """Note the rows behind accounts, by name; refuses rows that are not those noted before.

        The private file of `seals` is read and written inside the transaction, so two runs cannot
        overwrite each other's.
        """

        def entry(state: State) -> list[Body]:
            accounts, group = state.accounts[unit], self.group(unit)
            changed, fresh = seals.changed(accounts, group, digests)
            refuse_changed(unit, changed, self.location, self.project)
            if not fresh:
                return []
            said = seals.sealed(accounts, group, digests, fresh)
            return [{"kind": "rows", "unit": unit, "names": fresh, **said}]

        self._write(entry)

    def accept_rows(self, names: Sequence[str], *, reason: str, unit: str = "client") -> None:
        """Record that the rows behind accounts may be others from now on."""
        names, reason = rules.check_names(names), rules.check_reason(reason)

        def entry(state: State) -> list[Body]:
            known = rules.check_names(rules.known_names(state, unit, names))
            return [{"kind": "accept-rows", "unit": unit, "names": known, "reason": reason}]

        self._write(entry)

    # --- keys of nodes ---

    def enter_keys(self, keys: Mapping[str, str]) -> None:
        """Note the public keys of clients' nodes; refuses other keys than those noted before."""

        def entry(state: State) -> list[Body]:
            rules.refuse_other_keys(state.keys, keys)
            fresh = [name for name in keys if name not in state.keys]
            if not fresh:
                return []
            return [{"kind": "keys", "names": fresh, "keys": [keys[name] for name in fresh]}]

        self._write(entry)

    def rotate_key(
        self, client: str, old: str, new: str, *, reason: str, signature: str | None = None
    ) -> None:
        """Note that a client's node has a new key. `signature` is by the old one, over the
        statement that says so (`approval.rotation`); None if that is lost.
        """
        reason = rules.check_reason(reason)

        def entry(state: State) -> list[Body]:
            if state.keys.get(client, [])[-2:] == [old, new]:  # entered before
                return []
            rules.refuse_no_rotation(state.keys, client, old, new)
            said = {} if signature is None else {"signature": signature}
            return [{"kind": "rotate-key", "names": [client], "key": new, "reason": reason} | said]

        self._write(entry)

    # --- runs ---

    def admit(
        self,
        run: str,
        proposal: Proposal,
        *,
        simulation: bool,
        place: Place | None = None,
        files: Mapping[str, str] | None = None,
    ) -> None:
        """Open a run, or refuse it. `place` is that of its directory, `files` digests of its files.

        If nobody is registered yet, the proposal's names and budgets are registered first. A run
        that was admitted and then interrupted is not admitted twice.
        """
        rules.check_run_id(run)
        rules.check_names(proposal.names)

        def entry(state: State) -> list[Body]:
            rules.check_kind(state, simulation, self.location)
            if run in state.runs:
                return []
            rules.refuse_mixed(state, proposal.unit)
            registration = []
            if not len(state.accounts[proposal.unit]):
                rules.refuse_alike(proposal.names, proposal.unit)
                registration = [proposal.registration(state.by_order)]
                # what the state will be; the ledger's own state follows in `_write`
                fresh = Accounts()
                orders = proposal.account_orders() if state.by_order else None
                fresh.add(list(proposal.names), proposal.budgets, proposal.delta, orders)
                by_project = {"": state.accounts | {proposal.unit: fresh}}
                state = State(by_order=state.by_order, by_project=by_project)
            who = rules.members(state, proposal)
            alone = rules.refuse_overdrawn(
                state, proposal.as_run(run, who), joining=True, hint=proposal.order
            )
            return [
                *registration,
                {"kind": proposal.kind, "run": run, **where, "files": dict(files or {})}
                | proposal.opening(who, alone),
            ]

        where = {"folder": ""} if place is None else vars(place)

        self._write(entry)

    def move(self, run: str, place: Place) -> None:
        """Record where the run's directory is now: rounds begin there, and nowhere else."""

        def entry(state: State) -> list[Body]:
            if rules.open_run(state, run).place == place:
                return []
            return [{"kind": "move", "run": run, **vars(place)}]

        self._write(entry)

    def reserve(
        self, run: str, round: int, *, place: Place | None = None, start: str | None = None
    ) -> None:
        """Charge a round to every account of the run, before it is sampled.

        `place` is where its directory is, and `start` the digest of the checkpoint it starts from.

        A simulation that repeats a round is not charged twice. In a real run, a round that has
        begun is refused: the process that began it may have released it, and fresh noise would be a
        second release.
        """

        def entry(state: State) -> list[Body]:
            mine = rules.find_run(state, run)
            if round in mine.rounds:
                rules.refuse_second_hand(state, run, round)
                return []
            mine = rules.open_run(state, run)
            rules.refuse_tune(mine)
            rules.refuse_elsewhere(mine, place)
            rules.refuse_disturbed(state, mine, round)
            if not round == mine.next_round < mine.planned:
                raise Refused(
                    f"round {round + 1} of run {run} is not the next one planned: the run has "
                    f"begun {mine.next_round} of {mine.planned}"
                )
            known = {} if start is None else {"state": start}
            return [{"kind": "reserve", "run": run, "round": round} | known]

        self._write(entry)

    def reserve_through(self, run: str, round: int) -> None:
        """Charge every round up to this one; those that are charged already stay as they are.

        For a client's own ledger: it hears only of rounds in which it is asked, and the others have
        cost it just as much.
        """

        def entry(state: State) -> list[Body]:
            mine = rules.open_run(state, run)
            begun = mine.next_round
            if round < begun:
                return []
            rules.refuse_disturbed(state, mine, begun)
            if not round < mine.planned:
                raise Refused(f"run {run} has {mine.planned} rounds, and this is {round + 1}")
            return [
                {"kind": "reserve", "run": run, "round": next} for next in range(begun, round + 1)
            ]

        self._write(entry)

    def commit(
        self,
        run: str,
        round: int,
        release: str,
        *,
        place: Place | None = None,
        file: str | None = None,
    ) -> None:
        """Record that the release of a reserved round is stored; `file` is its file's digest.

        Recording the same release again changes nothing; a different one is refused.
        """

        def entry(state: State) -> list[Body]:
            mine = rules.find_run(state, run)
            if mine.rounds.get(round) == "committed":
                if mine.releases[round] != release:
                    raise Refused(
                        f"round {round + 1} of run {run} was released before, and this is a "
                        "different release"
                    )
                return []
            mine = rules.open_run(state, run)
            rules.refuse_elsewhere(mine, place)
            if mine.rounds.get(round) != "reserved":
                raise Refused(
                    f"round {round + 1} of run {run} is not reserved, so nothing can be released "
                    "in it"
                )
            known = {} if file is None else {"file": file}
            return [{"kind": "commit", "run": run, "round": round, "release": release} | known]

        self._write(entry)

    def lose(self, run: str, round: int, *, place: Place | None = None) -> None:
        """Record that a reserved round has no release; it stays spent."""

        def entry(state: State) -> list[Body]:
            mine = rules.open_run(state, run)
            rules.refuse_elsewhere(mine, place)
            reserved = mine.rounds.get(round) == "reserved"
            return [{"kind": "lost", "run": run, "round": round}] if reserved else []

        self._write(entry)

    def replan(
        self, run: str, proposal: Proposal, *, files: Mapping[str, str] | None = None
    ) -> None:
        """Replace the run's plan for the rounds not yet begun."""

        def entry(state: State) -> list[Body]:
            mine = rules.open_run(state, run)
            if mine.about["plan"] == proposal.plan:
                return []
            rules.refuse_tune(mine)
            rules.refuse_replanning(mine)
            asked = proposal.as_run(run, rules.members(state, proposal))
            if not rules.same_beginning(asked, mine):
                raise Refused(
                    f"the new plan of run {run} differs in rounds that have already begun"
                )
            rules.refuse_overdrawn(state, asked, joining=False, hint=proposal.order)
            return [{"kind": "replan", "run": run, "files": dict(files or {})} | proposal.tables()]

        self._write(entry)

    def close_run(
        self,
        run: str,
        *,
        reason: str,
        place: Place | None = None,
        ending: Mapping[str, str] | None = None,
    ) -> None:
        """End a run, and free what it held for rounds that never began.

        Nothing is freed of a run that has begun and fits its accounts only as it was planned; nor,
        on accounts without orders, of one that has a rule by which it may end early: whoever ends
        it has seen what the rule sees. `ending` has digests of what it leaves behind.
        """
        reason = rules.check_reason(reason)

        def entry(state: State) -> list[Body]:
            mine = rules.open_run(state, run)
            rules.refuse_elsewhere(mine, place)
            rules.refuse_freeing(mine)
            known = {"ending": dict(ending)} if ending else {}
            kind = "stop" if mine.keeps_all and not mine.by_order else "close"
            return [{"kind": kind, "run": run, "reason": reason} | known]

        self._write(entry)

    def stop_run(
        self, run: str, *, place: Place | None = None, ending: Mapping[str, str] | None = None
    ) -> None:
        """End a run that its own rule has stopped. As when it is closed, its other rounds are free
        if the accounts' orders allow for ends that depend on releases.
        """

        def entry(state: State) -> list[Body]:
            mine = rules.open_run(state, run)
            rules.refuse_elsewhere(mine, place)
            rules.refuse_freeing(mine)
            known = {"ending": dict(ending)} if ending else {}
            frees = {"frees": True} if mine.by_order and not mine.alone else {}
            return [{"kind": "stop", "run": run} | frees | known]

        self._write(entry)

    def leave(self, run: str, *, reason: str) -> None:
        """End a run in a client's own ledger. Unless it never began, all of its rounds are charged:
        the client cannot know which of them took place.
        """
        reason = rules.check_reason(reason)

        def entry(state: State) -> list[Body]:
            mine = rules.open_run(state, run)
            rest = range(mine.next_round, mine.planned) if mine.next_round else ()
            charged: list[Body] = [{"kind": "reserve", "run": run, "round": t} for t in rest]
            return [*charged, {"kind": "close", "run": run, "reason": reason}]

        self._write(entry)

    # --- the one way in ---

    def _write(self, entry: Callable[[State], list[Body]]) -> None:
        """Read what is new, make entries from it and add them, with no other writer in between.

        An entry is stored only if it fits the state: one that could not be read back would make the
        whole ledger unreadable.
        """
        rows: list[Row] = []
        try:
            with self._storage.writing():
                rows = self._link(self._in_project(entry(self.read())))
                for number, text, hash in rows:
                    self.state.apply(number, parse(number, text), hash)
                self._storage.append([(number, pack(text), hash) for number, text, hash in rows])
        except BaseException:
            if rows:
                # it may be ahead of what is stored: read it again
                self.state = State(project=self.project)
            raise
        if rows:
            stored = self._storage.rows_after(rows[-1][0] - 1)
            if not stored or stored[0][2] != rows[-1][2]:
                raise Damaged(
                    f"the database {self.location} did not keep an entry that was written to it"
                )
            self._keep_head()

    def _in_project(self, bodies: list[Body]) -> list[Body]:
        """The entries, marked as the project's; the first of a new project enters its name."""
        for body in bodies:
            if body["kind"] == "register":
                rules.refuse_second_accounts(self.state, body["unit"], body["names"])
        if not (bodies and self.project):
            return bodies
        new = self.project not in self.state.by_project
        if new:
            rules.refuse_like_projects(self.state)
        entered: list[Body] = [{"kind": "project", "name": self.project}] if new else []
        return entered + [rules.said_of(self.project, body) for body in bodies]

    def _link(self, bodies: list[Body]) -> list[Row]:
        """Number, text and hash of the new entries."""
        rows: list[Row] = []
        number, previous = self.state.entries, self.state.hash
        for body in bodies:
            simulation = self.state.simulation or body.get("simulation") is True
            when = now(exact=simulation or body["kind"] in BY_PEOPLE)
            number, text = number + 1, to_text(body | {"time": when})
            previous = link(previous, number, text)
            rows.append((number, text, previous))
        return rows

    def _keep_head(self) -> None:
        """Save the head beside the file, unless another process has saved a later one."""
        if self.head_file is None:
            return
        if not (
            self.head_file.exists() and Head.load(self.head_file).entries >= self.state.entries
        ):
            self.state.head.save(self.head_file)


def known_project(ledger: Ledger) -> Ledger:
    """The open ledger, if it knows the project; one that is misspelled must not look unspent."""
    known = ledger.state.projects
    if ledger.project and ledger.project not in known:
        ledger.close()
        named = f"it has {', '.join(map(repr, known))}" if known else "it has none"
        raise InvalidInput(
            f"there is no project {ledger.project!r} in the ledger {ledger.location}; {named}"
        )
    return ledger


def now(*, exact: bool) -> str:
    """The time of an entry: to the second, or only the day."""
    shown = "%Y-%m-%dT%H:%M:%SZ" if exact else "%Y-%m-%d"
    return datetime.datetime.now(datetime.UTC).strftime(shown)


def _one_each(budgets: Any, names: Sequence[str]) -> FloatArray:
    epsilons = np.atleast_1d(check_epsilons(budgets))
    if epsilons.shape not in ((1,), (len(names),)):
        raise InvalidInput(
            f"there must be one budget per name: got {epsilons.size} for {len(names)}"
        )
    return np.broadcast_to(epsilons, (len(names),))
