"""Strict reading of a TOML config file, with `section.key=value` overrides from the command line.

Guarantee: every value in a `Config` has been read by its field in `sections`; an unknown section or
key, a wrong type, NaN or a value out of range is refused with one line that begins with FILE:LINE
(or with the override) and, for a misspelt name, gives the nearest one. File names in a config file
are relative to its folder, all others to the working directory; a `Config` holds absolute paths, so
it no longer depends on either.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from os import PathLike
from pathlib import Path
from typing import Any, TypeVar

from fedspend.basics.registry import own_keys
from fedspend.basics.removed import refuse_removed
from fedspend.configuration import sections
from fedspend.configuration.keys import ANYTHING, AnyKey
from fedspend.configuration.sections import SECTIONS
from fedspend.configuration.toml_lines import value_lines
from fedspend.errors import InvalidInput, unreadable

BUDGET_SOURCES = ("epsilon", "groups", "budgets", "preferences")
T = TypeVar("T")


@dataclass(frozen=True)
class Config:
    """What was given, by section and key, and where.

    Every setting can also be read with its type, for example `config.privacy.delta`.
    """

    path: Path | None
    values: Mapping[str, Mapping[str, Any]]
    origins: Mapping[str, str]
    overridden: frozenset[str] = frozenset()  # names set by `--set` or a flag

    @cached_property
    def settings(self) -> sections.Settings:
        return sections.settings_of(self.values)

    @property
    def data(self) -> sections.DataSettings:
        return self.settings.data

    @property
    def model(self) -> sections.ModelSettings:
        return self.settings.model

    @property
    def task(self) -> sections.TaskSettings:
        return self.settings.task

    @property
    def method(self) -> sections.MethodSettings:
        return self.settings.method

    @property
    def privacy(self) -> sections.PrivacySettings:
        return self.settings.privacy

    @property
    def train(self) -> sections.TrainSettings:
        return self.settings.train

    @property
    def evaluation(self) -> sections.EvaluationSettings:
        return self.settings.evaluation

    @property
    def stop(self) -> sections.StopSettings:
        return self.settings.stop

    @property
    def ledger(self) -> sections.LedgerSettings:
        return self.settings.ledger

    @property
    def design(self) -> sections.DesignSettings:
        return self.settings.design

    @property
    def shape(self) -> sections.ShapeSettings:
        return self.settings.shape

    @property
    def votes(self) -> sections.VotesSettings:
        return self.settings.votes

    @property
    def engine(self) -> sections.EngineSettings:
        return self.settings.engine

    @property
    def node(self) -> sections.NodeSettings:
        return self.settings.node

    def value(self, name: str) -> Any:
        """The value of `"section.key"`: as given, or its default, or None."""
        section, key = name.split(".")
        if key not in SECTIONS[section]:  # a key of a user's own entry
            return self.values.get(section, {}).get(key)
        return getattr(getattr(self.settings, section), key)

    def options(self, section: str, keys: Iterable[str]) -> dict[str, Any]:
        """The values given for these keys, as the named arguments of an entry."""
        given = self.values.get(section, {})
        return {key: given[key] for key in keys if key in given}

    def given(self, name: str) -> bool:
        section, key = name.split(".")
        return key in self.values.get(section, {})

    def without(self, name: str) -> Config:
        """The same config without one of its values."""
        section, key = name.split(".")
        left = {k: v for k, v in self.values.get(section, {}).items() if k != key}
        return replace(self, values={**self.values, section: left})

    def where(self, name: str) -> str:
        """FILE:LINE of a value, or the override that set it."""
        return self.origins[name]


def needed(value: T | None, name: str, flag: str | None = None) -> T:
    """`value`, which must be there; otherwise an error says how to set it.

    `name` is its `"section.key"`; `flag` is the flag that can give it instead of the config.
    """
    if value is not None:
        return value
    section, key = name.split(".")
    if flag is None:
        raise InvalidInput(
            f"{key} is missing: set {key} under [{section}] in the config, or give --set "
            f"{name}=VALUE"
        )
    raise InvalidInput(
        f"{key} is missing: give {flag}, or {key} under [{section}] in the config, or --set "
        f"{name}=VALUE"
    )


@dataclass(frozen=True)
class Place:
    """Says where the value at a path was written; falls back to the nearest enclosing path."""

    file: str
    lines: Mapping[tuple[str | int, ...], int]

    def __call__(self, *path: str | int) -> str:
        while path and path not in self.lines:
            path = path[:-1]
        return f"{self.file}:{self.lines.get(path, 1)}" if self.lines else self.file


def load_config(path: str | Path | None, overrides: Sequence[str] = ()) -> Config:
    """Read and check a config file (None: an empty one), then apply `section.key=value` overrides.

    If several override the same key, the last one wins.
    """
    file = None if path is None else Path(path)
    document, place = ({}, Place("", {})) if file is None else read_toml(file)
    return checked(document, place, file, overrides)


def checked(
    document: Mapping[str, Any], place: Place, file: Path | None, overrides: Sequence[str]
) -> Config:
    values: dict[str, dict[str, Any]] = {}
    origins: dict[str, str] = {}
    for section, table in document.items():
        keys = keys_of(section, place(section))
        if not isinstance(table, dict):
            raise InvalidInput(
                f"{place(section)}: {section!r} must be a section, written [{section}], got "
                f"{shown(table)}"
            )
        read = read_table(table, keys, f"[{section}]", place, (section,))
        values[section] = with_places(read, keys, Path() if file is None else file.parent)
        origins.update({f"{section}.{key}": place(section, key) for key in table})
    overridden = [apply_override(text, values, origins) for text in overrides]
    one_source_of_budgets(values.get("privacy", {}), origins, overridden)
    tail_within_rounds(values.get("train", {}), origins)
    return Config(file, values, origins, frozenset(overridden))


def config_of(document: Mapping[str, Any], overrides: Sequence[str] = ()) -> Config:
    """A config from a dict of sections, for callers in Python."""
    return checked(dict(document), Place("config", {}), None, overrides)


AnyConfig = str | Path | Mapping[str, Any]  # a TOML file, or a dict of sections


def any_config(config: AnyConfig, overrides: Sequence[str] = ()) -> Config:
    """A config from a file or from a dict of sections."""
    if not isinstance(config, str | PathLike | Mapping):
        raise InvalidInput(f"config must be a TOML file or a dict of sections, got {config!r}")
    return (
        config_of(config, overrides)
        if isinstance(config, Mapping)
        else load_config(config, overrides)
    )


def read_toml(path: Path) -> tuple[dict[str, Any], Place]:
    if path.is_dir():
        raise InvalidInput(f"{path} is a directory; name a config file in it, NAME.toml")
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise unreadable(path, error) from None
    try:
        text = raw.decode("utf-8-sig").replace("\r\n", "\n")
        document = tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise InvalidInput(f"{path}:{line}: not UTF-8 text; save the file in UTF-8") from None
    except RecursionError:
        raise InvalidInput(
            f"{path}: lists or tables are nested too deeply; a config needs two levels"
        ) from None
    except ValueError as error:
        # tomllib says "... (at line 3, column 7)" or "... (at end of document)", and nothing for an
        # integer of 5,000 digits.
        message = str(error)
        position = re.search(r" \(at (?:line (\d+), column \d+|end of document)\)", message)
        line = (
            int(position[1])
            if position and position[1]
            else text.count("\n") + 1
            if position
            else 1
        )
        cause = message[: position.start()] if position else message
        if text.lstrip()[:1] == "{":
            raise InvalidInput(
                f"{path} is JSON, and a config is TOML; a plan goes in beside its config: fedspend "
                f"train CONFIG.toml --plan {path}"
            ) from None
        raise InvalidInput(f"{path}:{line}: not valid TOML: {cause}; fix this line") from None
    return document, Place(str(path), lines_or_none(text))


def lines_or_none(text: str) -> dict[tuple[str | int, ...], int]:
    """The line of every value, or nothing if that fails: messages then name the file alone."""
    try:
        return value_lines(text)
    except (ValueError, IndexError, StopIteration, RecursionError):
        return {}


def read_table(
    table: Mapping[str, Any],
    keys: Mapping[str, AnyKey],
    title: str,
    place: Place,
    path: tuple[str | int, ...],
) -> dict[str, Any]:
    """Check every key of one table; lists of tables are checked inside as well."""
    result: dict[str, Any] = {}
    for name, value in table.items():
        here = (*path, name)
        written = ".".join(map(str, here))
        refuse_removed(written, f"{written}={value}", where=f"{place(*here)}: ")
        key = lookup(keys, name, "key", f" in {title}", place(*here))
        try:
            result[name] = key.read(value)
        except ValueError:
            raise InvalidInput(
                f"{place(*here)}: {name} in {title} must be {key.asks}, got {shown(value)}"
                + ("; drop the quotes" if _quoted(key, value) else "")
            ) from None
        if key.table is not None:
            inner, singular = key.table, name.removesuffix("s")
            result[name] = [
                read_table(item, inner, f"{singular} {n + 1} of {title}", place, (*here, n))
                for n, item in enumerate(result[name])
            ]
            for n, item in enumerate(result[name]):
                if "epsilon" in inner and "epsilon" not in item:
                    raise InvalidInput(
                        f"{place(*here, n)}: {singular} {n + 1} of {title} has no epsilon; every "
                        "group needs one"
                    )
    return result


def with_places(values: dict[str, Any], keys: Mapping[str, AnyKey], folder: Path) -> dict[str, Any]:
    """The values of a section, with every file name made absolute."""
    return {
        name: value if (placed := keys[name].placed) is None else placed(value, folder)
        for name, value in values.items()
    }


def apply_override(text: str, values: dict[str, dict[str, Any]], origins: dict[str, str]) -> str:
    """Apply one `section.key=value`; returns its name."""
    where = f"--set {text}"
    name, equals, value_text = text.partition("=")
    section, dot, key = name.strip().partition(".")
    if not (equals and dot):
        raise InvalidInput(
            f"{where}: an override is written section.key=value, for example privacy.rate=0.5"
        )
    keys = keys_of(section, where)
    checked = read_table(
        {key: override_value(value_text.strip(), where)},
        keys,
        f"[{section}]",
        Place(where, {}),
        (section,),
    )
    values.setdefault(section, {}).update(with_places(checked, keys, Path()))
    origins[f"{section}.{key}"] = where
    return f"{section}.{key}"


def override_value(text: str, where: str) -> Any:
    """A TOML value. A bare word is a string: `--set privacy.policy=uniform` needs no quotes."""
    if not text:
        raise InvalidInput(f"{where}: there is no value after the equals sign")
    try:
        parsed = tomllib.loads(f"value = {text}")
    except (ValueError, RecursionError):
        parsed = {}
    if set(parsed) == {"value"}:
        return parsed["value"]
    if text[0] in "[{\"'" or "\n" in text:
        raise InvalidInput(
            f"{where}: {shown(text)} is not a valid TOML value; check brackets and quotes"
        )
    return text


def listed_values(text: str) -> list[str]:
    """The values between commas; a list in brackets, a table and a text in quotes are one value.

    >>> listed_values("1,2"), listed_values("[1,2],[3,4]"), listed_values('"a,b",c')
    (['1', '2'], ['[1,2]', '[3,4]'], ['"a,b"', 'c'])
    """
    parts, depth, quoted = [""], 0, False
    for letter in text:
        quoted ^= letter == '"'
        depth += (letter in "[{") - (letter in "]}")
        if letter == "," and depth == 0 and not quoted:
            parts.append("")
        else:
            parts[-1] += letter
    return parts


def one_source_of_budgets(
    privacy: dict[str, Any], origins: Mapping[str, str], overridden: Iterable[str]
) -> None:
    """Refuse budgets from more than one source; an override replaces what the file says."""
    given = [key for key in BUDGET_SOURCES if key in privacy]
    chosen = [key for key in given if f"privacy.{key}" in set(overridden)]
    if len(chosen) == 1:
        for key in given:
            if key not in chosen:
                del privacy[key]
    elif len(given) > 1:
        first, second = given[:2]
        raise InvalidInput(
            f"{origins[f'privacy.{second}']}: [privacy] has both {first} and {second}; drop one"
        )


def tail_within_rounds(train: Mapping[str, Any], origins: Mapping[str, str]) -> None:
    """Refuse a mean over more last iterates than there are rounds."""
    tail, rounds = train.get("tail_average", 1), train.get("rounds")
    if rounds is not None and tail > rounds:
        raise InvalidInput(
            f"{origins['train.tail_average']}: tail_average is {tail}, but rounds is {rounds} "
            f"({origins['train.rounds']}); set tail_average to at most {rounds}"
        )


def _quoted(key: AnyKey, value: Any) -> bool:
    """Whether a text would do as the number that is in it."""
    if not isinstance(value, str):
        return False
    for kind in (int, float):
        try:
            key.read(kind(value))
        except (ValueError, TypeError):
            continue
        return True
    return False


def keys_of(section: str, where: str) -> Mapping[str, AnyKey]:
    """The keys that a section may have: built-in ones, and those of users' own entries."""
    ours: Mapping[str, AnyKey] = lookup(SECTIONS, section, "section", "", where)
    theirs = sorted(own_keys(section).difference(ours))
    return {**ours, **dict.fromkeys(theirs, ANYTHING)} if theirs else ours


def lookup(known: Mapping[str, Any], name: str, kind: str, inside: str, where: str) -> Any:
    if name in known:
        return known[name]
    near = difflib.get_close_matches(name.lower(), known, 1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"choose one of {', '.join(known)}"
    homes = [f"[{section}]" for section, keys in SECTIONS.items() if name in keys]
    # one letter too many is likelier than the wrong section
    misspelt = difflib.get_close_matches(name.lower(), known, 1, cutoff=0.8)
    if homes and not misspelt and len(homes) < len(SECTIONS) // 2:
        hint = f"it is a key of {' and '.join(homes)}; write it there"
    raise InvalidInput(f"{where}: unknown {kind} {shown(name)}{inside}; {hint}")


def shown(value: Any) -> str:
    """A value in an error message: one short line."""
    text = (
        repr(value)
        if not isinstance(value, int) or abs(value) < 10**60
        else "a number of more than 60 digits"
    )
    return text if len(text) <= 60 else text[:57] + "..."
