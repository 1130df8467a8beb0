"""The plan: a frozen table, made before training, of every client's sampling rate, clip and noise
in every round.

Guarantee: a plan depends on budgets and public parameters only, never on data, so making, saving
and showing one costs no privacy. A client that follows its column of the plan, with zero-out
adjacency and hidden participation, has spent at most `Plan.epsilon` at `Plan.delta`.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

from fedspend.accounting.calibration import check_epsilons, check_rate, stretches
from fedspend.accounting.conversion import check_delta, conversion_cost
from fedspend.accounting.curves import curve
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.rdp import ORDERS, WHOLE_ORDERS, check_orders, rdp
from fedspend.basics.arrays import FloatArray, IntArray, distinct_rows
from fedspend.basics.words import counted
from fedspend.budgets.identity import as_mapping, hint_alike, read_ids
from fedspend.errors import FedspendWarning, InvalidInput, finite_number, whole_number
from fedspend.planning import policies
from fedspend.planning.base import BasePlan
from fedspend.planning.plan_json import Content, Kind
from fedspend.planning.schedules import TABLES, VALUES, Schedules

if TYPE_CHECKING:
    from fedspend.basics.progress import OnProgress as Progress
    from fedspend.ledger.rules import Proposal
    from fedspend.planning.protocol import Unit
    from fedspend.verification.findings import Verification

ADJACENCY = (
    "zero-out: one client's whole contribution becomes zero; roster, budgets and plan stay fixed"
)
ACCOUNTANTS = ("rdp", "pld")
NOISES = ("continuous", "discrete")
MAX_EXACT_SCHEDULES = 4096
BUDGET_ROUNDING = 5e-4
MAX_CELLS = 50_000_000  # rounds x schedules
OBSERVER = "other clients and the public, who see every released model and do not see who took part"


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Plan(BasePlan):
    """Schedules for all clients, the claim for each, and what is needed to check it."""

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
        """`wide` takes `noise_multiplier`, `sampling_rate`, `clip_norm` (rounds, clients),
        `epsilon` and `order` (clients,) to put in place of what `schedules` holds; so does
        `dataclasses.replace`.
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
        return self.schedules.wide("noise_multiplier")

    @property
    def sampling_rate(self) -> FloatArray:
        return self.schedules.wide("sampling_rate")

    @property
    def clip_norm(self) -> FloatArray:
        return self.schedules.wide("clip_norm")

    @property
    def names(self) -> tuple[str, ...]:
        return self.clients

    @property
    def owner(self) -> IntArray:
        return np.arange(len(self.clients))

    @property
    def left_out(self) -> IntArray:
        """None: a client without a budget to spend has no place in a plan of clients."""
        return np.zeros(0, dtype=np.int64)

    @property
    def who(self) -> str:
        return counted(len(self.clients), "client")

    @property
    def headline(self) -> str:
        return self.policy

    @property
    def discrete(self) -> bool:
        """Whether the claims are meant for discrete noise;
        they hold for continuous noise as well.
        """
        return self.parameters.get("noise") == "discrete"

    @cached_property
    def round_noise(self) -> FloatArray:
        """s_t, the harmonic mean of the clients' noise multipliers: the noise added in round t has
        deviation `clip * s_t`.
        """
        return harmonic_mean(self.schedules.noise_multiplier, self.schedules.clients_of)

    @cached_property
    def round_rate(self) -> FloatArray:
        """Mean sampling rate of each round: the sum of updates is divided by
        `clients * round_rate`.
        """
        weights = self.schedules.clients_of
        mean: FloatArray = (self.schedules.sampling_rate * weights).sum(axis=1) / weights.sum()
        return mean

    @property
    def noise_of_average(self) -> list[float]:
        """Standard deviation, by round, of the noise in each coordinate of the averaged update:
        clip * s_t / (N * qbar_t).
        """
        deviation: list[float] = (
            self.clip * self.round_noise / (len(self.clients) * self.round_rate)
        ).tolist()
        return deviation

    def spent(self) -> FloatArray:
        """Cumulative epsilon after each round, (rounds, clients), by the plan's own accountant."""
        return self.spent_by_schedule()[:, self.schedules.of_client]

    def spent_by_schedule(self) -> FloatArray:
        """The same, (rounds, schedules)."""
        return self._spent

    @cached_property
    def _spent(self) -> FloatArray:
        noise, rate = self.schedules.noise_multiplier, self.schedules.sampling_rate
        if self.accountant == "pld":
            from fedspend.accounting.pld import cumulative_epsilon

            return cumulative_epsilon(noise, rate, self.delta)
        return cumulative_epsilon_rdp(noise, rate, self.delta, self.orders)

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
        progress: Progress | None = None,
        seed: int = 0,
        max_pld: int = 200,
    ) -> Verification:
        """Checked by accountants that share no code with the planner."""
        from fedspend.verification.verify import verify_clients

        return verify_clients(
            self, colluders=colluders, progress=progress, seed=seed, max_pld=max_pld
        )

    def proposal(self) -> Proposal:
        """What the ledger is asked for: every client, by schedule."""
        from fedspend.ledger.rules import Proposal

        return Proposal(
            names=self.clients,
            budgets=self.budget,
            delta=self.delta,
            of_class=self.schedules.of_client,
            rate=self.schedules.sampling_rate,
            noise=self.schedules.noise_multiplier,
            plan=self.hash,
            method=str(self.parameters.get("method", "")),
            accountant=self.accountant,
            order=self.schedules.order,
            unit=self.unit,
            discrete=self.discrete,
        )

    def planned_facts(self, round: int) -> dict[str, Any]:  # noqa: ARG002
        """Nothing: the server's own statistics say it all."""
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
        """More noise in the rounds to come."""
        from fedspend.planning.replanning import extended

        del spent  # it follows from the rounds that were begun, which stay in the plan
        return extended(self, begun, more, elsewhere.take(of_unit), lifetime)

    def replace(self, **changes: Any) -> Plan:
        """A plan with some fields changed; `noise_multiplier`, `sampling_rate`, `clip_norm`,
        `epsilon` are taken per client.
        """
        import dataclasses

        return dataclasses.replace(self, **changes)


def harmonic_mean(noise: FloatArray, clients_of: Any) -> FloatArray:
    """`(1/N sum_n 1/sigma_n)^-1` per round, over clients."""
    mean: FloatArray = clients_of.sum() / (clients_of / noise).sum(axis=1)
    return mean


def cumulative_epsilon_rdp(
    noise: FloatArray, rate: FloatArray, delta: float, orders: tuple[float, ...]
) -> FloatArray:
    """Epsilon after each round of each schedule, (rounds, schedules), by composing Rényi curves."""
    cost = conversion_cost(orders, delta)
    begins = stretches(noise, rate)
    # beyond, tabulated curves: the same to 1e-4 or better, and a thousand times faster
    exact = int(begins.sum()) <= 2000
    out = np.empty(noise.shape)
    for first in range(0, noise.shape[1], 256):
        block = slice(first, first + 256)
        spent, current = (np.zeros((noise[:, block].shape[1], len(orders))) for _ in range(2))
        for t in range(noise.shape[0]):
            rows = np.flatnonzero(begins[t, block])
            q, sigma = rate[t, block][rows], noise[t, block][rows]
            if exact and rows.size:
                current[rows] = rdp(q, sigma, orders)
            for value in () if exact else np.unique(q):
                mine = q == value
                current[rows[mine]] = curve(float(value), orders).rdp(np.log(sigma[mine]))
            spent += current
            out[t, block] = np.maximum((spent + cost).min(axis=1), 0.0)
    return out


def check_plan(plan: Plan) -> None:
    """Refuse a plan whose parts do not fit together. That it keeps its promise is for `verify` to
    say.
    """
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
    if plan.accountant not in ACCOUNTANTS:
        raise InvalidInput(
            f"accountant must be one of {', '.join(ACCOUNTANTS)}; got {plan.accountant!r}"
        )
    if not isinstance(plan.parameters.get("policy"), str):
        raise InvalidInput("the plan's parameters name no policy")
    for name in TABLES:
        array = getattr(s, name)
        if not np.all(np.isfinite(array) & (array > 0)):
            raise InvalidInput(f"{name} must be positive and finite everywhere in a plan")
    if not np.all(s.sampling_rate <= 1):
        raise InvalidInput(f"sampling_rate must be at most 1, got {float(s.sampling_rate.max())!r}")
    if not np.all(np.isfinite(s.epsilon) & (s.epsilon >= 0) & np.isfinite(s.order)):
        raise InvalidInput("every claimed epsilon must be finite and not negative")


def check_client_ids(clients: Sequence[str]) -> None:
    """Client ids are non-empty and distinct."""
    if not all(isinstance(name, str) and name.strip() for name in clients):
        bad = next(name for name in clients if not (isinstance(name, str) and name.strip()))
        raise InvalidInput(f"client ids must be non-empty strings, got {bad!r}")
    if len(set(clients)) < len(clients):
        twice = next(name for name, count in Counter(clients).items() if count > 1)
        raise InvalidInput(f"client id {twice!r} appears twice; every client needs its own")


def check_size(rounds: int, schedules: int) -> None:
    """A slip of the finger should not fill the memory."""
    if rounds * schedules > MAX_CELLS:
        raise InvalidInput(
            f"{rounds} rounds of {schedules} distinct schedules are more than a plan can hold; use "
            "fewer rounds"
        )


def plan(
    epsilons: Any,
    *,
    delta: float,
    rounds: int,
    rate: float,
    policy: str | None = None,
    saving_rate: Any = None,
    transition: Any = None,
    clip: float = 1.0,
    accountant: str = "rdp",
    weights: Any = None,
    clients: Sequence[str] | None = None,
    method: str | None = None,
    noise: str = "continuous",
    past: Mechanisms | None = None,
    progress: policies.Progress | None = None,
) -> Plan:
    """Make the whole schedule for one budget per client, spending every budget exactly.

    `epsilons`, `saving_rate` and `transition` are one value for all, one per client, or values by
    client id: a dict, or a pandas Series with the ids as its index. Ids come from `clients`, or
    from `epsilons`; where neither has them, clients are "0", "1", ... Without a policy, a saving
    rate means `spend-as-you-go` (transition: the middle round) and none means `uniform`. A plan for
    `noise="discrete"` is read at whole orders, where its claims are proven for discrete noise too.

    `past`, one history per client, is what a ledger says was spent before: `epsilons` are then
    lifetime budgets, past and plan together spend them exactly, and `Plan.epsilon` is what the plan
    adds, read by itself.

    >>> budgets = [10.0] * 34 + [20.0] * 43 + [30.0] * 23
    >>> made = plan(budgets, delta=1e-5, rounds=25, rate=0.9, saving_rate=0.5)
    >>> made.noise_multiplier.shape, [round(float(x), 3) for x in made.noise_multiplier[[0, -1], 0]]
    ((25, 100), [2.424, 1.967])
    >>> plan({"north": 2.0, "south": 8.0}, delta=1e-2, rounds=5, rate=1.0).clients
    ('north', 'south')
    """
    ids = None if clients is None else read_ids(clients)
    by_id = as_mapping(epsilons)
    if by_id is not None:
        ids = tuple(by_id) if ids is None else ids
        epsilons = column_of("epsilons", by_id, ids)
    budget = np.atleast_1d(check_epsilons(epsilons))
    if budget.ndim != 1:
        raise InvalidInput(
            f"epsilons must be a number or a list, got an array of shape {budget.shape}"
        )
    if ids is not None and budget.size == 1 and np.ndim(epsilons) == 0:
        budget = np.full(len(ids), budget[0])
    ids = tuple(str(n) for n in range(budget.size)) if ids is None else ids
    return plan_for(
        budget,
        ids,
        delta=delta,
        rounds=rounds,
        rate=rate,
        policy=policy,
        saving_rate=by_client("saving_rate", saving_rate, ids),
        transition=by_client("transition", transition, ids),
        clip=clip,
        accountant=accountant,
        weights=weights,
        method=method,
        noise=noise,
        past=past,
        progress=progress,
    )


def by_client(name: str, values: Any, ids: Sequence[str]) -> Any:
    """Values by id as a column in the order of the clients; whatever else was given as it is."""
    by_id = as_mapping(values)
    return values if by_id is None else column_of(name, by_id, ids)


def column_of(name: str, by_id: dict[str, Any], ids: Sequence[str]) -> list[Any]:
    """One value for every client, found by its id; both sides must have the same clients."""
    missing = next((client for client in ids if client not in by_id), None)
    if missing is not None:
        raise InvalidInput(
            f"{name} has no value for client {missing!r}{hint_alike(missing, by_id)}; give every "
            "client one"
        )
    listed = set(ids)
    stranger = next((client for client in by_id if client not in listed), None)
    if stranger is not None:
        raise InvalidInput(
            f"{name} has a value for client {stranger!r}, who is not among the "
            f"clients{hint_alike(stranger, listed)}; make them agree"
        )
    return [by_id[client] for client in ids]


def plan_for(
    epsilons: Any,
    clients: Sequence[str],
    *,
    delta: float,
    rounds: int,
    rate: float,
    policy: str | None = None,
    saving_rate: Any = None,
    transition: Any = None,
    clip: float = 1.0,
    accountant: str = "rdp",
    weights: Any = None,
    method: str | None = None,
    noise: str = "continuous",
    past: Mechanisms | None = None,
    progress: policies.Progress | None = None,
) -> Plan:
    """The same for names that have entered already, through a file of budgets, the data or a
    ledger: they are taken as they are.
    """
    budget, ids = check_epsilons(epsilons), tuple(clients)
    if len(ids) != budget.size:
        raise InvalidInput(
            f"there must be one budget per client: got {budget.size} for {len(ids)} clients"
        )
    check_client_ids(ids)
    if noise not in NOISES:
        raise InvalidInput(f"noise must be one of {', '.join(NOISES)}; got {noise!r}")
    orders = (
        WHOLE_ORDERS
        if noise == "discrete" or (past is not None and bool(past.discrete.any()))
        else ORDERS
    )
    terms = policies.Terms(
        check_delta(delta), check_rate("rate", rate), whole_number("rounds", rounds, 1), orders
    )
    check_size(terms.rounds, 1)
    clip = finite_number("clip", clip)
    if not clip > 0:
        raise InvalidInput(f"clip must be positive, got {clip!r}")
    if accountant not in ACCOUNTANTS:
        raise InvalidInput(
            f"accountant must be one of {', '.join(ACCOUNTANTS)}; got {accountant!r}"
        )
    if noise == "discrete" and accountant != "rdp":
        raise InvalidInput(
            "accountant 'pld' is for continuous noise: no loss distribution is proven for discrete "
            "noise; use 'rdp'"
        )
    chosen = policies.policy_for(
        method, policy, saves=saving_rate is not None, weighted=weights is not None
    )
    saving, switch = _saving_terms(chosen, terms, saving_rate, transition, budget.size)
    if weights is not None and chosen not in policies.WEIGHTED:
        raise InvalidInput(
            f"weights are for the policies {' and '.join(policies.WEIGHTED)}, not for {chosen!r}; "
            "drop one of the two"
        )
    shares = (
        policies.round_weights(chosen, weights, terms.rounds)
        if chosen in policies.WEIGHTED
        else np.ones(terms.rounds)
    )
    if terms.delta >= 1 / budget.size:
        warnings.warn(
            f"delta {terms.delta:g} is at or above 1/clients = {1 / budget.size:g}: it allows "
            "giving away one client whole; choose a smaller delta",
            FedspendWarning,
            stacklevel=3,
        )

    if past is not None and (past.histories != budget.size or accountant == "pld"):
        raise InvalidInput(
            "planning with past spending goes by accountant 'rdp'; drop accountant 'pld'"
            if accountant == "pld"
            else (
                f"there must be one history per client: got {past.histories} for {budget.size} "
                "clients"
            )
        )

    history = np.zeros(budget.size, dtype=np.int64) if past is None else past.alike()
    target = (
        np.full_like(budget, budget.min()) if chosen == "strictest" and past is None else budget
    )
    rounding = 0.0
    first, of_client = distinct_rows(target, saving, switch, history)
    if first.size > MAX_EXACT_SCHEDULES:
        # What is left is rounded, not the budget: little may be left of much.
        gone = (
            np.zeros_like(budget)
            if past is None
            else past.best(np.full(budget.size, terms.delta))[0]
        )
        target, rounding = np.minimum(gone + _rounded_down(budget - gone), budget), BUDGET_ROUNDING
        first, of_client = distinct_rows(target, saving, switch, history)
    check_size(terms.rounds, first.size)
    before = None if past is None else past.take(first)
    spending = policies.spend(
        chosen,
        terms,
        target[first],
        saving[first],
        switch[first].astype(np.int64),
        shares,
        progress,
        before,
    )
    if past is not None:
        if chosen == "strictest":  # all follow the one who needs most noise
            spending, of_client = policies.one_for_all(spending), np.zeros_like(of_client)
        spending = policies.by_itself(spending, terms)
    if accountant == "pld":
        from fedspend.accounting.pld import fit

        spending = fit(spending, target[first], terms, progress)
    s_t = harmonic_mean(spending.noise, np.bincount(of_client, minlength=spending.epsilon.size))
    schedules = Schedules(
        noise_multiplier=spending.noise,
        sampling_rate=spending.rate,
        clip_norm=clip * s_t[:, None] / spending.noise,
        epsilon=spending.epsilon,
        order=spending.order,
        of_client=of_client,
    )
    parameters: dict[str, Any] = {"policy": chosen, "rate": terms.rate, "budget_rounding": rounding}
    if noise == "discrete":
        parameters["noise"] = noise
    if method is not None:
        parameters["method"] = method
    if chosen in policies.WEIGHTED:
        parameters["weights"] = shares.tolist()
    return Plan(
        clients=ids,
        budget=budget,
        schedules=schedules,
        delta=terms.delta,
        clip=clip,
        accountant=accountant,
        orders=terms.orders,
        parameters=parameters,
    )


def _saving_terms(
    policy: str, terms: policies.Terms, saving_rate: Any, transition: Any, clients: int
) -> tuple[FloatArray, FloatArray]:
    """Saving rate and transition round of every client; neutral values for policies that do not
    save.
    """
    if policy not in policies.SAVING:
        given = (
            "saving_rate"
            if saving_rate is not None
            else "transition"
            if transition is not None
            else None
        )
        if given is not None:
            warnings.warn(
                f"{given} has no effect under policy {policy!r}", FedspendWarning, stacklevel=4
            )
        return np.full(clients, terms.rate), np.ones(clients)
    if saving_rate is None:
        raise InvalidInput(
            f"policy {policy!r} needs a saving rate: the lower sampling rate of the rounds before "
            "the transition"
        )
    saving = _per_client("saving_rate", saving_rate, clients)
    bad = ~((saving > 0) & (saving <= terms.rate))
    if bad.any():
        raise InvalidInput(
            f"saving_rate must lie in (0, {terms.rate:g}], at most the rate; got "
            f"{float(saving[bad][0])!r}"
        )
    switch = _per_client(
        "transition", terms.rounds // 2 + 1 if transition is None else transition, clients
    )
    bad = ~((switch >= 1) & (switch <= terms.rounds) & (switch == np.floor(switch)))
    if bad.any():
        raise InvalidInput(
            f"transition must be a round from 1 to {terms.rounds}; got {float(switch[bad][0]):g}"
        )
    # Nothing is saved at the full rate or before round 1: the same schedule as uniform, so share
    # its storage.
    saving = np.where(switch == 1, terms.rate, saving)
    return saving, np.where(saving == terms.rate, 1.0, switch)


def _per_client(name: str, value: Any, clients: int) -> FloatArray:
    try:
        array = np.asarray(value, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(
            f"{name} must be a number or one number per client, got {value!r}"
        ) from None
    if array.shape not in ((), (1,), (clients,)):
        raise InvalidInput(
            f"{name} must be one number or one per client: got {array.size} for {clients} clients"
        )
    return np.array(np.broadcast_to(array, (clients,)))


def _rounded_down(budget: FloatArray) -> FloatArray:
    """Every budget rounded down by at most 0.05%, onto a geometric grid.

    With very many distinct budgets this bounds the size of the plan, the time to make it and the
    time to verify it.
    """
    grid = np.exp(np.floor(np.log(budget) / BUDGET_ROUNDING) * BUDGET_ROUNDING)
    return np.minimum(grid, budget)  # the last digits of exp(log x) must not push it above
