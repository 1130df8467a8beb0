"""The actions of `fedspend ledger` and their arguments."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from typing import Any

from fedspend.cli.flags import add_action, add_project
from fedspend.cli.serving import add_serving

# adds the parser of an action and returns its `add_argument`
Action = Callable[[str, str], Any]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")

    def action(name: str, help: str) -> Any:
        made = add_action(actions, name, help)
        made.add_argument(
            "--ledger",
            metavar="PATH|URL",
            help="a file, or postgresql://user@host/database (default: the ledger of this user)",
        )
        return made.add_argument

    _changing(action)
    _looking(action)


def _changing(action: Action) -> None:
    """Actions that write to the ledger."""
    add = action("init", "create an empty ledger")
    add(
        "--simulation",
        action="store_true",
        help="for seeded simulations, which never mix with real accounts",
    )
    add = action("register", "open accounts with lifetime budgets")
    add(
        "budgets",
        metavar="FILE.csv",
        help=(
            "CSV with columns client and epsilon (record and epsilon with --unit record); other "
            "columns of budget files are allowed"
        ),
    )
    add(
        "--delta",
        type=float,
        required=True,
        metavar="D",
        help="delta of these accounts, for their lifetime",
    )
    add(
        "--order",
        type=float,
        metavar="A",
        help=(
            "the Rényi order at which all runs on these accounts are added up (default: the best "
            "for 100 rounds at rate 0.5 that spend the whole budget)"
        ),
    )
    _unit(add)
    add = action("change", "change a lifetime budget")
    add("name", help="whose")
    add(
        "--epsilon",
        type=float,
        required=True,
        metavar="E",
        help="the new lifetime budget; at least what is already spent",
    )
    _reason(add)
    _unit(add)
    add = action("withdraw", "end accounts for good: they take part in no further round")
    add("name", nargs="+", help="who withdraws")
    _reason(add)
    _unit(add)
    add = action(
        "accept-rows", "record that the rows behind accounts may be others from the next run on"
    )
    add("name", nargs="+", help="whose rows have changed")
    _reason(add)
    _unit(add)
    add = action(
        "migrate", "give every account of a ledger of 0.2 an order, at which new runs are admitted"
    )
    _reason(add)
    add = action("rotate-key", "enter the new key of a client's node, from its own statement")
    add("statement", metavar="ROTATION.json", help="what fedspend node rotate-key wrote")
    add("--keys", metavar="KEYS.csv", help="also put the new key into this file (engine.keys)")
    add(
        "--lost",
        action="store_true",
        help="accept a statement that the old key did not sign, because it is lost",
    )
    _reason(add)
    add_project(add)
    add = action(
        "close-run",
        "end a run and free what it held for rounds that never began; for reasons that do not "
        "depend on what it released",
    )
    add("run", metavar="RUN", help="the run, or how its id begins; fedspend ledger show lists them")
    _reason(add)
    add_project(add)


def _looking(action: Action) -> None:
    """Actions that only read it."""
    add = action("show", "show the ledger as a whole, one client, or one run")
    add(
        "--client",
        metavar="NAME",
        help="budget, spending and runs of one client (or record, with --unit)",
    )
    add("--run", metavar="RUN", help="rounds, mechanisms and members of one run")
    _json(add)
    _unit(add)
    add = action("balance", "show what everyone has spent and what is left")
    add(
        "--client",
        action="append",
        metavar="NAME",
        help="only this one; may be repeated",
    )
    add(
        "--accountant",
        choices=("rdp", "pld"),
        default="rdp",
        help="pld gives lower numbers and takes up to a second per distinct balance",
    )
    add("--plot", metavar="FILE", help="plot the balances, as .png, .svg or .pdf")
    _json(add)
    _unit(add)
    add = action("history", "list the entries, oldest first")
    add("--client", metavar="NAME", help="only entries about this one")
    add("--run", metavar="RUN", help="only entries of this run")
    add("--last", type=int, metavar="N", help="only the last N")
    _json(add)
    _unit(add)
    add = action(
        "verify",
        "check that a ledger, or an export of one, is intact and recompute every balance "
        "independently",
    )
    add(
        "export",
        nargs="?",
        metavar="FILE.json",
        help="an export of fedspend ledger export -o FILE.json, instead of --ledger",
    )
    add(
        "--head",
        action="append",
        default=[],
        metavar="HEAD",
        help="a head noted earlier: ENTRIES:HASH, or a file that holds one",
    )
    add(
        "--runs",
        nargs="+",
        default=[],
        metavar="DIR",
        help="run directories whose heads must be in the chain",
    )
    _json(add)
    add = action(
        "page",
        "show the ledger in a browser: balances, runs, history, verification, search by client",
    )
    add_project(add)
    add_serving(add)
    add = action(
        "export",
        "export the ledger: CSV with one line per client and round, or JSON with everything",
    )
    add("-o", "--output", required=True, metavar="FILE", help="a .csv or .json file")
    add("--force", action="store_true", help="overwrite an existing file")
    _unit(add)


def _unit(add: Any) -> None:
    add_project(add)
    add(
        "--unit",
        choices=("client", "record"),
        default="client",
        help="client accounts (default) or record accounts",
    )


def _reason(add: Any) -> None:
    add("--reason", required=True, metavar="WORDS", help="why; recorded in the ledger")


def _json(add: Any) -> None:
    add("--json", action="store_true", help="print JSON instead of a table")
