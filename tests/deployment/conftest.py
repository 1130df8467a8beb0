"""Collected only by `make test-deployment`: these tests start servers and take minutes."""

import os
from pathlib import Path

import pytest

collect_ignore_glob = [] if os.environ.get("FEDSPEND_DEPLOYMENT") else ["test_*.py"]
# what takes longer is ordered by name: FEDSPEND_FAULTS=20 FEDSPEND_SILOS=1 make test-deployment
_ORDERED = {"test_faults.py": "FEDSPEND_FAULTS", "test_silos.py": "FEDSPEND_SILOS"}
collect_ignore = [name for name, variable in _ORDERED.items() if not os.environ.get(variable)]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """They take minutes, and nobody takes them for quick tests."""
    for item in items:
        if item.path.parent == Path(__file__).parent:
            item.add_marker(pytest.mark.full)
