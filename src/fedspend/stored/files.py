"""The files of a run directory, one row each; they are named nowhere else.

Guarantee: all code that reads or writes a file of a run takes its name from here, so this list is
complete, and what it says about publishing covers everything that a run leaves behind
(`tests/test_run_files.py`).

What clients must remember (filter by norms: what is left of each record's budget) belongs to them
and is not here: on one machine it is in a folder beside the run directory, `RUN.clients`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

OWNER_ONLY = 0o600
HEAD_SUFFIX = ".head"  # a ledger file keeps its head in a file beside it, with this suffix


@dataclass(frozen=True)
class RunFile:
    """One file of a run directory. `publish` says whether it may be published, and why not."""

    name: str
    holds: str
    publish: str
    writer: str  # the module that writes it
    mode: int = OWNER_ONLY  # every file of a run shows budgets, or what depends on them

    def __str__(self) -> str:
        return self.name

    @property
    def private(self) -> bool:
        return self.mode == OWNER_ONLY

    def of(self, folder: Path) -> Path:
        """The file's path in the run directory `folder`."""
        return folder / self.name


RUN = RunFile(
    "run.json",
    "settings, seed, randomness, environment, ledger",
    "no: budgets and locations",
    "runs.directory",
)
PLAN = RunFile("plan.json", "the plan", "no: budgets", "runs.directory")
CERTIFICATE = RunFile(
    "certificate.json", "the verification of the plan", "no: budgets", "runs.directory"
)
MODEL = RunFile(
    "model.safetensors",
    "the final model, with the hash of the plan",
    "yes, by `fedspend publish`, which leaves the hash out",
    "runs.directory",
)
CHECKPOINT = RunFile(
    "checkpoint.safetensors",
    "the state after the last round, and a digest of the metrics",
    "no: the digest lets anyone try budgets; what it is made of is in the model",
    "runs.directory",
)
RELEASE = RunFile(
    "release.safetensors",
    "the last release, for recovery; the mechanism's memory",
    "never",
    "runs.directory",
)
LEDGER = RunFile(
    "ledger.db",
    "the account of a simulation, unless another ledger is charged",
    "no: budgets",
    "ledger.sqlite",
)
LEDGER_HEAD = RunFile(
    f"{LEDGER}{HEAD_SUFFIX}",
    "the last entry of that account",
    "to auditors: a digest of it",
    "ledger.book",
)
SEEN_HEAD = RunFile(
    "ledger_head.json",
    "the last entry of the ledger that this run has seen",
    "to auditors: a digest of the account",
    "ledger.account",
)
METRICS = RunFile(
    "metrics.jsonl",
    "accuracy and spending by round; for a simulation, statistics of updates",
    "see the marks in the report; for a simulation on private data, no",
    "runs.directory",
)
REPORT = RunFile(
    "report.html",
    "the same as a readable page, with the plan and its verification",
    "see the marks in it; it shows budgets",
    "report.html",
)
SIGNATURE = RunFile(
    "signature.json",
    "who vouches for the run, if it was signed: digests of its files and releases",
    "no: the plan's hash lets anyone try budgets",
    "runs.signed",
)
TUNE = RunFile(
    "tune.json",
    "private tunes only: settings, plans of the trials, and what the tune costs each client",
    "no: budgets",
    "tuning.winner",
)
HOLD_OUT = RunFile(
    "hold_out.key",
    "real runs with data.validation: the secret that decides which rows clients hold out",
    "never",
    "runs.directory",
)
OLD_NORMS = RunFile(
    "norms.safetensors",
    "version 0.1.0 only: what records have paid; handed to the clients and removed on resuming",
    "never",
    "none",
)
FILES = (
    RUN,
    PLAN,
    CERTIFICATE,
    MODEL,
    CHECKPOINT,
    RELEASE,
    LEDGER,
    LEDGER_HEAD,
    SEEN_HEAD,
    METRICS,
    REPORT,
    SIGNATURE,
    TUNE,
    HOLD_OUT,
    OLD_NORMS,
)
LOGS = "tensorboard"  # a folder with the numbers of `metrics.jsonl`, if the config turns it on


def as_table() -> str:
    """The files as a Markdown table, as in `docs/how-to/run-directory.md`."""
    head = ["| file | holds | may be published | readable by |", "|---|---|---|---|"]
    rows = [
        f"| `{file}` | {file.holds} | {file.publish} | {'owner' if file.private else 'everyone'} |"
        for file in FILES
    ]
    return "\n".join([*head, *rows])
