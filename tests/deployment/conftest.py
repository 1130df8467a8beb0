"""Collected only by `make test-deployment`: these tests start servers and take minutes."""

import os

collect_ignore_glob = [] if os.environ.get("FEDSPEND_DEPLOYMENT") else ["test_*.py"]
# some 20 seconds for each fault: FEDSPEND_FAULTS=20 make test-deployment
collect_ignore = [] if os.environ.get("FEDSPEND_FAULTS") else ["test_faults.py"]
