"""The only reader of run directories: for reports, resumed runs and ledger checks.

Guarantee: a damaged file is refused with one line that names it. Nothing is written here, and
nothing here needs torch. Each part is read only when needed, so a run that is still going can be
read too.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedspend.basics.files import read_lines
from fedspend.basics.json_values import number, read_object
from fedspend.errors import InvalidInput, unreadable
from fedspend.planning.protocol import AnyPlan, load_any_plan
from fedspend.stored.files import CERTIFICATE, METRICS, PLAN, RUN, SEEN_HEAD

MetricsLine = dict[str, Any]  # one round in `metrics.jsonl`
# in a line, if its epsilons are what accounts have spent in all runs, and not in this run
EPSILON_OF, IN_ALL_RUNS = "epsilon_of", "accounts, in all runs"
# in the environment that `run.json` records
NOISE_DRAWN, WHOLE_NUMBERS = "noise drawn in", "whole numbers"


@dataclass(frozen=True)
class NamedLedger:
    """The ledger that a run charges, as its run directory names it."""

    location: str  # relative if it is inside the run directory
    run: str  # the run's id in it
    project: str = ""  # whose accounts in it


@dataclass(frozen=True)
class Facts:
    """The content of `run.json`, which is written when a run begins."""

    settings: dict[str, Any]
    simulation: bool | None  # None: it does not say
    majority: float | None  # accuracy of always guessing the most common class
    evaluation: dict[str, Any] | None  # mode, and whose rows; None for older versions
    groups: tuple[str, ...] | None  # each client's group, if the budgets named groups
    environment: dict[str, Any]
    began: str | None  # time in ISO 8601; None for version 0.1
    ledger: NamedLedger | None  # None: without a plan nothing is charged
    sealed: bool  # whether its checkpoint and its releases carry digests; not in version 0.1
    content: dict[str, Any]  # the whole file

    @property
    def plan_hash(self) -> Any:
        """The hash of the run's plan; None without one."""
        return self.settings.get("plan")


class StoredRun:
    """The run in `folder`, part by part."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def begun(self) -> bool:
        """Whether there is a run, that is, whether its first file exists."""
        return RUN.of(self.folder).exists()

    def facts(self) -> Facts:
        path = RUN.of(self.folder)
        content = read_object(path)
        if content is None:
            raise InvalidInput(
                f"{self.folder} holds no run: there is no {RUN} in it; name a run directory"
            )
        settings = content.get("settings")
        if not isinstance(settings, dict):
            raise InvalidInput(f"{path} is damaged: it holds no settings")
        stamp, groups = content.get("simulation"), content.get("groups")
        environment = content.get("environment")
        return Facts(
            settings=settings,
            simulation=stamp if isinstance(stamp, bool) else None,
            majority=number(content.get("majority")),
            evaluation=told if isinstance(told := content.get("evaluation"), dict) else None,
            groups=tuple(map(str, groups)) if isinstance(groups, list) else None,
            environment=environment if isinstance(environment, dict) else {},
            began=began if isinstance(began := content.get("began"), str) else None,
            ledger=_named_ledger(path, content.get("ledger")),
            sealed=content.get("sealed") is True,
            content=content,
        )

    def plan(self) -> AnyPlan | None:
        """The plan that the run was verified and begun with, or its replanned one."""
        path = PLAN.of(self.folder)
        if path.exists():
            return load_any_plan(path)
        if self.head_file.exists():  # it was written before the ledger admitted the run
            raise InvalidInput(
                f"{path} is missing; restore it from a copy, or start a new run in another folder"
            )
        return None

    def certificate(self) -> dict[str, Any] | None:
        return read_object(CERTIFICATE.of(self.folder))

    def metrics(self) -> list[MetricsLine]:
        """One line per finished round, in the order in which they were written."""
        path = METRICS.of(self.folder)
        try:
            lines = read_lines(path)
        except OSError as error:
            raise unreadable(path, error) from None
        except (ValueError, RecursionError):
            lines = [{}]
        if not all(isinstance(line, dict) and _is_round(line.get("round")) for line in lines):
            raise InvalidInput(f"{path} is damaged: a line is not the record of a round")
        return lines

    @property
    def head_file(self) -> Path:
        """The file with the last ledger entry that the run has seen."""
        return SEEN_HEAD.of(self.folder)


def _named_ledger(path: Path, named: Any) -> NamedLedger | None:
    if named is None:
        return None
    if isinstance(named, dict):
        found = [named.get("location"), named.get("run"), named.get("project", "")]
        if all(isinstance(value, str) for value in found):
            return NamedLedger(*found)
    raise InvalidInput(f"{path} is damaged: it does not say which ledger the run charges")


def _is_round(value: Any) -> bool:
    return type(value) is int and value >= 1
