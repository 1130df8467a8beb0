"""`fedspend ledger ...`: keeps, reads and checks the accounts of privacy budgets."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from fedspend.cli.ledger_arguments import add_arguments as add_arguments
from fedspend.cli.outputs import PLOTS, ending
from fedspend.cli.serving import check_port, serve_until_interrupted
from fedspend.errors import InvalidInput
from fedspend.stored.files import LEDGER

if TYPE_CHECKING:
    from fedspend.basics.arrays import FloatArray
    from fedspend.ledger import Ledger

HELP = "keep account of who has spent what, over all runs"
DESCRIPTION = (
    "An append-only account of privacy budgets over all runs, in a file or in PostgreSQL. "
    "fedspend train charges it; these commands set it up, read it and check it. Without --ledger "
    f"they mean the ledger of this user: FEDSPEND_LEDGER, or ~/.local/share/fedspend/{LEDGER}."
)
EXAMPLES = """examples:
  fedspend ledger init --ledger accounts.db
  fedspend ledger register clients.csv --delta 1e-5 --ledger accounts.db
  fedspend ledger balance --ledger accounts.db --plot balances.png
  fedspend ledger balance --project clinics
  fedspend ledger change clinic-7 --epsilon 12 --reason "new consent form" --ledger accounts.db
  fedspend ledger accept-rows clinic-7 --reason "data of 2027 added" --ledger accounts.db
  fedspend ledger verify --ledger accounts.db --runs runs/first
  fedspend ledger page --ledger accounts.db
  fedspend ledger export -o account.json --ledger accounts.db
  fedspend ledger verify account.json
  fedspend ledger rotate-key rotation.json --keys keys.csv --reason "yearly" --ledger accounts.db
  fedspend ledger migrate --reason "runs are planned by results" --ledger accounts.db
  fedspend ledger close-run 3f09c1d2a4b5 --reason "the server is gone" --ledger accounts.db
"""
EXPORTS = (".csv", ".json")


def run(args: argparse.Namespace) -> int:
    if args.action is None:
        raise InvalidInput(
            "'fedspend ledger' needs an action: "
            + ", ".join(ACTIONS)
            + "; see fedspend ledger --help"
        )
    if args.ledger is None and getattr(args, "export", None) is None:
        from fedspend.ledger.default import default_ledger, is_default, make_folder

        args.ledger = default_ledger()
        if args.action == "init" and is_default(args.ledger):
            make_folder(args.ledger)
        elif args.action != "init" and is_default(args.ledger) and not Path(args.ledger).exists():
            raise InvalidInput(
                f"no --ledger was given, and there is no ledger of this user ({args.ledger}); name "
                "one with --ledger, or make this one with: fedspend ledger init"
            )
    return ACTIONS[args.action](args)


# --- writing --------------------------------------------------------------------------------------


def init(args: argparse.Namespace) -> int:
    from fedspend.ledger import Ledger

    with Ledger.create(args.ledger, simulation=args.simulation) as ledger:
        print(
            f"{ledger.location} is a new ledger for "
            f"{'simulations' if args.simulation else 'real accounts'}"
        )
    return 0


def register(args: argparse.Namespace) -> int:
    names, epsilons = lifetime_budgets(args.budgets, args.unit)
    from fedspend.ledger import Ledger

    with Ledger.open(args.ledger, write=True, project=args.project or "") as ledger:
        ledger.register(names, epsilons, delta=args.delta, unit=args.unit, order=args.order)
        under = f" under project {ledger.project!r}" if ledger.project else ""
        print(
            f"registered {len(names)} {args.unit}s at delta {args.delta:g} in "
            f"{ledger.location}{under}"
        )
    return 0


def lifetime_budgets(path: str, unit: str) -> tuple[tuple[str, ...], FloatArray]:
    """Names and budgets from a CSV file with columns client,epsilon or record,epsilon."""
    from fedspend.basics.csv_rows import read_table
    from fedspend.budgets.csv_file import read_budgets_csv
    from fedspend.records.budget_file import read_record_budgets

    if unit == "record" and "record" in read_table(path).header:
        found = read_record_budgets(path)
        return found.records, found.budget
    population = read_budgets_csv(path)
    return population.clients, population.epsilons


def change(args: argparse.Namespace) -> int:
    from fedspend.ledger import documents

    with writable(args) as ledger:
        ledger.change([args.name], args.epsilon, reason=args.reason, unit=args.unit)
        print(f"{args.unit} {args.name!r} now has a lifetime budget of {args.epsilon:g}")
        number = documents.account_number(ledger.state, args.name, args.unit)
        if ledger.balances(args.unit).total[number] > args.epsilon:
            print(
                "warning: open runs hold more than that and can begin no further round; close them",
                file=sys.stderr,
            )
    return 0


def withdraw(args: argparse.Namespace) -> int:
    with writable(args) as ledger:
        ledger.withdraw(args.name, reason=args.reason, unit=args.unit)
        print(f"withdrawn: {', '.join(args.name)}")
    return 0


def accept_rows(args: argparse.Namespace) -> int:
    with writable(args) as ledger:
        ledger.accept_rows(args.name, reason=args.reason, unit=args.unit)
        print(f"the next run may have other rows of: {', '.join(args.name)}")
    return 0


def migrate(args: argparse.Namespace) -> int:
    from fedspend.ledger import Ledger

    with Ledger.open(args.ledger, write=True) as ledger:
        ledger.migrate(reason=args.reason)
        print(
            f"{ledger.location}: every account has an order now, and runs are admitted by it; "
            "older versions of fedspend can no longer read this ledger"
        )
    return 0


def rotate_key(args: argparse.Namespace) -> int:
    from fedspend.approval.rotation import read_rotation
    from fedspend.engines.flower.keys import replaced, short

    found = read_rotation(args.statement)
    if not (args.lost and found.signature is None):
        found.check()
    with writable(args) as ledger:
        ledger.rotate_key(
            found.client, found.old, found.new, reason=args.reason, signature=found.signature
        )
    print(
        f"client {found.client!r} now has the key {short(found.new)}; the old one is not used again"
    )
    if args.keys is not None and not replaced(args.keys, found.old, found.new):
        print(f"warning: {args.keys} does not have the old key; correct it", file=sys.stderr)
    return 0


def close_run(args: argparse.Namespace) -> int:
    with writable(args) as ledger:
        whole = whole_id(ledger, args.run)
        ledger.close_run(whole, reason=args.reason)
        run = ledger.run(whole)
        if run.is_tune:
            print(f"run {whole} is closed: it was a private tune, and all of it stays spent")
            return 0
        if run.frees_nothing:
            why = (
                "it fits its accounts only as it was planned, as a whole"
                if run.by_order
                else "it has a stopping rule and had begun"
            )
            print(f"run {whole} is closed: {why}, so all {run.planned} rounds stay spent")
            return 0
        print(
            f"run {whole} is closed: {run.next_round} rounds stay spent, "
            f"{run.planned - run.next_round} never began and are free"
        )
        if 0 < run.next_round < run.planned and not run.by_order:
            print(
                "If you stopped because of its releases or metrics, count those as spent, too: the "
                "balances assume costs that were fixed beforehand (until fedspend ledger migrate)."
            )
    return 0


def whole_id(ledger: Ledger, given: str) -> str:
    """The id of a run, of which the beginning is enough if no other run begins like this."""
    if given in ledger.state.runs:
        return given
    alike = [one for one in ledger.state.runs if given and one.startswith(given)]
    if len(alike) > 1:
        raise InvalidInput(
            f"{len(alike)} runs begin with {given!r}: {', '.join(alike[:5])}; give more of the id"
        )
    return alike[0] if alike else given


def writable(args: argparse.Namespace) -> Ledger:
    from fedspend.ledger.book import Ledger, known_project

    return known_project(Ledger.open(args.ledger, write=True, project=args.project or ""))


# --- reading --------------------------------------------------------------------------------------


def show(args: argparse.Namespace) -> int:
    from fedspend.cli import ledger_views as views
    from fedspend.ledger import documents

    if args.client is not None and args.run is not None:
        raise InvalidInput("--client and --run cannot be combined; give one of them")
    with readable(args) as ledger:
        if args.client is not None:
            balances = ledger.balances(args.unit)
            document = documents.client_document(ledger.state, balances, args.client, args.unit)
        elif args.run is not None:
            document = documents.run_document(ledger.state, whole_id(ledger, args.run))
        else:
            document = documents.ledger_document(ledger)
    views.print_json(document) if args.json else views.show_document(document)
    return 0


def balance(args: argparse.Namespace) -> int:
    from fedspend.cli import ledger_views as views
    from fedspend.cli.outputs import check_writable
    from fedspend.cli.terminal import progress_bar
    from fedspend.ledger import documents

    if args.plot is not None:
        ending(args.plot, "--plot", PLOTS)
        check_writable("--plot", args.plot)
    with readable(args) as ledger:
        who = (
            None
            if args.client is None
            else [documents.account_number(ledger.state, name, args.unit) for name in args.client]
        )
        with progress_bar("by PLD", args.json) as progress:
            balances = ledger.balances(args.unit, accountant=args.accountant, progress=progress)
        simulation = ledger.simulation
        if args.accountant == "pld" and any(run.is_tune for run in ledger.state.runs_of(args.unit)):
            print(
                "note: accounts with a private tune are read by Rényi curves: PLD cannot read one",
                file=sys.stderr,
            )
        other = "client" if args.unit == "record" else "record"
        if not len(ledger.accounts(args.unit)) and len(ledger.accounts(other)):
            raise InvalidInput(
                f"{ledger.location} has accounts of {other}s only; add --unit {other}"
            )
        refuse_elsewhere(ledger, args.unit)
    if args.plot is not None:
        from fedspend.report.balance_plot import balance_plot

        balance_plot(balances, args.plot, unit=args.unit, simulation=simulation)
    if args.json:
        views.print_json(list(balances.rows(who, args.unit)))
    else:
        views.show_balances(balances, who, args.unit, simulation, args.plot)
    return 0


def history(args: argparse.Namespace) -> int:
    from fedspend.cli import ledger_views as views
    from fedspend.ledger import documents

    if args.last is not None and args.last < 1:
        raise InvalidInput(f"--last must be at least 1, got {args.last}")
    with readable(args) as ledger:
        run = None if args.run is None else whole_id(ledger, args.run)
        entries = documents.history(ledger, args.client, run, args.unit)
    entries = entries[-args.last :] if args.last else entries
    views.print_json(entries) if args.json else views.show_history(entries)
    return 0


def verify(args: argparse.Namespace) -> int:
    from fedspend.cli import ledger_views as views
    from fedspend.ledger.audit import audit
    from fedspend.ledger.export_check import audit_export

    if args.export is not None and args.ledger is not None:
        raise InvalidInput(
            "ledger verify checks an export, FILE.json, or the ledger named by --ledger; give one"
        )
    if args.export is not None and args.runs:
        raise InvalidInput("--runs is for a ledger; compare an export with --head DIR's head file")
    result = (
        audit(args.ledger, heads=args.head, runs=args.runs)
        if args.export is None
        else audit_export(args.export, heads=args.head)
    )
    views.print_json(result.to_dict()) if args.json else views.show_audit(result)
    return 0 if result.ok else 1


def page(args: argparse.Namespace) -> int:
    check_port(args.port)
    readable(args).close()
    from fedspend.ledger.rules import project_name
    from fedspend.pages.ledger.site import ledger_site

    return serve_until_interrupted(ledger_site(args.ledger, project_name(args.project or "")), args)


def export(args: argparse.Namespace) -> int:
    from fedspend.cli.outputs import check_writable
    from fedspend.ledger.export import export_csv, export_json

    kind = ending(args.output, "--output", EXPORTS)
    check_writable("--output", args.output)
    if Path(args.output).exists() and not args.force:
        raise InvalidInput(f"--output {args.output!r} exists; choose another name or add --force")
    with readable(args) as ledger:
        if kind == ".csv":
            refuse_elsewhere(ledger, args.unit)
        count = (export_csv if kind == ".csv" else export_json)(
            ledger, Path(args.output), args.unit
        )
    print(
        f"wrote {count} lines to {args.output}"
        if kind == ".csv"
        else f"wrote {count} entries to {args.output}"
    )
    return 0


def readable(args: argparse.Namespace) -> Ledger:
    from fedspend.ledger.book import Ledger, known_project

    return known_project(Ledger.open(args.ledger, project=args.project or ""))


def refuse_elsewhere(ledger: Ledger, unit: str) -> None:
    """Where a project has all the accounts, say so instead of showing none."""
    if not len(ledger.accounts(unit)) and ledger.state.projects and not ledger.project:
        raise InvalidInput(
            f"the accounts in {ledger.location} are those of projects "
            f"({', '.join(map(repr, ledger.state.projects))}); name one with --project"
        )


ACTIONS = {
    "init": init,
    "register": register,
    "migrate": migrate,
    "change": change,
    "withdraw": withdraw,
    "accept-rows": accept_rows,
    "show": show,
    "balance": balance,
    "history": history,
    "verify": verify,
    "page": page,
    "export": export,
    "close-run": close_run,
    "rotate-key": rotate_key,
}
