"""Replanning the rest of a run after rounds were lost.

A reserved round whose release is gone has been paid for. Without `--replan` the run has one round
less. With it, what is left of the run's budget is spread over all rounds that are still missing:
the full number of releases, with a little more noise in each (`planning.replanning`), or for
records a little less sampling (`records.replanning`).

Guarantee: rounds that have begun stay as they are; the run as a whole claims no more than before;
the ledger admits the new plan like any other. Until then nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fedspend.ledger import Ledger
from fedspend.ledger.rules import open_run, refuse_replanning
from fedspend.ledger.spending import histories
from fedspend.planning.protocol import AnyPlan
from fedspend.runs.directory import RunDirectory


def plan_anew(
    folder: Path,
    ledger: Ledger,
    plan: AnyPlan,
    rounds: int,
    on_note: Callable[[str], None],
    *,
    moved: bool = False,
) -> AnyPlan:
    """The plan of the run in `folder`, extended to give `rounds` releases despite lost rounds. Only
    reads; `moved`: the run was elsewhere, which is not entered yet.
    """
    directory = RunDirectory(folder)
    account = directory.account_in(ledger, moved=moved)
    if not account.admitted or ledger.simulation:  # a simulation repeats lost rounds
        on_note("no round was lost: the plan stays as it is")
        return plan
    done = found.done if (found := directory.training_state()) else 0
    run = account.run
    lost = sum(state == "lost" for state in run.rounds.values())
    if run.rounds.get(done) == "reserved" and not directory.has_release(done):
        lost += 1  # the ledger hears of it when the run goes on
    missing = rounds - int(plan.parameters.get("dropped_rounds", 0)) + lost - plan.rounds
    if missing <= 0:
        on_note("no round was lost: the plan stays as it is")
        return plan
    if run.stopped or (found is not None and found.watched.stopped):
        on_note("the run was stopped by its own rule: lost rounds are not made up for")
        return plan
    if run.next_round >= plan.rounds:
        on_note("every planned round has begun, so no budget is left to make up for lost ones")
        return plan
    refuse_replanning(open_run(ledger.state, run.id))  # nor does one that was closed by hand go on
    others = histories(ledger.state, run.unit, held=True, without=run.id)
    longer = plan.extended(
        run.next_round,
        missing,
        spent=run.mechanisms(held=False),
        elsewhere=others.mechanisms,
        of_unit=others.of_account[run.accounts],
        lifetime=ledger.accounts(run.unit).budget[run.accounts],
    )
    told = "1 lost round is" if missing == 1 else f"{missing} lost rounds are"
    on_note(f"{told} made up for: rounds {run.next_round + 1} to {longer.rounds} were replanned")
    return longer
