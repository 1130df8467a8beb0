"""Mutation testing: breaks the code in one place at a time, and sees whether the tests notice.

Guarantee: no source is ever written to; a mutant exists in the processes that test it. It counts as
killed only by a test that passes, under the same conditions, on the code as it is. What was found
is kept as it is found, so a run that was stopped goes on.

    python tools/mutate.py cover -- -n 2            # which test runs which lines: once a checkout
    python tools/mutate.py draw --seed 1 --count 300
    python tools/mutate.py run --suite quick        # tests that are not marked `full`
    python tools/mutate.py run --suite full         # those that are, for the mutants that are left
    python tools/mutate.py report

Whatever has a position and a meaning is a *site*: an operator, a number, a condition, a statement
(`Sites` lists them). `draw` shuffles all sites of the sources and takes the first ones, each as
likely as any other, then one of the ways to break it. A longer draw of the same seed begins with
the shorter one.

A mutant meets the tests that run its statement, those that got a fixture or a module of constants
made by it included; the cheapest first, and among equals those that run little else. What runs on
import only, or in child processes only, meets the tests of the files that run or name its module,
up to a minute's worth. A mutant that does not end, or cannot be imported, is killed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import ctypes
import functools
import hashlib
import importlib
import inspect
import json
import math
import os
import random
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

import pytest

SOURCES = (
    "src/fedspend/accounting",
    "src/fedspend/noise",
    "src/fedspend/server/rounds.py",
    "src/fedspend/ledger/rules.py",
    "src/fedspend/client/bounding.py",
    "src/fedspend/verification",
)
# Imported once, before processes are forked. Nothing that starts threads, and nothing of ours.
WARM = "torch,scipy.stats,dp_accounting,hypothesis,matplotlib.pyplot,sklearn.linear_model,pandas"
# In every process: generated examples are the same, and a core is enough.
CONDITIONS = dict.fromkeys(("CI", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
IMPORTED_LIMIT = 60.0  # seconds of tests for what runs on import only
GRACE = 30.0  # seconds that a mutant may work beyond three times what its tests take
MEMORY = 6 << 30  # bytes; a mutant that asks for more is killed, and not the machine

# --- where code can be broken ---


@dataclass(frozen=True)
class Mutant:
    """Bytes `start` to `end` of a file, `before`, become `after`. The statement is on lines `first`
    to `last`; `imported` if it runs on import. `digest` is that of the file.
    """

    file: str
    digest: str
    start: int
    end: int
    line: int
    first: int
    last: int
    imported: bool
    operator: str
    before: str
    after: str

    @property
    def id(self) -> str:
        return digest_of(f"{self.file} {self.start} {self.end} {self.after}".encode())[:8]

    @property
    def module(self) -> str:
        parts = Path(self.file).with_suffix("").parts
        return ".".join(part for part in parts if part not in ("src", "__init__"))

    def text(self, root: Path) -> bytes:
        """The file with the mutant in it."""
        source = (root / self.file).read_bytes()
        if digest_of(source) != self.digest:
            raise SystemExit(f"{self.file} has changed since the mutants were drawn; draw again")
        return source[: self.start] + self.after.encode() + source[self.end :]


def digest_of(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:16]


COMPARISONS: dict[type[ast.cmpop], tuple[str, tuple[str, ...]]] = {
    ast.Lt: ("<", ("<=", ">")),
    ast.LtE: ("<=", ("<", ">=")),
    ast.Gt: (">", (">=", "<")),
    ast.GtE: (">=", (">", "<=")),
    ast.Eq: ("==", ("!=",)),
    ast.NotEq: ("!=", ("==",)),
    ast.Is: ("is", ("is not",)),
    ast.IsNot: (r"is\s+not", ("is",)),
    ast.In: ("in", ("not in",)),
    ast.NotIn: (r"not\s+in", ("in",)),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: (r"\+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: (r"\*", "/"),
    ast.Div: ("/", "*"),
    ast.FloorDiv: ("//", "*"),
    ast.Mod: ("%", "*"),
    ast.Pow: (r"\*\*", "*"),
}
OPPOSITE = {"min": "max", "minimum": "maximum", "floor": "ceil", "any": "all", "argmin": "argmax"}
OPPOSITE |= {after: before for before, after in OPPOSITE.items()}
WORDS = {"__repr__", "__str__", "warn"}  # what only speaks


class Sites(ast.NodeVisitor):
    """Every site of a module, each with its mutants, but for docstrings, annotations, decorators,
    messages, and code for type checkers. `strict=` of zip is left alone, too: what is right does
    not need it.
    """

    def __init__(self, file: str, source: bytes) -> None:
        self.file, self.source = file, source
        self.digest = digest_of(source)
        self.found: list[list[Mutant]] = []
        self.starts = [0]
        for line in source.splitlines(keepends=True):
            self.starts.append(self.starts[-1] + len(line))
        self.first = self.last = 1
        self.inside = False  # a function
        self.visit(ast.parse(source))

    def span(self, node: Any) -> tuple[int, int]:
        return (
            self.starts[node.lineno - 1] + node.col_offset,
            self.starts[node.end_lineno - 1] + node.end_col_offset,
        )

    def text(self, node: Any) -> str:
        return self.source[slice(*self.span(node))].decode()

    def add(self, operator: str, where: Any, *options: str) -> None:
        start, end = where if isinstance(where, tuple) else self.span(where)
        lines = (self.source.count(b"\n", 0, start) + 1, self.first, self.last)
        place = (self.file, self.digest, start, end, *lines, not self.inside)
        before = self.source[start:end].decode()
        self.found.append([Mutant(*place, operator, before, after) for after in options])

    def between(self, left: ast.AST, right: ast.AST, token: str) -> tuple[int, int]:
        """Where an operator stands: the tree does not say."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.source[start:end])
        found = re.search(token.encode(), gap)
        assert found, (token, gap)
        return start + found.start(), start + found.end()

    def visit(self, node: Any) -> None:
        if isinstance(node, ast.stmt):
            parts: Any = [node]
            if hasattr(node, "body"):  # its head alone: the rest are statements
                parts = [getattr(part, "context_expr", part) for part in ast.iter_child_nodes(node)]
            ends = [part.end_lineno for part in parts if part is node or isinstance(part, ast.expr)]
            self.first, self.last = node.lineno, max([node.lineno, *ends])
        super().visit(node)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for default in (*node.args.defaults, *node.args.kw_defaults):
            if default is not None:
                self.first, self.last = default.lineno, default.end_lineno or default.lineno
                self.visit(default)
        outside, self.inside = self.inside, True
        for statement in [] if node.name in WORDS else node.body:
            self.visit(statement)
        self.inside = outside

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for statement in node.body:
            self.visit(statement)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        pass

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)

    def visit_Raise(self, node: ast.Raise) -> None:
        self.add("raise deleted", node, "pass")

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Call):
            self.add("call deleted", node, "pass")
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        self.add("assignment deleted", node, "pass")
        self.arithmetic(node, node.target, node.value)

    def visit_BinOp(self, node: ast.BinOp) -> None:
        self.arithmetic(node, node.left, node.right)

    def arithmetic(self, node: Any, left: ast.AST, right: ast.AST) -> None:
        words = any(
            isinstance(side, ast.JoinedStr) or isinstance(getattr(side, "value", None), str)
            for side in (left, right)
        )
        if type(node.op) in ARITHMETIC and not words:
            token, after = ARITHMETIC[type(node.op)]
            self.add("arithmetic", self.between(left, right, token), after)
        self.generic_visit(node)

    def visit_Return(self, node: ast.Return) -> None:
        if node.value is not None and self.text(node.value) != "None":
            self.add("returns None", node.value, "None")
        self.generic_visit(node)

    def visit_If(self, node: ast.If | ast.IfExp | ast.While) -> None:
        if re.search("TYPE_CHECKING|__name__", self.text(node.test)):
            return
        endless = isinstance(node, ast.While)
        self.add("condition", node.test, *(("False",) if endless else ("True", "False")))
        self.generic_visit(node)

    visit_IfExp = visit_While = visit_If

    def visit_comprehension(self, node: ast.comprehension) -> None:
        for test in node.ifs:
            self.add("condition", test, "True", "False")
        self.generic_visit(node)

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = pairwise([node.left, *node.comparators])
        for (left, right), operator in zip(sides, node.ops, strict=True):
            token, options = COMPARISONS[type(operator)]
            self.add("comparison", self.between(left, right, token), *options)
        self.generic_visit(node)

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        name, other = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
        after = f" {other} ".join(f"({self.text(value)})" for value in node.values)
        self.add(f"{name} to {other}", node, f"({after})")
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        for kind, name in ((ast.Not, "not dropped"), (ast.USub, "sign dropped")):
            if isinstance(node.op, kind):
                self.add(name, node, f"({self.text(node.operand)})")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, bool):
            self.add("constant", node, repr(not node.value))
        elif isinstance(node.value, int):
            self.add("constant", node, repr(node.value + 1))
        elif isinstance(node.value, float):
            self.add("constant", node, repr(node.value * 2 or 1.0))

    def visit_Slice(self, node: ast.Slice) -> None:
        for bound, move in ((node.lower, "+ 1"), (node.upper, "- 1")):
            if bound is not None and not isinstance(bound, ast.Constant):
                self.add("slice", bound, f"({self.text(bound)}) {move}")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        if name in OPPOSITE:
            end = self.span(node.func)[1]
            self.add("opposite", (end - len(name), end), OPPOSITE[name])
        if name not in WORDS:
            given = [keyword.value for keyword in node.keywords if keyword.arg != "strict"]
            for part in (node.func, *node.args, *given):
                self.visit(part)


def files_of(root: Path, sources: Iterable[str]) -> list[str]:
    """Relative paths of the Python files that are named, or in folders that are."""
    named = (root / source for source in sources)
    found = (sorted(one.rglob("*.py")) if one.is_dir() else [one] for one in named)
    return [path.relative_to(root).as_posix() for path in chain(*found)]


def draw_mutants(root: Path, files: Iterable[str], seed: int, count: int) -> list[Mutant]:
    chance = random.Random(seed)
    sites = [site for file in files for site in Sites(file, (root / file).read_bytes()).found]
    chance.shuffle(sites)
    drawn = [chance.choice(site) for site in sites[:count]]
    for mutant in drawn:
        compile(mutant.text(root), mutant.file, "exec", dont_inherit=True)
    return drawn


# --- which test runs which lines ---


@dataclass(frozen=True)
class Case:
    """`lines` has the lines of each file as bits of a number: those that the test ran, its fixtures
    of a wider scope included. `imported`: those that ran when its file was imported.
    """

    id: str
    seconds: float
    full: bool
    lines: dict[str, int]
    imported: dict[str, int]

    @property
    def file(self) -> str:
        return self.id.partition("::")[0]

    def ran(self, file: str) -> int:
        return self.lines.get(file, 0) | self.imported.get(file, 0)

    @functools.cached_property
    def width(self) -> int:
        return sum(lines.bit_count() for lines in self.lines.values())


class Recorder:
    """A pytest plugin: the context of coverage is the test that runs, the shared fixture that is
    made, or the file that is imported. Before every test the caches of our functions are emptied,
    for a value that an earlier test left there depends on the code, too.
    """

    def __init__(self, folder: Path, root: Path, files: list[str]) -> None:
        import coverage

        self.folder, self.root = folder, root
        self.tests: dict[str, dict[str, Any]] = {}
        self.fixtures: dict[str, dict[str, Any]] = {}  # name: seconds, and what it used
        self.made: dict[int, str] = {}
        self.making: list[dict[str, Any]] = []  # fixtures on the way
        self.caches: list[Any] = []
        self.now = ""  # context
        self._watch_caches()
        self.coverage = coverage.Coverage(
            data_file=folder / f"lines.{os.getpid()}",
            include=[str(root / file) for file in files],
            config_file=False,
            messages=False,
        )
        # Where the tests are handed out, none runs.
        self.coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self.coverage.start()

    def _watch_caches(self) -> None:
        real = functools.lru_cache

        def lru_cache(maxsize: Any = 128, typed: bool = False) -> Any:
            def decorate(function: Callable[..., Any]) -> Any:
                cached = real(maxsize, typed)(function)
                code = getattr(function, "__code__", None)
                if code and Path(code.co_filename).is_relative_to(self.root):
                    self.caches.append(cached)
                return cached

            if callable(maxsize):
                function, maxsize = maxsize, 128
                return decorate(function)
            return decorate

        functools.lru_cache = lru_cache
        functools.cache = lru_cache(None)

    @contextlib.contextmanager
    def context(self, name: str) -> Iterator[None]:
        before, self.now = self.now, name
        self.coverage.switch_context(name)
        try:
            yield
        finally:
            self.now = before
            self.coverage.switch_context(before)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_make_collect_report(self, collector: Any) -> Any:
        if not isinstance(collector, pytest.Module):
            return (yield)
        with self.context(f"file {collector.nodeid}"):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any) -> Any:
        if fixturedef.scope == "function":
            return (yield)
        name = f"fixture {len(self.fixtures)}"
        about = self.fixtures[name] = {"seconds": 0.0, "uses": [], "inner": 0.0}
        for above in self.making:
            above["uses"].append(name)
        self.made[id(fixturedef)] = name
        self.making.append(about)
        began = time.perf_counter()
        try:
            with self.context(name):
                return (yield)
        finally:
            self.making.pop()
            taken = time.perf_counter() - began
            about["seconds"] = taken - about["inner"]
            above = self.making[-1] if self.making else self.running
            above["inner"] += taken

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        for cached in self.caches:
            cached.cache_clear()
        full = item.get_closest_marker("full") is not None
        self.running = {"full": full, "uses": [], "inner": 0.0, "ok": True}
        self.tests[item.nodeid] = self.running
        began = time.perf_counter()
        with self.context(f"test {item.nodeid}"):
            result = yield
        self.running["seconds"] = time.perf_counter() - began - self.running["inner"]
        return result

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_teardown(self, item: Any) -> Any:
        used = getattr(getattr(item, "_request", None), "_fixture_defs", {})
        names = [self.made[id(one)] for one in used.values() if id(one) in self.made]
        self.running["uses"] = names
        return (yield)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.nodeid in self.tests:  # not in the process that hands tests out
            self.tests[report.nodeid]["ok"] &= report.passed or hasattr(report, "wasxfail")

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        found = {"tests": self.tests, "fixtures": self.fixtures}
        (self.folder / f"tests.{os.getpid()}").write_text(json.dumps(found))


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """This module is a plugin where `cover` says so. It begins before anything is imported."""
    if given := os.environ.get("MUTATE_COVER"):
        folder, root, files = json.loads(given)
        early_config.pluginmanager.register(Recorder(Path(folder), Path(root), files))


def record_coverage(root: Path, folder: Path, files: list[str], options: list[str]) -> None:
    """Run the suite, and keep what every test runs in `cover.jsonl`."""
    scratch = Path(tempfile.mkdtemp(prefix="mutate-"))
    environment = {
        **os.environ,
        **CONDITIONS,
        "COVERAGE_CORE": "ctrace",
        "MUTATE_COVER": json.dumps([str(scratch), str(root), files]),
        "PYTHONPATH": with_path(str(Path(__file__).parent)),
    }
    command = [sys.executable, "-m", "pytest", "-p", "mutate", "-p", "no:cacheprovider", *options]
    began = time.perf_counter()
    subprocess.run(command, cwd=root, env=environment, check=False)
    seconds = time.perf_counter() - began
    tests, failed = read_recorded(scratch, root)
    about = {
        "sources": {file: digest_of((root / file).read_bytes()) for file in files},
        "seconds": round(seconds, 1),
        "left out": failed,
    }
    lines = [about, *map(asdict, tests)]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "cover.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    shutil.rmtree(scratch)
    full = sum(test.full for test in tests)
    print(f"{len(tests)} tests ({full} full) in {seconds:.0f} s; {len(failed)} failed or skipped")


def with_path(folder: str) -> str:
    """PYTHONPATH with a folder before what is there."""
    return os.pathsep.join(filter(None, [folder, os.environ.get("PYTHONPATH")]))


def read_recorded(scratch: Path, root: Path) -> tuple[list[Case], list[str]]:
    """From the files of every process that ran tests. Returns tests, and those that are no use."""
    from coverage import CoverageData

    tests, failed = [], []
    for path in sorted(scratch.glob("tests.*")):
        recorded = json.loads(path.read_text())
        ran: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))  # context, file
        data = CoverageData(basename=str(path.with_name(path.name.replace("tests", "lines"))))
        data.read()
        for file in data.measured_files():
            name = Path(file).relative_to(root).as_posix()
            for line, contexts in data.contexts_by_lineno(file).items():
                for context in contexts:
                    ran[context][name] |= 1 << line
        for id, about in recorded["tests"].items():
            if not about["ok"] or "seconds" not in about:
                failed.append(id)
                continue
            used = set(about["uses"])
            used.update(*(recorded["fixtures"][name]["uses"] for name in about["uses"]))
            seconds = about["seconds"] + sum(recorded["fixtures"][n]["seconds"] for n in used)
            lines: dict[str, int] = defaultdict(int)
            for context in (f"test {id}", *used):
                for file, some in ran[context].items():
                    lines[file] |= some
            imported = ran[f"file {id.partition('::')[0]}"]
            tests.append(Case(id, round(seconds, 4), about["full"], dict(lines), dict(imported)))
    return tests, failed


def read_cover(folder: Path, root: Path) -> list[Case]:
    about, *lines = read_lines(folder / "cover.jsonl")
    for file, digest in about["sources"].items():
        if digest_of((root / file).read_bytes()) != digest:
            raise SystemExit(f"{file} has changed since the tests were recorded; cover again")
    return [Case(**line) for line in lines]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON lines; the last may be torn."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


# --- which tests a mutant meets ---


def tests_of(mutant: Mutant, tests: list[Case], root: Path) -> tuple[list[Case], float]:
    """The tests that run the statement of a mutant, in the order in which they are to be tried, and
    for how many seconds of them.
    """
    wanted = sum(1 << line for line in range(mutant.first, mutant.last + 1))
    if not mutant.imported and any(test.lines.get(mutant.file, 0) & wanted for test in tests):
        return in_order([test for test in tests if test.ran(mutant.file) & wanted]), math.inf
    using = {test.file for test in tests if test.lines.get(mutant.file)}
    named = {test.file for test in tests} - using
    using |= {file for file in named if mutant.module in (root / file).read_text(encoding="utf-8")}
    return in_order([test for test in tests if test.file in using]), IMPORTED_LIMIT


def within(tests: list[Case], seconds: float) -> list[Case]:
    """As many as fit, from the first on."""
    chosen = []
    for test in tests:
        if test.seconds <= seconds:
            chosen.append(test)
            seconds -= test.seconds
    return chosen


def in_order(tests: list[Case]) -> list[Case]:
    """Cheapest first, in steps of four times the time; then narrow files, whose tests run little
    else; and the tests of a file together, so that what they share is made once.
    """
    widths: dict[str, list[int]] = defaultdict(list)
    for test in tests:
        widths[test.file].append(test.width)
    width = {file: sum(some) / len(some) for file, some in widths.items()}

    def rank(test: Case) -> tuple[int, float, str]:
        return math.ceil(math.log(max(test.seconds / 0.05, 1), 4)), width[test.file], test.file

    return sorted(tests, key=rank)


def batches(tests: list[Case]) -> Iterator[list[Case]]:
    """Each in a process of its own, for files are imported before the first test of a process. The
    first is small: most mutants die there.
    """
    batch: list[Case] = []
    limit, spent = 2.0, 0.0
    for test in tests:
        if batch and spent + test.seconds > limit:
            yield batch
            batch, spent, limit = [], 0.0, limit * 4
        batch.append(test)
        spent += test.seconds
    if batch:
        yield batch


# --- running them ---


def serve_mutant(name: str, path: str, text: str) -> None:
    """Whoever imports the module in this process gets the text of another file. Child processes
    call this, too: its source is in their `sitecustomize`.
    """
    import importlib.machinery
    import importlib.util
    import os
    import sys

    class Loader(importlib.machinery.SourceFileLoader):
        def get_code(self, _):  # type: ignore[no-untyped-def]
            with open(text, "rb") as file:
                return compile(file.read(), path, "exec", dont_inherit=True)

    class Finder:
        @staticmethod
        def find_spec(wanted, *_):  # type: ignore[no-untyped-def]
            if wanted != name:
                return None
            inside = [os.path.dirname(path)] if path.endswith("__init__.py") else None
            return importlib.util.spec_from_file_location(
                name, path, loader=Loader(name, path), submodule_search_locations=inside
            )

    sys.meta_path.insert(0, Finder)


class Telling:
    """A pytest plugin: runs the wanted tests alone, in their order, and tells what happens."""

    def __init__(self, wanted: list[str], path: Path) -> None:
        self.wanted, self.path = wanted, path

    def tell(self, what: str, id: str) -> None:
        with self.path.open("a") as file:
            file.write(json.dumps([what, id]) + "\n")

    @pytest.hookimpl(trylast=True)
    def pytest_collection_modifyitems(self, session: Any, items: list[Any]) -> None:
        found = {item.nodeid: item for item in items}
        for id in self.wanted:
            if id not in found and not session.testsfailed:
                self.tell("failed", id)  # its name depends on the code
        items[:] = [found[id] for id in self.wanted if id in found]

    def pytest_collectreport(self, report: Any) -> None:
        if report.failed:
            self.tell("not imported", report.nodeid)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tell("began", nodeid)

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.failed:
            self.tell("failed", report.nodeid)


@dataclass(frozen=True)
class Outcome:
    """`how` the first test failed, and which; None if none did."""

    how: str | None = None
    by: str | None = None


def play(root: Path, folder: Path, mutant: Mutant | None, ids: list[str], limit: float) -> Outcome:
    """The outcome of some tests in a forked process, which and whose children are then gone. It may
    work for `limit` seconds, and wait for somewhat more.
    """
    scratch = Path(tempfile.mkdtemp(prefix="mutate-"))
    scratch.chmod(0o755)  # servers of databases run as another user
    child = os.fork()
    if child == 0:
        code = 99
        try:
            code = _in_child(root, folder, scratch, mutant, ids)
        finally:
            os._exit(code)
    deadline = time.monotonic() + 5 * limit
    code: int | None = None
    while code is None and time.monotonic() < deadline and worked(child) < limit:
        time.sleep(0.02)
        done, status = os.waitpid(child, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if done else None
    end_children()
    told = {"began": ids[0]}
    for what, id in read_lines(scratch / "told"):
        if what == "began" or what not in told:  # the last that began, the first that failed
            told[what] = id
    shutil.rmtree(scratch, ignore_errors=True)
    if "failed" in told:
        return Outcome("failed", told["failed"])
    if code is None:
        return Outcome("took too long", told["began"])
    if "not imported" in told:
        of_file = (id for id in ids if id.startswith(told["not imported"]))
        return Outcome("could not run", next(of_file, ids[0]))
    if code not in (0, 1):
        return Outcome("could not run", told["began"])
    return Outcome()  # pytest may answer 1 for what is no failure of a test, such as a slow one


def worked(process: int) -> float:
    """Processor seconds of a process and of its children that have ended. Not those of a clock, for
    who else uses the machine must not kill a mutant.
    """
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def _in_child(
    root: Path, folder: Path, scratch: Path, mutant: Mutant | None, ids: list[str]
) -> int:
    os.setsid()
    bind_processes(adopting=False)
    resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
    log = folder / "logs" / f"{mutant.id if mutant else 'sound'}.txt"
    log.parent.mkdir(exist_ok=True)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(said, stream)
    os.chdir(root)
    temporary = scratch / "tmp"
    temporary.mkdir()
    temporary.chmod(0o755)
    os.environ["TMPDIR"] = str(temporary)
    tempfile.tempdir = None
    if mutant is not None:
        text = scratch / "mutated.py"
        text.write_bytes(mutant.text(root))
        given = (mutant.module, str(root / mutant.file), str(text))
        hook = f"{inspect.getsource(serve_mutant)}\n\nserve_mutant{given!r}\n"
        (scratch / "sitecustomize.py").write_text("from __future__ import annotations\n\n" + hook)
        os.environ["PYTHONPATH"] = with_path(str(scratch))
        serve_mutant(*given)
    files = list(dict.fromkeys(id.partition("::")[0] for id in ids))
    options = ["-x", "-m", "", "-p", "no:cacheprovider", "--rootdir", str(root)]
    sys.argv = ["pytest", *options, *files]
    return int(pytest.main([*options, *files], plugins=[Telling(ids, scratch / "told")]))


def bind_processes(*, adopting: bool) -> None:
    """This process ends with its parent. If `adopting`, children of children that died become its
    own, so that it can end them.
    """
    set_parent_death_signal, set_child_subreaper = 1, 36
    system = ctypes.CDLL(None)
    system.prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    system.prctl(set_child_subreaper, int(adopting), 0, 0, 0)


def end_children() -> None:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    while children := path.read_text().split():
        for child in map(int, children):
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(child, 0)


class Laboratory:
    """Tries mutants, and keeps what it finds in `results.jsonl`."""

    def __init__(self, root: Path, folder: Path, tests: list[Case], most: float) -> None:
        self.root, self.folder, self.tests, self.most = root, folder, tests, most
        self.results = folder / "results.jsonl"
        lines = read_lines(self.results)
        self.sound = {line["sound"]: line["ok"] for line in lines if "sound" in line}

    def keep(self, **line: Any) -> None:
        with self.results.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def is_sound(self, id: str) -> bool:
        """Whether the test that killed a mutant passes on the code as it is."""
        if id not in self.sound:
            limit = 3 * sum(test.seconds for test in self.tests if test.id == id) + 2 * GRACE
            self.sound[id] = play(self.root, self.folder, None, [id], limit).how is None
            self.keep(sound=id, ok=self.sound[id])
        return self.sound[id]

    def attempt(self, mutant: Mutant, suite: str) -> None:
        began = time.perf_counter()
        found, limit = tests_of(mutant, self.tests, self.root)
        of_suite = [test for test in found if test.full == (suite == "full")]
        meets = within(of_suite, min(limit, self.most))
        outcome = Outcome()
        for batch in batches(meets):
            left = [test.id for test in batch if self.sound.get(test.id, True)]
            limit = 3 * sum(test.seconds for test in batch) + GRACE
            while left:
                outcome = play(self.root, self.folder, mutant, left, limit)
                if outcome.by is None or self.is_sound(outcome.by):
                    break
                left.remove(outcome.by)
                outcome = Outcome()
            if outcome.how is not None:
                break
        self.keep(
            mutant=mutant.id,
            suite=suite,
            killed=outcome.how is not None,
            how=outcome.how,
            by=outcome.by,
            tests=len(meets),
            left_out=len(of_suite) - len(meets),
            seconds=round(time.perf_counter() - began, 1),
        )
        said = f"killed by {outcome.by}" if outcome.how else f"survived {len(meets)} tests"
        print(f"{mutant.id} {mutant.file}:{mutant.line} {said}", flush=True)


def run_suite(root: Path, folder: Path, suite: str, workers: int, warm: str, most: float) -> None:
    """Every mutant that is not decided. The full tests meet those that the quick ones left."""
    mutants = [Mutant(**line) for line in read_lines(folder / "mutants.jsonl")]
    found = results_of(folder)
    pending = [mutant for mutant in mutants if (mutant.id, suite) not in found]
    if suite == "full":
        quick = {mutant.id: found.get((mutant.id, "quick")) for mutant in mutants}
        if None in quick.values():
            raise SystemExit("first `run --suite quick`, to its end")
        pending = [mutant for mutant in pending if not (quick[mutant.id] or {})["killed"]]
    os.environ.update(CONDITIONS)
    for name in filter(None, warm.split(",")):
        importlib.import_module(name)
    laboratory = Laboratory(root, folder, read_cover(folder, root), most)
    ours = {mutant.module.partition(".")[0] for mutant in mutants}
    assert not ours & set(sys.modules), "what is mutated must be imported after the fork"
    children = []
    for number in range(workers):
        if child := os.fork():
            children.append(child)
            continue
        bind_processes(adopting=True)
        for mutant in pending[number::workers]:
            laboratory.attempt(mutant, suite)
        os._exit(0)
    codes = [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]
    if any(codes):
        raise SystemExit("a worker failed; the same command goes on from here")


def results_of(folder: Path) -> dict[tuple[str, str], dict[str, Any]]:
    lines = read_lines(folder / "results.jsonl")
    return {(line["mutant"], line["suite"]): line for line in lines if "mutant" in line}


# --- what was found ---


def report(root: Path, folder: Path) -> str:
    """Shares killed, and who survived. `equivalent.txt`, kept by hand, has the ids of mutants that
    change nothing, each with a reason: they are not counted.
    """
    path = folder / "equivalent.txt"
    equal = set(re.findall(r"^\w+", path.read_text(), re.M)) if path.exists() else set()
    found = results_of(folder)
    drawn = [Mutant(**line) for line in read_lines(folder / "mutants.jsonl")]
    tried = [one for one in drawn if (one.id, "quick") in found and one.id not in equal]
    if not tried:
        return "no mutant was tried\n"

    def killed(mutant: Mutant, *suites: str) -> bool:
        return any(found.get((mutant.id, suite), {}).get("killed", False) for suite in suites)

    def share(some: list[Mutant], *suites: str) -> str:
        number = sum(killed(one, *suites) for one in some)
        return f"{number} of {len(some)} ({100 * number / len(some):.1f}%)"

    waiting = [one for one in tried if not killed(one, "quick") and (one.id, "full") not in found]
    said = [f"{len(drawn)} mutants drawn, {len(tried)} tried, {len(equal)} equivalent"]
    said += [f"killed by quick tests: {share(tried, 'quick')}"]
    said += [f"killed by all tests:   {share(tried, 'quick', 'full')}"]
    said += [f"  {len(waiting)} have not met the full tests"] if waiting else []
    spent = sorted(found[one.id, "quick"]["seconds"] for one in tried)
    said += [f"seconds a mutant, quick tests: median {spent[len(spent) // 2]}, most {spent[-1]}"]
    how = Counter(line["how"] for line in found.values() if line["killed"])
    said += ["how they died: " + ", ".join(f"{name} {count}" for name, count in how.items())]
    for title, key in (("operator", "operator"), ("file", "file")):
        said.append(f"\nby {title}: quick, all")
        for name in sorted({getattr(one, key) for one in tried}):
            some = [one for one in tried if getattr(one, key) == name]
            said.append(f"  {name}: {share(some, 'quick')}, {share(some, 'quick', 'full')}")
    said.append("\nsurvivors:")
    for one in tried:
        if not killed(one, "quick", "full"):
            mark = " (quick tests only)" if one in waiting else ""
            met = sum(found.get((one.id, suite), {}).get("tests", 0) for suite in ("quick", "full"))
            line = (root / one.file).read_text(encoding="utf-8").splitlines()[one.line - 1].strip()
            said.append(f"{one.id} {one.file}:{one.line} {one.operator}, {met} tests{mark}")
            said.append(f"    {line}\n    {one.before[:80]!r} -> {one.after[:80]!r}")
    saved = [one for one in tried if not killed(one, "quick") and killed(one, "full")]
    said.append("\nkilled by full tests only:")
    said += [f"{one.id} {one.file}:{one.line} {found[one.id, 'full']['by']}" for one in saved]
    return "\n".join(said) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--folder", type=Path, help="default: build/mutation")
    parser.add_argument("--source", action="append", help="a file or folder, relative to the root")
    actions = parser.add_subparsers(dest="action", required=True)
    covering = actions.add_parser("cover", help="run the tests, and keep which lines each runs")
    covering.add_argument("options", nargs="*", help="for pytest, after --")
    drawing = actions.add_parser("draw", help="draw mutants at random")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--count", type=int, default=300)
    running = actions.add_parser("run", help="try the mutants that are not decided")
    running.add_argument("--suite", choices=("quick", "full"), required=True)
    running.add_argument("--workers", type=int, default=1)
    running.add_argument(
        "--most", type=float, default=math.inf, help="seconds of tests that a mutant meets"
    )
    running.add_argument("--warm", default=WARM, help="modules to import once, before forking")
    actions.add_parser("report", help="print what was found")
    given = parser.parse_args(arguments)
    root = given.root.resolve()
    folder = given.folder.resolve() if given.folder else root / "build" / "mutation"
    files = files_of(root, given.source or SOURCES)
    folder.mkdir(parents=True, exist_ok=True)
    if given.action == "cover":
        record_coverage(root, folder, files, ["-m", "", *given.options])
    elif given.action == "draw":
        drawn = draw_mutants(root, files, given.seed, given.count)
        lines = [json.dumps(asdict(mutant)) + "\n" for mutant in drawn]
        (folder / "mutants.jsonl").write_text("".join(lines))
        print(f"{len(drawn)} mutants: {folder / 'mutants.jsonl'}")
    elif given.action == "run":
        run_suite(root, folder, given.suite, given.workers, given.warm, given.most)
    else:
        print(report(root, folder), end="")


if __name__ == "__main__":
    main()
