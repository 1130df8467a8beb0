"""`fedspend data list | get NAME`: lists data sets and their files, or fetches and checks one."""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from fedspend.errors import InvalidInput

if TYPE_CHECKING:
    from fedspend.data.sources import Status

HELP = "list data sets, or fetch one"
DESCRIPTION = (
    "List the known data sets and where their files are, or fetch one into the cache and check "
    "its checksums."
)
EXAMPLES = """examples:
  fedspend data list
  fedspend data get fashion-mnist
  fedspend data get mnist --url http://localhost:8000/mnist

Files are searched for in $FEDSPEND_DATA, then in the cache ($FEDSPEND_CACHE), then where Debian
packages install them.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=("list", "get"), help="what to do")
    add("name", nargs="?", help="get: which data set")
    add("--url", metavar="URL", help="get: download the same files from this address instead")
    add("--json", action="store_true", help="list: print JSON instead of a table")
    add("--quiet", action="store_true", help="get: print nothing but errors")


def run(args: argparse.Namespace) -> int:
    return show(args) if args.action == "list" else fetch(args)


def show(args: argparse.Namespace) -> int:
    from fedspend.data import status

    if args.name is not None:
        raise InvalidInput(
            f"'fedspend data list' takes no name, got {args.name!r}; it lists all of them"
        )
    lines = [*status(), *of_ones_own()]
    if args.json:
        print(
            json.dumps(
                [
                    {**vars(line), "where": None if line.where is None else str(line.where)}
                    for line in lines
                ]
            )
        )
        return 0
    from rich.table import Table

    from fedspend.cli.terminal import console

    table = Table(box=None, pad_edge=False)
    for heading in ("name", "what", "licence", "where"):
        table.add_column(heading)
    for line in lines:
        place = (
            str(line.where)
            if line.where
            else "registered"
            if line.licence == "your own"
            else "bundled"
            if line.ready
            else f"not found: {line.hint}"
        )
        table.add_row(line.name, line.about, line.licence, place)
    console().print(table)
    return 0


def of_ones_own() -> list[Status]:
    """Data sets that a loaded file has registered."""
    from fedspend.data import DATA_SETS
    from fedspend.data.sources import Status

    return [
        Status(name, DATA_SETS[name].help, True, None, "your own", "") for name in DATA_SETS.own
    ]


def fetch(args: argparse.Namespace) -> int:
    from fedspend.data import get

    if args.name is None:
        raise InvalidInput(
            "'fedspend data get' needs the name of a data set; 'fedspend data list' shows them"
        )
    watched = sys.stderr.isatty() and not args.quiet

    def progress(file: str, done: int, total: int | None) -> None:
        if watched:
            print(
                f"\r{file}  {done / 1e6:.1f} MB" + (f" of {total / 1e6:.1f}" if total else ""),
                end="",
                file=sys.stderr,
            )

    folder = get(args.name, base_url=args.url, progress=progress)
    if watched:
        print(file=sys.stderr)
    if not args.quiet:
        print(f"{args.name} is in {folder}")
    return 0
