"""Private gradient descent in which every record pays for its own gradients (Feldman and Zrnic
2021).

A record pays the squared norm of its clipped gradient, in squared clips, before the gradient enters
a step's sum. If it cannot pay, it contributes nothing from then on. A gradient that is not finite
counts as zero, and zero is free.

Guarantee: the squared norms of a record's gradients in all steps add up to at most its norm budget,
whatever happens. What each record has left is private and stays with the client; it is stored
before anything that was paid for leaves the client. Every client is in every round, so if a state
does not know of a round, that round was lost or the state is an old copy: such rounds count as paid
at the clip. Without a state, all rounds so far do.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.basics.tensors import pack, unpack
from fedspend.client.bounding import clip_factors
from fedspend.client.state import States
from fedspend.client.task import ClientTask
from fedspend.errors import InvalidInput, Refused


class Payments:
    """What the records of a step have left. Called for the factors of a sum of gradients, it
    charges each record, or drops it for good.
    """

    def __init__(self, clip: float) -> None:
        self._clip, self._at = clip, 0
        self.left, self.paid = np.zeros(0), 0  # what each record has left; how many have paid

    def begin(self, left: FloatArray) -> None:
        self.left, self.paid, self._at = left.copy(), 0, 0

    def __call__(self, norms: FloatArray) -> FloatArray:
        """The factors for the next rows, in order, given their norms."""
        some = slice(self._at, self._at + len(norms))
        self._at += len(norms)
        left = self.left[some].copy()
        price = np.where(np.isfinite(norms), np.minimum(norms / self._clip, 1.0) ** 2, 0.0)
        # A square can underflow to zero, so `left > 0` is checked too: a record with nothing left
        # must not pay.
        pays = (left > 0) & (price <= left)
        self.left[some] = np.where(pays, left - price, 0.0)
        self.paid += int(pays.sum())
        return np.where(pays, clip_factors(norms, self._clip), 0.0)


class NormBudget:
    """What a client's records have left before and after one round."""

    def __init__(self, task: ClientTask, states: States, simulation: bool) -> None:
        terms = task.records
        assert terms is not None
        assert terms.norm_budget is not None
        self._task, self._states, self._simulation = task, states, simulation
        self._full, self._steps = terms.norm_budget, terms.batch.size

    def before(self) -> FloatArray:
        """What each record has left, (records,). A simulation may repeat a round from where it
        began; no other run may.
        """
        stored, round = self._states.read(self._task.client), self._task.shared.round
        if stored is None:  # never enrolled or lost: what was paid is unknown
            return self._without(self._full, round)
        played, before, after = self._read(stored)
        if played == round and self._simulation:
            return before
        if not played < round:
            raise Refused(
                f"client {self._task.client!r} has already paid for round {played + 1}, but the "
                f"run is at round {round + 1}: the run directory was restored from an older copy, "
                "and what was released since is unknown; start a new run"
            )
        return self._without(after, round - played - 1)

    def _without(self, left: FloatArray, rounds: int) -> FloatArray:
        """What is left at least, if this many more rounds were paid at the clip."""
        rest: FloatArray = np.maximum(left - rounds * self._steps, 0.0)
        return rest

    def keep(self, before: FloatArray, after: FloatArray) -> None:
        self._write(self._task.shared.round, before, after)

    def enrol(self) -> None:
        """Starts the account: nothing has been paid yet. From now on, a missing state means it was
        lost.
        """
        self._write(-1, self._full, self._full)

    def adopt(self, round: int, before: FloatArray, after: FloatArray) -> None:
        """Takes over a state kept elsewhere, unless this client has its own, which is newer."""
        if self.missing:
            self._write(round, before, after)

    @property
    def missing(self) -> bool:
        return self._states.read(self._task.client) is None

    def check(self) -> None:
        """Refuse a state that does not fit, before anything is charged."""
        stored = self._states.read(self._task.client)
        if stored is not None:
            self._read(stored)

    def _write(self, round: int, before: FloatArray, after: FloatArray) -> None:
        shared = self._task.shared
        about: dict[str, Any] = {
            "client": self._task.client,
            "round": round,
            "run": shared.run,
            "plan": shared.plan,
        }
        self._states.write(self._task.client, pack({"before": before, "after": after}, about))

    def _read(self, stored: bytes) -> tuple[int, FloatArray, FloatArray]:
        place = self._states.place(self._task.client)
        arrays, about = unpack(stored, place, "restore it from a copy or start a new run")
        fits = set(arrays) == {"before", "after"} and {one.shape for one in arrays.values()} == {
            self._full.shape
        }
        task = self._task
        ours = (about.get("run"), about.get("plan"), about.get("client")) == (
            task.shared.run,
            task.shared.plan,
            task.client,
        )
        if not (fits and ours and type(about.get("round")) is int and about["round"] >= -1):
            raise InvalidInput(
                f"{place} belongs to another run or client; restore the client's own file, or "
                "start a new run"
            )
        if not all(np.all((one >= 0) & (one <= self._full)) for one in arrays.values()):
            raise InvalidInput(
                f"{place} gives a record more than its budget, or a negative amount; restore it "
                "from a copy"
            )
        return about["round"], arrays["before"], arrays["after"]
