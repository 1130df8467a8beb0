"""What is declared of a table: levels, bounds, missing cells, labels, separators."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspend.basics.csv_rows import read_table
from fedspend.data.tables import read_csv
from fedspend.errors import InvalidInput

PATIENTS = (
    "site,age,blood,weight,sick\n"
    "north,20,A,60.5,no\n"
    "north,60,B,?,yes\n"
    "south,,AB,80,yes\n"
    "south,150,0,70,no\n"
)
LEVELS = {"blood": ["0", "A", "B"]}
DECLARED = {
    "label": "sick",
    "labels": ["no", "yes"],
    "client": "site",
    "bounds": {"age": [0, 100]},
    "categories": LEVELS,
    "other": ["blood"],
    "missing": {"age": 50, "weight": 70},
    "indicators": ["weight"],
}


@pytest.fixture
def read(tmp_path):
    def reader(content: str | bytes = PATIENTS, **options):
        path = tmp_path / "data.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_csv(path, **options)

    return reader


def test_each_row_is_what_its_cells_and_the_declarations_say(read):
    """By hand: age by its bounds (50 where missing), 0, A, B, other, weight, weight is missing."""
    rows = read(**DECLARED)
    np.testing.assert_allclose(
        rows.features,
        [
            [0.2, 0, 1, 0, 0, 60.5, 0],
            [0.6, 0, 0, 1, 0, 70, 1],
            [0.5, 0, 0, 0, 1, 80, 0],
            [1.0, 1, 0, 0, 0, 70, 0],
        ],
        rtol=1e-6,
    )
    assert rows.features.dtype == np.float32
    assert rows.labels.tolist() == [0, 1, 1, 0]
    assert (rows.classes, rows.clients) == (2, ("north", "south"))


def test_columns_that_are_not_used_are_not_even_read(read):
    rows = read(**DECLARED | {"columns": ["blood"], "bounds": None, "missing": None}
                | {"indicators": None})  # fmt: skip
    assert rows.features.shape == (4, 4)


def test_a_level_called_other_takes_what_is_not_listed(read):
    rows = read(
        "x,label\nred,0\nblue,1\n", classes=2, categories={"x": ["red", "other"]}, other=["x"]
    )
    assert rows.features.tolist() == [[1, 0], [0, 1]]


@pytest.mark.parametrize("cells", ["True,False", "true,false", "TRUE,FALSE"])
@pytest.mark.parametrize("declared", ["False,True", "false,true"])
def test_true_and_false_are_the_same_however_a_program_spells_them(read, cells, declared):
    names = declared.split(",")
    rows = read(f"x,label\n{cells}\n", labels=names, categories={"x": names})
    assert rows.features.tolist() == [[0, 1]]
    assert rows.labels.tolist() == [0]


def test_spellings_of_true_that_are_declared_are_different_levels(read):
    rows = read("x,label\ntrue,0\nTrue,1\n", classes=2, categories={"x": ["True", "true"]})
    assert rows.features.tolist() == [[0, 1], [1, 0]]


def test_a_missing_level_may_be_declared_or_shown_by_an_indicator(read):
    content = "x,label\nred,0\nNA,1\n"
    levels = {"x": ["red", "blue"]}
    assert read(content, classes=2, categories=levels, missing={"x": "blue"}).features.tolist() == [
        [1, 0],
        [0, 1],
    ]
    assert read(content, classes=2, categories=levels, indicators=["x"]).features.tolist() == [
        [1, 0, 0],
        [0, 0, 1],
    ]
    # where NA is itself a level, it is not missing
    levels = {"x": ["red", "NA"]}
    assert read(content, classes=2, categories=levels, missing={"x": "red"}).features.tolist() == [
        [1, 0],
        [0, 1],
    ]


def test_other_words_for_a_missing_cell_are_declared(read):
    content = "x,label\n1,0\n-,1\nNA,1\n"
    with pytest.raises(InvalidInput, match=r"data.csv:4: x must be a number .* got 'NA'"):
        read(content, classes=2, missing={"x": 0}, missing_marks=["-"])
    rows = read(content, classes=2, missing={"x": 9}, missing_marks=["-", "NA"])
    assert rows.features.ravel().tolist() == [1, 9, 9]


def test_words_that_mean_nothing_here_are_refused_where_no_rule_is_declared(read):
    with pytest.raises(InvalidInput, match=r"data.csv:4: age is empty"):
        read(**DECLARED | {"missing": {"weight": 70}})


def test_test_rows_and_public_rows_are_read_by_the_same_declarations(read, tmp_path):
    (tmp_path / "test.csv").write_text("blood;weight;age;sick\nA;1,5;10;yes\n")
    (tmp_path / "public.csv").write_text("weight,age,blood\n2,20,Z\n")
    rows = read(
        **DECLARED, test_path=tmp_path / "test.csv", public_path=tmp_path / "public.csv"
    )  # each file has its own separator
    np.testing.assert_allclose(rows.test_features, [[0.1, 0, 1, 0, 0, 1.5, 0]], rtol=1e-6)
    np.testing.assert_allclose(rows.public_features, [[0.2, 0, 0, 0, 1, 2, 0]], rtol=1e-6)
    assert rows.test_labels.tolist() == [1]


cells = st.one_of(
    st.sampled_from(["", "NA", "?", "A", "B", "0", "Z", "nan", "1e3", "-7", "50"]),
    st.floats(allow_nan=False, allow_infinity=False, width=32).map(repr),
    st.text("abcAB019.-", min_size=1, max_size=4),
)


@given(st.lists(st.tuples(cells, cells), min_size=1, max_size=8), st.integers(0, 7))
def test_a_row_is_a_function_of_its_own_cells(tmp_path_factory, lines, which):
    """Read in company and alone, a row has the same bits; or the file is refused."""
    folder = tmp_path_factory.mktemp("rows")
    options = {
        "classes": 2,
        "categories": {"b": ["A", "B", "0"]},
        "other": ["b"],
        "bounds": {"a": [-10, 10]},
        "missing": {"a": 3, "b": "0"},
        "indicators": ["a", "b"],
    }

    def features(some):
        path = folder / "data.csv"
        path.write_text("a,b,label\n" + "".join(f"{a},{b},1\n" for a, b in some))
        try:
            return read_csv(path, **options).features
        except InvalidInput:
            return None

    together = features(lines)
    one = which % len(lines)
    alone = features([lines[one]])
    if together is not None:
        assert alone is not None
        assert np.isfinite(together).all()
        assert together[one].tobytes() == alone[0].tobytes()


BAD = [
    ({"labels": ["no", "maybe"]}, r"data.csv:3: sick 'yes' is not among the classes no, maybe"),
    ({"labels": ["no"]}, "at least two different labels"),
    ({"labels": None}, r'classes is missing: .*labels = \["no", "yes"\]'),
    ({"classes": 3}, "classes is 3, but labels lists 2"),
    ({"other": None}, r"data.csv:4: blood 'AB' is not among its levels 0, A, B; .*other = "),
    ({"other": ["age"]}, "other names column 'age', which has no levels"),
    ({"other": ["bloood"]}, "did you mean 'blood'"),
    ({"categories": None}, r"data.csv:2: blood must be a number .*, got 'A'|has no levels"),
    ({"categories": {"blood": "AB"}}, "levels of blood must be a list"),
    ({"categories": {"blood": ["A", "A"]}}, "list of different words"),
    ({"categories": {"blood": []}}, "list of different words"),
    ({"bounds": {"blood": [0, 1]}}, "column 'blood' has bounds and levels"),
    ({"bounds": {"age": [0, math.nan]}}, "bounds of age must be a finite number"),
    ({"missing": {"age": math.nan, "weight": 1}}, "missing value of age must be a finite number"),
    ({"missing": {"age": "old", "weight": 1}}, "missing value of age must be a number"),
    ({"missing": {"age": 1e39, "weight": 1}}, "missing value of age is too large"),
    (
        {"missing": {"blood": "C", "age": 1, "weight": 1}},
        "unknown level of blood in missing: 'C'; choose one of 0, A, B",
    ),
    ({"missing": {"age": 1}}, r"indicators name column 'weight', .* missing = {weight = 0}"),
    ({"missing": None, "indicators": None}, r"data.csv:3: weight must be a number|age is empty"),
    ({"columns": ["age", "age"]}, "columns must be different"),
    ({"columns": ["age", "sick"]}, "at least one column other than sick"),
    ({"label": "illness"}, "unknown column in .*data.csv: 'illness'"),
    ({"client": "sick"}, "must be different columns"),
]


@pytest.mark.parametrize(("change", "told"), BAD)
def test_declarations_that_do_not_fit_are_refused_in_one_line(read, change, told):
    with pytest.raises(InvalidInput, match=told) as refusal:
        read(**DECLARED | change)
    assert "\n" not in str(refusal.value)


# --- how a file is written ------------------------------------------------------------------------


@pytest.fixture
def table(tmp_path):
    def reader(content: str | bytes, **options):
        path = tmp_path / "data.csv"
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        return read_table(path, **options)

    return reader


@pytest.mark.parametrize(
    ("mark", "told"), [(",", "commas"), (";", "semicolons"), ("\t", "tabs"), ("|", "vertical bars")]
)
def test_the_header_shows_what_separates_columns(table, mark, told):
    found = table(f'\ufeff\n"a{mark}b"{mark}c\n1{mark}"x{mark}y"\n')
    assert found.header == (f"a{mark}b", "c")
    assert found.columns["c"] == (f"x{mark}y",)
    assert found.recognised == f"columns separated by {told}"


def test_one_column_needs_no_separator(table):
    assert table("a\n1\n2\n").columns == {"a": ("1", "2")}


def test_rows_do_not_decide_what_separates_columns(table):
    """The same header is read the same way, whatever is below it."""
    assert table("a;b\n1,5;2\n").columns["a"] == ("1,5",)
    with pytest.raises(InvalidInput, match=r"data.csv:2: 1 cells where the header has 2.*semicol"):
        table("a;b\n1,5\n")


def test_a_header_that_allows_two_readings_is_refused_and_a_declaration_settles_it(table):
    content = "a;b,c\n1;2,3\n"
    with pytest.raises(
        InvalidInput,
        match=r"data.csv:1: the first line has commas and semicolons.*separator = \",\"",
    ):
        table(content)
    assert table(content, separator=";").header == ("a", "b,c")
    assert table(content, separator=",").header == ("a;b", "c")


def test_decimal_commas_are_read_where_something_else_separates(table):
    found = table("a;b\n1,5;2\n-0,25;3\n")
    assert found.numerals("a") == ("1.5", "-0.25")
    assert table('a,b\n"1,5",2\n').numerals("a") == ("1,5",)  # no number, and refused as such
    assert table('a,b\n"1,5",2\n', decimal=",").numerals("a") == ("1.5",)
    assert table("a;b\n1.5;2\n").numerals("a") == ("1.5",)


def test_numbers_that_could_be_two_are_refused_until_the_mark_is_declared(table):
    with pytest.raises(InvalidInput, match=r"data.csv:2: a '1,500' .* decimals or thousands"):
        table("a;b\n1,500;2\n").numerals("a")
    assert table("a;b\n1,500;2\n", decimal=",").numerals("a") == ("1.500",)
    with pytest.raises(InvalidInput, match=r"data.csv:3: a has '1.500', .* on line 2"):
        table("a;b\n2,5;2\n1.500;2\n").numerals("a")
    with pytest.raises(InvalidInput, match=r"'1.500' has a point, but the decimal mark"):
        table("a;b\n2,5;2\n1.500;2\n", decimal=",").numerals("a")
    # a single comma that cannot mark thousands settles the column
    assert table("a;b\n1,500;2\n0,5;2\n").numerals("a") == ("1.500", "0.5")


@pytest.mark.parametrize(
    ("content", "options", "told"),
    [
        (b"PK\x03\x04rest", {}, r"a spreadsheet \(xlsx, ods\)"),
        (b"\xd0\xcf\x11\xe0rest", {}, "an old spreadsheet"),
        (b"PAR1rest", {}, "a Parquet file"),
        (b"\x1f\x8brest", {}, "compressed with gzip"),
        ("a,b\n1,2\n".encode("utf-16"), {}, "text in UTF-16"),
        ("name,b\nJürgen,2\n".encode("latin-1"), {}, r"data.csv:2: not UTF-8"),
        ("a,b\n1,\0\n", {}, r"data.csv:2: not UTF-8 text"),
        ("", {}, "the file is empty"),
        ("\n \n", {}, "the file is empty|no name"),
        ("a;b\n", {}, "a header but no row"),
        ("a;a\n1;2\n", {}, "column 'a' is listed twice"),
        ("a;;b\n1;2;3\n", {}, "column 2 has no name"),
        ("a\tb\n1\n", {}, "1 cells where the header has 2, .* tabs"),
        ("a,b\n1,2\n", {"separator": ";;"}, "separator must be one character"),
        ("a,b\n1,2\n", {"separator": '"'}, "separator must be one character"),
        ("a,b\n1,2\n", {"decimal": "x"}, 'decimal must be "." or ","'),
        ("a,b\n1,2\n", {"separator": ",", "decimal": ","}, "must be different"),
    ],
)
def test_files_that_are_no_table_are_refused_in_one_line(table, content, options, told):
    with pytest.raises(InvalidInput, match=told) as refusal:
        table(content, **options)
    assert "\n" not in str(refusal.value)
    assert "data.csv" in str(refusal.value) or "must be" in str(refusal.value)


def test_a_directory_and_a_file_that_may_not_be_read_are_not_damaged(tmp_path, monkeypatch):
    with pytest.raises(InvalidInput, match="is a directory; give a CSV file"):
        read_table(tmp_path)
    with pytest.raises(InvalidInput, match="cannot be read: No such file"):
        read_table(tmp_path / "nothing.csv")

    def forbidden(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("pathlib.Path.read_bytes", forbidden)
    with pytest.raises(InvalidInput, match="cannot be read: Permission denied"):
        read_table(tmp_path / "secret.csv")


def test_budgets_with_semicolons_and_decimal_commas_are_read(tmp_path):
    from fedspend.budgets.csv_file import read_budgets_csv

    path = tmp_path / "budgets.csv"
    path.write_text("client;epsilon\na;0,5\nb;2\n")
    assert read_budgets_csv(path).epsilons.tolist() == [0.5, 2]
    path.write_bytes(b"PK\x03\x04\x14\x00")
    with pytest.raises(InvalidInput, match=r"budgets.csv: this is a spreadsheet"):
        read_budgets_csv(path)
