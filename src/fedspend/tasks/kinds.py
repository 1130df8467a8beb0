"""What a row's target may be, and how it is kept. Works without torch."""

from __future__ import annotations

CLASSES = "classes"  # one whole number a row, counted from 0
BINARY = "binary"  # one whole number a row, 0 or 1, for models that give one logit
NUMBERS = "numbers"  # one float32 number a row, or several
SEVERAL = "several"  # a 0 or 1 for each of several labels, as float32
TOKENS = "tokens"  # a class for each place of a sequence; places marked `IGNORED` do not count
KEPT = "kept"  # what a user's own loss takes: whole numbers stay whole, others are float32
KINDS = (CLASSES, BINARY, NUMBERS, SEVERAL, TOKENS, KEPT)

WHOLE = (CLASSES, BINARY, TOKENS)  # kinds whose targets are whole numbers below `classes`
BY_CLASS = (CLASSES, BINARY)  # kinds whose rows can be grouped by class

IGNORED = -100  # a place of a sequence that has no target, such as padding

IN_WORDS = {
    CLASSES: "one class for each row",
    BINARY: "0 or 1 for each row",
    NUMBERS: "one or several numbers for each row",
    SEVERAL: "a 0 or 1 for each label of a row",
    TOKENS: "one class for each place of a sequence",
    KEPT: "whatever the loss takes",
}


def outputs_of(kind: str, classes: int) -> int:
    """How many numbers a model gives for a row, or for each place of a sequence.

    >>> outputs_of(CLASSES, 10), outputs_of(BINARY, 2), outputs_of(NUMBERS, 1)
    (10, 1, 1)
    """
    return 1 if kind == BINARY else classes
