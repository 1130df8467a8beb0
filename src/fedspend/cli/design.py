"""`fedspend design`: `choose`, `influence`, the closed form (`theory`), or a search."""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fedspend.cli import design_choose
from fedspend.cli.design_choose import FLAGS as CHOOSE
from fedspend.cli.flags import add_set
from fedspend.errors import InvalidInput
from fedspend.runs.stopping import Stopped

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

THEORY = (
    "k",
    "k_from",
    "rate",
    "clients",
    "rounds",
    "max_rounds",
    "max_noise",
    "delta",
    "clip",
    "max_epsilon",
)
# which of the flags below go with what
FLAGS = {
    "search": ("output", "workers", "max_seconds", "set", "max_epsilon"),
    "theory": THEORY,
    "influence": ("output", "set", "directions", "by"),
    "choose": ("output", "set", "vary", "simulate", "write", *CHOOSE),
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
    search = parser.add_argument_group("a search")
    search.add_argument(
        "-o",
        "--output",
        metavar="DIR",
        help="where to write, or the search to continue (default: designs/ and the config's name); "
        "for choose --simulate: where trainings are kept; for influence: the file to write, .json",
    )
    search.add_argument(
        "--workers",
        type=int,
        metavar="N",
        help="trainings at the same time (default: one per core)",
    )
    search.add_argument(
        "--max-seconds",
        type=float,
        metavar="S",
        help="recommend a setting that trains within this time, as measured on this machine",
    )
    add_set(search.add_argument, "design.seeds=10")
    add_influence_arguments(parser)
    design_choose.add_arguments(parser)
    theory = parser.add_argument_group("theory")
    theory.add_argument("--k", type=float, metavar="K", help="the constant k in k sigma^2 T = q K")
    theory.add_argument(
        "--k-from", metavar="DIR", help="take k from a search: its directory or its pareto.json"
    )
    theory.add_argument(
        "--rate",
        type=float,
        metavar="Q",
        help="sampling rate; if not given, the rate is free",
    )
    theory.add_argument("--clients", type=int, metavar="K", help="number of clients")
    theory.add_argument("--rounds", type=int, metavar="T", help="solve for this many rounds only")
    theory.add_argument(
        "--max-rounds", type=int, metavar="T", help="the most rounds you have time for"
    )
    theory.add_argument(
        "--max-noise", type=float, metavar="S", help="the highest noise level you allow"
    )
    theory.add_argument(
        "--delta", type=float, metavar="D", help="also show the real epsilon at this delta"
    )
    theory.add_argument(
        "--clip", type=float, metavar="C", help="clip norm, used for epsilon (default: 1)"
    )


def add_influence_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("influence").add_argument
    add("--directions", type=int, metavar="N", help="random pushes per round (default: 1)")
    add(
        "--by",
        choices=("loss", "model"),
        help="plan with what is left in excess loss (default, where it can be read), or of a push",
    )


def run(args: argparse.Namespace) -> int:
    what = args.what if args.what in ("theory", "influence", "choose") else "search"
    if what in ("theory", "search") and args.config is not None:
        raise InvalidInput(f"{args.config!r} is one argument too many; drop it")
    refuse_strays(args, what)
    if what == "influence":
        from fedspend.cli import design_influence

        return design_influence.run(args)
    if what == "choose":
        return design_choose.run(args)
    return run_theory(args) if what == "theory" else run_search(args)


def refuse_strays(args: argparse.Namespace, what: str) -> None:
    """Refuse flags that belong to something else."""
    for home, names in FLAGS.items():
        for name in names:
            if name not in FLAGS[what] and getattr(args, name) not in (None, []):
                flag = "--" + name.replace("_", "-")
                raise InvalidInput(f"{flag} is only for {HOMES[home]}; drop it")


# --- theory ---------------------------------------------------------------------------------------


def run_theory(args: argparse.Namespace) -> int:
    from fedspend.design.answers import theory_answer

    for name in ("clients", "max_rounds"):
        if getattr(args, name) is None:
            raise InvalidInput(f"'fedspend design theory' needs --{name.replace('_', '-')}")
    if (args.k is None) == (args.k_from is None):
        raise InvalidInput(
            "'fedspend design theory' needs --k, or --k-from with the directory of a search"
        )
    k, interval = (args.k, None) if args.k_from is None else k_of(args.k_from)
    answer = theory_answer(
        k=k,
        k_interval=interval,
        rate=args.rate,
        clients=args.clients,
        rounds=args.rounds,
        max_rounds=args.max_rounds,
        max_noise=args.max_noise,
        max_epsilon=args.max_epsilon,
        delta=args.delta,
        clip=1.0 if args.clip is None else args.clip,
    )
    if args.json:
        print(json.dumps(answer, indent=2, allow_nan=False))
    elif not args.quiet:
        from fedspend.cli.design_tables import show_theory

        show_theory(answer)
    return 0


def k_of(name: str) -> tuple[float, tuple[float, float] | None]:
    """k and its interval from a search."""
    path = Path(name) / "pareto.json" if Path(name).is_dir() else Path(name)
    try:
        found = json.loads(path.read_text(encoding="utf-8"))["k"]
        if found is None:
            raise InvalidInput(
                f"{path} has no estimate of k: its front lies at the limits of the search, or it "
                "searched policies"
            )
        k, low, high = (found[part] for part in ("k", "low", "high"))
        return float(k), None if high is None else (float(low), float(high))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            f"{path} is not the pareto.json of a search; name one that fedspend design wrote"
        ) from None


# --- search ---------------------------------------------------------------------------------------


def run_search(args: argparse.Namespace) -> int:
    from fedspend.basics.extras import need
    from fedspend.design.recommendation import config_of_point, recommend
    from fedspend.design.searching import run_search as search

    if not args.what.endswith(".toml") and not Path(args.what).exists():
        raise InvalidInput(
            f"{args.what!r} is neither a config file nor the word theory; see fedspend design "
            "--help"
        )
    need("torch")  # which processes of their own import
    folder = Path(args.output) if args.output else Path("designs") / Path(args.what).stem
    try:
        with watching(args.quiet or args.json) as progress:
            outcome = search(
                args.what, folder, overrides=args.set, workers=args.workers, progress=progress
            )
    except KeyboardInterrupt:
        raise Stopped(
            f"stopped; finished trainings are kept in {folder}; run the same command to continue"
        ) from None
    findings, chosen, paste = outcome.findings, None, None
    write_front(findings.points(findings.front | findings.real_front), folder)
    if args.max_epsilon is not None or args.max_seconds is not None:
        chosen = recommend(
            findings, outcome.seconds, max_epsilon=args.max_epsilon, max_seconds=args.max_seconds
        )
        paste = config_of_point(findings, chosen)
    draw(findings, folder, chosen)
    if args.json:
        document = findings.document()
        del document["candidates"]
        print(
            json.dumps(
                document | {"folder": str(folder), "recommended": chosen, "config": paste},
                allow_nan=False,
            )
        )
    elif not args.quiet:
        from fedspend.cli.design_tables import show_search

        show_search(findings, folder, chosen, paste)
    return 0


def write_front(points: list[dict[str, Any]], folder: Path) -> None:
    import csv
    import io

    from fedspend.basics.files import write_whole

    text = io.StringIO()
    table = csv.DictWriter(text, list(dict.fromkeys(name for point in points for name in point)))
    table.writeheader()
    table.writerows(points)
    write_whole(folder / "front.csv", text.getvalue().encode())


def draw(findings: Any, folder: Path, chosen: dict[str, Any] | None) -> None:
    from fedspend.report.design_plots import front_plot, solutions_plot

    front_plot(findings, folder / "front.png", chosen)
    if not findings.search.over_policies:
        solutions_plot(findings, folder / "solutions.png")


@contextmanager
def watching(quiet: bool) -> Iterator[Callable[[int, int], None] | None]:
    """A bar with the time left, or one line per training if nobody is watching."""
    if quiet or sys.stderr.isatty():
        from fedspend.cli.terminal import progress_bar

        with progress_bar("training", quiet) as bar:
            yield bar
        return
    start, first = time.monotonic(), -1

    def line(done: int, total: int) -> None:
        nonlocal first
        first = done if first < 0 else first
        left = (
            (time.monotonic() - start) / (done - first) * (total - done) if done > first else None
        )
        words = (
            ""
            if left is None or done == total
            else f", about {left / 60:.0f} min left"
            if left >= 90
            else f", about {left:.0f} s left"
        )
        print(f"{done} of {total} trainings{words}", file=sys.stderr, flush=True)

    yield line
