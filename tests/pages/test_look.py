"""One look: report, planner, run page and ledger page share one sheet, and no other has colours."""

from __future__ import annotations

import re

import pytest

from fedspend.ledger import Ledger
from fedspend.pages.ledger.site import ledger_site
from fedspend.pages.planner.page import planner_page
from fedspend.pages.planner.settings import Settings
from fedspend.pages.watch import watch_page
from fedspend.report.page import asset, document

OWN = [("report", "report"), *(("pages", name) for name in ("planner", "watch", "ledger"))]


def rules(sheet: str) -> list[str]:
    """Selectors and declarations, outside of what depends on the medium."""
    flat = re.sub(r"/\*.*?\*/", "", sheet, flags=re.DOTALL)
    flat = re.sub(r"@[a-z]+[^{;]*\{(?:[^{}]*\{[^{}]*\})*[^{}]*\}", "", flat)
    return [" ".join(one.split()) for one in re.findall(r"[^{}]+\{[^{}]*\}", flat)]


@pytest.mark.parametrize(("room", "name"), OWN)
def test_no_page_has_colours_or_rules_that_all_have(room, name):
    own, look = asset(f"fedspend.{room}", f"{name}.css"), asset("fedspend.report", "look.css")
    assert re.findall(r":[^;{}]*#[0-9a-f]{3,6}\b", own) == []
    assert "prefers-color-scheme" not in own
    assert len(rules(look)) > 60
    assert not set(rules(own)) & set(rules(look))


def test_every_page_has_the_look(tmp_path):
    with Ledger.create(tmp_path / "ledger.db", simulation=True) as ledger:
        ledger.register(["c"], [1.0], delta=1e-4)
    look = asset("fedspend.report", "look.css")
    for page in (
        planner_page(Settings()),
        watch_page(tmp_path / "later"),
        ledger_site(str(tmp_path / "ledger.db")).pages[""](),
        document("title", "text", style="", script=""),
    ):
        assert page.count(look) == 1
