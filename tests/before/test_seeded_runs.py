"""Seeded runs stay what they were in version 0.1.0.

Guarantee: engines for single clients and for records give the same bits; the dense engine the same update up to rounding, and the
same accuracy over five seeds. Bits are compared where `probe` gives the bytes that it gave when the vectors were made; on other
machines numbers must agree up to rounding. Nothing is ever skipped.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from before import probe, runs

ROUNDING = 1e-5  # of the largest entry
ROWS = 0.02  # share of the evaluation rows, or of a cohort, that rounding may tip over
HALF_A_POINT = 0.005

pytestmark = pytest.mark.filterwarnings("ignore:noise on a class")


@cache
def vectors() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).parent / "vectors.npz") as file:
        return {name: file[name] for name in file.files}


@cache
def same_machine() -> bool:
    """Whether this machine has the kernels of the one where the vectors were made."""
    return probe.computed() == vectors()["probe"].tobytes() and str(torch.__version__) == str(vectors()["torch"])


@pytest.fixture(autouse=True)
def one_thread():
    """More threads add in another order."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def apart(found: np.ndarray, stored: np.ndarray) -> float:
    """The largest difference, in units of the largest entry."""
    assert found.shape == stored.shape
    difference = np.abs(found.astype(np.float64) - stored.astype(np.float64))
    if np.isnan(difference).any():
        return float("inf")
    return float(difference.max() / (np.abs(stored).max() or 1.0))


def check_metrics(found: np.ndarray, stored: np.ndarray, about: str) -> None:
    """Up to rounding: shares may move by a row, and a cohort is drawn before anything is rounded."""
    assert found.shape == stored.shape, about
    for number, name in enumerate(runs.METRICS):
        ours, theirs = found[:, number], stored[:, number]
        assert np.array_equal(np.isnan(ours), np.isnan(theirs)), f"{about}: {name}"
        if np.isnan(theirs).all():
            continue
        if name == "cohort":
            assert np.array_equal(ours, theirs), f"{about}: {name}"
        elif name in ("accuracy", "clipped_share"):
            assert np.nanmax(np.abs(ours - theirs)) <= (ROWS if name == "accuracy" else 0.2), f"{about}: {name}"
        else:
            assert apart(ours, theirs) <= ROUNDING, f"{about}: {name}"


def test_every_vector_belongs_to_a_run_and_every_run_has_one():
    stored = {name.rpartition("/")[0] for name in vectors() if name.endswith("/model")}
    assert stored == {*runs.EXACT, *runs.ARRAYS, *runs.DENSE}
    assert {name.removeprefix("accuracy/") for name in vectors() if name.startswith("accuracy/")} == {*runs.ACCURACY}


@pytest.mark.parametrize("name", [*runs.EXACT, *runs.ARRAYS])
def test_a_seeded_run_gives_the_bits_that_it_gave(name):
    model, metrics = runs.result_of(name)
    stored_model, stored_metrics = vectors()[f"{name}/model"], vectors()[f"{name}/metrics"]
    assert model.dtype == stored_model.dtype == np.float32
    if same_machine():
        assert np.array_equal(model, stored_model), (
            f"{name}: the model is {apart(model, stored_model):.1e} of its largest entry off"
        )
        assert np.array_equal(metrics, stored_metrics, equal_nan=True), f"{name}: {metrics} is not {stored_metrics}"
        return
    about = f"{name}, up to rounding, since this machine's probe differs ({probe.versions()}; it was {vectors()['versions']})"
    assert apart(model, stored_model) <= ROUNDING, about
    check_metrics(metrics, stored_metrics, about)


@pytest.mark.parametrize("name", runs.DENSE)
def test_one_round_of_the_dense_engine_gives_the_update_that_it_gave(name):
    model, metrics = runs.result_of(name)
    start = vectors().get(f"{name}/start", np.zeros_like(model))
    assert apart(model - start, vectors()[f"{name}/model"] - start) <= ROUNDING, name
    check_metrics(metrics, vectors()[f"{name}/metrics"], name)


@pytest.mark.parametrize("name", runs.ACCURACY)
def test_accuracy_of_the_dense_engine_over_five_seeds_is_what_it_was(name):
    found, stored = runs.accuracies(name), vectors()[f"accuracy/{name}"]
    assert abs(found.mean() - stored.mean()) <= HALF_A_POINT, f"{name}: {found} is not {stored}"
