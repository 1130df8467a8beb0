"""Makes a plan from a request.

It checks the terms, lets the policy spend each distinct budget, lets the accountant remove noise
that is not needed, and assigns the schedules to the clients.

Guarantee: every schedule has been sealed by the exact kernel at its budget, and an accountant
removes noise only while its own reading stays within that budget.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, overload

import numpy as np

from fedspend.accounting.accountants import (
    ACCOUNTANTS,
    AUTO,
    FEW_ROUNDS,
    FEW_SCHEDULES,
    LARGEST_PLD_BUDGET,
    LEAST_PLD_DELTA,
    PLD,
    Accountant,
)
from fedspend.accounting.calibration import check_epsilons
from fedspend.accounting.mechanisms import Mechanisms
from fedspend.accounting.smoothing import drawn, steps_of
from fedspend.basics.arrays import FloatArray, IntArray, distinct_rows
from fedspend.basics.door import public
from fedspend.basics.progress import OnProgress
from fedspend.budgets.identity import as_mapping, read_ids
from fedspend.errors import InvalidInput, Refused, whole_number
from fedspend.noise.grid import check_bits
from fedspend.planning.clipping import check_round_clips, checked_rates, round_clips
from fedspend.planning.columns import by_client, column_of
from fedspend.planning.influence import (
    Foresight,
)
from fedspend.planning.parts import with_parts
from fedspend.planning.plan import Plan, check_client_ids, clip_norms, harmonic_mean
from fedspend.planning.policies import (
    Policy,
    Spending,
    Terms,
    Wish,
    by_itself,
    one_for_all,
)
from fedspend.planning.policies.constant import UNIFORM
from fedspend.planning.protocol import AnyPlan
from fedspend.planning.request import PlanRequest
from fedspend.planning.request_checks import (
    check_past,
    check_size,
    checked_accountant,
    checked_policy,
    checked_terms,
    foresight_of,
    saving_terms,
    warn_of_delta,
    weights_of,
)
from fedspend.planning.schedules import Schedules

MAX_EXACT_SCHEDULES = 4096
BUDGET_ROUNDING = 5e-4
# why `auto` chose an accountant: reasons that say nothing about single budgets
FEW = f"at most {FEW_SCHEDULES} distinct schedules"
ON_TOP_OF_PAST = "what was spent before is composed at one Rényi order"
SMALL_DELTA = f"a delta below {LEAST_PLD_DELTA:g}"
BY_PUBLIC_TERMS = tuple(f"{AUTO}: {reason}" for reason in (FEW, ON_TOP_OF_PAST, SMALL_DELTA))


@overload
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
    accountant: str = AUTO,
    weights: Any = None,
    clients: Sequence[str] | None = None,
    method: str | None = None,
    noise: str = "continuous",
    bits: int = 32,
    bit_noise: float | None = None,
    metric_noise: float | None = None,
    clip_schedule: Any = None,
    learning_rates: Any = None,
    contraction: float | None = None,
    influence: Any = None,
    tail: int | None = None,
    server_momentum: float = 0.0,
    past: Mechanisms | None = None,
    options: Mapping[str, Any] | None = None,
    progress: OnProgress | None = None,
) -> Plan: ...


@overload
def plan(
    *,
    config: str | Path | Mapping[str, Any],
    overrides: Sequence[str] = (),
    progress: OnProgress | None = None,
) -> AnyPlan: ...


@public
def plan(
    epsilons: Any = None,
    *,
    delta: float | None = None,
    rounds: int | None = None,
    rate: float | None = None,
    policy: str | None = None,
    saving_rate: Any = None,
    transition: Any = None,
    clip: float = 1.0,
    accountant: str = AUTO,
    weights: Any = None,
    clients: Sequence[str] | None = None,
    method: str | None = None,
    noise: str = "continuous",
    bits: int = 32,
    bit_noise: float | None = None,
    metric_noise: float | None = None,
    clip_schedule: Any = None,
    learning_rates: Any = None,
    contraction: float | None = None,
    influence: Any = None,
    tail: int | None = None,
    server_momentum: float = 0.0,
    past: Mechanisms | None = None,
    options: Mapping[str, Any] | None = None,
    progress: OnProgress | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    overrides: Sequence[str] = (),
) -> AnyPlan:
    """Make the whole schedule for one budget per client, spending every budget exactly.

    Budgets and terms are given here, or by a config, as for `fedspend plan CONFIG`.

    Arguments:
        epsilons: one budget for all, one per client, or budgets by client id: a dict, or a pandas
            Series with the ids as its index.
        delta: of every budget.
        rounds: how many rounds are planned.
        rate: the probability that a client takes part in a round.
        clients: the clients' ids. Where neither they nor `epsilons` have ids, clients are "0", "1",
            ...
        policy: how a budget is spread over rounds. By default a saving rate means
            `spend-as-you-go`, weights mean `weights`, and neither means `optimal`, which puts noise
            where it does the least harm to the model that is handed out.
        contraction: policy `optimal`: the part of a push against the model that one round leaves.
            Without one it does well for all from 0.5 to 1. What is expected is in
            `parameters["expected"]`.
        influence: in place of a contraction, for each round what part of a push in it is left at
            the end.
        tail: policy `optimal`: the model handed out is the mean of this many last iterates.
        server_momentum: policy `optimal`: momentum of the server's steps.
        saving_rate, transition: policies that save: the rate before the round `transition` (the
            middle one); for all, per client, or by id.
        weights: policies `weights` (one number per round) and `geometric` (the ratio).
        clip: the clip norm of the average client.
        clip_schedule: the clip of a round is `clip` times its factor: "constant", one number per
            round, or "lr", relative to `learning_rates`, which is the default where they are given.
        learning_rates: one number per round, relative. Under "lr", a round at the end whose
            learning rate is 0 is not planned.
        accountant: "rdp" (Rényi curves, 4 to 7% more noise), "pld" (privacy loss distributions), or
            "auto": "pld" where schedules are few; the plan says which, and why.
        noise: "continuous", "discrete", or "discrete-distributed", where every client adds a part.
            A discrete plan has a hair more noise, and says how many steps of its grid the noise
            must have at least. `bits` is the size of the sums.
        bit_noise, metric_noise: clients also report whether their update was within its clip, or
            how well the model does on rows that they hold out: the deviation of the noise on the
            sum of each, which is paid out of every round.
        method: the method that the plan is for; it may only have some of the policies.
        past: one history per client, what a ledger says was spent before (`Ledger.past`).
            `epsilons` are then lifetime budgets, which past and plan together spend exactly, and
            `Plan.epsilon` is the epsilon of the plan alone.
        options: the named arguments of your own policy.
        progress: called with (done, total) while a large plan is made.
        config: in place of all others but `progress`: a TOML file or a dict of sections. The plan
            is the one that training with it would make.
        overrides: `["train.rounds=10", ...]`, of the config.

    Returns:
        A `Plan`: `.noise_multiplier`, `.sampling_rate` and `.clip_norm` (rounds, clients),
        `.spent()`, `.save("plan.json")`, `.plot()`; for a config with a record-level method a
        `RecordPlan`.

    Raises:
        InvalidInput: an argument is wrong, or none of the budgets can be spent this way.
        Refused: the past leaves a client nothing to spend.

    >>> budgets = [10.0] * 34 + [20.0] * 43 + [30.0] * 23
    >>> made = plan(budgets, delta=1e-5, rounds=25, rate=0.9, saving_rate=0.5)
    >>> made.noise_multiplier.shape, [round(float(x), 3) for x in made.noise_multiplier[[0, -1], 0]]
    ((25, 100), [2.285, 1.854])
    >>> plan({"north": 2.0, "south": 8.0}, delta=1e-2, rounds=5, rate=1.0).clients
    ('north', 'south')

    `plan(config="quickstart.toml", overrides=["privacy.rate=0.5"]).save("plan.json")`
    """
    if config is not None:
        from fedspend.configuration.planned import plan_of_config

        _refuse_beside_config(locals())
        return plan_of_config(config, overrides, progress)
    if epsilons is None or delta is None or rounds is None or rate is None:
        needed = {"epsilons": epsilons, "delta": delta, "rounds": rounds, "rate": rate}
        missing = " and ".join(f"{name}=" for name, value in needed.items() if value is None)
        raise InvalidInput(f"plan also needs {missing}; see help(fedspend.plan)")
    if overrides:
        raise InvalidInput("overrides are for a config; give config, or drop them")
    if past is not None and not isinstance(past, Mechanisms):
        raise InvalidInput(f"past must be what Ledger.past gives, got {type(past).__name__}")
    if options is not None and not isinstance(options, Mapping):
        raise InvalidInput(
            f"options must be a dict of your own policy's arguments, got {options!r}"
        )
    from fedspend.server.methods.adaptive_clip import ADAPTIVE_CLIP

    budget, ids = budgets_by_id(epsilons, clients)
    request = PlanRequest(
        epsilons=budget,
        clients=ids,
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
        bits=bits,
        bit=method == ADAPTIVE_CLIP.name,
        bit_noise=bit_noise,
        metric_noise=metric_noise,
        clip_schedule=clip_schedule,
        learning_rates=learning_rates,
        contraction=contraction,
        influence=influence,
        tail=tail,
        server_momentum=server_momentum,
        past=past,
        options={} if options is None else dict(options),
    )
    return make_plan(request, progress)


def _refuse_beside_config(given: Mapping[str, Any]) -> None:
    """A config says everything; what is given beside it would be left out silently."""
    for one in inspect.signature(plan).parameters.values():
        value = given[one.name]
        usual = value is None or (isinstance(value, str | int | float) and value == one.default)
        if not usual and one.name not in ("config", "overrides", "progress"):
            raise InvalidInput(
                f"config has all that a plan needs, and {one.name} is given, too; drop one of the "
                "two, or name it in overrides"
            )


def budgets_by_id(
    epsilons: Any, clients: Sequence[str] | None
) -> tuple[FloatArray, tuple[str, ...]]:
    """One budget per client, and the clients' ids: numbers, where nothing names them."""
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
    return budget, tuple(str(n) for n in range(budget.size)) if ids is None else ids


def make_plan(request: PlanRequest, progress: OnProgress | None = None) -> Plan:
    """The plan that is requested.

    Ids have been read already, from a file of budgets, the data or a ledger; they are not changed.
    """
    budget, ids = check_epsilons(request.epsilons), tuple(request.clients)
    if len(ids) != budget.size:
        raise InvalidInput(
            f"there must be one budget per client: got {budget.size} for {len(ids)} clients"
        )
    check_client_ids(ids)
    terms, clip = checked_terms(request)
    asked = checked_accountant(request)
    policy = checked_policy(request)
    weights = weights_of(policy, terms, request.weights)
    rates = checked_rates(request.learning_rates, terms.rounds)
    clips = round_clips(request.clip_schedule, terms.rounds, rates, request.method)
    check_round_clips(clip, clips)
    terms = replace(terms, rounds=terms.rounds - clips.dropped)
    weights, rates = weights[: terms.rounds], None if rates is None else rates[: terms.rounds]
    foresight = foresight_of(policy, request, terms, rates)
    saving, switch = saving_terms(
        policy, terms, request.saving_rate, request.transition, budget.size
    )
    warn_of_delta(terms.delta, budget.size)
    check_past(request.past, asked, budget.size)

    lines = distinct_lines(policy, terms, budget, saving, switch, request.past)
    check_size(terms.rounds, lines.first.size)
    wish = Wish(
        budget=lines.target[lines.first],
        saving_rate=saving[lines.first],
        transition=switch[lines.first].astype(np.int64),
        weights=weights,
        past=None if request.past is None else request.past.take(lines.first),
        importance=None if foresight is None else foresight.importance(clips.factors),
        clients_of=np.bincount(lines.of_client),
        options=request.options,
        progress=progress,
    )
    shaped, of_client = spend(policy, terms, wish, lines.of_client)
    accountant, spending, choice = accounted_by(asked, terms, wish, shaped)
    stated = {
        "policy": policy.name,
        "rate": terms.rate,
        "budget_rounding": lines.rounding,
        **({} if choice is None else {"accountant": choice}),
        **({} if request.method is None else {"method": request.method}),
        **({"weights": weights.tolist()} if policy.weighs else {}),
        **({} if clips.constant else {"clip_factors": clips.factors.tolist()}),
        **({"dropped_rounds": clips.dropped} if clips.dropped else {}),
        **({"options": dict(request.options)} if request.options else {}),
    }

    def assembled(spending: Spending) -> Plan:
        """The plan with these schedules, and with what bits and metrics take of them."""
        steps = grid_steps(request, spending, of_client)
        discrete = {} if steps is None else {"noise": "discrete", "grid_steps": steps}
        noise = drawn(spending.noise, steps)
        made = Plan(
            clients=ids,
            budget=budget,
            schedules=schedules_of(replace(spending, noise=noise), of_client, clip * clips.factors),
            delta=terms.delta,
            clip=clip,
            accountant=accountant.name,
            orders=terms.orders,
            parameters=stated | discrete,
        )
        return with_parts(made, request)

    made = assembled(spending)
    if foresight is None:
        return made
    ours, uniform = beside_uniform(accountant, terms, wish, shaped, spending, of_client)
    if ours is spending:
        return foreseen(foresight, made, assembled(uniform))
    expected = foresight.expected(
        *(assembled(one).round_deviation for one in (ours, uniform)),
    )
    return made.replace(parameters=made.parameters | {"expected": expected})


def foreseen(foresight: Foresight, ours: Plan, uniform: Plan) -> Plan:
    """The plan, stating what noise it leaves in the model, relative to `uniform`.

    Both are read as they will be drawn: after sealing, and after what bits and metrics take. If
    `uniform` is the better one after all, its schedules are taken.
    """
    expected = foresight.expected(ours.round_deviation, uniform.round_deviation)
    if not foresight.allows(expected):
        ours = uniform
        expected = foresight.expected(ours.round_deviation, uniform.round_deviation)
    return ours.replace(parameters=ours.parameters | {"expected": expected})


# --- from clients to distinct schedules, and back -------------------------------------------------


@dataclass(frozen=True, eq=False)
class Lines:
    """Clients that need the same schedule, counted as one."""

    target: FloatArray  # (clients,) the budget that each client's schedule is made for
    first: IntArray  # (schedules,) the first client that follows it
    of_client: IntArray  # (clients,) the schedule that each client follows
    rounding: float  # targets were rounded down by at most this share


def distinct_lines(
    policy: Policy,
    terms: Terms,
    budget: FloatArray,
    saving: FloatArray,
    switch: FloatArray,
    past: Mechanisms | None,
) -> Lines:
    """The distinct schedules; if there are too many, budgets are rounded down a little first."""
    history = np.zeros(budget.size, dtype=np.int64) if past is None else past.alike()
    target = np.full_like(budget, budget.min()) if policy.for_all and past is None else budget
    first, of_client = distinct_rows(target, saving, switch, history)
    if first.size <= MAX_EXACT_SCHEDULES:
        return Lines(target, first, of_client, 0.0)
    # What is left is rounded, not the budget: little may be left of a large budget.
    gone = (
        np.zeros_like(budget) if past is None else past.best(np.full(budget.size, terms.delta))[0]
    )
    target = np.minimum(gone + _rounded_down(budget - gone), budget)
    return Lines(target, *distinct_rows(target, saving, switch, history), BUDGET_ROUNDING)


def spend(
    policy: Policy, terms: Terms, wish: Wish, of_client: IntArray
) -> tuple[Spending, IntArray]:
    """The policy's schedule for each line, with the epsilon that the schedule spends alone."""
    spending = policy.spend(terms, wish)
    if wish.past is None:
        return spending, of_client
    if policy.for_all:  # all follow the client that needs the most noise
        spending, of_client = one_for_all(spending), np.zeros_like(of_client)
    return by_itself(spending, terms), of_client


def accounted_by(
    asked: Accountant | None, terms: Terms, wish: Wish, spending: Spending
) -> tuple[Accountant, Spending, str | None]:
    """The accountant, its schedules, and, if it was left to us, why it was chosen."""
    if asked is not None:
        return asked, fitted(asked, terms, wish, spending), None
    reason = reason_for_rdp(terms, wish, spending)
    if reason is None:
        try:
            fewest = fitted(ACCOUNTANTS[PLD], terms, wish, spending)
        except Refused:  # a tiny delta, or rounds that give away very little
            reason = "privacy loss distributions read no lower here"
        else:
            return ACCOUNTANTS[PLD], fewest, f"{AUTO}: {FEW}"
    return ACCOUNTANTS["rdp"], spending, f"{AUTO}: {reason}"


def beside_uniform(
    accountant: Accountant,
    terms: Terms,
    wish: Wish,
    shaped: Spending,
    spending: Spending,
    of_client: IntArray,
) -> tuple[Spending, Spending]:
    """The schedules, and those of `uniform` for the same budgets, by the same accountant.

    Where that accountant cannot read `uniform`, both are as Rényi curves made them.
    """
    uniform = spend(UNIFORM, terms, wish, of_client)[0]
    try:
        return spending, fitted(accountant, terms, wish, uniform)
    except Refused:
        return shaped, uniform


def reason_for_rdp(terms: Terms, wish: Wish, spending: Spending) -> str | None:
    """Why `auto` stays with Rényi curves, or None."""
    if wish.past is not None:
        return ON_TOP_OF_PAST
    if terms.delta < LEAST_PLD_DELTA:
        return SMALL_DELTA
    if spending.epsilon.size > FEW_SCHEDULES:
        return f"more than {FEW_SCHEDULES} distinct schedules"
    rounds = [
        np.unique(np.stack(pair), axis=1).shape[1]
        for pair in zip(spending.noise.T, spending.rate.T, strict=True)
    ]
    if max(rounds) > FEW_ROUNDS:
        return f"more than {FEW_ROUNDS} different rounds"
    if wish.budget.max() > LARGEST_PLD_BUDGET:
        return f"a budget above {LARGEST_PLD_BUDGET:g}"
    return None


def fitted(accountant: Accountant, terms: Terms, wish: Wish, spending: Spending) -> Spending:
    """The schedules with as little noise as the accountant allows."""
    if accountant.at_orders:
        return spending
    # The literal policy leaves part of the budget unspent, and must do so here too: aim at what the
    # Rényi plan spends.
    goal = np.minimum(wish.budget, spending.epsilon * (1 + 2e-8))
    noise, claim = accountant.fit(spending.noise, spending.rate, goal, terms.delta, wish.progress)
    return Spending(noise, spending.rate, claim, np.zeros(claim.size))


def grid_steps(request: PlanRequest, spending: Spending, of_client: IntArray) -> int | None:
    """How many steps of its grid discrete noise has at least; None for continuous noise."""
    if request.noise == "continuous":
        return None
    return steps_of(
        round_noise(spending, of_client),
        of_client.size,
        check_bits(whole_number("bits", request.bits, 1)),
        distributed=request.noise == "discrete-distributed",
    )


def round_noise(spending: Spending, of_client: IntArray) -> FloatArray:
    """s_t, the harmonic mean of the clients' noise, by round."""
    return harmonic_mean(spending.noise, np.bincount(of_client, minlength=spending.epsilon.size))


def schedules_of(spending: Spending, of_client: IntArray, clip: FloatArray) -> Schedules:
    """The schedules, with every client's clip: `c_n = c_t s_t / sigma_n`, for `clip` by round."""
    clients_of = np.bincount(of_client, minlength=spending.epsilon.size)
    return Schedules(
        noise_multiplier=spending.noise,
        sampling_rate=spending.rate,
        clip_norm=clip_norms(clip, spending.noise, clients_of),
        epsilon=spending.epsilon,
        order=spending.order,
        of_client=of_client,
    )


def _rounded_down(budget: FloatArray) -> FloatArray:
    """Every budget rounded down by at most 0.05%, onto a geometric grid.

    With very many distinct budgets, this bounds the size of the plan and the time to make and
    verify it.
    """
    grid = np.exp(np.floor(np.log(budget) / BUDGET_ROUNDING) * BUDGET_ROUNDING)
    return np.minimum(grid, budget)  # the last digits of exp(log x) must not push it above
