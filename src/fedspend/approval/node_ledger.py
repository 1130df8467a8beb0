"""A client's own account, on its own machine: what it has approved, and what that has cost it.

Guarantee: nothing is done for a run whose slice was not approved here, nor for a task with other
terms than the slice's; approving is refused where everything spent, everything approved and the new
slice together exceed the client's own budget. A round is charged before anything is trained for it,
and with it every earlier one, because rounds in which a client is not asked cost it just as much.
In each round one answer leaves at most, also after a crash. A ledger that was cut off, replaced by
an old copy, or is gone is noticed by the ledger's own head and by the one that is kept among the
node's answers; whoever restores both from one old copy is not noticed. Nothing is charged on other
rows than those of the last real run, unless the client's people have accepted the change.

It is a ledger like any other (`fedspend.ledger`), with one account.
"""

from __future__ import annotations

import hashlib
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from fedspend.approval.rotation import Rotation
from fedspend.approval.slices import Slice, load_slice
from fedspend.approval.tasks import refuse_other_terms
from fedspend.basics.files import write_whole
from fedspend.client.declining import Declined
from fedspend.client.state import file_name
from fedspend.engines.flower.keys import short
from fedspend.errors import FedspendError, InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.chain import Head
from fedspend.ledger.row_seals import RowSeals
from fedspend.ledger.rules import APPROVED
from fedspend.ledger.state import Run
from fedspend.stored.files import LEDGER, SEEN_HEAD

if TYPE_CHECKING:  # it needs torch, and an account does not
    from fedspend.client.task import ClientTask
    from fedspend.verification.findings import Verification

SEEN = SEEN_HEAD.name  # the last entry of the ledger that the node has seen
UNLIKELY = 1e-9


@dataclass(frozen=True)
class NodeLedger:
    """Where a client keeps its account, and what it allows itself.

    `folder` is where its node keeps answers, too. `budget` and `delta` are the client's own, and
    needed to open the account.
    """

    client: str
    location: str
    folder: Path
    simulation: bool
    budget: float | None = None
    delta: float | None = None
    key: str | None = None  # public key of its node
    unit: str = "client"  # record: one account for each record of a silo (`flower.silo`)
    # digest of the rows behind the account, in memory only; None where they are nobody's, or where
    # nothing is charged
    rows: bytes | None = field(default=None, repr=False)

    # --- what the client's people do ---

    def approve(self, slice: Slice) -> Verification:
        """Check a slice, enter it, and hold what it costs; or refuse, and change nothing."""
        self.check_mine(slice)
        verdict = verified(slice)
        self._rehearse(slice)
        with self.opened(create=True) as ledger:
            self._enter(slice, ledger)
            # after a crash in between, approving it again makes up for it
            path = self.slice_file(slice.terms.run)
            for folder in (self.folder, path.parent):
                folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_whole(path, slice.to_bytes())
        return verdict

    def _rehearse(self, slice: Slice) -> None:
        """Enter the slice in a ledger that is thrown away, if it is the client's first: one that is
        refused leaves no account, whose delta could never change.
        """
        found = Ledger.find(self.location)
        if found is not None:
            found.close()
        elif not (self.folder / SEEN).exists():
            with tempfile.TemporaryDirectory() as folder:
                scratch = Path(folder)
                trial = replace(self, location=str(LEDGER.of(scratch)), folder=scratch / "state")
                with trial.opened(create=True) as ledger:
                    trial._enter(slice, ledger)

    def _enter(self, slice: Slice, ledger: Ledger) -> None:
        known = ledger.state.runs.get(slice.terms.run)
        if known is not None and known.about["plan"] != slice.root:
            raise Refused(
                f"another slice of run {known.id} was approved before, with root "
                f"{known.about['plan'][:12]}; a run has one plan"
            )
        if self.key is not None:
            refuse_unrotated(ledger, self.client, self.key)
            ledger.enter_keys({self.client: self.key})
        ledger.admit(
            slice.terms.run,
            replace(slice.plan.proposal(), plan=slice.root, method=slice.terms.method),
            simulation=self.simulation,
            files={APPROVED: slice.digest},
        )

    def check_mine(self, slice: Slice) -> None:
        """Refuse a slice that is not for this node."""
        if slice.client != self.client:
            raise Refused(
                f"the slice is for client {slice.client!r}, and this node is {self.client!r}; ask "
                "for your own"
            )
        if slice.terms.simulation != self.simulation:
            kind = "a simulation, which protects nobody" if slice.terms.simulation else "a real run"
            raise Refused(
                f"the slice is for {kind}, and this node's rows are "
                f"{'simulated' if self.simulation else 'real'}"
            )
        if self.key is not None and slice.key not in (None, short(self.key)):
            raise Refused(
                f"the slice was made for a node with the key {slice.key}, and this node's is "
                f"{short(self.key)}; tell the server your key, and ask for another slice"
            )

    def rotate(self, rotation: Rotation, reason: str) -> None:
        """Note that this client's node has a new key."""
        if rotation.client != self.client:
            raise Refused(f"the rotation is of client {rotation.client!r}, not {self.client!r}")
        with self.opened() as ledger:
            ledger.enter_keys(
                {} if self.client in ledger.state.keys else {self.client: rotation.old}
            )
            ledger.rotate_key(
                *(self.client, rotation.old, rotation.new),
                reason=reason,
                signature=rotation.signature,
            )

    def leave(self, run: str, reason: str) -> Run:
        """Take no part in a run any more; what it may have cost stays spent."""
        with self.opened() as ledger:
            ledger.leave(run, reason=reason)
            return ledger.run(run)

    @contextmanager
    def reading(self) -> Iterator[Ledger]:
        """The ledger, to look at."""
        with self.opened(write=False) as ledger:
            yield ledger

    # --- what the node does by itself: an `OwnAccount` ---

    def join(self, plan: str) -> None:
        """The server begins, or goes on: from here on its first round may take place."""
        with self._declining() as ledger:
            mine = next((r for r in ledger.state.runs.values() if r.about["plan"] == plan), None)
            self._refuse_over(ledger, mine)
            assert mine is not None
            self._seal(ledger)
            ledger.reserve_through(mine.id, 0)

    def admit(self, task: ClientTask) -> None:
        shared = task.shared
        with self._declining() as ledger:
            mine = ledger.state.runs.get(shared.run)
            if mine is not None and mine.about["plan"] != shared.plan:
                raise Declined("plan", f"run {mine.id} has another plan than was approved")
            self._refuse_over(ledger, mine)
            assert mine is not None
            refuse_other_terms(self._approved(mine), task)
            refuse_passed(mine, shared.round)
            if task.coin is None:  # else the client draws it
                refuse_oversampled(mine, shared.round)
            self._seal(ledger)
            ledger.reserve_through(mine.id, shared.round)

    def sent(self, task: ClientTask, body: bytes) -> None:
        digest = hashlib.sha256(body).hexdigest()
        with self._declining() as ledger:
            ledger.commit(task.shared.run, task.shared.round, digest)

    def _seal(self, ledger: Ledger) -> None:
        """Rows behind the account stay the same from run to run, or the client says so."""
        if self.rows is None or self.simulation:
            return
        seals = RowSeals.of(ledger.state.id, ledger.location)
        ledger.seal_rows("client", {self.client: self.rows}, seals)

    def _refuse_over(self, ledger: Ledger, run: Run | None) -> None:
        if run is None:
            raise Declined("plan", "no slice of this run was approved; fedspend node approve SLICE")
        if run.closed is not None:
            raise Declined("account", f"run {run.id} is over for this node: {run.closed}")
        if bool(ledger.accounts().withdrawn.any()):
            raise Declined("account", "this client has withdrawn")

    def _approved(self, run: Run) -> Slice:
        """The slice as it was approved; its copy must be the one that the ledger has seen."""
        slice = load_slice(self.slice_file(run.id))
        if slice.digest != run.files.get(APPROVED):
            raise Refused(
                f"{self.slice_file(run.id)} was changed since it was approved; restore it"
            )
        return slice

    def slice_file(self, run: str) -> Path:
        return self.folder / file_name(run) / APPROVED

    # --- the ledger itself ---

    @contextmanager
    def _declining(self) -> Iterator[Ledger]:
        """The ledger for one message; whatever is wrong with it, the node declines."""
        try:
            with self.opened() as ledger:
                yield ledger
        except Declined:
            raise
        except FedspendError as error:
            raise Declined("account", str(error)) from None

    @contextmanager
    def opened(self, *, create: bool = False, write: bool = True) -> Iterator[Ledger]:
        seen = self.folder / SEEN
        if create and not seen.exists():
            ledger = Ledger.open_or_create(self.location, simulation=self.simulation)
        else:
            found = Ledger.find(self.location, write=write)
            if found is None:
                raise Refused(self._missing(seen))
            ledger = found
        with ledger:
            if seen.exists():
                ledger.check_head(Head.load(seen), str(seen))
            self._check_account(ledger, create=create)
            try:
                yield ledger
            finally:
                if write:
                    self._keep_head(ledger)

    def refuse_lost(self) -> None:
        """Refuse to start over where a ledger was seen before."""
        if (self.folder / SEEN).exists():
            raise Refused(self._missing(self.folder / SEEN))

    def _missing(self, seen: Path) -> str:
        if seen.exists():
            return (
                f"the ledger {self.location} is gone, but {seen} has seen "
                f"{Head.load(seen).entries} entries of it; restore it"
            )
        return (
            f"there is no ledger {self.location}: nothing was approved yet; begin with: fedspend "
            "node approve SLICE"
        )

    def _check_account(self, ledger: Ledger, *, create: bool) -> None:
        """One account, the client's own, with the budget that its config states."""
        accounts = ledger.accounts()
        if ledger.simulation != self.simulation:
            kind = "simulated" if ledger.simulation else "real"
            raise Refused(f"the ledger {ledger.location} keeps {kind} accounts; use another")
        if self.unit == "record":
            if len(accounts):
                raise Refused(
                    f"{ledger.location} has accounts of clients, which cannot pay for records; "
                    "name another with ledger.location"
                )
            return
        if create and not len(accounts) and not len(ledger.accounts("record")):
            if self.budget is None or self.delta is None:
                raise InvalidInput(
                    "node.budget and node.delta are missing: say what this client allows in all, "
                    "over all runs"
                )
            ledger.register([self.client], self.budget, delta=self.delta)
            accounts = ledger.accounts()
        if accounts.names != [self.client] or len(ledger.accounts("record")):
            raise Refused(
                f"{ledger.location} is not the ledger of client {self.client!r} alone; name "
                "another with ledger.location"
            )
        for name, stated, kept in (
            ("budget", self.budget, float(accounts.budget[0])),
            ("delta", self.delta, float(accounts.delta[0])),
        ):
            if stated is not None and stated != kept:
                change = (
                    f"; to change it: fedspend ledger change {self.client} --epsilon {stated:g} "
                    f"--reason WORDS --ledger {ledger.location}"
                )
                raise Refused(
                    f"node.{name} is {stated:g}, but the ledger {ledger.location} has {kept:g}"
                    + (change if name == "budget" else "; a lifetime budget has one delta")
                )

    def _keep_head(self, ledger: Ledger) -> None:
        seen = self.folder / SEEN
        known = Head.load(seen).entries if seen.exists() else 0
        if not ledger.state.entries > known:  # also where a write failed and nothing was read again
            return
        self.folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        ledger.state.head.save(seen)


def refuse_unrotated(ledger: Ledger, client: str, key: str) -> None:
    known = ledger.state.keys.get(client, [])
    if known and known[-1] != key:
        gone = key in known
        raise Refused(
            f"node.key is {short(key)}, "
            + (
                "which this client has given up"
                if gone
                else f"but the ledger knows {short(known[-1])}; enter the change first: fedspend "
                "node rotate-key"
            )
        )


def verified(slice: Slice) -> Verification:
    """The verdict of the accountants that share no code with the planner."""
    from fedspend.verification.verify import verify  # to approve; a task does not need it

    verdict = verify(slice.plan)
    if not verdict.ok:
        raise Refused(f"the slice does not keep its promise: {verdict.failures[0]}")
    return verdict


def refuse_passed(run: Run, round: int) -> None:
    """A round is done once. One that was charged and not answered, because the node failed in
    between, may be done if it is the last: nothing has left for it.
    """
    if round >= run.next_round:
        return
    if round == run.next_round - 1 and run.rounds[round] == "reserved":
        return
    raise Declined(
        "replayed",
        f"a task of round {round + 1} came, and {run.next_round} rounds of run {run.id} are "
        "charged; the client does not go back",
    )


def refuse_oversampled(run: Run, round: int) -> None:
    """Decline when the client is asked more often than the planned rates can explain.

    Who is asked is the server's secret, and a client that is asked always has no part of the
    protection that sampling promises. For independent coins of mean rate `q`, `k` or more heads of
    `n` have a probability of at most `exp(-n KL(k/n || q))` (Hoeffding 1963, which holds for
    unequal rates, too).
    """
    before = sum(run.rounds.get(t) == "committed" for t in range(round))
    asked, rounds = before + 1, round + 1
    rate = float(run.rate[:rounds, run.of_class[0]].mean())
    if chance_of(asked, rounds, rate) < UNLIKELY:
        raise Declined(
            "oversampled",
            f"asked in {asked} of {rounds} rounds of run {run.id}, at a planned rate of "
            f"{rate:.4g}: the server does not sample as planned",
        )


def chance_of(asked: int, rounds: int, rate: float) -> float:
    """An upper bound on the chance of being asked at least so often.

    >>> round(1 / chance_of(10, 10, 0.5)), chance_of(3, 10, 0.5), chance_of(5, 5, 1.0)
    (1024, 1.0, 1.0)
    """
    share = asked / rounds
    if share <= rate:
        return 1.0
    divergence = share * math.log(share / rate)
    if share < 1:
        divergence += (1 - share) * math.log((1 - share) / (1 - rate))
    return math.exp(-rounds * divergence)
