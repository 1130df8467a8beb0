"""Line numbers for the sections and keys of a TOML document, which `tomllib` does not give.

`value_lines(text)` maps each of them to the line where it starts, so that an error about a value
can point at it; what is inside a list or an inline table is on the line of its key. The text must
already have been accepted by `tomllib`: this walks over valid TOML, it does not check it.
"""

from __future__ import annotations

import re

Path = tuple[str | int, ...]

SPACE = re.compile(r"(?:[ \t\r\n]|#[^\n]*)*")
KEY_PART = re.compile(r"""[ \t]*("(?:\\.|[^"\\\n])*"|'[^'\n]*'|[A-Za-z0-9_-]+)[ \t]*""")
BARE = re.compile(r"""[^,\[\]{}"'\n#]*""")
# Longest first: a triple quote also begins with a single one. A multi-line string may end in up to
# two more quotes.
STRINGS = (
    re.compile(r'"""(?:\\.|[^\\])*?"""(?:"{0,2})', re.DOTALL),
    re.compile(r"'''.*?'''(?:'{0,2})", re.DOTALL),
    re.compile(r'"(?:\\.|[^"\\\n])*"'),
    re.compile(r"'[^'\n]*'"),
)


def value_lines(text: str) -> dict[Path, int]:
    r"""The line (from 1) of every section and key in valid TOML.

    >>> value_lines("[a]\nb = [\n  {c = 1},\n  {c = 2},\n]\nd = 3\n")
    {('a',): 1, ('a', 'b'): 2, ('a', 'd'): 6}
    """
    scan = Scanner(text)
    section: Path = ()
    while (start := scan.skip()) < len(text):
        if text[start] == "[":
            brackets = 2 if text.startswith("[[", start) else 1
            scan.at += brackets
            section = scan.key()
            scan.at += brackets
            scan.record(section, start)
        else:
            scan.record(section + scan.key(), start)
            scan.at += 1  # the equals sign
            scan.skip_value()
    return scan.lines


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

    def skip_value(self) -> None:
        depth = 0
        while True:
            sign = self.text[self.skip()]
            if sign in "\"'":
                next(pattern for pattern in STRINGS if self.skip_string(pattern))
            elif sign in ",[]{}":
                depth += (sign in "[{") - (sign in "]}")
                self.at += 1
            else:
                self.match(BARE)
            if depth == 0:
                return

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
