"""Output files: refused early if they cannot be written, and no other plan is overwritten."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from fedspend.errors import InvalidInput

if TYPE_CHECKING:
    from fedspend.planning.protocol import AnyPlan


def check_writable(flag: str, name: str) -> None:
    """`name`, given with `flag`, must be a file in an existing directory that can be written to."""
    path = Path(name)
    if path.is_dir():
        raise InvalidInput(f"{flag} {name!r} is a directory; name a file in it")
    if not path.parent.is_dir():
        raise InvalidInput(
            f"{flag} {name!r}: there is no directory {str(path.parent)!r}; create it first"
        )
    if not os.access(path.parent, os.W_OK):
        raise InvalidInput(
            f"{flag} {name!r}: directory {str(path.parent)!r} cannot be written to; name another"
        )


def save_plan(plan: AnyPlan, output: str | None, force: bool) -> bool:
    """Save the plan unless the same one is already there; True if the file was written."""
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
    """The hash of the plan in a file, or None if it holds no valid plan."""
    from fedspend.planning.protocol import load_any_plan

    try:
        return load_any_plan(path).hash
    except InvalidInput:
        return None
