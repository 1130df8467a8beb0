"""`fedspend flower ...`: prepares runs with clients on machines of their own."""

from __future__ import annotations

import argparse
from typing import Any

from fedspend.cli.flags import add_project
from fedspend.errors import InvalidInput

HELP = "set up and check a federation, with clients on machines of their own"
DESCRIPTION = (
    "What is done before a run with clients on other machines, through Flower: a project for "
    "server and nodes, a check of each machine, and the slices of a plan that clients approve. The "
    "run itself is started with flwr run, and a client's own side is fedspend node."
)
EXAMPLES = """examples:
  fedspend flower new consortium --config training.toml --host server.example.org
  fedspend flower check consortium/server/training.toml --superlink server.example.org:9092
  fedspend flower check consortium/nodes/north/node.toml --json
  fedspend flower slices training.toml -o slices
  fedspend flower slices training.toml --plan plan.json -o slices --json
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    actions = parser.add_subparsers(dest="action", metavar="ACTION")
    new_arguments(
        actions.add_parser(
            "new",
            help="write a project for server and nodes, ready to deploy",
            description=(
                "Write a folder with the app, the server's config and a folder for each node, a "
                "script that makes keys and certificates, scripts and systemd units that start "
                "everything, and a README with the commands in order. Nothing in it is secret "
                "until keys are made, and an existing folder is left alone."
            ),
            allow_abbrev=False,
        ).add_argument
    )
    check_arguments(
        actions.add_parser(
            "check",
            help="say what is wrong with a deployment, before round 1",
            description=(
                "Check one machine, the server's or a node's, whichever the config describes: "
                "versions, telemetry, keys, ids, budgets, rows, ledger, app, certificates and the "
                "connection. Each finding passes, fails, or is a note, and says what to do. To see "
                "all connected nodes from the server, add check=true to the run config of flwr "
                "run. Exit code 0: nothing failed; 1: something did."
            ),
            allow_abbrev=False,
        ).add_argument
    )
    slices_arguments(
        actions.add_parser(
            "slices",
            help="plan a run, and write what each client is to approve of it",
            description=(
                "Plan a run, and write for each client a file to approve: the terms that all are "
                "shown, the client's own schedule and budget, and a proof that they belong to the "
                "root that the run is bound to. Nobody sees another's budget. The folder also "
                "holds the plan and the secrets behind the slices: name it with engine.slices, and "
                "keep it to yourself."
            ),
            allow_abbrev=False,
        ).add_argument
    )


def new_arguments(add: Any) -> None:
    add("folder", metavar="DIR", help="a new folder")
    add("--config", required=True, metavar="CONFIG.toml", help="config of the training")
    add("--clients", metavar="ID,ID,...", help="who takes part (default: those of the config)")
    add("--host", default="", help="name or address of the server (default: localhost)")
    add("--port", type=int, default=9092, help="port of the SuperLink (default: 9092)")
    add("--json", action="store_true", help="print JSON instead of text")


def check_arguments(add: Any) -> None:
    add("config", metavar="CONFIG.toml", help="the server's training.toml, or a node's node.toml")
    add("--superlink", metavar="HOST:PORT", help="also try to reach the SuperLink there")
    add("--tls", metavar="DIR", help="folder of certificates (default: tls, beside the config)")
    add("--app", metavar="DIR", help="server: folder of the app (default: ../app)")
    add(
        "--server",
        metavar="CONFIG.toml",
        help="node: the server's config, to compare what both declare of the data with (default: "
        "../../server/training.toml, if it is there)",
    )
    add("--json", action="store_true", help="print JSON instead of text")


def slices_arguments(add: Any) -> None:
    add("config", metavar="CONFIG.toml", help="config of the training, at the server")
    add("-o", "--output", required=True, metavar="DIR", help="a new folder for the slices")
    add("--plan", metavar="PLAN.json", help="a plan made beforehand (default: plan now)")
    add("--ledger", metavar="PATH|URL", help="the ledger that the run will charge")
    add_project(add)
    add("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    if args.action is None:
        raise InvalidInput(
            f"'fedspend flower' needs an action: {', '.join(ACTIONS)}; see fedspend flower --help"
        )
    return ACTIONS[args.action](args)


def new(args: argparse.Namespace) -> int:
    from pathlib import Path

    need_flower()
    from fedspend.flower.project import Project

    named = [one for one in (args.clients or "").split(",") if one]
    project = Project.read(args.config, named, args.host, args.port)
    written = project.write(Path(args.folder))
    if args.json:
        import json

        print(json.dumps({"folder": args.folder, "files": [str(path) for path in written]}))
        return 0
    print(f"wrote {args.folder} for {', '.join(project.clients)} and a server")
    print(f"next: {args.folder}/README.md has the commands, in order")
    return 0


def check(args: argparse.Namespace) -> int:
    need_flower()
    from fedspend.cli.checked import show_findings, show_verdict
    from fedspend.cli.terminal import console
    from fedspend.flower.checking import check as checked

    found = checked(
        args.config, superlink=args.superlink, tls=args.tls, app=args.app, server=args.server
    )
    if args.json:
        import json

        print(json.dumps(found.to_dict(), indent=2))
        return 0 if found.ok else 1
    out = console()
    good, bad = f"this {found.role} is ready", f"put this {found.role} right before a run"
    show_verdict(out, ok=found.ok, simulation=None, good=good, bad=bad)
    show_findings(out, found.checks)
    return 0 if found.ok else 1


def need_flower() -> None:
    from importlib.util import find_spec

    from fedspend.engines.table import NO_FLOWER

    if find_spec("flwr") is None:
        raise InvalidInput(NO_FLOWER)


def slices(args: argparse.Namespace) -> int:
    from fedspend.planning.protocol import load_any_plan
    from fedspend.runs.slicing import make_slices

    plan = None if args.plan is None else load_any_plan(args.plan)
    offer, files = make_slices(
        args.config, args.output, plan=plan, ledger=args.ledger, project=args.project
    )
    of_client = dict(zip(offer.plan.clients, map(str, files), strict=True))
    if args.json:
        import json

        print(json.dumps({"run": offer.terms.run, "root": offer.root, "slices": of_client}))
        return 0
    print(f"run {offer.terms.run}, root {offer.root}")
    for client, file in of_client.items():
        print(f"  {file}  for client {client!r}")
    print(
        "Hand each client its own file, and nobody else's; each checks it with fedspend node "
        "approve.\nRead the root out to all of them: if theirs is another, you have shown them "
        f"another plan.\nThen train with engine.slices = {args.output!r}."
    )
    return 0


ACTIONS = {"new": new, "check": check, "slices": slices}
