"""Mutation testing: breaks the code in one place at a time, and sees whether the tests notice.

Guarantee: no source is ever written to; a mutant exists in the processes that test it. It counts as
killed only by a test that passes, under the same conditions, on the code as it is. What was found
is kept as it is found, so a run that was stopped goes on.

    python tools/mutate.py cover -- -n 2            # which test runs which lines: once a checkout
    python tools/mutate.py draw --seed 1 --count 300
    python tools/mutate.py run --suite quick        # tests that are not marked `full`
    python tools/mutate.py run --suite full         # those that are, for the mutants that are left
    python tools/mutate.py report
    python tools/mutate.py try ID -- tests/accounting

A mutant meets the tests that run its statement, the cheapest first; if it runs on import only, or
in child processes only, the tests of the files that run or name its module. All tests are imported
once. For each mutant that process is forked, and in the fork the functions of the file get the code
that they have in the mutant. A mutant on which other values may depend that exist by then is
imported anew instead, by a process of its own. A mutant that does not end is killed.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import gc
import json
import math
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from itertools import accumulate, chain
from multiprocessing import get_context
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from covering import (
    CONDITIONS,
    Case,
    caches_of,
    processor_seconds,
    read_cover,
    read_lines,
    record_coverage,
    with_paths,
    write_lines,
)
from mutants import Mutant, draw_mutants, files_of

SOURCES = (
    "src/fedspend/accounting",
    "src/fedspend/noise",
    "src/fedspend/server/rounds.py",
    "src/fedspend/ledger/rules.py",
    "src/fedspend/client/bounding.py",
    "src/fedspend/verification",
)
GRACE = 10.0  # seconds that a test may work on a mutant beyond three times what it takes
MEMORY = 6 << 30  # bytes; a mutant that asks for more is killed, and not the machine


# --- which tests a mutant meets ---


def tests_of(mutant: Mutant, tests: list[Case], root: Path) -> list[Case]:
    """Those that run its statement; where none is known to, those of the files that run or name its
    module. Cheapest first, in steps of four times the time; then those whose files run little else.
    """
    file, bits = mutant.file, mutant.bits
    if not mutant.imported and any(test.ran(file) & bits for test in tests):
        found = [one for one in tests if (one.ran(file) | one.imported.get(file, 0)) & bits]
    else:
        using = {test.file for test in tests if test.ran(file)}
        rest = {test.file for test in tests} - using
        using |= {one for one in rest if mutant.module in (root / one).read_text("utf-8")}
        found = [test for test in tests if test.file in using]
    width: Counter[str] = Counter()
    for test in found:
        width[test.file] += sum(lines.bit_count() for lines in test.lines.values())

    def rank(test: Case) -> tuple[int, int, str]:
        return math.ceil(math.log(max(test.seconds / 0.05, 1), 4)), width[test.file], test.file

    return sorted(found, key=rank)


def is_swapped(mutant: Mutant, tests: list[Case], loaded: dict[str, int], root: Path) -> bool:
    """Whether functions that exist can become those of the mutant. Not if values that depend on it
    may exist, too, or child processes may be what runs it.
    """
    ran = any(test.ran(mutant.file) & mutant.bits for test in tests)
    imports = (loaded, *(test.imported for test in tests))
    if mutant.imported or not ran or any(one.get(mutant.file, 0) & mutant.bits for one in imports):
        return False
    codes = changed_codes(mutant, root).items()
    return all(len(before.co_freevars) == len(after.co_freevars) for before, after in codes)


def changed_codes(mutant: Mutant, root: Path) -> dict[CodeType, CodeType]:
    """What functions of the file are made of, as it is and with the mutant in it."""
    path = root / mutant.file
    found: dict[CodeType, CodeType] = {}

    def pair(before: CodeType, after: CodeType) -> None:
        if before != after:
            found[before] = after
        inner = [[c for c in code.co_consts if isinstance(c, CodeType)] for code in (before, after)]
        if len(inner[0]) == len(inner[1]):  # else some of what is inside was deleted
            for one, other in zip(*inner, strict=True):
                pair(one, other)

    texts = (path.read_bytes(), mutant.text(root))
    pair(*(compile(text, str(path), "exec", dont_inherit=True) for text in texts))
    return found


# --- running them ---

# Whoever runs it imports a module from another text.
HOOK = """
import importlib.machinery
import importlib.util
import sys

name, path, text = {told!r}


class Loader(importlib.machinery.SourceFileLoader):
    def get_code(self, _):
        with open(text, "rb") as file:
            return compile(file.read(), path, "exec", dont_inherit=True)


class Finder:
    @staticmethod
    def find_spec(wanted, *_):
        if wanted == name:
            return importlib.util.spec_from_file_location(name, path, loader=Loader(name, path))


sys.meta_path.insert(0, Finder)
"""


def write_hook(mutant: Mutant, root: Path, scratch: Path) -> str:
    """Python that starts with `scratch` on its path imports the mutant."""
    text = scratch / "mutated.py"
    text.write_bytes(mutant.text(root))
    hook = HOOK.format(told=(mutant.module, str(root / mutant.file), str(text)))
    (scratch / "sitecustomize.py").write_text(hook)
    return hook


def run_pytest(root: Path, options: list[str], mutant: Mutant | None = None, **told: Any) -> int:
    """Its exit code. With a mutant, that is what is imported."""
    plugin = ["-p", "mutate"] if told else []
    command = [sys.executable, "-m", "pytest", *plugin, "-p", "no:cacheprovider", "-m", ""]
    with tempfile.TemporaryDirectory(prefix="mutate-") as scratch:
        if mutant is not None:
            write_hook(mutant, root, Path(scratch))
        paths = {"PYTHONPATH": with_paths(scratch, str(Path(__file__).parent))}
        told = {name: json.dumps(value) for name, value in told.items()}
        environment = os.environ | CONDITIONS | paths | told
        return subprocess.run([*command, *options], cwd=root, env=environment).returncode


class Trials:
    """A pytest plugin: what was collected is not run, but tried on mutants, on each in a process
    forked from this one; if `served`, the mutant was imported here. What it finds is kept in
    `results.jsonl`.
    """

    def __init__(self, where: list[str], suite: str, most: float, ids: list[str], **how: Any):
        self.root, self.folder = map(Path, where)
        self.suite, self.most, self.how = suite, most, how
        self.mutants = [one for one in read_mutants(self.folder) if one.id in ids]
        lines = read_lines(self.folder / "results.jsonl")
        self.sound = {line["sound"]: line["ok"] for line in lines if "sound" in line}
        self.failed = False

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: Any) -> bool | None:
        if session.testsfailed:
            return None  # some could not be imported; pytest ends here
        self.items = {
            item.nodeid: item
            for item in session.items
            if (item.get_closest_marker("full") is not None) == (self.suite == "full")
        }
        tests, _ = read_cover(self.folder, self.root)
        self.tests = [test for test in tests if test.id in self.items]
        self.caches = caches_of(self.root)
        self.functions = [one for one in gc.get_objects() if type(one) is FunctionType]
        gc.freeze()
        workers = ProcessPoolExecutor(self.how["workers"], get_context("fork"), bind_process, (1,))
        with workers as pool:
            list(pool.map(try_mutant, self.mutants))
        return True

    def attempt(self, mutant: Mutant) -> None:
        began = processor_seconds()
        found = tests_of(mutant, self.tests, self.root)
        ends = accumulate(test.seconds for test in found)
        meets = [test for test, end in zip(found, ends, strict=True) if end <= self.most]
        left = [test for test in meets if self.sound.get(test.id, True)]
        how, by = self.play(mutant, left)
        while how and not self.is_sound(by):
            left = left[[test.id for test in left].index(by) + 1 :]
            how, by = self.play(mutant, left)
        line = {"mutant": mutant.id, "suite": self.suite, "killed": bool(how), "how": how, "by": by}
        line |= {"tests": len(meets), "left_out": len(found) - len(meets)}
        line |= {"seconds": round(processor_seconds() - began, 2)}
        write_lines(self.folder / "results.jsonl", [line], "a")
        said = f"killed by {by}" if how else f"survived {len(meets)} tests"
        print(f"{mutant.id} {mutant.file}:{mutant.line} {said}", file=sys.__stdout__, flush=True)

    def is_sound(self, id: str) -> bool:
        """Whether the test that killed a mutant passes on the code as it is."""
        if id not in self.sound:
            if self.how["served"]:
                passed = run_pytest(self.root, [id]) == 0
            else:
                passed = not self.play(None, [test for test in self.tests if test.id == id])[0]
            self.sound[id] = passed
            write_lines(self.folder / "results.jsonl", [{"sound": id, "ok": passed}], "a")
        return self.sound[id]

    def play(self, mutant: Mutant | None, tests: list[Case]) -> tuple[str, str]:
        """How the first test failed and which, in a forked process, which and whose children are
        then gone; nothing if none did.
        """
        if not tests:
            return "", ""
        memory = "/dev/shm" if os.path.isdir("/dev/shm") else None
        scratch = Path(tempfile.mkdtemp(prefix="mutate-", dir=memory))
        scratch.chmod(0o755)  # servers of databases run as another user
        child = os.fork()
        if child == 0:
            try:
                self.run_tests(mutant, tests, scratch)
            except BaseException:
                traceback.print_exc(file=sys.__stderr__)
            finally:
                os._exit(99)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        end_children()
        began = (scratch / "began").stat().st_size if (scratch / "began").exists() else 0
        shutil.rmtree(scratch, ignore_errors=True)
        if code == 0:
            return "", ""
        if not began:
            raise RuntimeError(f"{mutant}: no test began")
        late = code in (-signal.SIGPROF, -signal.SIGALRM)
        how = "failed" if code == 1 else "took too long" if late else "ended the process"
        return how, tests[began - 1].id

    def run_tests(self, mutant: Mutant | None, tests: list[Case], scratch: Path) -> None:
        """Ends this process: with 1 if a test failed."""
        os.setsid()
        bind_process(0)
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY, MEMORY))
        for stream in range(3):
            os.dup2(os.open(os.devnull, os.O_RDWR), stream)
        os.environ |= {"TMPDIR": str(scratch), "PYTEST_DEBUG_TEMPROOT": str(scratch)}
        tempfile.tempdir = None
        if mutant is not None and not self.how["served"]:
            exec(write_hook(mutant, self.root, scratch), {})
            os.environ["PYTHONPATH"] = with_paths(str(scratch))
            codes = changed_codes(mutant, self.root)
            for function in self.functions:
                function.__code__ = codes.get(function.__code__, function.__code__)
        for cached in self.caches:
            cached.cache_clear()
        items = [self.items[test.id] for test in tests]
        for test, item, after in zip(tests, items, [*items[1:], None], strict=True):
            with (scratch / "began").open("a") as file:
                file.write(".")
            work = 3 * test.seconds + GRACE
            signal.setitimer(signal.ITIMER_PROF, work)
            signal.setitimer(signal.ITIMER_REAL, 20 * work)  # others use the machine, too
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
            if self.failed:
                os._exit(1)
        os._exit(0)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.failed |= report.failed


trials: Trials  # of this process


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """This module is a plugin of the sessions in which mutants are tried."""
    global trials
    trials = Trials(**json.loads(os.environ.pop("MUTATE_TRY")))
    early_config.pluginmanager.register(trials)


def try_mutant(mutant: Mutant) -> None:
    trials.attempt(mutant)


def bind_process(adopting: int) -> None:
    """This process ends with its parent. If `adopting`, children of children that died become its
    own, so that it can end them.
    """
    set_parent_death_signal, set_child_subreaper = 1, 36
    system = ctypes.CDLL(None)
    system.prctl(set_parent_death_signal, signal.SIGKILL, 0, 0, 0)
    system.prctl(set_child_subreaper, adopting, 0, 0, 0)


def end_children() -> None:
    path = Path(f"/proc/self/task/{os.getpid()}/children")
    while children := path.read_text().split():
        for child in map(int, children):
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)


def run_suite(root: Path, folder: Path, suite: str, workers: int, most: float) -> None:
    """Every mutant that is not decided. The full tests meet those that the quick ones left."""
    found = results_of(folder)
    pending = [one for one in read_mutants(folder) if (one.id, suite) not in found]
    if suite == "full":
        pending = [one for one in pending if not found[one.id, "quick"]["killed"]]
    tests, loaded = read_cover(folder, root)
    met = {one.id: {test.file for test in tests_of(one, tests, root)} for one in pending}
    swapped = [one.id for one in pending if is_swapped(one, tests, loaded, root)]
    where = {"where": [str(root), str(folder)], "suite": suite, "most": most}
    options = ["--rootdir", str(root), "--capture=sys"]
    if swapped:
        trial = {**where, "ids": swapped, "workers": workers, "served": False}
        files = sorted(set(chain(*(met[id] for id in swapped))))
        if run_pytest(root, [*options, *files], MUTATE_TRY=trial) not in (0, 5):
            raise SystemExit("pytest failed; the same command goes on from here")
    for mutant in pending:
        if mutant.id in swapped:
            continue
        line = {"mutant": mutant.id, "suite": suite, "killed": False, "how": "", "by": ""}
        line |= {"tests": 0, "left_out": 0, "seconds": 0.0}
        if met[mutant.id]:
            trial = {**where, "ids": [mutant.id], "workers": 1, "served": True}
            code = run_pytest(root, [*options, *sorted(met[mutant.id])], mutant, MUTATE_TRY=trial)
            line |= {"killed": True, "how": "could not be imported"}
            if code not in (0, 2, 4, 5):  # 2 and 4: a file of tests, or a conftest, would not load
                raise SystemExit("pytest failed; the same command goes on from here")
        if (mutant.id, suite) not in results_of(folder):
            write_lines(folder / "results.jsonl", [line], "a")


def read_mutants(folder: Path) -> list[Mutant]:
    return [Mutant(**line) for line in read_lines(folder / "mutants.jsonl")]


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
    found, drawn = results_of(folder), read_mutants(folder)
    tried = [one for one in drawn if (one.id, "quick") in found and one.id not in equal]
    quick = {one.id for one in tried if found[one.id, "quick"]["killed"]}
    full = {one.id for one in tried if found.get((one.id, "full"), {}).get("killed")} - quick
    waiting = {one.id for one in tried if (one.id, "full") not in found} - quick
    share = 100 / max(len(tried), 1)
    said = [
        f"{len(drawn)} mutants drawn, {len(tried)} tried, {len(equal)} equivalent",
        f"killed by quick tests: {len(quick)} ({share * len(quick):.1f}%)",
        f"killed by all tests:   {len(quick | full)} ({share * len(quick | full):.1f}%)",
        f"have not met the full tests: {len(waiting)}",
        f"processor seconds: {sum(line['seconds'] for line in found.values()):.0f}",
    ]
    for title, some in (("survivors", quick | full), ("killed by full tests only", quick)):
        said.append(f"\n{title}:")
        for one in tried:
            if one.id in some or (some is quick and one.id not in full):
                continue
            line = (root / one.file).read_text("utf-8").splitlines()[one.line - 1].strip()
            by = found.get((one.id, "full"), {}).get("by", "")
            said.append(f"{one.id} {one.file}:{one.line} {one.operator} {by}\n    {line}")
            said.append(f"    {one.before[:80]!r} -> {one.after[:80]!r}")
    return "\n".join(said) + "\n"


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--root", type=Path, default=Path(__file__).parent.parent)
    parser.add_argument("--folder", type=Path, help="default: build/mutation")
    parser.add_argument("--source", action="append", help="a file or folder, relative to the root")
    actions = parser.add_subparsers(dest="action", required=True)
    covering = actions.add_parser("cover", help="run the tests, and keep which lines each runs")
    drawing = actions.add_parser("draw", help="draw mutants at random")
    drawing.add_argument("--seed", type=int, required=True)
    drawing.add_argument("--count", type=int, default=300)
    running = actions.add_parser("run", help="try the mutants that are not decided")
    running.add_argument("--suite", choices=("quick", "full"), required=True)
    running.add_argument("--workers", type=int, default=1)
    running.add_argument("--most", type=float, default=math.inf, help="seconds of tests a mutant")
    actions.add_parser("report", help="print what was found")
    trying = actions.add_parser("try", help="run pytest on one mutant")
    trying.add_argument("id")
    for action in (covering, trying):
        action.add_argument("options", nargs="*", help="for pytest, after --")
    given = parser.parse_args(arguments)
    root = given.root.resolve()
    folder = given.folder.resolve() if given.folder else root / "build" / "mutation"
    folder.mkdir(parents=True, exist_ok=True)
    files = files_of(root, given.source or SOURCES)
    if given.action == "cover":
        record_coverage(root, folder, files, given.options)
    elif given.action == "draw":
        drawn = draw_mutants(root, files, given.seed, given.count)
        write_lines(folder / "mutants.jsonl", map(asdict, drawn))
    elif given.action == "run":
        run_suite(root, folder, given.suite, given.workers, given.most)
    elif given.action == "try":
        (mutant,) = (one for one in read_mutants(folder) if one.id == given.id)
        raise SystemExit(run_pytest(root, given.options, mutant))
    else:
        print(report(root, folder), end="")


if __name__ == "__main__":
    main()
