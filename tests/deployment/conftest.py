"""Collected only by `make test-deployment`: these tests start servers and take minutes."""

import os

collect_ignore_glob = [] if os.environ.get("FEDSPEND_DEPLOYMENT") else ["test_*.py"]
