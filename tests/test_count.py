"""`tools/count.py` on a small tree whose numbers are counted by hand."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parents[1] / "tools"))
import count

TREE = {
    # 3 lines with code
    "src/fedspend/__init__.py": '''\
"""A package of four modules.

It has a long docstring.
"""

# and a comment
from typing import Any  # beside code

TABLE: dict[str, Any] = {}
EMPTY = ""
''',
    # 6 lines with code
    "src/fedspend/__main__.py": """\
import sys

if "--help" in sys.argv:
    print("usage: fedspend COMMAND\\n\\n    plan      make one\\n    at-once\\n      goes on")
else:
    from fedspend.used import train_model

    sys.exit(train_model(sys.argv[1:]))
""",
    # 10 lines with code, of which 3 in a string
    "src/fedspend/used.py": '''\
from __future__ import annotations

from fedspend.unused import CONSTANT


class Model:
    """One line."""

    def __init__(self, a, b, c, d, e, f, g): ...

    def fit(self, a, b, /, c, d, *rest, e, f, g, **more) -> dict[str, Any]:
        """Seven of its parameters have a name."""


def train_model(arguments):
    # quiet
    return int(arguments != ["train", "examples/quickstart.toml", *arguments[2:]]) + CONSTANT


TEXT = """
two lines
"""
''',
    # 5 lines with code
    "src/fedspend/unused.py": """\
CONSTANT = 0


def _named(a, b, c, d, *, e, f, g, h):
    def _inner_one(): ...

    async def _plan_(cls): ...

    return 1
""",
    "tests/test_one.py": "\n\n# three lines\n",
    "tests/below/helper.py": "pass\n",
    "tests/data.csv": "1\n2\n",
    "benchmarks/speed/plan.py": "pass\npass\n",
    "README.md": "# Five words\n\nand two\n",
    "docs/how-to/train.md": "Seven of them are in here.\n",
    "docs/look.css": "not counted",
}


@pytest.fixture
def tree(tmp_path):
    for name, text in TREE.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


def test_numbers_of_a_small_tree(tree):
    measured = {row.name: now for row, now in count.measure_rows(tree, count.ROWS, run=True)}
    assert measured == {
        "code lines of src": 3 + 6 + 10 + 5,
        "modules": 4,
        "files that a quickstart run crosses": 1,  # used.py: of the others only imports run
        "lines of tests": 4,
        "lines of benchmarks": 2,
        "one-word function names": 60,  # fit, _named, _plan_ of those and train_model, _inner_one
        "functions with 8 or more parameters": 1,  # _named
        "dict[str, Any]": 2,
        "commands at the top of --help": 2,
        "words of docs": 5 + 6,
    }


def test_without_the_run_nothing_is_trained(tree):
    (tree / "src/fedspend/used.py").write_text("raise SystemExit(3)\n", encoding="utf-8")
    names = [row.name for row, _ in count.measure_rows(tree, count.ROWS, run=False)]
    assert names == [
        row.name for row in count.ROWS if row.name != "files that a quickstart run crosses"
    ]


ROW = count.Row("modules", count.count_modules, target=3, ceiling=4)
REACHED = replace(ROW, reached=True)


def test_a_number_that_was_reached_does_not_get_worse_again():
    assert count.find_faults([(ROW, 5), (REACHED, 4), (REACHED, 2)]) == []
    [fault] = count.find_faults([(ROW, 9), (REACHED, 5)])
    assert fault == "modules: 5 is above 4, which was reached"


def test_a_number_that_is_reached_is_written_down():
    [fault] = count.find_faults([(ROW, 4), (REACHED, 4)])
    assert fault.startswith("modules: 4 is within 4 for the first time; write reached=True")


def test_what_is_printed_and_the_exit_code(tree, monkeypatch, capsys):
    monkeypatch.setattr(count, "ROOT", tree)
    monkeypatch.setattr(count, "ROWS", (replace(ROW, ceiling=3, target=2),))
    assert count.main([]) == 0
    header, line = capsys.readouterr().out.splitlines()
    assert (header.split(), line.split()) == (["now", "target", "ceiling"], ["modules", *"423"])
    monkeypatch.setattr(count, "ROWS", (replace(REACHED, ceiling=3, target=2),))
    assert count.main(["--json"]) == 1
    out, err = capsys.readouterr()
    [told] = json.loads(out)
    assert told == {"name": "modules", "now": 4, "target": 2, "ceiling": 3, "reached": True}
    assert "above 3" in err
