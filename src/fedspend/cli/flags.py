"""Flags that several commands have: one name, one meaning."""

from __future__ import annotations

import argparse
from typing import Any

TABLES = ("csv", "markdown", "latex")


def add_action(actions: Any, name: str, help: str) -> argparse.ArgumentParser:
    """The parser of one action of a command: its help is its description, too."""
    made: argparse.ArgumentParser = actions.add_parser(
        name, help=help, description=help[0].upper() + help[1:] + ".", allow_abbrev=False
    )
    return made


def add_set(add: Any, example: str, where: str = "") -> None:
    """`--set`: a config value in place of the file's."""
    add(
        "--set",
        action="append",
        default=[],
        metavar="S.KEY=V",
        help=f"override one config value{where}, for example {example}",
    )


def add_workers(add: Any) -> None:
    """`--workers`: for commands that train many runs."""
    add("--workers", type=int, metavar="N", help="runs at the same time (default: one per core)")


def add_table(add: Any) -> None:
    """`--table`: a table for a paper or a spreadsheet."""
    add("--table", choices=TABLES, help="print the table as CSV, Markdown or LaTeX")


def add_project(add: Any) -> None:
    """`--project`: for commands that read or charge a ledger."""
    add(
        "--project",
        metavar="NAME",
        help="whose accounts in the ledger: unrelated projects may both have a client 1",
    )
