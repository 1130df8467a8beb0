"""A person at a terminal, in an empty folder, who types `fedspend` commands one after the other.

Guarantee: what is written down is what the commands said, whole, and depends on neither the width
of the terminal nor locale, time zone, home, FEDSPEND variables or where the folder is: `here` takes
them away, and `normalised` gives names to what is new every time.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import shlex
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from golden.layout import laid_out
from golden.normalising import Names

ROOT = Path(__file__).parents[2]
WIDE = 200  # columns of tables; tables for pipes are as wide
SET = {
    "COLUMNS": str(WIDE),
    "TZ": "UTC",
    "LC_ALL": "C.UTF-8",
    "LANG": "C.UTF-8",
    "TERM": "dumb",
    "SOURCE_DATE_EPOCH": "1700000000",
    "PYTHONWARNINGS": "",
    # as importing our part of Flower sets them, which may have happened before or not
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
}
TAKEN_AWAY = (
    "XDG_DATA_HOME",
    "XDG_CACHE_HOME",
    "FORCE_COLOR",
    "NO_COLOR",
    "CLICOLOR_FORCE",
    "MLFLOW_TRACKING_URI",
)


@contextlib.contextmanager
def here(columns: int = WIDE) -> Iterator[Path]:
    """An empty working folder, and an environment that is the same on every machine."""
    before, folder_before = dict(os.environ), Path.cwd()
    # of the same length everywhere: tables are as wide as the paths in them
    with tempfile.TemporaryDirectory(prefix="golden-", dir="/tmp") as name:
        folder = Path(name).resolve()
        home = folder / "home"
        home.mkdir()
        work = folder / "work"
        work.mkdir()
        for variable in list(os.environ):
            if variable.startswith("FEDSPEND_") or variable in TAKEN_AWAY:
                del os.environ[variable]
        os.environ.update(SET, HOME=str(home), COLUMNS=str(columns))
        time.tzset()
        os.chdir(work)
        try:
            # where Debian keeps data sets, which some machines have
            with mock.patch("fedspend.data.sources.DEBIAN", folder / "debian"):
                yield work
        finally:
            os.chdir(folder_before)
            os.environ.clear()
            os.environ.update(before)
            time.tzset()


class Session:
    """Runs commands in this process and writes down what they said."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names = Names(folder)
        self.parts: list[str] = []

    def run(self, line: str, *, only: str = "all") -> int:
        """One command, as it would be typed after `fedspend`. `only`: "stderr" leaves stdout out,
        "nothing" runs what only prepares.
        """
        with self.names.listening():
            code, out, err = command(shlex.split(line))
        if only == "nothing":
            assert code == 0, f"fedspend {line}: {err}"
            return code
        said = [f"$ fedspend {line}"]
        if only == "all" and out:
            said.append(laid_out(out).rstrip("\n"))
        if err:
            said += [f"stderr: {one}" for one in err.splitlines()]
        said.append(f"exit code {code}\n")
        self.parts.append("\n".join(said))
        return code

    def write(self, name: str, text: str | bytes) -> Path:
        """A file that a command reads."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return path

    def note(self, heading: str, text: str) -> None:
        """Something that is not a command, or the content of a file that one has written."""
        self.parts.append(f"# {heading}\n{text.rstrip()}\n")

    def hide_plan(self, name: str) -> None:
        """The hash of a plan that names a random id: the ledger that it is made with."""
        document = json.loads((self.folder / name).read_text(encoding="utf-8"))
        self.names.hide(document["hash"].removeprefix("sha256:"))

    def show_json(self, name: str) -> None:
        document: Any = json.loads((self.folder / name).read_text(encoding="utf-8"))
        self.note(name, laid_out(json.dumps(document)))

    def text(self) -> str:
        return self.names.normalised("\n".join(self.parts))


def command(argv: list[str]) -> tuple[int, str, str]:
    """The exit code of a command in this process, and what it wrote to stdout and stderr."""
    from fedspend.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    with (
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")  # those of others; ours are shown by the command itself
        code = main(argv)
    return code, out.getvalue(), err.getvalue()
