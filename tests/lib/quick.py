"""Which tests `make test` runs, and the check that they stay quick.

A test of half a second or more is marked `full`, for `make test-full` alone; so are some that take
less, if cheaper ones run the same lines and kill the same mutants (`tools/mutate.py`). Of the cases
of one function, the mark may name those that take long, or those that are enough for every day:

    @pytest.mark.full                          all of them are left out of `make test`
    @pytest.mark.full(only=["lstm-288"])       these are left out
    @pytest.mark.full(but=["lenet-2"])         all but these are
    @pytest.mark.full(but_every=7)             all but every seventh: of the product of two lists
                                               whose lengths seven does not divide, each value stays

Guarantee: a case that is named and does not exist stops the collection. At the end of a run, every
test without the mark that took `LENIENT` times as much is listed; in CI it is measured again first,
in a process that does nothing else and has loaded what the test needs, and what is slow again fails
the run. What counts is the time of the processor, in halves of a second of a machine on which
`work` takes `WORK_SECONDS`. So no slow or busy machine decides, and no first import.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import timeit
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pytest

LIMIT = 0.5
LENIENT = 2.0  # a processor that does other things too is slower
WORK_SECONDS = 0.0045
# They take longer, and nothing quicker guards what they guard. At most twenty.
WORTH_THEIR_TIME = {
    "src/fedspend/__init__.py::fedspend",  # the first example that a reader meets
    "src/fedspend/records/noise_choice.py::fedspend.records.noise_choice.suggest_noise",
    # whichever comes first reads all sources
    "tests/test_house.py::test_imports_point_one_way",
    "tests/test_house.py::test_no_exception_outlives_its_reason",
    "tests/test_house.py::test_the_check_shares_nothing_with_the_planner",
    "tests/privacy/test_traps.py::test_the_trap_is_not_there[estimate used as a bound]",
    *(
        f"tests/audit/test_audit.py::test_a_broken_mechanism_is_caught[{name}]"
        for name in (
            "half noise",
            "half noise, discrete",
            "half noise, votes",
            "the bit without noise",
            "doubled clip",
            "per-layer clip without the root",
            "sampling ignored",
        )
    ),
}


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line(
        "markers", "full(only, but, but_every): takes half a second or more; for make test-full"
    )
    if not hasattr(config, "workerinput"):  # the process in which all reports come together
        config.pluginmanager.register(Watch())


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Takes the mark off the cases that stay, before `-m` looks at it."""
    cases: dict[str, list[pytest.Item]] = {}
    for item in items:
        if any(map(names_cases, item.own_markers)):
            cases.setdefault(item.nodeid.partition("[")[0], []).append(item)
    for function in cases.values():
        staying = quick_cases(function)
        for item in function:
            if name_of(item) in staying:
                item.own_markers[:] = [m for m in item.own_markers if not names_cases(m)]


def names_cases(mark: pytest.Mark) -> bool:
    """Whether it is a mark of a function that leaves some of its cases in `make test`."""
    return mark.name == "full" and bool(mark.kwargs)


def name_of(item: pytest.Item) -> str:
    """The case as pytest names it, between brackets."""
    return item.name.partition("[")[2].removesuffix("]")


def quick_cases(items: Sequence[pytest.Item]) -> set[str]:
    """Of the cases of one function, those that stay in `make test`."""
    how = next(filter(names_cases, items[0].own_markers)).kwargs
    names = [name_of(item) for item in items]
    named = [*how.get("only", ()), *how.get("but", ())]
    unknown = set(named) - set(names)
    # a single case may have been asked for on the command line
    if unknown and len(names) > 1:
        raise pytest.UsageError(
            f"{items[0].nodeid.partition('[')[0]}: its mark names {', '.join(sorted(unknown))}, "
            f"and its cases are {', '.join(names)}"
        )
    if "only" in how:
        return set(names) - set(how["only"])
    if "but" in how:
        return set(how["but"])
    return set(names[:: how["but_every"]])


# --- the check ---


def work() -> int:
    return sum(number * number for number in range(100_000))


def slowness() -> float:
    """How many times slower this machine is than the one that the limit was set on."""
    return max(1.0, min(timeit.repeat(work, number=1, repeat=5)) / WORK_SECONDS)


def processor_seconds() -> float:
    """Of this process and of its children that have ended."""
    spent = os.times()
    return spent.user + spent.system + spent.children_user + spent.children_system


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    before = processor_seconds()
    try:
        return (yield)
    finally:
        if item.get_closest_marker("full") is None:
            item.user_properties.append(("processor_seconds", processor_seconds() - before))


class Watch:
    """Collects, where all reports come together, the quick tests that were not."""

    def __init__(self) -> None:
        self.slow: dict[str, float] = {}
        self.limit = LIMIT * LENIENT * slowness()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        took = call_seconds(report)
        if took > self.limit and report.nodeid not in WORTH_THEIR_TIME:
            self.slow[report.nodeid] = took

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if not os.environ.get("CI") or session.exitstatus != pytest.ExitCode.OK or not self.slow:
            return
        self.slow = {
            name: took for name, took in measure_again(self.slow).items() if took > self.limit
        }
        if self.slow:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self.slow:
            terminalreporter.section(f"above {self.limit:.2g} s and not marked full", red=True)
            for name, took in sorted(self.slow.items(), key=lambda pair: -pair[1]):
                terminalreporter.line(f"{took:6.2f} s {name}")


def call_seconds(report: pytest.TestReport) -> float:
    """What the processor worked for the test itself, if it is a quick one."""
    if report.when != "call":
        return 0.0
    return float(dict(report.user_properties).get("processor_seconds", 0.0))


def measure_again(names: Iterable[str]) -> dict[str, float]:
    """How long these tests take where nothing else runs and what they need is loaded."""
    ended = subprocess.run(
        [sys.executable, __file__, *names],
        env={name: value for name, value in os.environ.items() if name != "CI"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    took: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    return took


class Times:
    """How long each test took when it ran last."""

    def __init__(self) -> None:
        self.took: dict[str, float] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call":
            self.took[report.nodeid] = call_seconds(report)


def main(names: Sequence[str]) -> None:
    """Runs the tests twice in this process, and prints how long each took the second time."""
    times = Times()
    for _ in range(2):
        pytest.main(["--quiet", "--numprocesses", "0", *names], plugins=[times])
    print()
    print(json.dumps(times.took))


if __name__ == "__main__":
    os.chdir(Path(__file__).parents[2])
    main(sys.argv[1:])
