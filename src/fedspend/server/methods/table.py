"""The registry of methods. Does not need torch, because planning uses it too."""

from __future__ import annotations

from fedspend.basics.registry import Registry
from fedspend.server.methods import record_level
from fedspend.server.methods.adaptive_clip import ADAPTIVE_CLIP
from fedspend.server.methods.base import MethodEntry
from fedspend.server.methods.fedavg import FEDAVG, PRIVACY_FREE
from fedspend.server.methods.planned import (
    AE_DPFL,
    DP_FEDAVG,
    DP_FEDSGD,
    IDP_FEDAVG,
    TIME_ADAPTIVE,
)

METHODS: Registry[MethodEntry] = Registry(
    "method",
    FEDAVG,
    DP_FEDAVG,
    IDP_FEDAVG,
    TIME_ADAPTIVE,
    ADAPTIVE_CLIP,
    DP_FEDSGD,
    AE_DPFL,
    *record_level.RECORD_METHODS,
    PRIVACY_FREE,
    section="method",
)


DEFAULT = TIME_ADAPTIVE.name  # where nothing names or implies another: it follows any plan


def methods_for(unit: str | None) -> tuple[str, ...]:
    """The methods that protect this unit; for None, those that protect nothing.

    >>> methods_for("record")
    ('rpdp', 'minimum', 'dropout', 'filter')
    """
    return tuple(entry.name for entry in METHODS if entry.unit == unit)


def protects_records(name: str) -> bool:
    return name in methods_for("record")
