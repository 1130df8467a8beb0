"""HTML and SVG made of nested calls.

Guarantee: a string becomes text. It is escaped wherever it goes, into an element or into an
attribute, unless it is `Markup`, and only this module makes that. So no label, setting or file name
can become part of the page.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

VOID = frozenset({"meta", "link"})
# no text, and some of it no HTML
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Markup(str):
    """A string that is HTML already."""


Content = str | Iterable["Content"] | None


def element(tag: str, *content: Content, **attributes: str | float | bool | None) -> Markup:
    """One element. `class_` is `class`, underscores are hyphens; an attribute of None or False is
    left out, True stands alone.

    >>> element("p", "a < b", element("b", "!"), class_="note", title='"')
    '<p class="note" title="&quot;">a &lt; b<b>!</b></p>'
    >>> element("details", ["x", None], open=True)
    '<details open>x</details>'
    """
    words = [tag]
    for name, value in attributes.items():
        name = name.rstrip("_").replace("_", "-")
        if value is True:
            words.append(name)
        elif value is not None and value is not False:
            words.append(f'{name}="{escape(value if isinstance(value, str) else number(value))}"')
    start = f"<{' '.join(words)}>"
    return Markup(start if tag in VOID else f"{start}{join(*content)}</{tag}>")


def join(*content: Content) -> Markup:
    """Contents one after the other.

    >>> join("<", [element("i"), None])
    '&lt;<i></i>'
    """
    return Markup("".join(_text(one) for one in content))


def raw(tag: str, body: str) -> Markup:
    """A style or script of our own, which browsers read without undoing escapes."""
    if "</" in body:
        raise ValueError(f"a {tag} must not hold '</'")
    return Markup(f"<{tag}>{body}</{tag}>")


def _text(content: Content) -> str:
    if content is None:
        return ""
    if isinstance(content, Markup):
        return content
    if isinstance(content, str):
        return escape(content)
    return "".join(_text(one) for one in content)


def escape(text: str) -> str:
    """
    >>> escape("<a\\x00&'")
    '&lt;a\\ufffd&amp;&#x27;'
    """
    return html.escape(CONTROL.sub("\ufffd", text))


def number(value: float) -> str:
    """A coordinate, short.

    >>> number(12.340000001), number(3), number(-0.001)
    ('12.34', '3', '0')
    """
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")
