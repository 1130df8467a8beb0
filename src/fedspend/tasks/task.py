"""A task: the loss that clients descend, and the metrics that say how good a model is.

Guarantee: the loss of a batch is the mean of its rows' losses. A row's loss depends on that row
alone: a user's own function that mixes rows, or remembers them, is refused before anything is
trained (`tried`), and where single records are bounded (`apart`) it is given one row at a time, so
that no other row can matter. What that trial does not show: every call of a user's own loss or
metric has a copy of it, so that nothing is left in it for the next client. A task is made from
names or functions by whoever trains: it is never sent, so no server can make a client run code.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from fedspend.errors import InvalidInput
from fedspend.tasks.copies import copied, refuse_uncopied
from fedspend.tasks.kinds import CLASSES, KEPT, NUMBERS, TOKENS
from fedspend.tasks.table import CLASSIFICATION, LOSSES, METRICS, Metric, of_two

ACCURACY = METRICS["accuracy"].name
OfRows = Callable[[Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Task:
    """`name` is the loss's name in the registry, or where a user's own function was defined."""

    name: str
    of_rows: OfRows
    targets: str = KEPT
    metrics: tuple[Metric, ...] = ()
    own: bool = False  # whether the loss is a user's own function
    # public bounds of the first metric, within which clients report it privately; None: 0 and 1
    bounds: tuple[float, float] | None = None
    keys: tuple[tuple[str, Any], ...] = ()  # of the loss, as given
    once: bool = False  # whether its own loss is a copy already, for one call

    @property
    def terms(self) -> str:
        """The loss with its keys, in words: two who train together must have the same."""
        given = ", ".join(f"{key}={value!r}" for key, value in self.keys)
        return f"{self.name}({given})" if given else self.name

    @property
    def classifies(self) -> bool:
        """Whether this is plain classification, for which engines have products of their own."""
        return self.name == CLASSIFICATION

    @property
    def metric(self) -> str:
        """The name of the metric that a model is judged by first; without any, its loss."""
        return self.metrics[0].name if self.metrics else "loss"

    def rows(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of each row."""
        of_rows = copied(self.of_rows) if self.own and not self.once else self.of_rows
        found = of_rows(output, target)
        if not (isinstance(found, Tensor) and found.shape == (len(target),)):
            said = tuple(found.shape) if isinstance(found, Tensor) else type(found).__name__
            raise InvalidInput(
                f"loss {self.name!r} must give one number a row, shape ({len(target)},), got {said}"
            )
        return found

    def fresh(self) -> Task:
        """This task for one call, where no copy can be made in the middle of it."""
        return replace(self, of_rows=copied(self.of_rows), once=True) if self.own else self

    def mean(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of a batch."""
        if self.classifies:
            return functional.cross_entropy(output, target)
        return self.rows(output, target).mean()

    def total(self, output: Tensor, target: Tensor) -> Tensor:
        """The sum over rows."""
        if self.classifies:
            return functional.cross_entropy(output, target, reduction="sum")
        return self.rows(output, target).sum()

    def apart(self, output: Tensor, target: Tensor) -> Tensor:
        """The sum over rows, whose gradient at an output is that of the row's own loss, whatever an
        own function does with a batch: it is given one row at a time. What it draws is the same for
        every row: a row must not decide what others draw.
        """
        if not self.own:
            return self.total(output, target)

        def of_one(output: Tensor, target: Tensor, task: Task) -> Tensor:
            return task.rows(output.unsqueeze(0), target.unsqueeze(0)).squeeze(0)

        try:  # all rows at once, each of which the function sees by itself
            of_each = functools.partial(of_one, task=self.fresh())
            return torch.func.vmap(of_each, randomness="same")(output, target).sum()
        except RuntimeError:  # a function that looks at values: one after the other
            drawn, found = torch.get_rng_state(), []
            for row in zip(output, target, strict=True):
                torch.set_rng_state(drawn)
                found.append(of_one(*row, task=self))
            return torch.stack(found).sum()

    def unit(self, value: float) -> float:
        """The first metric between its bounds, from 0 to 1; what lies outside counts as the bound.

        >>> task_of("squared", bounds=(0, 4)).unit(1.0), task_of("squared", bounds=(0, 4)).unit(9.0)
        (0.25, 1.0)
        """
        low, high = self.bounds or (0.0, 1.0)
        return min(1.0, max(0.0, (value - low) / (high - low)))

    def from_unit(self, share: float) -> float:
        low, high = self.bounds or (0.0, 1.0)
        return low + share * (high - low)

    @torch.no_grad()
    def measured(self, output: Tensor, target: Tensor) -> dict[str, float]:
        """Every metric of these outputs."""
        kind = self.targets if self.targets != KEPT else kind_of(target)
        found = {}
        for metric in self.metrics:
            value = metric.measure(output, target, kind)
            try:
                found[metric.name] = float(value)
            except (TypeError, ValueError, RuntimeError):
                raise InvalidInput(
                    f"metric {metric.name!r} must give one number, got {type(value).__name__}"
                ) from None
        return found


def task_of(
    loss: str | OfRows | None = None,
    metrics: Sequence[Any] | None = None,
    *,
    keys: Mapping[str, Any] | None = None,
    bounds: tuple[float, float] | None = None,
) -> Task:
    """The task of a loss (a name, or a function of output and target) and metrics (likewise).

    >>> task_of("squared").metric, task_of().classifies
    ('mse', True)
    """
    taken: dict[str, Any] = {}
    if loss is None or isinstance(loss, str):
        entry = LOSSES[loss or CLASSIFICATION]
        taken = {key: value for key, value in (keys or {}).items() if key in entry.keys}
        of_rows = functools.partial(entry.of_rows, **taken) if taken else entry.of_rows
        kind, usual, name = entry.targets, entry.metrics, entry.name
        own = entry.name in LOSSES.own
    elif callable(loss):
        of_rows, kind, usual, name, own = loss, KEPT, (), _called(loss), True
    else:
        raise InvalidInput(
            "loss must be a name or a function of (output, target) that gives one number a row, "
            f"got {loss!r}"
        )
    if isinstance(metrics, str) or not isinstance(metrics, Sequence | None):
        raise InvalidInput(
            f'metrics must be a list of names or functions, for example ["mse"], got {metrics!r}'
        )
    chosen = tuple(_metric(one) for one in (usual if metrics is None else metrics))
    _check_metrics(chosen, kind, name)
    if own:
        refuse_uncopied(f"loss {name!r}", of_rows)
    return Task(name, of_rows, kind, chosen, own, bounds, tuple(sorted(taken.items())))


def _metric(one: Any) -> Metric:
    if isinstance(one, str):
        return METRICS[one]
    if not callable(one):
        raise InvalidInput(
            f"a metric must be a name or a function of (outputs, targets), got {one!r}"
        )
    name = getattr(one, "__name__", type(one).__name__)
    if name in METRICS or not name.isidentifier():
        raise InvalidInput(
            f"a metric of your own is called {name!r}; give the function a name that no other "
            "metric has"
        )
    return Metric(name, f"your own: {_called(one)}", measure=of_two(one, name))


def kind_of(target: Tensor) -> str:
    """What targets look like, where a user's own loss does not say what they are."""
    if target.is_floating_point():
        return NUMBERS
    return CLASSES if target.dim() == 1 else TOKENS


def _check_metrics(metrics: tuple[Metric, ...], kind: str, loss: str) -> None:
    names = [metric.name for metric in metrics]
    twice = next((name for n, name in enumerate(names) if name in names[:n]), None)
    if twice is not None:
        raise InvalidInput(f"metric {twice!r} is listed twice; remove one")
    for metric in metrics:
        if metric.targets and kind not in (*metric.targets, KEPT):
            fitting = [one.name for one in METRICS if not one.targets or kind in one.targets]
            raise InvalidInput(
                f"metric {metric.name!r} does not fit loss {loss!r}; choose among "
                f"{', '.join(fitting)}"
            )


def _called(function: Any) -> str:
    """Where a function was defined, by which a resumed run knows it again."""
    module = getattr(function, "__module__", None) or "?"
    return f"{module}:{getattr(function, '__qualname__', type(function).__name__)}"


CLASSIFY = task_of()


def tried(task: Task, output: Tensor, target: Tensor) -> None:
    """Refuse a user's own loss that does not give one number a row, mixes rows, or remembers them.

    `output` and `target` are those of at least two rows, made up or public.
    """
    if not task.own:
        return
    output, bare = output.detach(), replace(task, once=True)  # what it keeps must show here
    remembering = InvalidInput(
        f"loss {task.name!r} remembers rows: for the same rows it gives other numbers the next "
        "time, so one client's rows would change another's update; keep nothing between calls"
    )
    trained = (output[:2] + 0.5).requires_grad_()  # some remember only while they are trained
    if not _same(*(_drawn_alike(bare, trained, target[:2]).detach() for _ in range(2))):
        raise remembering
    with torch.no_grad():
        # apart from zero, where a loss may be the same whatever it is divided by
        one, other = output[:2] + 0.5, target[:2]
        first = _drawn_alike(bare, one, other)
        more = torch.stack([one[0], one[1] + 1]), torch.stack([other[0], other[1] + 1])
        beside = _drawn_alike(bare, *more)
        alone = _drawn_alike(bare, one[:1], other[:1])
        again = _drawn_alike(bare, one, other)
    if not _same(first, again):
        raise remembering
    if not (_same(first[0], beside[0]) and _same(first[0], alone[0])):
        raise InvalidInput(
            f"loss {task.name!r} mixes rows: the number of the first row changes with the second "
            "(an output of shape (rows, 1) minus a target of shape (rows,) does this, and so does "
            "dividing by the number of rows); compare each row with its own target"
        )
    asked = output.clone().requires_grad_()
    if not task.rows(asked, target).requires_grad:
        raise InvalidInput(
            f"loss {task.name!r} cannot be differentiated: it does not use the model's output; "
            "write it in torch, without .item() or numpy"
        )


def _drawn_alike(task: Task, output: Tensor, target: Tensor) -> Tensor:
    """The loss of each row, with the same numbers each time if it draws some."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        return task.rows(output, target)


def _same(one: Tensor, other: Tensor) -> bool:
    """Up to rounding, which may differ with the number of rows."""
    return torch.allclose(one, other, rtol=1e-5, atol=1e-7, equal_nan=True)


def finite_or_none(value: float) -> float | None:
    """How a metric is stored: JSON has no NaN."""
    return value if math.isfinite(value) else None
