from __future__ import annotations

import numpy as np
import pytest

from fedspend.data import load
from fedspend.errors import InvalidInput

CSV = "age,label,hospital,part,dose\n20,0,east,train,1\n60,1,west,train,2\n\n40,1,east,test,3\n"


@pytest.fixture
def csv(tmp_path):
    path = tmp_path / "data.csv"
    path.write_text(CSV)

    def read(content: str | bytes = CSV, **options):
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return load(
            "csv", **({"path": path, "classes": 2, "client": "hospital", "split": "part"} | options)
        )

    return read


def test_columns_become_features_labels_clients_and_split(csv):
    data = csv()
    assert data.features.tolist() == [[20, 1], [60, 2]]
    assert data.labels.tolist() == [0, 1]
    assert data.test_features.tolist() == [[40, 3]]
    assert data.client_of is not None
    assert data.client_of.tolist() == ["east", "west"]
    assert not data.public


def test_bounds_are_public_and_cut_off(csv):
    assert csv(bounds={"age": [0, 50]}).features.tolist() == [[np.float32(0.4), 1], [1, 2]]
    assert csv(bounds=[0, 100], columns=["age"]).features.ravel().tolist() == [
        np.float32(0.2),
        np.float32(0.6),
    ]


def test_a_second_file_holds_the_test_rows(csv, tmp_path):
    (tmp_path / "test.csv").write_text("dose,age,label\n7,8,1\n")
    data = csv(CSV, split=None, columns=["age", "dose"], test_path=tmp_path / "test.csv")
    assert data.test_features.tolist() == [[8, 7]]
    assert len(data.labels) == 3


def test_usual_names_need_not_be_given_and_are_never_features(csv):
    usual = CSV.replace("hospital", "client").replace("part", "split")
    given, found = csv(), csv(usual, client="client", split="split")
    np.testing.assert_array_equal(found.features, given.features)
    assert found.client_of is not None
    plain = csv("age,label\n1,0\n2,1\n", client="client", split="split", validation=0.5)
    assert plain.client_of is None
    assert plain.features.shape == (1, 1)


def test_labels_may_be_words_from_a_stated_list(csv):
    data = csv(
        "x,label\n1,sick\n2,well\n3,sick\n4,well\n",
        classes=["well", "sick"],
        client=None,
        split=None,
        validation=0.5,
    )
    assert sorted([*data.labels, *data.test_labels]) == [0, 0, 1, 1]
    assert data.classes == 2


BAD = [
    ("", {}, r"data.csv: the file is empty"),
    ("age,label\n", {}, "there is a header but no row below it"),
    (
        CSV.replace("60", "sixty"),
        {},
        r"data.csv:3: age must be a number \(or declare its levels: .*\), got 'sixty'",
    ),
    (CSV.replace("60", "nan"), {}, r"data.csv:3: age must be a number .* got 'nan'"),
    (CSV.replace("60", "inf"), {}, r"data.csv:3: age must be a number"),
    (CSV.replace("60", "1e300"), {}, r"data.csv:3: age must be a number"),
    (CSV.replace("60", ""), {}, r"data.csv:3: age is empty"),
    (
        CSV.replace("40,1", "40,2"),
        {},
        r"data.csv:5: label must be a whole number between 0 and 1, got '2'",
    ),
    (CSV.replace("40,1", "40,0.5"), {}, r"data.csv:5: label must be a whole number"),
    (CSV.replace("40,1", "40,yes"), {}, r"data.csv:5: label must be a whole number"),
    (CSV, {"classes": ["0", "no"]}, r"data.csv:3: label '1' is not among the classes 0, no"),
    (CSV.replace("east,test", ",test"), {}, r"data.csv:5: hospital is empty"),
    (
        CSV.replace("test", "validation"),
        {},
        r"data.csv:5: part must be train or test, got 'validation'",
    ),
    (CSV.replace("60,1,", "60,1,2,"), {}, r"data.csv:3: 6 cells where the header has 5"),
    (CSV.replace("dose", "age"), {}, r"data.csv:1: column 'age' is listed twice"),
    (CSV.replace("dose", ""), {}, r"data.csv:1: column 5 has no name"),
    (CSV.replace("west", '"west'), {}, r"data.csv:\d: not valid CSV"),
    (CSV.encode().replace(b"west", b"w\xffst"), {}, r"data.csv:3: not UTF-8 text"),
    (CSV, {"label": "lable"}, "unknown column in .*data.csv: 'lable'; did you mean 'label'?"),
    (CSV, {"client": "hospitals"}, "did you mean 'hospital'"),
    (CSV, {"client": "label"}, "must be different columns"),
    (CSV, {"columns": ["agee"]}, "did you mean 'age'"),
    (CSV, {"columns": []}, "at least one column"),
    (CSV, {"columns": ["label"]}, "at least one column other than label"),
    (
        CSV,
        {"bounds": {"agee": [0, 1]}},
        r"unknown column in .*data.csv: 'agee', which bounds names; did you mean 'age'\? \(its "
        r"columns are age, label, hospital, part, dose\)",
    ),
    (
        CSV,
        {"categories": {"blood": ["A", "B"]}},
        r"'blood', which categories names \(its columns are age, label, hospital, part, dose\)",
    ),
    (CSV, {"other": ["blood"]}, "'blood', which other names"),
    (CSV, {"missing": {"blood": 1}}, "'blood', which missing names"),
    (CSV, {"columns": ["blood"]}, r"'blood' \(its columns are age, label, hospital, part, dose\)"),
    (CSV, {"bounds": {"label": [0, 1]}}, "unknown feature column in bounds: 'label'"),
    (CSV, {"bounds": {"age": [1, 0]}}, "bounds of age must be two numbers, the lower one first"),
    (CSV, {"bounds": "0-1"}, "two numbers, lowest and highest"),
    (CSV, {"classes": None}, "classes is missing.*leak"),
    (CSV, {"classes": ["a", "a"]}, "at least two different labels"),
    (CSV, {"classes": 1}, "classes must be a whole number of at least 2"),
    (CSV, {"test_path": "x.csv"}, "give either test_path or split"),
    (CSV, {"split": None, "columns": ["age"]}, "there are no test rows"),
    (CSV.replace("test", "train"), {}, "test_features is empty"),
    (CSV, {"path": "/nowhere/data.csv"}, "/nowhere/data.csv: cannot be read"),
    (CSV, {"sheet": 1}, "unknown option of data set 'csv': 'sheet'"),
    (CSV, {"scale": "auto"}, "would learn from private rows"),
]


@pytest.mark.parametrize(("content", "options", "message"), BAD)
def test_bad_csv_names_the_line(csv, content, options, message):
    with pytest.raises(InvalidInput, match=message) as refusal:
        csv(content, **options)
    assert "\n" not in str(refusal.value)


# --- NPZ ------------------------------------------------------------------------------------------

ARRAYS = {
    "features": np.arange(8, dtype=np.uint8).reshape(4, 2),
    "label": np.array([0, 1, 0, 1]),
    "site": np.array(["a", "a", "b", "b"]),
    "test_features": np.array([[0, 7]]),
    "test_label": np.array([1]),
}


@pytest.fixture
def npz(tmp_path):
    def read(change=None, **options):
        path = tmp_path / "data.npz"
        arrays = {
            key: value for key, value in (ARRAYS | (change or {})).items() if value is not None
        }
        np.savez(path, **arrays)
        return load("npz", **({"path": path, "classes": 2, "client": "site"} | options))

    return read


def test_arrays_are_read_and_scaled(npz):
    data = npz(bounds=[0, 7])
    np.testing.assert_allclose(data.features, ARRAYS["features"] / 7, rtol=1e-6)
    assert data.test_features.tolist() == [[0, 1]]
    assert data.client_of is not None
    assert data.client_of.tolist() == ["a", "a", "b", "b"]
    held = npz({"test_features": None, "test_label": None}, validation=0.5, client=None)
    assert (len(held.labels), len(held.test_labels), held.client_of) == (2, 2, None)


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"label": None}, {}, "unknown array in .*data.npz: 'label'"),
        ({"test_label": None}, {}, "unknown array in .*data.npz: 'test_label'"),
        ({}, {"client": "sites"}, "did you mean 'site'"),
        (
            {"features": np.array([["x"], ["y"], ["z"], ["w"]])},
            {},
            "data.npz: features must be numbers",
        ),
        ({"features": np.array([object()] * 4)}, {}, "not an npz file of plain arrays"),
        ({"label": np.array([0, 1, 2, 0])}, {}, r"labels\[2\] is 2"),
        ({}, {"classes": None}, "classes is missing"),
        ({}, {"classes": ["a", "b"]}, "classes must be a number for an npz file"),
        ({"test_features": None}, {}, "there are no test rows"),
        ({}, {"path": "/nowhere/data.npz"}, "cannot be read"),
    ],
)
def test_bad_npz(npz, change, options, message):
    with pytest.raises(InvalidInput, match=message):
        npz(change, **options)


def test_other_files_under_the_name_npz(tmp_path):
    path = tmp_path / "data.npz"
    path.write_text("hello")
    with pytest.raises(InvalidInput, match="not an npz file"):
        load("npz", path=path, classes=2)
    with path.open("wb") as file:
        np.save(file, np.ones(3))
    with pytest.raises(InvalidInput, match="a single array"):
        load("npz", path=path, classes=2)


def test_arrays_and_tables_that_are_taken_for_each_other(tmp_path, npz):
    npz({})
    found = next(tmp_path.glob("*.npz"))
    with pytest.raises(InvalidInput, match=r'an NPZ file of arrays .*name = "npz" reads one'):
        load("csv", path=found, classes=2)
    (tmp_path / "rows.csv").write_text(CSV)
    with pytest.raises(InvalidInput, match=r'rows.csv: .* text; .* CSV file, say name = "csv"'):
        load("npz", path=tmp_path / "rows.csv", classes=2)


def test_a_table_with_many_columns_lists_some(tmp_path):
    names = [f"c{n}" for n in range(30)]
    (tmp_path / "wide.csv").write_text(",".join(names) + "\n" + ",".join("0" * 30) + "\n")
    with pytest.raises(InvalidInput, match=r"c18, c19 and 10 more\); correct the name"):
        load("csv", path=tmp_path / "wide.csv", classes=2, label="sick")


# --- folders of NPY files -------------------------------------------------------------------------


@pytest.fixture
def npy(tmp_path):
    def read(change=None, **options):
        folder = tmp_path / "arrays"
        folder.mkdir(exist_ok=True)
        arrays = ARRAYS | {"features": np.arange(8, dtype=np.float32).reshape(4, 2)}
        arrays["test_features"] = np.zeros((1, 2), dtype=np.float32)
        for key, value in (arrays | (change or {})).items():
            np.save(folder / f"{key}.npy", value)
        return load("npy", **({"path": folder, "classes": 2, "client": "site"} | options))

    return read


def test_arrays_in_a_folder_are_mapped_and_never_written_to(npy, tmp_path):
    data = npy()
    assert isinstance(data.features.base, np.memmap) or isinstance(data.features, np.memmap)
    assert data.client_of.tolist() == ["a", "a", "b", "b"]
    data.features[0, 0] = 99
    assert np.load(tmp_path / "arrays" / "features.npy")[0, 0] == 0


@pytest.mark.parametrize(
    ("change", "options", "message"),
    [
        ({"features": np.zeros((4, 2))}, {}, "features.npy holds float64, .* save it as float32"),
        (
            {"features": np.asfortranarray(np.zeros((4, 2), np.float32))},
            {},
            "float32 in column order",
        ),
        ({"features": np.full((4, 2), np.nan, np.float32)}, {}, r"features\[0, 0\] is nan"),
        ({}, {"bounds": [0, 1]}, "unknown option of data set 'npy': 'bounds'"),
        ({}, {"path": "/nowhere"}, "there is no such folder; give a folder of .npy files"),
        ({"label": np.array([0, 1, 2, 0])}, {}, r"labels\[2\] is 2"),
        ({}, {"classes": None, "labels": ["a", "b"]}, "label must be words, since labels lists"),
        (
            {"label": np.array(["a", "b", "c", "a"])},
            {"classes": None, "labels": ["a", "b"]},
            r"label\[2\] 'c' is not among the classes a, b",
        ),
        ({"site": np.array([1.5] * 4)}, {}, "client ids must be text or whole numbers"),
    ],
)
def test_bad_folders_of_arrays(npy, change, options, message):
    with pytest.raises(InvalidInput, match=message):
        npy(change, **options)


def test_a_folder_with_a_damaged_file_names_it(npy, tmp_path):
    npy()
    whole = tmp_path / "arrays" / "features.npy"
    whole.write_bytes(whole.read_bytes()[:140])
    with pytest.raises(InvalidInput, match=r"features.npy: not an npy file of a plain array"):
        load("npy", path=tmp_path / "arrays", classes=2, client="site")


def test_labels_in_arrays_may_be_words_from_a_declared_list(npy):
    data = npy(
        {"label": np.array(["no", "yes", "no", "yes"]), "test_label": np.array(["yes"])},
        classes=None,
        labels=["no", "yes"],
    )
    assert data.labels.tolist() == [0, 1, 0, 1]
    assert data.test_labels.tolist() == [1]
