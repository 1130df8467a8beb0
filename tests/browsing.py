"""A real browser for tests of pages, and what they look for."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
DRIVER = shutil.which("chromedriver")
NEEDS_CHROMIUM = pytest.mark.skipif(
    CHROMIUM is None or DRIVER is None,
    reason="no Chromium with its driver on this machine: apt-get install chromium chromium-driver",
)
FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --hide-scrollbars "
    "--disable-dev-shm-usage"
)
# Texts with too little contrast against what is behind them: WCAG's formula, 4.5 or more.
LOW_CONTRAST = """
const channel = (v) => (v /= 255) <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const parse = (text) => text.match(/[\\d.]+/g).map(Number);
const luminance = ([r, g, b]) => 0.2126 * channel(r) + 0.7152 * channel(g) + 0.0722 * channel(b);
const behind = (one) => {
  for (let at = one; at; at = at.parentElement) {
    const colour = parse(getComputedStyle(at).backgroundColor);
    if (colour.length < 4 || colour[3] > 0) return colour;
  }
  return [255, 255, 255];
};
const texts = [...document.querySelectorAll('body *')].filter((one) =>
  one.checkVisibility() && !one.closest('svg') && !one.matches(':disabled, option') &&
  [...one.childNodes].some((n) => n.nodeType === 3 && n.textContent.trim()));
const seen = (one, ground) => {  // its colour, as far as it and what it is in are not transparent
  let [share, colour] = [1, parse(getComputedStyle(one).color)];
  for (let at = one; at; at = at.parentElement) share *= Number(getComputedStyle(at).opacity);
  return colour.slice(0, 3).map((part, n) => share * part + (1 - share) * ground[n]);
};
return texts.map((one) => {
  const ground = behind(one);
  const [a, b] = [seen(one, ground), ground].map(luminance);
  const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  return [one.textContent.trim().slice(0, 40), ratio];
}).filter(([, ratio]) => ratio < 4.5);
"""


@contextlib.contextmanager
def chromium(profile: Path) -> Iterator[Any]:
    """A headless browser with a profile of its own."""
    webdriver = pytest.importorskip(
        "selenium.webdriver", reason="selenium is not installed; it comes with the dev extra"
    )
    from selenium.common.exceptions import WebDriverException

    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for flag in FLAGS.split():
        options.add_argument(flag)
    options.add_argument(f"--user-data-dir={profile}")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    try:
        driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    except WebDriverException as problem:  # a driver of another version, or a sandbox
        pytest.skip(f"Chromium does not start on this machine: {problem.msg}")
    try:
        yield driver
    finally:
        driver.quit()


def look(browser: Any, address: str, *, width: int = 1280, scheme: str = "light") -> None:
    """Open a page as wide as a screen or a phone, by day or by night."""
    browser.execute_cdp_cmd(
        "Emulation.setEmulatedMedia",
        {"features": [{"name": "prefers-color-scheme", "value": scheme}]},
    )
    metrics = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
    browser.get("about:blank")  # the page before may still ask a server that is gone
    browser.get_log("browser"), browser.get_log("performance")
    browser.get(address)


def asked_for(browser: Any) -> set[str]:
    """The addresses that were asked for since the page was opened."""
    events = [json.loads(line["message"])["message"] for line in browser.get_log("performance")]
    asked = {
        event["params"]["request"]["url"]
        for event in events
        if event["method"] == "Network.requestWillBeSent"
    }
    return {url for url in asked if not url.startswith(("data:", "blob:"))}


def screenshot(browser: Any, name: str) -> tuple[bytes, tuple[int, int, int]]:
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


def words_of(browser: Any, name: str) -> str:
    """The text of the element with this id, read in one step: on a page that replaces its parts, an
    element that was found may be gone when it is asked.
    """
    found = browser.execute_script(
        "return document.getElementById(arguments[0])?.innerText ?? ''", name
    )
    return str(found)


def until(good: Callable[[], Any], seconds: float = 90.0) -> None:
    """Wait for a condition; on a busy machine that may take a while."""
    end = time.monotonic() + seconds
    while not good():
        assert time.monotonic() < end, "the page never came to this"
        time.sleep(0.05)
