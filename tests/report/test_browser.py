"""The report in a real browser: it renders, wide and narrow, light and dark,
and asks for nothing.
"""

from __future__ import annotations

import base64
import io
import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest

from fedspend.report.html import write_report

webdriver = pytest.importorskip(
    "selenium.webdriver", reason="selenium is not installed; it comes with the dev extra"
)
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DRIVER = shutil.which("chromedriver")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="no Chromium with its driver on this machine: apt-get install chromium chromium-driver",
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --hide-scrollbars "
    "--disable-dev-shm-usage"
)
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
def browser(tmp_path_factory):
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={tmp_path_factory.mktemp('profile')}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    yield driver
    driver.quit()


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


def visit(browser, page: Path, *, width: int = 1280, scheme: str = "light") -> None:
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(page.as_uri())


def screenshot(browser, name: str) -> tuple[bytes, tuple[int, int, int]]:
    """The whole page as PNG, kept where FEDSPEND_SCREENSHOTS says, and the colour of its corner."""
    size = browser.execute_script(
        "return [document.documentElement.clientWidth, document.documentElement.scrollHeight]"
    )
    clip = {"x": 0, "y": 0, "width": size[0], "height": size[1], "scale": 1}
    taken = browser.execute_cdp_cmd(
        "Page.captureScreenshot", {"captureBeyondViewport": True, "clip": clip}
    )
    png = base64.b64decode(taken["data"])
    folder = os.environ.get("FEDSPEND_SCREENSHOTS")
    if folder:
        (Path(folder) / f"{name}.png").write_bytes(png)
    from matplotlib.image import imread

    pixels = imread(io.BytesIO(png))
    assert pixels[..., :3].std() > 0.02  # not an empty page
    red, green, blue = (round(255 * float(value)) for value in pixels[2, 2, :3])
    return png, (red, green, blue)


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
    events = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    assert {url for url in asked if not url.startswith("data:")} == {pages[name].as_uri()}


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
  cut: all('.scroll').filter((one) => getComputedStyle(one).overflowY !== 'visible').length,
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
    assert pages_of(printed(browser)) >= 3
    # the numbers under charts fold again afterwards
    assert browser.execute_script("return document.querySelectorAll('.numbers[open]').length") == 0
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
