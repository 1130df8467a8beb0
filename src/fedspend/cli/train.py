"""`fedspend train`: plans, verifies, trains, and writes a run directory with a report."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspend.cli.flags import add_project, add_set
from fedspend.cli.listening import to_whoever_listens
from fedspend.report.live import terminal_bar
from fedspend.report.round_words import describe, privately, spent_of
from fedspend.runs.stopping import Stopped, stop_after_round
from fedspend.stored.files import LEDGER, REPORT
from fedspend.tasks.words import (
    deviation_key,
    metric_of,
    other_metrics,
    private_key,
    shown,
)

if TYPE_CHECKING:
    from fedspend.runs.result import OnRound, Result

HELP = "plan, verify, train, and write a run directory with a report"
DESCRIPTION = (
    "Make the plan, check it with the independent verifier, train, and leave a run directory: "
    f"plan, certificate, metrics, model and {REPORT}. Every round is charged to a ledger before "
    "it begins: the one named by --ledger; else, for a real run, the ledger of this user, under "
    "--project; for a simulation, one in the run directory. Ctrl-C or SIGTERM stops after the "
    "current round; --resume continues."
)
EXAMPLES = """examples:
  fedspend train examples/quickstart.toml -o runs/first
  fedspend train examples/quickstart.toml -o runs/idp \\
    --set method.name=idp-fedavg --set train.seed=2
  fedspend train examples/quickstart.toml -o runs/first --resume
  fedspend train examples/quickstart.toml -o runs/second --ledger accounts.db
  fedspend train examples/quickstart.toml -o runs/third --ledger accounts.db --remaining
  fedspend train examples/hospitals/hospitals.toml -o runs/hospitals --plan plan.json
  fedspend train examples/quickstart.toml -o runs/signed --sign keys/fedspend.key
  fedspend train our-clinics.toml -o runs/clinics --project clinics
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("config", metavar="CONFIG.toml", help="model, data, method and budgets of the run")
    add(
        "-o",
        "--output",
        metavar="DIR",
        help="run directory (default: runs/ and the name of the config)",
    )
    add(
        "--resume",
        action="store_true",
        help="continue the run in DIR, or start it if there is none",
    )
    add(
        "--plan",
        metavar="PLAN.json",
        help="train under this existing plan instead of making one",
    )
    add(
        "--ledger",
        metavar="PATH|URL",
        help=(
            "ledger to charge: a file (created if missing) or postgresql://user@host/database "
            f"(default for real runs: FEDSPEND_LEDGER, or ~/.local/share/fedspend/{LEDGER})"
        ),
    )
    add_project(add)
    add(
        "--remaining",
        action="store_true",
        help="spend what the ledger has left of each lifetime budget, not the config's budgets",
    )
    add(
        "--replan",
        action="store_true",
        help="with --resume: make up for lost rounds by replanning the rest",
    )
    add(
        "--sign",
        metavar="KEY",
        help="sign the finished run with this private key (fedspend keys new)",
    )
    add(
        "--moved",
        action="store_true",
        help="with --resume: the run directory was moved here; it goes on here and nowhere else",
    )
    add_set(add, "train.seed=2")
    add(
        "--json",
        action="store_true",
        help="print one JSON object per round, then a summary, instead of a progress bar",
    )
    add(
        "--logger",
        action="append",
        default=[],
        metavar="NAME",
        help="also log to tensorboard, mlflow or wandb (may be repeated)",
    )
    add(
        "--watch",
        action="store_true",
        help="show the report in a browser while the run goes on (fedspend watch)",
    )
    add("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    from fedspend.report.html import write_report
    from fedspend.runs.training import train

    folder = Path(args.output) if args.output else Path("runs") / Path(args.config).stem
    overrides = [*args.set, *(["ledger.spend=remaining"] if args.remaining else [])]
    with (
        stop_after_round() as stopping,
        watched(folder, args.watch),
        reporter(args) as show,
        report_when_stopped(folder),
    ):

        def on_round(line: dict[str, Any], rounds: int) -> None:
            with to_whoever_listens():
                show(line, rounds)
            if stopping() and line["round"] < rounds:
                raise Stopped(
                    f"stopped after round {line['round']} of {rounds}; continue with: "
                    f"{to_go_on(args, folder)}"
                )

        def on_note(note: str) -> None:
            if not args.quiet:
                with to_whoever_listens():
                    print(f"{folder}: {note}", file=sys.stderr, flush=True)

        result = train(
            args.config,
            overrides=overrides,
            output=folder,
            plan=args.plan,
            resume=args.resume,
            replan=args.replan,
            moved=args.moved,
            ledger=args.ledger,
            sign=args.sign,
            project=args.project,
            on_round=on_round,
            on_note=on_note,
            loggers=args.logger,
            progress=False,
        )
    write_report([folder], REPORT.of(folder))
    with to_whoever_listens():
        summarise(args, result, folder)
        sys.stdout.flush()
    return 0


def to_go_on(args: argparse.Namespace, folder: Path) -> str:
    """The command that goes on with a stopped run: all that was given, and --resume.

    Lost rounds were made up for and a move was settled when the run began, so --replan and --moved
    are not needed again. A password is not shown; the database has to ask for it.
    """
    from fedspend.runs.run_ledger import shown as without_password

    command = ["fedspend"]
    for file in args.load:
        command += ["--load", file]
    command += ["train", args.config, "-o", str(folder)]
    ledger = None if args.ledger is None else without_password(args.ledger)
    for flag, values in (
        ("--plan", [args.plan]),
        ("--ledger", [ledger]),
        ("--project", [args.project]),
        ("--sign", [args.sign]),
        ("--set", args.set),
        ("--logger", args.logger),
    ):
        for value in values:
            command += [] if value is None else [flag, value]
    for name in ("remaining", "json", "watch", "quiet"):
        command += [f"--{name.replace('_', '-')}"] if getattr(args, name) else []
    return shlex.join([*command, "--resume"])


@contextmanager
def watched(folder: Path, wanted: bool) -> Iterator[None]:
    """Serves the report of the run while it goes on, if that is `wanted`."""
    if not wanted:
        yield
        return
    from fedspend.pages.serving import open_browser, serving
    from fedspend.pages.watch import watch_site

    with serving(watch_site(folder, expected=True)) as served:
        print(f"watch: {served.address}", file=sys.stderr, flush=True)
        open_browser(served)
        yield


@contextmanager
def report_when_stopped(folder: Path) -> Iterator[None]:
    """Write a report of the rounds so far if the user stops the run."""
    from fedspend.report.html import write_report

    try:
        yield
    except Stopped:
        write_report([folder], REPORT.of(folder))
        raise


@contextmanager
def reporter(args: argparse.Namespace) -> Iterator[OnRound]:
    """Shows rounds as JSON, as a bar, as lines if nobody is watching, or not at all."""
    if args.quiet:
        yield lambda _record, _rounds: None
    elif args.json:
        yield lambda line, _rounds: print(json.dumps(line), flush=True)
    elif not sys.stderr.isatty():
        yield lambda line, rounds: print(describe(line, rounds), file=sys.stderr, flush=True)
    else:
        with terminal_bar("planning and verifying") as move:
            yield lambda line, rounds: move(line["round"], rounds, describe(line, rounds))


def budgets_by_group(result: Result, folder: Path) -> dict[str, str]:
    """The budgets of each group, if groups have names."""
    from fedspend.basics.words import span
    from fedspend.report.groups import group_clients
    from fedspend.stored.run import StoredRun

    groups = StoredRun(folder).facts().groups
    if result.plan is None or groups is None or len(groups) != result.plan.budget.size:
        return {}
    grouping = group_clients(result.plan, groups)
    if not grouping.named:
        return {}
    return {
        label: span(result.plan.budget[members])
        for label, members in zip(grouping.labels, grouping.members, strict=True)
    }


def said_of(last: dict[str, Any]) -> str:
    """How good the model is, as far as that may be said."""
    metric, parts = metric_of(last), []
    for name in (metric, *other_metrics(last)):
        if last.get(name) is not None:
            parts.append(shown(name, last[name], digits=2))
    if last.get(private_key(metric)) is not None:
        parts.append(f"before the last round, privately: {privately(last)}")
    return "; ".join(parts) or f"{metric} not shown (evaluation: {last['evaluation']})"


def ending_of(result: Result) -> str:
    """A sentence if the model is not that of the last planned round, by a stopping rule."""
    done, kept = result.metrics[-1]["round"], result.kept_round
    if not result.stopped_early:
        return "" if kept == done else f"The best model is kept: that of round {kept} of {done}."
    which = "the best one is kept" if kept != done else "that model is kept"
    charged = "" if result.plan is None else "; the rounds that it left out stay charged"
    return f"Stopped early, after round {done}: no better model since; {which}{charged}."


def is_own(ledger: str | None, folder: Path) -> bool:
    """Whether a ledger is the one in the run directory, which nothing else is charged to."""
    return ledger is not None and Path(ledger).resolve() == LEDGER.of(folder).resolve()


def summarise(args: argparse.Namespace, result: Result, folder: Path) -> None:
    if args.json:
        print(json.dumps(summary_of(result, folder)))
    elif not args.quiet:
        print_summary(result, folder)


def summary_of(result: Result, folder: Path) -> dict[str, Any]:
    """What `--json` prints at the end of a run."""
    from fedspend.server.early_stopping import of_kept
    from fedspend.stored.run import EPSILON_OF

    last, kept = result.metrics[-1], of_kept(result.metrics)
    found: dict[str, Any] = {"folder": str(folder), "rounds": last["round"]}
    if result.stopped_early:
        found["stopped_early"] = True
    if result.kept_round != last["round"]:
        found["kept_round"] = result.kept_round
    found[result.metric] = result.value
    found |= {name: kept[name] for name in other_metrics(last)}
    found["evaluation"] = last["evaluation"]
    if result.private_value is not None:
        found[private_key(result.metric)] = result.private_value
        found[deviation_key(result.metric)] = last[deviation_key(result.metric)]
    if EPSILON_OF in last:
        found[EPSILON_OF] = last[EPSILON_OF]
    return found | {
        "epsilon": last["epsilon"],
        "ledger": result.ledger,
        "project": result.project or None,
        "run": result.run or None,
    }


def print_summary(result: Result, folder: Path) -> None:
    from fedspend.basics.words import counted
    from fedspend.server.early_stopping import of_kept
    from fedspend.stored.run import EPSILON_OF, IN_ALL_RUNS

    last = result.metrics[-1]
    simulation = last["randomness"] == "seeded"
    kind = (
        "a simulation that protects nobody"
        if simulation
        else "randomness from the operating system"
    )
    spent = spent_of(last["epsilon"], budgets_by_group(result, folder)) or "no privacy, no budget"
    if last.get(EPSILON_OF) == IN_ALL_RUNS:
        spent += " of lifetime budgets, including what was spent before"
    told = said_of(of_kept(result.metrics))
    print(f"{told} after {counted(result.kept_round, 'round')} ({kind})")
    stopping = ending_of(result)
    if stopping:
        print(stopping)
    print(f"epsilon spent: {spent}")
    if result.ledger is not None and not (simulation and is_own(result.ledger, folder)):
        simulated = " (simulated accounts)" if simulation else ""
        project = f", project {result.project!r}" if result.project else ""
        print(f"Charged to: {result.ledger}{simulated}{project}, run {result.run}")
        if not is_own(result.ledger, folder):
            check = shlex.join(["fedspend", "verify", str(folder), "--ledger", result.ledger])
            print(f"Check it with: {check}")
    print(f"Report: {REPORT.of(folder)}")
