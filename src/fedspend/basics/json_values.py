"""JSON that somebody else may have written, cut off or changed.

Guarantee: what is damaged is refused with one line that names the file; it is never guessed at.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.errors import InvalidInput, unreadable


def read_object(path: Path) -> dict[str, Any] | None:
    """The JSON object in a file; None if there is no such file."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, RecursionError):
        raise InvalidInput(f"{path} is damaged: it is not readable JSON") from None
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} is damaged: it is not a JSON object")
    return content


def number(value: Any) -> float | None:
    """A finite number, or None for anything else.

    >>> number(2), number("2"), number(float("nan")), number(True)
    (2.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
