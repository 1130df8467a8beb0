"""Collected only by `make test-deployment`: these tests start servers and take minutes."""

import os

collect_ignore_glob = [] if os.environ.get("FEDSPEND_DEPLOYMENT") else ["test_*.py"]
# what takes longer is ordered by name: FEDSPEND_FAULTS=20 FEDSPEND_SILOS=1 make test-deployment
_ORDERED = {"test_faults.py": "FEDSPEND_FAULTS", "test_silos.py": "FEDSPEND_SILOS"}
collect_ignore = [name for name, variable in _ORDERED.items() if not os.environ.get(variable)]
