"""Models by name, with a seeded start, and the check that your own module must pass. Needs torch (the `train` extra)."""

from __future__ import annotations

from fedspend.models.building import NAMES, build
from fedspend.models.checking import check_module

__all__ = ["NAMES", "build", "check_module"]
