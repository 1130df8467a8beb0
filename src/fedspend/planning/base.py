"""What plans of clients and plans of records share: loading, printing and common properties."""

from __future__ import annotations

from abc import abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.basics.tables import Table, first_rows
from fedspend.basics.words import counted, span
from fedspend.errors import InvalidInput
from fedspend.planning.plan_json import Kind, Saved, load
from fedspend.planning.schedules import Schedules


class BasePlan(Saved):
    """A table of schedules with a budget for each unit.

    `planning.protocol.AnyPlan` says what else a plan offers.
    """

    unit: ClassVar[Any]
    schedules: Schedules
    budget: FloatArray
    parameters: dict[str, Any]

    @classmethod
    @abstractmethod
    def kind(cls) -> Kind[Self]:
        """How files of this kind of plan are read."""

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a plan; refuses a file that is malformed or was altered."""
        return load(Path(path), cls.kind())

    @classmethod
    def expect(cls, plan: object, otherwise: str) -> Self:
        """`plan` itself if it is of this kind, for the few places that take one kind only.

        Any other plan is refused with the message `otherwise`.
        """
        if not isinstance(plan, cls):
            raise InvalidInput(otherwise)
        return plan

    @property
    def rounds(self) -> int:
        return self.schedules.rounds

    @property
    def policy(self) -> str:
        return str(self.parameters["policy"])

    @property
    def epsilon(self) -> FloatArray:
        """Claimed epsilon of each unit at `delta`."""
        return self.schedules.wide("epsilon")

    @property
    @abstractmethod
    def who(self) -> str:
        """Whom the plan is for."""

    @property
    @abstractmethod
    def headline(self) -> str:
        """How the budgets are spent, in one or two words."""

    def _repr_html_(self) -> str:
        """In a notebook: what each level of budget may spend, and the noise that pays for it."""
        schedules, clients_of = self.schedules, self.schedules.clients_of
        order = np.argsort(schedules.epsilon, kind="stable")
        noise, rate = schedules.noise_multiplier, schedules.sampling_rate
        rows = [
            [
                f"{schedules.epsilon[n]:.4g}",
                int(clients_of[n]),
                span(rate[:, n]),
                span(noise[:, n]),
            ]
            for n in order.tolist()
        ]
        header = ("epsilon", f"{self.unit}s", "sampling rate", "noise multiplier")
        return Table(header, first_rows(rows)).html(repr(self).strip("<>"))

    def __repr__(self) -> str:
        budgets = span(self.budget)
        return (
            f"<{type(self).__name__}: {self.who}, {counted(self.rounds, 'round')}, "
            f"{self.headline}, budgets {budgets}>"
        )
