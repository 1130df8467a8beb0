"""Running the command in this process, and the common questions about how it ended."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest

from fedspend.cli.main import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys, monkeypatch):
    """Run `fedspend` with the given arguments."""
    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*argv: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in argv])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture
def refused(run, tmp_path):
    """Run `fedspend` with bad arguments: exit code 2, one line on stderr, nothing on stdout,
    nothing written. Returns the line.
    """

    def contents() -> dict[Path, bytes]:
        return {
            path: path.read_bytes()
            for path in tmp_path.rglob("*")
            if path.is_file() and os.access(path, os.R_OK)
        }

    def refused(*argv: object, code: int = 2) -> str:
        before = contents()
        outcome = run(*argv)
        lines = [line for line in outcome.err.splitlines() if not line.startswith("warning: ")]
        assert outcome.code == code, outcome
        assert len(lines) == 1, outcome.err
        assert lines[0].startswith("fedspend: ")
        assert outcome.out == ""
        assert contents() == before
        return lines[0]

    return refused
