"""`fedspend design`: three commands in one, each in a module of its own. The first argument is the
word `theory` or `influence`, or else the config of a search.
"""

from __future__ import annotations

import argparse

from fedspend.cli import design_influence, design_search, design_theory
from fedspend.errors import InvalidInput

HELP = "choose noise, rounds and sampling rate before anything is spent"
DESCRIPTION = (
    "Which noise, how many rounds, which sampling rate? 'fedspend design CONFIG.toml' trains "
    "every setting of its [design] section as a seeded simulation on public data, or continues a "
    "search that was stopped, and writes pareto.json, front.csv and plots. 'fedspend design "
    "theory' answers from the closed form k sigma^2 T = q K without training. 'fedspend design "
    "influence CONFIG.toml' measures, in runs without noise on public data, what part of a push "
    "in each round is left in the model at the end: what policy optimal plans with."
)
EXAMPLES = """examples:
  fedspend design theory --k 22 --rate 1 --clients 10 --max-rounds 200 --max-noise 0.1
  fedspend design theory --k 25 --rate 0.5 --clients 400 --max-rounds 200 \\
    --max-epsilon 5 --delta 1e-5 --clip 0.3
  fedspend design examples/design/quick.toml -o designs/quick --max-epsilon 5
  fedspend design theory --k-from designs/quick --rate 0.5 --clients 40 \\
    --rounds 100 --max-rounds 200
  fedspend design influence examples/quickstart.toml -o influence.json
"""

COMMANDS = {
    "search": design_search,
    "theory": design_theory,
    "influence": design_influence,
}
HOMES = {
    "search": "a search: fedspend design CONFIG.toml",
    "theory": "theory: fedspend design theory",
    "influence": "fedspend design influence",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "what",
        metavar="CONFIG.toml | theory | influence",
        help="a config with a [design] section, or the word theory or influence",
    )
    add(
        "config",
        nargs="?",
        metavar="CONFIG.toml",
        help="for influence: the config of the run",
    )
    add(
        "--max-epsilon",
        type=float,
        metavar="E",
        help="recommend one setting whose real epsilon is at most this",
    )
    add("--json", action="store_true", help="print JSON instead of tables")
    add("--quiet", action="store_true", help="no progress and no tables")
    for command in (design_search, design_influence, design_theory):
        command.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    what = args.what if args.what in ("theory", "influence") else "search"
    if what in ("theory", "search") and args.config is not None:
        raise InvalidInput(f"{args.config!r} is one argument too many; drop it")
    refuse_strays(args, what)
    code: int = COMMANDS[what].run(args)
    return code


def refuse_strays(args: argparse.Namespace, what: str) -> None:
    """Refuse flags that belong to one of the other commands."""
    for home, command in COMMANDS.items():
        for name in command.FLAGS:
            if name not in COMMANDS[what].FLAGS and getattr(args, name) not in (None, []):
                flag = "--" + name.replace("_", "-")
                raise InvalidInput(f"{flag} is only for {HOMES[home]}; drop it")
