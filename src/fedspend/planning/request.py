"""The request for a plan of clients: budgets, ids and terms in one value, for planner and ledger.

Guarantee: ids have been read already, from a file of budgets, the data or a ledger, and are used
unchanged. Per-client values stay together: a client left out of a request is also left out of its
budgets, saving rates and transitions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from fedspend.accounting.accountants import AUTO
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.basics.arrays import BoolArray, FloatArray
from fedspend.basics.progress import OnProgress
from fedspend.planning.plan import Plan


@dataclass(frozen=True, eq=False)
class PlanRequest:
    """What `planning.making.make_plan` needs.

    `saving_rate` and `transition` are one value for all, or one per client; `options` are for a
    user's own policy. `clip_schedule` is a word or one factor per round, None for the default.
    `learning_rates` (relative, one per round), `contraction` or `influence` (one number per round,
    measured), `tail` and `server_momentum` say how training goes on after a round: what policy
    `optimal` plans for.
    """

    epsilons: FloatArray
    clients: tuple[str, ...]
    delta: float
    rounds: int
    rate: float
    policy: str | None = None
    method: str | None = None
    saving_rate: float | FloatArray | None = None
    transition: float | FloatArray | None = None
    weights: float | list[float] | None = None
    clip: float = 1.0
    accountant: str = AUTO
    noise: str = "continuous"
    bits: int = 32
    # whether clients also report a bit (if their update was within the clip) or a metric; or the
    # deviation of the noise on the sum of these, if it is not the usual one
    bit: bool = False
    bit_noise: float | None = None
    metric: bool = False
    metric_noise: float | None = None
    clip_schedule: str | Sequence[float] | None = None
    learning_rates: Sequence[float] | None = None
    contraction: float | None = None
    influence: Sequence[float] | None = None
    tail: int | None = None
    server_momentum: float = 0.0
    past: Mechanisms | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    def plan(self, progress: OnProgress | None = None) -> Plan:
        """The plan that is requested."""
        from fedspend.planning.making import make_plan

        return make_plan(self, progress)

    def of(self, keep: BoolArray) -> PlanRequest:
        """The request for only the clients marked in `keep`."""

        def kept(value: float | FloatArray | None) -> float | FloatArray | None:
            return (
                value[keep]
                if isinstance(value, np.ndarray) and value.shape == keep.shape
                else value
            )

        return replace(
            self,
            epsilons=self.epsilons[keep],
            clients=tuple(
                client for client, stays in zip(self.clients, keep, strict=True) if stays
            ),
            saving_rate=kept(self.saving_rate),
            transition=kept(self.transition),
        )
