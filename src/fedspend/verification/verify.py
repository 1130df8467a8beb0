"""The independent check of a plan: `second_accountant` shares no accounting code with the planner.

Guarantee: if `Verification.ok`, every client's claim is reproduced and within its budget, every
pessimistic PLD epsilon that was computed is within the budget too, and every clip belongs to its
noise. For schedules without a PLD epsilon, the guarantee rests on the reproduced Rényi bound alone,
and the result says so. Conditions are written so that NaN fails them.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from fedspend.basics.arrays import BoolArray, FloatArray, IntArray
from fedspend.basics.progress import OnProgress
from fedspend.errors import FedspendError, InvalidInput, whole_number
from fedspend.verification.findings import (
    Check,
    Findings,
    Verification,
    never_raises,
    warnings_about,
)
from fedspend.verification.observers import (
    Observer,
    lowest_epsilon,
    no_amplification,
    observers_of,
    participation_revealed,
    spread,
)
from fedspend.verification.second_accountant import (
    Runs,
    epsilon_at,
    fft_epsilon,
    pld_epsilon,
    pld_epsilons,
    renyi_divergence,
)
from fedspend.verification.second_accountant.lattice import (
    MOST_NOISE,
    MOST_ORDER,
    lattice_divergence,
)
from fedspend.verification.second_accountant.pld import FEW_DISTINCT
from fedspend.verification.second_accountant.renyi import MOST_PANELS, panels_of

if TYPE_CHECKING:
    from fedspend.planning.plan import Plan
    from fedspend.planning.protocol import AnyPlan
    from fedspend.planning.schedules import Schedules

__all__ = [
    "Check",
    "Observer",
    "Verification",
    "lowest_epsilon",
    "no_amplification",
    "participation_revealed",
    "verify",
    "verify_clients",
]


CLAIM_TOLERANCE = 1e-6
CLIP_TOLERANCE = 1e-9
PLD_TOLERANCE, FFT_TOLERANCE = 1e-4, 5e-3
ROUNDING_DEVIATION = 3.0  # in steps of the grid
RELATIVE = "largest relative difference"
SHOWN = 20  # schedules that are read at all orders
# Schedules of a sample are read coarsely. A reading then takes about 0.03 s per distinct round, of
# which at most 16 are left, so a sample is limited by its number of rounds.
SAMPLED_ROUNDS, FEWEST_SAMPLED = 400, 24
# What is beyond these takes too long to be checked, and fails; no plan of ours comes near.
MOST_WORK = 2e9  # panels of all integrals
MOST_PLD_ROUNDS = 5000  # different rounds, of all schedules, of a plan by PLD
MOST_FINER, MOST_DISTINCT = 200, 500  # schedules that are read a second time, and their rounds
NEAR = 1.05  # times what is allowed: from there on no finer grid reads low enough


def verify(
    plan: AnyPlan | str | Path,
    *,
    colluders: int = 0,
    progress: OnProgress | None = None,
    seed: int = 0,
    max_pld: int = 200,
) -> Verification:
    """Check a plan of clients or of records, or the plan in a file, against everything it promises.
    `fedspend.verify` (publishing.verifying), the public door, says what the arguments are;
    `verify_clients` and `records.verify_records` say what is checked.
    """
    if isinstance(plan, str | Path):
        from fedspend.planning.protocol import load_any_plan

        plan = load_any_plan(plan)
    whole_number("colluders", colluders, 0)
    whole_number("seed", seed, 0)
    whole_number("max_pld", max_pld, 0)
    return plan.verify(colluders=colluders, progress=progress, seed=seed, max_pld=max_pld)


def verify_clients(
    plan: Plan,
    *,
    colluders: int = 0,
    progress: OnProgress | None = None,
    seed: int = 0,
    max_pld: int = 200,
) -> Verification:
    """Check a plan of clients.

    - Well formed: rates in (0, 1], everything else finite and positive, delta in (0, 1).
    - Claim within budget, for every client.
    - Claim reproduced, for every schedule: at its witness order to 1e-6 by our second Rényi
    accountant; for a plan by PLD, to 1e-4 by dp-accounting and to 0.5% (or its error bound) by our
    FFT accountant.
    - PLD within budget: dp-accounting's pessimistic epsilon, for all distinct schedules up to
    `max_pld`; beyond, for the extremes and a random sample drawn from the plan's hash and `seed`,
    together `max_pld` of them, but no more than 400 distinct rounds or 24 schedules, whichever is
    more, read coarsely (up to 1% too high) and again finely where that is over the budget. For the
    others the reproduced claim is enough: a Rényi bound at any one order is a valid bound on
    epsilon, and PLD merely shows how much of it is slack. A plan by PLD is checked whole, on a grid
    of 1e-3 (or finer where rounds give away little).
    - A plan by an accountant that is not loaded here: its claims are checked all the same, by the
    two independent accountants, and the result says so.
    - A plan for discrete noise: its noise counts as continuous noise that is smaller by the part
    that rounding to its grid takes, recomputed here. One of version 0.1, which states no steps: its
    witness orders are whole and its claims are reproduced by sums over the integers, for up to 20
    schedules from the strictest to the loosest; it gets no PLD reading.
    - Bits and metrics, if the plan states noise for them: what they take of a round is recomputed,
    and something is left for every client's update.
    - Clip norms: in every round, `clip_norm` times the noise multiplier of the update is `clip`
      times the round's factor of the clip schedule (1 without one) times the harmonic mean of these
      multipliers over clients.

    `colluders` is the number of colluding clients among the observers (default 10, or all but one
    client if there are fewer).
    """
    colluders = colluders or min(10, len(plan.clients) - 1)
    if not 0 <= colluders < max(len(plan.clients), 1):
        raise InvalidInput(
            f"colluders must be fewer than the {len(plan.clients)} clients of the plan, got "
            f"{colluders}"
        )
    return _verified(plan, colluders, progress or (lambda *_: None), seed, max_pld)


@never_raises
def _verified(
    plan: Plan, colluders: int, progress: OnProgress, seed: int, max_pld: int
) -> Verification:
    return _Verifier(plan, colluders, progress, seed, max_pld).run()


class _Verifier:
    """One verification in progress: the plan, which is only read, and what was found so far."""

    def __init__(
        self, plan: Plan, colluders: int, progress: OnProgress, seed: int, max_pld: int
    ) -> None:
        self.plan, self.table, self.kept = plan, plan.schedules, accounted_part(plan.grid_steps)
        self.runs = _runs_of_schedules(plan.schedules, self.kept)
        self.colluders, self.progress, self.seed, self.max_pld = colluders, progress, seed, max_pld
        self.findings, self.remarks = Findings(self.table.count), list[str]()
        self.clients_of = np.bincount(self.table.of_client, minlength=self.table.count)
        # Each schedule's client with the smallest budget, or one whose budget is NaN.
        by_budget = np.argsort(plan.budget, kind="stable")[::-1]
        nan = np.flatnonzero(np.isnan(plan.budget))
        self.strictest = np.full(self.table.count, -1)
        self.strictest[self.table.of_client[by_budget]] = by_budget
        self.strictest[self.table.of_client[nan]] = nan
        self.budget = np.where(self.strictest >= 0, plan.budget[self.strictest], np.inf)
        try:
            self.plan_hash = plan.hash
        except (FedspendError, ValueError):  # JSON cannot hold NaN
            self.plan_hash = ""

    def run(self) -> Verification:
        usable = self.check_form()
        self.check_claims()
        rdp = np.full(self.table.count, np.inf)
        pld = np.full(self.table.count, np.nan)
        observers: tuple[Observer, ...] = ()
        if 0 < self.plan.delta < 1:
            # Discrete noise of version 0.1 is read at whole orders, where its Rényi bound stands
            # alone; since then it counts as continuous noise that is a hair smaller.
            whole = self.plan.discrete and self.plan.grid_steps is None
            chosen = usable[:0] if whole else self.choose(usable)
            if self.plan.accountant == "rdp":
                rdp = self.check_witness(usable)
            if whole:
                self.check_discrete(usable)
            elif self.plan.discrete:
                self.check_smoothing()
            if chosen.size:
                pld[chosen] = self.check_pld(chosen)
            if self.plan.accountant != "rdp":
                self.check_other_claims(chosen, pld[chosen])
            shown = spread(chosen if chosen.size else usable, self.budget, SHOWN)
            if shown.size and len(self.plan.orders):
                observers = self.observe(shown)
        self.check_clips(self.check_numbers())
        by_pld = np.isfinite(pld)
        margins = 1 - pld[by_pld] / self.budget[by_pld]
        epsilon = np.where(by_pld, pld, rdp)
        return Verification(
            ok=self.findings.ok,
            plan_hash=self.plan_hash,
            epsilon=epsilon[self.table.of_client],
            by_pld=by_pld[self.table.of_client],
            worst_margin=float(margins.min()) if margins.size else math.nan,
            schedules=int((self.clients_of > 0).sum()),
            pld_schedules=int(by_pld.sum()),
            failures=tuple(self.findings.failures),
            failure_count=self.findings.failure_count,
            checks=tuple(self.findings.checks),
            observers=observers,
            warnings=(
                *warnings_about(self.plan.delta, "client", len(self.plan.clients)),
                *self.remarks,
            ),
        )

    def who(self, schedule: int) -> str:
        client = int(self.strictest[schedule])
        name = repr(self.plan.clients[client]) if client >= 0 else "nobody"
        others = int(self.clients_of[schedule]) - 1
        return f"client {name}" + (f" (and {others} with the same schedule)" if others > 0 else "")

    def check_form(self) -> IntArray:
        """Check rates, noise, clips, budgets, delta; return the schedules that can be accounted."""
        table, plan, fail = self.table, self.plan, self.findings.fail
        limits = (
            ("sampling_rate", 1.0, "in (0, 1]"),
            ("noise_multiplier", np.finfo(float).max, "finite and positive"),
            ("clip_norm", np.finfo(float).max, "finite and positive"),
        )
        sound = np.ones(table.count, dtype=bool)
        for name, largest, wanted in limits:
            values: FloatArray = getattr(table, name)
            good = (values > 0) & (values <= largest)
            sound &= good.all(axis=0)
            bad = np.argwhere(~good)
            fail(
                len(bad),
                (
                    f"{self.who(s)}, round {t + 1}: {name} is {values[t, s]!r}, not {wanted}"
                    for t, s in bad
                ),
            )
        unusable = np.flatnonzero(~((plan.budget > 0) & (plan.budget < np.inf)))
        broken = (
            f"client {plan.clients[n]!r}: budget is {plan.budget[n]!r}, not finite and positive"
            for n in unusable
        )
        fail(len(unusable), broken)
        if not 0 < plan.delta < 1:
            fail(1, [f"delta is {plan.delta!r}, not between 0 and 1"])
        if not 0 < plan.clip < math.inf:
            fail(1, [f"clip is {plan.clip!r}, not finite and positive"])
        found = self.findings.failure_count
        check = Check(
            "well formed",
            found == 0,
            table.count,
            "none",
            float(found),
            "values outside their range",
        )
        self.findings.checks.append(check)
        if not plan.accountant_known:
            # Nothing is lost: whatever an accountant claims, two others must find no more than it.
            note = (
                f"the plan's own accountant, {plan.accountant!r}, is not loaded here; two "
                "independent ones check its claims"
            )
            self.findings.checks.append(Check("own accountant", True, 0, "none", 0.0, note))
        return np.flatnonzero(
            sound & (self.clients_of > 0) & (self.budget > 0) & (self.budget < np.inf)
        )

    def check_claims(self) -> None:
        """Check that every client's claim is a number within the client's own budget."""
        claim, budget = self.table.epsilon[self.table.of_client], self.plan.budget
        with np.errstate(invalid="ignore", divide="ignore"):
            good = (claim >= 0) & (claim <= budget)
            worst = float(np.max(claim / budget))

        def sentence(n: int) -> str:
            return (
                f"client {self.plan.clients[n]!r}: claims epsilon {claim[n]:.9g}, over its budget "
                f"of {budget[n]:.9g}"
            )

        self.findings.record(
            "claim within budget", good, "none", worst, "largest claim / budget", sentence
        )

    def check_witness(self, usable: IntArray) -> FloatArray:
        """Reproduce the claims of a Rényi plan at their witness orders.

        Returns the reproduced epsilon of every schedule, or inf.
        """
        claim, order = self.table.epsilon, self.table.order
        listed = np.isin(order, np.array(self.plan.orders))
        unlisted, meaning = float((~listed).sum()), "witness orders outside the plan's orders"

        def not_listed(s: int) -> str:
            return f"{self.who(s)}: the claim's order {order[s]!r} is not one of the plan's orders"

        self.findings.record(
            "witness order published", listed, "none", unlisted, meaning, not_listed
        )
        read = self.readable(usable[(order[usable] > 1) & (order[usable] < np.inf)])
        mine = np.full(self.table.count, np.inf)
        for start in range(0, read.size, 2000):
            block = read[start : start + 2000]
            owner = np.repeat(np.arange(block.size), [len(self.runs[s][0]) for s in block])
            rate, noise, count = (
                np.concatenate([self.runs[s][part] for s in block]) for part in range(3)
            )
            cost = renyi_divergence(rate, noise, order[block][owner]) * count
            total = np.bincount(owner, weights=cost, minlength=block.size)
            mine[block] = epsilon_at(total, order[block], self.plan.delta)
        with np.errstate(invalid="ignore"):
            off = np.abs(mine[usable] - claim[usable])
            good = off <= CLAIM_TOLERANCE * claim[usable] + 1e-12

        def sentence(i: int) -> str:
            s = int(usable[i])
            return (
                f"{self.who(s)}: claims epsilon {claim[s]:.9g}, but it is {mine[s]:.9g} at order "
                f"{order[s]:g}"
            )

        worst = _largest_relative(off, claim[usable])
        self.findings.record(
            "claim reproduced", good, "second Rényi accountant", worst, RELATIVE, sentence
        )
        return mine

    def readable(self, schedules: IntArray) -> IntArray:
        """The schedules whose claims can be integrated; the claims of the others count as wrong.

        A forged plan must not keep the verifier busy for hours.
        """
        noise, order = self.kept * self.table.noise_multiplier, self.table.order
        longest = panels_of(noise.min(axis=0), order)[1][schedules]
        rounds = np.array([len(self.runs[s][0]) for s in schedules], dtype=np.float64)
        found = longest <= MOST_PANELS
        if not float((longest * rounds)[found].sum()) <= MOST_WORK:
            found[:] = False
        return schedules[found]

    def check_smoothing(self) -> None:
        """Discrete noise counted as continuous noise: what that loses of the deviation, and that
        the factor between the two vanishes. Recomputed here, from the steps that the plan states.
        """
        steps = self.plan.grid_steps or 0
        rounds, clients = self.table.rounds, len(self.plan.clients)
        # log of 2 * 2 exp(-2 pi^2 s^2) for each of 2^40 numbers, each client's part and round
        exponent = -2 * math.pi**2 * ROUNDING_DEVIATION**2
        log_tau = math.log(8 * 2.0**40 * rounds * (clients + 1)) + exponent
        good = np.full(self.table.count, steps >= 16 and log_tau < math.log(1e-30))
        self.findings.record(
            "discrete noise",
            good,
            "Poisson summation",
            1 - self.kept,
            "part of the deviation that is not counted",
            lambda s: f"{self.who(s)}: discrete noise of {steps} steps is too coarse to be counted",
        )

    def check_discrete(self, usable: IntArray) -> None:
        """Check that claims for discrete noise use whole orders, and reproduce them on integers."""
        order, claim, delta = self.table.order, self.table.epsilon, self.plan.delta
        whole = (order >= 2) & (order == np.floor(order))
        fractional = float((~whole).sum())

        def not_whole(s: int) -> str:
            return (
                f"{self.who(s)}: a claim for discrete noise needs a whole order, not {order[s]!r}"
            )

        self.findings.record(
            "whole orders",
            whole,
            "none",
            fractional,
            "claims at orders that prove nothing",
            not_whole,
        )
        if self.plan.accountant != "rdp":
            self.findings.fail(
                1,
                [
                    f"the accountant is {self.plan.accountant!r}; discrete noise can be checked by "
                    "rdp only"
                ],
            )
        small = (self.table.noise_multiplier <= MOST_NOISE).all(axis=0) & whole
        small &= order <= MOST_ORDER
        read = spread(usable[small[usable]], self.budget, SHOWN)
        divergence = [
            sum(
                k * lattice_divergence(q, s, order[n])
                for q, s, k in zip(*self.runs[int(n)], strict=True)
            )
            for n in read
        ]
        found = epsilon_at(np.array(divergence), order[read], delta)
        off = np.abs(found - claim[read])

        def sentence(i: int) -> str:
            s = int(read[i])
            return (
                f"{self.who(s)}: claims epsilon {claim[s]:.9g}, but it is {found[i]:.9g} on the "
                "integers"
            )

        worst = _largest_relative(off, claim[read])
        good = off <= CLAIM_TOLERANCE * claim[read] + 1e-12
        self.findings.record(
            "claim reproduced", good, "sum over the integers", worst, RELATIVE, sentence
        )

    def choose(self, usable: IntArray) -> IntArray:
        """The schedules that PLD is computed for: all, or the extremes and a random sample."""
        if usable.size <= self.max_pld or self.plan.accountant != "rdp":
            return usable
        rounds_each = float(np.mean([min(len(self.runs[s][0]), FEW_DISTINCT) for s in usable]))
        size = min(self.max_pld, max(FEWEST_SAMPLED, int(SAMPLED_ROUNDS / rounds_each)))
        noise, rate = self.table.noise_multiplier[:, usable], self.table.sampling_rate[:, usable]
        used = self.table.epsilon[usable] / self.budget[usable]
        keys = (
            self.budget[usable],
            noise.min(axis=0),
            noise.max(axis=0),
            rate.max(axis=0),
            rate.min(axis=0),
            used,
        )
        extremes = [int(i) for key in keys for i in (np.argmax(key), np.argmin(key))]
        digest = hashlib.sha256(f"{self.plan_hash}:{self.seed}".encode()).digest()
        shuffled = np.random.default_rng(list(digest)).permutation(usable.size)
        picked = list(dict.fromkeys([*extremes, *shuffled[:size].tolist()]))[:size]
        return np.sort(usable[np.array(picked, dtype=np.int64)])

    def check_pld(self, chosen: IntArray) -> FloatArray:
        """Check the pessimistic PLD epsilon of each chosen schedule against its smallest budget."""
        delta, budget, rounds = (
            self.plan.delta,
            self.budget[chosen],
            [self.runs[int(s)] for s in chosen],
        )
        sampled = self.plan.accountant == "rdp" and chosen.size < int((self.clients_of > 0).sum())
        found = np.array(pld_epsilons(rounds, delta, self.progress, coarse=sampled))
        # Every reading is an upper bound, so after a near miss try a better one: not coarse, then a
        # finer grid without merging rounds.
        for i in np.flatnonzero(found > budget) if sampled and self.findings.ok else ():
            found[i] = pld_epsilon(*rounds[int(i)], delta)
        near = np.flatnonzero((found > budget) & (found <= NEAR * budget))
        for i in near[:MOST_FINER] if self.findings.ok else ():
            finer = pld_epsilon(
                *rounds[int(i)],
                delta,
                interval=1e-5 * min(max(found[i], 1.0), 10.0),
                most_distinct=MOST_DISTINCT,
            )
            found[i] = min(found[i], finer)
        with np.errstate(invalid="ignore", divide="ignore"):
            worst = float(np.max(found / budget, initial=0.0))

        def sentence(i: int) -> str:
            return (
                f"{self.who(chosen[i])}: the PLD epsilon is {found[i]:.9g}, over the budget of "
                f"{budget[i]:.9g}"
            )

        meaning = "largest PLD epsilon / budget"
        self.findings.record(
            "PLD within budget", found <= budget, "dp-accounting PLD", worst, meaning, sentence
        )
        return found

    def check_other_claims(self, chosen: IntArray, pld: FloatArray) -> None:
        """Check claims that were not read at a Rényi order.

        No claim may be below what dp-accounting finds, or an accountant that shares nothing with
        it. A claim by PLD that is above both is remarked upon; a user's own accountant may be
        looser.
        """
        own = self.plan.accountant != "pld"
        delta, claim, rounds = (
            self.plan.delta,
            self.table.epsilon[chosen],
            [self.runs[int(s)] for s in chosen],
        )
        if sum(len(one[0]) for one in rounds) > MOST_PLD_ROUNDS:
            raise InvalidInput(
                f"more than {MOST_PLD_ROUNDS:,} different rounds are too many for claims by "
                f"{self.plan.accountant}; plan by rdp"
            )
        mine = pld.copy()
        near = np.flatnonzero((mine > (1 + PLD_TOLERANCE) * claim) & (mine <= NEAR * claim))
        for i in near[:MOST_FINER] if self.findings.ok else ():
            again = pld_epsilon(*rounds[int(i)], delta, interval=1e-4, most_distinct=MOST_DISTINCT)
            mine[i] = min(mine[i], again)
        brackets = [fft_epsilon(*one, delta) for one in rounds]
        lower, estimate = (
            np.array([getattr(b, name) for b in brackets]) for name in ("lower", "estimate")
        )
        slack = FFT_TOLERANCE * claim + 1e-4

        def found_by(accountant: str, found: FloatArray, good: BoolArray, finder: str) -> None:
            def sentence(i: int) -> str:
                return (
                    f"{self.who(chosen[i])}: claims epsilon {claim[i]:.9g}, but {finder} finds "
                    f"{found[i]:.9g}"
                )

            worst = _largest_relative(np.abs(found - claim), claim)
            what = "claim not too low" if own else "claim reproduced"
            self.findings.record(what, good, accountant, worst, RELATIVE, sentence)

        found_by(
            "dp-accounting PLD",
            mine,
            mine - claim <= PLD_TOLERANCE * claim + 1e-6,
            "dp-accounting",
        )
        within = lower - slack <= claim
        found_by("own FFT accountant", estimate, within, "the FFT accountant")
        if not own:
            self.remark_high_claims(chosen, np.maximum(mine, estimate), claim)

    def remark_high_claims(self, chosen: IntArray, found: FloatArray, claim: FloatArray) -> None:
        """A claim that is too high protects as much as it says, and leaves some of the budget."""
        high = np.flatnonzero(claim - found > PLD_TOLERANCE * claim + 1e-6)
        if high.size:
            worst = int(high[np.argmax(claim[high] / found[high])])
            more = f" (and {high.size - 1} more)" if high.size > 1 else ""
            self.remarks.append(
                f"{self.who(chosen[worst])}{more} claims epsilon {claim[worst]:.9g}, which is more "
                f"than the {found[worst]:.9g} that was found: some of the budget is left"
            )

    def check_numbers(self) -> FloatArray:
        """The noise multipliers of updates, where bits and metrics are released beside them.

        A number lies in [-1/2, 1/2]: of the precision `1 / sbar^2` that a round has in all, noise
        of deviation `sigma` on the sum takes `1 / (4 sigma^2)`. Recomputed here from what the plan
        states.
        """
        total = self.table.noise_multiplier
        stated = [
            (name, self.plan.parameters[name])
            for name in ("bit_noise", "metric_noise")
            if self.plan.parameters.get(name) is not None
        ]
        if not stated:
            return total
        sound = all(type(sigma) is float and 0 < sigma < math.inf for _, sigma in stated)
        with np.errstate(all="ignore"):
            deviations = np.array([sigma if sound else 0.0 for _, sigma in stated])
            price = float((0.25 / np.square(deviations)).sum())
            precision = 1.0 / np.square(total)
            good = (price < precision) | (self.clients_of == 0)
            updates: FloatArray = 1.0 / np.sqrt(precision - price)
            worst = float(np.max(price / precision, initial=0.0))
        named = " and ".join(f"{name} {sigma!r}" for name, sigma in stated)
        self.findings.record(
            "bits and metrics paid",
            good,
            "none",
            worst,
            "largest part of a round that they take",
            lambda t, s: f"{self.who(s)}, round {t + 1}: {named} leaves nothing for the update",
        )
        return updates

    def check_clips(self, noise: FloatArray) -> None:
        """Check `c_n = c f_t s_t / sigma_n`, with s_t, the harmonic mean over clients, recomputed
        from the noise multipliers of updates.

        The factor f_t is what the plan states for the round; without a clip schedule it is 1.
        """
        table, plan = self.table, self.plan
        factors = stated_factors(plan.parameters.get("clip_factors"), table.rounds)
        with np.errstate(all="ignore"):
            round_noise = self.clients_of.sum() / (self.clients_of / noise).sum(axis=1)
            wanted = (plan.clip * factors * round_noise)[:, None]
            off = np.abs(table.clip_norm * noise / wanted - 1)
            good = (off <= CLIP_TOLERANCE) | (self.clients_of == 0)

        def sentence(t: int, s: int) -> str:
            right = wanted[t, 0] / noise[t, s]
            return (
                f"{self.who(s)}, round {t + 1}: clip_norm {table.clip_norm[t, s]:.9g} should be "
                f"{right:.9g}"
            )

        self.findings.record(
            "clip norms match noise", good, "none", float(np.max(off)), RELATIVE, sentence
        )

    def observe(self, shown: IntArray) -> tuple[Observer, ...]:
        """Read the shown schedules against all observers, and their claims at all of the orders."""
        orders, delta = np.sort(np.array(self.plan.orders, dtype=np.float64)), self.plan.delta
        rounds, claim = [self.runs[int(s)] for s in shown], self.table.epsilon[shown]
        if self.plan.accountant == "rdp":
            mine = np.array(
                [lowest_epsilon(renyi_divergence, one, 1.0, orders, delta) for one in rounds]
            )
            gap = float(np.max(1 - mine / np.maximum(claim, 1e-12)))
            meaning = (
                "largest part of a claim that another order of the plan would save; not a failure"
            )
            check = Check(
                "claim against all orders",
                True,
                shown.size,
                "second Rényi accountant",
                gap,
                meaning,
            )
            self.findings.checks.append(check)
        return observers_of(
            rounds,
            claim,
            self.budget[shown],
            orders=orders,
            delta=delta,
            clients=len(self.plan.clients),
            colluders=self.colluders,
            by_budget=int((self.clients_of > 0).sum()) <= SHOWN,
        )


def _largest_relative(off: FloatArray, claim: FloatArray) -> float:
    with np.errstate(invalid="ignore"):
        return float(np.max(off / np.maximum(claim, 1e-12), initial=0.0))


def accounted_part(steps: object) -> float:
    """`sqrt(1 - (3 / steps)^2)`: the part of the deviation of discrete noise that counts; 1 for
    continuous noise, 0 where the steps are no steps.
    """
    if steps is None:
        return 1.0
    if not (isinstance(steps, int | float) and steps > ROUNDING_DEVIATION):
        return 0.0
    return math.sqrt(1.0 - (ROUNDING_DEVIATION / steps) * (ROUNDING_DEVIATION / steps))


def stated_factors(stated: object, rounds: int) -> FloatArray:
    """The clip schedule that a plan states, 1 if none; NaN, which no clip matches, if it is none.

    One positive number per round is needed.
    """
    if stated is None:
        return np.ones(rounds)
    sound = (
        isinstance(stated, list)
        and len(stated) == rounds
        and all(isinstance(one, int | float) and 0 < one < math.inf for one in stated)
    )
    return np.array(stated, dtype=np.float64) if sound else np.full(rounds, np.nan)


def _runs_of_schedules(table: Schedules, part: float) -> list[Runs]:
    """Each schedule as (rates, accounted noises, counts) of its runs of identical rounds."""
    noise, rate = table.noise_multiplier * part, table.sampling_rate
    begins = np.ones(noise.shape, dtype=bool)
    begins[1:] = ~((noise[1:] == noise[:-1]) & (rate[1:] == rate[:-1]))
    runs: list[Runs] = []
    for s in range(table.count):
        start = np.flatnonzero(begins[:, s])
        runs.append(
            (
                rate[start, s].tolist(),
                noise[start, s].tolist(),
                np.diff(start, append=table.rounds).tolist(),
            )
        )
    return runs
