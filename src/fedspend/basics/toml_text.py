"""Settings as the text of a config file."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any


def config_text(tables: Mapping[str, Mapping[str, Any]]) -> str:
    """Sections and their values; a section without any is left out."""
    return "\n".join(
        f"[{section}]\n" + "".join(f"{key} = {toml(value)}\n" for key, value in table.items())
        for section, table in tables.items()
        if table
    )


def toml(value: Any) -> str:
    """A value in TOML syntax.

    >>> toml("uniform"), toml(1e-05), toml(25), toml(True)
    ('"uniform"', '1e-05', '25', 'true')
    >>> toml([{"epsilon": 10.0, "share": 34}]), toml({"a b": [1]})
    ('[{ epsilon = 10.0, share = 34 }]', '{ "a b" = [1] }')
    """
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml, value))}]"
    if isinstance(value, Mapping):
        return f"{{ {', '.join(f'{_key(key)} = {toml(one)}' for key, one in value.items())} }}"
    return repr(value)


def _key(name: str) -> str:
    bare = re.fullmatch(r"[A-Za-z0-9_-]+", name)
    return name if bare else json.dumps(name, ensure_ascii=False)
