"""The list of golden files, which the writer writes and the test compares: one place.

Guarantee: every file is made from the running code alone, by a function without arguments; the
same code gives the same text, on every machine up to what `comparing` says.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from golden import commands, examples, helps, pages, plans, refusals, sentences

FILES = Path(__file__).parent / "files"
QUICK = 0.5  # seconds; what takes longer is for make test-full
# Of those that take no time, the folders and files.
QUICK_FOLDERS = ("help", "sentences")
QUICK_FILES = ("said/glossary.txt", "said/data.txt", "said/new.txt")


@dataclass(frozen=True)
class Case:
    """One golden file, by its name under `files`, and what it should hold."""

    name: str
    make: Callable[[], str]

    @property
    def path(self) -> Path:
        return FILES / self.name

    @property
    def quick(self) -> bool:
        return self.name.startswith(QUICK_FOLDERS) or self.name in QUICK_FILES


def _sentences_of(room: str) -> str:
    return sentences.by_place()[room]


def all_cases() -> list[Case]:
    return [
        Case("help/fedspend.txt", partial(helps.help_of, "")),
        *(Case(f"help/{name}.txt", partial(helps.help_of, name)) for name in helps.commands()),
        Case("sentences/all.txt", sentences.all_of_them),
        *(
            Case(f"sentences/{room}.txt", partial(_sentences_of, room))
            for room in sorted(sentences.by_place())
        ),
        *(Case(f"refusals/{name}.txt", partial(refusals.said_to, name)) for name in refusals.ASKED),
        *(Case(f"said/{name}.txt", partial(commands.said_in, name)) for name in commands.STORIES),
        *(Case(f"plans/{name}.txt", partial(plans.said_of, name)) for name in plans.kinds()),
        *(Case(f"examples/{name}.txt", partial(examples.done_with, name)) for name in examples.ALL),
        *(Case(f"pages/{name}.txt", partial(pages.page_of, name)) for name in pages.PAGES),
    ]
