"""Columns of text as tokens, by a declared vocabulary and a declared length.

Guarantee: which tokens there are and how long a text may be is declared, never read from rows. A
text becomes numbers by itself: 0 is padding, the tokens of the vocabulary are 1, 2, ..., and, if
that is declared, one more stands for everything else; without it, what is not in the vocabulary is
refused, and the error names the line. Texts that are too long are cut.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from fedspend.basics.arrays import IntArray
from fedspend.data.columns import Frame, check_column
from fedspend.data.dataset import Features
from fedspend.data.sequences import next_tokens, padded
from fedspend.errors import InvalidInput, whole_number
from fedspend.tasks.kinds import TOKENS

_LARGEST = 2**24  # whole numbers up to here are exact in float32


@dataclass(frozen=True)
class Texts:
    """A column of text: its tokens, and how many of them are used."""

    column: str
    vocabulary: tuple[str, ...]
    length: int
    characters: bool  # a token is a character, not a word
    other: bool = False  # one more token for everything else

    @property
    def tokens(self) -> int:
        """How many tokens there are, with padding."""
        return 1 + len(self.vocabulary) + self.other

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(f"token {place + 1} of {self.column}" for place in range(self.length))

    @property
    def meaning(self) -> dict[str, Any]:
        """For `meaning.summary`."""
        levels = [self.vocabulary, self.characters, self.other]
        return {"columns": [self.column], "levels": {self.column: levels}}

    def sequences(self, frame: Frame) -> list[list[int]]:
        """The tokens of every text, not yet cut."""
        check_column(frame, self.column)
        column = frame.column(self.column)
        number = {token: n + 1 for n, token in enumerate(self.vocabulary)}
        rest = self.tokens - 1 if self.other else None
        found = []
        for row, text in enumerate(column.text()):
            parts = text if self.characters else text.split()
            mine = [number.get(part, rest) for part in parts]
            if None in mine:
                part = parts[mine.index(None)]
                raise InvalidInput(
                    f"{column.at(row)}: {self.column} has {part!r}, which is not in the "
                    f"vocabulary; add it, or let one token stand for the rest: other = "
                    f'["{self.column}"]'
                )
            found.append([token for token in mine if token is not None])
        return found

    def read(self, frame: Frame) -> Features:
        """(rows, length): whole numbers, which float32 holds exactly."""
        return padded(self.column, self.sequences(frame), self.length).astype(np.float32)


@dataclass(frozen=True)
class Beginnings:
    """What comes before the token that is to be predicted, at every place of a text."""

    texts: Texts

    @property
    def features(self) -> tuple[str, ...]:
        return self.texts.features

    @property
    def meaning(self) -> dict[str, Any]:
        return self.texts.meaning

    def read(self, frame: Frame) -> Features:
        rows, _ = next_tokens(self.texts.sequences(frame), self.texts.length)
        return rows.astype(np.float32)


@dataclass(frozen=True)
class NextToken:
    """The token that comes next, at every place of a text: int64, (rows, length)."""

    texts: Texts
    kind: ClassVar[str] = TOKENS

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.texts.column,)

    @property
    def classes(self) -> int:
        return self.texts.tokens

    @property
    def meaning(self) -> list[Any]:
        return [self.kind]  # the vocabulary is that of the features

    def read(self, frame: Frame) -> IntArray:
        _, targets = next_tokens(self.texts.sequences(frame), self.texts.length)
        return targets


def texts_of(
    column: str, vocabulary: str | Sequence[Any] | None, length: int | None, other: Any
) -> Texts:
    """What is declared of a column of text: a vocabulary of characters (a string) or of words (a
    list), and a length.

    >>> texts_of("line", "abc", 8, None).tokens
    4
    """
    if vocabulary is None:
        raise InvalidInput(
            f"vocabulary is missing: declare the tokens of text column {column!r}, characters "
            '(vocabulary = "abc...") or words (vocabulary = ["the", "a", ...]); reading it from '
            "private rows would leak"
        )
    if length is None:
        raise InvalidInput(
            f"max_length is missing: declare how many tokens of text column {column!r} are used, "
            "for example max_length = 80"
        )
    tokens = tuple(vocabulary) if isinstance(vocabulary, str) else tuple(map(str, vocabulary))
    if len(set(tokens)) < max(2, len(tokens)) or len(tokens) >= _LARGEST:
        raise InvalidInput("vocabulary must have at least two different tokens, and none twice")
    characters = isinstance(vocabulary, str)
    if not characters and any(not token or token.split() != [token] for token in tokens):
        raise InvalidInput(
            "vocabulary must be words without space; for characters, write one string"
        )
    for name in other or ():
        if name != column:
            raise InvalidInput(
                f"other names column {name!r}, but text column {column!r} is all that is used"
            )
    width = whole_number("max_length", length, at_least=1)
    return Texts(column, tokens, width, characters, bool(other))
