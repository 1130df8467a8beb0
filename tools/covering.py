"""Which test runs which lines, and how long it takes: what `mutate.py` chooses tests by.

`record_coverage` runs tests with this module as a plugin of pytest, and writes `cover.jsonl`.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import _lru_cache_wrapper
from pathlib import Path
from typing import Any

import pytest
from mutants import digest_of

# In every process: generated examples are the same, and a core is enough.
CONDITIONS = dict.fromkeys(("CI", "OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


@dataclass(frozen=True)
class Case:
    """A test, and the processor's seconds that it takes. `lines` has the lines of each file as bits
    of a number: those that it ran. `shared`: those that fixtures ran that it may have got from
    another test of its file. `imported`: those that ran when its file was imported.
    """

    id: str
    seconds: float
    lines: dict[str, int]
    shared: dict[str, int]
    imported: dict[str, int]

    @property
    def file(self) -> str:
        return self.id.partition("::")[0]

    def ran(self, file: str) -> int:
        return self.lines.get(file, 0) | self.shared.get(file, 0)


class Recorder:
    """A pytest plugin: the context of coverage is the test that runs, or the file that is imported
    or has a shared fixture made. Before every test the caches of our functions are emptied, for a
    value that an earlier test left there depends on the code, too.
    """

    def __init__(self, folder: str, root: str, files: list[str]) -> None:
        import coverage

        self.folder, self.root, self.now = Path(folder), Path(root), ""
        self.tests: dict[str, dict[str, Any]] = {}
        self.caches: list[Any] = []
        lines = self.folder / f"lines.{os.getpid()}"
        include = [str(self.root / file) for file in files]
        self.coverage = coverage.Coverage(lines, include=include, config_file=False, messages=False)
        # Where the tests are handed out, none runs.
        self.coverage.set_option("run:disable_warnings", ["no-data-collected"])
        self.coverage.start()

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
        file = collector.nodeid.partition("::")[0]
        with self.context(f"imported {file}" if file.endswith(".py") else ""):
            return (yield)

    def pytest_collection_finish(self) -> None:
        self.caches = caches_of(self.root)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_fixture_setup(self, fixturedef: Any, request: Any) -> Any:
        file = request._pyfuncitem.nodeid.partition("::")[0]
        with self.context(self.now if fixturedef.scope == "function" else f"shared {file}"):
            return (yield)

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        for cached in self.caches:
            cached.cache_clear()
        about = self.tests[item.nodeid] = {"ok": True, "seconds": -processor_seconds()}
        with self.context(f"lines {item.nodeid}"):
            result = yield
        about["seconds"] += processor_seconds()
        return result

    def pytest_runtest_logreport(self, report: Any) -> None:
        if report.nodeid in self.tests:  # not in the process that hands tests out
            self.tests[report.nodeid]["ok"] &= report.passed or hasattr(report, "wasxfail")

    def pytest_sessionfinish(self) -> None:
        self.coverage.stop()
        self.coverage.save()
        (self.folder / f"tests.{os.getpid()}").write_text(json.dumps(self.tests))


def caches_of(root: Path) -> list[Any]:
    """What `functools.cache` made of functions of ours."""
    found = [one for one in gc.get_objects() if type(one) is _lru_cache_wrapper]
    files = (getattr(one.__wrapped__, "__code__", caches_of.__code__).co_filename for one in found)
    return [one for one, file in zip(found, files, strict=True) if file.startswith(f"{root}/src")]


def processor_seconds() -> float:
    """Of this process and of its children that have ended: what others do is not in it."""
    both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
    return sum(used.ru_utime + used.ru_stime for used in both)


def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """This module is a plugin that begins before anything is imported."""
    folder, root, files = json.loads(os.environ["COVERING"])
    early_config.pluginmanager.register(Recorder(folder, root, files))


def with_paths(*folders: str) -> str:
    """PYTHONPATH with folders before what is there, but for what another mutant put there."""
    before = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    kept = [one for one in before if one and not Path(one, "mutated.py").exists()]
    return os.pathsep.join([*folders, *kept])


def record_coverage(root: Path, folder: Path, files: list[str], options: list[str]) -> None:
    """Run tests, and keep in `cover.jsonl` what each of them runs."""
    command = [sys.executable, "-m", "pytest", "-p", "covering", "-p", "no:cacheprovider", "-m", ""]
    with tempfile.TemporaryDirectory(prefix="mutate-") as scratch:
        told = {"COVERING": json.dumps([scratch, str(root), files])}
        paths = {"PYTHONPATH": with_paths(str(Path(__file__).parent))}
        environment = os.environ | CONDITIONS | told | paths
        subprocess.run([*command, *options], cwd=root, env=environment)
        tests, loaded, failed = read_recorded(Path(scratch), root)
    sources = {file: digest_of((root / file).read_bytes()) for file in files}
    about = {"sources": sources, "loaded": loaded}
    write_lines(folder / "cover.jsonl", [about, *map(asdict, tests)])
    spent = sum(test.seconds for test in tests)
    print(f"{len(tests)} tests, {spent:.0f} processor seconds; {failed} failed or skipped")


def read_recorded(scratch: Path, root: Path) -> tuple[list[Case], dict[str, int], int]:
    """From every process that ran tests: the tests, the lines of each file that ran before any file
    of tests was imported, and how many tests are no use.
    """
    from coverage import CoverageData

    tests, failed = [], 0
    loaded: dict[str, int] = defaultdict(int)
    for path in sorted(scratch.glob("tests.*")):
        ran: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))  # context, file
        data = CoverageData(str(path.with_name(path.name.replace("tests", "lines"))))
        data.read()
        for file in data.measured_files():
            name = Path(file).relative_to(root).as_posix()
            for line, contexts in data.contexts_by_lineno(file).items():
                for context in contexts:
                    ran[context][name] |= 1 << line
        for name, lines in ran[""].items():
            loaded[name] |= lines
        for id, about in json.loads(path.read_text()).items():
            file = id.partition("::")[0]
            names = (f"lines {id}", f"shared {file}", f"imported {file}")
            if about["ok"]:
                some = (dict(ran[name]) for name in names)
                tests.append(Case(id, round(about["seconds"], 4), *some))
            failed += not about["ok"]
    return tests, loaded, failed


def read_cover(folder: Path, root: Path) -> tuple[list[Case], dict[str, int]]:
    about, *lines = read_lines(folder / "cover.jsonl")
    for file, digest in about["sources"].items():
        if digest_of((root / file).read_bytes()) != digest:
            raise SystemExit(f"{file} has changed since the tests were recorded; cover again")
    return [Case(**line) for line in lines], about["loaded"]


def read_lines(path: Path) -> list[dict[str, Any]]:
    """The whole lines of a file of JSON lines; the last may be torn."""
    text = path.read_text() if path.exists() else ""
    return [json.loads(line) for line in text[: text.rfind("\n") + 1].splitlines()]


def write_lines(path: Path, lines: Iterable[dict[str, Any]], mode: str = "w") -> None:
    with path.open(mode) as file:
        file.writelines(json.dumps(line) + "\n" for line in lines)
