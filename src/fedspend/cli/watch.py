"""`fedspend watch`: the report of a run in a browser, while the run goes on."""

from __future__ import annotations

import argparse
from pathlib import Path

from fedspend.cli.serving import add_serving, check_port, serve_until_interrupted

HELP = "show the report of a run in a browser, live"
DESCRIPTION = (
    "Serve the report of a run directory on this machine, and show it again whenever a round is "
    "finished. The address has a random token; only this machine can reach it."
)
EXAMPLES = """examples:
  fedspend watch runs/first
  fedspend watch runs/first --port 8124 --no-browser
  fedspend train examples/quickstart.toml -o runs/first --watch
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run_folder", metavar="RUN_DIR", help="directory of a run")
    add_serving(parser.add_argument)


def run(args: argparse.Namespace) -> int:
    from fedspend.pages.watch import watch_site

    check_port(args.port)
    return serve_until_interrupted(watch_site(Path(args.run_folder)), args)
