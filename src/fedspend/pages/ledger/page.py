"""The ledger page as HTML: places that the script fills with what the ledger says.

Guarantee: the page holds no numbers of its own; all come from the server, and are set as text.
"""

from __future__ import annotations

import json
from typing import Any

from fedspend.report.markup import Content, Markup, element
from fedspend.report.page import asset, document

SHOW = (
    ("all", "everyone"),
    ("active", "those with something left"),
    ("exhausted", "those with nothing left"),
    ("withdrawn", "those who withdrew"),
)
SORT = (
    ("registered", "registration"),
    ("name", "name"),
    ("used", "share of budget spent"),
    ("spent", "epsilon spent"),
    ("remaining", "epsilon remaining"),
    ("budget", "budget"),
)
NOTE = (
    "Epsilons are at each account's delta, composed over everything that was released. They do not "
    "simply add up: remaining is the largest epsilon that a new plan like the last could claim, "
    "and is usually more than budget minus spent. Held: what open runs may still add to spent."
)


def ledger_page(overview: dict[str, Any], project: str = "") -> str:
    """The page of a ledger, beginning with a project."""
    location = str(overview["location"])
    data = json.dumps({"project": project}, allow_nan=False).replace("<", "\\u003c")
    return document(
        f"ledger {location}",
        element("main", _head(location), _status(), _banner(overview), _whole(), *_parts()),
        style=asset("fedspend.pages", "ledger.css"),
        script="".join(asset("fedspend.pages", name) for name in ("shared.js", "ledger.js")),
        served=True,
        data=data,
    )


def _head(location: str) -> Markup:
    return element(
        "header",
        element("p", "fedspend · ledger", class_="brand"),
        element("h1", location.rpartition("/")[2] or location),
        element("p", location, class_="code"),
        element("p", id="facts"),
    )


def _status() -> Markup:
    return element("p", "Reading …", id="status", role="status", class_="banner live")


def _banner(overview: dict[str, Any]) -> Markup:
    word, words, kind = (
        ("Simulation", "These accounts are of simulations; they protect nobody.", "simulation")
        if overview["simulation"]
        else (
            "Real accounts",
            "Budgets of people. This page shows who has spent what: keep its address to yourself.",
            "real",
        )
    )
    return element("p", element("strong", word), " ", words, class_=f"banner {kind}", role="note")


def _whole() -> Markup:
    return element("dl", id="tiles", class_="tiles")


def _parts() -> list[Markup]:
    return [
        _section("Balances", "balances", _balance_controls(), element("p", NOTE, class_="note")),
        element("section", id="detail", hidden=True, tabindex=-1, aria_live="off"),
        _section("Runs", "runs", _controls(_search("runs", "Search by run"))),
        _section("History", "history", _controls(_search("history", "Search the entries"))),
        _section("Verification", "verification", _verify()),
    ]


def _section(title: str, name: str, controls: Content, note: Content = None) -> Markup:
    return element(
        "section",
        element("h2", title),
        controls,
        element("div", id=name),
        element("div", id=f"{name}-pager", class_="pager", hidden=True),
        note,
        aria_label=title,
    )


def _controls(*parts: Markup) -> Markup:
    return element("form", *parts, class_="controls", role="search", autocomplete="off")


def _balance_controls() -> Markup:
    holder = element(
        "div",
        element("label", "Accounts of", for_="holder"),
        element("select", id="holder"),
        id="holders",
        hidden=True,
    )
    return _controls(
        _search("balances", "Search by name"),
        _choice("show", "Show", SHOW),
        _choice("sort", "Sort by", SORT),
        holder,
    )


def _search(of: str, label: str) -> Markup:
    id = f"{of}-search"
    return element(
        "div",
        element("label", label, for_=id),
        element("input", id=id, type="search", spellcheck="false"),
        class_="search",
    )


def _choice(id: str, label: str, choices: tuple[tuple[str, str], ...]) -> Markup:
    options = [element("option", words, value=value) for value, words in choices]
    return element("div", element("label", label, for_=id), element("select", options, id=id))


def _verify() -> Markup:
    about = (
        "Reads the whole chain again, lets the database check itself, compares the heads that are "
        "kept elsewhere, and recomputes every balance with a second accountant that shares no code "
        "with the first."
    )
    return element(
        "div",
        element("p", about, class_="note prose"),
        element("p", element("button", "Verify now", type="button", id="verify"), class_="row"),
    )
