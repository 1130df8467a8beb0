"""The `fedspend` command: every failure becomes one line on stderr and an exit code.

Exit codes: 0 done, 1 refused or failed verification, 2 bad input, 3 something outside failed (a
database, a disk, a network), 130 interrupted, by Ctrl-C or SIGTERM. Help imports nothing but the
standard library: commands load numpy, rich and the rest inside their `run`.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import io
import os
import re
import shlex
import signal
import sys
import textwrap
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import BrokenExecutor
from itertools import pairwise
from types import FrameType
from typing import Any, NoReturn

from fedspend.basics.door import command_line, for_command
from fedspend.basics.extras import explained as explained_missing
from fedspend.basics.removed import refuse_removed
from fedspend.cli import (
    audit,
    compare,
    data,
    design,
    explain,
    flower,
    glossary,
    keys,
    ledger,
    new,
    node,
    plan,
    planner,
    predict,
    publish,
    records,
    report,
    train,
    tune,
    verify,
    watch,
)
from fedspend.cli.listening import to_whoever_listens
from fedspend.cli.names import NAMES, registered
from fedspend.errors import (
    FedspendError,
    FedspendWarning,
    InvalidInput,
    exit_code_of,
)

COMMANDS = {
    "new": new,
    "plan": plan,
    "planner": planner,
    "verify": verify,
    "explain": explain,
    "audit": audit,
    "train": train,
    "watch": watch,
    "predict": predict,
    "report": report,
    "publish": publish,
    "compare": compare,
    "tune": tune,
    "records": records,
    "ledger": ledger,
    "keys": keys,
    "flower": flower,
    "node": node,
    "design": design,
    "data": data,
    "glossary": glossary,
}


class Parser(argparse.ArgumentParser):
    """argparse that raises instead of printing its usage and exiting, and takes whatever begins
    like a negative number for a value: `--epsilon -1:10`, `--delta -1e-5`.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._negative_number_matcher = re.compile(r"-\.?\d")

    def error(self, message: str) -> NoReturn:
        for kind, wanted in (("int", "a whole number"), ("float", "a number")):
            message = message.replace(f": invalid {kind} value:", f": must be {wanted}, got")
        if found := re.match(r"argument ACTION: invalid choice: '([^']*)'", message):
            known = next(
                list(one.choices)
                for one in self._actions
                if isinstance(one, argparse._SubParsersAction)
            )
            raise InvalidInput(f"unknown action {found[1]!r}; {nearest(found[1], known)}")
        raise InvalidInput(f"{message}; see {self.prog} --help")


class Help(argparse.RawDescriptionHelpFormatter):
    """Puts the names of entries, built-in and loaded, where the help has them in braces.

    Descriptions are filled to the width; examples, which have line breaks of their own, stay.
    """

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if "\n" in text:
            return super()._fill_text(text, width, indent)
        return textwrap.fill(text, width, initial_indent=indent, subsequent_indent=indent)

    def _expand_help(self, action: argparse.Action) -> str:
        text = super()._expand_help(action)
        # if a file was loaded, numpy is there already
        known = registered() if "numpy" in sys.modules else NAMES
        for what, names in known.items() if "{" in text else ():
            text = text.replace(f"{{{what}}}", names)
        return text


class Version(argparse.Action):
    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from fedspend import __version__

        print(f"fedspend {__version__}")
        parser.exit()


def build_parser(only: str | None = None) -> tuple[Parser, dict[str, Parser]]:
    """The parser, and those of the commands, of which `only` one may be given its arguments: they
    are many.
    """
    top = Parser(
        prog="fedspend",
        description=(
            "Differentially private federated learning in which every participant sets a privacy "
            "budget."
        ),
        epilog=(
            "fedspend COMMAND --help explains a command. Exit codes: 0 done; 1 refused, or a check "
            "failed; 2 bad input; 3 a database, disk or network failed."
        ),
        allow_abbrev=False,
    )
    top.add_argument("--version", action=Version, nargs=0, help="print the version and exit")
    top.add_argument(
        "--load",
        action="append",
        default=[],
        metavar="FILE.py",
        help="first run a Python file that registers your own entries (may be repeated)",
    )
    commands = top.add_subparsers(dest="command", metavar="COMMAND")
    parsers = {}
    for name, module in COMMANDS.items():
        parser = commands.add_parser(
            name,
            help=module.HELP,
            description=module.DESCRIPTION,
            epilog=module.EXAMPLES,
            formatter_class=Help,
            allow_abbrev=False,
        )
        parsers[name] = parser
        if only in (None, name):
            module.add_arguments(parser)
    return top, parsers


def parse(argv: Sequence[str]) -> argparse.Namespace:
    refuse_removed(*commands_and_flags(argv))
    top, parsers = build_parser(only=argv[0] if argv and argv[0] in COMMANDS else None)
    if argv and not argv[0].startswith("-") and argv[0] not in parsers:
        raise InvalidInput(f"unknown command {argv[0]!r}; {nearest(argv[0], parsers)}")
    args, extra = top.parse_known_args(argv)
    if args.command is None:
        raise InvalidInput(
            "no command; the commands are " + ", ".join(parsers) + "; see fedspend --help"
            if not extra
            else unknown(extra[0], top)
        )
    if extra:
        raise InvalidInput(unexpected(extra[0], args, parsers[args.command]))
    return args


def unexpected(argument: str, args: argparse.Namespace, parser: Parser) -> str:
    """What to write in place of an argument that the command, or its action, does not take."""
    whole = parser_of(args, parser)
    if argument.startswith("-") or "--client" not in options_of(whole):
        return unknown(argument, parser)
    return (
        f"unexpected argument {argument!r}; if it is a client: --client {shlex.quote(argument)}; "
        f"see {whole.prog} --help"
    )


def commands_and_flags(argv: Sequence[str]) -> list[str]:
    """What is asked for, with and without values.

    >>> commands_and_flags(["--load", "a.py", "plan", "run.toml", "--rate=1"])
    ['fedspend plan', 'fedspend plan run.toml', '--rate', 'fedspend plan --rate', \
'fedspend plan run.toml --rate', '--rate 1']
    """
    rest = list(argv)
    while rest and rest[0].startswith("--load"):
        del rest[: 1 + ("=" not in rest[0])]
    names = [" ".join(["fedspend", *rest[:length]]) for length in (1, 2)]
    flags = [word.partition("=")[0] for word in rest if word.startswith("--")]
    valued = " ".join(rest).replace("=", " ").split()
    pairs = (" ".join(pair) for pair in pairwise(valued) if pair[0].startswith("--"))
    return [*names, *flags, *(f"{name} {flag}" for name in names for flag in flags), *pairs]


def unknown(argument: str, parser: argparse.ArgumentParser) -> str:
    if not argument.startswith("-"):
        return f"unexpected argument {argument!r}; see {parser.prog} --help"
    flag = argument.partition("=")[0]
    if flag == "--load":
        return "--load goes before the command: fedspend --load FILE.py COMMAND ..."
    known = [option for action in parser._actions for option in action.option_strings]
    others = [
        name
        for name, other in build_parser()[1].items()
        if any(flag in action.option_strings for action in other._actions)
    ]
    if others and not alike(flag, known):
        return f"{parser.prog} has no {flag}, which is for {', '.join(others)}; see its --help"
    return f"unknown option {flag!r}; {nearest(flag, known)}"


def nearest(name: str, known: Iterable[str]) -> str:
    known = list(known)
    near = alike(name, known)
    return f"did you mean {near[0]!r}?" if near else f"use one of {', '.join(known)}"


def alike(name: str, known: Iterable[str]) -> list[str]:
    """Names that this one may be meant for."""
    bare = {one.strip("-"): one for one in known}
    given = name.strip("-")
    # an abbreviation first: --eps is --epsilon
    near = [one for word, one in bare.items() if word.startswith(given) and len(given) > 1]
    return near or [bare[word] for word in difflib.get_close_matches(given, bare, 1, cutoff=0.65)]


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # a terminal without arrow characters shows question marks
        sys.stdout.reconfigure(errors="replace")
    given = list(sys.argv[1:] if argv is None else argv)
    with sigterm_like_interrupt(), command_line():
        return explained(lambda: _run(given))


def _run(given: Sequence[str]) -> int:
    for file in files_to_load(given):
        load(file)
    args = parse(given)
    args.typed = list(given)
    return _of_command(args)


def _of_command(args: argparse.Namespace) -> int:
    try:
        with short_warnings():
            code: int = COMMANDS[args.command].run(args)
            sys.stdout.flush()
    except FedspendError as error:
        error.args = (for_command(str(error), flags_of(args)), *error.args[1:])
        raise
    return code


def flags_of(args: argparse.Namespace) -> set[str]:
    """The flags that the given command, or its action, has, and those of all."""
    top, parsers = build_parser(only=args.command)
    return options_of(top) | options_of(parser_of(args, parsers[args.command]))


def parser_of(args: argparse.Namespace, parser: argparse.ArgumentParser) -> argparse.ArgumentParser:
    """The parser of the action that was given, or of the command, if it has none."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            parser = action.choices.get(getattr(args, action.dest), parser)
    return parser


def options_of(parser: argparse.ArgumentParser) -> set[str]:
    return {option for action in parser._actions for option in action.option_strings}


def explained(run: Callable[[], int]) -> int:
    """The exit code of `run`, whose failures are explained in one line each."""
    try:
        return run()
    except SystemExit as leaving:  # --help and --version
        return int(leaving.code or 0)
    except FedspendError as error:
        return complain(str(error), error.exit_code)
    except BrokenPipeError:  # the reader of our output is gone: `fedspend plan ... | head`
        silence_stdout()
        return 141
    except OSError as error:
        try:
            sys.stdout.flush()
        except OSError:
            silence_stdout()
        return complain(reason(error), exit_code_of(error))
    except BrokenExecutor:
        return complain("a process at work on this was killed; was there too little memory?", 3)
    except ModuleNotFoundError as error:
        told = explained_missing(error)
        if told is None:
            raise
        return complain(str(told), told.exit_code)
    except MemoryError:
        return complain("out of memory; use fewer clients or rounds at a time", 2)
    except KeyboardInterrupt:
        return complain("interrupted", 130)


@contextlib.contextmanager
def sigterm_like_interrupt() -> Iterator[None]:
    """SIGTERM stops a command as Ctrl-C does: what is under way is cleaned up."""

    here = os.getpid()

    def interrupt(_signal: int, _frame: FrameType | None) -> None:
        if os.getpid() == here:
            raise KeyboardInterrupt
        # a worker that was forked from here ends as workers do
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTERM)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def files_to_load(argv: Sequence[str]) -> list[str]:
    """What `--load` names before the command: loaded first, so that help knows of it.

    >>> files_to_load(["--load", "a.py", "--load=b.py", "plan", "--load", "c.py"])
    ['a.py', 'b.py']
    """
    files, rest = [], list(argv)
    while rest and rest[0].startswith("--load"):
        option, equals, file = rest.pop(0).partition("=")
        if option != "--load" or not (equals or rest):
            break  # for the parser to complain about
        files.append(file if equals else rest.pop(0))
    return files


def load(file: str) -> None:
    """Run a user's own file; whatever it raises is reported in one line."""
    import runpy

    try:
        runpy.run_path(file, run_name="fedspend_own")
    except (FedspendError, OSError):
        raise
    except Exception as error:
        raise InvalidInput(f"--load {file}: {type(error).__name__}: {error}") from error


def reason(error: OSError) -> str:
    cause = error.strerror or str(error) or type(error).__name__
    # Opening a file names it; a write that fails later, to a file or to stdout, does not.
    return (
        f"cannot write: {cause}"
        if error.filename is None
        else f"cannot use {os.fsdecode(error.filename)!r}: {cause}"
    )


def complain(message: str, code: int) -> int:
    print(f"fedspend: {one_line(message)}", file=sys.stderr)
    return code


def one_line(message: str) -> str:
    """Without line breaks or control characters that a file name could smuggle into a terminal."""
    return "".join(c if c.isprintable() else "?" for c in " ".join(message.split()))


@contextlib.contextmanager
def short_warnings() -> Iterator[None]:
    """Show our own warnings as one line each, once; others as Python shows them."""
    said: set[str] = set()
    with warnings.catch_warnings():
        show = warnings.showwarning

        def show_short(
            message: Warning | str, category: type[Warning], *rest: Any, **named: Any
        ) -> None:
            if not issubclass(category, FedspendWarning):
                show(message, category, *rest, **named)
            elif str(message) not in said:
                said.add(str(message))
                with to_whoever_listens():
                    print(f"warning: {one_line(str(message))}", file=sys.stderr)

        warnings.showwarning = show_short
        warnings.simplefilter("always", FedspendWarning)
        yield


def silence_stdout() -> None:
    """Point stdout at nothing, so that the interpreter's last flush does not complain again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


if __name__ == "__main__":
    sys.exit(main())
