"""The independent check of a plan. It shares no accounting code with the planner: `second_accountant` recomputes everything.

Guarantee: if `Verification.ok`, every client's claim is reproduced and within its budget, every pessimistic PLD epsilon that was
computed is within the budget too, and every clip belongs to its noise. Where PLD was only sampled, the reproduced Rényi bound
alone carries the guarantee, and the result says so. Conditions are written so that NaN fails them.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from fedspend.errors import FedspendError, InvalidInput
from fedspend.second_accountant import Runs, epsilon_at, fft_epsilon, pld_epsilon, pld_epsilons, renyi_divergence

if TYPE_CHECKING:
    from fedspend.planning import Plan
    from fedspend.schedules import Schedules

FloatArray = npt.NDArray[np.float64]
IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]
Progress = Callable[[int, int], None]

CLAIM_TOLERANCE = 1e-6
CLIP_TOLERANCE = 1e-9
PLD_TOLERANCE, FFT_TOLERANCE = 1e-4, 5e-3
LISTED = 20  # failures written out; the rest are counted
SHOWN = 20  # schedules for which all orders are read


@dataclass(frozen=True)
class Check:
    """One condition: whether it holds, for how many schedules it was looked at, by what, and the number nearest to failing."""

    name: str
    passed: bool
    schedules: int
    accountant: str
    worst: float
    meaning: str


@dataclass(frozen=True)
class Observer:
    """Epsilon against one kind of observer: by budget where there are few schedules, and its range over the schedules shown."""

    name: str
    assumption: str
    by_budget: tuple[tuple[float, float], ...]
    smallest: float
    median: float
    largest: float


@dataclass(frozen=True, eq=False)
class Verification:
    """What was checked, by which accountant, and what failed."""

    ok: bool
    plan_hash: str
    epsilon: FloatArray = field(repr=False)  # (clients,) by PLD where `by_pld`, else the reproduced Rényi bound
    by_pld: BoolArray = field(repr=False)
    worst_margin: float  # smallest 1 - PLD epsilon / budget; NaN if no PLD was computed
    schedules: int
    pld_schedules: int
    failures: tuple[str, ...]
    failure_count: int
    checks: tuple[Check, ...]
    observers: tuple[Observer, ...]

    @property
    def sampled(self) -> bool:
        """Whether PLD looked at some schedules only."""
        return self.pld_schedules < self.schedules

    def to_dict(self) -> dict[str, Any]:
        """Everything as JSON values; what is not finite becomes None."""
        whole = {name: getattr(self, name) for name in self.__dataclass_fields__} | {"sampled": self.sampled}
        whole["checks"] = [asdict(one) for one in self.checks]
        whole["observers"] = [asdict(one) for one in self.observers]
        plain: dict[str, Any] = _jsonable(whole)
        return plain


def verify(
    plan: Plan | str | Path, *, colluders: int = 0, progress: Progress | None = None, seed: int = 0, max_pld: int = 200
) -> Verification:
    """Check a plan, or the plan in a file, against everything it promises. Never raises for a plan that breaks its promise.

    - Well formed: rates in (0, 1], everything else finite and positive, delta in (0, 1).
    - Claim within budget, for every client.
    - Claim reproduced, for every schedule: at its witness order to 1e-6 by our second Rényi accountant; for a plan by PLD, to
      1e-4 by dp-accounting and to 0.5% (or its error bound) by our FFT accountant.
    - PLD within budget: dp-accounting's pessimistic epsilon, for all distinct schedules up to `max_pld`; beyond, for the extremes
      and a random sample drawn from the plan's hash and `seed`. For the others the reproduced claim is enough: a Rényi bound at
      any one order is a valid bound on epsilon, and PLD merely shows how much of it is slack. A plan by PLD is checked whole.
    - Clip norms: `clip_norm * noise_multiplier` is `clip` times the harmonic mean of the clients' noise, in every round.

    `colluders` is for the observer of that name (default 10, or all but one client if there are fewer).
    """
    if isinstance(plan, str | Path):
        from fedspend.planning import Plan

        plan = Plan.load(plan)
    colluders = colluders or min(10, len(plan.clients) - 1)
    if not 0 <= colluders < max(len(plan.clients), 1):
        raise InvalidInput(f"colluders must be fewer than the {len(plan.clients)} clients of the plan, got {colluders}")
    return _Verifier(plan, colluders, progress or (lambda *_: None), seed, max_pld).run()


class _Verifier:
    """One verification under way: the plan, read-only, and what has been found."""

    def __init__(self, plan: Plan, colluders: int, progress: Progress, seed: int, max_pld: int) -> None:
        self.plan, self.table = plan, plan.schedules
        self.colluders, self.progress, self.seed, self.max_pld = colluders, progress, seed, max_pld
        self.failures: list[str] = []
        self.failure_count = 0
        self.checks: list[Check] = []
        self.clients_of = np.bincount(self.table.of_client, minlength=self.table.count)
        by_budget = np.argsort(plan.budget, kind="stable")[::-1]
        self.strictest = np.full(
            self.table.count, -1
        )  # the follower with the smallest budget (one without a usable budget comes first)
        self.strictest[self.table.of_client[by_budget]] = by_budget
        nan = np.flatnonzero(np.isnan(plan.budget))
        self.strictest[self.table.of_client[nan]] = nan
        self.budget = np.where(self.strictest >= 0, plan.budget[self.strictest], np.inf)
        try:
            self.plan_hash = plan.hash
        except (FedspendError, ValueError):  # NaN has no JSON
            self.plan_hash = ""

    def run(self) -> Verification:
        usable = self.check_form()
        self.check_claims()
        rdp = np.full(self.table.count, np.inf)
        pld = np.full(self.table.count, np.nan)
        observers: tuple[Observer, ...] = ()
        if 0 < self.plan.delta < 1:
            runs = _runs_of_schedules(self.table)
            chosen = self.choose(usable)
            if self.plan.accountant == "rdp":
                rdp = self.check_witness(usable, runs)
            pld[chosen] = self.check_pld(chosen, runs)
            if self.plan.accountant == "pld":
                self.check_pld_claims(chosen, runs, pld)
            shown = _spread(chosen if chosen.size else usable, self.budget, SHOWN)
            if shown.size:
                observers = self.observe(shown, runs)
        self.check_clips()
        by_pld = np.isfinite(pld)
        margins = 1 - pld[by_pld] / self.budget[by_pld]
        epsilon = np.where(by_pld, pld, rdp)
        return Verification(
            ok=all(check.passed for check in self.checks) and self.failure_count == 0,
            plan_hash=self.plan_hash,
            epsilon=epsilon[self.table.of_client],
            by_pld=by_pld[self.table.of_client],
            worst_margin=float(margins.min()) if margins.size else math.nan,
            schedules=int((self.clients_of > 0).sum()),
            pld_schedules=int(by_pld.sum()),
            failures=tuple(self.failures),
            failure_count=self.failure_count,
            checks=tuple(self.checks),
            observers=observers,
        )

    def record(self, name: str, good: BoolArray, accountant: str, worst: float, meaning: str, sentence: Callable[..., str]) -> None:
        """Note a check over an array of conditions, with a sentence for each of the first that fail."""
        bad = np.argwhere(~good)
        looked_at = min(int(good.shape[-1]), self.table.count)  # conditions are per schedule or per client
        self.checks.append(Check(name, len(bad) == 0, looked_at, accountant, worst, meaning))
        self.fail(len(bad), (sentence(*(int(i) for i in place)) for place in bad))

    def fail(self, count: int, sentences: Iterable[str]) -> None:
        room = max(0, LISTED - len(self.failures))
        self.failures += [line for line, _ in zip(sentences, range(min(room, count)), strict=False)]
        self.failure_count += count

    def who(self, schedule: int) -> str:
        client = int(self.strictest[schedule])
        name = repr(self.plan.clients[client]) if client >= 0 else "nobody"
        others = int(self.clients_of[schedule]) - 1
        return f"client {name}" + (f" (and {others} with the same schedule)" if others > 0 else "")

    def check_form(self) -> IntArray:
        """Rates, noise, clips, budgets, delta; returns the schedules that can be accounted at all."""
        table, plan = self.table, self.plan
        limits = (
            ("sampling_rate", 1.0, "in (0, 1]"),
            ("noise_multiplier", np.finfo(float).max, "finite and positive"),
            ("clip_norm", np.finfo(float).max, "finite and positive"),
        )
        sound = np.ones(table.count, dtype=bool)
        before = self.failure_count
        for name, largest, wanted in limits:
            values: FloatArray = getattr(table, name)
            good = (values > 0) & (values <= largest)
            sound &= good.all(axis=0)
            bad = np.argwhere(~good)
            self.fail(len(bad), (f"{self.who(s)}, round {t + 1}: {name} is {values[t, s]!r}, not {wanted}" for t, s in bad))
        unusable = np.flatnonzero(~((plan.budget > 0) & (plan.budget < np.inf)))
        broken = (f"client {plan.clients[n]!r}: budget is {plan.budget[n]!r}, not finite and positive" for n in unusable)
        self.fail(len(unusable), broken)
        if not 0 < plan.delta < 1:
            self.fail(1, [f"delta is {plan.delta!r}, not between 0 and 1"])
        if not 0 < plan.clip < math.inf:
            self.fail(1, [f"clip is {plan.clip!r}, not finite and positive"])
        if plan.accountant not in ("rdp", "pld"):
            self.fail(1, [f"the accountant is {plan.accountant!r}; only rdp and pld can be checked"])
        found = self.failure_count - before
        self.checks.append(Check("well formed", found == 0, table.count, "none", float(found), "values outside their range"))
        return np.flatnonzero(sound & (self.clients_of > 0) & (self.budget > 0) & (self.budget < np.inf))

    def check_claims(self) -> None:
        """Every client's claim is a number and within the client's own budget."""
        claim, budget = self.table.epsilon[self.table.of_client], self.plan.budget
        with np.errstate(invalid="ignore", divide="ignore"):
            good = (claim >= 0) & (claim <= budget)
            worst = float(np.max(claim / budget))
        self.record(
            "claim within budget",
            good,
            "none",
            worst,
            "largest claim / budget",
            lambda n: f"client {self.plan.clients[n]!r}: claims epsilon {claim[n]:.9g}, over its budget of {budget[n]:.9g}",
        )

    def check_witness(self, usable: IntArray, runs: list[Runs]) -> FloatArray:
        """Claims of a Rényi plan, reproduced at their witness orders; returns the reproduced epsilon of every schedule, or inf."""
        claim, order, orders = self.table.epsilon, self.table.order, np.array(self.plan.orders)
        listed = np.isin(order, orders)
        self.record(
            "witness order published",
            listed,
            "none",
            float((~listed).sum()),
            "witness orders outside the plan's orders",
            lambda s: f"{self.who(s)}: the claim's order {order[s]!r} is not one of the plan's orders",
        )
        read = usable[(order[usable] > 1) & (order[usable] < np.inf)]
        mine = np.full(self.table.count, np.inf)
        for start in range(0, read.size, 2000):
            block = read[start : start + 2000]
            sizes = [len(runs[s][0]) for s in block]
            owner = np.repeat(np.arange(block.size), sizes)
            rate, noise, count = (np.concatenate([runs[s][part] for s in block]) for part in range(3))
            cost = renyi_divergence(rate, noise, order[block][owner]) * count
            total = np.bincount(owner, weights=cost, minlength=block.size)
            mine[block] = epsilon_at(total, order[block], self.plan.delta)
        with np.errstate(invalid="ignore"):
            off = np.abs(mine[usable] - claim[usable])
            good = off <= CLAIM_TOLERANCE * claim[usable] + 1e-12
            worst = float(np.max(off / np.maximum(claim[usable], 1e-12), initial=0.0))
        self.record(
            "claim reproduced",
            good,
            "second Rényi accountant",
            worst,
            "largest relative difference",
            lambda i: (
                f"{self.who(int(usable[i]))}: claims epsilon {claim[usable[i]]:.9g}, but it is {mine[usable[i]]:.9g} "
                f"at order {order[usable[i]]:g}"
            ),
        )
        return mine

    def choose(self, usable: IntArray) -> IntArray:
        """The schedules whose PLD is computed: all, or the extremes and a random sample."""
        if usable.size <= self.max_pld or self.plan.accountant == "pld":
            return usable
        noise, rate = self.table.noise_multiplier[:, usable], self.table.sampling_rate[:, usable]
        used = self.table.epsilon[usable] / self.budget[usable]
        keys = (self.budget[usable], noise.min(axis=0), noise.max(axis=0), rate.max(axis=0), rate.min(axis=0), used)
        extremes = dict.fromkeys(int(i) for key in keys for i in (np.argmax(key), np.argmin(key)))
        digest = hashlib.sha256(f"{self.plan_hash}:{self.seed}".encode()).digest()
        shuffled = np.random.default_rng(list(digest)).permutation(usable.size)
        picked = list(dict.fromkeys([*extremes, *(int(i) for i in shuffled[: self.max_pld])]))[: self.max_pld]
        return np.sort(usable[np.array(picked, dtype=np.int64)])

    def check_pld(self, chosen: IntArray, runs: list[Runs]) -> FloatArray:
        """Pessimistic PLD epsilon of the chosen schedules, each within the smallest budget of its followers."""
        delta, budget, rounds = self.plan.delta, self.budget[chosen], [runs[int(s)] for s in chosen]
        found = np.array(pld_epsilons(rounds, delta, self.progress))
        # Every interval gives an upper bound, so a near miss deserves a finer grid and no merging of rounds.
        for i in np.flatnonzero((found > budget) & (found <= 1.05 * budget)):
            finer = pld_epsilon(*rounds[int(i)], delta, interval=1e-5 * min(max(found[i], 1.0), 10.0), most_distinct=1 << 30)
            found[i] = min(found[i], finer)
        with np.errstate(invalid="ignore", divide="ignore"):
            worst = float(np.max(found / budget, initial=0.0))
        self.record(
            "PLD within budget",
            found <= budget,
            "dp-accounting PLD",
            worst,
            "largest PLD epsilon / budget",
            lambda i: f"{self.who(int(chosen[i]))}: the PLD epsilon is {found[i]:.9g}, over the budget of {budget[i]:.9g}",
        )
        return found

    def check_pld_claims(self, chosen: IntArray, runs: list[Runs], pld: FloatArray) -> None:
        """Claims of a plan by PLD: reproduced by dp-accounting, and by an accountant that shares nothing with it."""
        delta, claim, mine = self.plan.delta, self.table.epsilon[chosen], pld[chosen].copy()
        rounds = [runs[int(s)] for s in chosen]
        for i in np.flatnonzero(~(np.abs(mine - claim) <= PLD_TOLERANCE * claim)):
            mine[i] = pld_epsilon(*rounds[int(i)], delta, interval=1e-4, most_distinct=1 << 30)
        off = np.abs(mine - claim)
        self.record(
            "claim reproduced",
            off <= PLD_TOLERANCE * claim + 1e-6,
            "dp-accounting PLD",
            float(np.max(off / np.maximum(claim, 1e-12), initial=0.0)),
            "largest relative difference",
            lambda i: f"{self.who(int(chosen[i]))}: claims epsilon {claim[i]:.9g}, but dp-accounting finds {mine[i]:.9g}",
        )
        brackets = [fft_epsilon(*one, delta) for one in rounds]
        slack = FFT_TOLERANCE * claim + 1e-4
        lower, upper = (np.array([getattr(b, name) for b in brackets]) for name in ("lower", "upper"))
        estimate = np.array([b.estimate for b in brackets])
        self.record(
            "claim reproduced",
            (lower - slack <= claim) & (claim <= upper + slack),
            "own FFT accountant",
            float(np.max(np.abs(estimate - claim) / np.maximum(claim, 1e-12), initial=0.0)),
            "largest relative difference",
            lambda i: f"{self.who(int(chosen[i]))}: claims epsilon {claim[i]:.9g}, but the FFT accountant finds {estimate[i]:.9g}",
        )

    def check_clips(self) -> None:
        """`c_n = c s_t / sigma_n` with s_t the harmonic mean over clients, recomputed here."""
        table, plan = self.table, self.plan
        with np.errstate(all="ignore"):
            round_noise = self.clients_of.sum() / (self.clients_of / table.noise_multiplier).sum(axis=1)
            wanted = plan.clip * round_noise[:, None]
            off = np.abs(table.clip_norm * table.noise_multiplier / wanted - 1)
            good = off <= CLIP_TOLERANCE
        self.record(
            "clip norms match noise",
            good | (self.clients_of == 0),
            "none",
            float(np.max(off)),
            "largest relative difference",
            lambda t, s: (
                f"{self.who(s)}, round {t + 1}: clip_norm {table.clip_norm[t, s]:.9g} should be "
                f"{wanted[t, 0] / table.noise_multiplier[t, s]:.9g}"
            ),
        )

    def observe(self, shown: IntArray, runs: list[Runs]) -> tuple[Observer, ...]:
        """Epsilon of the shown schedules against observers who see less or more than the plan assumes."""
        n, k, orders = len(self.plan.clients), self.colluders, np.sort(np.array(self.plan.orders, dtype=np.float64))
        claim = self.table.epsilon[shown]

        def lowest(divergence: Divergence, scale: float = 1.0) -> FloatArray:
            return np.array([lowest_epsilon(divergence, runs[s], scale, orders, self.plan.delta) for s in shown])

        if orders.size == 0:
            return ()
        mine = lowest(renyi_divergence)
        if self.plan.accountant == "rdp":
            gap = float(np.max(1 - mine / np.maximum(claim, 1e-12)))
            self.checks.append(
                Check(
                    "claim against all orders",
                    True,
                    shown.size,
                    "second Rényi accountant",
                    gap,
                    "largest part of a claim that another order of the plan would save; not a failure",
                )
            )
        rows = [
            ("plan", "other clients and the public, who see every release and not who took part", claim),
            ("participation revealed", "learns in which rounds a client took part", lowest(participation_revealed)),
            ("picked every round", "the client takes part in every round: sampling hides nothing", lowest(no_amplification)),
        ]
        if k > 0:
            rows.append(
                (
                    f"{k} colluding clients",
                    "distributed noise: they know and subtract their own noise, all sampled",
                    lowest(renyi_divergence, math.sqrt(1 - k / n)),
                )
            )
        rows.append(
            (
                "sees single updates",
                "distributed noise, no secure aggregation: an update under its own share of noise",
                lowest(participation_revealed, 1 / math.sqrt(n)),
            )
        )
        few = int((self.clients_of > 0).sum()) <= SHOWN
        return tuple(_observer(name, assumption, self.budget[shown], values, few) for name, assumption, values in rows)


Divergence = Callable[[Any, Any, Any], FloatArray]


def participation_revealed(rate: npt.ArrayLike, noise: npt.ArrayLike, order: npt.ArrayLike) -> FloatArray:
    """Divergence of a round whose cohort is public: `log(1 - q + q exp((a-1) a / (2 sigma^2))) / (a-1)`."""
    q, s, a = (np.asarray(value, dtype=np.float64) for value in (rate, noise, order))
    with np.errstate(divide="ignore"):
        log_moment: FloatArray = np.logaddexp(np.log1p(-q), np.log(q) + (a - 1) * a / (2 * s**2))
    return log_moment / (a - 1)


def no_amplification(rate: npt.ArrayLike, noise: npt.ArrayLike, order: npt.ArrayLike) -> FloatArray:  # noqa: ARG001
    """Divergence of a Gaussian round in which the client certainly takes part: `a / (2 sigma^2)`."""
    result: FloatArray = np.asarray(order, dtype=np.float64) / (2 * np.asarray(noise, dtype=np.float64) ** 2)
    return result


def lowest_epsilon(divergence: Divergence, runs: Runs, scale: float, orders: FloatArray, delta: float) -> float:
    """Epsilon of one schedule, its noise times `scale`, at the best of sorted `orders`: every eighth, then those around the best.

    Any order gives a valid bound, so skipping some can only read higher.
    """
    rate, noise, count = (np.asarray(part, dtype=np.float64) for part in runs)

    def read(some: FloatArray) -> FloatArray:
        return epsilon_at(count @ divergence(rate[:, None], scale * noise[:, None], some[None, :]), some, delta)

    coarse = np.arange(0, orders.size, 8)
    values = read(orders[coarse])
    best = int(coarse[np.argmin(values)])
    return float(min(values.min(), read(orders[max(0, best - 7) : best + 8]).min()))


def _runs_of_schedules(table: Schedules) -> list[Runs]:
    """Each schedule as (rates, noises, counts) of its runs of identical rounds."""
    noise, rate = table.noise_multiplier, table.sampling_rate
    begins = np.ones(noise.shape, dtype=bool)
    begins[1:] = ~((noise[1:] == noise[:-1]) & (rate[1:] == rate[:-1]))
    runs: list[Runs] = []
    for s in range(table.count):
        start = np.flatnonzero(begins[:, s])
        runs.append((rate[start, s].tolist(), noise[start, s].tolist(), np.diff(start, append=table.rounds).tolist()))
    return runs


def _spread(schedules: IntArray, budget: FloatArray, most: int) -> IntArray:
    """At most so many of the schedules, from the smallest budget to the largest."""
    ordered = schedules[np.argsort(budget[schedules], kind="stable")]
    if ordered.size <= most:
        return ordered
    return ordered[np.linspace(0, ordered.size - 1, most).round().astype(np.int64)]


def _observer(name: str, assumption: str, budget: FloatArray, epsilon: FloatArray, by_budget: bool) -> Observer:
    groups = tuple((float(b), float(epsilon[budget == b].max())) for b in np.unique(budget)) if by_budget else ()
    return Observer(name, assumption, groups, float(epsilon.min()), float(np.median(epsilon)), float(epsilon.max()))


def _jsonable(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _jsonable(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return _jsonable(value.tolist())
    if isinstance(value, list | tuple):
        return [_jsonable(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value
