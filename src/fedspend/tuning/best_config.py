"""The config file of the setting that was chosen."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Mapping
from typing import Any

from fedspend.tuning.grid import Setting


def best_config(setting: Setting, said: str) -> str:
    """The setting's config as TOML, under a comment with what is `said` of it.

    File names are absolute, so the file may be kept anywhere.
    """
    head = [f"# {line}" for line in textwrap.wrap(f"{setting.name}: {said}.", 97)]
    tables = [
        "\n".join([f"[{section}]", *(f"{key} = {toml_value(one)}" for key, one in table.items())])
        for section, table in setting.config.values.items()
        if table
    ]
    return "\n".join(head) + "\n\n" + "\n\n".join(tables) + "\n"


def toml_value(value: Any) -> str:
    r"""A value in TOML syntax.

    >>> toml_value("a\\b"), toml_value(1e-05), toml_value(True), toml_value([{"epsilon": 2.0}])
    ('"a\\\\b"', '1e-05', 'true', '[{ epsilon = 2.0 }]')
    """
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, Mapping):
        pairs = ", ".join(f"{key} = {toml_value(one)}" for key, one in value.items())
        return "{ " + pairs + " }"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(toml_value, value)) + "]"
    return json.dumps(str(value), ensure_ascii=False)  # a JSON string is a TOML string
