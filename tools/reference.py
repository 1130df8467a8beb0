"""The pages of the reference that are made from the code: commands, config keys, names, Python.

Guarantee: nothing here is typed by hand. Commands and options come from the parsers, keys from
`configuration.sections`, names from the registries, functions and classes from their docstrings.

    python tools/reference.py build/reference      # writes them; the site has them without this
"""

from __future__ import annotations

import argparse
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Any

COMMANDS = "reference/commands"


def pages() -> Iterator[tuple[str, str]]:
    """(path in docs, Markdown) of every generated page."""
    yield from command_pages()
    yield "reference/configuration.md", configuration_page()
    yield "reference/names.md", names_page()
    yield "reference/python.md", python_page()


# --- commands ---


def command_pages() -> Iterator[tuple[str, str]]:
    from fedspend.cli.main import COMMANDS as MODULES
    from fedspend.cli.main import build_parser

    _, parsers = build_parser()
    rows = [f"| [`{name}`]({name}.md) | {cell(MODULES[name].HELP)} |" for name in parsers]
    yield (
        f"{COMMANDS}/index.md",
        "# Commands\n\n`fedspend --version` prints the version; `fedspend --load FILE.py COMMAND` "
        "first runs a file that registers your own entries. Exit codes: 0 done, 1 refused or "
        "failed verification, 2 bad input, 130 interrupted.\n\n| command | what it does |\n"
        "|---|---|\n" + "\n".join(rows) + "\n",
    )
    for name, parser in parsers.items():
        text = f"# fedspend {name}\n\n{parser.description}\n\n{_options(parser)}"
        for action, child in actions(parser):
            text += f"\n## {name} {action}\n\n{child.description or ''}\n\n{_options(child)}"
        if parser.epilog:
            text += f"\n## Examples\n\n```text\n{_without_title(parser.epilog)}\n```\n"
        yield f"{COMMANDS}/{name}.md", text


def actions(parser: argparse.ArgumentParser) -> Iterator[tuple[str, argparse.ArgumentParser]]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield from action.choices.items()


def _options(parser: argparse.ArgumentParser) -> str:
    formatter = parser._get_formatter()
    shown = [
        (formatter._format_action_invocation(action), formatter._expand_help(action))
        for action in parser._actions
        if action.help not in (None, argparse.SUPPRESS)
        and not isinstance(action, argparse._SubParsersAction)
    ]
    usage = parser.format_usage().removeprefix("usage: ")
    lines = [f"| `{cell(name)}` | {cell(said)} |" for name, said in shown]
    table = "| | |\n|---|---|\n" + "\n".join(lines) + "\n" if lines else ""
    return f"```text\n{usage}```\n\n{table}"


def _without_title(text: str) -> str:
    return re.sub(r"\Aexamples:\n", "", text).strip("\n")


# --- config ---


def configuration_page() -> str:
    from fedspend.configuration.sections import SECTIONS

    text = (
        "# Configuration\n\nA config is a TOML file with these sections; in Python, a dict of "
        "dicts. `--set section.key=value` overrides one value. Unknown keys, values out of range "
        "and keys that have no effect are refused.\n"
    )
    for name, keys in SECTIONS.items():
        text += f"\n## [{name}]\n\n| key | value | default | |\n|---|---|---|---|\n"
        for key, about in keys.items():
            default = "" if about.default is None else f"`{_toml(about.default)}`"
            said = cell(about.help)
            text += f"| `{key}` | {cell(about.wanted)} | {default} | {said} |\n"
    return text


def _toml(value: Any) -> str:
    from fedspend.basics.toml_text import toml

    return cell(toml(value))


# --- names ---


def names_page() -> str:
    from fedspend.accounting.accountants import ACCOUNTANTS
    from fedspend.data.loading import DATA_SETS
    from fedspend.data.partition import PARTITIONS
    from fedspend.engines.table import ENGINES
    from fedspend.models.building import MODELS
    from fedspend.planning.policies.table import POLICIES
    from fedspend.server.methods.table import METHODS
    from fedspend.tasks.table import LOSSES, METRICS

    text = (
        "# Names\n\nWhatever has a name in a config. `fedspend.register` adds names of your own.\n"
    )
    for key, registry in (
        ("method.name", METHODS),
        ("privacy.policy", POLICIES),
        ("privacy.accountant", ACCOUNTANTS),
        ("data.name", DATA_SETS),
        ("data.partition", PARTITIONS),
        ("model.name", MODELS),
        ("task.loss", LOSSES),
        ("task.metrics", METRICS),
        ("engine.name", ENGINES),
    ):
        text += f"\n## {key}\n\n| {registry.what} | | its own keys |\n|---|---|---|\n"
        for entry in registry:
            keys = ", ".join(f"`{name}`" for name in entry.keys)
            text += f"| `{entry.name}` | {cell(entry.help)} | {keys} |\n"
    return text


# --- Python ---


def python_page() -> str:
    import fedspend

    text = "# Python\n\n`import fedspend`; everything here is a name of it.\n"
    for name in fedspend.__all__:
        thing = getattr(fedspend, name)
        if name == "__version__":
            continue
        if inspect.ismodule(thing):
            text += f"\n## fedspend.{name}\n\n{_docstring(thing)}\n"
            for inner in getattr(thing, "__all__", ()):
                inside = getattr(thing, inner)
                if callable(inside) and not isinstance(inside, type):
                    text += _described(f"fedspend.{name}.{inner}", inside, "###")
        else:
            text += _described(f"fedspend.{name}", thing, "##")
    return text


def _described(name: str, thing: Any, level: str) -> str:
    text = f"\n{level} {name}\n\n```text\n{_signature(name, thing)}\n```\n\n{_docstring(thing)}\n"
    if isinstance(thing, type):
        values = (property, cached_property)
        kinds = (*values, classmethod, staticmethod, type(_described))
        names = [
            (method, isinstance(found, values), getattr(thing, method))
            for method, found in vars(thing).items()
            if not method.startswith("_") and isinstance(found, kinds)
        ]
        for method, is_value, of in names:
            if inspect.getdoc(of):
                shown = method if is_value else _signature(method, of)
                text += f"\n`{cell(' '.join(shown.split()))}`\n: {_first(of)}\n"
        plain = [f"`{method}`" for method, _, of in names if not inspect.getdoc(of)]
        text += f"\nAnd {', '.join(plain)}.\n" if plain else ""
    return text


def _signature(name: str, thing: Any) -> str:
    try:
        found = inspect.signature(thing)
    except (TypeError, ValueError):
        return name
    one = _unquoted(f"{name}{found}")
    if len(one) <= 88:
        return one
    each = "".join(f"    {_unquoted(str(value))},\n" for value in found.parameters.values())
    back = "" if found.return_annotation is found.empty else f" -> {found.return_annotation}"
    return f"{name}(\n{each}){back}"


def _unquoted(text: str) -> str:
    """Annotations are kept as text, which `inspect` shows in quotes."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def _first(thing: Any) -> str:
    """The first sentence or two, on one line."""
    return escape(" ".join((inspect.getdoc(thing) or "").partition("\n\n")[0].split()))


def _docstring(thing: Any) -> str:
    """A docstring as Markdown: examples in a block of their own, what sections name as a list, the
    rest as it is.
    """
    return "\n\n".join(map(_part, re.split(r"\n\n+", inspect.getdoc(thing) or "")))


def _part(part: str) -> str:
    title, _, rest = part.partition("\n")
    if part.startswith(">>> "):
        return f"```pycon\n{part}\n```"
    if part.startswith("    "):
        return f"```text\n{inspect.cleandoc(part)}\n```"
    if re.fullmatch(r"[A-Z][\w ]*:", title) and rest.startswith("    "):
        return f"**{title.removesuffix(':')}**\n\n{_section(textwrap.dedent(rest))}"
    return escape(part)


def _section(body: str) -> str:
    """The body of a section such as `Arguments:`; a list, if it has a name for each."""
    items = [" ".join(item.split()) for item in re.split(r"\n(?=\S)", body)]
    named = [re.fullmatch(r"([\w, ]+): (.*)", item) for item in items]
    if not all(named):
        return escape(" ".join(body.split()))
    return "\n".join(f"- `{one[1]}`: {escape(one[2])}" for one in named if one)


def escape(text: str) -> str:
    """Without accidental HTML and links, outside code."""
    pieces = re.split(r"(`[^`]*`)", text)
    return "".join(
        piece
        if piece.startswith("`")
        else re.sub(r"([<\[*_|])", r"\\\1", piece.replace("&", "&amp;"))
        for piece in pieces
    )


def cell(text: str) -> str:
    """On one line, for a table."""
    return " ".join(text.split()).replace("|", "\\|").replace("<", "&lt;")


def main() -> int:
    folder = Path(sys.argv[1])
    for name, text in pages():
        place = folder / name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
