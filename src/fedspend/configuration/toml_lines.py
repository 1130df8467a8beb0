"""Line numbers for the values of a TOML document, which `tomllib` does not give.

`value_lines(text)` maps the path of every section, key and list element to the line where it
starts, so that an error about a value can point at it. The text must already have been accepted by
`tomllib`: this walks over valid TOML, it does not check it.
"""

from __future__ import annotations

import re

Path = tuple[str | int, ...]

SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
KEY_PART = re.compile(r"""[ \t]*("(?:\\.|[^"\\\n])*"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*""")
BARE_VALUE = re.compile(r"[^,\]}\n#]*")
# Longest first: a triple quote also begins with a single one. A multi-line string may end in up to
# two more quotes.
STRINGS = (
    re.compile(r'"""(?:\\.|[^\\])*?"""(?:"{0,2})', re.DOTALL),
    re.compile(r"'''.*?'''(?:'{0,2})", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\\n])*"'),
    re.compile(r"'[^'\n]*'"),
)


def value_lines(text: str) -> dict[Path, int]:
    r"""The line (from 1) of every path in valid TOML.

    >>> value_lines("[a]\nb = [\n  {c = 1},\n  {c = 2},\n]\n")[("a", "b", 1, "c")]
    4
    """
    scan = Scanner(text)
    section: Path = ()
    tables_seen: dict[Path, int] = {}
    while (start := scan.skip()) < len(text):
        if text[start] == "[":
            double = text.startswith("[[", start)
            scan.at += 2 if double else 1
            section = resolve(scan.key(), tables_seen)
            scan.at += 2 if double else 1
            if double:
                tables_seen[section] = tables_seen.get(section, -1) + 1
                section = (*section, tables_seen[section])
            scan.record(section, start)
        else:
            scan.pair(section)
    return scan.lines


def resolve(key: Path, tables_seen: dict[Path, int]) -> Path:
    """`[a.b]` under `[[a]]` refers to the latest `a`."""
    path: Path = ()
    for n, part in enumerate(key):
        path = (*path, part)
        if n < len(key) - 1 and path in tables_seen:
            path = (*path, tables_seen[path])
    return path


class Scanner:
    """A position in the text, and the lines recorded so far."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.at = 0
        self.lines: dict[Path, int] = {}
        self.counted_to, self.line = 0, 1

    def record(self, path: Path, start: int) -> None:
        # Positions only grow, so counting goes on from the last one.
        self.line += self.text.count("\n", self.counted_to, start)
        self.counted_to = start
        for n in range(1, len(path) + 1):
            self.lines.setdefault(path[:n], self.line)

    def match(self, pattern: re.Pattern[str]) -> str:
        found = pattern.match(self.text, self.at)
        if found is None:
            raise ValueError(f"not valid TOML at character {self.at}")
        self.at = found.end()
        return found.group()

    def skip(self) -> int:
        self.match(SPACE)
        return self.at

    def key(self) -> Path:
        """A dotted key; leaves the position after it."""
        parts = [unquoted(self.match(KEY_PART).strip())]
        while self.text.startswith(".", self.at):
            self.at += 1
            parts.append(unquoted(self.match(KEY_PART).strip()))
        return tuple(parts)

    def pair(self, prefix: Path) -> None:
        start = self.skip()
        path = prefix + self.key()
        self.record(path, start)
        self.at += 1  # the equals sign
        self.value(path)

    def value(self, path: Path) -> None:
        start = self.skip()
        opening = self.text[start]
        if opening in "\"'":
            next(pattern for pattern in STRINGS if self.skip_string(pattern))
        elif opening in "[{":
            closing = "]" if opening == "[" else "}"
            self.at += 1
            index = 0
            while self.text[self.skip()] != closing:
                if opening == "[":
                    self.record((*path, index), self.at)
                    self.value((*path, index))
                else:
                    self.pair(path)
                index += 1
                if self.text[self.skip()] == ",":
                    self.at += 1
            self.at += 1
        else:
            self.match(BARE_VALUE)

    def skip_string(self, pattern: re.Pattern[str]) -> bool:
        found = pattern.match(self.text, self.at)
        if found is not None:
            self.at = found.end()
        return found is not None


def unquoted(key: str) -> str:
    if key[0] in "\"'":
        import tomllib

        return next(iter(tomllib.loads(f"{key} = 0")))
    return key
