from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspend.data import Dataset, from_arrays, load, sample
from fedspend.data.dataset import stratified
from fedspend.errors import InvalidInput

X = np.arange(12, dtype=np.float32).reshape(6, 2)
Y = np.array([0, 1, 2, 0, 1, 2])


def made(features=X, labels=Y, classes=3, test=(X, Y), **options) -> Dataset:
    return from_arrays(
        features, labels, classes=classes, test_features=test[0], test_labels=test[1], **options
    )


def with_value(value: float) -> np.ndarray:
    features = X.copy()
    features[4, 1] = value
    return features


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"labels": [0, 1, 2, 0, 3, 2]},
            r"labels\[4\] is 3; with 3 classes it must be between 0 and 2",
        ),
        ({"labels": [0, 1, -1, 0, 1, 2]}, r"labels\[2\] is -1"),
        ({"labels": [0, 1, 1.5, 0, 1, 2]}, r"labels\[2\] must be a whole number, got 1.5"),
        ({"labels": [0, np.nan, 1, 0, 1, 2]}, r"labels\[1\] must be a whole number, got nan"),
        ({"labels": list("abcabc")}, "labels must be whole numbers"),
        ({"labels": Y[:5]}, "features has 6 rows and labels 5"),
        ({"labels": Y[:, None]}, "shapes"),
        ({"features": with_value(np.nan)}, r"features\[4, 1\] is nan"),
        ({"features": with_value(np.inf)}, r"features\[4, 1\] is inf"),
        ({"features": X.astype(np.float64) * 1e300}, r"features\[0, 1\] is inf"),
        ({"features": X.astype(str)}, "features must be numbers"),
        ({"features": np.arange(6)}, "shapes"),
        ({"features": X[:0], "labels": Y[:0]}, "features is empty"),
        ({"features": X[:, :0]}, "features is empty"),
        ({"test": (X[:0], Y[:0])}, "test_features is empty"),
        ({"test": (X[:, :1], Y)}, r"a test row has shape \(1,\), a training row \(2,\)"),
        ({"test": (X, Y + 1)}, r"test_labels\[2\] is 3"),
        ({"test": (None, None)}, "there are no test rows"),
        ({"classes": 1}, "classes must be a whole number of at least 2"),
        ({"client_of": [1, 2]}, "one client for each of 6 rows"),
        ({"bounds": [1, 1]}, "the lower one first"),
        ({"bounds": [0, np.nan]}, "finite number"),
        ({"bounds": [0]}, "two numbers, lowest and highest"),
        ({"bounds": {"2": [0, 1]}}, "bounds name column '2'"),
        ({"validation": 1.0}, "validation must be at least 0 and below 1"),
        ({"validation": -0.1}, "validation must be at least 0 and below 1"),
        ({"validation": float("nan")}, "validation must be a finite number"),
        ({"validation": 0.01}, "takes 0 of 6 rows"),
        ({"validation": 0.99}, "takes 6 of 6 rows"),
    ],
)
def test_bad_input_names_row_and_value(change, message):
    with pytest.raises(InvalidInput, match=message) as refusal:
        made(**change)
    assert "\n" not in str(refusal.value)


def test_types_are_checked_where_nothing_converts_them():
    with pytest.raises(InvalidInput, match="float32"):
        Dataset("x", X.astype(np.float64), Y, X, Y, 3)  # type: ignore[arg-type]


def test_a_late_nan_is_found_in_its_row():
    features = np.zeros((5000, 1, 2, 2), dtype=np.float32)
    features[4999, 0, 1, 0] = np.nan
    with pytest.raises(InvalidInput, match=r"features\[4999, 0, 1, 0\] is nan"):
        made(features, np.zeros(5000, dtype=int), 2, (features[:2], [0, 1]))


def test_bounds_scale_to_unit_and_cut_off_what_lies_outside():
    whole = made(bounds=[2, 6])
    np.testing.assert_allclose(whole.features[:, 0], [0, 0, 0.5, 1, 1, 1])
    column = made(bounds={"1": [1, 11]})
    np.testing.assert_array_equal(column.features[:, 0], X[:, 0])
    np.testing.assert_allclose(column.features[:, 1], np.arange(6) / 5)


def test_scaling_one_row_does_not_look_at_the_others():
    alone = made(X[:1], Y[:1], bounds=[0, 11]).features
    np.testing.assert_array_equal(alone, made(bounds=[0, 11]).features[:1])


def test_validation_takes_training_rows_in_place_of_test_rows():
    rows = np.arange(100, dtype=np.float32)[:, None]
    labels = np.repeat([0, 1], [80, 20])
    data = made(
        rows,
        labels,
        2,
        (rows[:5] + 1000, labels[:5]),
        client_of=np.arange(100),
        validation=0.25,
        seed=3,
    )
    together = np.sort(np.concatenate([data.features, data.test_features]).ravel())
    np.testing.assert_array_equal(together, rows.ravel())
    np.testing.assert_array_equal(np.bincount(data.test_labels), [20, 5])
    np.testing.assert_array_equal(data.client_of, data.features.ravel())
    again = made(rows, labels, 2, (None, None), validation=0.25, seed=3)
    np.testing.assert_array_equal(again.features, data.features)
    other = made(rows, labels, 2, (None, None), validation=0.25, seed=4)
    assert not np.array_equal(other.features, data.features)


@pytest.mark.full
@given(
    st.lists(st.integers(0, 4), min_size=3, max_size=80), st.floats(0.2, 0.8), st.integers(0, 2**31)
)
def test_a_hold_out_is_in_proportion(labels, share, seed):
    array = np.array(labels)
    held = stratified(array, share, np.random.default_rng(seed))
    assert held.sum() == round(share * len(labels))
    for label in range(5):
        assert (
            abs(held[array == label].sum() - held.sum() / len(labels) * (array == label).sum())
            < 1 + 1e-6
        )


def test_a_sample_is_stratified_and_does_not_follow_the_seed():
    whole = load("synthetic", seed=3, examples=400, classes=4)
    part = sample(whole, share=0.1, test_share=0.5)
    assert len(part.labels) == 40
    assert abs(np.bincount(part.labels) / 40 - np.bincount(whole.labels) / 400).max() < 0.02
    assert len(part.test_labels) == round(0.5 * len(whole.test_labels))
    np.testing.assert_array_equal(part.features, sample(whole, share=0.1).features)
    assert part.public
    np.testing.assert_array_equal(sample(whole).features, whole.features)
    with pytest.raises(InvalidInput, match="takes 0 of 400"):
        sample(whole, share=1e-6)


def test_a_sample_keeps_each_rows_client_and_budget():
    rows = np.arange(200, dtype=np.float32)[:, None]
    budget = 1.0 + np.arange(200)
    whole = Dataset(
        "own",
        rows,
        np.arange(200) % 4,
        rows,
        np.arange(200) % 4,
        4,
        np.arange(200) % 7,
        budget_of=budget,
    )
    part = sample(whole, share=0.25)
    assert len(part.labels) == 50
    np.testing.assert_array_equal(part.budget_of, 1.0 + part.features[:, 0])
    np.testing.assert_array_equal(part.client_of, part.features[:, 0].astype(int) % 7)
    with pytest.raises(
        InvalidInput,
        match=r"budget_of has shape \(200,\); it needs one budget for each of 199 rows",
    ):
        Dataset(
            "own",
            rows[1:],
            np.zeros(199, dtype=int),
            rows,
            np.zeros(200, dtype=int),
            4,
            budget_of=budget,
        )
