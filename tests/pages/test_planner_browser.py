"""The planner in a real browser: it renders, reacts, and talks to nobody but its own server."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from browsing import LOW_CONTRAST, NEEDS_CHROMIUM, asked_for, look, screenshot, until, words_of

from fedspend.pages.planner.answers import answer
from fedspend.pages.planner.settings import Settings
from fedspend.pages.planner.site import planner_site
from fedspend.pages.serving import serving

pytestmark = [pytest.mark.full, NEEDS_CHROMIUM]
START = Settings(groups=((4.0, 30), (8.0, 70)), rounds=6)


@pytest.fixture(scope="module")
def address():
    with planner_site(START) as site, serving(site) as served:
        yield served.address


def results(browser) -> dict:
    return browser.execute_script("return {...document.getElementById('results').dataset}")


def wait(browser, *, exact=None, hash=None, seconds=300.0) -> dict:
    """The results as soon as they are those of this plan."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = results(browser)
        if found and exact in (None, found["exact"] == "true") and hash in (None, found["hash"]):
            return found
        time.sleep(0.05)
    raise AssertionError((exact, hash, results(browser), words_of(browser, "status")))


def type_into(browser, name, text):
    from selenium.webdriver.common.keys import Keys

    field = browser.find_element("id", name)
    field.send_keys(Keys.CONTROL, "a")
    field.send_keys(text)


def hash_of(settings, *, exact=True):
    return answer(settings, exact=exact)["plan"]["hash"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_renders(browser, address, width, scheme):
    look(browser, address, width=width, scheme=scheme)
    wait(browser, exact=True)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    figures = browser.execute_script(
        "return [...document.querySelectorAll('figure svg')].map((one) => "
        "[one.querySelectorAll('path').length, one.getBoundingClientRect().width])"
    )
    assert len(figures) == 4  # noise, spending, clip, signal and noise
    assert all(lines >= 2 and size > 250 for lines, size in figures)
    assert browser.execute_script(LOW_CONTRAST) == []
    assert browser.get_log("browser") == []
    assert all(url.startswith(address) for url in asked_for(browser))
    _, corner = screenshot(browser, f"planner-{width}-{scheme}")
    assert (min(corner) > 240) if scheme == "light" else (max(corner) < 40)


def test_a_change_shows_at_once_and_then_exactly(browser, address):
    look(browser, address)
    wait(browser, exact=True)
    type_into(browser, "rounds", "9")
    changed = Settings(START.groups, rounds=9)
    quick, exact = hash_of(changed, exact=False), hash_of(changed)
    assert quick != exact  # Rényi curves, then privacy loss distributions
    assert wait(browser, hash=exact)["exact"] == "true"
    assert "Exact, by accountant pld" in words_of(browser, "status")
    words = words_of(browser, "meaning")
    assert answer(changed, exact=True)["meaning"][-1]["words"] in words


def test_on_a_phone_the_outcome_stays_in_sight_of_the_form(browser, address):
    look(browser, address, width=390)
    wait(browser, exact=True)
    assert browser.find_element("id", "delta").get_attribute("value") == "1e-5"
    type_into(browser, "parameters", "1000000")
    until(lambda: "Exact" in words_of(browser, "status"))
    ratio = answer(replace(START, parameters=10**6), exact=True)["average"]["ratio"]
    until(lambda: f"noise over signal {ratio:.4g}" in words_of(browser, "glance"))
    box = "const box = document.getElementById('glance').getBoundingClientRect(); "
    assert browser.execute_script(box + "return box.top > 0 && box.bottom <= innerHeight")
    type_into(browser, "parameters", "x")
    until(lambda: "whole number" in words_of(browser, "glance"))


def test_the_numbers_on_the_page_are_the_planners(browser, address):
    look(browser, address)
    wait(browser, exact=True)
    expected = answer(START, exact=True)
    text = words_of(browser, "results")
    for group in expected["meaning"]:
        assert group["best"] in text
    assert expected["average"]["words"] in text
    assert expected["command"] in words_of(browser, "command")
    rows = browser.execute_script(
        "return [...document.querySelectorAll('#charts figure')].map((figure) => "
        "[...figure.querySelectorAll('tbody tr')].map((row) => [...row.cells].map((c) => "
        "c.textContent)))"
    )
    for shown, quantity in zip(rows, ("noise", "spent"), strict=False):
        for n, row in enumerate(shown):
            for cell, group in zip(row[1:], expected["groups"], strict=True):
                assert float(cell) == pytest.approx(group[quantity][n], rel=1e-3)


def test_a_bad_value_is_said_and_the_last_answer_stays(browser, address):
    look(browser, address)
    wait(browser, exact=True)
    for text, why in (("x", "whole number"), ("0", "at least 1"), ("999999", "at most")):
        type_into(browser, "rounds", text)
        end = time.monotonic() + 120
        while why not in words_of(browser, "status") and time.monotonic() < end:
            time.sleep(0.05)
        assert why in words_of(browser, "status")
    assert words_of(browser, "tiles")
    type_into(browser, "rounds", "6")
    wait(browser, exact=True)
    assert "Exact" in words_of(browser, "status")


def test_everything_is_reached_by_keyboard(browser, address):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    look(browser, address)
    wait(browser, exact=True)
    browser.execute_script("document.activeElement.blur()")
    met = set()
    for _ in range(60):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        met.add(
            browser.execute_script(
                "const at = document.activeElement; "
                "return at.id || at.dataset.of || at.getAttribute('aria-label') || at.tagName"
            )
        )
    hidden = {"saving_rate", "transition", "ratio"}
    fields = {"policy", "rounds", "rate", "delta", "contraction", "tail", "clip", "parameters"}
    assert fields | {"add", "open", "save-plan", "save-config", "copy", "epsilon"} <= met
    assert not hidden & met
    slider = browser.find_element("css selector", "input[data-of=rounds]")
    slider.send_keys(Keys.ARROW_RIGHT * 5)
    assert int(browser.find_element("id", "rounds").get_attribute("value")) > 6


def test_groups_come_and_go(browser, address):
    look(browser, address)
    wait(browser, exact=True)
    browser.find_element("id", "add").click()
    wait(browser, hash=hash_of(Settings((*START.groups, (16.0, 10)), rounds=6), exact=False))
    for _ in range(3):  # the last one stays
        browser.find_element("css selector", "#groups button").click()
    left = browser.execute_script("return document.getElementById('groups').rows.length")
    assert left == 1


def test_a_config_is_opened(browser, address, tmp_path):
    look(browser, address)
    wait(browser, exact=True)
    mine = Settings(((3.0, 7),), rounds=5, policy="uniform", delta=1e-4)
    path = tmp_path / "mine.toml"
    path.write_text(mine.config(), encoding="utf-8")
    browser.find_element("id", "open").send_keys(str(path))
    wait(browser, hash=hash_of(mine))
    path.write_text("nothing", encoding="utf-8")
    browser.find_element("id", "open").send_keys(str(path))
    end = time.monotonic() + 120
    while "neither" not in words_of(browser, "status") and time.monotonic() < end:
        time.sleep(0.05)
    assert "mine.toml is neither a plan nor a config" in words_of(browser, "status")
