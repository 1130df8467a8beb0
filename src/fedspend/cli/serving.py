"""What the commands that serve a page have in common."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from fedspend.errors import InvalidInput

if TYPE_CHECKING:
    from fedspend.pages.serving import Site


def add_serving(add: Any) -> None:
    """The flags, through the `add_argument` of a parser."""
    add("--port", type=int, default=0, metavar="N", help="port on 127.0.0.1 (default: a free one)")
    add("--no-browser", action="store_true", help="print the address, and open no browser")
    add("--quiet", action="store_true", help="print nothing but errors and the address")


def check_port(port: int) -> None:
    if not 0 <= port <= 65535:
        raise InvalidInput(f"--port must be a number from 0 to 65535, got {port}")


def serve_until_interrupted(site: Site, args: argparse.Namespace) -> int:
    """Serve, print the address, open a browser, and wait for Ctrl-C."""
    from fedspend.pages.serving import open_browser, serving

    with serving(site, args.port) as served:
        print(served.address, flush=True)
        if not args.quiet:
            print("Only this machine can reach it. Stop it with Ctrl-C.", file=sys.stderr)
        if not args.no_browser:
            open_browser(served)
        try:
            served.forever()
        except KeyboardInterrupt:
            return 0
    return 0
