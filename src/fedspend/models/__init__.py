"""Models by name, with a seeded start, and the check that your own module must pass. Needs torch
(the `train` extra).
"""

from __future__ import annotations

from fedspend.models.building import MODELS, build
from fedspend.models.checking import check_module

__all__ = ["MODELS", "build", "check_module"]
