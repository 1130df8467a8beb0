"""Privacy in words, from Python: `fedspend.explain`, `fedspend.what_if`, `fedspend.glossary`.

Guarantee: the command line asks these same functions, so both say the same. Every number about an
observer is an upper bound. Nothing is written, and no ledger is changed.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from numbers import Integral
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedspend.accounting.tradeoff import TradeOff, from_claim
from fedspend.basics.choices import choose
from fedspend.basics.door import public
from fedspend.basics.tables import Table
from fedspend.errors import InvalidInput
from fedspend.explanation import glossary as words
from fedspend.explanation.leaving import Leaving, leaving
from fedspend.explanation.meaning import (
    Claim,
    accused_words,
    chance_words,
    factor_words,
    guess_words,
    outcomes,
    percent,
    sight_numbers,
)
from fedspend.explanation.observed import Sight, sights
from fedspend.explanation.units import Subject, group, one_unit
from fedspend.ledger.book import Ledger, known_project
from fedspend.planning.plan import refuse_trial
from fedspend.planning.protocol import AnyPlan, load_any_plan
from fedspend.records.verification import NO_COLLUDERS
from fedspend.stored.files import PLAN

if TYPE_CHECKING:
    from fedspend.report.drawing import Drawing

Seen = dict[Subject, tuple[Sight, ...]]

PLAN_ONLY = ("client", "record", "group", "observer", "colluders")
MOST_GROUPS, BANDS = 6, 4  # explained one after the other if no client or record is named


class Explanation(ABC):
    """What somebody could find out: `.words()`, `.numbers()`, `.table()` and `.plot()`.

    Every number is an upper bound.
    """

    @abstractmethod
    def words(self) -> list[str]:
        """Plain sentences, the most important first."""

    @abstractmethod
    def numbers(self) -> dict[str, Any]:
        """Everything with full digits, as `fedspend explain --json` prints it."""

    @abstractmethod
    def table(self) -> Table:
        """How many the best test recognises, by how many it wrongly accuses."""

    @abstractmethod
    def curves(self) -> dict[str, TradeOff]:
        """The trade-off curves that `.plot()` draws."""

    @abstractmethod
    def title(self) -> str:
        """What is explained, on one line."""

    def plot(self) -> Drawing:
        """The best membership test: recognised by wrongly accused."""
        from fedspend.report.drawing import drawing
        from fedspend.report.tradeoff_plot import tradeoff_figure

        return drawing(lambda: tradeoff_figure(self.curves(), self.title()))

    def __repr__(self) -> str:
        return "\n".join([self.title(), *(f"  {sentence}" for sentence in self.words())])

    def _repr_html_(self) -> str:
        said = "".join(f"<p>{escape(sentence)}</p>" for sentence in self.words())
        return said + self.table().html(self.title())


@dataclass(frozen=True, eq=False, repr=False)
class ExplainedEpsilon(Explanation):
    """An epsilon with its delta, whatever the mechanism."""

    claim: Claim

    def title(self) -> str:
        return f"epsilon {self.claim.epsilon:g}, delta {self.claim.delta:g}: the worst case"

    def words(self) -> list[str]:
        return [
            odds_sentence(self.claim),
            accused_words(self.claim.curve, "client"),
            guess_words(self.claim.curve),
        ]

    def numbers(self) -> dict[str, Any]:
        return self.claim.numbers()

    def table(self) -> Table:
        rows = [[percent(one.fpr), percent(one.tpr)] for one in outcomes(self.claim.curve)]
        return Table(("wrongly accused", "recognised, at most"), rows)

    def curves(self) -> dict[str, TradeOff]:
        return {"epsilon and delta alone": self.claim.curve}


@dataclass(frozen=True, eq=False, repr=False)
class ExplainedPlan(Explanation):
    """A client, a record, or groups of them, before every observer of a plan (`seen`)."""

    plan: AnyPlan
    seen: Seen

    def title(self) -> str:
        first = next(iter(self.seen.values()))[0]
        about = f"observer: {first.observer}" if len(self.seen) > 1 else next(iter(self.seen)).label
        return f"Best membership test; {about}"

    def words(self) -> list[str]:
        told = []
        for subject, (first, *_) in self.seen.items():
            against = "" if first.promised else f", before the observer {first.observer!r}"
            told += [
                f"{subject.label}, epsilon {subject.epsilon:.4g}{against}.",
                accused_words(first.curve, self.plan.unit),
                guess_words(first.curve),
            ]
        return told

    def numbers(self) -> dict[str, Any]:
        plan = self.plan
        return {
            "plan_hash": plan.hash,
            "unit": plan.unit,
            "delta": plan.delta,
            "subjects": [
                {
                    "who": one.label,
                    "members": one.members,
                    "budget": one.budget,
                    "epsilon": one.epsilon,
                    "by_epsilon_alone": Claim(one.epsilon, plan.delta).numbers(),
                    "observers": [sight_numbers(sight) for sight in seen],
                }
                for one, seen in self.seen.items()
            ],
        }

    def table(self) -> Table:
        first = next(iter(self.seen.values()))[0]
        wrongly = [f"at {percent(one.fpr)}" for one in outcomes(first.curve)]
        rows = [
            [
                subject.label,
                f"{one.observer} (promised)" if one.promised else one.observer,
                f"{one.epsilon:.4g}",
                *(percent(test.tpr) for test in outcomes(one.curve)),
                percent(one.curve.accuracy),
            ]
            for subject, seen in self.seen.items()
            for one in seen
        ]
        note = "Recognised at most, by the share of the others that is wrongly accused."
        return Table(("who", "observer", "epsilon", *wrongly, "best guess"), rows, note)

    def curves(self) -> dict[str, TradeOff]:
        """The observers of one subject, or the first observer of several."""
        if len(self.seen) > 1:
            return {one.label: seen[0].curve for one, seen in self.seen.items()}
        [seen] = self.seen.values()
        alone = from_claim(seen[0].epsilon, self.plan.delta)
        return {one.observer: one.curve for one in seen} | {"epsilon and delta alone": alone}


def odds_sentence(claim: Claim) -> str:
    return (
        f"Whatever is released multiplies anyone's odds that you took part by at most "
        f"{factor_words(claim.epsilon)}, except with a chance of {chance_words(claim.delta)}. Then "
        "nothing is promised."
    )


@public
def explain(
    what: float | str | Path | AnyPlan,
    *,
    delta: float | None = None,
    client: str | None = None,
    record: str | None = None,
    group: str | float | None = None,
    observer: str | None = None,
    colluders: int | None = None,
) -> ExplainedEpsilon | ExplainedPlan:
    """Say in plain words what an epsilon, or a plan, means for a person.

    Arguments:
        what: an epsilon, which is explained for any mechanism; or a plan, or the file of one, which
            is explained by its own noise and sampling, and promises far more.
        delta: with an epsilon: its delta.
        client, record: with a plan: the one whose protection is explained.
        group: with a plan: everyone with this budget. Default: every group.
        observer: with a plan: one observer only, by name. Default: all of them.
        colluders: with a plan of clients: how many pool what they know. Default: 10.

    Returns:
        An explanation, which a notebook shows as a table: `.words()`, `.numbers()`, `.table()`,
        `.plot()`. Every number is an upper bound.

    Raises:
        InvalidInput: an argument is wrong, or does not fit what is explained.
        Refused: the plan claims less than its rounds cost.

    >>> print(explain(1.0, delta=1e-6).words()[1])
    A test that wrongly accuses 1 in 100 clients that did not take part recognises at most 3 in \
100 that did.
    """
    asked = dict(zip(PLAN_ONLY, (client, record, group, observer, colluders), strict=True))
    if is_number(what):
        return _of_number(what, delta, asked)
    _check_asked_of_plan(what, delta, asked)
    if isinstance(what, str | os.PathLike) and _has_plan(what):
        what = PLAN.of(Path(what))  # of a run directory
    plan = plan_of(what)
    if colluders is not None and plan.unit == "record":
        raise InvalidInput(f"--colluders {NO_COLLUDERS}")
    found = {
        one: _chosen(sights(plan, one.schedule, colluders or 0), observer)
        for one in _subjects(plan, client, record, group)
    }
    pooling = None if colluders is None else f"{colluders} colluding clients"
    if pooling is not None and observer is not None and observer != pooling:
        raise InvalidInput(
            f"--colluders is for the observer {pooling!r}, and only {observer!r} is asked about; "
            "drop one of them"
        )
    return ExplainedPlan(plan, found)


def _of_number(
    epsilon: Any, delta: float | None, of_plans: Mapping[str, object]
) -> ExplainedEpsilon:
    """An epsilon of any mechanism, which has nothing that is asked `of_plans`."""
    for name, value in of_plans.items():
        if value is not None:
            raise InvalidInput(
                f"--{name} is for plans, and {epsilon!r} is a number; name a plan file, or drop "
                f"--{name}"
            )
    if delta is None:
        raise InvalidInput(
            f"epsilon {epsilon} means nothing without its delta; add --delta, for example 1e-5"
        )
    return ExplainedEpsilon(Claim.checked(epsilon, delta))


def _check_asked_of_plan(what: Any, delta: float | None, asked: Mapping[str, Any]) -> None:
    """Refuse what is neither a plan nor a file, and questions that a plan cannot answer."""
    if not (isinstance(what, str | os.PathLike) or hasattr(what, "schedules")):
        raise InvalidInput(f"give an epsilon, a plan or the file of one; got {what!r}")
    if isinstance(what, str) and is_number(what.replace(",", ".")) and not Path(what).exists():
        dotted = what.replace(",", ".")
        raise InvalidInput(f"{what} is not a number; write {dotted}")
    if delta is not None:
        raise InvalidInput(
            f"delta {delta} is for a number; a plan has its own delta, so drop --delta"
        )
    named = [name for name in ("client", "record", "group") if asked[name] is not None]
    if len(named) > 1:
        raise InvalidInput(f"--{named[0]} and --{named[1]} were both given; choose one of them")
    colluders = asked["colluders"]
    if colluders is not None and not whole("colluders", colluders) >= 1:
        raise InvalidInput(f"--colluders must be at least 1, got {colluders}")
    if isinstance(what, str | os.PathLike) and not Path(what).exists():
        raise InvalidInput(
            f"{str(what)!r} is neither a number nor a file; give an epsilon, or a plan written by "
            "fedspend plan --output"
        )
    if isinstance(what, str | os.PathLike) and Path(what).is_dir() and not _has_plan(what):
        raise InvalidInput(
            f"{str(what)!r} is a folder without a plan; name a plan file or a run directory, or "
            "ask fedspend verify what a publication promises"
        )


def _has_plan(folder: str | os.PathLike[str]) -> bool:
    """Whether it is a run directory, or looks like one."""
    return PLAN.of(Path(folder)).is_file()


def is_number(what: Any) -> bool:
    """
    >>> is_number("10"), is_number(1e-3), is_number("plan.json"), is_number(True)
    (True, True, False, False)
    """
    if isinstance(what, bool) or hasattr(what, "schedules"):
        return False
    try:
        float(what)
    except (TypeError, ValueError, OverflowError):
        return False
    return True


def whole(name: str, value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise InvalidInput(f"{name} must be a whole number, got {value!r}")
    return int(value)


def plan_of(given: Any) -> AnyPlan:
    """A plan, or the plan in a file; trials of a tune are no plans to ask about."""
    if isinstance(given, str | os.PathLike):
        plan = load_any_plan(str(given))
    elif hasattr(given, "schedules"):
        plan = given
    else:
        raise InvalidInput(f"plan must be a plan or the file of one, got {given!r}")
    refuse_trial(plan)
    return plan


def _subjects(
    plan: AnyPlan, client: str | None, record: str | None, group_: str | float | None
) -> list[Subject]:
    """The client, record or group that was named, or every group."""
    from fedspend.report.groups import group_clients

    for unit, name in (("client", client), ("record", record)):
        if name is not None:
            return [one_unit(plan, unit, str(name))]
    grouping = group_clients(plan, most=MOST_GROUPS, bands=BANDS)
    by_label = dict(zip(grouping.labels, grouping.members, strict=True))
    if group_ is not None:
        wanted = f"{float(group_):.4g}" if is_number(group_) else str(group_)
        by_label = {wanted: by_label[choose("group", wanted, by_label)]}
    return [group(plan, label, members) for label, members in by_label.items()]


def _chosen(seen: tuple[Sight, ...], name: str | None) -> tuple[Sight, ...]:
    if name is None:
        return seen
    wanted = choose("observer", name, [one.observer for one in seen])
    return tuple(one for one in seen if one.observer == wanted)


# --- leaving --------------------------------------------------------------------------------------


@public
def what_if(
    plan: str | Path | AnyPlan,
    *,
    leaves: int,
    client: str | None = None,
    record: str | None = None,
    ledger: str | Path | None = None,
    project: str | None = None,
) -> Leaving:
    """Say what a client or record has spent, and gets back, if it leaves. Nothing is written.

    Arguments:
        plan: a plan, or the file of one.
        leaves: the last round that has begun when it leaves; 0: before the first.
        client, record: who leaves; exactly one of the two.
        ledger: the ledger that the plan is charged to, whose other runs count, too.
        project: the project within that ledger.

    Returns:
        A `Leaving`: `.spent`, `.given_back`, `.left`, `.if_it_stays`, `.stops_the_run`; epsilons,
        as the ledger would compute them.

    Raises:
        InvalidInput: the plan has no such client or round, or was made with a ledger that is not
            named.
        Refused: it has left already, or the ledger would not admit the plan.

    >>> from fedspend import plan
    >>> made = plan({"a": 2.0, "b": 8.0}, delta=1e-2, rounds=4, rate=1.0, accountant="rdp")
    >>> found = what_if(made, client="b", leaves=4)
    >>> found.spent <= 8.0, found.given_back
    (True, 0.0)
    """
    given = [
        (unit, name) for unit, name in (("client", client), ("record", record)) if name is not None
    ]
    if len(given) != 1:
        raise InvalidInput(
            "say who leaves: give --client ID or, for a plan of records, --record ID; exactly one"
        )
    whole("leaves", leaves)
    if project is not None and ledger is None:
        raise InvalidInput(f"project {project!r} is one of a ledger; name it with --ledger")
    made, [(unit, name)] = plan_of(plan), given
    if ledger is None:
        return leaving(made, unit, str(name), leaves)
    with known_project(Ledger.open(ledger, project=project or "")) as book:
        return leaving(made, unit, str(name), leaves, book.state)


# --- words ----------------------------------------------------------------------------------------


class Terms(dict[str, str]):
    """Terms and what they mean: a dict that shows itself as text, and in a notebook as a table."""

    def __repr__(self) -> str:
        return "\n".join(f"{term}: {meaning}" for term, meaning in self.items())

    def _repr_html_(self) -> str:
        return Table(("term", "what it means"), list(self.items())).html()


@public
def glossary(term: str | None = None) -> Terms:
    """Explain the terms of privacy, planning and accounting, or one of them.

    Arguments:
        term: the term to explain, in upper or lower case, or by a usual short name ("tpr").
            Default: all of them.

    Returns:
        `Terms`: a dict from each term to what it means, which prints and shows itself.

    Raises:
        InvalidInput: there is no such term; the nearest is named.

    >>> glossary("unit")
    unit: What is protected: a client with everything it holds, or one record. A promise about \
records says nothing about a client as a whole.
    """
    if term is None:
        return Terms(words.TERMS)
    if not isinstance(term, str):
        raise InvalidInput(f"term must be a word, got {term!r}")
    found = words.find(term)
    return Terms({found: words.TERMS[found]})
