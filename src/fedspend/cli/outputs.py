"""Output files: refused early if they cannot be written, and no other plan is overwritten."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from fedspend.basics.files import check_writable as check_writable
from fedspend.errors import FedspendError, InvalidInput

if TYPE_CHECKING:
    from fedspend.planning.protocol import AnyPlan

PLOTS = (".png", ".svg", ".pdf")


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
    except FedspendError:
        return None


def ending(name: str, flag: str, endings: tuple[str, ...]) -> str:
    """The ending of a file's name, which must be one of these."""
    found = Path(name).suffix.lower()
    if found not in endings:
        raise InvalidInput(f"{flag} {name!r} must end in {', '.join(endings)}")
    return found
