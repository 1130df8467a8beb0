"""A bar that shows how far something is: in a notebook, in a terminal, or as lines in a file.

Guarantee: it shows what it is handed and keeps nothing; nothing that it does changes a result.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from html import escape
from typing import Any

from fedspend.basics.progress import OnProgress

Move = Callable[[int, int, str], None]  # (steps that are done, steps in all, what to say)


def in_notebook() -> bool:
    """Whether this code runs in a cell of a notebook, which can show HTML."""
    shell = getattr(sys.modules.get("IPython"), "get_ipython", lambda: None)()
    return shell is not None and getattr(shell, "kernel", None) is not None


@contextmanager
def live_bar(title: str, wanted: bool | None = None) -> Iterator[Move]:
    """A bar; `wanted` None: if somebody is watching. Where nobody is, True prints lines."""
    if wanted is False or (wanted is None and not (in_notebook() or sys.stderr.isatty())):
        yield lambda *_: None
    elif in_notebook():
        yield _in_notebook(title)
    elif sys.stderr.isatty():
        with terminal_bar(title) as move:
            yield move
    else:
        yield lambda _done, _total, text: print(text, file=sys.stderr, flush=True)


@contextmanager
def terminal_bar(title: str) -> Iterator[Move]:
    """A bar on standard error, gone when it is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def move(done: int, total: int, text: str) -> None:
            bar.update(task, completed=done, total=total, description=text)

        yield move


def _in_notebook(title: str) -> Move:
    from importlib import import_module

    display: Any = import_module("IPython.display")
    began = time.monotonic()
    place = display.display(display.HTML(bar_html(0, 0, title)), display_id=True)

    def move(done: int, total: int, text: str) -> None:
        spent = time.monotonic() - began
        left = f"  {spent * (total - done) / done:.0f} s left" if 0 < done < total else ""
        place.update(display.HTML(bar_html(done, total, text + left)))

    return move


def bar_html(done: int, total: int, text: str) -> str:
    """
    >>> bar_html(1, 4, "round 1/4")
    '<progress max="4" value="1" style="width: 16em"></progress> <code>round 1/4</code>'
    """
    how_far = f' max="{total}" value="{done}"' if total else ""
    return f'<progress{how_far} style="width: 16em"></progress> <code>{escape(text)}</code>'


@contextmanager
def counting_bar(
    title: str, wanted: bool | OnProgress | None = None
) -> Iterator[OnProgress | None]:
    """A bar for steps that have nothing to say but their number; your own function, if given."""
    if callable(wanted):
        yield wanted
        return
    with live_bar(title, wanted) as move:
        yield lambda done, total: move(done, total, f"{title} {done}/{total}")
