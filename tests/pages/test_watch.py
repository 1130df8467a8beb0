"""The report of a run, live."""

from __future__ import annotations

from urllib.request import Request, urlopen

import pytest
from browsing import LOW_CONTRAST, NEEDS_CHROMIUM, asked_for, look, screenshot, until, words_of
from lib.configs import small, write_toml
from lib.runs import stopped

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


@pytest.mark.full
def test_train_serves_its_report_while_it_goes_on(tiny, tmp_path, monkeypatch, capsys):
    import fedspend.pages.serving as pages

    met = []

    def visit(served):
        met.append(urlopen(Request(served.door)).read().decode())
        return True

    monkeypatch.setattr(pages, "open_browser", visit)

    path = tmp_path / "tiny.toml"
    write_toml(path, tiny)
    assert main(["train", str(path), "-o", str(tmp_path / "run"), "--watch", "--quiet"]) == 0
    assert "Waiting for the first round" in met[0]
    assert "watch: http://127.0.0.1:" in capsys.readouterr().err


@pytest.mark.full
@NEEDS_CHROMIUM
def test_the_browser_shows_every_new_round(browser, tiny, tmp_path):
    folder = stopped(tiny, tmp_path / "run", rounds=1)
    with serving(watch_site(folder)) as served:
        look(browser, served.address, width=390)
        assert "round 1 of" in words_of(browser, "words")
        browser.execute_script("document.querySelector('details').open = true")
        train(tiny, output=folder, resume=True)
        until(lambda: "Finished" in words_of(browser, "words"))
        assert browser.execute_script("return document.querySelector('details').open")
        assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
        assert browser.get_log("browser") == []
        assert all(url.startswith(served.address) for url in asked_for(browser))
    until(lambda: "No longer watching" in words_of(browser, "words"))


@pytest.fixture(scope="module")
def watched(tmp_path_factory):
    """The page of a run that has stopped after its second round."""
    folder = tmp_path_factory.mktemp("watched") / "run"
    stopped(small(), folder)
    with serving(watch_site(folder)) as served:
        yield served.address


@pytest.mark.full
@NEEDS_CHROMIUM
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_it_is_the_report_at_every_width_by_day_and_night(browser, watched, width, scheme):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    look(browser, watched, width=width, scheme=scheme)
    assert "round 2 of 4" in words_of(browser, "words")
    assert browser.execute_script(LOW_CONTRAST) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    _, corner = screenshot(browser, f"watch-{width}-{scheme}")
    assert (min(corner) > 240) if scheme == "light" else (max(corner) < 40)
    ActionChains(browser).send_keys(Keys.TAB).perform()  # the first stop: what epsilon means
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    assert browser.execute_script("return location.hash") == "#meaning"
    assert browser.get_log("browser") == []
    assert all(url.startswith(watched) for url in asked_for(browser))
