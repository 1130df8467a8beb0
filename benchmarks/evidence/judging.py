"""What a verdict is: whether the gains that a table or figure claims are there.

Guarantee: a gain is there if its 95% interval lies above 0. Nothing is called reproduced of which a
line was not run; the reason says how many those are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from experiment import Arm, Finished, Outcome, compared, outcome
from tables import accuracy, gain

from fedspend.runs.comparison import interval

Gain = tuple[float, float | None]

Verdict = tuple[str, str]  # a word, and what it rests on
CANNOT_TELL = "cannot tell"


@dataclass(frozen=True)
class Item:
    """A table or figure. Its verdict is what `judge` finds; nobody types one. `why` says why it is
    not run, where `judge` finds nothing.
    """

    name: str
    why: str
    judge: Callable[[Finished], Verdict | None] = lambda _: None

    def found(self, results: Finished) -> Verdict:
        return self.judge(results) or ("not run", self.why)


def cut(study: str) -> str:
    """Why a table or figure is not run: the study that has it is, or was, cut.

    >>> cut("networks")
    'cut ([what is left](papers.md#cost)): `--only networks`'
    """
    return f"cut ([what is left](papers.md#cost)): `--only {study}`"


def rows_of(items: Sequence[Item], results: Finished) -> list[tuple[str, str, str]]:
    """Of each its name, its verdict, and what that rests on."""
    return [(item.name, *item.found(results)) for item in items]


def judged(found: Sequence[Gain | None], claim: str, study: str = "") -> Verdict | None:
    """Whether gains that are claimed are there: 95% intervals above 0. None if nothing is run; a
    line that is not run is not there.

    >>> judged([(2.0, 1.0), (-2.0, 1.0), None], "gain")
    ('reproduced in part', 'gain clear of 0 in 1 of 2 lines, clearly the other way in 1, 1 not run')
    >>> judged([(2.0, 1.0), None], "gain")
    ('reproduced in part', 'gain clear of 0 in 1 of 1 lines, 1 not run')
    """
    finished = [one for one in found if one is not None]
    if not finished:
        return None
    there = sum(map(is_clear, finished))
    word = word_for(there, len(found))
    why = f"{claim} clear of 0 in {there} of {len(finished)} lines"
    against = sum(is_clear(negative(one)) for one in finished)
    if against:
        why += f", clearly the other way in {against}"
    if len(finished) < len(found):
        why += f", {len(found) - len(finished)} not run"
    return word, why + (f"; study `{study}`" if study else "")


def word_for(there: int, lines: int) -> str:
    """The verdict, if this many of all lines are as claimed.

    >>> [word_for(there, 2) for there in range(3)]
    ['not reproduced', 'reproduced in part', 'reproduced']
    """
    if there == 0:
        return "not reproduced"
    return "reproduced" if there == lines else "reproduced in part"


def together(verdicts: Sequence[str]) -> str:
    """The verdict on a figure, from those on its panels; one that cannot tell has no say.

    >>> together(["reproduced", "not reproduced"]), together(["reproduced", "cannot tell"])
    ('reproduced in part', 'reproduced')
    """
    telling = {one for one in verdicts if one != CANNOT_TELL} or {CANNOT_TELL}
    return telling.pop() if len(telling) == 1 else "reproduced in part"


def over(results: Finished, ours: Arm, base: Arm) -> Gain | None:
    """How much better one arm is than another; None if one of them is not finished."""
    return compared(outcome(results, ours), outcome(results, base))


def fewer_seeds(there: int, wanted: int) -> str:
    """What a verdict adds if it rests on fewer seeds than it should.

    >>> fewer_seeds(3, 5), fewer_seeds(5, 5)
    ('; three seeds where five were wanted', '')
    """
    if there >= wanted:
        return ""
    return f"; {NUMBERS[there]} seed{'s' * (there > 1)} where {NUMBERS[wanted]} were wanted"


NUMBERS = ("no", "one", "two", "three", "four", "five")


def is_clear(gain: Gain | None) -> bool:
    """Whether its interval is above 0."""
    return gain is not None and gain[1] is not None and gain[0] > gain[1]


def negative(gain: Gain) -> Gain:
    return -gain[0], gain[1]


def clear_of(gains: Sequence[Gain | None]) -> str:
    """How many of the finished ones are clear of 0.

    >>> clear_of([(2.0, 1.0), (0.5, 1.0), None])
    '1 of 2'
    """
    return f"{sum(map(is_clear, gains))} of {sum(one is not None for one in gains)}"


def beside(found: Verdict, gains: Sequence[Gain | None], alternative: str) -> Verdict:
    """The verdict on the paper's effect, with `better` beside it if our alternative is clear of
    what the paper proposes in every line.

    >>> beside(("reproduced", "x"), [(2.0, 1.0)], "ours")
    ('reproduced, better', "x; ours ahead of the paper's method in 1 of 1 lines")
    >>> beside(("not reproduced", "x"), [(2.0, 1.0), None], "ours")
    ('not reproduced', "x; ours ahead of the paper's method in 1 of 1 lines, 1 not run")
    """
    word, why = found
    clear, missing = sum(map(is_clear, gains)), list(gains).count(None)
    if missing == len(gains):
        return found
    why += f"; {alternative} ahead of the paper's method in {clear_of(gains)} lines"
    why += f", {missing} not run" if missing else ""
    return word + (", better" if clear == len(gains) else ""), why


def told(found: Gain | None) -> str:
    return "-" if found is None else gain(*found)


def accuracy_of(one: Outcome | None, short: bool = False) -> str:
    """With its interval, unless `short`; a dash for what is not there."""
    if one is None or one.refused:
        return "-"
    mean, half = interval(one.percent())
    return accuracy(mean, None if short else half)


def number_of(name: str) -> tuple[bool, int]:
    """Tables before figures, each by its number.

    >>> number_of("Figures 4 and 5"), number_of("Tables II and III, cost"), number_of("Figure 2a")
    ((True, 4), (False, 2), (True, 2))
    """
    found = re.match(r"(Table|Figure)s? (\d+|I+)", name)
    assert found is not None, name
    kind, number = found.groups()
    return kind == "Figure", int(number) if number.isdigit() else len(number)
