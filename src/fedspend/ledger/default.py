"""The ledger of this user, for real runs that name none.

Guarantee: real runs that name no ledger are all charged to the same one, so ten runs cannot spend a
budget ten times. Nothing is made here before a run is charged. A home directory that is known not
to last (none at all, not writable, in memory, or in a container's own layer) is refused, because a
ledger that vanishes gives every budget out again. What cannot be known from here: whether a disk is
wiped later, whether a home is a copy, and, without /proc (not Linux), what it is kept on.
"""

from __future__ import annotations

import os
from pathlib import Path

from fedspend.basics.files import sync_folder
from fedspend.errors import InvalidInput
from fedspend.ledger.storage import is_url, path_of
from fedspend.stored.files import LEDGER

VARIABLE = "FEDSPEND_LEDGER"
# file systems in memory, and layers over an image that are thrown away with the container
FLEETING = ("tmpfs", "ramfs", "rootfs", "overlay", "aufs", "fuse.fuse-overlayfs")
_MOUNTS = Path("/proc/self/mountinfo")
_INSTEAD = (
    f"name a ledger that lasts: --ledger (ledger= in Python), ledger.location in the config, or "
    f"{VARIABLE}, a file or postgresql://user@host/database"
)


def default_ledger() -> str:
    """Where real runs that name no ledger are charged; refuses a place that does not last."""
    given = os.environ.get(VARIABLE, "")
    if given:
        # the user chose it, so where it is kept is the user's own decision
        return given if is_url(given) else os.path.abspath(os.path.expanduser(path_of(given)))
    folder = data_folder()
    check_lasts(folder)
    return str(folder / "fedspend" / LEDGER.name)


def data_folder() -> Path:
    """The user's folder for data: XDG_DATA_HOME, or .local/share in the home directory."""
    stated, home = os.environ.get("XDG_DATA_HOME", ""), os.environ.get("HOME", "")
    if os.path.isabs(stated):  # the standard says that a relative one is to be ignored
        return Path(stated)
    if not os.path.isabs(home):
        raise InvalidInput(
            f"this run is charged to a ledger, and without a home directory (HOME is {home!r}) "
            f"there is no place for one; {_INSTEAD}"
        )
    if not Path(home).is_dir():
        raise InvalidInput(
            f"this run is charged to a ledger, but the home directory {home!r} does not exist; "
            f"{_INSTEAD}"
        )
    return Path(home) / ".local" / "share"


def check_lasts(folder: Path) -> None:
    """Refuse a folder that cannot be made or written to, or that is known not to last."""
    there = _existing(folder / "fedspend")
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise InvalidInput(
            f"this run is charged to a ledger, but {str(there)!r} cannot be written to; {_INSTEAD}"
        )
    kind = file_system(there)
    if kind in FLEETING:
        raise InvalidInput(
            f"this run is charged to a ledger, but {str(there)!r} is on {kind}, which is gone when "
            f"this machine or container is, and all budgets would be given out again; {_INSTEAD}"
        )


def file_system(path: Path) -> str | None:
    """The kind of file system that holds `path`; None where the system does not say."""
    try:
        lines = _MOUNTS.read_text(encoding="utf-8", errors="surrogateescape").splitlines()
    except OSError:
        return None
    real, found, depth = path.resolve(), None, -1
    for line in lines:
        left, _, right = line.partition(" - ")
        fields = left.split()
        if len(fields) < 5 or not right:
            continue
        point = Path(_unescaped(fields[4]))
        # of two mounts at one place, the later hides the earlier
        if real.is_relative_to(point) and len(point.parts) >= depth:
            found, depth = right.split()[0], len(point.parts)
    return found


def _unescaped(text: str) -> str:
    r"""A path as the kernel writes it: space, tab, line break and backslash are octal.

    >>> _unescaped("/home/a\\040b")
    '/home/a b'
    """
    for code, character in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        text = text.replace(code, character)
    return text


def _existing(path: Path) -> Path:
    """The deepest folder on the way to `path` that exists."""
    return next(one for one in (path, *path.parents) if one.exists())


def is_default(location: str) -> bool:
    """Whether this is the ledger in the user's data folder, whose folder we make ourselves."""
    if os.environ.get(VARIABLE):
        return False
    try:
        return location == str(data_folder() / "fedspend" / LEDGER.name)
    except InvalidInput:
        return False


def make_folder(location: str) -> None:
    """Make the private folder of the default ledger, just before the ledger itself."""
    folder = Path(location).parent
    folder.parent.mkdir(parents=True, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    sync_folder(folder.parent)
