"""Copies of the files of version 0.2.0 for one test, in the working directory."""

from __future__ import annotations

import json
import shutil
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from before.v0_2 import kept


@dataclass(frozen=True)
class Files:
    """A folder with the configs, rows and keys; the rest is copied when it is asked for."""

    folder: Path
    original: Path

    def bring(self, *names: str) -> Path:
        """Copies of these files and folders; where the last one is."""
        for name in names:
            to = self.folder / name
            to.parent.mkdir(parents=True, exist_ok=True)
            if (self.original / name).is_dir():
                shutil.copytree(self.original / name, to)
            else:
                shutil.copy(self.original / name, to)
        return self.folder / names[-1]

    def run(self, name: str) -> Path:
        """A run directory, and what its clients remember beside it."""
        beside = f"runs/{name}.clients"
        found = [beside] if (self.original / beside).exists() else []
        return self.bring(*found, f"runs/{name}")


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    """All files, only to be read."""
    return kept.unpacked(tmp_path_factory.mktemp("version-0.2.0"))


@pytest.fixture
def files(original, tmp_path, monkeypatch):
    made = Files(tmp_path / "files", original)
    made.folder.mkdir()
    monkeypatch.chdir(made.folder)
    for path in original.iterdir():
        if path.is_file() or path.name == "keys":
            made.bring(path.name)
    return made


@pytest.fixture
def in_its_place(monkeypatch):
    """All files where they were made; the working directory."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(kept.in_its_place())
        except OSError as error:
            pytest.skip(f"{kept.WHERE}, where the files were made, cannot be used: {error}")
        monkeypatch.chdir(folder)
        yield folder
        monkeypatch.undo()


@pytest.fixture(scope="session")
def said(original) -> dict[str, Any]:
    """What version 0.2.0 said about its files."""
    found: dict[str, Any] = kept.read_json(original / "expected.json.gz")
    return found


@pytest.fixture
def told(run):
    """The JSON that a command prints, which must succeed."""

    def told(*argv: object) -> Any:
        outcome = run(*argv, "--json")
        assert outcome.code == 0, outcome
        return json.loads(outcome.out)

    return told


@pytest.fixture
def done(run):
    """A command that must succeed; what it prints."""

    def done(*argv: object) -> str:
        outcome = run(*argv)
        assert outcome.code == 0, outcome
        return outcome.out

    return done
