"""Whether noise is as strong as planned."""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import stats


def has_deviation(sample: Any, deviation: float = 1.0, level: float = 1e-7) -> bool:
    """Whether Gaussian noise has this deviation, as far as so many draws can tell; of noise that
    does, it says no with a chance of `level`.
    """
    values = np.asarray(sample, dtype=np.float64) / deviation
    low, high = stats.chi2.ppf([level / 2, 1 - level / 2], values.size)
    return bool(low <= (values**2).sum() <= high)
