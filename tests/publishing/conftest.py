"""One small real run, published and signed, for all tests here: they work on copies of it."""

from __future__ import annotations

import shutil

import pytest
from published import Published, train_real

from fedspend.cli.main import main
from fedspend.signing.keys import new_keys


@pytest.fixture(scope="session")
def original(tmp_path_factory):
    folder = tmp_path_factory.mktemp("published")
    private, public = new_keys(folder / "keys")
    (folder / "run").mkdir()
    train_real(folder / "run", sign=private, ledger=folder / "run" / "ledger.db")
    assert main(["publish", str(folder / "run"), "--sign", str(private)]) == 0
    return Published(folder / "run", folder / "run.publication", private, public)


@pytest.fixture
def published(original, tmp_path):
    """A copy that a test may spoil; the run itself is shared and only read."""
    copy = tmp_path / original.folder.name
    for one in (original.folder, original.openings):
        shutil.copytree(one, tmp_path / one.name)
    return Published(original.run, copy, original.private, original.public)
