"""How JSON is written down, so that a person can read it and a change of one value is one line."""

from __future__ import annotations

import json
import textwrap
from typing import Any

WIDTH = 100


def laid_out(text: str) -> str:
    """`text` itself, unless it is JSON, or lines of JSON: then by `pretty`."""
    try:
        return pretty(json.loads(text))
    except ValueError:
        pass
    try:
        return "\n".join(pretty(json.loads(line)) for line in text.splitlines())
    except ValueError:
        return text


def pretty(value: Any, indent: int = 0, key: str = "") -> str:
    """What fits on a line stays on one; lists of numbers and words are filled."""
    head = " " * indent + key
    flat = json.dumps(value, ensure_ascii=False)
    if len(head) + len(flat) <= WIDTH or not isinstance(value, (dict, list)):
        return head + flat
    if isinstance(value, dict):
        inner = [pretty(v, indent + 1, f"{json.dumps(k)}: ") for k, v in value.items()]
        return head + "{\n" + ",\n".join(inner) + "\n" + " " * indent + "}"
    if any(isinstance(one, (dict, list)) for one in value):
        inner = [pretty(one, indent + 1) for one in value]
        return head + "[\n" + ",\n".join(inner) + "\n" + " " * indent + "]"
    words = [json.dumps(one, ensure_ascii=False) for one in value]
    if any(isinstance(one, str) and len(one) > 40 for one in value):
        filled = ",\n".join(" " * (indent + 1) + word for word in words)
    else:
        filled = textwrap.fill(
            ", ".join(words),
            WIDTH,
            initial_indent=" " * (indent + 1),
            subsequent_indent=" " * (indent + 1),
            break_long_words=False,
            break_on_hyphens=False,
        )
    return f"{head}[\n{filled}\n{' ' * indent}]"
