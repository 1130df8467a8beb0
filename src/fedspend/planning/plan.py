"""The plan: a table, fixed before training, of each client's rate, clip and noise in each round.

Guarantee: a plan depends on budgets and public parameters only, never on data, so making, saving
and showing one costs no privacy. A client that follows its column of the plan, with zero-out
adjacency and hidden participation, has spent at most `Plan.epsilon` at `Plan.delta`.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedspend.accounting.accountants import ACCOUNTANTS
from fedspend.accounting.calibration import check_epsilons
from fedspend.accounting.conversion import check_delta
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.rdp import check_orders
from fedspend.accounting.smoothing import FEWEST_STEPS, accounted
from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.basics.registry import NAME
from fedspend.basics.words import counted
from fedspend.errors import InvalidInput
from fedspend.planning.base import BasePlan
from fedspend.planning.parts import BIT_NOISE, METRIC_NOISE, left_for_updates
from fedspend.planning.plan_json import Content, Kind
from fedspend.planning.schedules import TABLES, VALUES, Schedules

if TYPE_CHECKING:
    from fedspend.basics.progress import OnProgress
    from fedspend.ledger.rules import Proposal
    from fedspend.planning.protocol import AnyPlan, Unit
    from fedspend.report.drawing import Drawing
    from fedspend.verification.findings import Verification

ADJACENCY = (
    "zero-out: one client's whole contribution becomes zero; roster, budgets and plan stay fixed"
)
# In the parameters of a plan for one trial of a private tune, whose budgets are only its part of
# what the tune costs.
TRIAL = "trial"
OBSERVER = "other clients and the public, who see every released model and do not see who took part"


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Plan(BasePlan):
    """Schedules for all clients, a claim for each, and what is needed to check it.

    `fedspend.plan` makes one, and `Plan.load` reads one from its file. All arrays are read-only.

    Attributes:
        clients: the clients' ids, in the order of every array.
        budget: (clients,) the epsilon that each client allows.
        epsilon: (clients,) the epsilon that each client spends at most; at most its budget.
        delta: of every epsilon.
        noise_multiplier, sampling_rate, clip_norm: (rounds, clients) the schedules.
        rounds: how many there are.
        clip: the clip norm of the average client.
        accountant: the one that made the claims.
        orders: the Rényi orders at which claims are read.
        parameters: how the plan was made: policy, rate and so on.
        schedules: the distinct schedules, and which of them each client follows.

    >>> from fedspend import plan
    >>> made = plan({"north": 2.0, "south": 8.0}, delta=1e-2, rounds=5, rate=1.0)
    >>> made.clients, made.rounds, made.noise_multiplier.shape
    (('north', 'south'), 5, (5, 2))
    >>> bool((made.epsilon <= made.budget).all())
    True
    """

    clients: tuple[str, ...]
    budget: FloatArray
    schedules: Schedules
    delta: float
    clip: float
    accountant: str
    orders: tuple[float, ...]
    parameters: dict[str, Any] = field(default_factory=dict)
    unit: ClassVar[Unit] = "client"
    promised_observers: ClassVar[int] = 1
    filters: ClassVar[bool] = False
    by_norm: ClassVar[bool] = False
    client_by_client: ClassVar[bool] = False
    hidden_statistics: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        *,
        clients: Sequence[str],
        budget: Any,
        schedules: Schedules,
        delta: float,
        clip: float,
        accountant: str,
        orders: Sequence[float],
        parameters: dict[str, Any],
        **wide: Any,
    ) -> None:
        """`wide` replaces what `schedules` holds, as does `dataclasses.replace`.

        It takes `noise_multiplier`, `sampling_rate` and `clip_norm` (rounds, clients), `epsilon`
        and `order` (clients,).
        """
        unknown = set(wide) - set(TABLES + VALUES)
        if unknown:
            raise TypeError(f"Plan has no field {sorted(unknown)[0]!r}")
        budget = np.array(budget, dtype=np.float64)
        budget.flags.writeable = False
        values = {
            "clients": tuple(clients),
            "budget": budget,
            "schedules": schedules.with_wide(**wide) if wide else schedules,
            "delta": float(delta),
            "clip": float(clip),
            "accountant": accountant,
            "orders": tuple(float(a) for a in orders),
            "parameters": parameters,
        }
        for name, value in values.items():
            object.__setattr__(self, name, value)
        check_plan(self)

    # The public view: rounds x clients.
    @property
    def noise_multiplier(self) -> FloatArray:
        """(rounds, clients): the noise of a round, in multiples of each client's clip."""
        return self.schedules.wide("noise_multiplier")

    @property
    def sampling_rate(self) -> FloatArray:
        """(rounds, clients): the probability that a client takes part in a round."""
        return self.schedules.wide("sampling_rate")

    @property
    def clip_norm(self) -> FloatArray:
        """(rounds, clients): the largest norm of a client's update."""
        return self.schedules.wide("clip_norm")

    @property
    def names(self) -> tuple[str, ...]:
        return self.clients

    @property
    def owner(self) -> IntArray:
        return np.arange(len(self.clients))

    @property
    def left_out(self) -> IntArray:
        """Nobody: a plan of clients lists no client without a budget to spend."""
        return np.zeros(0, dtype=np.int64)

    @property
    def who(self) -> str:
        return counted(len(self.clients), "client")

    @property
    def headline(self) -> str:
        return self.policy

    @property
    def discrete(self) -> bool:
        """Whether the claims are meant for discrete noise; they hold for continuous noise too."""
        return self.parameters.get("noise") == "discrete"

    @property
    def grid_steps(self) -> int | None:
        """Discrete noise: how many steps of its grid it must have at least for the claims to hold.
        None where it is continuous, and in plans of version 0.1, which are read at whole orders.
        """
        return self.parameters.get("grid_steps")

    @property
    def bit_noise(self) -> float | None:
        """Deviation of the noise on the sum of clip bits, if the plan states one."""
        return self.parameters.get(BIT_NOISE)

    @property
    def metric_noise(self) -> float | None:
        """Deviation of the noise on the sum of private metrics; None: none is released."""
        return self.parameters.get(METRIC_NOISE)

    @property
    def accountant_known(self) -> bool:
        """Whether the accountant that made the claims is loaded: a user's own may not be."""
        return self.accountant in ACCOUNTANTS

    @cached_property
    def accounted_noise(self) -> FloatArray:
        """(rounds, schedules): continuous noise that costs no less than the plan's."""
        return accounted(self.schedules.noise_multiplier, self.grid_steps)

    @cached_property
    def update_noise(self) -> FloatArray:
        """(rounds, schedules): noise multipliers of updates alone, where a bit or a metric that the
        plan states takes its part of the round.
        """
        return left_for_updates(self.schedules.noise_multiplier, self.bit_noise, self.metric_noise)

    @cached_property
    def round_noise(self) -> FloatArray:
        """s_t, the harmonic mean of the noise multipliers of the clients' updates.

        The noise added in round t has deviation `clip * clip_factors[t] * s_t`.
        """
        return harmonic_mean(self.update_noise, self.schedules.clients_of)

    @cached_property
    def clip_factors(self) -> FloatArray:
        """(rounds,): the clip of each round relative to `clip`; 1 in plans that state none."""
        stated = self.parameters.get("clip_factors")
        return np.ones(self.rounds) if stated is None else np.array(stated, dtype=np.float64)

    @property
    def dropped_rounds(self) -> int:
        """How many rounds at the end were not planned, since their clip would be 0."""
        return int(self.parameters.get("dropped_rounds", 0))

    @cached_property
    def round_deviation(self) -> FloatArray:
        """Standard deviation of the noise on the sum of updates, by round."""
        deviation: FloatArray = self.clip * self.clip_factors * self.round_noise
        return deviation

    @cached_property
    def round_rate(self) -> FloatArray:
        """Mean sampling rate of each round.

        The sum of updates is divided by `clients * round_rate`.
        """
        weights = self.schedules.clients_of
        mean: FloatArray = (self.schedules.sampling_rate * weights).sum(axis=1) / weights.sum()
        return mean

    @property
    def noise_of_average(self) -> list[float]:
        """By round, the standard deviation of the noise in a coordinate of the averaged update.

        It is c_t * s_t / (N * qbar_t), where c_t is the clip of the round.
        """
        deviation: list[float] = (
            self.round_deviation / (len(self.clients) * self.round_rate)
        ).tolist()
        return deviation

    def spent(self) -> FloatArray:
        """Cumulative epsilon after each round, (rounds, clients), by the plan's own accountant."""
        return self.spent_by_schedule()[:, self.schedules.of_client]

    def spent_by_schedule(self) -> FloatArray:
        """Like `spent`, but (rounds, schedules)."""
        return self._spent

    @cached_property
    def _spent(self) -> FloatArray:
        check_loaded(self.accountant)
        noise, rate = self.accounted_noise, self.schedules.sampling_rate
        return ACCOUNTANTS[self.accountant].after_each_round(noise, rate, self.delta, self.orders)

    def content(self) -> Content:
        from fedspend.planning.plan_file import to_content

        return to_content(self)

    @classmethod
    def kind(cls) -> Kind[Plan]:
        from fedspend.planning.plan_file import CLIENT_PLAN

        return CLIENT_PLAN

    def verify(
        self,
        *,
        colluders: int = 0,
        progress: OnProgress | None = None,
        seed: int = 0,
        max_pld: int = 200,
    ) -> Verification:
        """Check the plan with accountants that share no code with the planner."""
        from fedspend.verification.verify import verify_clients

        return verify_clients(
            self, colluders=colluders, progress=progress, seed=seed, max_pld=max_pld
        )

    def proposal(self) -> Proposal:
        """What the ledger is asked to admit: every client, by schedule."""
        from fedspend.ledger.rules import Proposal

        return Proposal(
            names=self.clients,
            budgets=self.budget,
            delta=self.delta,
            of_class=self.schedules.of_client,
            rate=self.schedules.sampling_rate,
            noise=self.accounted_noise,
            plan=self.hash,
            method=str(self.parameters.get("method", "")),
            accountant=self.accountant,
            order=self.schedules.order,
            unit=self.unit,
            discrete=self.discrete and self.grid_steps is None,
            grid_steps=self.grid_steps,
        )

    def shows_others(self) -> str | None:
        """Why what may be shown of one unit would tell budgets of others; None if it does not."""
        from fedspend.planning.disclosure import shows_others

        return shows_others(self)

    def bound(self, slack: float = 0.0) -> Plan:
        """A plan of one made-up client that costs no less than any client of this one."""
        from fedspend.planning.disclosure import bound

        return bound(self, slack)

    def part_of(self, client: int) -> Plan:
        """What this plan says about one client."""
        from fedspend.planning.disclosure import part_of

        return part_of(self, client)

    def covers(self, own: AnyPlan) -> bool:
        """Of a bound: whether no client in `own` can cost more than it."""
        from fedspend.planning.disclosure import covers

        if own.unit != self.unit:
            return False
        mine = Plan.expect(own, "a plan of clients")
        return (mine.delta, mine.discrete, mine.grid_steps) == (
            self.delta,
            self.discrete,
            self.grid_steps,
        ) and covers(self.schedules, mine.schedules)

    def planned_facts(self, round: int) -> dict[str, Any]:  # noqa: ARG002
        """Nothing: the server's own statistics say everything."""
        return {}

    def extended(
        self,
        begun: int,
        more: int,
        *,
        spent: Mechanisms,
        elsewhere: Mechanisms,
        of_unit: IntArray,
        lifetime: FloatArray,
    ) -> Plan:
        """The plan with more rounds, and more noise in all rounds not yet begun."""
        from fedspend.planning.replanning import extended

        del spent  # it follows from the rounds already begun, which stay in the plan
        return extended(self, begun, more, elsewhere.take(of_unit), lifetime)

    def plot(self, *others: Plan, labels: Sequence[str] | None = None) -> Drawing:
        """Epsilon spent and noise by round, of this plan and of others with the same clients.

        `labels` are the clients' groups. `plan.plot().save("plan.png")`
        """
        from fedspend.report.drawing import drawing
        from fedspend.report.plots import draw

        named: dict[str, Plan] = {}
        for one in (self, *others):
            same = sum(name.partition(" (")[0] == one.policy for name in named)
            named[f"{one.policy} ({same + 1})" if same else one.policy] = one
        return drawing(lambda: draw(named, labels))

    def replace(self, **changes: Any) -> Plan:
        """A plan with some fields changed; tables and epsilons are given per client."""
        import dataclasses

        return dataclasses.replace(self, **changes)


def refuse_trial(plan: AnyPlan) -> None:
    """A trial's plan says what one trial costs, which is not what the tune costs."""
    if TRIAL in plan.parameters:
        raise InvalidInput(
            "the plan is for one trial of a private tune, and its budgets are not those of the "
            "clients; fedspend verify RUN_DIR says what the tune costs"
        )


def harmonic_mean(noise: FloatArray, clients_of: Any) -> FloatArray:
    """`(1/N sum_n 1/sigma_n)^-1` per round, over clients."""
    mean: FloatArray = clients_of.sum() / (clients_of / noise).sum(axis=1)
    return mean


def clip_norms(clip: FloatArray, noise: FloatArray, clients_of: Any) -> FloatArray:
    """The clip of every schedule, `c_n = c_t s_t / sigma_n`, for `clip` by round."""
    norms: FloatArray = (clip * harmonic_mean(noise, clients_of))[:, None] / noise
    return norms


def check_plan(plan: Plan) -> None:
    """Refuse a plan whose parts do not fit together; `verify` checks that it keeps its promise."""
    s, clients = plan.schedules, len(plan.clients)
    shape = (s.rounds, s.count)
    if not (s.rounds >= 1 and s.count >= 1 and clients >= 1):
        raise InvalidInput("a plan needs at least one round and one client")
    if not all(getattr(s, name).shape == shape for name in TABLES) or not all(
        getattr(s, name).shape == shape[1:] for name in VALUES
    ):
        raise InvalidInput(
            f"the plan's tables must all be {shape[0]} rounds x {shape[1]} schedules"
        )
    if plan.budget.shape != (clients,) or s.of_client.shape != (clients,):
        raise InvalidInput(
            f"the plan lists {clients} clients, {plan.budget.size} budgets and {s.of_client.size} "
            "schedule numbers"
        )
    if not (s.of_client.min() >= 0 and s.of_client.max() < s.count):
        raise InvalidInput(
            f"the plan has {s.count} schedules, but a client follows number "
            f"{int(s.of_client.max())}"
        )
    check_client_ids(plan.clients)
    check_epsilons(plan.budget)
    check_delta(plan.delta)
    check_orders(plan.orders)
    if not (np.isfinite(plan.clip) and plan.clip > 0):
        raise InvalidInput(f"clip must be positive and finite, got {plan.clip!r}")
    if not (isinstance(plan.accountant, str) and re.fullmatch(NAME, plan.accountant)):
        raise InvalidInput(f"accountant must be a name, got {plan.accountant!r}")
    check_clip_factors(plan)
    steps = plan.parameters.get("grid_steps")
    if steps is not None and not (
        plan.discrete
        and isinstance(steps, int)
        and not isinstance(steps, bool)
        and FEWEST_STEPS <= steps <= 2**62
    ):
        raise InvalidInput(
            f"grid_steps must be a whole number of at least {FEWEST_STEPS}, for discrete noise; "
            f"got {steps!r}"
        )
    for name in (BIT_NOISE, METRIC_NOISE):
        noise = plan.parameters.get(name)
        if noise is not None and not (type(noise) is float and 0 < noise < np.inf):
            raise InvalidInput(f"{name} must be a positive number, got {noise!r}")
    if not isinstance(plan.parameters.get("policy"), str):
        raise InvalidInput("the plan's parameters do not name a policy")
    for name in TABLES:
        array = getattr(s, name)
        if not np.all(np.isfinite(array) & (array > 0)):
            raise InvalidInput(f"{name} must be positive and finite everywhere in a plan")
    if not np.all(s.sampling_rate <= 1):
        raise InvalidInput(f"sampling_rate must be at most 1, got {float(s.sampling_rate.max())!r}")
    if not np.all(np.isfinite(s.epsilon) & (s.epsilon >= 0) & np.isfinite(s.order)):
        raise InvalidInput("every claimed epsilon must be finite and not negative")


def check_loaded(accountant: str) -> None:
    """Refuse to go on with a plan whose claims cannot be followed round by round here."""
    if accountant not in ACCOUNTANTS:
        raise InvalidInput(
            f"the plan was made by the accountant {accountant!r}, which is not loaded here; load "
            "its file with --load, or import it first"
        )


def check_clip_factors(plan: Plan) -> None:
    """One positive number per round, where a plan states them; `verify` compares the clips."""
    factors, dropped = plan.parameters.get("clip_factors"), plan.parameters.get("dropped_rounds", 0)
    if factors is not None and not (
        isinstance(factors, list)
        and len(factors) == plan.rounds
        and all(type(one) in (float, int) and 0 < one <= sys.float_info.max for one in factors)
    ):
        raise InvalidInput(
            f"clip_factors of a plan must be {plan.rounds} positive numbers that doubles hold, one "
            "per round"
        )
    if not (type(dropped) is int and dropped >= 0):
        raise InvalidInput(f"dropped_rounds of a plan must be a whole number, got {dropped!r}")


def check_client_ids(clients: Sequence[str]) -> None:
    """Client ids are non-empty and distinct."""
    if not all(isinstance(name, str) and name.strip() for name in clients):
        bad = next(name for name in clients if not (isinstance(name, str) and name.strip()))
        raise InvalidInput(f"client ids must be non-empty strings, got {bad!r}")
    if len(set(clients)) < len(clients):
        twice = next(name for name, count in Counter(clients).items() if count > 1)
        raise InvalidInput(f"client id {twice!r} appears twice; every client needs its own")
