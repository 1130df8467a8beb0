"""Whether two configs mean the same by the numbers of a row; nothing of it depends on the rows."""

from __future__ import annotations

import numpy as np
import pytest

from fedspend.data.loading import read
from fedspend.data.meaning import WHERE, Agreement, parts_of, summary

ROWS = "age,blood,dose,sick\n20,A,1,no\n60,B,,yes\n"
HOW = {
    "columns": ["age", "blood", "dose"],
    "bounds": {"age": [0, 100], "dose": [0, 5]},
    "categories": {"blood": ["A", "B"]},
    "missing": {"dose": 2},
    "label": "sick",
    "labels": ["no", "yes"],
}


@pytest.fixture
def said(tmp_path):
    path = tmp_path / "rows.csv"

    def made(rows=ROWS, features="none", **changes):
        path.write_text(rows)
        return summary(read("csv", path=path, **(HOW | changes)), features)

    return made


def differing(one, other):
    return [part for part, digest in parts_of(one).items() if parts_of(other).get(part) != digest]


@pytest.mark.parametrize(
    "same",
    [
        {"rows": "age,blood,dose,sick\n33,B,4,yes\n"},
        {"rows": "sick,dose,age,blood\nno,1,20,A\n"},
        {"bounds": {"dose": [0.0, 5.0], "age": [0.0, 1e2]}},
        {"classes": 2},
        {"missing_marks": ["-"]},
    ],
    ids=["rows", "order in the file", "spelling", "counted", "marks"],
)
def test_the_same_declarations_mean_the_same_whatever_the_rows_are(said, same):
    assert said(**same) == said()


@pytest.mark.parametrize(
    ("changes", "parts"),
    [
        ({"columns": ["dose", "blood", "age"]}, ["columns"]),
        ({"bounds": {"age": [0, 120], "dose": [0, 5]}}, ["bounds"]),
        ({"bounds": {"age": [0, 100]}}, ["bounds"]),
        ({"categories": {"blood": ["B", "A"]}}, ["levels"]),
        ({"other": ["blood"]}, ["levels", "shape"]),
        ({"missing": {"dose": 0}}, ["missing"]),
        ({"indicators": ["dose"]}, ["missing", "shape"]),
        ({"labels": ["yes", "no"]}, ["labels"]),
        ({"label": ["sick"]}, ["labels", "shape"]),
        ({"features": "gabor"}, ["features"]),
        ({"rows": ROWS.replace("sick", "ill"), "label": "ill"}, []),  # one name is as good
    ],
)
def test_a_difference_is_found_where_it_is(said, changes, parts):
    assert differing(said(), said(**changes)) == parts


def test_several_labels_must_come_in_one_order(said):
    rows = "age,a,b\n20,0,1\n30,1,0\n"
    terms = {"columns": ["age"], "bounds": None, "categories": None, "missing": None}
    one, other = (
        said(rows, **terms, labels=None, label=names) for names in (["a", "b"], ["b", "a"])
    )
    assert differing(one, other) == ["label"]


def test_who_has_gone_no_longer_says_what_rows_mean():
    ours = Agreement("columns=1")
    ours.heard("north", "columns=1 scale=2")
    assert "than client 'north' does, in scale" in ours.difference("columns=1 scale=3")
    ours.forget("north")
    assert ours.difference("columns=1 scale=3") == ""
    assert "than this server does, in columns" in ours.difference("columns=2")


def test_without_stated_columns_the_header_counts(said):
    other = "dose,blood,age,sick\n1,A,20,no\n"
    assert differing(said(columns=None), said(other, columns=None)) == ["columns"]
    assert said(columns=None) == said()


def test_numbers_and_texts_are_told_apart_too(said):
    numbers = {"labels": None, "columns": ["age"], "bounds": [0, 9], "categories": None}
    numbers |= {"missing": None, "label": "dose", "rows": "age,dose\n1,2\n"}
    assert differing(
        said(**numbers, label_bounds=[0, 9]), said(**numbers, label_bounds=[0, 8])
    ) == ["labels"]
    texts = {"columns": None, "bounds": None, "categories": None, "missing": None}
    texts |= {"text": "line", "max_length": 3, "rows": "line,sick\nab,no\n"}
    one, other = (said(**texts, vocabulary=letters) for letters in ("abc", "bac"))
    assert differing(one, other) == ["levels"]
    spoken = texts | {"label": "line", "labels": None}
    one, other = (said(**spoken, vocabulary=letters) for letters in ("abc", "bac"))
    assert differing(one, other) == ["levels"]


def arrays(folder, shape=(2, 3), **options):
    path = folder / "rows.npz"
    np.savez(path, features=np.ones(shape, np.float32), label=np.zeros(shape[0], np.int64))
    return summary(read("npz", path=path, **({"classes": 2} | options)), "none")


def test_arrays_are_compared_by_shape_and_scale(said, tmp_path):
    plain = arrays(tmp_path)
    assert set(parts_of(plain)) == {"scale", "shape", "features"}
    assert arrays(tmp_path, shape=(5, 3)) == plain
    assert differing(plain, arrays(tmp_path, shape=(2, 4))) == ["shape"]
    assert differing(plain, arrays(tmp_path, classes=3)) == ["shape"]
    assert differing(plain, arrays(tmp_path, bounds=[0, 255])) == ["scale"]
    by_column = arrays(tmp_path, bounds={"1": [0, 2]})
    assert differing(by_column, arrays(tmp_path, bounds={"1": [0, 3]})) == ["scale"]
    # a table of the same shape: what arrays do not state is not compared
    table = said(ROWS.replace(",,", ",1,"), columns=["age", "blood"], bounds=None, missing=None)
    assert Agreement(table).difference(plain) == ""
    assert "in shape" in Agreement(table).difference(arrays(tmp_path, shape=(2, 4)))


def test_arrays_and_images_with_words_as_labels_state_them(tmp_path):
    folder = tmp_path / "arrays"
    folder.mkdir()
    np.save(folder / "features.npy", np.ones((2, 3), np.float32))
    np.save(folder / "label.npy", np.array(["no", "yes"]))
    one, other = (
        summary(read("npy", path=folder, labels=names), "none")
        for names in (["no", "yes"], ["yes", "no"])
    )
    assert differing(one, other) == ["labels"]
    pillow = pytest.importorskip("PIL.Image")
    place = tmp_path / "images" / "north" / "no"
    place.mkdir(parents=True)
    pillow.new("L", (4, 4)).save(place / "one.png")
    how = {"path": tmp_path / "images", "image_size": [1, 4, 4]}
    images = summary(read("images", **how, labels=["no", "yes"]), "none")
    assert parts_of(images)["labels"] == parts_of(one)["labels"]
    turned = summary(read("images", **how, labels=["yes", "no"]), "none")
    assert differing(images, turned) == ["labels"]
    smaller = summary(read("images", **(how | {"image_size": [1, 2, 2]}), labels=["no", "yes"]), "")
    assert "shape" in differing(images, smaller)


def test_who_spoke_first_is_named(said):
    ours = Agreement("")
    ours.heard("north", said())
    assert ours.difference(said()) == ""
    found = ours.difference(said(bounds=None, labels=["yes", "no"]))
    assert found == (
        "declares its data otherwise than client 'north' does, in bounds, labels: compare "
        "data.bounds; data.labels, data.classes and data.label_bounds of the two configs, and make "
        "them the same"
    )
    # nothing of what a stranger may send is quoted
    assert ours.difference("bounds=\x1b[31m nonsense =labels") == (
        "declares its data otherwise than client 'north' does, in bounds: compare data.bounds of "
        "the two configs, and make them the same"
    )
    assert set(parts_of(said())) == set(WHERE) - {"scale"}
