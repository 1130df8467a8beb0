"""HTML and SVG built from nested calls.

Guarantee: a string becomes text. It is escaped in elements and in attributes unless it is `Markup`,
which only this module makes. So no label, setting or file name can inject code into the page.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable

VOID = frozenset({"meta", "link", "input"})
# characters that are not text, some of them forbidden in HTML
CONTROL = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]")


class Markup(str):
    """A string that is already HTML."""


Content = str | Iterable["Content"] | None


def element(tag: str, *content: Content, **attributes: str | float | bool | None) -> Markup:
    """One element. `class_` becomes `class`, and underscores become hyphens.

    An attribute that is None or False is left out; one that is True has no value.

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
    """The contents joined together.

    >>> join("<", [element("i"), None])
    '&lt;<i></i>'
    """
    return Markup("".join(_text(one) for one in content))


def raw(tag: str, body: str, **attributes: str) -> Markup:
    """One of our own styles, scripts or tables of numbers, which browsers read unescaped."""
    if "</" in body:
        raise ValueError(f"a {tag} must not hold '</'")
    return Markup(f"{element(tag, **attributes).removesuffix(f'</{tag}>')}{body}</{tag}>")


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
    """A coordinate with at most two decimals.

    >>> number(12.340000001), number(3), number(-0.001)
    ('12.34', '3', '0')
    """
    return f"{round(value, 2) + 0.0:.2f}".rstrip("0").rstrip(".")
