"""Runs what pages show: the fenced `sh` and `python` blocks of a Markdown file, as they stand.

A block is run, or the line above it says why it is not: `<!-- not run: needs a browser -->`. Blocks
of one page share a folder and, in Python, their names, as they would for a reader who types along.
What a page takes for granted is in it too, where readers do not see it: `<!-- given sh: COMMANDS
-->`, or `given python`. Commands of fedspend run in this process. Nothing outside the folder is
written.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import runpy
import shlex
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from fedspend.cli.main import main

BLOCK = re.compile(
    r"^<!-- given (?P<given>sh|python):\s(?P<taken>.*?)-->$"
    r"|^(?:<!-- not run: (?P<reason>[^\n]+?) -->\n+)?"
    r"^ *```(?P<kind>sh|python)\b[^\n]*\n(?P<text>.*?)^ *```$",
    re.MULTILINE | re.DOTALL,
)
SHELL = re.compile(r"[|&;<>$`*]")


@dataclass(frozen=True)
class Block:
    kind: str
    text: str
    line: int
    reason: str | None  # why it is not run
    given: bool  # taken for granted, not shown


def blocks(text: str) -> list[Block]:
    """The blocks of a page, in order.

    >>> [block.reason for block in blocks("<!-- not run: slow -->\\n```sh\\nls\\n```\\n")]
    ['slow']
    """
    return [
        Block(
            found["kind"] or found["given"],
            found["text"] or found["taken"],
            1 + text[: found.start()].count("\n"),
            found["reason"],
            found["given"] is not None,
        )
        for found in BLOCK.finditer(text)
    ]


def commands(block: str) -> list[str]:
    """Its lines, with continued ones joined and comments left out."""
    joined = re.sub(r"\\\n\s*", " ", block)
    plain = (re.sub(r"\s+#( .*)?$|^#.*$", "", line).strip() for line in joined.splitlines())
    return [line for line in plain if line]


MOST = (  # what takes a minute takes a second then
    (r"(\brounds ?= ?|--rounds )(\d+)", 2),
    (r"(--tail )(\d+)", 2),
    (r"(\blocal_steps ?= ?|--local-steps )(\d+)", 2),
    (r"(\btransition ?= ?|--transition )(\d+)", 1),
    (r"(--leaves )(\d+)", 1),
    (r"(--seeds )(\d+)", 1),
    (r"(--trials )(\d+)", 8),
)


def fewer(text: str) -> str:
    """A config or a block with few rounds, steps and seeds.

    >>> fewer("rounds = 25")
    'rounds = 2'
    """
    for pattern, most in MOST:
        text = re.sub(
            pattern, lambda found, most=most: f"{found[1]}{min(int(found[2]), most)}", text
        )
    return text


def smaller(folder: Path) -> None:
    """Configs of few rounds and steps."""
    for path in folder.rglob("*.toml"):
        path.write_text(fewer(path.read_text(encoding="utf-8")), encoding="utf-8")


def type_command(line: str) -> str:
    """What a command prints. Fails if the command does."""
    words = shlex.split(line)
    told = io.StringIO()
    if words[0] == "cd":
        os.chdir(words[1])
        return ""
    if words[0] in ("fedspend", "python") and not SHELL.search(line):
        with contextlib.redirect_stdout(told), contextlib.redirect_stderr(told):
            code = main(words[1:]) if words[0] == "fedspend" else _python(words[1:])
        output = told.getvalue()
    else:
        programs = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        done = subprocess.run(
            ["sh", "-e", "-c", line],
            env={**os.environ, "PATH": programs},
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        code, output = done.returncode, done.stdout + done.stderr
    assert code == 0, f"{line}\n{output}"
    if words[:2] == ["fedspend", "new"]:
        smaller(Path(words[2]))
    return output


def _python(words: list[str]) -> int:
    assert len(words) == 1
    assert words[0].endswith(".py"), "only `python FILE.py` is typed"
    runpy.run_path(words[0], run_name="__main__")
    return 0


def run_page(text: str) -> list[str]:
    """Run every block of a page in the working directory; what the commands printed."""
    names: dict[str, object] = {"__name__": "page"}
    told = []
    for block in blocks(text):
        if block.reason is not None:
            continue
        if block.kind == "sh":
            told += [type_command(line) for line in commands(fewer(block.text))]
        else:
            exec(compile("\n" * block.line + fewer(block.text), "page", "exec"), names)
    return told
