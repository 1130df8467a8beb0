"""`fedspend new`: for each template a folder, and the commands of its README, typed."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
from shown import blocks, run_page, smaller

from fedspend.cli.main import main
from fedspend.errors import InvalidInput
from fedspend.starting import templates
from fedspend.starting.templates import TEMPLATES, examples, write

pytestmark = pytest.mark.full

TYPED = ("quickstart", "hospitals", "records", "own-data")


@pytest.fixture
def made(tmp_path, monkeypatch):
    def made(name: str) -> Path:
        folder = tmp_path / "mine"
        assert main(["new", str(folder), "--template", name]) == 0
        monkeypatch.chdir(folder)
        return folder

    return made


@pytest.mark.parametrize("name", TYPED)
def test_the_readme_is_what_has_to_be_typed(made, name, capsys):
    folder = made(name)
    smaller(folder)
    readme = (folder / "README.md").read_text(encoding="utf-8")
    assert all(block.reason is None for block in blocks(readme))
    told = run_page(readme)
    assert any("PASS" in one for one in told), told
    assert (folder / "runs" / "first" / "report.html").exists()
    if name == "own-data":
        spent_for_a_lifetime(capsys)


def spent_for_a_lifetime(capsys):
    """It was a real run, on accounts by name."""
    capsys.readouterr()
    assert main(["ledger", "balance", "--ledger", "accounts.db", "--json"]) == 0
    assert "clinic-60" in capsys.readouterr().out
    assert main(["train", "training.toml", "-o", "runs/second"]) == 1
    assert not Path("runs", "second").exists()


def test_the_cells_of_the_notebook_run(made, monkeypatch):
    import matplotlib.pyplot as plt

    monkeypatch.setattr(plt, "show", plt.close)
    folder = made("notebook")
    notebook = json.loads((folder / "first.ipynb").read_text(encoding="utf-8"))
    names: dict[str, object] = {}
    for cell in notebook["cells"]:
        if cell["cell_type"] == "code":
            assert cell["outputs"] == []
            exec(compile("".join(cell["source"]), "first.ipynb", "exec"), names)
    assert names["result"].accuracy > 0.5  # guessing gives 0.1
    assert "first.ipynb" in (folder / "README.md").read_text(encoding="utf-8")


def test_a_federation_has_rows_at_every_node(made):
    """tests/deployment/test_readme.py types the commands of its README."""
    folder = made("flower")
    for node in (folder / "nodes").iterdir():
        assert (node / "rows.csv").read_text() == (
            examples() / "flower" / "nodes" / node.name / "patients.csv"
        ).read_text()
    assert len(list((folder / "nodes").iterdir())) == 3


@pytest.mark.parametrize("name", TEMPLATES)
def test_nobody_else_may_read_it_and_no_path_leads_out_of_it(made, name):
    folder = made(name)
    for path in (folder, *folder.rglob("*")):
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0
        if path.is_file():
            assert "examples/" not in path.read_text(encoding="utf-8")


def test_an_existing_folder_is_left_alone(tmp_path, capsys):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("x")
    assert main(["new", str(tmp_path / "mine")]) == 2
    assert "exists already; remove it, or choose another name" in capsys.readouterr().err
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["precious"]


def test_what_could_not_be_finished_is_removed(tmp_path, monkeypatch):
    def full(path, _):
        raise OSError(28, "No space left on device", str(path))

    monkeypatch.setattr(templates, "_put", full)
    with pytest.raises(OSError, match="No space"):
        write(tmp_path / "mine", "quickstart")
    assert not (tmp_path / "mine").exists()


def test_what_is_not_installed_is_said_at_once(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(templates, "find_spec", lambda name: None if name == "flwr" else name)
    assert main(["new", str(tmp_path / "first")]) == 0
    assert "pip install" not in capsys.readouterr().out
    assert main(["new", str(tmp_path / "mine"), "--template", "flower"]) == 0
    assert "pip install 'fedspend[flower]'" in capsys.readouterr().out


def test_a_template_that_is_not_there(tmp_path, capsys):
    assert main(["new", str(tmp_path / "mine"), "--template", "casino"]) == 2
    assert "casino" in capsys.readouterr().err
    with pytest.raises(InvalidInput, match="no template 'casino'; use one of quickstart"):
        write(tmp_path / "mine", "casino")


def test_json_lists_the_files(tmp_path, capsys):
    assert main(["new", str(tmp_path / "mine"), "--json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert [Path(name).name for name in told["files"]] == [
        "README.md",
        "quickstart.toml",
        "saving.toml",
    ]
