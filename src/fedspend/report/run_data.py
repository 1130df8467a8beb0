"""A run directory as the report sees it.

Guarantee: all parts belong together (the plan is the one that the run names, the metrics fit its
rounds), and statistics of single updates, and exact numbers about rows of clients, are passed on
only if every file of the run says that it was a simulation. Nothing here needs torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.basics.json_values import number
from fedspend.data.loading import OWN
from fedspend.errors import InvalidInput
from fedspend.ledger.chain import Head
from fedspend.planning.plan import Plan
from fedspend.planning.protocol import AnyPlan
from fedspend.planning.replanning import claimed_before
from fedspend.report.groups import group_clients
from fedspend.report.pieces import figure, percent
from fedspend.server.early_stopping import KEPT_ROUND, STOPPED, of_kept
from fedspend.server.methods.adaptive_clip import ADAPTIVE_CLIP
from fedspend.server.methods.planned import AE_DPFL
from fedspend.server.methods.table import METHODS
from fedspend.stored.files import METRICS, PLAN
from fedspend.stored.run import EPSILON_OF, IN_ALL_RUNS, Facts, MetricsLine, StoredRun
from fedspend.tasks.words import ACCURACY, is_share, metric_of, other_metrics


@dataclass(frozen=True, eq=False)
class RunData:
    """One run. `simulation`: some file says that it was seeded; `statistics`: all files say so."""

    name: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    metrics: tuple[MetricsLine, ...]
    plan: AnyPlan | None
    certificate: dict[str, Any] | None
    labels: tuple[str, ...] | None  # each client's group, if the budgets named groups
    majority: float | None
    simulation: bool
    statistics: bool
    account: dict[str, str]  # the run's id in its ledger, and the last entry it has seen
    evaluation: str = "public"  # how good the model is said to be: the mode
    public_rows: bool = True  # whether accuracy and loss were measured on public rows
    tuned: dict[str, Any] | None = None  # of the winner of a private tune: what the tune cost

    @property
    def exact(self) -> bool:
        """Whether exact accuracy and loss may be shown: on public rows, or in a simulation."""
        return self.statistics or (self.public_rows and self.evaluation == "public")

    @property
    def metric(self) -> str:
        """The metric that models are judged by first."""
        return metric_of(self.metrics[-1]) if self.metrics else ACCURACY

    def said(self, name: str) -> str:
        """The last value of a metric: shares in percent."""
        value = self.last(name)
        return percent(value) if is_share(name.removeprefix("private_")) else figure(value)

    @property
    def exact_mark(self) -> str:
        """Who may see accuracy and loss. Without a plan there is no noise, so they are not private;
        nor are they about rows of clients.
        """
        return "public" if self.plan is not None and self.public_rows else "simulation"

    @property
    def method(self) -> str:
        named = None if self.plan is None else self.plan.parameters.get("method")
        return str(
            self.settings.get("method.name")
            or named
            or ("fedavg" if self.plan is None else "planned")
        )

    @property
    def adaptive(self) -> bool:
        """Whether clip and noise of a round followed the method, and so are not in the plan."""
        built_in = self.method in METHODS and self.method not in METHODS.own
        return self.method == ADAPTIVE_CLIP.name if built_in else self._left_the_plan

    @cached_property
    def _left_the_plan(self) -> bool:
        if self.plan is None or self.plan.unit != "client":
            return False
        planned = Plan.expect(self.plan, "a plan of clients").noise_of_average
        said = ((int(line["round"]), number(line.get("noise_deviation"))) for line in self.metrics)
        return any(
            found is not None and not abs(found - planned[t - 1]) <= 1e-6 * planned[t - 1]
            for t, found in said
            if t <= len(planned)
        )

    @property
    def voting(self) -> bool:
        """Whether clients send votes on public rows instead of updates."""
        return self.method == AE_DPFL.name

    @property
    def rounds(self) -> int:
        if self.plan is not None:
            return self.plan.rounds
        planned = number(self.settings.get("train.rounds"))
        return max(self.done, 0 if planned is None else int(planned))

    @property
    def done(self) -> int:
        return int(self.metrics[-1]["round"])

    @property
    def skipped(self) -> tuple[int, ...]:
        return tuple(line["round"] for line in self.metrics if line.get("skipped"))

    def last(self, key: str) -> float | None:
        """A number of the model that the run has left."""
        return number(of_kept(self.metrics).get(key))

    @property
    def stopped(self) -> bool:
        """Whether the run's own rule has ended it before its last planned round."""
        return bool(self.metrics[-1].get(STOPPED)) and self.done < self.rounds

    @property
    def charged(self) -> int:
        """How many rounds are spent: all that were planned, once its own rule has ended it."""
        return self.rounds if self.stopped else self.done

    @property
    def in_all_runs(self) -> bool:
        """Whether the epsilons of the last round are what accounts have spent in all runs."""
        return self.metrics[-1].get(EPSILON_OF) == IN_ALL_RUNS

    @property
    def kept_round(self) -> int:
        """The round after which the model was the one that the run has left."""
        found = self.metrics[-1].get(KEPT_ROUND)
        return found if type(found) is int else self.done

    def disagreement(self) -> str | None:
        """A sentence if the spending recorded during training differs from the plan's."""
        if self.plan is None:
            return None
        grouping = group_clients(self.plan, self.labels)
        spent, of_client = self.plan.spent_by_schedule(), self.plan.schedules.of_client
        for line in self.metrics:
            recorded = line.get("epsilon")
            if not isinstance(recorded, dict) or set(recorded) != set(grouping.labels):
                continue  # the run did not keep who is in these groups
            for label, members in zip(grouping.labels, grouping.members, strict=True):
                planned, whole = (
                    float(spent[charged - 1][of_client[members]].max())
                    for charged in (line["round"], self.rounds)
                )
                said = number(recorded[label])
                if said is None or not (
                    _same(said, planned)
                    or self._was_claimed(said, line["round"], members)
                    # the rounds that a stopped run leaves out count; version 0.2.0 did not add them
                    or (line.get(STOPPED) and _same(said, whole))
                    or (line.get(EPSILON_OF) == IN_ALL_RUNS and said > planned)
                ):
                    return (
                        f"Round {line['round']}, group {label}: the metrics say epsilon {said}, "
                        f"the plan {planned:.6g}."
                    )
        return None

    def _was_claimed(self, said: float, round: int, members: IntArray) -> bool:
        """Whether the plan claimed so for these members before it was replanned."""
        before = self._claimed_before
        if self.plan is None or before is None or round > len(before):
            return False
        return _same(said, float(before[round - 1][self.plan.schedules.of_client[members]].max()))

    @cached_property
    def _claimed_before(self) -> FloatArray | None:
        if self.plan is None or self.plan.unit != "client":
            return None
        return claimed_before(Plan.expect(self.plan, "a plan of clients"))


def _same(one: float, other: float) -> bool:
    return math.isclose(one, other, rel_tol=1e-4, abs_tol=1e-9)


def load_runs(folders: Sequence[Path]) -> list[RunData]:
    """Every run, each under a distinct name."""
    if not folders:
        raise InvalidInput("no run was given; name at least one run directory")
    places = [folder.resolve() for folder in folders]
    twice = next((folder for n, folder in enumerate(folders) if places[n] in places[:n]), None)
    if twice is not None:
        raise InvalidInput(f"{twice} is listed twice; remove one")
    names = [place.name or str(place) for place in places]
    depth = 1
    while len(set(names)) < len(names):
        depth += 1
        names = ["/".join(place.parts[-depth:]) for place in places]
    return [load_run(folder, name) for folder, name in zip(folders, names, strict=True)]


def load_run(folder: Path, name: str) -> RunData:
    found = StoredRun(folder)
    facts = found.facts()
    plan = _plan_of(found, facts)
    metrics = _metrics_of(found, None if plan is None else plan.rounds)
    certificate = found.certificate()
    stamps = _stamps(facts, metrics, certificate)
    simulated = all(stamp is True for stamp in stamps)
    mode, public_rows = _evaluation(facts)
    if not (public_rows or simulated):
        metrics = tuple(_without_exact(line) for line in metrics)
    return RunData(
        name=name,
        settings=facts.settings,
        environment=facts.environment,
        metrics=metrics,
        plan=plan,
        certificate=certificate,
        labels=_labels(facts, plan),
        majority=facts.majority if public_rows or simulated else None,
        simulation=any(stamp is True for stamp in stamps),
        statistics=simulated,
        account=_account(found, facts),
        evaluation=mode,
        public_rows=public_rows,
        tuned=said if isinstance(said := facts.content.get("tuned"), dict) else None,
    )


def _evaluation(facts: Facts) -> tuple[str, bool]:
    """How the run was evaluated, and whether on public rows. Older versions did not say: theirs are
    public if they came from a public data set or from a file of their own.
    """
    if facts.evaluation is not None:
        mode = facts.evaluation.get("mode")
        return (mode if isinstance(mode, str) else "none"), facts.evaluation.get("rows") == "public"
    said = facts.settings
    if "data.name" not in said:  # arrays, with test rows of their own
        return "public", True
    public = not number(said.get("data.validation")) and (
        said["data.name"] not in OWN or bool(said.get("data.test_path"))
    )
    return ("public" if public else "simulation" if facts.simulation else "none"), public


def _without_exact(line: MetricsLine) -> MetricsLine:
    """A line of a real run without exact numbers about rows of clients, which older versions
    wrote.
    """
    exact = (metric_of(line), *other_metrics(line), "loss")
    return line | dict.fromkeys(exact)


def _stamps(
    facts: Facts, metrics: tuple[MetricsLine, ...], certificate: dict[str, Any] | None
) -> list[bool | None]:
    """What each file says about whether the run was a simulation."""
    stamps = [facts.simulation, *(line.get("randomness") == "seeded" for line in metrics)]
    if certificate is not None and "randomness" in certificate:
        stamps.append(certificate["randomness"] == "seeded")
    return stamps


def _labels(facts: Facts, plan: AnyPlan | None) -> tuple[str, ...] | None:
    """Each client's group, if groups were kept and fit the plan."""
    if plan is None or facts.groups is None or len(facts.groups) != len(plan.clients):
        return None
    return facts.groups


def _account(found: StoredRun, facts: Facts) -> dict[str, str]:
    """The run's account, without the ledger's location: a report may be passed on."""
    if facts.ledger is None:
        return {}
    about = {"run": facts.ledger.run}
    if found.head_file.exists():
        seen = Head.load(found.head_file)
        about |= {"ledger": seen.ledger, "head": str(seen)}
    return about


def _plan_of(found: StoredRun, facts: Facts) -> AnyPlan | None:
    """The plan that the run names, and no other."""
    if facts.plan_hash is None:
        return None
    plan = found.plan()
    if plan is None:
        raise InvalidInput(
            f"{found.folder}: {PLAN} is missing: the run has not begun, or the file was removed; "
            "restore it"
        )
    if plan.hash != facts.plan_hash:
        raise InvalidInput(
            f"{found.folder}: {PLAN} is not the plan of this run, which is "
            f"{str(facts.plan_hash)[:19]}; restore it"
        )
    return plan


def _metrics_of(found: StoredRun, rounds: int | None) -> tuple[MetricsLine, ...]:
    """One line per round: the last one, if a round was repeated."""
    by_round = {line["round"]: line for line in found.metrics()}
    if not by_round:
        raise InvalidInput(
            f"{found.folder} has no finished round to report: {METRICS} is missing or empty; "
            "resume the run first"
        )
    if rounds is not None and max(by_round) > rounds:
        raise InvalidInput(
            f"{METRICS.of(found.folder)} goes to round {max(by_round)}, but the plan has {rounds}; "
            "it belongs to another run"
        )
    return tuple(by_round[t] for t in sorted(by_round))
