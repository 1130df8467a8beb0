"""`fedspend completion bash | zsh | fish`: a script that completes commands, options and names.

Everything in it is read from the parsers, so it knows what they know. It offers words and runs
nothing: no completion starts Python.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass

from fedspend.cli.names import NAMES

HELP = "print a script that completes commands in your shell"
DESCRIPTION = (
    "Print a script with which your shell completes commands, actions, options and the names that "
    "an option takes; elsewhere it completes file names. Made from this version's own commands: "
    "print it again after an update."
)
EXAMPLES = """examples:
  source <(fedspend completion bash)                 # in this shell; or put it into ~/.bashrc
  fedspend completion zsh > ~/.zfunc/_fedspend       # into a folder of your fpath
  fedspend completion fish > ~/.config/fish/completions/fedspend.fish
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=tuple(WRITERS), help="which shell")


def run(args: argparse.Namespace) -> int:
    from fedspend.cli.main import build_parser

    print(WRITERS[args.shell](list(levels(build_parser()[0]))), end="")
    return 0


@dataclass(frozen=True)
class Word:
    """What may be typed, what it does, and what may follow it (an option's names)."""

    text: str
    help: str = ""
    names: tuple[str, ...] = ()
    takes_value: bool = False


@dataclass(frozen=True)
class Level:
    """A command, `fedspend ledger balance`, and what may be typed after it."""

    path: str
    words: tuple[Word, ...]

    @property
    def options(self) -> Iterator[Word]:
        return (word for word in self.words if word.text.startswith("-"))

    @property
    def plain(self) -> Iterator[Word]:
        return (word for word in self.words if not word.text.startswith("-"))


def levels(parser: argparse.ArgumentParser, path: str = "fedspend") -> Iterator[Level]:
    """The parser's own level, then those of its commands and actions."""
    below = [action for action in parser._actions if isinstance(action, SUBPARSERS)]
    yield Level(path, tuple(word for action in parser._actions for word in _words(action)))
    for action in below:
        for name, child in action.choices.items():
            yield from levels(child, f"{path} {name}")


SUBPARSERS = argparse._SubParsersAction


def _words(action: argparse.Action) -> Iterator[Word]:
    if isinstance(action, SUBPARSERS):
        said = {choice.dest: choice.help or "" for choice in action._choices_actions}
        yield from (Word(name, _plain(said.get(name, ""))) for name in action.choices)
    elif action.option_strings:
        for option in action.option_strings:
            yield Word(option, _plain(action.help or ""), _names(action), action.nargs != 0)
    else:
        yield from (Word(name) for name in _names(action))


def _names(action: argparse.Action) -> tuple[str, ...]:
    """The values that are known: choices, or the entries that the help names in braces."""
    listed = [names for what, names in NAMES.items() if f"{{{what}}}" in (action.help or "")]
    known = action.choices or (listed[0].split(", ") if listed else ())
    return tuple(map(str, known))


def _plain(text: str) -> str:
    """Help on one line, without what a shell could read as its own: quotes, colons, brackets."""
    one = " ".join(text.replace("%%", "%").split())
    return "".join(sign for sign in one if sign not in "'\"`$\\{}[]:!")


# --- shells ---


def bash(found: list[Level]) -> str:
    offers = "".join(
        f'    "{level.path}") offered="{" ".join(word.text for word in level.words)}" ;;\n'
        for level in found
    )
    return (
        "# fedspend: completion for bash\n_fedspend() {\n"
        "  local current=${COMP_WORDS[COMP_CWORD]} last=${COMP_WORDS[COMP_CWORD-1]}\n"
        '  local at=fedspend offered="" number\n'
        "  for ((number = 1; number < COMP_CWORD; number++)); do\n"
        '    case "$at ${COMP_WORDS[number]}" in\n'
        f'      {_paths(found)}) at="$at ${{COMP_WORDS[number]}}" ;;\n'
        "    esac\n  done\n"
        '  case "$at $last" in\n'
        + "".join(
            f'    {_flags(level, word)}) COMPREPLY=($(compgen -W "{" ".join(word.names)}" -- '
            '"$current")); return ;;\n'
            for level, word in _with_names(found)
        )
        + "".join(f"    {flags}) COMPREPLY=(); return ;;\n" for flags in _with_other_values(found))
        + f'  esac\n  case "$at" in\n{offers}  esac\n'
        '  COMPREPLY=($(compgen -W "$offered" -- "$current"))\n'
        "}\ncomplete -o default -F _fedspend fedspend\n"
    )


def zsh(found: list[Level]) -> str:
    offers = "".join(
        f'    "{level.path}") offered=('
        + " ".join(f"'{word.text}:{word.help}'" for word in level.words)
        + ") ;;\n"
        for level in found
    )
    return (
        "#compdef fedspend\n# fedspend: completion for zsh\n_fedspend() {\n"
        "  local at=fedspend word\n  local -a offered\n"
        "  for word in ${words[2,CURRENT-1]}; do\n"
        f'    case "$at $word" in\n      {_paths(found)}) at="$at $word" ;;\n    esac\n  done\n'
        '  case "$at ${words[CURRENT-1]}" in\n'
        + "".join(
            f"    {_flags(level, word)}) compadd -- {' '.join(word.names)}; return ;;\n"
            for level, word in _with_names(found)
        )
        + "".join(f"    {flags}) _files; return ;;\n" for flags in _with_other_values(found))
        + f'  esac\n  case "$at" in\n{offers}  esac\n'
        "  _describe fedspend offered\n"
        '  [[ "${words[CURRENT]}" == -* ]] || _files\n'
        "}\nif [ \"${funcstack[1]}\" = '_fedspend' ]; then _fedspend; "
        "else compdef _fedspend fedspend; fi\n"
    )


def fish(found: list[Level]) -> str:
    paths = " ".join(f"'{level.path}'" for level in found[1:])
    lines = [
        "# fedspend: completion for fish",
        "function __fedspend_at",
        "    set -l at fedspend",
        "    for word in (commandline -opc)[2..-1]",
        '        switch "$at $word"',
        f"            case {paths}",
        '                set at "$at $word"',
        "        end",
        "    end",
        '    test "$at" = "$argv"',
        "end",
    ]
    for level in found:
        here = f"complete -c fedspend -n '__fedspend_at {level.path}'"
        lines += [f"{here} -a '{word.text}' -d '{word.help}'" for word in level.plain]
        for word in level.options:
            dashes = "-l" if word.text.startswith("--") else "-s"
            value = f" -x -a '{' '.join(word.names)}'" if word.names else ""
            value = value or (" -r" if word.takes_value else "")
            lines.append(f"{here} {dashes} {word.text.lstrip('-')}{value} -d '{word.help}'")
    return "\n".join(lines) + "\n"


WRITERS = {"bash": bash, "zsh": zsh, "fish": fish}


def _paths(found: list[Level]) -> str:
    return "|".join(f'"{level.path}"' for level in found[1:])


def _flags(level: Level, word: Word) -> str:
    return f'"{level.path} {word.text}"'


def _with_names(found: list[Level]) -> Iterator[tuple[Level, Word]]:
    return ((level, word) for level in found for word in level.options if word.names)


def _with_other_values(found: list[Level]) -> Iterator[str]:
    """Of each level, the options whose value is no known name: a file, perhaps."""
    for level in found:
        options = [word for word in level.options if word.takes_value and not word.names]
        if options:
            yield "|".join(_flags(level, word) for word in options)
