"""The planner page as HTML: a form, and places that the script fills with answers.

Guarantee: the page holds no numbers of its own; it asks the planner.
"""

from __future__ import annotations

import json

from fedspend.accounting.accountants import ACCOUNTANTS, AUTO
from fedspend.pages.planner.answers import HEADINGS
from fedspend.pages.planner.settings import OPTIONS, POLICIES_SHOWN, Settings, used_by
from fedspend.planning.policies import POLICIES
from fedspend.report.markup import Content, Markup, element, join
from fedspend.report.page import asset, document

# name, label, help, kind of slider
FIELDS = (
    ("rounds", "Rounds", "how often the model is updated", "log 1 1000"),
    ("rate", "Sampling rate", "chance that a client takes part in a round", "log 0.01 1"),
    ("delta", "Delta", "keep it below 1 / clients", ""),
    ("saving_rate", "Saving rate", "sampling rate before the transition", "linear 0.05 1"),
    ("transition", "Transition", "first round at the full rate; empty: the middle", ""),
    ("ratio", "Ratio", "budget of a round over that of the round before", "linear 0.8 1.25"),
    (
        "contraction",
        "Contraction",
        "part of a push against the model that one round leaves; empty: unknown",
        "linear 0.5 1",
    ),
    ("tail", "Tail", "the final model is the mean of this many last iterates", "linear 1 16"),
    ("clip", "Clip", "clip norm of the average client", ""),
    (
        "parameters",
        "Model size",
        "number of parameters that are trained; files do not tell it, so set yours",
        "log 100 10000000",
    ),
)


def planner_page(settings: Settings) -> str:
    data = {
        "settings": settings.to_dict(),
        "options": {policy: list(used_by(policy)) for policy in POLICIES_SHOWN},
        "headings": list(HEADINGS),
    }
    return document(
        "planner",
        element("main", _head(), _columns()),
        style=asset("fedspend.pages", "planner.css"),
        script="".join(asset("fedspend.pages", name) for name in ("shared.js", "planner.js")),
        served=True,
        data=json.dumps(data, allow_nan=False).replace("<", "\\u003c"),
    )


def _head() -> Markup:
    about = (
        "Every number comes from the planner that training uses. Nothing here touches data or "
        "spends a budget."
    )
    return element(
        "header",
        element("p", "fedspend · planner", class_="brand"),
        element("h1", "What will these budgets buy?"),
        element("p", about, id="about"),
    )


def _columns() -> Markup:
    glance = element("p", id="glance", class_="banner live", aria_hidden="true")
    return element("div", _form(), _results(), glance, class_="columns")


# --- the form -------------------------------------------------------------------------------------


def _form() -> Markup:
    return element(
        "form",
        _groups(),
        element(
            "fieldset", element("legend", "Terms"), _policy(), map(_field, FIELDS), _accountant()
        ),
        _files(),
        id="settings",
        autocomplete="off",
    )


def _groups() -> Markup:
    head = element(
        "tr",
        element("th", "epsilon", scope="col"),
        element("th", "clients", scope="col"),
        element("td"),
    )
    return element(
        "fieldset",
        element("legend", "Budgets by group"),
        element("table", element("thead", head), element("tbody", id="groups"), class_="budgets"),
        element("button", "Add a group", type="button", id="add"),
        element("p", "Smaller epsilon: better protected, more noise.", class_="note"),
    )


def _field(field: tuple[str, str, str, str]) -> Markup:
    name, label, help_, slider = field
    return element(
        "div",
        element("label", label, for_=name),
        element("input", id=name, name=name, inputmode="decimal", aria_describedby=f"{name}-help"),
        element(
            "input", type="range", data_of=name, data_scale=slider, aria_label=f"{label}, slider"
        )
        if slider
        else None,
        element("p", help_, class_="note", id=f"{name}-help"),
        class_="field optional" if name in OPTIONS else "field",
        data_name=name,
    )


def _policy() -> Markup:
    choices = [element("option", name, value=name) for name in POLICIES_SHOWN]
    helps = [
        element("span", POLICIES[name].help, data_policy=name, hidden=True)
        for name in POLICIES_SHOWN
    ]
    return element(
        "div",
        element("label", "Policy", for_="policy"),
        element("select", choices, id="policy", name="policy", aria_describedby="policy-help"),
        element("p", helps, class_="note", id="policy-help"),
        class_="field",
        data_name="policy",
    )


def _accountant() -> Markup:
    choices = [element("option", name, value=name) for name in (AUTO, *ACCOUNTANTS.names)]
    return element(
        "div",
        element("label", "Accountant", for_="accountant"),
        element("select", choices, id="accountant", name="accountant"),
        element("p", "auto: the one that needs the least noise", class_="note"),
        class_="field",
        data_name="accountant",
    )


def _files() -> Markup:
    return element(
        "fieldset",
        element("legend", "Files"),
        element("label", "Open a plan or a config ", element("input", type="file", id="open")),
        element(
            "p",
            element("button", "Save plan.json", type="button", id="save-plan"),
            " ",
            element("button", "Save config.toml", type="button", id="save-config"),
        ),
    )


# --- the results ----------------------------------------------------------------------------------


def _results() -> Markup:
    return element(
        "div",
        element("p", id="status", role="status", class_="banner live"),
        element("dl", id="tiles", class_="tiles"),
        _part("Noise and spending", element("div", id="charts", class_="grid")),
        _part("What the noise does to the average update", element("div", id="average")),
        _part("What epsilon means", element("div", id="meaning")),
        _part("What each observer learns", element("div", id="observers")),
        _part("The same on the command line", _command()),
        id="results",
        aria_live="off",
    )


def _part(title: str, content: Content) -> Markup:
    return element("section", element("h2", title), content)


def _command() -> Markup:
    return join(
        element("pre", element("code", id="command"), tabindex=0),
        element("button", "Copy", type="button", id="copy"),
    )
