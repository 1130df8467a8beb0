"""The files of a comparison: its numbers, its table in every format, and its plots.

Guarantee: only the owner can read them; they show budgets.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

from fedspend.basics.files import make_folder, write_whole
from fedspend.basics.tables import Table

if TYPE_CHECKING:
    from fedspend.runs.comparison import Comparison


def write_comparison(result: Comparison, folder: Path) -> None:
    make_folder(folder)
    write_whole(folder / "comparison.json", _numbers(result).encode())
    write_whole(folder / "comparison.csv", _rows(result).csv().encode())
    table = result.table()
    write_whole(folder / "comparison.md", table.markdown().encode())
    write_whole(folder / "comparison.tex", table.latex().encode())
    for name in result.metrics:
        result.of(name).plot().save(folder / f"{name}.png")


def _numbers(result: Comparison) -> str:
    return json.dumps(
        {
            "methods": result.rows(),
            "seeds": list(result.seeds),
            "equal": result.twins(),
            "metric": result.metric,
            "interval_supported": result.supported,
            **{name: result.of(name).curves() for name in result.metrics},
        },
        indent=1,
    )


def _rows(result: Comparison) -> Table:
    """Full numbers, a row for each arm."""
    header = ["method", "mean", "interval", "difference", "difference_interval"]
    others = [f"{name}{end}" for name in result.others for end in ("", "_interval")]
    body = [
        [row[key] for key in header]
        + [found[key] for found in row.get("metrics", {}).values() for key in ("mean", "interval")]
        for row in result.rows()
    ]
    return Table([*header, *others], body)
