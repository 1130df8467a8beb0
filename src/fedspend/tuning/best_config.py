"""The config file of the setting that was chosen."""

from __future__ import annotations

import textwrap

from fedspend.basics.toml_text import toml
from fedspend.tuning.grid import Setting


def best_config(setting: Setting, said: str) -> str:
    """The setting's config as TOML, under a comment with what is `said` of it.

    File names are absolute, so the file may be kept anywhere.
    """
    head = [f"# {line}" for line in textwrap.wrap(f"{setting.name}: {said}.", 97)]
    tables = [
        "\n".join([f"[{section}]", *(f"{key} = {toml(one)}" for key, one in table.items())])
        for section, table in setting.config.values.items()
        if table
    ]
    return "\n".join(head) + "\n\n" + "\n\n".join(tables) + "\n"
