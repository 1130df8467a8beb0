"""A run directory as the report sees it.

Guarantee: what is shown belongs together (the plan is the one that the run names, the metrics fit
its rounds), and statistics of single updates are handed on only where every file of the run says
that it was a simulation. Nothing here needs torch.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.basics.files import read_lines
from fedspend.errors import InvalidInput
from fedspend.ledger.account import HEAD
from fedspend.ledger.chain import Head
from fedspend.planning.protocol import AnyPlan, load_any_plan
from fedspend.report.groups import group_clients

MetricsLine = dict[str, Any]
AE_DPFL = "ae-dpfl"  # named here too: `server.student` needs torch, a report does not


@dataclass(frozen=True, eq=False)
class RunData:
    """One run. `simulation`: some file says that its randomness was seeded; `statistics`: every
    file says so.
    """

    name: str
    settings: dict[str, Any]
    environment: dict[str, Any]
    metrics: tuple[MetricsLine, ...]
    plan: AnyPlan | None
    certificate: dict[str, Any] | None
    labels: tuple[str, ...] | None  # group of each client, where the budgets named one
    majority: float | None
    simulation: bool
    statistics: bool
    account: dict[str, str]  # the run's id in its ledger, and the last entry that it has seen

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
        """Whether the clip follows earlier releases, and so is not in the plan."""
        return self.method == "adaptive-clip"

    @property
    def voting(self) -> bool:
        """Whether clients send votes on public rows, and not updates."""
        return self.method == AE_DPFL

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
        return number(self.metrics[-1].get(key))

    def disagreement(self) -> str | None:
        """A sentence if the spending that was recorded while training is not the plan's."""
        if self.plan is None:
            return None
        grouping = group_clients(self.plan, self.labels)
        spent, of_client = self.plan.spent_by_schedule(), self.plan.schedules.of_client
        for line in self.metrics:
            recorded = line.get("epsilon")
            if not isinstance(recorded, dict) or set(recorded) != set(grouping.labels):
                continue  # groups that the run did not keep the members of cannot be compared
            for label, members in zip(grouping.labels, grouping.members, strict=True):
                planned, said = (
                    float(spent[line["round"] - 1][of_client[members]].max()),
                    number(recorded[label]),
                )
                if said is None or not math.isclose(said, planned, rel_tol=1e-4, abs_tol=1e-9):
                    return (
                        f"Round {line['round']}, group {label}: the metrics say epsilon {said}, "
                        f"the plan {planned:.6g}."
                    )
        return None


def load_runs(folders: Sequence[Path]) -> list[RunData]:
    """Every run, under a name that tells it from the others."""
    if not folders:
        raise InvalidInput("no run was given; name at least one run directory")
    places = [folder.resolve() for folder in folders]
    twice = next((folder for n, folder in enumerate(folders) if places[n] in places[:n]), None)
    if twice is not None:
        raise InvalidInput(f"{twice} is given twice; name every run once")
    names = [place.name or str(place) for place in places]
    depth = 1
    while len(set(names)) < len(names):
        depth += 1
        names = ["/".join(place.parts[-depth:]) for place in places]
    return [load_run(folder, name) for folder, name in zip(folders, names, strict=True)]


def load_run(folder: Path, name: str) -> RunData:
    about = _read_object(folder / "run.json", f"{folder} holds no run: there is no run.json in it")
    settings = about.get("settings")
    if not isinstance(settings, dict):
        raise InvalidInput(f"{folder / 'run.json'} is damaged: it holds no settings")
    plan = _load_plan(folder, settings.get("plan"))
    metrics = _load_metrics(folder, None if plan is None else plan.rounds)
    certificate = (
        _read_object(folder / "certificate.json", "")
        if (folder / "certificate.json").exists()
        else None
    )
    labels = about.get("groups")
    fits = isinstance(labels, list) and plan is not None and len(labels) == len(plan.clients)
    stamps = [
        about.get("simulation"),
        *(line.get("randomness") == "seeded" for line in metrics),
    ]
    if certificate is not None and "randomness" in certificate:
        stamps.append(certificate["randomness"] == "seeded")
    environment = about.get("environment")
    return RunData(
        name=name,
        settings=settings,
        environment=environment if isinstance(environment, dict) else {},
        metrics=metrics,
        plan=plan,
        certificate=certificate,
        labels=tuple(str(label) for label in labels) if fits and labels is not None else None,
        majority=number(about.get("majority")),
        simulation=any(stamp is True for stamp in stamps),
        statistics=all(stamp is True for stamp in stamps),
        account=_load_account(folder, about.get("ledger")),
    )


def _load_account(folder: Path, named: Any) -> dict[str, str]:
    """Not where the ledger is: a report may be handed on."""
    if not isinstance(named, dict):
        return {}
    path = folder / HEAD
    head = {"ledger": (seen := Head.load(path)).ledger, "head": str(seen)} if path.exists() else {}
    return {"run": str(named.get("run"))} | head


def _load_plan(folder: Path, named: Any) -> AnyPlan | None:
    if named is None:
        return None
    if not (folder / "plan.json").exists():
        raise InvalidInput(
            f"{folder}: plan.json is missing; the run has not begun, or the file was removed"
        )
    plan = load_any_plan(folder / "plan.json")
    if plan.hash != named:
        raise InvalidInput(
            f"{folder}: plan.json is not the plan of this run, which is {str(named)[:19]}; restore "
            "it"
        )
    return plan


def _load_metrics(folder: Path, rounds: int | None) -> tuple[MetricsLine, ...]:
    path = folder / "metrics.jsonl"
    try:
        found = {line["round"]: line for line in read_lines(path)}
        if not all(type(t) is int and t >= 1 for t in found):
            raise ValueError
    except (ValueError, KeyError, TypeError, OSError):
        raise InvalidInput(f"{path} is damaged: a line is not the record of a round") from None
    if not found:
        raise InvalidInput(
            f"{folder} has no finished round to report: metrics.jsonl is missing or empty; go on "
            "with the run first"
        )
    if rounds is not None and max(found) > rounds:
        raise InvalidInput(
            f"{path} goes to round {max(found)}, but the plan has {rounds}; it belongs to another "
            "run"
        )
    return tuple(found[t] for t in sorted(found))


def _read_object(path: Path, if_missing: str) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (FileNotFoundError, NotADirectoryError):
        raise InvalidInput(if_missing) from None
    except (ValueError, OSError, RecursionError):
        raise InvalidInput(f"{path} is damaged: it is not readable JSON") from None
    if not isinstance(content, dict):
        raise InvalidInput(f"{path} is damaged: it is not a JSON object")
    return content


def number(value: Any) -> float | None:
    """A finite number, or None for anything else.

    >>> number(2), number("2"), number(float("nan")), number(True)
    (2.0, None, None, None)
    """
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
        return None
    try:
        return float(value) if math.isfinite(value) else None
    except OverflowError:
        return None
