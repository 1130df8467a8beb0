"""`fedspend glossary [TERM]`: what the words mean."""

from __future__ import annotations

import argparse
import json

HELP = "explain a term"
DESCRIPTION = (
    "Explain the terms of privacy, planning and accounting, or one of them, in plain words."
)
EXAMPLES = """examples:
  fedspend glossary
  fedspend glossary clip
  fedspend glossary "trade-off curve"
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("term", nargs="*", metavar="TERM", help="the term to explain (default: all of them)")
    add("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    from fedspend.explanation.glossary import GROUPS, TERMS, find

    if args.term:
        term = find(" ".join(args.term))
        print(json.dumps({term: TERMS[term]}) if args.json else f"{term}: {TERMS[term]}")
        return 0
    if args.json:
        print(json.dumps(TERMS, indent=2, ensure_ascii=False))
        return 0
    from rich.text import Text

    from fedspend.cli.terminal import console

    out = console()
    for title, terms in GROUPS.items():
        out.print(Text(title, style="bold underline"))
        for term, words in terms.items():
            out.print(Text.assemble((term, "bold"), ": ", words))
        out.print()
    return 0
