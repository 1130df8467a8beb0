"""Refuse a file that cannot be written before any work is done; save a plan where none is
overwritten.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fedspend.errors import InvalidInput

if TYPE_CHECKING:
    from fedspend.planning.protocol import AnyPlan


def check_writable(flag: str, name: str) -> None:
    """`name`, given with `flag`, must be a file in a folder that is there and can be written to."""
    path = Path(name)
    if path.is_dir():
        raise InvalidInput(f"{flag} {name!r} is a directory; name a file in it")
    if not path.parent.is_dir():
        raise InvalidInput(
            f"{flag} {name!r}: there is no directory {str(path.parent)!r}; make it first"
        )
    if not os.access(path.parent, os.W_OK):
        raise InvalidInput(f"{flag} {name!r}: directory {str(path.parent)!r} cannot be written to")


def save_plan(plan: AnyPlan, output: str | None, force: bool) -> bool:
    """Save the plan unless the very same one is there already; True if the file was written."""
    if output is None:
        return False
    path = Path(output)
    if path.exists() and not force:
        if stored_hash(path) == plan.hash:
            return False
        raise InvalidInput(
            f"--output {output!r} exists and holds something else; choose another name or add "
            "--force"
        )
    plan.save(path)
    return True


def stored_hash(path: Path) -> str | None:
    """The hash of the plan in a file, or None if there is no sound plan in it."""
    from fedspend.planning.protocol import load_any_plan

    try:
        return load_any_plan(path).hash
    except InvalidInput:
        return None
