"""Every command and program that README and docs show is run, or its page says why not.

With few rounds, steps and seeds (`shown.MOST`), in a folder with a copy of the examples.
"""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from urllib.request import urlopen

import pytest
from shown import blocks, run_page, smaller, type_command

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("registries_as_before")]

ROOT = Path(__file__).parents[1]
PAGES = {
    str(page.relative_to(ROOT)): page.read_text(encoding="utf-8")
    for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
}
RUN = [name for name, text in PAGES.items() if any(not one.reason for one in blocks(text))]


@pytest.fixture(scope="session")
def examples(tmp_path_factory):
    folder = tmp_path_factory.mktemp("shown") / "examples"
    shutil.copytree(ROOT / "examples", folder)
    smaller(folder)
    return folder


class InThisProcess(ThreadPoolExecutor):
    """Workers are processes, and each would load torch once more."""

    def __init__(self, *_: object, **__: object) -> None:
        super().__init__(1)


@pytest.fixture(autouse=True)
def no_other_processes(monkeypatch):
    monkeypatch.setattr("fedspend.basics.workers.ProcessPoolExecutor", InThisProcess)


@pytest.fixture(autouse=True)
def pages_are_visited_once(monkeypatch):
    """Commands that serve a page would wait for Ctrl-C, and for a person at a browser."""

    def visited(served):
        with urlopen(served.address) as answer:
            assert answer.status == 200

    monkeypatch.setattr("fedspend.pages.serving.Served.forever", visited)
    monkeypatch.setattr("fedspend.pages.serving.open_browser", lambda _: True)


@pytest.mark.parametrize("name", RUN)
def test_what_a_page_shows_works(name, examples, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shutil.copytree(examples, tmp_path / "examples")
    run_page(PAGES[name])


def test_the_page_on_design_shows_what_theory_prints():
    text = PAGES["docs/how-to/design.md"]
    command = next(one for one in blocks(text) if "design theory" in one.text)
    shown = text.split("```")[3].strip("\n").splitlines()
    assert len(shown) == 10
    assert set(shown) <= set(type_command(command.text.strip()).splitlines())


def test_most_of_what_is_shown_is_run():
    shown = [one for text in PAGES.values() for one in blocks(text) if not one.given]
    assert len([one for one in shown if not one.reason]) > len(shown) / 2
