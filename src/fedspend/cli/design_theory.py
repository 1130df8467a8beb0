"""`fedspend design theory`: the closed form k sigma^2 T = q K, without training."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from fedspend.errors import InvalidInput

FLAGS = (
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


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument_group("theory").add_argument
    add("--k", type=float, metavar="K", help="the constant k in k sigma^2 T = q K")
    add("--k-from", metavar="DIR", help="take k from a search: its directory or its pareto.json")
    add("--rate", type=float, metavar="Q", help="sampling rate; if not given, the rate is free")
    add("--clients", type=int, metavar="K", help="number of clients")
    add("--rounds", type=int, metavar="T", help="solve for this many rounds only")
    add("--max-rounds", type=int, metavar="T", help="the most rounds you have time for")
    add("--max-noise", type=float, metavar="S", help="the highest noise level you allow")
    add("--delta", type=float, metavar="D", help="also show the real epsilon at this delta")
    add("--clip", type=float, metavar="C", help="clip norm, used for epsilon (default: 1)")


def run(args: argparse.Namespace) -> int:
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
                f"{path} has no estimate of k: its front lies at the limits of the search"
            )
        k, low, high = (found[part] for part in ("k", "low", "high"))
        return float(k), None if high is None else (float(low), float(high))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise InvalidInput(
            f"{path} is not the pareto.json of a search; name one that fedspend design wrote"
        ) from None
