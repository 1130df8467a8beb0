"""An audit: plays a config's run many times with canaries, and guesses which of them took part.

Guarantee: at the given confidence, and for each group by itself, `measured` is at most the epsilon
that the runs really had at the plan's delta, against the plan's observer and adjacency. It is a
lower bound: a large one proves a broken promise, a small one proves nothing. Runs on real rows are
refused.
"""

from __future__ import annotations

import math
import resource
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from fedspend.auditing.bounds import Coins, lower_bound
from fedspend.auditing.guessing import learn
from fedspend.auditing.meters import (
    Meter,
    clip_of,
    noise_by_round,
    noise_over_rounds,
    sampled_of,
    shift_of,
)
from fedspend.auditing.observations import Observations, joined
from fedspend.auditing.playing import (
    Draw,
    Stage,
    choose_units,
    stage_of_clients,
    told_of_canaries,
)
from fedspend.auditing.record_canaries import stage_of_records
from fedspend.basics.arrays import BoolArray, IntArray
from fedspend.basics.door import public
from fedspend.basics.progress import OnProgress
from fedspend.basics.tables import Table
from fedspend.basics.words import counted
from fedspend.configuration.config import Config, any_config, needed
from fedspend.configuration.data_inputs import is_real
from fedspend.configuration.noise_kind import noise_of
from fedspend.data.loading import DATA_SETS
from fedspend.errors import InvalidInput, Refused, finite_number, whole_number
from fedspend.planning.protocol import AnyPlan
from fedspend.report.groups import group_clients
from fedspend.runs.setup import Setup, from_config

if TYPE_CHECKING:
    from fedspend.report.drawing import Drawing

USUAL_COINS = 4_000  # in the smallest group, if `trials` is not given
MOST_RUNS = 4_000
FEWEST_COINS = 40  # fewer show nothing
FEW_RUNS = 8  # with fewer runs the pilot is made of coins of every run
PILOT, PILOT_OF_MANY = 4, 8  # every n-th run, or coin, is learned from and not counted
MANY = 40_000  # coins


@dataclass(frozen=True)
class GroupAudit:
    """One group of units: claim, lower bound, and what the bound is made of."""

    group: str
    units: int
    claimed: float
    measured: float
    ok: bool
    confidence: float
    delta: float
    coins: int  # those that count, without the pilot's
    coins_per_run: int
    guesses: int
    right: int
    score: str
    method: str
    clip: Meter
    sampled: Meter

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, repr=False)
class Audit:
    """The result of an audit.

    Attributes:
        groups: for each group, ordered by budget: the epsilon that is claimed, the lower bound that
            was measured, and what the bound is made of.
        ok: whether no group's claim is contradicted.
        noise_by_round, noise_over_rounds: the noise that was measured, relative to the plan's.
        runs, rounds, canaries: how much was played.
        unit, adjacency, observer: what the claims are about.
    """

    groups: tuple[GroupAudit, ...]
    method: str
    noise: str
    unit: str
    adjacency: str
    observer: str
    rounds: int
    runs: int
    canaries: int
    seed: int
    noise_by_round: tuple[Meter, ...]
    noise_over_rounds: Meter
    seconds: float
    memory: int  # bytes, the peak of the process
    plan: str

    @property
    def ok(self) -> bool:
        """Whether no claim is contradicted. That does not prove that they hold."""
        return all(group.ok for group in self.groups)

    def __repr__(self) -> str:
        verdict = "no claim is contradicted" if self.ok else "BROKEN: a claim is contradicted"
        groups = ", ".join(
            f"{one.group}: at least {one.measured:.3g} of {one.claimed:.4g}" for one in self.groups
        )
        return f"<Audit: {verdict}; epsilon of {groups}; {counted(self.runs, 'run')}>"

    def _repr_html_(self) -> str:
        rows = [
            [one.group, f"{one.claimed:.4g}", f"{one.measured:.3f}", "ok" if one.ok else "BROKEN"]
            for one in self.groups
        ]
        header = ("group", "claimed epsilon", "measured at least", "")
        return Table(header, rows).html(repr(self).strip("<>").partition(";")[0])

    def plot(self) -> Drawing:
        """Claim and measurement of each group: `audit.plot().save("audit.png")`."""
        from fedspend.auditing.plotting import draw
        from fedspend.report.drawing import drawing

        return drawing(lambda: draw(self))

    def to_dict(self) -> dict[str, Any]:
        found: dict[str, Any] = _plain(asdict(self))
        return {"ok": self.ok} | found


def _plain(value: Any) -> Any:
    """JSON has no infinity."""
    if isinstance(value, dict):
        return {name: _plain(one) for name, one in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


@public
def audit(
    config: str | Path | Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    canaries: int | None = None,
    trials: int | None = None,
    rounds: int | None = None,
    confidence: float = 0.95,
    seed: int = 0,
    train_others: bool = False,
    progress: OnProgress | None = None,
) -> Audit:
    """Audit what `config` would run: play it with canaries, and guess which of them took part.

    Arguments:
        config: a TOML file, or a dict of sections, on public rows.
        overrides: `["privacy.noise=discrete", ...]`.
        canaries: how many are in a run. Default: as many as fit.
        trials: how many runs. Default: enough for 4,000 coins in every group.
        rounds: how many rounds a run has. Default: the config's.
        confidence: of each group's bound.
        seed: of coins, noise and cohorts.
        train_others: clients that are not canaries train on their rows; otherwise they send
            nothing.
        progress: called with (done, total).

    Returns:
        An `Audit`: `.ok`, and for each of `.groups` what was `.claimed` and `.measured` at least.

    Raises:
        InvalidInput: an argument is wrong.
        Refused: the rows are real, or nothing is promised.

    >>> found = audit("examples/quickstart.toml", trials=100)  # doctest: +SKIP
    >>> found.ok, [(g.group, g.claimed, g.measured) for g in found.groups]  # doctest: +SKIP
    """
    began = time.monotonic()
    confidence, seed = check_confidence(confidence), whole_number("seed", seed, 0)
    if rounds is not None:
        tail = min(rounds, any_config(config, overrides).train.tail_average)
        overrides = [
            *overrides,
            f"train.rounds={whole_number('rounds', rounds, 1)}",
            f"train.tail_average={tail}",
        ]
    settings = any_config(config, overrides)
    refuse_real_rows(settings, train_others=train_others)
    setup = from_config(settings)
    stage, plan = stage_of(setup, seed, train_others=train_others)
    game = game_of(stage, plan, canaries, trials)
    seen = play(game, progress)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return Audit(
        groups=tuple(judge(game, n, seen, confidence) for n in range(len(game.pools))),
        method=stage.setup.method.name,
        noise=noise_of(settings),
        unit=plan.unit,
        adjacency="zero-out",
        observer=stage.observer,
        rounds=plan.rounds,
        runs=game.runs,
        canaries=sum(game.sizes),
        seed=seed,
        noise_by_round=noise_by_round(seen),
        noise_over_rounds=noise_over_rounds(seen),
        seconds=time.monotonic() - began,
        memory=peak * (1 if sys.platform == "darwin" else 1024),
        plan=plan.hash,
    )


def check_confidence(confidence: Any) -> float:
    number = finite_number("confidence", confidence)
    if not 0.5 <= number < 1:
        raise InvalidInput(
            f"confidence must be at least 0.5 and below 1, got {number:g}; 0.95 is usual"
        )
    return number


def refuse_real_rows(config: Config, *, train_others: bool) -> None:
    """Refuse private data: an audit publishes what it finds and repeats releases at will."""
    name = needed(config.data.name, "data.name")
    public = name in DATA_SETS and DATA_SETS[name].public
    if is_real(config):
        why = "privacy.randomness is 'os'" if public else f"data set {name!r} is treated as private"
        raise Refused(
            f"audits are simulations on public or made-up data, and {why}; audit the same settings "
            "on public rows, for example with --set data.name=synthetic"
        )
    if train_others and not public:
        raise Refused(
            f"data set {name!r} is treated as private, and an audit does not protect clients that "
            "train; drop --train-others, or use public rows"
        )


def stage_of(setup: Setup, seed: int, *, train_others: bool) -> tuple[Stage, AnyPlan]:
    """Where canaries of this setup's unit play, and the plan whose claims are audited."""
    plan = setup.plan
    if plan is None:
        raise InvalidInput(
            f"method {setup.method.name!r} promises nothing, so there is nothing to audit; name a "
            "private one with --set method.name=..."
        )
    if setup.training.mechanism is not None:
        # its noise would be the same in every run, which would make every bound wrong
        raise Refused(
            "an audit needs fresh noise for every run, and cannot draw it for a mechanism that "
            "comes with its own; audit independent Gaussian noise"
        )
    if plan.unit == "record":
        return stage_of_records(setup, seed), plan
    return stage_of_clients(setup, seed, train_others=train_others), plan


@dataclass(frozen=True, eq=False)
class Game:
    """The setup of an audit: its stage, groups, canaries and number of runs."""

    stage: Stage
    plan: AnyPlan
    labels: tuple[str, ...]
    pools: list[IntArray]  # units of each group
    sizes: list[int]  # canaries of each group in a run
    most: int  # canaries in a run
    runs: int


def game_of(stage: Stage, plan: AnyPlan, canaries: int | None, trials: int | None) -> Game:
    groups = groups_of(plan, stage.setup)
    pools = [members for _, members in groups]
    most = stage.room if canaries is None else whole_number("canaries", canaries, len(pools))
    if most > stage.room:
        raise InvalidInput(
            f"canaries = {most}, but one run has room for {stage.room}; use fewer canaries and "
            "more trials, or a larger model"
        )
    first = choose_units(stage, 0, pools, most)
    sizes = [units.size for units in first]
    if min(sizes) == 0:
        raise InvalidInput(
            f"a run has room for {most} canaries, but there are {len(pools)} groups; use fewer "
            "groups, or a larger model"
        )
    runs = runs_for(min(sizes), trials)
    stage = told_of_canaries(stage, np.concatenate(first))
    return Game(stage, plan, tuple(label for label, _ in groups), pools, sizes, most, runs)


def groups_of(plan: AnyPlan, setup: Setup) -> list[tuple[str, IntArray]]:
    """Groups by label or budget, without units that are never sampled."""
    grouping = group_clients(plan, setup.labels if plan.unit == "client" else None)
    groups = [
        (label, np.setdiff1d(members, plan.left_out))
        for label, members in zip(grouping.labels, grouping.members, strict=True)
    ]
    found = [(label, members) for label, members in groups if members.size]
    if not found:
        raise InvalidInput(
            f"no {plan.unit} of the plan is ever sampled, so there is nothing to audit; raise "
            "budgets"
        )
    return found


def runs_for(smallest: int, trials: int | None) -> int:
    """The number of runs, given the number of canaries in the smallest group."""
    if trials is None:
        return min(MOST_RUNS, max(FEW_RUNS, -(-USUAL_COINS // smallest)))
    runs = whole_number("trials", trials, 1)
    if runs * smallest < FEWEST_COINS:
        raise InvalidInput(
            f"trials = {runs} with {smallest} canaries in the smallest group give "
            f"{runs * smallest} coins, but at least {FEWEST_COINS} are needed; raise trials"
        )
    return runs


def play(game: Game, progress: OnProgress | None) -> Observations:
    stage, parts = game.stage, []
    for run in range(game.runs):
        units = np.concatenate(choose_units(stage, run, game.pools, game.most))
        parts.append(stage.play(stage, run, units, stage.coins(run, units.size)))
        if progress is not None:
            progress(run + 1, game.runs)
    return joined(parts)


def judge(game: Game, group: int, seen: Observations, confidence: float) -> GroupAudit:
    """Learn from the pilot, guess the rest, and compute the bound.

    A group whose units have different claims is held to the largest.
    """
    stage, plan, members = game.stage, game.plan, game.pools[group]
    runs, each = game.runs, game.sizes[group]
    mine = seen.some(np.isin(seen.unit, members))
    learned_from, coins = split(mine, runs, each, stage.generator(0, Draw.PILOT))
    pilot, rest = mine.some(learned_from), mine.some(~learned_from)
    rule = learn(pilot, stage.expected, coins, plan.delta, (1 - confidence) / 2)
    as_in, as_out = rule.guesses(rule.scores(rest, stage.expected))
    right = int((as_in & rest.inside).sum() + (as_out & ~rest.inside).sum())
    guesses = int((as_in | as_out).sum())
    claimed = float(plan.epsilon[members].max())
    measured = lower_bound(right, guesses - right, coins, plan.delta, confidence)
    records = plan.unit == "record"  # records' contributions are not seen one by one
    return GroupAudit(
        group=game.labels[group],
        units=members.size,
        claimed=claimed,
        measured=measured,
        ok=measured <= claimed,
        confidence=confidence,
        delta=plan.delta,
        coins=rest.unit.size,
        coins_per_run=each,
        guesses=guesses,
        right=right,
        score=rule.score,
        method="one run" if runs == 1 else "repeated runs" if each == 1 else "coins over runs",
        clip=shift_of(mine, stage.expected) if records else clip_of(stage.tally, members),
        sampled=sampled_of(stage.tally, stage.taking_part, members, runs),
    )


def split(
    seen: Observations, runs: int, each: int, generator: np.random.Generator
) -> tuple[BoolArray, Coins]:
    """Which coins are the pilot's, and the rest as runs.

    The pilot takes whole runs if there are enough, else coins from every run. Then all the rest
    counts as one run, because its guesses share what was learned.
    """
    every = PILOT if seen.unit.size < MANY else PILOT_OF_MANY
    if runs >= FEW_RUNS:
        pilot = seen.run % every == 0
        return pilot, Coins(runs - -(-runs // every), each)
    pilot = generator.permutation(seen.unit.size) % every == 0
    return pilot, Coins(1, int((~pilot).sum()))
