"""Every sentence in the code with which fedspend refuses, fails or warns.

Guarantee: each call of an error class, each `warnings.warn` and each other `raise` in `src` is
listed, with its words; a value that is put in is `{}`, and where the code chooses between words,
both are there. Read from the source, so it holds for those that no test reaches. `by_place` says
where each is; `all_of_them` leaves that out, so that code that moves changes nothing in it, and a
sentence that was lost or reworded does.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "fedspend"
Function = ast.FunctionDef | ast.AsyncFunctionDef
DEPTH = 4  # how many names and calls are followed to find the words of one sentence


@dataclass(frozen=True)
class Sentence:
    """What may be said, and where."""

    kind: str
    words: str
    module: str
    function: str


class Module:
    """One source file, with what is defined at its top and what it imports from the others."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.tree = ast.parse(path.read_text(encoding="utf-8"))
        self.functions: dict[str, Function] = {}
        self.constants: dict[str, ast.expr] = {}
        self.imported: dict[str, tuple[str, str]] = {}
        for node in ast.walk(self.tree):
            if isinstance(node, Function):
                self.functions.setdefault(node.name, node)
            elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("fedspend."):
                for one in node.names:
                    self.imported[one.asname or one.name] = (str(node.module), one.name)
        for node in self.tree.body:
            if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
                self.constants[node.targets[0].id] = node.value
            elif (
                isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name) and node.value
            ):
                self.constants[node.target.id] = node.value

    @property
    def name(self) -> str:
        return str(self.path.relative_to(SOURCE))

    @property
    def room(self) -> str:
        parts = self.path.relative_to(SOURCE).parts
        return parts[0] if len(parts) > 1 else "fedspend"


@cache
def modules() -> dict[str, Module]:
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = path.relative_to(SOURCE.parent).with_suffix("").parts
        found[".".join(parts).removesuffix(".__init__")] = Module(path)
    return found


@cache
def kinds() -> frozenset[str]:
    """The names of all classes of errors and warnings of ours."""
    bases = {
        node.name: {ast.unparse(base) for base in node.bases}
        for module in modules().values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef)
    }
    found = {"FedspendError", "FedspendWarning"}
    while more := {name for name, above in bases.items() if above & found} - found:
        found |= more
    return frozenset(found)


@cache
def sentences() -> tuple[Sentence, ...]:
    return tuple(one for module in modules().values() for one in _of_module(module))


def by_place() -> dict[str, str]:
    """The text of each room: its sentences by module and function."""
    rooms: dict[str, list[str]] = {}
    for one in sentences():
        room = modules_by_name()[one.module].room
        rooms.setdefault(room, []).append(
            f"{one.module}: {one.function}: {one.kind}: {one.words or '(no words of its own)'}"
        )
    return {room: "\n".join(sorted(lines)) + "\n" for room, lines in rooms.items()}


def all_of_them() -> str:
    """Every sentence once, with what raises it."""
    return (
        "\n".join(sorted({f"{one.kind}: {one.words}" for one in sentences() if one.words})) + "\n"
    )


@cache
def modules_by_name() -> dict[str, Module]:
    return {module.name: module for module in modules().values()}


def _of_module(module: Module) -> Iterator[Sentence]:
    for place, function, node in _statements(module.tree, "", None):
        kind, words = _said(node, module, function)
        if kind:
            yield Sentence(kind, words, module.name, place or "(module)")
        for kind, words in _handed_over(node, module, function):
            yield Sentence(kind, words, module.name, place or "(module)")


def _statements(
    node: ast.AST, place: str, function: Function | None
) -> Iterator[tuple[str, Function | None, ast.AST]]:
    """Every node below, with the qualified name of the function that it is in."""
    for child in ast.iter_child_nodes(node):
        yield place, function, child
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = f"{place}.{child.name}".lstrip(".")
            yield from _statements(child, inner, child if isinstance(child, Function) else function)
        else:
            yield from _statements(child, place, function)


def _said(node: ast.AST, module: Module, function: Function | None) -> tuple[str, str]:
    """The kind of error or warning that a node makes, and its words."""
    if isinstance(node, ast.Raise) and node.exc is not None:
        made = node.exc
        if isinstance(made, ast.Call) and _called(made) in kinds():
            return "", ""  # listed as a call
        named = made.func if isinstance(made, ast.Call) else made
        words = (
            _words(made.args[0], module, function)
            if isinstance(made, ast.Call) and made.args
            else ""
        )
        return f"raise {ast.unparse(named)}", words
    if not isinstance(node, ast.Call):
        return "", ""
    last = _called(node)
    if last == "warn" and node.args:
        category = ast.unparse(node.args[1]) if len(node.args) > 1 else "UserWarning"
        return f"warn {category}", _words(node.args[0], module, function)
    of = [last] if last in kinds() else sorted(_kinds_of(node.func, function))
    if of:
        return " or ".join(of), ": ".join(_words(one, module, function) for one in node.args)
    return "", ""


def _kinds_of(called: ast.expr, function: Function | None) -> set[str]:
    """The classes that a name may stand for: `kind = Refused if late else InvalidInput`."""
    if function is None or not isinstance(called, ast.Name):
        return set()
    given = [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign) and called.id in _targets(node)
    ]
    named = {
        one.id
        for value in given
        if isinstance(value, (ast.IfExp, ast.Name, ast.BoolOp, ast.Tuple))
        for one in ast.walk(value)
        if isinstance(one, ast.Name)
    }
    return named & kinds()


@cache
def takers() -> dict[Function, list[tuple[int, str, str]]]:
    """Functions that put what they are given into an error: which argument, and of what kind."""
    found: dict[Function, list[tuple[int, str, str]]] = {}
    for module in modules().values():
        for _, function, node in _statements(module.tree, "", None):
            if function is None or not isinstance(node, ast.Call):
                continue
            kind = _called(node)
            if kind not in kinds():
                continue
            arguments = function.args.posonlyargs + function.args.args
            names = [one.arg for one in arguments if one.arg not in ("self", "cls")]
            names += [one.arg for one in function.args.kwonlyargs]
            used = {
                one.id for part in node.args for one in ast.walk(part) if isinstance(one, ast.Name)
            }
            for position, name in enumerate(names):
                if name in used and (one := (position, name, kind)) not in found.get(function, ()):
                    found.setdefault(function, []).append(one)
    return found


@cache
def takers_by_name() -> dict[str, list[Function]]:
    found: dict[str, list[Function]] = {}
    for function in takers():
        found.setdefault(function.name, []).append(function)
    return found


def _handed_over(
    node: ast.AST, module: Module, function: Function | None
) -> Iterator[tuple[str, str]]:
    """The sentences that a call gives to a function that refuses with them."""
    if not isinstance(node, ast.Call) or (name := _called(node)) not in takers_by_name():
        return
    if isinstance(node.func, ast.Attribute):  # of whichever class
        taken = [one for taker in takers_by_name()[name] for one in takers()[taker]]
    else:
        at, original = _defined(name, module)
        taken = takers().get(at.functions[original], []) if at is not None else []
    named = {one.arg: one.value for one in node.keywords}
    for position, parameter, kind in dict.fromkeys(taken):
        given = named.get(parameter, node.args[position] if position < len(node.args) else None)
        words = _words(given, module, function)
        if len([one for one in words.split() if any(letter.isalpha() for letter in one)]) >= 3:
            yield f"{kind} by {name}", words


def _called(node: ast.Call) -> str:
    of = node.func
    return of.attr if isinstance(of, ast.Attribute) else of.id if isinstance(of, ast.Name) else ""


def _words(
    node: ast.expr | None, module: Module, function: Function | None, depth: int = DEPTH
) -> str:
    """The words of an expression that makes a text; `{}` for a value that is put in."""
    match node:
        case ast.Constant(value=str() as text):
            return " ".join(text.split(" ")).replace("\n", "\\n")
        case ast.JoinedStr(values=values):
            return "".join(_words(value, module, function, depth) for value in values)
        case ast.FormattedValue(value=value):
            return _put_in(value, module, function, depth)
        case ast.BinOp(op=ast.Add(), left=left, right=right):
            return "".join(_words(one, module, function, depth) for one in (left, right))
        case ast.BinOp(op=ast.Mod(), left=left):
            return _words(left, module, function, depth)
        case ast.IfExp(body=body, orelse=orelse):
            return _either([_words(one, module, function, depth) for one in (body, orelse)])
        case ast.BoolOp(values=values):
            return _either([_words(one, module, function, depth) for one in values])
        case ast.Dict(values=values):
            return _either([_words(one, module, function, depth) for one in values])
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return _either([_words(one, module, function, depth) for one in parts])
        case ast.Subscript(value=value):
            return _words(value, module, function, depth)
        case ast.GeneratorExp(elt=element) | ast.ListComp(elt=element):
            return _words(element, module, function, depth)
    if node is None or depth == 0:
        return "{}"
    if isinstance(node, ast.Name):
        return _of_name(node.id, module, function, depth)
    if isinstance(node, ast.Call):
        return _of_call(node, module, function, depth)
    return "{}"


def _put_in(value: ast.expr, module: Module, function: Function | None, depth: int) -> str:
    """Words that are chosen inside a sentence, in braces."""
    inner = _words(value, module, function, depth)
    bare = inner.strip("{}")
    return "{" + bare + "}" if any(letter.isalpha() for letter in bare) else "{}"


def _either(words: list[str]) -> str:
    chosen = list(dict.fromkeys(words))
    return chosen[0] if len(chosen) == 1 else "(" + " | ".join(chosen) + ")"


def _of_name(name: str, module: Module, function: Function | None, depth: int) -> str:
    if function is not None:
        given = [
            node.value
            for node in ast.walk(function)
            if isinstance(node, (ast.Assign, ast.AnnAssign, ast.AugAssign))
            and name in _targets(node)
            and node.value is not None
        ]
        if given:
            return _either([_words(one, module, function, depth - 1) for one in given])
    if name in module.constants:
        return _words(module.constants[name], module, None, depth - 1)
    if name in module.imported:
        other, original = _elsewhere(*module.imported[name])
        if other is not None and original in other.constants:
            return _words(other.constants[original], other, None, depth - 1)
    return "{}"


def _targets(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> set[str]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    return {one.id for target in targets for one in ast.walk(target) if isinstance(one, ast.Name)}


def _elsewhere(name: str, what: str) -> tuple[Module | None, str]:
    """The module of ours where an imported name is defined, also where it is only passed on."""
    module = modules().get(name)
    if module is not None and what in module.imported:
        return _elsewhere(*module.imported[what])
    return module, what


def _defined(name: str, module: Module) -> tuple[Module | None, str]:
    """The module of ours that defines a function, and its name there."""
    at: Module | None = module
    if name in module.imported:
        at, name = _elsewhere(*module.imported[name])
    return (at, name) if at is not None and name in at.functions else (None, name)


def _of_call(node: ast.Call, module: Module, function: Function | None, depth: int) -> str:
    """The words that a function of ours returns, or those of a text that is joined or formatted."""
    if isinstance(node.func, ast.Attribute):
        of, method = node.func.value, node.func.attr
        if method == "join" and node.args:
            return _words(node.args[0], module, function, depth - 1)
        if method in ("format", "replace", "strip", "rstrip", "removesuffix", "get"):
            return _words(of, module, function, depth - 1)
        return "{}"
    name = _called(node)
    if name in ("str", "repr", "sorted", "next") and node.args:
        return _words(node.args[0], module, function, depth - 1)
    at, name = _defined(name, module)
    if at is None:
        return "{}"
    called = at.functions[name]
    given = [one.value for one in ast.walk(called) if isinstance(one, ast.Return) and one.value]
    inside = [_words(one, at, called, depth - 1) for one in given]
    passed = [_words(one, module, function, depth - 1) for one in node.args]
    telling = [one for one in (*inside, *passed) if any(letter.isalpha() for letter in one)]
    return _either(telling) if telling else "{}"
