"""Callbacks that hear how far a long computation has got.

Guarantee: a callback is told, never asked: nothing that it does can change a result.
"""

from __future__ import annotations

from collections.abc import Callable

OnProgress = Callable[[int, int], None]  # (steps that are done, steps in all)
