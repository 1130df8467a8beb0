"""Seeded runs give what they gave in version 0.2.0.

Guarantee: the same bits, models and metrics, where `probe` gives the bytes that it gave when the
vectors were made; on other machines the same numbers up to rounding. Nothing is ever skipped.
"""

from __future__ import annotations

import numpy as np
import pytest
from before.v0_2 import runs
from before.v0_2.kept import marked
from before.v0_2.probed import ROUNDING, apart, check_same, machine, same_machine, vectors

TIPPED = 0.2  # of a COUNTED metric: rounding may tip over a row, or an update as long as its clip
SLOW = {
    *("records-rpdp-suggested-noise", "records-rpdp-small-cnn", "reference-regression"),
    "clientwise-two-workers",
}

pytestmark = [
    pytest.mark.filterwarnings("ignore::fedspend.errors.FedspendWarning"),
    pytest.mark.usefixtures("quick_verify"),  # what version 0.2.0 verified is in `test_plans`
]


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
        elif name in runs.COUNTED:
            assert np.abs(ours - theirs).max() <= TIPPED, f"{about}: {name}"
        else:
            assert apart(ours, theirs) <= ROUNDING, f"{about}: {name}"


def test_every_vector_belongs_to_a_run_and_every_run_has_one():
    stored = {name.rpartition("/")[0] for name in vectors() if name.endswith("/model")}
    assert stored == {*runs.CONFIGS, *runs.ARRAYS}
    assert stored >= SLOW


@pytest.mark.full(but_every=5)
@pytest.mark.parametrize("name", marked((*runs.CONFIGS, *runs.ARRAYS), SLOW))
def test_a_seeded_run_gives_the_bits_that_it_gave(name):
    model, metrics = runs.result_of(name)
    check_same(model, vectors()[f"{name}/model"], name)
    stored = vectors()[f"{name}/metrics"]
    check_metrics(metrics, stored, f"{name}, compared {machine()}")
    if same_machine():
        assert np.array_equal(metrics, stored, equal_nan=True), f"{name}: {metrics} is not {stored}"


def test_what_another_noise_would_give_is_noticed():
    """The comparison can fail: runs that differ in one option are further apart than rounding."""
    for name, other in (
        ("dp-fedavg", "distributed"),
        ("discrete", "discrete-distributed"),
        ("adaptive-clip", "idp-fedavg"),
    ):
        one, two = (vectors()[f"reference-{which}/model"] for which in (name, other))
        assert apart(one, two) > 100 * ROUNDING, name
