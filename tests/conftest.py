"""Shared small runs: synthetic data, logistic regression, a handful of clients and rounds. And real
databases for ledgers.
"""

import copy
import os
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import settings

sys.path.append(str(Path(__file__).parent))
import places
from browsing import chromium
from tiny import TINY

# On a contributor's machine properties meet new examples every time; in CI the same ones, so that a
# landing is repeatable.
settings.register_profile("ci", derandomize=True, deadline=None)
settings.register_profile("here", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "here")


@pytest.fixture
def registries_as_before():
    """What experiments enter in registries, other tests must not meet."""
    from fedspend.data.loading import DATA_SETS
    from fedspend.engines.table import ENGINES

    before = {registry: registry.names for registry in (DATA_SETS, ENGINES)}
    yield
    for registry, names in before.items():
        for name in set(registry.names) - set(names):
            registry.remove(name)


@pytest.fixture(autouse=True)
def ledger_of_this_user(tmp_path_factory, monkeypatch):
    """Real runs that name no ledger are charged here, and not to the ledger of who runs the tests.

    Gives its path; nothing is there before something was charged.
    """
    path = tmp_path_factory.mktemp("user") / "ledger.db"
    monkeypatch.setenv("FEDSPEND_LEDGER", str(path))
    return path


@dataclass(frozen=True)
class Outcome:
    """How a command ended."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys, monkeypatch):
    """Run `fedspend` with the given arguments, in this process."""
    from fedspend.cli.main import main

    monkeypatch.delenv("COLUMNS", raising=False)

    def run(*argv: object) -> Outcome:
        capsys.readouterr()
        code = main([str(argument) for argument in argv])
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    """Chromium, for modules that are marked with `NEEDS_CHROMIUM`."""
    with chromium(tmp_path_factory.mktemp("profile")) as driver:
        yield driver


@pytest.fixture
def tiny():
    """A config as a dict of sections, free to change."""
    return copy.deepcopy(TINY)


@pytest.fixture
def quick_verify(monkeypatch):
    """Verification is tested elsewhere and takes seconds: here it passes at once."""
    import fedspend.approval.node_ledger
    import fedspend.runs.certifying

    class Verdict:
        ok = True
        failures = ()

        def __init__(self, plan):
            self.plan, self.epsilon = plan, plan.epsilon

        def to_dict(self):
            return {"ok": True, "plan_hash": self.plan.hash}

    monkeypatch.setattr(fedspend.runs.certifying, "verify", Verdict)
    monkeypatch.setattr(
        fedspend.approval.node_ledger, "verified", lambda slice: Verdict(slice.plan)
    )


@pytest.fixture(scope="session")
def postgres():
    """A PostgreSQL server that is stopped at the end; skips, saying why, where none can be had.

    Not in pytest's own folder: under root the server runs as another user, and pytest shuts others
    out of there.
    """
    yield from new_server()


def new_server():
    with tempfile.TemporaryDirectory(
        prefix="fedspend-postgres-", ignore_cleanup_errors=True
    ) as folder:
        server = places.Server(folder)
        yield server
        server.close()


@pytest.fixture
def failing_postgres():
    """A server for one test, to be cut off: nobody else loses a connection, and it is back soon."""
    yield from new_server()


@pytest.fixture(params=["sqlite", "postgresql"])
def place(request, tmp_path):
    """Where a new ledger can be made: a path, and a database on a server. What a test does with it,
    it does on both.
    """
    return (
        str(tmp_path / "ledger.db")
        if request.param == "sqlite"
        else request.getfixturevalue("postgres").new_database()
    )
