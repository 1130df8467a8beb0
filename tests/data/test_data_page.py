"""Every example of docs/how-to/data.md is run: its files are written down, its configs read,
its Python executed.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from fedspend.configuration.config import load_config
from fedspend.configuration.data_inputs import Source

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "data.md"
FILE = re.compile(
    r"^`([\w/]+\.\w+)`:\n\n(?:<!--[^\n]*-->\n)?```\w+\n(.*?)^```", re.DOTALL | re.MULTILINE
)
FILES = dict(FILE.findall(PAGE.read_text(encoding="utf-8")))


def make_files(folder: Path) -> None:
    """What a page cannot show: the same patients as typed columns, and some photos."""
    import pyarrow
    from PIL import Image
    from pyarrow import parquet

    columns = {
        "hospital": ["north", "north", "south", "south"],
        "age": [41, 67, 35, 80],
        "blood": ["A", "0", "AB", "B"],
        "pressure": [118.5, None, 131.0, 99.5],
        "sick": ["no", "yes", "no", "yes"],
    }
    table = pyarrow.table(columns)
    parquet.write_table(table, folder / "patients.parquet")
    for name in ("north/cat/1", "north/dog/2", "south/cat/3", "south/dog/4"):
        photo = folder / "photos" / f"{name}.png"
        photo.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (30, 20), "red").save(photo)


def run(name: str) -> None:
    exec(compile(FILES[name], name, "exec"), {"__name__": name})


@pytest.fixture
def folder(tmp_path, monkeypatch):
    for name, content in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content, encoding="utf-8")
    make_files(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "arrays").mkdir()
    run("arrays.py")
    return tmp_path


@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".toml")])
def test_a_config_reads_what_the_page_says(folder, name):
    source = Source(load_config(folder / name))
    assert source.rows.clients == ("north", "south")
    assert len(source.rows.labels) == 4


def test_the_features_of_the_csv_file_are_those_that_its_declarations_say(folder):
    rows = Source(load_config(folder / "csv.toml")).rows
    # age, A, B, 0, other, pressure, pressure is missing
    assert rows.features.shape == (4, 7)
    assert rows.features[1].tolist() == pytest.approx([0.67, 0, 0, 1, 0, 120, 1])
    assert rows.labels.tolist() == [0, 1, 0, 1]
    assert rows.record_of is not None


@pytest.mark.full(only=["given.py"])
@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize("name", [name for name in FILES if name.endswith(".py")])
def test_a_program_of_the_page_runs(name):
    run(name)
