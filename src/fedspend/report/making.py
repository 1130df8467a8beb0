"""`fedspend.make_report`: the HTML page about a run, or about several side by side."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedspend.basics.door import public
from fedspend.basics.files import check_writable
from fedspend.errors import InvalidInput
from fedspend.report.html import write_report
from fedspend.stored.files import REPORT


@public
def make_report(run: Any, output: str | Path | None = None) -> Path:
    """Write one HTML page that opens offline: the guarantee, how good the model is, what was spent.

    Arguments:
        run: a `Result`, a run directory, or a list of these, which are then compared.
        output: where to write, a file that ends in .html. Default: report.html in the run
            directory; for several runs, report.html here.

    Returns:
        The path of the page.

    Raises:
        InvalidInput: there is no run, or the page cannot be written there.

    `fedspend.make_report(fedspend.train("quickstart.toml", output="runs/first"))`
    """
    several = not isinstance(run, str | os.PathLike) and isinstance(run, Sequence)
    folders = [folder_of(one) for one in (run if several else [run])]
    if not folders:
        raise InvalidInput("there is no run to report on; give at least one")
    path = Path(output or (REPORT.of(folders[0]) if len(folders) == 1 else REPORT.name))
    check_page(path)
    write_report(folders, path)
    return path


def folder_of(run: Any) -> Path:
    """The run directory of a result, or the one that is named."""
    if isinstance(run, str | os.PathLike):
        return Path(run)
    folder = getattr(run, "folder", None)
    if folder is None:
        raise InvalidInput(
            'this run was not kept, so there is nothing to report on: train with output="runs/NAME"'
            if hasattr(run, "folder")
            else f"run must be a result, a run directory, or a list of these, got {run!r}"
        )
    return Path(folder)


def check_page(path: Path) -> None:
    if not path.name.lower().endswith((".html", ".htm")):
        raise InvalidInput(f"--output {str(path)!r} must end in .html")
    check_writable("--output", str(path))
