"""The report in a real browser: it renders, wide and narrow, light and dark,
and asks for nothing.
"""

from __future__ import annotations

import base64
import re
import time
from pathlib import Path

import pytest
from browsing import LOW_CONTRAST, NEEDS_CHROMIUM, asked_for, look, screenshot, until

from fedspend.report.html import write_report

pytestmark = [pytest.mark.full, NEEDS_CHROMIUM]
VISIBLE = """
return [...document.querySelectorAll('figure')].filter((f) => f.checkVisibility()).map((figure) => {
  const drawings = [...figure.querySelectorAll('svg')];
  const boxes = drawings.map((svg) => svg.getBoundingClientRect());
  const shown = boxes.filter((box) => box.width > 0);
  const first = drawings.filter((svg) => svg.checkVisibility())[0];
  return {title: figure.querySelector('h3').textContent, drawings: shown.length,
          width: shown[0]?.width, height: shown[0]?.height,
          left: shown[0]?.left, right: shown[0]?.right,
          lines: first.querySelectorAll('path,circle').length};
});
"""
# Text that sticks out of its figure, or is too small to read.
BAD_TEXT = """
const texts = [...document.querySelectorAll('figure svg text')];
return texts.filter((t) => t.checkVisibility()).filter((t) => {
  const box = t.getBoundingClientRect(), room = t.closest('figure').getBoundingClientRect();
  return box.left < room.left - 2 || box.right > room.right + 2 || box.height < 10;
}).map((t) => t.textContent);
"""


@pytest.fixture(scope="module")
def pages(make, tmp_path_factory) -> dict[str, Path]:
    """One run, a run with unusual things in it, and a comparison."""
    home = tmp_path_factory.mktemp("runs")
    evil = "<script>document.title='broken'</script>"
    one = make(home / "quickstart")
    odd = make(
        home / "an-unusually-long-name-of-a-run-directory-that-does-not-fit",
        randomness="os",
        done=11,
        labels=[evil] * 34 + ["a university hospital with a long name"] * 43 + ["clinic"] * 23,
        change=lambda record: (
            record | ({"skipped": True, "loss": None} if record["round"] == 7 else {})
        ),
    )
    bands = make(
        home / "bands", method="idp-fedavg", rounds=4, epsilons=[1 + 0.4 * n for n in range(13)]
    )
    plain = make(home / "fedavg", method="fedavg", best=0.9)
    found = {}
    for name, runs in {
        "one": [one],
        "odd": [odd],
        "bands": [bands],
        "several": [one, odd, bands, plain],
    }.items():
        found[name] = home / f"{name}.html"
        write_report(runs, found[name])
    return found


def visit(browser, page: Path, **seen) -> None:
    look(browser, page.as_uri(), **seen)


@pytest.mark.parametrize("width", [1280, 900, 360])
@pytest.mark.parametrize("name", ["one", "odd", "bands", "several"])
def test_every_chart_is_drawn_once_and_fits(browser, pages, name, width):
    visit(browser, pages[name], width=width)
    browser.execute_script(
        "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
    )
    figures = browser.execute_script(VISIBLE)
    assert len(figures) == {"one": 9, "odd": 7, "bands": 9, "several": 1 + 9 + 7 + 9 + 3}[name]
    for figure in figures:
        assert figure["drawings"] == 1, figure
        assert figure["width"] > 250, figure
        assert figure["height"] > 150, figure
        assert figure["lines"] >= 1, figure
        assert figure["left"] >= 0, figure
        assert figure["right"] <= width, figure
    assert browser.execute_script(BAD_TEXT) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    assert browser.execute_script("return document.title").endswith("fedspend")


@pytest.mark.parametrize("name", ["one", "several"])
def test_no_errors_and_no_requests(browser, pages, name):
    visit(browser, pages[name])
    browser.execute_script(
        "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
    )
    time.sleep(0.3)
    assert browser.get_log("browser") == []
    assert asked_for(browser) == {pages[name].as_uri()}


def test_light_and_dark(browser, pages):
    visit(browser, pages["one"], scheme="light")
    light, paper = screenshot(browser, "light")
    visit(browser, pages["one"], scheme="dark")
    dark, night = screenshot(browser, "dark")
    visit(browser, pages["one"], scheme="light", width=360)
    phone, _ = screenshot(browser, "phone")
    assert min(paper) > 240
    assert max(night) < 40
    assert len({light, dark, phone}) == 3


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("name", ["one", "several"])
def test_every_text_can_be_read(browser, pages, name, width, scheme):
    visit(browser, pages[name], width=width, scheme=scheme)
    browser.execute_script(
        "document.querySelectorAll('details').forEach((one) => { one.open = true; })"
    )
    assert browser.execute_script(LOW_CONTRAST) == []
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_on_a_phone_wide_tables_say_that_there_is_more(browser, pages):
    hinted = """return [...document.querySelectorAll('div.scroll')]
      .filter((one) => one.checkVisibility())
      .map((one) => [one.scrollWidth > one.clientWidth + 1,
        one.nextElementSibling.matches('.hint') && one.nextElementSibling.checkVisibility()])"""
    for width in (1280, 390):
        visit(browser, pages["one"], width=width)
        until(lambda: all(wide == said for wide, said in browser.execute_script(hinted)))
    assert any(wide for wide, _ in browser.execute_script(hinted))


def test_what_is_folded_is_reached_by_keyboard(browser, pages):
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.keys import Keys

    visit(browser, pages["one"])
    focus = "return document.activeElement.innerText"
    for _ in range(20):
        ActionChains(browser).send_keys(Keys.TAB).perform()
        if "for experts" in (browser.execute_script(focus) or ""):
            break
    ActionChains(browser).send_keys(Keys.ENTER).perform()
    assert browser.execute_script("return document.querySelector('.technical').open")


def test_the_pointer_shows_the_numbers_of_a_round(browser, pages):
    visit(browser, pages["one"])
    from selenium.webdriver.common.action_chains import ActionChains
    from selenium.webdriver.common.by import By

    figure = next(
        one for one in browser.find_elements(By.TAG_NAME, "figure") if "Privacy spent" in one.text
    )
    chart = figure.find_element(By.CSS_SELECTOR, "svg.wide")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", chart)
    ActionChains(browser).move_to_element(chart).perform()
    tip = figure.find_element(By.CSS_SELECTOR, ".tip")
    assert tip.is_displayed()
    words = tip.text.split("\n")
    assert words[0].startswith("round 1")
    assert [line.split()[1] for line in words[1:]] == ["10:", "20:", "30:"]
    ActionChains(browser).move_to_element(browser.find_element(By.TAG_NAME, "h1")).perform()
    assert not tip.is_displayed()


def test_a_label_with_a_script_stays_text(browser, pages):
    visit(browser, pages["odd"])
    assert "broken" not in browser.title
    assert "<script>document.title" in browser.find_element("tag name", "body").text


# What paper needs, in the layout of a page: drawings, rows and blocks whole, headings with what
# follows, nothing folded, nothing cut off, light paper.
ON_PAPER = """
const all = (what) => [...document.querySelectorAll(what)];
const style = (what, name) => [...new Set(all(what).map((one) => getComputedStyle(one)[name]))];
return {
  whole: style('figure .whole, tr, .banner, .guarantee, .settings > div, figure svg',
    'breakInside'),
  headings: style('h2, h3, summary', 'breakAfter'),
  folded: all('details:not([open])').length,
  tallest: Math.max(...all('.whole, .guarantee').map((o) => o.getBoundingClientRect().height)),
  cut: all('.scroll').filter((one) =>
    one.checkVisibility() && getComputedStyle(one).overflowY !== 'visible').length,
  paper: getComputedStyle(document.body).backgroundColor,
  drawn: all('figure').map((one) =>
    [...one.querySelectorAll('svg')].filter((svg) => svg.getBoundingClientRect().width > 0).length),
  wide: document.documentElement.scrollWidth,
};
"""
A4 = {"paperWidth": 8.27, "paperHeight": 11.69, "printBackground": True}


def printed(browser) -> bytes:
    return base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", A4)["data"])


def pages_of(pdf: bytes) -> int:
    return len(re.findall(rb"/Type\s*/Page\b(?!s)", pdf))


def test_on_paper_the_runs_are_unfolded(browser, pages):
    visit(browser, pages["several"], scheme="dark")
    pdf = printed(browser)
    assert pdf[:4] == b"%PDF"
    assert (
        browser.execute_script("return document.querySelectorAll('details.run[open]').length") == 4
    )
    assert pages_of(pdf) >= 1 + 4  # every run begins on a page of its own


@pytest.mark.parametrize("name", ["one", "odd", "bands"])
def test_on_paper_nothing_is_cut(browser, pages, name):
    visit(browser, pages[name], width=680, scheme="dark")  # A4 between its margins
    # drawings stand side by side, without the tables of their numbers
    assert 3 <= pages_of(printed(browser)) <= 12
    # what was folded folds again afterwards
    assert browser.execute_script("return document.querySelectorAll('details[open]').length") == 0
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    browser.execute_script("dispatchEvent(new Event('beforeprint'))")
    found = browser.execute_script(ON_PAPER)
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})
    assert found["whole"] == ["avoid"]
    assert found["headings"] == ["avoid"]
    assert found["folded"] == 0
    assert found["cut"] == 0
    assert 0 < found["tallest"] < 950  # of about 1000 on a page
    assert found["paper"] == "rgb(255, 255, 255)"
    assert set(found["drawn"]) == {1}
    assert found["wide"] <= 680
