"""Which rounds, rate, policy, tail, schedule and clip: `choose` compares them under real budgets.

Guarantee: every candidate is planned by the real planner within the budgets of the config, and the
plan of the best one is checked by the independent accountant before it is handed back. Theory
(`forecast`) trains on no rows, and of your own data reads at most who the clients are; measuring
and simulating use public or made-up rows only, and refuse private ones. Scores of a simulation are
read on held-out training rows, never on test rows.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.accounting.accountants import AUTO
from fedspend.basics.choices import choose as one_of
from fedspend.basics.files import write_whole
from fedspend.basics.progress import OnProgress
from fedspend.basics.toml_text import config_text
from fedspend.configuration.config import Config, any_config
from fedspend.configuration.data_inputs import Source
from fedspend.configuration.effects import refuse_without_effect
from fedspend.configuration.method_name import known_method
from fedspend.configuration.plan_inputs import resolve
from fedspend.data.loading import OWN
from fedspend.design.bias import RoundBias, measured_bias
from fedspend.design.candidates import TUNING
from fedspend.design.choices import (
    RATE,
    ROUNDS,
    TAIL,
    Axes,
    Candidate,
    Value,
    changed,
    checked_axes,
    config_of_candidate,
    neighbours,
    own_candidate,
    pruned,
    refuse_private,
    said,
    short,
)
from fedspend.design.forecast import Assumption, Forecast, course_of, forecast
from fedspend.design.simulation import (
    FINALISTS,
    HELD_OUT,
    SCORES,
    Simulation,
    climb,
    folder_of_trainings,
    race,
    simulated,
)
from fedspend.errors import InvalidInput, Refused, whole_number
from fedspend.planning.plan import Plan
from fedspend.planning.policies.table import policies_of_method
from fedspend.server.methods.table import METHODS

FORMAT = "fedspend-choose-1"
# axes that the model of `forecast` knows
RANKED_BY_THEORY = (
    "train.rounds",
    "privacy.rate",
    "policy",
    "schedule",
    "train.lr_end",
    "train.tail_average",
    "train.server_momentum",
    "privacy.clip",
    "privacy.accountant",
)
PLAIN = ("dp-fedavg", "idp-fedavg", "time-adaptive")  # rounds run exactly as planned
_BY_THEORY = 10_000  # candidates; each takes milliseconds
_LEAST = 1e-12  # differences in theory below this are rounding


@dataclass(frozen=True)
class Tried:
    """A candidate and how it did: the higher the score, the better; None if it was refused."""

    candidate: Candidate
    score: float | None
    seeds: int | None = None  # of a simulation
    forecast: Forecast | None = None  # of theory
    refused: str | None = None

    def document(self) -> dict[str, Any]:
        parts = {} if self.forecast is None else asdict(self.forecast)
        return {
            "values": self.candidate.fields,
            "score": self.score,
            "seeds": self.seeds,
            "refused": self.refused,
            **parts,
        }


@dataclass(frozen=True)
class Worth:
    """What changing one thing about the best candidate does to the score."""

    axis: str
    value: Value
    difference: float
    interval: float | None = None  # half its width, 95%, paired by seed
    seeds: int | None = None


@dataclass(frozen=True, eq=False)
class Chosen:
    """The best of what was compared, its config and plan, and what each choice is worth."""

    kind: str  # "theory" or "simulation"
    measure: str  # what a score is
    axes: Axes
    config: Config
    plan: Plan
    tried: tuple[Tried, ...]  # best first, refused ones last
    worth: tuple[Worth, ...]
    start: Tried  # what the config itself says
    assumption: Assumption | None = None
    trainings: int = 0
    bias: tuple[RoundBias, ...] = ()  # of rounds of the best, where it was asked for
    notes: tuple[str, ...] = ()

    @property
    def best(self) -> Candidate:
        return self.tried[0].candidate

    def document(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "kind": self.kind,
            "score": self.measure,
            "tuning": TUNING if self.kind == "simulation" else None,
            "best": self.best.fields,
            "start": self.start.document(),
            "axes": {axis: list(values) for axis, values in self.axes.items()},
            "assumption": None if self.assumption is None else self.assumption.document(),
            "tried": len(self.tried),
            "trainings": self.trainings,
            "candidates": [one.document() for one in self.tried],
            "worth": [asdict(one) for one in self.worth],
            "bias": [asdict(one) for one in self.bias],
            "config": self.sections,
            "plan": self.plan.hash,
            "accountant": self.plan.accountant,
            "notes": list(self.notes),
        }

    @property
    def sections(self) -> dict[str, dict[str, Any]]:
        """The config of the best candidate, complete."""
        return {
            section: dict(table)
            for section, table in self.config.values.items()
            if table and section != "design"
        }

    def text(self) -> str:
        """The config as a file, with what each choice is worth as comments."""
        lines = [
            f"Chosen by fedspend design choose, by {self.kind}: {self.best.in_words()}.",
            f"Compared: {len(self.tried)} settings, by {self.measure}. Changing one thing:",
            *(f"  {in_words(one, self.kind)}" for one in self.worth),
            *self.notes,
        ]
        return "".join(f"# {line}\n" for line in lines) + "\n" + config_text(self.sections)

    def write(self, path: str | Path) -> None:
        """Write the config to a file, which `fedspend train` takes as it is. It may state budgets:
        only its owner may read it.
        """
        write_whole(Path(path), self.text().encode())


def in_words(worth: Worth, kind: str) -> str:
    """One change and what it does.

    >>> in_words(Worth("privacy.rate", 0.5, -0.0123, 0.004, 3), "simulation")
    'rate 0.5: -1.23 ± 0.40 points (3 seeds)'
    """
    what = f"{short(worth.axis)} {said(worth.value)}"
    half = "" if worth.interval is None else f" ± {100 * worth.interval:.2f}"
    unit = " points" if kind == "simulation" else "% of what training gains"
    seeds = "" if worth.seeds is None else f" ({worth.seeds} seed{'s' * (worth.seeds != 1)})"
    return f"{what}: {100 * worth.difference:+.2f}{half}{unit}{seeds}"


def choose(
    config: str | Path | Mapping[str, Any],
    *,
    overrides: Sequence[str] = (),
    vary: Mapping[str, Sequence[Value]] | None = None,
    contraction: float | None = None,
    distance: float | None = None,
    approach: float | None = None,
    slack: float | None = None,
    stride: float | None = None,
    parameters: int | None = None,
    simulate: bool = False,
    propose: bool = True,
    folder: str | Path | None = None,
    score: str = SCORES[0],
    seeds: int = 3,
    most: int = 60,
    finalists: int = FINALISTS,
    diagnose: bool = False,
    progress: OnProgress | None = None,
) -> Chosen:
    """The best rounds, rate, policy, schedule, tail and clip for the budgets of a config.

    Arguments:
        config: a file or a dict of sections; `overrides` are `section.key=value`.
        vary: values to compare, by axis: a key such as "train.rounds", "policy" or "schedule". One
            value means that an axis stays as it is. Axes that are not named have usual values.
        contraction, distance, approach, slack, stride, parameters: what theory assumes (see
            `design.forecast`); if none is given, they are measured on the config's data, which
            must be public.
        simulate: train candidates on public rows, and choose by their `score` on held-out rows.
        propose: begin a simulation with theory's choice, if that is better than the config.
        folder: where a simulation keeps its trainings, to go on with after a stop.
        diagnose: after a simulation, measure the bias of rounds of the best (`design.bias`).
        seeds, finalists, most: the best `finalists` of at most `most` candidates get `seeds` seeds.

    Returns:
        The best candidate with its config and its verified plan, and all that were compared.
    """
    base = any_config(config, overrides)
    one_of("score", score, SCORES)
    seeds, most = whole_number("seeds", seeds, 1), whole_number("most", most, 1)
    finalists = whole_number("finalists", finalists, 1)
    check_method(base, simulate=simulate)
    if simulate:
        refuse_private(base, "a simulation")
    refuse_without_effect(base)
    axes = checked_axes(base, vary, simulated=simulate)
    wanted = (contraction, distance, approach, slack, stride, parameters)
    if not simulate:
        return by_theory(base, axes, assumption_of(base, axes, *wanted), progress)
    begin = [first_candidate(base, axes)]
    plain = known_method(base) in PLAIN  # what theory is about
    if propose and plain and (assumed := to_propose_with(base, axes, *wanted)) is not None:
        base = with_contraction(base, assumed)
        theory = by_theory(base, theory_axes(axes), assumed)
        begin.append(Candidate.of(begin[0].fields | theory.best.fields))
    kept = None if folder is None else folder_of_trainings(folder, base, axes)
    simulation = Simulation(base, axes, score, kept)
    found = by_simulation(simulation, begin, seeds, most, finalists, progress)
    if not diagnose:
        return found
    return replace(found, bias=measured_bias(simulated(base, found.best, simulation.first_seed)))


def check_method(config: Config, *, simulate: bool) -> None:
    """Refuse methods that have no plan of clients, or whose rounds do not run as planned."""
    name = known_method(config)
    policies_of_method(name)
    if config.method.noise_level is not None:
        raise InvalidInput(
            "choose compares settings within budgets, and method.noise_level stands in place of "
            "one; give epsilon instead"
        )
    if config.ledger.spend == "remaining":
        raise InvalidInput(
            "choose compares settings within the budgets of the config, not within what a ledger "
            'has left; drop spend = "remaining", and plan the one that you choose with it'
        )
    if name not in PLAIN and not (simulate and METHODS[name].clip_schedule != "constant"):
        raise InvalidInput(
            f"choose compares plans of methods {', '.join(PLAIN)}; got {name!r}"
            + ("" if simulate else "; others may be simulated")
        )


def first_candidate(base: Config, axes: Axes) -> Candidate:
    """The config's own values; where an axis has one value, that one."""
    own = own_candidate(base, axes)
    for axis, values in axes.items():
        if own[axis] not in values:
            own = own.with_(axis, values[0])
    return own


# --- theory ---------------------------------------------------------------------------------------


def theory_axes(axes: Axes) -> Axes:
    """The axes that theory can rank; a simulation keeps the others for itself."""
    return {axis: values for axis, values in axes.items() if axis in RANKED_BY_THEORY}


def assumption_of(
    base: Config,
    axes: Axes,
    contraction: float | None,
    distance: float | None,
    approach: float | None,
    slack: float | None,
    stride: float | None,
    parameters: int | None,
) -> Assumption:
    """What theory assumes: given, or measured on the rows of the config, if they are public."""
    given = [one is not None for one in (contraction, distance, approach, slack, stride)]
    if not any(given):
        if base.data.name is None or base.data.name in OWN:
            raise InvalidInput(
                "theory needs contraction, distance and parameters: give them (fedspend design "
                "influence measures a contraction), or name a public data set that resembles "
                f"yours with data.name; data {base.data.name!r} is not measured, as no budget "
                "would cover that"
            )
        from fedspend.design.measuring import measured_assumption

        return measured_assumption(base, max(axes.get(ROUNDS, (base.train.rounds or 1,))))
    count = parameters if parameters is not None else counted_parameters(base)
    return Assumption.given(count, contraction, distance, approach, slack, stride)


def to_propose_with(base: Config, axes: Axes, *wanted: Any) -> Assumption | None:
    """The same for a simulation, which goes without a proposal where nothing can be measured."""
    try:
        return assumption_of(base, axes, *wanted)
    except Refused:
        return None


def counted_parameters(base: Config) -> int:
    if base.data.name is None or base.data.name in OWN or base.model.name is None:
        raise InvalidInput(
            "theory needs parameters, the number of the model's parameters, to know how long the "
            "noise is; give it"
        )
    from fedspend.runs.setup import flat_parameters, from_config

    return int(flat_parameters(from_config(base).module).size)


def with_contraction(base: Config, assumed: Assumption) -> Config:
    """What is known about contraction is also what policy `optimal` plans for."""
    if base.given("privacy.contraction") or base.given("privacy.influence"):
        return base
    return changed(base, {"privacy.contraction": round(assumed.contraction, 3)})


@dataclass(eq=False)
class Theory:
    """Plans candidates and forecasts what comes of them, each once."""

    base: Config
    assumed: Assumption
    source: Source | None
    found: dict[Candidate, Tried] = field(default_factory=dict)

    def tried(self, candidate: Candidate) -> Tried:
        if candidate not in self.found:
            self.found[candidate] = self._try(candidate)
        return self.found[candidate]

    def value(self, candidate: Candidate) -> float:
        score = self.tried(candidate).score
        return -math.inf if score is None else score

    def _try(self, candidate: Candidate) -> Tried:
        try:
            config = config_of_candidate(self.ranking, candidate)
            plan = resolve(config, source=self.source).request.plan()
        except (InvalidInput, Refused) as refusal:
            return Tried(candidate, None, refused=str(refusal))
        expected = forecast(plan, course_of(config, plan), config.train.server_lr, self.assumed)
        if not math.isfinite(expected.total):
            return Tried(candidate, None, refused="training diverges in theory")
        return Tried(candidate, 0.0 - expected.total, forecast=expected)

    @cached_property
    def ranking(self) -> Config:
        """Candidates are compared by the faster accountant, unless one is asked for."""
        quick = {"privacy.accountant": "rdp"} if self.base.privacy.accountant == AUTO else {}
        return changed(self.base, quick)


def by_theory(
    base: Config, axes: Axes, assumed: Assumption, progress: OnProgress | None = None
) -> Chosen:
    """The best candidate that theory finds, climbing from the config and from every corner."""
    unknown = [axis for axis in axes if axis not in RANKED_BY_THEORY]
    if unknown:
        raise InvalidInput(
            f"theory cannot rank {unknown[0]}: it knows {', '.join(RANKED_BY_THEORY)}; leave it "
            "out, or simulate"
        )
    base = with_contraction(base, assumed)
    theory = Theory(base, assumed, None if base.data.name is None else Source(base))
    own = first_candidate(base, axes)
    best = own
    for start in starts(axes, own):
        for one in climb(axes, start, theory.value, _BY_THEORY, near=False):
            best = one if theory.value(one) > theory.value(best) + _LEAST else best
        if progress is not None:
            progress(len(theory.found), len(theory.found))
    if theory.tried(best).score is None:
        raise Refused(f"no candidate could be planned: {theory.tried(best).refused}")
    around = [one for axis in axes for one in neighbours(axes, best, axis, near=False)]
    for one in around:
        theory.tried(one)
    config, plan = checked_plan(base, best, theory.source)
    return Chosen(
        kind="theory",
        measure="minus the share of what training could gain that is lost",
        axes=axes,
        config=config,
        plan=plan,
        tried=in_order_of_score(theory.found.values(), best),
        worth=tuple(
            Worth(
                one.differs_in(best)[0],
                one[one.differs_in(best)[0]],
                theory.value(one) - theory.value(best),
            )
            for one in around
            if theory.tried(one).score is not None
        ),
        start=theory.tried(own),
        assumption=assumed,
        notes=(*theory_notes(base, plan, assumed), *edges(axes, best)),
    )


def starts(axes: Axes, own: Candidate) -> list[Candidate]:
    """The config, and for rounds the ends of the axis too: T, rate and clip trade places."""
    if ROUNDS not in axes:
        return [own]
    ends = (axes[ROUNDS][0], axes[ROUNDS][-1])
    return list(dict.fromkeys([own, *(own.with_(ROUNDS, end) for end in ends)]))


def theory_notes(base: Config, plan: Plan, assumed: Assumption) -> tuple[str, ...]:
    notes = [
        f"Assumed ({assumed.source}): one round leaves {assumed.contraction:.3g} of a push and "
        f"{assumed.approach:.3g} of the way to go; {assumed.distance:.3g} to go, and a random push "
        f"of {assumed.slack:.3g} would undo it; a client's update has norm {assumed.stride:.3g}; "
        f"{assumed.parameters:,} parameters."
    ]
    if base.privacy.accountant == AUTO and plan.accountant != "rdp":
        notes.append(
            f"Compared by Rényi accounting; the plan of the best is by {plan.accountant}, which "
            "needs less noise."
        )
    return tuple(notes)


def edges(axes: Axes, best: Candidate) -> list[str]:
    """A word on numbers that were the best at the end of what was compared."""
    notes = []
    for axis, values in axes.items():
        numbers = [one for one in values if isinstance(one, int | float)]
        free = len(numbers) > 1 and axis not in (TAIL, RATE)
        if free and best[axis] in (numbers[0], numbers[-1]):
            end = "smallest" if best[axis] == numbers[0] else "largest"
            notes.append(
                f"{short(axis).capitalize()} {said(best[axis])} is the {end} that was compared; "
                f"vary {axis} further to see if more helps."
            )
    return notes


def in_order_of_score(tried: Any, best: Candidate) -> tuple[Tried, ...]:
    """The best first, refused ones last."""
    scored = [one for one in tried if one.score is not None and one.candidate != best]
    first = [one for one in tried if one.candidate == best]
    refused = [one for one in tried if one.score is None]
    return (*first, *sorted(scored, key=lambda one: -one.score), *refused)


def checked_plan(
    base: Config, best: Candidate, source: Source | None = None
) -> tuple[Config, Plan]:
    """The config and the plan of a candidate, checked by the independent accountant."""
    from fedspend.verification.verify import verify

    config = pruned(config_of_candidate(base, best))
    refuse_without_effect(config)
    plan = resolve(config, source=source).request.plan()
    verdict = verify(plan)
    if not verdict.ok:
        raise Refused(f"the plan of the best candidate failed verification: {verdict.failures[0]}")
    return config, plan


# --- simulation -----------------------------------------------------------------------------------


def by_simulation(
    simulation: Simulation,
    begin: Sequence[Candidate],
    seeds: int,
    most: int,
    finalists: int,
    progress: OnProgress | None = None,
) -> Chosen:
    """The best candidate that trainings on held-out rows find."""

    def once(candidate: Candidate) -> float:
        return simulation.value(candidate, simulation.first_seed)

    told = None if progress is None else lambda done, _: progress(done, most + finalists * 2)
    start = max(begin, key=once)  # the config, unless theory's choice is better
    tried = climb(simulation.axes, start, once, most, told)
    tried = list(dict.fromkeys([*tried, *begin]))
    tried.sort(key=once, reverse=True)
    if once(tried[0]) == -math.inf:
        refused = simulation.trained(tried[0], simulation.first_seed)["refused"]
        raise Refused(f"no candidate could be trained: {refused or 'all of them diverged'}")
    good = [one for one in tried[:finalists] if once(one) > -math.inf]
    ranked = race(good, simulation.mean, seeds)
    rest = [one for one in tried if one not in ranked]
    best = ranked[0]
    config, plan = checked_plan(simulation.base, best)
    rows = {one: simulated_row(simulation, one, seeds) for one in (*ranked, *rest)}
    return Chosen(
        kind="simulation",
        measure=f"{simulation.score} on held-out rows",
        axes=simulation.axes,
        config=config,
        plan=plan,
        tried=tuple(rows.values()),
        worth=tuple(simulated_worth(simulation, best, list(rows), seeds)),
        start=rows[begin[0]],
        trainings=len(simulation.lines),
        notes=(
            f"Scores are read on {simulation.base.data.validation or HELD_OUT:.0%} of the training "
            "rows, held out; the best of many looks better than it is.",
            *edges(simulation.axes, best),
        ),
    )


def simulated_row(simulation: Simulation, candidate: Candidate, seeds: int) -> Tried:
    n = simulation.seeds_of(candidate, seeds)
    score = simulation.mean(candidate, n)
    return Tried(
        candidate,
        score if math.isfinite(score) else None,
        seeds=n,
        refused=simulation.trained(candidate, simulation.first_seed)["refused"],
    )


def simulated_worth(
    simulation: Simulation, best: Candidate, tried: Sequence[Candidate], seeds: int
) -> list[Worth]:
    """The candidates that differ from the best in one thing, over the seeds that both have."""
    from fedspend.runs.comparison import interval

    found = []
    for axis in simulation.axes:
        for one in tried:
            if one.differs_in(best) != (axis,):
                continue
            n = min(simulation.seeds_of(one, seeds), simulation.seeds_of(best, seeds))
            apart = np.array(simulation.values(one, n)) - np.array(simulation.values(best, n))
            if np.isfinite(apart).all():
                mean, half = interval(apart)
                found.append(Worth(axis, one[axis], mean, half, n))
    return found
