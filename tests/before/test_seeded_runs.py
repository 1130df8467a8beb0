"""Seeded runs stay what they were in version 0.1.0.

Guarantee: engines for single clients and for records give the same bits; the dense engine the same
update up to rounding, and the same accuracy over five seeds. Bits are compared where `probe` gives
the bytes that it gave when the vectors were made; on other machines numbers must agree up to
rounding. Nothing is ever skipped.
"""

from __future__ import annotations

import numpy as np
import pytest
from before import runs, since
from before.probed import ROUNDING, apart, check_same, machine, same_machine, vectors

# Rounding may tip over a few evaluation rows, or one update that is as long as its clip.
TIPPED = {"accuracy": 0.02, "clipped_share": 0.2}
HALF_A_POINT = 0.005
# Mended since: an empty client's bit is 0, and was +1/2, so that zeroing it moved the sum of bits.
MENDED = ("reference-adaptive-clip-with-empty-clients", "dense-adaptive-clip-with-empty-clients")

pytestmark = [
    pytest.mark.full,
    pytest.mark.filterwarnings("ignore:noise on a class"),
    pytest.mark.usefixtures("quick_verify"),  # test_old_files verifies plans
]


@pytest.fixture(autouse=True)
def _as_it_was(request):
    """Improved since, and put back here: see `since`."""
    name = str(getattr(request.node, "callspec", None) and request.node.callspec.params.get("name"))
    discrete = "discrete" in name or "bits" in name
    with since.as_it_was(discrete=discrete):
        yield


def check_metrics(found: np.ndarray, stored: np.ndarray, about: str) -> None:
    """Up to rounding; a cohort is drawn before anything is rounded."""
    assert found.shape == stored.shape, about
    for number, name in enumerate(runs.METRICS):
        ours, theirs = found[:, number], stored[:, number]
        assert np.array_equal(np.isnan(ours), np.isnan(theirs)), f"{about}: {name}"
        ours, theirs = ours[~np.isnan(ours)], theirs[~np.isnan(theirs)]
        if not theirs.size:
            continue
        if name == "cohort":
            assert np.array_equal(ours, theirs), f"{about}: {name}"
        elif name in TIPPED:
            assert np.abs(ours - theirs).max() <= TIPPED[name], f"{about}: {name}"
        else:
            assert apart(ours, theirs) <= ROUNDING, f"{about}: {name}"


def test_every_vector_belongs_to_a_run_and_every_run_has_one():
    stored = {name.rpartition("/")[0] for name in vectors() if name.endswith("/model")}
    assert stored == {*runs.EXACT, *runs.ARRAYS, *runs.DENSE}
    assert {
        name.removeprefix("accuracy/") for name in vectors() if name.startswith("accuracy/")
    } == {*runs.ACCURACY}


@pytest.mark.parametrize(
    "name", [name for name in (*runs.EXACT, *runs.ARRAYS) if name not in MENDED]
)
def test_a_seeded_run_gives_the_bits_that_it_gave(name):
    model, metrics = runs.result_of(name)
    check_same(model, vectors()[f"{name}/model"], name)
    stored = vectors()[f"{name}/metrics"]
    check_metrics(metrics, stored, f"{name}, compared {machine()}")
    if same_machine():
        assert np.array_equal(metrics, stored, equal_nan=True), f"{name}: {metrics} is not {stored}"


@pytest.mark.parametrize("name", [name for name in runs.DENSE if name not in MENDED])
def test_one_round_of_the_dense_engine_gives_the_update_that_it_gave(name):
    model, metrics = runs.result_of(name)
    start = vectors().get(f"{name}/start", np.zeros_like(model))
    assert apart(model - start, vectors()[f"{name}/model"] - start) <= ROUNDING, name
    check_metrics(metrics, vectors()[f"{name}/metrics"], name)


@pytest.mark.parametrize("name", runs.ACCURACY)
def test_accuracy_of_the_dense_engine_over_five_seeds_is_what_it_was(name):
    found, stored = runs.accuracies(name), vectors()[f"accuracy/{name}"]
    assert abs(found.mean() - stored.mean()) <= HALF_A_POINT, f"{name}: {found} is not {stored}"


def test_an_empty_client_no_longer_moves_an_adapted_clip():
    model, _ = runs.result_of(MENDED[0])
    assert apart(model, vectors()[f"{MENDED[0]}/model"]) > 0.01
