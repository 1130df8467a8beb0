"""`python -m fedspend` is `fedspend`."""

import sys

from fedspend.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
