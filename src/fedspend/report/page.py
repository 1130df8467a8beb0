"""One whole HTML document: head, style, script, and a policy that forbids everything else.

Guarantee: the page runs our own script and style only, which its content security policy names by
their digests, and sends nothing to anyone; a page that is served may talk to its own server.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files

from fedspend.report.markup import Content, element, raw


def asset(package: str, name: str) -> str:
    """A style or a script that comes with the package."""
    return files(package).joinpath("assets", name).read_text("utf-8")


def document(
    title: str, body: Content, *, style: str, script: str, served: bool = False, data: str = ""
) -> str:
    """The page, in the look that all pages share, with a style and a script of its own. `data` is
    JSON that the script reads from the element `data`; a `served` page may ask its own server.
    """
    style = asset("fedspend.report", "look.css") + style
    script = asset("fedspend.report", "look.js") + script
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element(
            "meta", http_equiv="Content-Security-Policy", content=policy(style, script, served)
        ),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="referrer", content="no-referrer"),
        element("link", rel="icon", href="data:,"),
        element("title", f"{title} · fedspend"),
        raw("style", style),
    )
    carried = raw("script", data, type="application/json", id="data") if data else None
    page = element("html", head, element("body", body, carried, raw("script", script)), lang="en")
    return f"<!doctype html>\n{page}\n"


def policy(style: str, script: str, served: bool = False) -> str:
    """The content security policy of a page with this style and script."""

    def digest(text: str) -> str:
        return "'sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode() + "'"

    own = f"style-src {digest(style)}; script-src {digest(script)}"
    asks = "; connect-src 'self'" if served else ""
    return f"default-src 'none'; img-src data:; {own}{asks}; base-uri 'none'; form-action 'none'"
