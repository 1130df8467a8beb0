"""`fedspend design`: four commands in one, each in a module of its own. The first argument is the
word `theory`, `influence` or `choose`, or else the config of a search.
"""

from __future__ import annotations

import argparse

from fedspend.cli import design_choose, design_influence, design_search, design_theory
from fedspend.errors import InvalidInput

HELP = "choose noise, rounds and sampling rate before anything is spent"
DESCRIPTION = (
    "Which noise, how many rounds, which sampling rate? 'fedspend design CONFIG.toml' trains "
    "every setting of its [design] section as a seeded simulation on public data, or continues a "
    "search that was stopped, and writes pareto.json, front.csv and plots. 'fedspend design "
    "theory' answers from the closed form k sigma^2 T = q K without training. 'fedspend design "
    "influence CONFIG.toml' measures, in runs without noise on public data, what part of a push "
    "in each round is left in the model at the end: what policy optimal plans with. 'fedspend "
    "design choose CONFIG.toml' compares rounds, rate, policy, schedule, tail and clip within the "
    "budgets of a config, by theory or with --simulate, and says what each choice is worth."
)
EXAMPLES = """examples:
  fedspend design theory --k 22 --rate 1 --clients 10 --max-rounds 200 --max-noise 0.1
  fedspend design theory --k 25 --rate 0.5 --clients 400 --max-rounds 200 \\
    --max-epsilon 5 --delta 1e-5 --clip 0.3
  fedspend design examples/design/quick.toml -o designs/quick --max-epsilon 5
  fedspend design theory --k-from designs/quick --rate 0.5 --clients 40 \\
    --rounds 100 --max-rounds 200
  fedspend design influence examples/quickstart.toml -o influence.json
  fedspend design choose examples/quickstart.toml --write best.toml
  fedspend design choose examples/quickstart.toml --simulate --vary train.rounds=10,25,50 \\
    --vary policy=uniform,optimal --most 20 --seeds 2
  fedspend design choose examples/quickstart.toml --contraction 0.9 --distance 5 --parameters 650
"""

COMMANDS = {
    "search": design_search,
    "theory": design_theory,
    "influence": design_influence,
    "choose": design_choose,
}
HOMES = {
    "search": "a search: fedspend design CONFIG.toml",
    "theory": "theory: fedspend design theory",
    "influence": "fedspend design influence",
    "choose": "fedspend design choose",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "what",
        metavar="CONFIG.toml | theory | influence | choose",
        help="a config with a [design] section, or the word theory, influence or choose",
    )
    add(
        "config",
        nargs="?",
        metavar="CONFIG.toml",
        help="for influence and choose: the config of the run",
    )
    add(
        "--max-epsilon",
        type=float,
        metavar="E",
        help="recommend one setting whose real epsilon is at most this",
    )
    add("--json", action="store_true", help="print JSON instead of tables")
    add("--quiet", action="store_true", help="no progress and no tables")
    for command in (design_search, design_influence, design_choose, design_theory):
        command.add_arguments(parser)


def run(args: argparse.Namespace) -> int:
    what = args.what if args.what in ("theory", "influence", "choose") else "search"
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
