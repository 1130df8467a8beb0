"""Shared small runs: synthetic data, logistic regression, a handful of clients and rounds. And real
databases for ledgers.
"""

import itertools
import os
import random
import shutil
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

sys.path.append(str(Path(__file__).parent))
import places
from browsing import chromium
from lib import quick
from lib.configs import small
from lib.fork_server import ForkServer
from lib.verdicts import Passed, remember_verdicts

# On a contributor's machine properties meet new examples every time; in CI the same ones, so that a
# landing is repeatable. What fails is printed with what repeats it; nothing fails because
# examples take long to draw, or are long.
_ALWAYS = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow, HealthCheck.data_too_large],
}
settings.register_profile("ci", derandomize=True, **_ALWAYS)
settings.register_profile("here", **_ALWAYS)
settings.load_profile("ci" if os.environ.get("CI") else "here")


def pytest_configure(config):
    config.pluginmanager.register(quick)
    os.environ["LANGUAGE"] = "C"  # else argparse looks for translations of each of its words
    # Durable writes wait for the disk. Tests need not: they kill processes, and no machine.
    memory = Path("/dev/shm")
    if memory.is_dir() and shutil.disk_usage(memory).free > 4 * 2**30:
        os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(memory))


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup():
    """What is drawn without a seed of its own is the same in every order of the tests, and on
    every worker.
    """
    random.seed(0)
    if "numpy.random" in sys.modules:  # else it is not loaded for this
        sys.modules["numpy.random"].seed(0)
    if "torch" in sys.modules:  # `torch.manual_seed` also asks for accelerators, which takes 2 ms
        sys.modules["torch"].default_generator.manual_seed(0)


@pytest.fixture
def registries_as_before():
    """What a test, a page or an experiment enters in registries, other tests must not meet."""
    from fedspend.basics.registry import _OF_SECTION

    def own():
        registries = (registry for section in _OF_SECTION.values() for registry in section)
        return {registry: set(registry.own) for registry in registries}

    before = own()
    yield
    for registry, names in own().items():
        for name in names - before.get(registry, set()):
            registry.remove(name)


@pytest.fixture(scope="session")
def folders_of_users(tmp_path_factory):
    """A folder with names of folders that are not there yet: to make one for every test takes long
    once there are thousands.
    """
    users = tmp_path_factory.mktemp("users")
    return (users / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def ledger_of_this_user(folders_of_users, monkeypatch):
    """Real runs that name no ledger are charged here, and not to the ledger of who runs the tests.

    Gives its path; nothing is there before something was charged.
    """
    path = next(folders_of_users) / "ledger.db"
    path.parent.mkdir()
    monkeypatch.setenv("FEDSPEND_LEDGER", str(path))
    return path


@pytest.fixture
def system_from_a_seed(monkeypatch):
    """The system's randomness is drawn from a seed: for tests of real runs that look at numbers of
    which a few, drawn otherwise, would deceive them. What is drawn is real in all other tests.
    """
    drawn = random.Random(7)
    monkeypatch.setattr("os.urandom", drawn.randbytes)
    monkeypatch.setattr("secrets.token_bytes", lambda size=32: drawn.randbytes(size))


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
    return small()


@pytest.fixture(autouse=True)
def verdicts_found_once():
    """The same small plans begin hundreds of runs."""
    remember_verdicts()


@pytest.fixture
def quick_verify(monkeypatch):
    """Verification is tested elsewhere and takes seconds: here it passes at once."""
    import fedspend.approval.node_ledger
    import fedspend.runs.certifying

    monkeypatch.setattr(fedspend.runs.certifying, "verify", Passed)
    monkeypatch.setattr(fedspend.approval.node_ledger, "verified", lambda slice: Passed(slice.plan))


@pytest.fixture(scope="session")
def fork_server():
    """Starts `fedspend` commands as processes, in no time."""
    with ForkServer() as server:
        yield server


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


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.full)])
def place(request, tmp_path):
    """Where a new ledger can be made: a path, and a database on a server. What a test does with it,
    it does on both.
    """
    return (
        str(tmp_path / "ledger.db")
        if request.param == "sqlite"
        else request.getfixturevalue("postgres").new_database()
    )
