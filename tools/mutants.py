"""Where code can be broken, and how: the mutants of `mutate.py`.

Whatever has a position and a meaning is a *site*: an operator, a number, a condition, a statement.
`draw_mutants` shuffles all sites of the sources and takes the first ones, each as likely as any
other, then one of the ways to break it. A longer draw of the same seed begins with the shorter one.
"""

from __future__ import annotations

import ast
import hashlib
import random
import re
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, chain, pairwise
from pathlib import Path
from typing import Any


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
    def bits(self) -> int:
        """The lines of its statement, as `Case` has them."""
        return sum(1 << line for line in range(self.first, self.last + 1))

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


COMPARISONS = {
    "Lt": ("<", "<=", ">"),
    "LtE": ("<=", "<", ">="),
    "Gt": (">", ">=", "<"),
    "GtE": (">=", ">", "<="),
    "Eq": ("==", "!="),
    "NotEq": ("!=", "=="),
    "Is": ("is", "is not"),
    "IsNot": (r"is\s+not", "is"),
    "In": ("in", "not in"),
    "NotIn": (r"not\s+in", "in"),
}
ARITHMETIC = {
    "Add": (r"\+", "-"),
    "Sub": ("-", "+"),
    "Mult": (r"\*", "/"),
    "Div": ("/", "*"),
    "FloorDiv": ("//", "*"),
    "Mod": ("%", "*"),
    "Pow": (r"\*\*", "*"),
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
        self.found: list[list[Mutant]] = []
        self.starts = list(accumulate(map(len, source.splitlines(keepends=True)), initial=0))
        self.first = self.last = 1
        self.inside = False  # a function
        self.visit(ast.parse(source))

    def span(self, node: Any) -> tuple[int, int]:
        ends = ((node.lineno, node.col_offset), (node.end_lineno, node.end_col_offset))
        start, end = (self.starts[line - 1] + column for line, column in ends)
        return start, end

    def text(self, node: Any) -> str:
        return self.source[slice(*self.span(node))].decode()

    def add(self, operator: str, where: Any, *options: str) -> None:
        start, end = where if isinstance(where, tuple) else self.span(where)
        lines = (self.source.count(b"\n", 0, start) + 1, self.first, self.last)
        place = (self.file, digest_of(self.source), start, end, *lines, not self.inside)
        before = self.source[start:end].decode()
        self.found.append([Mutant(*place, operator, before, after) for after in options])

    def add_between(self, name: str, left: Any, right: Any, token: str, *options: str) -> None:
        """At the operator between them: where it stands, the tree does not say."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = re.sub(rb"#[^\n]*", lambda comment: b" " * len(comment[0]), self.source[start:end])
        found = re.search(token.encode(), gap)
        assert found, (token, gap)
        self.add(name, (start + found.start(), start + found.end()), *options)

    def visit(self, node: Any) -> None:
        if isinstance(node, ast.stmt):
            parts: Any = [node]
            if hasattr(node, "body"):  # its head alone: the rest are statements
                parts = [getattr(part, "context_expr", part) for part in ast.iter_child_nodes(node)]
            ends = [part.end_lineno for part in parts if part is node or isinstance(part, ast.expr)]
            self.first, self.last = node.lineno, max([node.lineno, *ends])
        for part in self.mutate(node):
            self.visit(part)

    def mutate(self, node: Any) -> Iterable[ast.AST]:
        """Adds the sites of the node itself. Returns the parts of it to go on with."""
        match node:
            case ast.FunctionDef():
                for default in filter(None, (*node.args.defaults, *node.args.kw_defaults)):
                    self.first, self.last = default.lineno, default.end_lineno or default.lineno
                    self.visit(default)
                outside, self.inside = self.inside, True
                for statement in [] if node.name in WORDS else node.body:
                    self.visit(statement)
                self.inside = outside
                return ()
            case ast.ClassDef():
                return node.body
            case ast.AnnAssign():
                return filter(None, [node.value])
            case ast.JoinedStr():
                return ()
            case ast.Assert():
                return [node.test]
            case ast.Raise():
                self.add("raise deleted", node, "pass")
                return ()
            case ast.Expr(value=ast.Call()):
                self.add("call deleted", node, "pass")
            case ast.AugAssign():
                self.add("assignment deleted", node, "pass")
                self.add_arithmetic(node.op, node.target, node.value)
            case ast.BinOp():
                self.add_arithmetic(node.op, node.left, node.right)
            case ast.Return() if node.value is not None and self.text(node.value) != "None":
                self.add("returns None", node.value, "None")
            case ast.If() | ast.IfExp() | ast.While():
                if re.search("TYPE_CHECKING|__name__", self.text(node.test)):
                    return ()
                options = ("False",) if isinstance(node, ast.While) else ("True", "False")
                self.add("condition", node.test, *options)
            case ast.comprehension():
                for test in node.ifs:
                    self.add("condition", test, "True", "False")
            case ast.Compare():
                sides = pairwise([node.left, *node.comparators])
                for (left, right), operator in zip(sides, node.ops, strict=True):
                    change = COMPARISONS[type(operator).__name__]
                    self.add_between("comparison", left, right, *change)
            case ast.BoolOp():
                both = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                after = f" {both[1]} ".join(f"({self.text(value)})" for value in node.values)
                self.add(" to ".join(both), node, f"({after})")
            case ast.UnaryOp(op=ast.Not() | ast.USub()):
                name = "not dropped" if isinstance(node.op, ast.Not) else "sign dropped"
                self.add(name, node, f"({self.text(node.operand)})")
            case ast.Constant(value=bool()):
                self.add("constant", node, repr(not node.value))
            case ast.Constant(value=int()):
                self.add("constant", node, repr(node.value + 1))
            case ast.Constant(value=float()):
                self.add("constant", node, repr(node.value * 2 or 1.0))
            case ast.Slice():
                for bound, move in ((node.lower, "+ 1"), (node.upper, "- 1")):
                    if bound is not None and not isinstance(bound, ast.Constant):
                        self.add("slice", bound, f"({self.text(bound)}) {move}")
            case ast.Call():
                name = getattr(node.func, "attr", getattr(node.func, "id", ""))
                if name in OPPOSITE:
                    end = self.span(node.func)[1]
                    self.add("opposite", (end - len(name), end), OPPOSITE[name])
                if name in WORDS:
                    return ()
                given = [keyword.value for keyword in node.keywords if keyword.arg != "strict"]
                return [node.func, *node.args, *given]
        return ast.iter_child_nodes(node)

    def add_arithmetic(self, operator: ast.operator, left: ast.AST, right: ast.AST) -> None:
        sides = (getattr(side, "value", side) for side in (left, right))
        change = ARITHMETIC.get(type(operator).__name__)
        if change and not any(isinstance(side, str | ast.JoinedStr) for side in sides):
            self.add_between("arithmetic", left, right, *change)


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
