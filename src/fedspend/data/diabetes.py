"""Diabetes (Efron et al. 2004), bundled with scikit-learn: a small table for regression.

Ten columns of age, sex, body mass index, blood pressure and blood serum; the target is how far the
disease has gone a year later, in hundreds.
"""

from __future__ import annotations

import numpy as np

from fedspend.data.dataset import Rows
from fedspend.errors import InvalidInput
from fedspend.noise.randomness import Randomness
from fedspend.tasks.kinds import NUMBERS

_TESTED = 92  # of 442 rows
_SCALE = 20.0  # the bundled columns have a norm of 1 each


def load_diabetes() -> Rows:
    """350 rows for training and 92 for testing, always the same."""
    try:
        from sklearn.datasets import load_diabetes as bundled  # type: ignore[import-untyped,unused-ignore]
    except ImportError:
        raise InvalidInput(
            "data set 'diabetes' comes with scikit-learn, which is not installed; pip install "
            "'fedspend[train]'"
        ) from None
    columns, progress = bundled(return_X_y=True)
    order = Randomness(0).generator("data", 5).permutation(len(progress))
    features = (_SCALE * columns[order]).astype(np.float32)
    target = (progress[order] / 100).astype(np.float32)
    return Rows(
        features[_TESTED:],
        target[_TESTED:],
        1,
        features[:_TESTED],
        target[:_TESTED],
        kind=NUMBERS,
    )
