"""Small ledgers for the tests of the ledger page."""

from __future__ import annotations

import fedspend
from fedspend.ledger import Ledger
from fedspend.ledger.rules import Proposal

DELTA = 1e-4


def admitted(ledger, run, names, epsilon, *, rounds=3, begun=0, accountant="rdp"):
    plan = fedspend.plan(
        dict.fromkeys(names, epsilon),
        delta=DELTA,
        rounds=rounds,
        rate=0.5,
        policy="uniform",
        accountant=accountant,
    )
    ledger.admit(run, Proposal.of_plan(plan), simulation=True)
    for round in range(begun):
        ledger.reserve(run, round)
        ledger.commit(run, round, f"{round:064x}")


def filled(place, *, accountant="rdp"):
    """Five clinics: a finished run, an open one, one clinic that is used up and one that left."""
    with Ledger.create(place, simulation=True) as ledger:
        ledger.register(
            ["north", "south", "östlich", "West", "<b>x"], [2, 4, 6, 8, 10], delta=DELTA
        )
        admitted(ledger, "first", ["north", "south"], 2.0, begun=3, accountant=accountant)
        ledger.close_run("first", reason="finished")
        admitted(ledger, "second", ["south", "West"], 1.0, begun=1)
        ledger.withdraw(["östlich"], reason="moved away")
    return str(place)
