"""Running the command in this process, and the common questions about how it ended."""

from __future__ import annotations

import os
from pathlib import Path

import advised
import pytest


@pytest.fixture
def refused(run, tmp_path):
    """Run `fedspend` with bad arguments: exit code 2, one line on stderr, nothing on stdout,
    nothing written, and no flag advised that the command does not have. Returns the line.
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
        assert not advised.lacking(lines[0], argv)
        return lines[0]

    return refused
