"""What determines a record's spending besides its own rate, checked once and passed along as one
value.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspend.accounting.calibration import check_rate
from fedspend.accounting.conversion import check_delta
from fedspend.accounting.rdp import NOISE_RANGE
from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput, finite_number, whole_number


@dataclass(frozen=True)
class Terms:
    """In each of `rounds` rounds, a client joins with probability `client_rate` and then takes
    `local_steps` noisy steps.
    """

    delta: float
    rounds: int
    local_steps: int
    client_rate: float
    noise_multiplier: float

    @classmethod
    def checked(
        cls, *, delta: Any, rounds: Any, local_steps: Any, client_rate: Any, noise_multiplier: Any
    ) -> Terms:
        noise = finite_number("noise_multiplier", noise_multiplier)
        if not NOISE_RANGE[0] <= noise <= NOISE_RANGE[1]:
            raise InvalidInput(
                f"noise_multiplier must lie in [{NOISE_RANGE[0]:g}, {NOISE_RANGE[1]:g}], got "
                f"{noise_multiplier!r}"
            )
        return cls(
            check_delta(delta),
            whole_number("rounds", rounds, 1),
            whole_number("local_steps", local_steps, 1),
            check_rate("client_rate", client_rate),
            noise,
        )


def check_budgets(epsilons: Any) -> FloatArray:
    """One budget per record, each positive and finite; an error names the record's number."""
    return _numbers("a budget", epsilons, lambda x: x > 0, "positive and finite")


def check_rates(rates: Any) -> FloatArray:
    """Rates in [0, 1]; an error names the record's number."""
    return _numbers("a rate", rates, lambda x: (x >= 0) & (x <= 1), "from 0 to 1")


def _numbers(what: str, values: Any, good: Any, wanted: str) -> FloatArray:
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"{what} must be a number, and there must be one per record; got {_short(values)}"
        ) from None
    if array.size == 0:
        raise InvalidInput(
            f"there are no records: give at least one number, got shape {array.shape}"
        )
    bad = ~(np.isfinite(array) & good(array)).ravel()
    if bad.any():
        at = int(bad.argmax())
        where = f" (record number {at + 1})" if array.size > 1 else ""
        more = f"; {int(bad.sum()) - 1} more like it" if bad.sum() > 1 else ""
        raise InvalidInput(
            f"{what} must be {wanted}, got {float(array.ravel()[at])!r}{where}{more}"
        )
    return array


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
