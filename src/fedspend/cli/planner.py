"""`fedspend planner`: move budgets and terms in a browser, and see what they mean."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from fedspend.cli.outputs import check_writable
from fedspend.cli.serving import add_serving, check_port, serve_until_interrupted
from fedspend.errors import InvalidInput

if TYPE_CHECKING:
    from fedspend.pages.planner.settings import Settings

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
  fedspend planner examples/quickstart.toml --export planner.html    # one file, works offline
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "start",
        nargs="?",
        metavar="PLAN.json|CONFIG.toml",
        help="start from the budgets and terms of this plan or config",
    )
    add(
        "--export",
        metavar="FILE.html",
        help="write one page that works without a server, with answers computed beforehand",
    )
    add_serving(add)


def run(args: argparse.Namespace) -> int:
    if args.export is not None:
        if not args.export.lower().endswith((".html", ".htm")):
            raise InvalidInput(f"--export {args.export!r} must end in .html")
        check_writable("--export", args.export)
    check_port(args.port)
    from fedspend.pages.planner.settings import Settings, settings_of

    settings = Settings()
    if args.start is not None:
        settings = settings_of(Path(args.start).read_text(encoding="utf-8"), args.start)
    return serve(args, settings) if args.export is None else export(args, settings)


def export(args: argparse.Namespace, settings: Settings) -> int:
    from fedspend.basics.files import write_whole
    from fedspend.cli.terminal import progress_bar
    from fedspend.pages.planner.export import exported_page

    with progress_bar("computing", args.quiet) as progress:
        page = exported_page(settings, progress)
    write_whole(Path(args.export), page.encode("utf-8"))
    if not args.quiet:
        print(f"Open {args.export}")
    return 0


def serve(args: argparse.Namespace, settings: Settings) -> int:
    from fedspend.pages.planner.site import planner_site

    with planner_site(settings) as site:
        return serve_until_interrupted(site, args)
