"""Work that several processes share, through files alone.

Guarantee: what is claimed is done by one process at a time; a claim ends with the process that has
it, however that ends. Processes know of each other only by the folder, so that the same command,
started twice, shares the work too.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TypeVar

from fedspend.basics.files import one_at_a_time
from fedspend.errors import Refused

FOLDER = ".claims"
PAUSE = 2.0  # seconds, when other processes have all that is left

Item = TypeVar("Item")


@contextmanager
def claimed(folder: Path, name: str) -> Iterator[bool]:
    """Whether this piece of work is ours; if not, another process is at it."""
    place = folder / FOLDER / name
    place.mkdir(parents=True, exist_ok=True)
    with ExitStack() as held:
        try:
            held.enter_context(one_at_a_time(place))
        except Refused:
            yield False
        else:
            yield True


def shared(
    folder: Path, items: Sequence[Item], name: Callable[[Item], str], do: Callable[[Item], None]
) -> None:
    """Every item once, in this order, but for those that another process is at: they come again at
    the end, because that process may have claimed only a part of what they need. `do` is to look
    whether anything is left of an item.
    """
    while items:
        later = []
        for item in items:
            with claimed(folder, name(item)) as ours:
                if ours:
                    do(item)
                else:
                    later.append(item)
        if len(later) == len(items):
            time.sleep(PAUSE)
        items = later
