"""Opens the ledger of a run directory that may be somebody else's, to look at it.

Guarantee: a run directory decides nothing about what is opened. Only a ledger that the caller names
is, or a file that is truly inside the directory, with all symbolic links followed; so a directory
from somebody else makes nobody connect to a host of its choice, or read a file elsewhere. Ledgers
in files are read from a copy (`sqlite.SQLiteCopy`): the directory stays as it is, to the byte.
"""

from __future__ import annotations

from pathlib import Path

from fedspend.errors import InvalidInput, Refused
from fedspend.ledger.book import Ledger
from fedspend.ledger.storage import is_url


def open_to_look(stored: str, folder: Path, named: str | None, *, project: str) -> Ledger:
    """The ledger of the run in `folder`, which names it `stored`; `named` is where the caller says
    that it is.
    """
    place = named or _inside(stored, folder)
    found = Ledger.find(place, project=project, copied=True)
    if found is None:
        instead = "restore it" if named is None else "name where it is now with --ledger"
        raise Refused(
            f"the ledger {place} of the run in {folder} is gone, so nothing can be said about its "
            f"account; {instead}"
        )
    return found


def _inside(stored: str, folder: Path) -> str:
    """The path of a ledger in the run directory; refuses any other."""
    if not is_url(stored):
        try:
            path = (folder / stored).resolve()
            if path.is_relative_to(folder.resolve()):
                return str(path)
        except (OSError, RuntimeError, ValueError):  # links in a circle, or no path at all
            pass
    # shown so that it can be copied: whatever it is, it commands neither the terminal nor the shell
    shown = "".join(one if one.isprintable() and one != "'" else "?" for one in stored)
    raise InvalidInput(
        f"the run in {folder} asks for a ledger outside of its directory, which is opened only if "
        f"you name it; if it is yours, add --ledger '{shown}'"
    )
