"""Private gradient descent in which every record pays for its own gradients (Feldman and Zrnic 2021).

A record pays the squared norm of its clipped gradient, in squared clips, before the gradient enters a step's sum. If it cannot pay,
it contributes nothing, then and ever after. A gradient that is not finite counts as zero, and zero is free.

Guarantee: what a record's gradients in all steps add up to, in squared norms, is at most its norm budget, whatever happens: a
round whose norms are not on disk counts as paid at the clip. Noise, denominator and number of steps are planned. What is left to
each record is private: it is written to `norms.safetensors`, for its owner only, before a round's result leaves the engine.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save as to_bytes

from fedspend.arrays import FloatArray, IntArray
from fedspend.engines.base import Reduce, Reduced, Workload
from fedspend.engines.clientwise import single_threaded
from fedspend.errors import InvalidInput, Refused
from fedspend.files import write_whole
from fedspend.mechanism import clip_factors, release_step
from fedspend.records.engine import LocalModel, check_same_records
from fedspend.records.gradients import clipped_sum
from fedspend.records.planning import RecordPlan

FILE = "norms.safetensors"


class Payments:
    """What the records of a step have left. As the factors of a sum of gradients, it lets each pay or drops it for good."""

    def __init__(self, clip: float) -> None:
        self._clip, self._at = clip, 0
        self.left, self.paid = np.zeros(0), 0  # what each has left, and how many have paid

    def begin(self, left: FloatArray) -> None:
        self.left, self.paid, self._at = left.copy(), 0, 0

    def __call__(self, norms: FloatArray) -> FloatArray:
        """Norms of the next rows, in order."""
        some = slice(self._at, self._at + len(norms))
        self._at += len(norms)
        left = self.left[some].copy()
        price = np.where(np.isfinite(norms), np.minimum(norms / self._clip, 1.0) ** 2, 0.0)
        pays = (left > 0) & (price <= left)  # a square can underflow to nothing, and nothing left pays for nothing
        self.left[some] = np.where(pays, left - price, 0.0)
        self.paid += int(pays.sum())
        return np.where(pays, clip_factors(norms, self._clip), 0.0)


class NormBudgets:
    """What every record has left before a round, kept in `folder` if there is one."""

    def __init__(self, plan: RecordPlan, folder: Path | None, simulation: bool) -> None:
        self._plan, self._simulation = plan, simulation
        self._path = None if folder is None else folder / FILE
        self._full: FloatArray = plan.steps.sum(axis=0)[plan.schedules.of_client]
        self._played = -1
        self._before: FloatArray = self._full
        self._after: FloatArray = self._full
        self._read = False

    def before(self, round: int) -> FloatArray:
        """(records,). A simulation plays a round again from where it began; no other run may."""
        if not self._read:
            self.load()
            self._read = True
        if self._played == round and self._simulation:
            return self._before
        if not self._played < round:
            raise Refused(
                f"the norms of round {self._played + 1} are paid, and round {round + 1} is to be played: the run directory was set "
                "back; nobody knows what was released since, so start a new run"
            )
        unknown = round - 1 - self._played  # rounds that were begun and lost
        left: FloatArray = np.maximum(self._after - unknown * self._plan.terms.local_steps, 0.0)
        return left

    def keep(self, round: int, before: FloatArray, after: FloatArray) -> None:
        self._played, self._before, self._after = round, before, after
        if self._path is not None:
            about = {"about": json.dumps({"round": round, "plan": self._plan.hash})}
            write_whole(self._path, to_bytes({"before": before, "after": after}, about))

    def load(self) -> None:
        """Read what is on disk, if anything; refuses a file that does not fit."""
        from fedspend.runs import read_tensors

        if self._path is None or not self._path.exists():
            return
        arrays, about = read_tensors(self._path)
        fits = set(arrays) == {"before", "after"} and {one.shape for one in arrays.values()} == {self._full.shape}
        if not (fits and about["plan"] == self._plan.hash and type(about["round"]) is int and about["round"] >= 0):
            raise InvalidInput(f"{self._path} belongs to another run; restore the run's own file, or start a new run")
        if not all(np.all((one >= 0) & (one <= self._full)) for one in arrays.values()):
            raise InvalidInput(f"{self._path} leaves a record more than its budget, or less than nothing; restore it from a copy")
        self._played, self._before, self._after = about["round"], arrays["before"], arrays["after"]


class NormFilterEngine:
    """The rows of a shard of `work` are in the order of its client's records in the plan."""

    name = "norm-filter"

    def __init__(self, work: Workload, plan: RecordPlan, folder: Path | None = None) -> None:
        self._work, self._plan = work, plan
        self._payments = Payments(plan.clip)
        self._sum = clipped_sum(work.module, plan.clip, self._payments)
        self._budgets = NormBudgets(plan, folder, work.randomness.simulation)
        self._budgets.load()  # what does not fit is refused before a round is charged; a round reads it again, under the run's lock
        self._records = [np.flatnonzero(plan.owner == client) for client in range(len(plan.clients))]
        check_same_records(self._records, work.shards)

    def run(self, parameters: torch.Tensor, cohort: IntArray, round: int, lr: float, reduce: Reduce) -> Reduced:
        before = self._budgets.before(round)
        left, active = before.copy(), np.zeros(self._plan.terms.local_steps, dtype=np.int64)
        reduced, batch = Reduced.nothing(parameters.numel()), self._plan.expected_batch(round)
        with single_threaded():
            for client in cohort:
                update = self._update(parameters, int(client), round, lr, batch[:, client], left, active)
                reduced = reduced.plus(reduce(update[None], np.array([client])))
        self._budgets.keep(round, before, left)
        return replace(reduced, active=active)

    def _update(
        self, start: torch.Tensor, client: int, round: int, lr: float, batch: FloatArray, left: FloatArray, active: IntArray
    ) -> torch.Tensor:
        """All local steps of one client; `left` and `active` are brought up to date."""
        plan, work, mine = self._plan, self._work, self._records[client]
        deviation, local = plan.terms.noise_multiplier * plan.clip, LocalModel(start, lr, work.training.momentum)
        for number in range(plan.terms.local_steps):  # all of them, and with noise, also when nobody is left: that is private
            step = round * plan.terms.local_steps + number
            some = np.flatnonzero(left[mine] > 0)
            rows = torch.from_numpy(work.shards[client][some])
            self._payments.begin(left[mine[some]])
            total = self._sum(local.parameters, work.features[rows], work.labels[rows])
            active[number] += self._payments.paid
            left[mine[some]] = self._payments.left
            local.descend(release_step(total, deviation, float(batch[number]), work.randomness, step, client))
        return local.parameters - start

    def close(self) -> None:
        pass
