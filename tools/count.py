"""How large the project is, beside how large it should be: the table that `make count` prints.

    python tools/count.py [--run] [--json]      # --run also trains the quickstart

Every number is measured from the tree, and smaller is better. A row has a target and a ceiling. A
number that has come down to its ceiling stays there: its row says `reached=True`, and from then on
the exit code is 1 if the number is above the ceiling. It is 1 as well while a number is at its
ceiling and its row does not say so: nobody has to remember to write it down.

What is counted:

- code lines: lines of modules with code on them; blank lines, comments and docstrings do not count,
  and lines inside other strings do
- modules: Python files of the package
- files that a quickstart run crosses: modules of the package of which `fedspend train
  examples/quickstart.toml` runs a function or the body of a class; one whose top level is all that
  runs, because another imports it, is not crossed
- lines of tests, of benchmarks: all lines of the Python files in these folders
- one-word function names: functions and methods whose name has no underscore between two words, of
  those whose name is not Python's own (`__init__`)
- parameters: those that have a name; `self`, `cls`, `*args` and `**kwargs` do not count
- `dict[str, Any]`: how often that is written in the package
- commands: names that `fedspend --help` lists
- words of docs: in Markdown files of docs and at the top of the repository
"""

from __future__ import annotations

import argparse
import ast
import io
import json
import os
import re
import subprocess
import sys
import tempfile
import tokenize
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
QUICKSTART = "examples/quickstart.toml"
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}
_Function = ast.FunctionDef | ast.AsyncFunctionDef


# --- what is counted ---


def count_code_lines(root: Path) -> int:
    return sum(len(_lines_with_code(text)) for text in _sources(root))


def count_modules(root: Path) -> int:
    return len(list(_sources(root)))


def count_crossed_files(root: Path) -> int:
    """Trains the quickstart in a process of its own, which writes down what is called.

    Workers that it starts are not watched: they run what this process runs in other settings.
    """
    with tempfile.TemporaryDirectory() as folder:
        found = Path(folder, "found.json")
        arguments = ["train", QUICKSTART, "--output", str(Path(folder, "run")), "--quiet"]
        environment = _environment(root) | {"FEDSPEND_LEDGER": str(Path(folder, "ledger.db"))}
        subprocess.run(
            [sys.executable, "-c", _WATCHED, str(found), *arguments],
            cwd=root,
            env=environment,
            check=True,
        )
        files = {Path(name).resolve() for name in json.loads(found.read_text(encoding="utf-8"))}
    package = _package(root).resolve()
    return sum(package in file.parents for file in files)


def count_test_lines(root: Path) -> int:
    return _lines_below(root / "tests")


def count_benchmark_lines(root: Path) -> int:
    return _lines_below(root / "benchmarks")


def share_one_word_names(root: Path) -> float:
    """In percent."""
    names = [function.name for function in _functions(root)]
    ours = [name for name in names if not (name.startswith("__") and name.endswith("__"))]
    return 100 * sum("_" not in name.strip("_") for name in ours) / max(len(ours), 1)


def count_long_signatures(root: Path) -> int:
    return sum(len(_parameters(function)) >= 8 for function in _functions(root))


def count_untyped_dicts(root: Path) -> int:
    return sum(text.count("dict[str, Any]") for text in _sources(root))


def count_commands(root: Path) -> int:
    done = subprocess.run(
        [sys.executable, "-m", "fedspend", "--help"],
        cwd=root,
        env=_environment(root) | {"COLUMNS": "100"},
        check=True,
        capture_output=True,
        text=True,
    )
    return len(re.findall(r"^ {2,4}[a-z][a-z-]*(?= {2}|$)", done.stdout, re.M))


def count_doc_words(root: Path) -> int:
    pages = [*root.glob("*.md"), *(root / "docs").rglob("*.md")]
    return sum(len(page.read_text(encoding="utf-8").split()) for page in pages)


# --- the table ---


@dataclass(frozen=True)
class Row:
    """A number and where it should come to; `reached` once it was at its ceiling."""

    name: str
    measure: Callable[[Path], float]
    target: int
    ceiling: int
    reached: bool = False
    runs: bool = False  # measured by a run that takes a while
    share: bool = False  # in percent


ROWS = (
    Row("code lines of src", count_code_lines, 30_000, 34_000),
    Row("modules", count_modules, 260, 285),
    Row("files that a quickstart run crosses", count_crossed_files, 110, 125, runs=True),
    Row("lines of tests", count_test_lines, 30_000, 36_000),
    Row("lines of benchmarks", count_benchmark_lines, 5_900, 7_000),
    Row("one-word function names", share_one_word_names, 30, 35, share=True),
    Row("functions with 8 or more parameters", count_long_signatures, 10, 14),
    Row("dict[str, Any]", count_untyped_dicts, 60, 100),
    Row("commands at the top of --help", count_commands, 17, 17),
    Row("words of docs", count_doc_words, 40_000, 40_000),
)


def measure_rows(root: Path, rows: Sequence[Row], *, run: bool) -> list[tuple[Row, float]]:
    return [(row, row.measure(root)) for row in rows if run or not row.runs]


def find_faults(measured: Sequence[tuple[Row, float]]) -> list[str]:
    """What got worse again, and what is reached and not yet written down."""
    worse = [
        f"{row.name}: {_shown(now, row)} is above {_shown(row.ceiling, row)}, which was reached"
        for row, now in measured
        if row.reached and not now <= row.ceiling
    ]
    better = [
        f"{row.name}: {_shown(now, row)} is within {_shown(row.ceiling, row)} for the first time; "
        "write reached=True into its row in tools/count.py, so that it stays there"
        for row, now in measured
        if not row.reached and now <= row.ceiling
    ]
    return worse + better


def format_table(measured: Sequence[tuple[Row, float]]) -> str:
    lines = [("", "now", "target", "ceiling", "")]
    lines += [
        (
            row.name,
            _shown(now, row),
            _shown(row.target, row),
            _shown(row.ceiling, row),
            "reached" if row.reached else "",
        )
        for row, now in measured
    ]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        f"{name:<{widths[0]}}"
        + "".join(f"  {cell:>{width}}" for cell, width in zip(cells, widths[1:4], strict=True))
        + f"  {mark}".rstrip()
        for name, *cells, mark in lines
    )


def format_json(measured: Sequence[tuple[Row, float]]) -> str:
    return json.dumps(
        [
            {
                "name": row.name,
                "now": round(now, 1),
                "target": row.target,
                "ceiling": row.ceiling,
                "reached": row.reached,
            }
            for row, now in measured
        ],
        indent=2,
    )


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="How large the project is.")
    parser.add_argument("--run", action="store_true", help="also what a quickstart run crosses")
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    measured = measure_rows(ROOT, ROWS, run=args.run)
    print(format_json(measured) if args.json else format_table(measured))
    faults = find_faults(measured)
    for fault in faults:
        print(fault, file=sys.stderr)
    return 1 if faults else 0


# --- reading the tree ---


def _package(root: Path) -> Path:
    return root / "src" / "fedspend"


def _environment(root: Path) -> dict[str, str]:
    """The package of this tree, whatever is installed."""
    return {**os.environ, "PYTHONPATH": str(root / "src")}


def _sources(root: Path) -> Iterator[str]:
    for path in sorted(_package(root).rglob("*.py")):
        yield path.read_text(encoding="utf-8")


def _functions(root: Path) -> Iterator[_Function]:
    for text in _sources(root):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, _Function):
                yield node


def _parameters(function: _Function) -> list[str]:
    given = function.args
    named = (*given.posonlyargs, *given.args, *given.kwonlyargs)
    return [one.arg for one in named if one.arg not in ("self", "cls")]


def _lines_with_code(text: str) -> set[int]:
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    used = {
        line
        for token in tokens
        if token.type not in _NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    return used - _docstring_lines(text)


def _docstring_lines(text: str) -> set[int]:
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {
        line
        for node in ast.walk(ast.parse(text))
        if isinstance(node, documented) and ast.get_docstring(node, clean=False) is not None
        for line in range(node.body[0].lineno, (node.body[0].end_lineno or 0) + 1)
    }


def _lines_below(folder: Path) -> int:
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))


def _shown(number: float, row: Row) -> str:
    return f"{number:.1f}%" if row.share else f"{number:,.0f}"


# A trace function that returns None is called once for each call, and not for each line.
_WATCHED = """
import json, runpy, sys, threading

called = set()

def watch(frame, event, argument):
    called.add(frame.f_code)

out, *arguments = sys.argv[1:]
sys.argv = ["fedspend", *arguments]
threading.settrace(watch)
sys.settrace(watch)
try:
    runpy.run_module("fedspend", run_name="__main__", alter_sys=True)
except SystemExit as ended:
    if ended.code:
        raise
finally:
    sys.settrace(None)
    threading.settrace(None)
files = {code.co_filename for code in called.copy() if code.co_name != "<module>"}
with open(out, "w", encoding="utf-8") as file:
    json.dump(sorted(files), file)
"""


if __name__ == "__main__":
    sys.exit(main())
