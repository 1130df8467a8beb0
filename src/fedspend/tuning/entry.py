"""`fedspend.tune`: chooses settings by trying them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from fedspend.accounting.trials import DEFAULT, DEFAULT_MEAN, trials_of
from fedspend.basics.door import public
from fedspend.basics.progress import OnProgress
from fedspend.configuration.config import AnyConfig
from fedspend.errors import InvalidInput
from fedspend.report.live import counting_bar
from fedspend.runs.result import OnNote
from fedspend.tuning.grid import settings_of
from fedspend.tuning.private import PrivateTune, tune_private
from fedspend.tuning.simulated import DEFAULT_SEEDS, DEFAULT_VALIDATION, Tuned, tune_simulated


@public
def tune(
    config: AnyConfig,
    grid: Sequence[str],
    *,
    private: bool = False,
    overrides: Sequence[str] = (),
    output: str | Path | None = None,
    seeds: int | None = None,
    validation: float | None = None,
    workers: int | None = None,
    progress: OnProgress | bool | None = None,
    trials_mean: float | None = None,
    distribution: str | None = None,
    eta: float | None = None,
    ledger: str | Path | None = None,
    project: str | None = None,
    on_note: OnNote = lambda _: None,
) -> Tuned | PrivateTune:
    """Choose among settings by trying them: in simulations, or with `private` on private rows.

    Without `private`, every setting is trained in seeded simulations and measured on rows that are
    held out of the training rows. With it, a random number of trials is run on the rows of the
    clients, of which only the best is kept; every client is charged once, beforehand.

    Arguments:
        config: a TOML file or a dict of sections.
        grid: the values of each key: `["train.lr=0.1,0.2", "privacy.clip=0.5,1"]`.
        private: try them on private rows, at a price.
        overrides: `["train.rounds=10", ...]`, for all of them.
        output: a folder. Without `private`, finished runs are kept there, and another call goes on
            with the rest; with it, the winner's run directory, which is needed.
        seeds: without `private`: runs of each setting. Default: 3.
        validation: without `private`: the share of training rows to measure on. Default: 0.2.
        workers: without `private`: runs at the same time. Default: one for each core.
        progress: without `private`: a bar, or a function of (done, total). Default: a bar if
            somebody is watching.
        trials_mean, distribution, eta: with `private`: how the number of trials is drawn, see
            `accounting.trials`. Default: a mean of 10, "logarithmic".
        ledger, project: with `private`: who is charged, as for `fedspend.train`.
        on_note: called with sentences that the user should read.

    Returns:
        A `Tuned` with all settings, the best first (`.rows()`, `.table()`). With `private`, a
        `PrivateTune`: `.plan` with what the whole tune costs, the winner's `.setting` and
        `.folder`.

    Raises:
        InvalidInput: an argument is wrong, or has no effect with or without `private`.
        Refused: the tune would overspend somebody's budget.

    `fedspend.tune("quickstart.toml", ["train.lr=0.05,0.1"], seeds=3, output="tunes/lr")`
    """
    for_private = {
        "trials_mean": trials_mean,
        "distribution": distribution,
        "eta": eta,
        "ledger": ledger,
        "project": project,
    }
    unused = {"seeds": seeds, "validation": validation, "workers": workers}
    for name, value in (unused if private else for_private).items():
        if value is not None:
            kind = "tunes without private=True" if private else "private=True"
            raise InvalidInput(f"{name} is for {kind}; drop it")
    settings = settings_of(config, overrides, grid)
    if private:
        if output is None:
            raise InvalidInput("a private tune needs a folder for its winner: give output")
        mean = DEFAULT_MEAN if trials_mean is None else trials_mean
        trials = trials_of(distribution or DEFAULT, mean, eta)
        where = None if ledger is None else str(ledger)
        return tune_private(
            settings, trials, Path(output), ledger=where, project=project, on_note=on_note
        )
    folder = None if output is None else Path(output)
    with counting_bar("training", progress) as told:
        return tune_simulated(
            settings,
            DEFAULT_SEEDS if seeds is None else seeds,
            DEFAULT_VALIDATION if validation is None else validation,
            folder,
            workers=workers,
            progress=told,
        )
