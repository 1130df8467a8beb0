"""Choosing settings: on rows that may be looked at, or on private rows at an accounted price."""

from fedspend.tuning.entry import tune

__all__ = ["tune"]
