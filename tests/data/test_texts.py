"""Columns of text as tokens, and targets that are numbers or several answers."""

from __future__ import annotations

import numpy as np
import pytest

from fedspend.data.tables import read_csv
from fedspend.errors import InvalidInput
from fedspend.tasks.kinds import IGNORED, NUMBERS, SEVERAL, TOKENS

LINES = "speaker,line,mood\nann,abca,0\nbob,b c,1\nbob,,1\n"


@pytest.fixture
def read(tmp_path):
    def reader(content: str = LINES, **options):
        path = tmp_path / "lines.csv"
        path.write_text(content)
        return read_csv(path, **{"client": "speaker"} | options)

    return reader


CHARACTERS = {"text": "line", "vocabulary": "abc ", "max_length": 3}


def test_the_next_character_is_to_be_predicted_where_the_label_is_the_text(read):
    """By hand: a = 1, b = 2, c = 3, space = 4; 0 is padding, and no target counts after the end."""
    rows = read(label="line", **CHARACTERS)
    assert rows.features.tolist() == [[1, 2, 3], [2, 4, 0], [0, 0, 0]]
    assert rows.labels.tolist() == [[2, 3, 1], [4, 3, IGNORED], [IGNORED] * 3]
    assert (rows.kind, rows.classes) == (TOKENS, 5)
    assert rows.features.dtype == np.float32
    assert rows.labels.dtype == np.int64


def test_texts_are_classified_by_another_column(read):
    rows = read(label="mood", classes=2, **CHARACTERS)
    assert rows.features.tolist() == [[1, 2, 3], [2, 4, 3], [0, 0, 0]]
    assert rows.labels.tolist() == [0, 1, 1]


def test_words_and_one_token_for_everything_else(read):
    rows = read(
        "speaker,line,mood\nann,to be or,0\nbob,not to,1\n",
        label="mood",
        classes=2,
        text="line",
        vocabulary=["to", "be"],
        max_length=4,
        other=["line"],
    )
    assert rows.features.tolist() == [[1, 2, 3, 0], [3, 1, 0, 0]]


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"vocabulary": "ab"}, r"lines.csv:2: line has 'c', which is not in the vocabulary"),
        ({"vocabulary": None}, "vocabulary is missing"),
        ({"max_length": None}, "max_length is missing"),
        ({"max_length": 0}, "max_length must be a whole number of at least 1"),
        ({"vocabulary": "aa"}, "at least two different tokens"),
        ({"vocabulary": ["a b", "c"]}, "words without space"),
        ({"text": None}, 'vocabulary is for a column of text; say which: text = "COLUMN"'),
        ({"text": "lines", "label": "mood", "classes": 2}, "'lines'; did you mean 'line'"),
        ({"columns": ["line"]}, "columns is for columns of numbers and words"),
        ({"other": ["mood"]}, "other names column 'mood'"),
        ({"label": "mood", "classes": 2, "client": "line"}, "has another purpose"),
    ],
)
def test_what_is_not_declared_of_a_text_is_refused(read, options, told):
    with pytest.raises(InvalidInput, match=told) as refusal:
        read(**{"label": "line"} | CHARACTERS | options)
    assert "\n" not in str(refusal.value)


def test_a_text_is_a_function_of_its_own_cell(read):
    together = read(label="line", **CHARACTERS)
    alone = read("speaker,line,mood\nbob,b c,1\n", label="line", **CHARACTERS)
    assert together.features[1].tobytes() == alone.features[0].tobytes()
    assert together.labels[1].tobytes() == alone.labels[0].tobytes()


# --- numbers, and several answers -----------------------------------------------------------------

TABLE = "client,x,price,size,red,round\na,1,50,2,1,0\nb,2,300,4,0,1\n"


def test_a_number_is_cut_off_and_scaled_by_its_declared_bounds(read):
    rows = read(TABLE, client="client", label="price", label_bounds=[0, 200], columns=["x"])
    assert rows.labels.tolist() == [0.25, 1.0]
    assert (rows.kind, rows.classes, rows.labels.dtype) == (NUMBERS, 1, np.float32)
    bounds = {"price": [0, 400], "size": [0, 4]}
    rows = read(TABLE, client="client", label=["price", "size"], label_bounds=bounds, columns=["x"])
    assert rows.labels.tolist() == [[0.125, 0.5], [0.75, 1.0]]


def test_several_columns_are_several_answers(read):
    rows = read(TABLE, client="client", label=["red", "round"], columns=["x"])
    assert rows.labels.tolist() == [[1, 0], [0, 1]]
    assert (rows.kind, rows.classes) == (SEVERAL, 2)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"label": "price"}, r"label_bounds = \[0, 100\]"),
        ({"label": "price", "label_bounds": [1, 1]}, "the lower one first"),
        ({"label": "price", "label_bounds": [0, 1], "classes": 2}, "declare one of the two"),
        ({"label": "price", "label_bounds": {"prize": [0, 1]}}, "did you mean 'price'"),
        (
            {"label": ["price", "size"], "label_bounds": {"price": [0, 1]}},
            "label column 'size' has no bounds",
        ),
        ({"label": ["red", "price"]}, r"lines.csv:2: price '50' is not among the classes 0, 1"),
        ({"label": ["red", "red"]}, "label must name different columns"),
        ({"label": ["red", "round"], "classes": 3}, "classes is 3, but label names 2 columns"),
        ({"label": ["red", "round"], "labels": ["a", "b", "c"]}, "labels lists two words"),
    ],
)
def test_targets_that_are_not_declared_are_refused(read, options, told):
    with pytest.raises(InvalidInput, match=told):
        read(TABLE, client="client", columns=["x"], **options)
