"""Parquet files."""

from __future__ import annotations

import sys

import numpy as np
import pytest

from fedspend.data import load
from fedspend.data.arrow_files import read_parquet
from fedspend.data.tables import read_csv
from fedspend.errors import InvalidInput

pyarrow = pytest.importorskip("pyarrow")
from pyarrow import parquet  # noqa: E402

PATIENTS = {
    "site": ["north", "north", "south", "south"],
    "patient": ["n1", "n2", "s1", "s2"],
    "age": [20, 60, None, 150],
    "blood": ["A", "B", "AB", None],
    "weight": [60.5, None, 80.0, 70.0],
    "ward": [1, 2, 2, 1],
    "sick": ["no", "yes", "yes", "no"],
}
DECLARED = {
    "label": "sick",
    "labels": ["no", "yes"],
    "client": "site",
    "record": "patient",
    "bounds": {"age": [0, 100]},
    "categories": {"blood": ["A", "B"], "ward": ["1", "2"]},
    "other": ["blood"],
    "missing": {"age": 50, "weight": 70, "blood": "B"},
    "indicators": ["weight"],
}


def write_parquet(path, columns=PATIENTS):
    parquet.write_table(pyarrow.table(columns), path)
    return path


def write_csv(path):
    lines = zip(*PATIENTS.values(), strict=True)
    cells = [",".join("" if cell is None else str(cell) for cell in line) for line in lines]
    path.write_text("\n".join([",".join(PATIENTS), *cells]) + "\n")
    return path


def test_the_same_table_has_the_same_bits_as_in_a_csv_file(tmp_path):
    expected = read_csv(write_csv(tmp_path / "data.csv"), **DECLARED)
    rows = read_parquet(write_parquet(tmp_path / "data.parquet"), **DECLARED)
    assert rows.features.tobytes() == expected.features.tobytes()
    assert rows.features.shape == (4, 8)
    assert rows.labels.tolist() == expected.labels.tolist() == [0, 1, 1, 0]
    assert rows.clients == expected.clients
    assert rows.record_of.tolist() == expected.record_of.tolist()


def test_dictionaries_booleans_decimals_and_small_types_are_read(tmp_path):
    from decimal import Decimal

    columns = {
        "a": pyarrow.array(["x", "y"]).dictionary_encode(),
        "b": pyarrow.array([True, False]),
        "c": pyarrow.array([Decimal("1.5"), Decimal("2.5")]),
        "d": pyarrow.array([1, 2], pyarrow.uint8()),
        "e": pyarrow.array([0.5, None], pyarrow.float32()),
        "label": pyarrow.array([0, 1], pyarrow.int8()),
    }
    path = write_parquet(tmp_path / "t.parquet", columns)
    rows = read_parquet(path, classes=2, categories={"a": ["x", "y"]}, missing={"e": 9})
    assert rows.features.tolist() == [[1, 0, 1, 1.5, 1, 0.5], [0, 1, 0, 2.5, 2, 9]]


def test_test_rows_come_from_a_file_of_their_own(tmp_path):
    path, tests = write_parquet(tmp_path / "a.parquet"), write_parquet(tmp_path / "b.parquet")
    data = load("parquet", path=path, test_path=tests, **DECLARED)
    np.testing.assert_array_equal(data.features, data.test_features)


CHANGES = [
    ({"sick": ["no", "yes", "maybe", "no"]}, {}, "row 2: sick 'maybe' is not among the classes"),
    ({"sick": ["no", None, "yes", "no"]}, {}, "row 1: sick is empty"),
    ({"site": ["north", None, "south", "south"]}, {}, "row 1: site is empty"),
    ({"site": [0.5, 1.5, 2.5, 3.5]}, {}, "site ids must be text or whole numbers, got 0.5"),
    ({"patient": ["a", "a", "b", "c"]}, {}, "row 1: patient 'a' is listed twice"),
    ({"age": ["20", "60", "x", "1"]}, {}, "row 0: age must be a number .* got '20', which is str"),
    ({"age": [1.0, float("inf"), 2.0, 3.0]}, {}, "row 1: age must be a number .* got inf"),
    ({"age": [[1], [2], [3], [4]]}, {}, r"column 'age' holds list<.*, not numbers or words"),
    ({}, {"missing": {"age": 1, "weight": 1}}, "row 3: blood is empty"),
    ({}, {"missing": {"age": 1, "blood": "A"}, "indicators": None}, "row 1: weight is empty"),
    ({}, {"label": "illness"}, "unknown column in .*: 'illness'"),
    ({}, {"labels": None}, "classes is missing"),
    ({name: [] for name in PATIENTS}, {}, "there are columns but no row"),
]


@pytest.mark.parametrize(("change", "options", "told"), CHANGES)
def test_bad_values_are_refused_with_their_row(tmp_path, change, options, told):
    written = write_parquet(tmp_path / "d.parquet", PATIENTS | change)
    with pytest.raises(InvalidInput, match=told) as refusal:
        read_parquet(written, **DECLARED | options)
    assert "\n" not in str(refusal.value)


def test_files_of_other_kinds_are_named(tmp_path):
    (tmp_path / "t.parquet").write_text("a,b\n1,2\n")
    with pytest.raises(InvalidInput, match=r"t.parquet: not a Parquet file \(.*\)"):
        read_parquet(tmp_path / "t.parquet", classes=2)
    with pytest.raises(InvalidInput, match=r"cannot be read: .*No such file"):
        read_parquet(tmp_path / "nothing.parquet", classes=2)
    with pytest.raises(InvalidInput, match="is a directory; give one Parquet file"):
        read_parquet(tmp_path, classes=2)
    whole = write_parquet(tmp_path / "whole.parquet")
    (tmp_path / "cut.parquet").write_bytes(whole.read_bytes()[:200])
    with pytest.raises(InvalidInput, match="not a Parquet file"):
        read_parquet(tmp_path / "cut.parquet", classes=2)


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InvalidInput, match=r"pip install 'fedspend\[parquet\]'"):
        read_parquet(tmp_path / "x", classes=2)
