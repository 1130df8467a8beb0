"""The mutation tool, on a made-up package: what it breaks, what it leaves, and what it counts."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[1]
sys.path.append(str(ROOT / "tools"))
import mutate  # noqa: E402
from covering import Case, read_lines  # noqa: E402
from mutants import Mutant, Sites  # noqa: E402


def mutated(source: str) -> set[str]:
    """Every text that a source can become."""
    content = source.encode()
    return {
        (content[: one.start] + one.after.encode() + content[one.end :]).decode()
        for site in Sites("a.py", content).found
        for one in site
    }


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("a < b", {"a <= b", "a > b"}),
        ("a == b", {"a != b"}),
        ("a is  not b", {"a is  not b".replace("is  not", "is")}),
        ("a not in b", {"a in b"}),
        (
            "(a) <= (b) > c",
            {"(a) < (b) > c", "(a) >= (b) > c", "(a) <= (b) >= c", "(a) <= (b) < c"},
        ),
        ("x + y", {"x - y"}),
        ("x ** y", {"x * y"}),
        ("x // y", {"x * y"}),
        ("x *= y", {"x /= y", "pass"}),
        ("x = 0", {"x = 1"}),
        ("x = 1e-9", {"x = 2e-09"}),
        ("x = 0.0", {"x = 1.0"}),
        ("x = True", {"x = False"}),
        ("x = -y", {"x = (y)"}),
        ("a and b and c", {"((a) or (b) or (c))"}),
        ("not a or b", {"((not a) and (b))", "(a) or b"}),
        ("x = a if b else c", {"x = a if True else c", "x = a if False else c"}),
        ("while a:\n    b", {"while False:\n    b"}),
        ("[a for a in b if a]", {"[a for a in b if True]", "[a for a in b if False]"}),
        ("def f():\n    return a", {"def f():\n    return None"}),
        ("def f():\n    return None", set()),
        ("f(a)", {"pass"}),
        ("raise A('1' + b, 2)", {"pass"}),
        ("x = np.minimum(a, b)", {"x = np.maximum(a, b)"}),
        ("x = a[b:c]", {"x = a[(b) + 1:c]", "x = a[b:(c) - 1]"}),
        ("x = a[1:]", {"x = a[2:]"}),
        ("def f(a=2):\n    pass", {"def f(a=3):\n    pass"}),
        # an operator after a comment that has one, and letters of two bytes
        ("x = (ä  # a < ä\n  < ü)", {"x = (ä  # a < ä\n  <= ü)", "x = (ä  # a < ä\n  > ü)"}),
    ],
)
def test_what_a_line_can_become(source, wanted):
    assert mutated(source) == wanted


def test_what_only_speaks_is_left_alone():
    assert (
        mutated(
            dedent(
                '''
            """A module with 1 docstring."""
            if TYPE_CHECKING:
                x = 1
            @dataclass(frozen=True)
            class A(B, slots=True):
                a: Literal[3] = b
                def __repr__(self) -> C[2]:
                    return 1 + self.a
                def f(self, a: D[1]) -> E[2]:
                    """Another 1."""
                    b = f"{a + 1}" + "c"
                    assert a, a + 1
            b = zip(c, d, strict=True)
            if __name__ == "__main__":
                b = 1
            '''
            )
        )
        == set()
    )


def test_every_site_of_a_module_of_ours_can_be_broken():
    """Each mutant is Python, and says something else."""
    path = ROOT / "src" / "fedspend" / "client" / "bounding.py"
    source = path.read_text(encoding="utf-8")
    before = ast.dump(ast.parse(source))
    texts = mutated(source)
    assert len(texts) > 40
    assert all(ast.dump(ast.parse(text)) != before for text in texts)


def test_a_mutant_knows_the_lines_of_its_statement():
    source = "a = 1\ndef f(b=2):\n    if (b and\n            c):\n        d = [\n            3]\n"
    found = {one.before: one for site in Sites("a.py", source.encode()).found for one in site}
    lines = {text: (one.first, one.last, one.imported) for text, one in found.items()}
    assert lines == {
        "1": (1, 1, True),
        "2": (2, 2, True),
        "b and\n            c": (3, 4, False),
        "3": (5, 6, False),
    }


SUMS = '''
"""Sums."""
LIMIT = 3
FIRST = [5][0]


def total(values):
    found = 0
    for value in values:
        found += value
    return found


def few(values):
    return len(values) < LIMIT


def down(number):
    while number > 0:
        number -= 1
    return number


def unseen(number):
    return number * 7


def harnessed(number):
    return number - 4
'''
DOUBLES = '''
"""Doubles, in other processes."""


def double(number):
    return number * 2
'''
TESTS = """
import os
import subprocess
import sys

import pytest
from small import sums

FEW = sums.few([1, 2])


@pytest.fixture(scope="module")
def made():
    return sums.total([1, 2])


def test_makes(made):
    pass


def test_uses(made):
    assert made == 3


def test_down():
    assert sums.down(2) == 0


@pytest.mark.full
def test_few():
    assert FEW
    assert not sums.few([1, 2, 3])


def test_runs_and_sees_nothing():
    sums.unseen(1)


def test_passes_while_coverage_is_recorded():
    assert "COVERING" in os.environ or sums.harnessed(1) == 1


def test_fails_anyway():
    assert sums.total([]) == 1


def test_child():
    code = "from small.doubles import double; assert double(3) == 6"
    subprocess.run([sys.executable, "-c", code], check=True, env={**os.environ, **ENV})


ENV = {"PYTHONPATH": os.pathsep.join([os.environ.get("PYTHONPATH", ""), "src"])}
"""


@pytest.fixture
def small(tmp_path):
    """A package with tests, one of which is marked `full`."""
    files = {
        "src/small/__init__.py": '"""Small."""\n',
        "src/small/sums.py": SUMS.lstrip(),
        "src/small/doubles.py": DOUBLES.lstrip(),
        "tests/test_small.py": TESTS,
        "pytest.ini": "[pytest]\ntestpaths = tests\npythonpath = src\nmarkers = full\n"
        "addopts = -q -m 'not full'\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_draw_is_repeatable_and_grows(small):
    files = mutate.files_of(small, ["src/small"])
    assert files == ["src/small/__init__.py", "src/small/doubles.py", "src/small/sums.py"]
    drawn = mutate.draw_mutants(small, files, 3, 9)
    assert mutate.draw_mutants(small, files, 3, 5) == drawn[:5]
    assert mutate.draw_mutants(small, files, 4, 9) != drawn
    every = mutate.draw_mutants(small, files, 3, 1000)
    assert every[:9] == drawn
    places = [(one.file, one.start, one.end, one.operator) for one in every]
    assert len(set(places)) == len(places) > 15
    assert len({one.id for one in every}) == len(every)


def test_what_has_changed_is_not_mutated(small):
    (one,) = mutate.draw_mutants(small, ["src/small/doubles.py"], 1, 1)
    (small / one.file).write_text("# another\n" + DOUBLES)
    with pytest.raises(SystemExit, match="has changed"):
        one.text(small)


def test_a_served_mutant_is_what_is_imported(small, monkeypatch):
    monkeypatch.syspath_prepend(small / "src")
    monkeypatch.setattr(sys, "meta_path", sys.meta_path[:])
    drawn = mutate.draw_mutants(small, ["src/small/doubles.py"], 1, 9)
    (mutant,) = (one for one in drawn if one.operator == "arithmetic")
    exec(mutate.write_hook(mutant, small, small), {})
    try:
        from small import doubles

        assert doubles.double(1) == 0.5
        assert doubles.__file__ == str(small / "src/small/doubles.py")
    finally:
        for name in ("small.doubles", "small"):
            sys.modules.pop(name, None)


def test_functions_that_exist_get_the_code_of_a_mutant(small):
    path = small / "src/small/within.py"
    path.write_text("def outer():\n    def inner(a):\n        return a + 1\n    return inner\n")
    names: dict = {}
    exec(compile(path.read_text(), str(path), "exec", dont_inherit=True), names)
    inner = names["outer"]()
    drawn = mutate.draw_mutants(small, ["src/small/within.py"], 1, 9)
    (mutant,) = (one for one in drawn if one.operator == "arithmetic")
    codes = mutate.changed_codes(mutant, small)
    inner.__code__ = codes[inner.__code__]
    assert inner(5) == 4


def a_test(id, seconds, lines=0, *, imported=0):
    return Case(id, seconds, {"src/a.py": lines}, {}, {"src/a.py": imported})


def a_mutant(**changes):
    plain = Mutant("src/a.py", "", 0, 1, 4, 4, 5, False, "constant", "1", "2")
    return Mutant(**{**vars(plain), **changes})


def test_a_mutant_meets_the_tests_of_its_lines_cheapest_first(tmp_path):
    tests = [
        a_test("b.py::slow", 9.0, 1 << 5),
        a_test("c.py::wide", 0.01, (1 << 4) + 15),
        a_test("b.py::quick", 0.01, 1 << 4),
        a_test("d.py::elsewhere", 0.01, 1 << 6),
        a_test("e.py::constants", 1.0, 1 << 6, imported=1 << 4),
    ]
    assert [test.id for test in mutate.tests_of(a_mutant(), tests, tmp_path)] == [
        "b.py::quick",
        "c.py::wide",
        "e.py::constants",
        "b.py::slow",
    ]
    # values of e.py may depend on it
    assert not mutate.is_swapped(a_mutant(), tests, {}, tmp_path)


def test_what_runs_on_import_meets_the_files_of_its_module(tmp_path):
    for name, text in (("b.py", ""), ("c.py", "import a"), ("d.py", "")):
        (tmp_path / name).write_text(text)
    tests = [
        a_test("b.py::runs", 1.0, 1 << 9),
        a_test("c.py::names", 2.0),
        a_test("d.py::neither", 0.1),
    ]
    for mutant in (a_mutant(imported=True), a_mutant()):
        met = mutate.tests_of(mutant, tests, tmp_path)
        assert [test.id for test in met] == ["c.py::names", "b.py::runs"]
    assert not mutate.is_swapped(a_mutant(imported=True), tests, {}, tmp_path)
    assert not mutate.is_swapped(a_mutant(), tests[:1], {"src/a.py": 1 << 4}, tmp_path)


def test_a_torn_line_is_not_read(tmp_path):
    (tmp_path / "some").write_text('{"a": 1}\n{"b": 2}\n{"c"')
    assert read_lines(tmp_path / "some") == [{"a": 1}, {"b": 2}]
    assert read_lines(tmp_path / "none") == []


def test_the_report_counts_each_mutant_once(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src/a.py").write_text("a\nb\nc\nthe line = 1\n")
    some = [a_mutant(start=number, end=number) for number in range(5)]
    results = [
        {"mutant": one.id, "suite": suite, "killed": killed, "how": "failed" if killed else ""}
        | {"by": "b.py::c", "tests": 3, "seconds": 1.0}
        for one, suite, killed in [
            (some[0], "quick", True),
            (some[1], "quick", False),
            (some[1], "full", True),
            (some[2], "quick", False),
            (some[2], "full", False),
            (some[3], "quick", False),  # changes nothing
        ]
    ]
    for name, lines in (("mutants", [vars(one) for one in some]), ("results", results)):
        (tmp_path / f"{name}.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (tmp_path / "equivalent.txt").write_text(f"{some[3].id} because\n")
    said = mutate.report(tmp_path, tmp_path)
    assert "5 mutants drawn, 3 tried, 1 equivalent" in said
    assert "killed by quick tests: 1 (33.3%)" in said
    assert "killed by all tests:   2 (66.7%)" in said
    survivors = said.partition("survivors:")[2].partition("killed by full tests only:")
    assert some[2].id in survivors[0]
    assert "the line = 1" in survivors[0]
    assert some[1].id in survivors[2]


@pytest.mark.full
def test_a_whole_search(small):
    """Recorded, drawn, tried and reported; the tree is as it was."""

    def tool(*arguments):
        code = f"import mutate; mutate.GRACE = 4.0; mutate.main({list(map(str, arguments))!r})"
        environment = {**os.environ, "PYTHONPATH": str(ROOT / "tools")}
        return subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout

    given = ("--root", small, "--source", "src/small")
    assert "\n7 tests" in tool(*given, "cover", "--", "-p", "no:xdist")
    tool(*given, "draw", "--seed", 1, "--count", 1000)
    before = {path: path.read_bytes() for path in (small / "src").rglob("*.py")}
    tool(*given, "run", "--suite", "quick", "--workers", 2)
    lines = (small / "build/mutation/results.jsonl").read_text().splitlines()
    tool(*given, "run", "--suite", "quick")  # everything is decided
    assert (small / "build/mutation/results.jsonl").read_text().splitlines() == lines
    tool(*given, "run", "--suite", "full")
    assert {path: path.read_bytes() for path in before} == before

    def line_of(mutant):
        return (small / mutant.file).read_text().splitlines()[mutant.line - 1].strip()

    folder = small / "build/mutation"
    drawn = {one.id: one for one in mutate.read_mutants(folder)}
    found = {
        (line_of(drawn[id]), drawn[id].operator, drawn[id].after): (
            suite,
            line["how"],
            line["by"].rpartition("::")[2],
        )
        for (id, suite), line in mutate.results_of(folder).items()
        if line["killed"] or suite == "full"
    }
    # By the test that got a fixture made by the code, not by the first that asked for it.
    assert found["found += value", "arithmetic", "-"] == ("quick", "failed", "test_uses")
    assert found["number -= 1", "assignment deleted", "pass"] == (
        "quick",
        "took too long",
        "test_down",
    )
    # The constant of a module of tests, made when it was imported.
    assert found["return len(values) < LIMIT", "returns None", "None"] == (
        "full",
        "failed",
        "test_few",
    )
    assert found["LIMIT = 3", "constant", "4"] == ("full", "failed", "test_few")
    assert found["return number * 7", "arithmetic", "/"] == ("full", "", "")
    # In a child process.
    assert found["return number * 2", "arithmetic", "/"] == ("quick", "failed", "test_child")
    assert found["FIRST = [5][0]", "constant", "1"] == ("quick", "could not be imported", "")
    # A test that fails on sound code kills nobody.
    assert found["return number - 4", "arithmetic", "+"] == ("full", "", "")
    assert "return number * 7" in tool(*given, "report").partition("survivors:")[2]
