"""`fedspend data list | get NAME | check FILE`: lists data sets and their files, fetches one, or
says how your own is read.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import TYPE_CHECKING

from fedspend.errors import InvalidInput

if TYPE_CHECKING:
    from fedspend.configuration.data_entry import DataCheck

HELP = "list data sets, fetch one, or check how your own is read"
DESCRIPTION = (
    "List the known data sets and where their files are, fetch one into the cache and check "
    "its checksums, or say how your own data is read and what must be declared."
)
EXAMPLES = """examples:
  fedspend data list
  fedspend data check patients.csv        which columns need a declaration
  fedspend data check hospitals.toml      what the config reads
  fedspend data get fashion-mnist
  fedspend data get mnist --url http://localhost:8000/mnist

Files are searched for in $FEDSPEND_DATA, then in the cache ($FEDSPEND_CACHE), then where Debian
packages install them.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("action", choices=("list", "get", "check"), help="what to do")
    add("name", nargs="?", help="get: which data set; check: your file, or a config that names it")
    add("--url", metavar="URL", help="get: download the same files from this address instead")
    add("--json", action="store_true", help="list, check: print JSON instead of a table")
    add("--quiet", action="store_true", help="get: print nothing but errors")


def run(args: argparse.Namespace) -> int:
    return {"list": show, "get": fetch, "check": check}[args.action](args)


def check(args: argparse.Namespace) -> int:
    """How your own data is read. Its output is private."""
    if args.name is None:
        raise InvalidInput(
            "'fedspend data check' needs a file: your data, or a config (.toml) that names it"
        )
    from fedspend.configuration.data_entry import PRIVATE, check_data, shown

    found = check_data(args.name)
    print(f"note: {PRIVATE}", file=sys.stderr)
    if args.json:
        print(json.dumps(found.numbers()))
    elif found.columns:
        show_columns(found)
    else:
        for name, value in shown(found.about).items():
            print(f"{name}: {value}")
    return 0


def show_columns(found: DataCheck) -> None:
    from rich.table import Table

    from fedspend.basics.words import counted
    from fedspend.cli.terminal import console
    from fedspend.explanation.entry import is_number

    rows = counted(found.about["rows"], "row")
    print(f"{found.about['file']}: {found.about['recognised']}, {rows}")
    if numeric := [one.column for one in found.columns if is_number(one.column)]:
        print(
            f"warning: the first line is read as names of columns, and {', '.join(numeric[:3])} "
            f"{'is a number' if len(numeric) == 1 else 'are numbers'}; add a line with names",
            file=sys.stderr,
        )
    table = Table(box=None, pad_edge=False)
    for heading in found.table().header:
        table.add_column(heading, overflow="fold")
    for one in found.columns:
        table.add_row(one.column, one.cells, str(one.missing), "\n".join(one.declare))
    console().print(table)
    print(
        'Declare also label, with labels = ["...", "..."] or classes = N, and client, the column '
        "that says whose row it is."
    )


def show(args: argparse.Namespace) -> int:
    if args.name is not None:
        raise InvalidInput(
            f"'fedspend data list' takes no name, got {args.name!r}; it lists all of them"
        )
    from fedspend.configuration.data_entry import data_sets

    found = data_sets()
    if args.json:
        print(json.dumps(found.rows()))
        return 0
    from rich.table import Table

    from fedspend.cli.terminal import console

    table = Table(box=None, pad_edge=False)
    for heading in found.table().header:
        table.add_column(heading)
    for row in found.table().rows:
        table.add_row(*row)
    console().print(table)
    return 0


def fetch(args: argparse.Namespace) -> int:
    from fedspend.configuration.data_entry import get_data

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

    folder = get_data(args.name, url=args.url, on_file=progress)
    if watched:
        print(file=sys.stderr)
    if not args.quiet:
        print(f"{args.name} is in {folder}")
    return 0
