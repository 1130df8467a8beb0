"""`fedspend publish RUN_DIR`: writes what a stranger may have of a finished run."""

from __future__ import annotations

import argparse

HELP = "write what a stranger may have of a run"
DESCRIPTION = (
    "Write a folder that may be given to anyone: the model, the guarantee in words and numbers, "
    "digests of all releases, and every client's budget behind a commitment that only that client "
    "can open. The openings go into a private folder beside it: hand each client its own file. "
    "fedspend verify checks both."
)
EXAMPLES = """examples:
  fedspend publish runs/first
  fedspend publish runs/first --ledger accounts.db
  fedspend publish runs/first -o public/first --sign keys/fedspend.key
  fedspend verify public/first --key keys/fedspend.pub
  fedspend verify public/first --open north.json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("run", metavar="RUN_DIR", help="the directory of a finished run")
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="folder to publish (default: RUN_DIR.publication); openings go to DIR.openings",
    )
    add(
        "--ledger",
        metavar="PATH|URL",
        help="where the run's ledger is; needed unless it is in the run directory",
    )
    add("--sign", metavar="KEY", help="sign with this private key (fedspend keys new)")
    add("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    from fedspend.publishing.writing import CLIENTS, OWNER, publish

    made = publish(args.run, args.output, ledger=args.ledger, sign=args.sign)
    if args.json:
        import json

        print(
            json.dumps(
                {
                    "publication": str(made.folder),
                    "openings": str(made.openings),
                    "clients": made.clients,
                    "epsilon": made.epsilon,
                    "delta": made.delta,
                    "simulation": made.simulation,
                    "signed_by": made.signed_by,
                }
            )
        )
        return 0
    if made.simulation:
        print(
            "SIMULATION: its randomness was seeded, so it protects nobody; the publication says so"
        )
    print(f"for everyone: {made.folder} (epsilon at most {made.epsilon:g} at delta {made.delta:g})")
    print(f"signed by {made.signed_by}" if made.signed_by else "not signed: add --sign KEY")
    print(
        f"PRIVATE: {made.openings}: hand each of the {made.clients} clients its own file in "
        f"{CLIENTS}, and keep {OWNER} for an auditor"
    )
    return 0
