"""The test files that a change may break: what `make test-changed` runs while somebody writes.

    python tools/changed_tests.py [--base REVISION]

The change is what differs, committed or not, from REVISION; without one, from where this branch
left origin/main. Printed, one a line, are the test files that were changed, and those that reach

- a changed module, another module of its room (a folder of src/fedspend), or a module anywhere that
  imports a changed one;
- a changed file of tests, tools, benchmarks or examples, as a helper or by its name.

A test file reaches what it imports, what the helpers that it imports import, and what the fixtures
that it takes use; names in strings (`"fedspend.runs.checks.verify"`) and `fedspend.train` count as
imports. One that runs the command line reaches the commands that it names. What breaks only
further away is left to `make test`: over three or more imports nearly every test reaches nearly
every module. Changed modules with examples in docstrings are printed too, for their doctests.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[1]
PACKAGE = "src/fedspend/"
MAIN = PACKAGE + "cli/main.py"
DEPLOYMENT = "tests/deployment/"  # starts servers: `make test-deployment` is asked for by name
HELPERS = ("tests", "tools", "benchmarks", "examples")


@dataclass(frozen=True)
class Words:
    """What a file, or a function, says: dotted names that it imports or mentions, strings, names of
    arguments, and every plain name.
    """

    dotted: set[str]
    strings: set[str]
    arguments: set[str]
    names: set[str]


def _statements(node: ast.AST) -> Iterator[ast.AST]:
    """Those below, without expressions: all of imports, in a tenth of the time."""
    for field in ("body", "orelse", "finalbody", "handlers", "cases"):
        for child in getattr(node, field, ()):
            yield child
            yield from _statements(child)


def words_of(nodes: Iterable[ast.AST]) -> Words:
    words = Words(set(), set(), set(), set())
    for node in nodes:
        match node:
            case ast.Import(names=names):
                words.dotted.update(alias.name for alias in names)
            case ast.ImportFrom(module=str(module), names=names):
                words.dotted.update(f"{module}.{alias.name}" for alias in names)
            case ast.Attribute(value=ast.Name(id="fedspend"), attr=name):
                words.dotted.add(f"fedspend.{name}")
            case ast.Constant(value=str(text)):
                words.strings.add(text)
            case ast.arg(arg=name):
                words.arguments.add(name)
            case ast.Name(id=name):
                words.names.add(name)
    words.dotted.update(filter(re.compile(r"fedspend(\.\w+)+").fullmatch, words.strings))
    return words


@dataclass(frozen=True)
class Fixture:
    """A function of a conftest file; every test asks for one that is `autouse`, or a hook."""

    words: Words
    autouse: bool


class Tree:
    """The Python files of a repository, by path, and which imports which."""

    def __init__(self, root: Path, changed: Iterable[str] = ()) -> None:
        """`changed` may name files that are gone: what still imports them is found."""
        self.root = root
        self.texts = {
            path.relative_to(root).as_posix(): path.read_text(encoding="utf-8")
            for folder in ("src", *HELPERS)
            for path in sorted((root / folder).rglob("*.py"))
        }
        gone = {path for path in changed if path.endswith(".py") and path not in self.texts}
        self.texts |= dict.fromkeys(sorted(gone), "")
        self.parsed = {path: ast.parse(text) for path, text in self.texts.items()}
        self.words = {
            path: words_of(_statements(tree) if path.startswith("src/") else ast.walk(tree))
            for path, tree in self.parsed.items()
        }
        self.imports = {
            path: self.find_all(words.dotted) - {path} for path, words in self.words.items()
        }

    @cached_property
    def modules(self) -> dict[str, str]:
        """Names under which files of the package are imported."""
        return {
            path.removeprefix("src/")
            .removesuffix(".py")
            .removesuffix("/__init__")
            .replace("/", "."): path
            for path in self.texts
            if path.startswith("src/")
        }

    @cached_property
    def helpers(self) -> dict[str, set[str]]:
        """Files of the other folders by their last names: `tiny`, `flower.in_process`."""
        found: dict[str, set[str]] = {}
        for path in self.texts:
            if not path.startswith("src/"):
                parts = PurePosixPath(path).with_suffix("").parts
                for length in (1, 2):
                    found.setdefault(".".join(parts[-length:]), set()).add(path)
        return found

    @cached_property
    def exported(self) -> dict[str, dict[str, str]]:
        """Where a package has the names from that it passes on: package, name, file."""
        return {
            name: {
                alias.asname or alias.name: home
                for node in ast.walk(self.parsed[path])
                if isinstance(node, ast.ImportFrom)
                for alias in node.names
                for home in self._homes(f"{node.module}.{alias.name}")
            }
            for name, path in self.modules.items()
            if path.endswith("/__init__.py")
        }

    def _homes(self, dotted: str) -> set[str]:
        """The file of the longest part of this name that is a module or a helper."""
        parts = dotted.split(".")
        for length in range(len(parts), 0, -1):
            name = ".".join(parts[:length])
            if name in self.modules:
                return {self.modules[name]}
            if length <= 2 and name in self.helpers:
                return self.helpers[name]
        return set()

    def find_files(self, dotted: str) -> set[str]:
        """The files behind a name; what a package passes on is where it comes from."""
        package, _, name = dotted.rpartition(".")
        passed_on = self.exported.get(package, {}).get(name)
        return {passed_on} if passed_on else self._homes(dotted)

    @cached_property
    def fixtures(self) -> dict[str, dict[str, Fixture]]:
        """The functions at the top of every conftest file, by name."""
        return {
            path: {
                node.name: Fixture(
                    words_of(ast.walk(node)),
                    node.name.startswith("pytest_")
                    or any("autouse" in ast.dump(one) for one in node.decorator_list),
                )
                for node in tree.body
                if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            }
            for path, tree in self.parsed.items()
            if path.endswith("/conftest.py")
        }

    def find_all(self, names: Iterable[str]) -> set[str]:
        return set().union(*map(self.find_files, names))


# --- what a test file reaches ---


def test_files(tree: Tree) -> list[str]:
    return [
        path
        for path in tree.texts
        if path.startswith("tests/") and not path.startswith(DEPLOYMENT) and _is_test(path)
    ]


def _is_test(path: str) -> bool:
    name = PurePosixPath(path).name
    return name.startswith("test_") and name.endswith(".py")


def reached_files(tree: Tree, path: str) -> set[str]:
    """Modules and helpers that a test file uses. Helpers are followed, modules are not."""
    found, ahead = set(), {path} | _used_fixtures(tree, path)
    while ahead:
        one = ahead.pop()
        if one not in found:
            found.add(one)
            ahead |= set() if one.startswith("src/") else tree.imports[one]
    if MAIN in found:
        for text in tree.words[path].strings:
            found |= _commands(tree, text)
    return found


def _commands(tree: Tree, text: str) -> set[str]:
    """The module of the command that a string begins with: "flower", "ledger show"."""
    word = text.removeprefix("fedspend ").partition(" ")[0].replace("-", "_")
    names = (f"{PACKAGE}cli/{word}.py", f"{PACKAGE}cli/{word}/__init__.py") if word else ()
    return {name for name in names if name in tree.texts}


def _used_fixtures(tree: Tree, path: str) -> set[str]:
    """What the fixtures use that stand in the conftest files beside and above, and that this file
    asks for: in an argument, or in a string (`usefixtures`).
    """
    words = tree.words[path]
    asked = words.arguments | words.strings
    found: set[str] = set()
    for conftest in reversed(list(_conftests(tree, path))):  # the nearest may ask for those above
        functions = tree.fixtures[conftest]
        ahead = {name for name, one in functions.items() if name in asked or one.autouse}
        seen: set[str] = set()
        while ahead:
            seen.add(name := ahead.pop())
            words = functions[name].words
            asked |= words.arguments
            ahead |= {one for one in functions if one in words.names | words.arguments} - seen
            found |= tree.find_all(words.dotted) | _imported_as(tree, conftest, words.names)
    return found


def _imported_as(tree: Tree, path: str, names: set[str]) -> set[str]:
    """The files behind names that this file imports at its top."""
    found: set[str] = set()
    for node in tree.parsed[path].body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            before = f"{node.module}." if isinstance(node, ast.ImportFrom) else ""
            for alias in node.names:
                if (alias.asname or alias.name.partition(".")[0]) in names:
                    found |= tree.find_files(before + alias.name)
    return found


def _conftests(tree: Tree, path: str) -> Iterator[str]:
    """From the top down."""
    for folder in reversed(PurePosixPath(path).parents):
        if (name := f"{folder}/conftest.py") in tree.texts:
            yield name


# --- what a change touches ---


def room_of(path: str) -> str:
    """The folder of the package that a file lies in; empty for the package itself."""
    return path.removeprefix(PACKAGE).partition("/")[0] if path.startswith(PACKAGE) else ""


def _passes_on(path: str) -> bool:
    """A package imports to pass on; who imports that from it is found where it comes from."""
    return path.endswith("/__init__.py")


def select_tests(tree: Tree, changed: Iterable[str]) -> list[str]:
    """The test files that a change of these files may break, and changed modules with doctests."""
    changed = set(changed)
    modules = {path for path in changed if path.startswith(PACKAGE)}
    rooms = {room_of(path) for path in modules if room_of(path) != "__init__.py"}
    touched = changed | {
        path
        for path in tree.texts
        if path.startswith(PACKAGE)
        and (room_of(path) in rooms or (tree.imports[path] & modules and not _passes_on(path)))
    }
    others = sorted(changed - modules)
    tests = [
        path
        for path in test_files(tree)
        if (reached := reached_files(tree, path)) & touched
        or changed & set(_conftests(tree, path))
        or any(_is_named(tree, other, path, reached) for other in others)
    ]
    doctests = [path for path in sorted(modules) if ">>>" in tree.texts.get(path, "")]
    return [path for path in tests + doctests if (tree.root / path).is_file()]


def _is_named(tree: Tree, path: str, test: str, reached: set[str]) -> bool:
    """Whether a test file, or a helper of it, names this file or the folder at its top, or lies
    above it in a folder of tests.
    """
    place, beside = PurePosixPath(path), PurePosixPath(test).parent
    in_tests = place.parts[0] == "tests"
    if in_tests and place.suffix == ".py":
        return False  # reached as a helper, or not at all
    if in_tests and beside in place.parents and beside != PurePosixPath("tests"):
        return True
    names = [place.name if place.name != "README.md" else path]
    if len(place.parts) > 1 and not in_tests:
        names.append(f'"{place.parts[0]}"')
    texts = [tree.texts[one] for one in reached if not one.startswith("src/")]
    return any(name in text for name in names for text in texts)


def changed_files(root: Path, base: str | None) -> list[str]:
    """Committed since the base or not, new ones too; without a base, since this branch began."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=root, check=True, capture_output=True, text=True
        ).stdout

    if base is None:
        try:
            base = git("merge-base", "HEAD", "origin/main").strip()
        except subprocess.CalledProcessError:
            base = "HEAD"
    found = git("diff", "--name-only", "--no-renames", "-z", base)
    found += git("ls-files", "--others", "--exclude-standard", "-z")
    return sorted(set(found.split("\0")) - {""})


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="The test files that a change may break.")
    parser.add_argument("--base", help="a revision; default: where this branch left origin/main")
    args = parser.parse_args(argv)
    try:
        changed = changed_files(ROOT, args.base or None)
    except (OSError, subprocess.CalledProcessError) as problem:
        print(getattr(problem, "stderr", "") or problem, file=sys.stderr)
        return 2
    tree = Tree(ROOT, changed)
    found = select_tests(tree, changed)
    print(
        f"{len(found)} of {len(test_files(tree))} test files, for {len(changed)} changed files",
        file=sys.stderr,
    )
    print("\n".join(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
