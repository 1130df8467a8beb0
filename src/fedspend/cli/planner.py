"""`fedspend planner`: move budgets and terms in a browser, and see what they mean."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedspend.cli.serving import add_serving, check_port, serve_until_interrupted

HELP = "move budgets and terms in a browser, and see what they mean"
DESCRIPTION = (
    "Open a page on this machine on which budgets by group, rounds, sampling rate, policy, tail "
    "and delta can be moved. It shows at once the noise and spending of every round, what each "
    "observer learns, what epsilon means, and the command that makes the same plan. No data is "
    "read and nothing is spent."
)
EXAMPLES = """examples:
  fedspend planner
  fedspend planner examples/quickstart.toml
  fedspend planner plan.json --port 8123 --no-browser
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "start",
        nargs="?",
        metavar="PLAN.json|CONFIG.toml",
        help="start from the budgets and terms of this plan or config",
    )
    add_serving(add)


def run(args: argparse.Namespace) -> int:
    check_port(args.port)
    from fedspend.pages.planner.settings import Settings, settings_of
    from fedspend.pages.planner.site import planner_site

    settings = Settings()
    if args.start is not None:
        settings = settings_of(Path(args.start).read_text(encoding="utf-8"), args.start)
    with planner_site(settings) as site:
        return serve_until_interrupted(site, args)
