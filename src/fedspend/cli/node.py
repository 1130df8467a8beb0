"""`fedspend node ...`: a client's own account, on its own machine."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from fedspend.cli.flags import add_action
from fedspend.errors import InvalidInput
from fedspend.stored.files import LEDGER

if TYPE_CHECKING:
    from fedspend.approval.node_ledger import NodeLedger
    from fedspend.ledger import Ledger

HELP = "approve runs and keep account, as one client on its own machine"
DESCRIPTION = (
    "A client on a machine of its own keeps its own account: what it has approved, and what that "
    "has cost it. Its node takes part in nothing else. The node's config says who it is (node."
    "client), what it allows over all runs (node.budget, node.delta) and where its account is "
    f"(ledger.location; default: {LEDGER} beside the config)."
)
EXAMPLES = """examples:
  fedspend node approve north.slice.json --show
  fedspend node approve north.slice.json
  fedspend node balance --config /etc/fedspend/node.toml
  fedspend node history --last 20 --json
  fedspend node rotate-key new.key -o rotation.json --reason "yearly change"
  fedspend node leave 3f09c1d2a4b5 --reason "the study ended"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")

    def action(name: str, help: str) -> Any:
        made = add_action(actions, name, help)
        made.add_argument(
            "--config",
            default="node.toml",
            metavar="NODE.toml",
            help="the node's config (default: node.toml in this folder)",
        )
        made.add_argument("--json", action="store_true", help="print JSON instead of text")
        return made.add_argument

    action("balance", "show what this client has spent, what it has approved, and what is left")
    add = action("approve", "check a slice that the server sent, and take part in its run")
    add("slice", metavar="SLICE", help="the file from fedspend flower slices, for this client")
    add("--show", action="store_true", help="check and show it, and approve nothing")
    add = action("history", "list the entries of this client's ledger, oldest first")
    add("--run", metavar="RUN", help="only entries of this run")
    add("--last", type=int, metavar="N", help="only the last N")
    add = action("rotate-key", "give this client's node a new key, as an entry of both ledgers")
    add("new", metavar="NEW_KEY", help="the new private key, made with ssh-keygen")
    add("-o", "--output", required=True, metavar="FILE", help="the statement, for the server")
    add("--reason", required=True, metavar="WORDS", help="why; recorded in the ledger")
    add(
        "--lost",
        metavar="OLD.pub",
        help="the old private key is lost, and this is its public one: the statement is not signed",
    )
    add = action("leave", "take no part in a run any more; what it may have cost stays spent")
    add("run", metavar="RUN", help="the run; fedspend node balance lists them")
    add("--reason", required=True, metavar="WORDS", help="why; recorded in the ledger")


def run(args: argparse.Namespace) -> int:
    if args.action is None:
        raise InvalidInput(
            f"'fedspend node' needs an action: {', '.join(ACTIONS)}; see fedspend node --help"
        )
    # a key that is lost cannot be read
    keyless = getattr(args, "lost", None) is not None
    return ACTIONS[args.action](args, own_ledger(args.config, keyless=keyless))


def own_ledger(config: str, *, keyless: bool = False) -> NodeLedger:
    from fedspend.approval.node_config import node_ledger
    from fedspend.configuration.config import load_config

    return node_ledger(load_config(config), keyless=keyless)


def approve(args: argparse.Namespace, mine: NodeLedger) -> int:
    if mine.unit == "record":
        raise InvalidInput(
            'a node with node.unit = "record" plans its own records for terms that its config '
            "allows; there is nothing to approve"
        )
    from fedspend.approval.node_ledger import verified
    from fedspend.approval.slices import load_slice
    from fedspend.approval.words import approved, trusted_with

    slice = load_slice(args.slice)
    if args.show:
        mine.check_mine(slice)
        verdict = verified(slice)
    else:
        verdict = mine.approve(slice)
    told, trust = approved(slice), trusted_with(slice)
    found = float(verdict.epsilon[0])
    if args.json:
        said = {"approved": not args.show, **told, "epsilon": float(slice.plan.epsilon[0])}
        print_json(said | {"delta": slice.plan.delta, "verified": found, "trusts": list(trust)})
        return 0
    for name, words in told.items():
        print(f"{name:<10}{words}")
    print(
        f"{'verified':<10}epsilon {found:.4g}, by accountants that share no code with the planner"
    )
    for words in trust:
        print(f"{'trust':<10}the server {words}")
    print()
    print("checked; nothing was approved" if args.show else entered(mine))
    print("Compare the root with the other clients': another one is another plan.")
    return 0


def entered(mine: NodeLedger) -> str:
    with mine.reading() as ledger:
        (line,) = ledger.balances().rows([0])
    return (
        f"approved: of this client's own {line['budget']:g}, {line['spent']:.4g} is spent and "
        f"{line['reserved']:.4g} held for what it has approved ({mine.location})"
    )


def balance(args: argparse.Namespace, mine: NodeLedger) -> int:
    from fedspend.cli import ledger_views as views

    with mine.reading() as ledger:
        balances = ledger.balances(mine.unit)
        runs = [run_line(ledger, id) for id in ledger.state.runs]
    if args.json and mine.unit == "record":
        views.print_json(
            {"records": list(balances.rows(unit="record")), "ledger": mine.location, "runs": runs}
        )
        return 0
    if args.json:
        (line,) = balances.rows([0])
        views.print_json(line | {"ledger": mine.location, "runs": runs})
        return 0
    views.show_balances(balances, None, mine.unit, mine.simulation, None)
    views.show_document({"runs": runs})
    return 0


def run_line(ledger: Ledger, id: str) -> dict[str, Any]:
    run = ledger.run(id)
    states = list(run.rounds.values())
    return {
        "run": id,
        "root": str(run.about["plan"]),
        "approved": run.about.get("time"),
        "status": run.status if run.closed is None else f"left: {run.closed}",
        "rounds": run.planned,
        "charged": run.next_round,
        "answered": states.count("committed"),
    }


def history(args: argparse.Namespace, mine: NodeLedger) -> int:
    from fedspend.cli import ledger_views as views
    from fedspend.ledger import documents

    if args.last is not None and args.last < 1:
        raise InvalidInput(f"--last must be at least 1, got {args.last}")
    with mine.reading() as ledger:
        entries = documents.history(ledger, None, args.run, mine.unit)
    entries = entries[-args.last :] if args.last else entries
    views.print_json(entries) if args.json else views.show_history(entries)
    return 0


def rotate_key(args: argparse.Namespace, mine: NodeLedger) -> int:
    from pathlib import Path

    from fedspend.approval.rotation import Rotation, signed_by
    from fedspend.cli.outputs import check_writable
    from fedspend.configuration.config import load_config
    from fedspend.engines.flower.keys import public_of, read_public, short

    check_writable("--output", args.output)
    private = load_config(args.config).node.key
    if args.lost is not None:
        rotation = Rotation(mine.client, read_public(args.lost), public_of(args.new))
    elif mine.key is None or private is None:
        raise InvalidInput("node.key is missing: name the private key that the node has now")
    else:
        rotation = signed_by(private, Rotation(mine.client, mine.key, public_of(args.new)))
    mine.rotate(rotation, args.reason)
    rotation.save(Path(args.output))
    if args.json:
        told = {"client": mine.client, "old": short(rotation.old), "new": short(rotation.new)}
        print_json(told | {"statement": args.output, "signed": rotation.signature is not None})
        return 0
    print(f"client {mine.client!r} now has the key {short(rotation.new)}")
    print(
        f"Send {args.output} to the server, which enters it with: fedspend ledger rotate-key\n"
        f"Then set node.key = {args.new!r}, and start the SuperNode with it."
    )
    return 0


def leave(args: argparse.Namespace, mine: NodeLedger) -> int:
    left = mine.leave(args.run, args.reason)
    if args.json:
        print_json({"run": left.id, "rounds": left.planned, "charged": left.next_round})
        return 0
    print(
        f"left run {left.id}: "
        + (
            f"all {left.planned} rounds count as spent, because some may have taken place unseen"
            if left.next_round
            else "it never began, so nothing was spent"
        )
    )
    return 0


def print_json(document: Any) -> None:
    from fedspend.cli import ledger_views as views

    views.print_json(document)


ACTIONS = {
    "balance": balance,
    "approve": approve,
    "history": history,
    "leave": leave,
    "rotate-key": rotate_key,
}
