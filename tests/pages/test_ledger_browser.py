"""The ledger page in a real browser: it renders, finds, follows the ledger, obeys the keyboard."""

from __future__ import annotations

import time

import numpy as np
import pytest
from browsing import LOW_CONTRAST, NEEDS_CHROMIUM, asked_for, look, screenshot, until, words_of
from pages.ledgers import DELTA, admitted, filled

from fedspend.ledger import Ledger
from fedspend.pages.ledger.site import ledger_site
from fedspend.pages.serving import serving

pytestmark = [pytest.mark.full, NEEDS_CHROMIUM]
NAMES = [f"clinic {n:03d}" for n in range(60)]


@pytest.fixture(scope="module")
def ledger(tmp_path_factory):
    """The five of `filled`, and enough others for several pages."""
    place = filled(tmp_path_factory.mktemp("ledger") / "accounts.db")
    with Ledger.open(place, write=True) as opened:
        opened.register(NAMES, np.linspace(1, 9, len(NAMES)), delta=DELTA)
    return place


@pytest.fixture(scope="module")
def address(ledger):
    with serving(ledger_site(ledger)) as served:
        yield served.address


def open_page(browser, address, **seen):
    look(browser, "about:blank")  # an address that differs after # alone would load nothing
    look(browser, address, **seen)
    until(lambda: "Up to date" in words_of(browser, "status"))
    until(lambda: words_of(browser, "history"))


def type_into(browser, name, text):
    from selenium.webdriver.common.keys import Keys

    field = browser.find_element("id", name)
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(text or Keys.DELETE)


def press(browser, key):
    from selenium.webdriver.common.action_chains import ActionChains

    ActionChains(browser).send_keys(key).perform()


@pytest.mark.parametrize(
    ("width", "scheme"), [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
)
def test_the_page_renders(browser, address, width, scheme):
    open_page(browser, f"{address}#client=south", width=width, scheme=scheme)
    until(lambda: "Entries about it" in words_of(browser, "detail"))
    for part in ("tiles", "balances", "runs", "history"):
        assert words_of(browser, part)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script(LOW_CONTRAST) == []
    assert browser.get_log("browser") == []
    assert all(url.startswith(address) for url in asked_for(browser))
    _, corner = screenshot(browser, f"ledger-{width}-{scheme}")
    assert (min(corner) > 240) if scheme == "light" else (max(corner) < 40)
    hints = browser.execute_script(
        "return [...document.querySelectorAll('.hint')].filter((h) => h.checkVisibility()).length"
    )
    assert (hints > 0) == (width == 390)  # wide tables say on a phone that there is more


def test_a_client_is_searched_for_and_shown(browser, address):
    open_page(browser, address)
    type_into(browser, "balances-search", "CLINIC 05")
    until(lambda: "clinic 059" in words_of(browser, "balances"))
    assert "clinic 000" not in words_of(browser, "balances")
    browser.find_element("link text", "clinic 057").click()
    until(lambda: "client clinic 057" in words_of(browser, "detail"))
    assert "taken part in no run" in words_of(browser, "detail")
    type_into(browser, "balances-search", "nobody at all")
    until(lambda: "Nobody fits" in words_of(browser, "balances"))
    browser.back()
    until(lambda: words_of(browser, "detail") == "")


def test_pages_are_turned(browser, address):
    open_page(browser, address)
    assert "Page 1 of 4 · 65 clients" in words_of(browser, "balances-pager")
    for page in (2, 3, 4):
        browser.find_element("css selector", "[data-key=balances-next]").click()
        until(lambda page=page: f"Page {page} of 4" in words_of(browser, "balances-pager"))
    assert "clinic 059" in words_of(browser, "balances")
    disabled = "return document.querySelector('[data-key=balances-next]').disabled"
    assert browser.execute_script(disabled)


def test_names_stay_text(browser, address):
    open_page(browser, f"{address}#client=%3Cb%3Ex")
    until(lambda: "client <b>x" in words_of(browser, "detail"))
    assert "<b>x" in words_of(browser, "balances")


def test_a_run_and_what_is_not_there(browser, address):
    open_page(browser, f"{address}#run=first")
    until(lambda: "run first" in words_of(browser, "detail"))
    assert "closed: finished" in words_of(browser, "detail")
    browser.find_element("link text", "north").click()
    until(lambda: "client north" in words_of(browser, "detail"))
    open_page(browser, f"{address}#client=nobody")
    until(lambda: "not in the ledger" in words_of(browser, "detail"))
    open_page(browser, f"{address}#client=%E0%A4%A")  # no name at all
    assert words_of(browser, "detail") == ""


def test_it_works_by_keyboard(browser, address):
    from selenium.webdriver.common.keys import Keys

    open_page(browser, address)
    focus = "const at = document.activeElement; return at.dataset.key || at.id || at.tagName"
    met = []
    for _ in range(70):
        press(browser, Keys.TAB)
        met.append(browser.execute_script(focus))
    assert {"balances-search", "show", "sort", "client=south", "run=first", "verify"} <= set(met)
    assert "DIV" not in met  # a table that fits is no stop
    browser.execute_script("document.getElementById('balances-search').focus()")
    browser.switch_to.active_element.send_keys("south")
    until(lambda: "north" not in words_of(browser, "balances"))
    while browser.execute_script(focus) != "client=south":
        press(browser, Keys.TAB)
    press(browser, Keys.ENTER)
    until(lambda: "client south" in words_of(browser, "detail"))
    until(lambda: browser.execute_script(focus) == "detail")
    press(browser, Keys.TAB)  # to "Close"
    press(browser, Keys.ENTER)
    until(lambda: words_of(browser, "detail") == "")
    assert browser.execute_script(focus) == "client=south"  # back where one came from


def test_verification_is_shown(browser, address):
    open_page(browser, address, width=390)
    browser.find_element("id", "verify").click()
    until(lambda: "INTACT" in words_of(browser, "verification"))
    words = words_of(browser, "verification")
    assert "second accountant, none overspent" in words
    assert "Write the head down" in words
    assert browser.execute_script("return document.documentElement.scrollWidth") <= 390
    assert browser.execute_script(LOW_CONTRAST) == []


def test_the_page_follows_the_ledger(browser, tmp_path):
    place = filled(tmp_path / "growing.db")
    with serving(ledger_site(place)) as served:
        open_page(browser, served.address)
        before = words_of(browser, "status")
        browser.execute_script("document.querySelector('[data-key=\"client=south\"]').focus()")
        with Ledger.open(place, write=True) as opened:
            opened.register(["newcomer"], [3.0], delta=DELTA)
            admitted(opened, "third", ["newcomer"], 1.0, begun=1)
        until(lambda: "newcomer" in words_of(browser, "balances"))
        until(lambda: "third" in words_of(browser, "runs"))
        until(lambda: words_of(browser, "status") not in (before, ""))
        kept = browser.execute_script("return document.activeElement.dataset.key")
        assert kept == "client=south"
        assert browser.get_log("browser") == []
    until(lambda: "server has stopped" in words_of(browser, "status"))
    assert "newcomer" in words_of(browser, "balances")


def test_a_damaged_ledger_is_said(browser, tmp_path):
    from places import tamper

    place = filled(tmp_path / "damaged.db")
    with serving(ledger_site(place)) as served:
        open_page(browser, served.address)
        tamper(place, "UPDATE fedspend_entries SET hash = ? WHERE number = 14", b"0" * 32)
        until(lambda: "not what the ledger says now" in words_of(browser, "status"))
        browser.find_element("id", "verify").click()
        until(lambda: "NOT INTACT" in words_of(browser, "verification"))


def test_exact_numbers_follow(browser, tmp_path):
    place = filled(tmp_path / "exact.db", accountant="pld")
    with Ledger.open(place) as opened:
        spent = opened.balances().spent[0]
    with serving(ledger_site(place)) as served:
        look(browser, served.address)
        until(lambda: "Up to date" in words_of(browser, "status"))
        until(lambda: "Rényi" not in words_of(browser, "status"))
        end = time.monotonic() + 300
        while f"{spent:.4g}" not in words_of(browser, "balances") and time.monotonic() < end:
            time.sleep(0.1)
        assert f"{spent:.4g}" in words_of(browser, "balances")
