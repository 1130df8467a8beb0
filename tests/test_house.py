"""The house: imports point one way, and the top level stays small."""

from __future__ import annotations

import ast
import importlib
import re
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "fedspend"

# From the ground up; a room may use what stands before it.
ORDER = (
    "errors",
    "basics",
    "noise",
    "budgets",
    "accounting",
    "planning",
    "verification",
    "stored",
    "data",
    "models",
    "client",
    "engines",
    "ledger",
    "records",
    "explanation",
    "server",
    "configuration",
    "design",
    "report",
    "runs",
    "audit",
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
}


def imports() -> Iterator[tuple[str, str, str, bool]]:
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


def test_the_walk_of_one_run_goes_through_names_that_exist():
    """Hop by hop, as CONTRIBUTING tells it."""
    contributing = (SOURCE.parent.parent / "CONTRIBUTING.md").read_text(encoding="utf-8")
    walk = contributing.partition("## One run, hop by hop")[2].partition("\n## ")[0]
    hops = re.findall(r"^\| (\d+) \| `([\w.]+)` \|", walk, re.M)
    assert [int(number) for number, _ in hops] == list(range(1, len(hops) + 1))
    assert len(hops) > 20
    for _, name in hops:
        parts = name.split(".")
        depth = next(
            n
            for n in range(len(parts), 0, -1)
            if (SOURCE.joinpath(*parts[:n])).with_suffix(".py").exists()
        )
        found = importlib.import_module(".".join(["fedspend", *parts[:depth]]))
        for part in parts[depth:]:
            found = getattr(found, part)
        assert callable(found), name


def test_no_line_is_longer_than_a_hundred_characters_and_no_function_than_a_screenful():
    longest = max(
        (
            (node.end_lineno or 0) - node.lineno + 1,
            f"{path.relative_to(SOURCE)}:{node.name}",
        )
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.FunctionDef)
    )
    assert longest[0] <= 110, longest
