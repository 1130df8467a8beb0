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


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
