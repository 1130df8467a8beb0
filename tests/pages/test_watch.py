"""The report of a run, live."""

from __future__ import annotations

import time
from urllib.request import Request, urlopen

import pytest
from browsing import NEEDS_CHROMIUM, asked_for, look, words_of
from killing import stopped

from fedspend import train
from fedspend.cli.main import main
from fedspend.errors import InvalidInput
from fedspend.pages.serving import serving
from fedspend.pages.watch import version, watch_page, watch_site

pytestmark = pytest.mark.usefixtures("quick_verify")


def test_the_page_shows_a_run_that_goes_on(tiny, tmp_path):
    folder = stopped(tiny, tmp_path / "run", rounds=2)
    seen, page = version(folder), watch_page(folder)
    assert "Live: round 2 of" in page
    assert "The guarantee" in page
    assert seen in page
    train(tiny, output=folder, resume=True)
    assert version(folder) != seen
    assert "Finished: round" in watch_page(folder)


def test_a_run_that_has_not_begun_is_waited_for(tmp_path):
    site = watch_site(tmp_path / "later", expected=True)
    assert "Waiting for the first round" in site.pages[""]()
    with pytest.raises(InvalidInput, match="no run directory"):
        watch_site(tmp_path / "later")


def test_a_folder_that_is_no_run_is_refused(tmp_path, capsys):
    assert main(["watch", str(tmp_path), "--no-browser"]) == 2
    assert "no run directory" in capsys.readouterr().err


def test_train_serves_its_report_while_it_goes_on(tiny, tmp_path, monkeypatch, capsys):
    import fedspend.pages.serving as pages

    met = []

    def visit(served):
        met.append(urlopen(Request(served.door)).read().decode())
        return True

    monkeypatch.setattr(pages, "open_browser", visit)
    from fedspend.basics.toml_text import config_text

    path = tmp_path / "tiny.toml"
    path.write_text(config_text(tiny), encoding="utf-8")
    assert main(["train", str(path), "-o", str(tmp_path / "run"), "--watch", "--quiet"]) == 0
    assert "Waiting for the first round" in met[0]
    assert "watch: http://127.0.0.1:" in capsys.readouterr().err


@NEEDS_CHROMIUM
def test_the_browser_shows_every_new_round(browser, tiny, tmp_path):
    folder = stopped(tiny, tmp_path / "run", rounds=1)
    with serving(watch_site(folder)) as served:
        look(browser, served.address, width=390)
        assert "round 1 of" in words_of(browser, "words")
        browser.execute_script("document.querySelector('details').open = true")
        train(tiny, output=folder, resume=True)
        end = time.monotonic() + 30
        while "Finished" not in words_of(browser, "words"):
            assert time.monotonic() < end
            time.sleep(0.2)
        assert browser.execute_script("return document.querySelector('details').open")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        assert browser.get_log("browser") == []
        assert all(url.startswith(served.address) for url in asked_for(browser))
    end = time.monotonic() + 30
    while "No longer watching" not in words_of(browser, "words"):
        assert time.monotonic() < end
        time.sleep(0.2)
