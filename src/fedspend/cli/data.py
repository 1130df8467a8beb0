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
    from fedspend.data.sources import Status

HELP = "list data sets, fetch one, or check how your own is read"
DESCRIPTION = (
    "List the known data sets and where their files are, fetch one into the cache and check "
    "its checksums, or say how your own data is read and what must be declared."
)
PRIVATE = (
    "what follows comes from the rows: it is private, for the data holder only. Declare levels and "
    "bounds from what is publicly known, not from what you see here"
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
    return checked_config(args) if args.name.endswith(".toml") else checked_file(args)


def checked_config(args: argparse.Namespace) -> int:
    from fedspend.configuration.config import load_config
    from fedspend.configuration.data_inputs import Source
    from fedspend.data.looking import summary

    source = Source(load_config(args.name))
    found = {"data set": source.name} | summary(source.rows)
    print(f"note: {PRIVATE}", file=sys.stderr)
    if args.json:
        print(json.dumps(found))
        return 0
    for key, value in found.items():
        shown = (
            ", ".join(f"{name} {number:g}" for name, number in value.items())
            if isinstance(value, dict)
            else " x ".join(map(str, value))
            if isinstance(value, list)
            else f"{value:,}"
            if isinstance(value, int)
            else value
        )
        print(f"{key}: {shown}")
    return 0


def checked_file(args: argparse.Namespace) -> int:
    from fedspend.data.looking import look, opened

    frame, recognised = opened(args.name)
    columns = look(frame)
    print(f"note: {PRIVATE}", file=sys.stderr)
    if args.json:
        about = {"file": args.name, "recognised": recognised, "rows": len(frame)}
        print(json.dumps(about | {"columns": [vars(one) for one in columns]}))
        return 0
    from rich.table import Table

    from fedspend.cli.terminal import console

    print(f"{args.name}: {recognised}, {len(frame):,} rows")
    table = Table(box=None, pad_edge=False)
    for heading in ("column", "cells", "missing", "to declare under [data]"):
        table.add_column(heading, overflow="fold")
    for one in columns:
        table.add_row(one.column, one.cells, str(one.missing), "\n".join(one.declare))
    console().print(table)
    print(
        'Declare also label, with labels = ["...", "..."] or classes = N, and client, the column '
        "that says whose row it is."
    )
    return 0


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
