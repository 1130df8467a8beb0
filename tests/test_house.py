"""The house: imports point one way, and the top level stays small."""

from __future__ import annotations

import ast
import functools
import importlib
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent / "src" / "fedspend"

# From the ground up; a room may use what stands before it.
ORDER = (
    "errors",
    "basics",
    "signing",
    "noise",
    "budgets",
    "accounting",
    "planning",
    "verification",
    "stored",
    "tasks",
    "data",
    "models",
    "client",
    "engines",
    "ledger",
    "records",
    "explanation",
    "server",
    "configuration",
    "approval",
    "design",
    "report",
    "runs",
    "tuning",
    "flower",
    "publishing",
    "auditing",
    "pages",
    "starting",
    "cli",
)
# Calls upwards, made when a function runs and never on import.
UPWARDS = {
    ("planning", "verification"),  # a plan says who checks it
    ("planning", "ledger"),  # and what it asks of the ledger
    ("planning", "records"),  # a file of plans may hold either kind
    ("planning", "server"),  # a method says which policies it may have
    ("records", "configuration"),  # `records.plan_of` reads a config
    ("design", "runs"),  # a search trains
    ("planning", "report"),  # a plan draws itself
    ("planning", "configuration"),  # `plan(config=...)` reads a config
    ("records", "report"),
    ("ledger", "report"),  # and so does a ledger
    ("explanation", "report"),  # and an explanation, of the groups that a report shows
    ("runs", "tuning"),  # a run directory may hold the winner of a private tune
}


@functools.cache
def imports() -> tuple[tuple[str, str, str, bool], ...]:
    return tuple(read_imports())


def read_imports() -> Iterator[tuple[str, str, str, bool]]:
    """(file, its room, the room it imports, whether only inside a function); those for types alone
    do not count.
    """
    for path in sorted(SOURCE.rglob("*.py")):
        relative = path.relative_to(SOURCE)
        room = relative.parts[0].removesuffix(".py")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for_types = {
            node
            for test in ast.walk(tree)
            if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.dump(test.test)
            for node in ast.walk(test)
        }
        late = {
            node
            for function in ast.walk(tree)
            if isinstance(function, ast.FunctionDef)
            for node in ast.walk(function)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.ImportFrom)
                and node not in for_types
                and (node.module or "").partition(".")[0] == "fedspend"
            ):
                parts = (node.module or "").split(".")
                for found in [parts[1]] if len(parts) > 1 else [name.name for name in node.names]:
                    if found in ORDER and room in ORDER and found != room:
                        yield str(relative), room, found, node in late


def test_imports_point_one_way():
    upwards = [
        f"{file}: {room} imports {found}"
        for file, room, found, late in imports()
        if ORDER.index(found) > ORDER.index(room) and not (late and (room, found) in UPWARDS)
    ]
    assert upwards == []


def test_no_exception_outlives_its_reason():
    used = {
        (room, found)
        for _, room, found, late in imports()
        if late and ORDER.index(found) > ORDER.index(room)
    }
    assert used == UPWARDS


def test_every_room_is_on_the_map():
    rooms = {
        path.name.removesuffix(".py")
        for path in SOURCE.iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert rooms - {"__init__", "__main__"} == set(ORDER)
    contributing = (SOURCE.parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    assert [room for room in ORDER if f"`{room}" not in contributing] == []


def test_the_check_shares_nothing_with_the_planner():
    """Two implementations that share code are one."""
    used = {
        found
        for file, _, found, _ in imports()
        if file.startswith("verification/second_accountant")
    }
    assert used <= {"errors", "basics"}


def hops() -> list[tuple[int, str]]:
    """The walk of one run as CONTRIBUTING tells it: how deep, and what is called."""
    contributing = (SOURCE.parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    walk = contributing.partition("## One run, hop by hop")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (\d+) \| ((?:· )*)`([\w.]+)` \|", walk, re.M)
    assert [int(number) for number, _, _ in found] == list(range(1, len(found) + 1))
    return [(depth.count("·"), name) for _, depth, name in found]


def holder_of(name: str) -> tuple[object, str]:
    """The module or class that has what is called, and the last part of its name."""
    parts = name.split(".")
    depth = next(
        n
        for n in range(len(parts), 0, -1)
        if SOURCE.joinpath(*parts[:n]).with_suffix(".py").exists()
    )
    found = importlib.import_module(".".join(["fedspend", *parts[:depth]]))
    for part in parts[depth:-1]:
        found = getattr(found, part)
    return found, parts[-1]


@pytest.mark.full
def test_the_walk_of_one_run_is_the_way_that_the_quickstart_goes(tmp_path, monkeypatch):
    """Every hop is made, in the order of the table, and inside the hop that it is indented under.
    Engines run when replies are pulled, so only order is asked of what happens there.
    """
    codes = {}
    for _, name in hops():
        holder, last = holder_of(name)
        codes[getattr(holder, last).__code__] = name
    seen: list[str] = []
    inside: dict[str, list[str]] = {}

    def watch(frame, event, _):
        name = codes.get(frame.f_code)
        if event == "call" and name is not None and name not in inside:
            seen.append(name)
            callers, above = [], frame.f_back
            while above is not None:
                callers += [codes[above.f_code]] if above.f_code in codes else []
                above = above.f_back
            inside[name] = callers

    monkeypatch.chdir(SOURCE.parent.parent)
    arguments = ["train", "examples/quickstart.toml", "-o", str(tmp_path / "run"), "--quiet"]
    main = importlib.import_module("fedspend.cli.main").main
    sys.setprofile(watch)
    try:
        assert main(arguments) == 0
    finally:
        sys.setprofile(None)
    assert seen == [name for _, name in hops()]
    above: list[str] = []
    for depth, name in hops():
        assert not depth or above[depth - 1] in inside[name], f"{name} is not inside {above}"
        above = [*above[:depth], name]


def first_line(function: ast.FunctionDef) -> int:
    """Of its body, after the docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return body[0].lineno if body else function.lineno


@pytest.mark.full
def test_no_function_is_longer_than_two_screens():
    """Of what it does: arguments and words that explain them may be many."""
    longest = max(
        (
            (node.end_lineno or 0) - first_line(node) + 1,
            f"{path.relative_to(SOURCE)}:{node.name}",
        )
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    )
    assert longest[0] <= 95, longest
