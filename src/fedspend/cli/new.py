"""`fedspend new NAME --template ...`: a folder that runs as it is."""

from __future__ import annotations

import argparse

from fedspend.starting.templates import TEMPLATES

HELP = "begin: write a folder that runs as it is"
DESCRIPTION = (
    "Write a new folder with a config, data or a script that makes it, and a README with the "
    "commands to type. An existing folder is left alone."
)
EXAMPLES = "\n".join(
    [
        "examples:",
        "  fedspend new first",
        "  fedspend new study --template own-data",
        "  fedspend new consortium --template flower",
        "",
        "templates:",
        *(f"  {name:12}{template.help}" for name, template in TEMPLATES.items()),
    ]
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("folder", metavar="NAME", help="the new folder")
    add(
        "--template",
        choices=tuple(TEMPLATES),
        default="quickstart",
        help="what to begin with, see below (default: quickstart)",
    )
    add("--json", action="store_true", help="print JSON instead of text")


def run(args: argparse.Namespace) -> int:
    from pathlib import Path

    from fedspend.starting.templates import missing_extras, write

    written = write(Path(args.folder), args.template)
    if args.json:
        import json

        print(json.dumps({"folder": args.folder, "files": [str(path) for path in written]}))
        return 0
    print(f"wrote {args.folder}: {TEMPLATES[args.template].help}")
    if missing := missing_extras(args.template):
        print(f"first install what it trains with: pip install 'fedspend[{','.join(missing)}]'")
    print(f"next: cd {args.folder}, and type the commands of README.md")
    return 0
