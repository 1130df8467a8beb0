"""The notebooks of examples/notebooks run from top to bottom, in seconds, and hold no outputs.

Cells are run in this process, and what a last line gives is shown as a notebook would show it: a
kernel for each would cost more than the cells.
"""

from __future__ import annotations

import ast
import json
from pathlib import Path

import pytest

pytestmark = [pytest.mark.full, pytest.mark.usefixtures("registries_as_before")]

FOLDER = Path(__file__).parents[1] / "examples" / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))


def shown(value) -> str:
    """What a notebook would show: a picture, a table or the repr."""
    for name in ("_repr_png_", "_repr_html_"):
        if hasattr(value, name):
            return str(getattr(value, name)())
    return repr(value)


def run_cell(source: str, names: dict) -> str:
    tree = ast.parse(source)
    last = tree.body.pop() if isinstance(tree.body[-1], ast.Expr) else None
    exec(compile(tree, "cell", "exec"), names)
    if last is None:
        return ""
    return shown(eval(compile(ast.Expression(last.value), "cell", "eval"), names))


def test_every_notebook_of_the_docs_is_there():
    said = (FOLDER.parents[1] / "docs" / "how-to" / "python.md").read_text(encoding="utf-8")
    assert len(NOTEBOOKS) == 6
    assert [one.name for one in NOTEBOOKS if one.name not in said] == []


@pytest.mark.filterwarnings("ignore::fedspend.errors.FedspendWarning")
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_from_top_to_bottom(path, monkeypatch):
    monkeypatch.chdir(FOLDER)
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert not any(cell.get("outputs") or cell.get("execution_count") for cell in cells)
    names: dict = {"__name__": "__main__"}
    told = [
        run_cell("".join(cell["source"]), names) for cell in cells if cell["cell_type"] == "code"
    ]
    assert any(told)
