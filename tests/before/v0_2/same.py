"""Whether a document says what another one said."""

from __future__ import annotations

import math
from typing import Any


def differences(found: Any, stored: Any, tolerance: float, at: str = "") -> list[str]:
    """Where `found` says something else than `stored`, with numbers up to a relative tolerance.
    Later versions may say more.
    """
    if isinstance(stored, dict) and isinstance(found, dict):
        missing = [f"{at}/{key}: is not said any more" for key in stored if key not in found]
        return missing + [
            one
            for key in stored
            if key in found
            for one in differences(found[key], stored[key], tolerance, f"{at}/{key}")
        ]
    if isinstance(stored, list) and isinstance(found, list):
        if _are_runs(stored) and _are_runs(found):
            found, stored = _unrolled(found), _unrolled(stored)
        if len(found) != len(stored):
            return [f"{at}: {len(found)} in place of {len(stored)}"]
        return [
            one
            for number, (ours, theirs) in enumerate(zip(found, stored, strict=True))
            for one in differences(ours, theirs, tolerance, f"{at}/{number}")
        ]
    if _is_number(stored) and _is_number(found) and float in (type(stored), type(found)):
        close = math.isclose(found, stored, rel_tol=tolerance, abs_tol=tolerance)
        return [] if close else [f"{at}: {found!r}, and it was {stored!r}"]
    return [] if found == stored else [f"{at}: {found!r}, and it was {stored!r}"]


def _are_runs(value: list[Any]) -> bool:
    """Whether it is a column of a plan: values, and how often each comes in a row. Where a function
    rounds otherwise, values that were equal may differ in their last digit.
    """
    return bool(value) and all(
        isinstance(one, list) and len(one) == 2 and type(one[0]) is float and type(one[1]) is int
        for one in value
    )


def _unrolled(runs: list[Any]) -> list[float]:
    return [value for value, times in runs for _ in range(times)]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
