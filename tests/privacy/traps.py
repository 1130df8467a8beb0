"""Traps that systems for private learning fell into, each with a check and with code that has it.

A check raises (an assertion, or a refusal of the software itself) if the trap is there. A mutation
puts the trap into the code, the way somebody would write it who does not see it. `test_traps.py`
runs every check on the code as it is, which must pass, and on every mutation, which must not.
"""

from __future__ import annotations

import copy
import json
import math
import stat
from collections.abc import Callable
from dataclasses import dataclass, replace
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from audited import layers_without_the_root, sampling_ignored
from boundary import client_task
from contracts import test_independence as independence
from contracts import test_lossy as lossy
from contracts import test_raw_input as raw
from contracts.workshop import COHORT, ENGINES, Data, outcome, tasks_for
from lib.configs import small
from lib.gaussian import gaussian_epsilon
from lib.noise import has_deviation
from lib.runs import killed, stopped
from test_verification import tampered
from torch import nn

import fedspend
from fedspend.accounting import pld
from fedspend.basics import files
from fedspend.client import bounding, gradients, work
from fedspend.client.bounding import Bounded
from fedspend.client.norm_budgets import Payments
from fedspend.client.state import MemoryStates
from fedspend.configuration.config import any_config
from fedspend.engines import clientwise, dense
from fedspend.errors import InvalidInput, Refused
from fedspend.ledger import Ledger
from fedspend.ledger.rules import Proposal
from fedspend.models.flat import layer_sizes
from fedspend.noise import grid as grids
from fedspend.noise.numbers import NumberGrid
from fedspend.noise.randomness import Randomness
from fedspend.planning import making
from fedspend.planning.request import PlanRequest
from fedspend.report.html import write_report
from fedspend.runs import arrays, directory, metrics, run_ledger
from fedspend.runs import training as runs_training
from fedspend.runs.running import open_engine
from fedspend.runs.setup import Setup, flat_parameters, from_config
from fedspend.runs.stores import MemoryStore
from fedspend.server import mechanism, rounds
from fedspend.server.methods import guarded
from fedspend.server.methods.adaptive_clip import AdaptiveClip
from fedspend.server.methods.base import Release
from fedspend.server.methods.planned import Planned

Check = Callable[[Path], None]
Mutation = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True)
class Trap:
    """A trap in plain words. `mutations` are ways to have it; every one must be noticed."""

    name: str
    check: Check
    mutations: tuple[Mutation, ...]


# --- small runs ---


@dataclass(frozen=True, eq=False)
class Seen:
    """What the server did in one round: whom it asked, under which clips, and what it noised."""

    tasks: list[Any]
    sum: mechanism.Sum


class Watched:
    """An engine and a mechanism that are looked over the shoulder."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.outside, self.name = inner, inner.outside, inner.name
        self.asked: list[list[Any]] = []

    def run(self, given: Any) -> Any:
        self.asked.append(list(given))
        return self.inner.run(given)

    def close(self) -> None:
        self.inner.close()


def watched(settings: dict[str, Any]) -> tuple[Setup, list[Seen]]:
    """Play the run that a config describes, in memory."""
    setup = from_config(any_config(settings))
    sums: list[mechanism.Sum] = []

    class Noting(mechanism.Gaussian):
        def release(self, sum: Any, memory: Any) -> Any:
            sums.append(sum)
            return super().release(sum, memory)

    engine = Watched(open_engine(setup, MemoryStates()))
    training = replace(setup.training, mechanism=Noting(setup.randomness))
    state = rounds.begin(flat_parameters(setup.module), setup.method)
    for _ in rounds.run_rounds(
        state,
        setup.method,
        engine,
        training,
        setup.randomness,
        MemoryStore(),
        lambda after, _: {"round": after.done},
    ):
        pass
    engine.close()
    return setup, [Seen(*pair) for pair in zip(engine.asked, sums, strict=True)]


# --- who weighs how much, and who is asked ---


def check_weights(_: Path) -> None:
    """A client of 40 rows pulls no harder than one of a single row: clipped, all are equal."""
    module = nn.Linear(12, 3)
    start = nn.utils.parameters_to_vector(module.parameters()).detach()
    clips = np.full(11, 1e-3)
    for name in ("reference", "dense", "clientwise"):
        engine = ENGINES[name](Data().work(module))
        found = outcome(engine, tasks_for(start, COHORT, independence.STEPS, clips=clips))
        engine.close()
        norms = [np.linalg.norm(one.vector) for one in found.contributions.values()]
        assert max(norms) <= 1e-3
        assert {bool(norm > 0.99e-3) for norm in norms if norm > 0} == {True}


def weighs_by_examples(patch: pytest.MonkeyPatch) -> None:
    sound = work.finished

    def finished(task: Any, update: Any, rows: int, *rest: Any) -> Any:
        reply = sound(task, update, rows, *rest)
        own = reply.contribution
        return replace(reply, contribution=replace(own, vector=own.vector * rows / 10))

    for room in (work, dense, clientwise):
        if hasattr(room, "finished"):
            patch.setattr(room, "finished", finished)


def check_denominator(_: Path) -> None:
    setup, seen = watched(small(privacy__rate=0.4, train__rounds=6))
    sizes = {len(one.tasks) for one in seen}
    assert len(sizes) > 1, "or nothing was tested"
    for number, one in enumerate(seen):
        planned = len(setup.plan.clients) * setup.plan.round_rate[number]
        assert one.sum.denominator == pytest.approx(planned, rel=1e-12)


def divides_by_those_who_came(patch: pytest.MonkeyPatch) -> None:
    sound, came = rounds.gather, [0]

    def gather(given: Any, *rest: Any, **options: Any) -> Any:
        came[0] = max(1, len(given))
        return sound(given, *rest, **options)

    patch.setattr(rounds, "gather", gather)
    patch.setattr(
        rounds,
        "Sum",
        lambda t, total, received, deviation, _planned, grid: mechanism.Sum(
            t, total, received, deviation, float(came[0]), grid
        ),
    )


def check_sampling(_: Path) -> None:
    """Over many rounds everybody is asked about as often as accounted, and independently."""
    rate, many, clients = np.array([0.1, 0.3, 0.5, 0.8]), 4000, 4
    asked = np.zeros((many, clients), dtype=bool)
    for t in range(many):
        asked[t, rounds.draw_cohort(rate, Randomness(3), t)] = True
    deviation = np.sqrt(rate * (1 - rate) / many)
    assert np.all(np.abs(asked.mean(axis=0) - rate) < 5 * deviation)
    together = np.corrcoef(asked.T) - np.eye(clients)
    assert np.abs(together).max() < 5 / math.sqrt(many)
    _, seen = watched(small(privacy__rate=0.4, train__rounds=6))
    assert len({tuple(task.client for task in one.tasks) for one in seen}) > 1


def samples_a_block(patch: pytest.MonkeyPatch) -> None:
    """One coin for all: the rates are right, and nobody is hidden among the others."""
    patch.setattr(
        rounds,
        "draw_cohort",
        lambda rate, randomness, t: np.flatnonzero(randomness.uniform(1, "cohort", t)[0] < rate),
    )


# --- clips ---


def adaptive() -> AdaptiveClip:
    plan = fedspend.plan([4.0] * 6, delta=1e-3, rounds=3, rate=0.8)
    return AdaptiveClip(plan, bit_noise=50.0)


def check_direction(_: Path) -> None:
    """Everybody within the clip: it may fall. Nobody: it must rise."""
    method, nothing = adaptive(), np.zeros(1, dtype=np.float32)
    before = method.start()
    assert method.learn(before, Release(nothing, 1.0))["clip"] < before["clip"]
    assert method.learn(before, Release(nothing, 0.0))["clip"] > before["clip"]


def reverses_the_sign(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        AdaptiveClip,
        "learn",
        lambda self, state, release: {
            "clip": state["clip"] * math.exp(self.clip_lr * (release.bit - self.target_quantile))
        },
    )


def check_noise_fits_the_clip(_: Path) -> None:
    """What was clipped in a round is hidden by noise for that clip, not for the next one."""
    setup, seen = watched(small(method__name="adaptive-clip", train__rounds=6))
    bit = setup.method.terms(0, setup.method.start()).bit_deviation
    planned = setup.plan.noise_multiplier
    for t, one in enumerate(seen):
        for task in one.tasks:
            cost = (task.clip_norm / one.sum.deviation) ** 2 + (2 * bit) ** -2.0
            assert cost <= planned[t, task.number] ** -2.0 * (1 + 1e-9)


def noise_of_the_next_clip(patch: pytest.MonkeyPatch) -> None:
    """The clip is updated first, and the noise is made for what it has become."""
    sound = rounds.Sum
    patch.setattr(
        rounds,
        "Sum",
        lambda t, total, received, deviation, *rest: sound(
            t, total, received, deviation * math.exp(-0.1), *rest
        ),
    )


def terms_of_the_next_clip(patch: pytest.MonkeyPatch) -> None:
    """The same mistake in the method itself; no round may begin on such terms."""
    sound = AdaptiveClip.terms

    def terms(self: Any, t: int, state: Any) -> Any:
        made = sound(self, t, state)
        return replace(made, deviation=made.deviation * math.exp(-0.1))

    patch.setattr(AdaptiveClip, "terms", terms)


def check_layers(_: Path) -> None:
    module = nn.Sequential(nn.Linear(12, 10), nn.ReLU(), nn.Linear(10, 3))
    layers = layer_sizes(module)
    task = client_task(sum(layers), 0.5, layers=layers)
    found = work.bounded(torch.ones(sum(layers)), task, Randomness(0))
    assert np.linalg.norm(found.vector) <= 0.5


def check_zero(_: Path) -> None:
    """Nothing to send is zero, whole or in one layer, and so is a record that teaches nothing."""
    for layers in (None, (4, 6)):
        task = client_task(10, 0.5, layers=layers)
        for update in (torch.zeros(10), torch.cat([torch.zeros(4), torch.ones(6)])):
            found = work.bounded(update, task, Randomness(0))
            assert np.isfinite(found.vector).all()
            assert np.all(found.vector[:4] == 0)
    assert bounding.clip_factors(np.array([0.0, 2.0]), 1.0)[0] == 1.0


def divides_by_the_norm(patch: pytest.MonkeyPatch) -> None:
    def bounded(vector: torch.Tensor, task: Any, _randomness: Any) -> Bounded:
        exact = vector.double()
        norm = exact.norm()
        scaled = exact * torch.clamp(task.clip_norm / norm, max=1.0)
        return Bounded((scaled / norm * norm).numpy(), float(norm), bool(norm > 1), finite=True)

    patch.setattr(work, "bounded", bounded)


def divides_by_each_layers_norm(patch: pytest.MonkeyPatch) -> None:
    def clip(exact: torch.Tensor, layers: tuple[int, ...], bound: float) -> bool:
        for piece in torch.split(exact, list(layers)):
            piece *= bound / len(layers) ** 0.5 / piece.norm()
        return True

    patch.setattr(bounding, "_clip_layers", clip)


def check_vanishing_norms(_: Path) -> None:
    """Parameters with inputs of 1e150 and slopes of 1e-163, whose squares are zero in doubles: the
    gradient is many clips, and is clipped. Where records pay for norms, it is paid for.
    """
    module = nn.Sequential(
        *(part for _ in range(4) for part in (nn.Linear(4, 4), nn.ReLU())), nn.Linear(4, 2)
    )
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.zero_()
        for layer, size in zip(module[:8:2], (3e38, 3e38, 3e38, 1e35), strict=True):
            layer.weight.copy_(size * torch.eye(4))
        module[-1].bias[1] = -373.5  # softmax is (1, 6e-163) for every record
    start, clip = nn.utils.parameters_to_vector(module.parameters()).detach(), 1e-18
    rows, labels = torch.rand(5, 4) + 0.1, torch.zeros(5, dtype=torch.long)
    summed = gradients.clipped_sum(module, clip)
    moved = summed(start, rows, labels) - summed(start, rows[1:], labels[1:])
    assert np.linalg.norm(moved / clip) <= 1
    payments = Payments(clip)
    payments.begin(np.ones(5))
    total = gradients.clipped_sum(module, clip, payments)(start, rows, labels)
    assert np.linalg.norm(total / clip) <= np.sqrt(1 - payments.left).sum() + 1e-9


def squares_that_vanish(patch: pytest.MonkeyPatch) -> None:
    """The norm of a product is the product of the norms; squares are taken as they come."""
    patch.setattr(gradients, "_LOST", 0.0)


# --- accounting ---


def check_large_epsilon(_: Path) -> None:
    """One Gaussian release: its exact epsilon is within the budget, also where that is large."""
    for budget in (0.5, 2.0, 10.0, 30.0):
        made = making.make_plan(PlanRequest(**_one_round(budget)))
        assert gaussian_epsilon(1 / float(made.noise_multiplier.min()), 1e-5) <= budget


def _one_round(budget: float) -> dict[str, Any]:
    return {
        "clients": ("a", "b"),
        "epsilons": np.full(2, budget),
        "delta": 1e-5,
        "rounds": 1,
        "rate": 1.0,
    }


def textbook_gaussian(patch: pytest.MonkeyPatch) -> None:
    """`sigma = sqrt(2 log(1.25 / delta)) / epsilon`, proven for epsilon up to 1."""
    sound = making.make_plan

    def make_plan(request: Any, *rest: Any) -> Any:
        made = sound(request, *rest)
        sigma = math.sqrt(2 * math.log(1.25 / request.delta)) / request.epsilons
        return made.replace(noise_multiplier=np.broadcast_to(sigma, made.noise_multiplier.shape))

    patch.setattr(making, "make_plan", make_plan)


def check_claims_are_bounds(_: Path) -> None:
    """Whoever computes it, a claim is never below the exact epsilon, where that is known."""
    for sigma in (0.6, 1.0, 3.0):
        for count in (1, 7):
            exact = gaussian_epsilon(math.sqrt(count) / sigma, 1e-5)
            noise, rate = np.full(count, sigma), np.ones(count)
            claim = pld.schedule_epsilon(noise, rate, 1e-5)
            assert exact <= claim <= 1.01 * exact
    made = fedspend.plan([2.0], delta=1e-4, rounds=5, rate=1.0, accountant="pld")
    noise = made.noise_multiplier[:, 0]
    assert gaussian_epsilon(math.sqrt(float((noise**-2.0).sum())), 1e-4) <= 2.0
    verdict = fedspend.verify(made.replace(noise_multiplier=made.noise_multiplier * 0.99))
    assert not verdict.ok


def estimates(patch: pytest.MonkeyPatch) -> None:
    """Losses are rounded to the nearest cell, not up: right on average, and no bound."""
    sound = pld.schedule_epsilon
    patch.setattr(pld, "schedule_epsilon", lambda *given: sound(*given) * 0.998)


def check_refusal_keeps_history(folder: Path) -> None:
    place = folder / "accounts.db"
    plan = fedspend.plan([3.0] * 4, delta=1e-3, rounds=2, rate=0.5)
    with Ledger.create(place, simulation=True) as ledger:
        ledger.admit("one", Proposal.of_plan(plan), simulation=True)
        ledger.reserve("one", 0)
        before, head = ledger.balances().spent.copy(), ledger.state.head
        with pytest.raises(Refused):
            ledger.admit("two", Proposal.of_plan(plan), simulation=True)
        with pytest.raises(Refused):
            ledger.reserve("one", 7)
    with Ledger.open(place) as again:
        assert again.state.head == head
        assert np.array_equal(again.balances().spent, before)
        assert before.min() > 0


def forgets_when_it_refuses(patch: pytest.MonkeyPatch) -> None:
    """What was refused is rolled back, and the rounds before it with it."""
    sound = Ledger.admit

    def admit(self: Any, *given: Any, **options: Any) -> None:
        try:
            sound(self, *given, **options)
        except Refused:
            with self._storage.writing():
                self._storage.execute("DELETE FROM fedspend_entries WHERE number > 3")
            self.head_file.unlink()
            raise

    patch.setattr(Ledger, "admit", admit)


# --- what survives ---


def check_resumed(folder: Path) -> None:
    """Stopped after two rounds and resumed, a run ends where it would have ended: clip, momentum
    and tail included.
    """
    settings = small(method__name="adaptive-clip")
    whole = runs_training.train(settings, output=folder / "whole")
    stopped(settings, folder / "run")
    again = runs_training.train(settings, output=folder / "run", resume=True)
    for one, other in zip(whole.model.parameters(), again.model.parameters(), strict=True):
        assert torch.equal(one, other)
    assert [line["clip"] for line in whole.metrics] == [line["clip"] for line in again.metrics]


def loses(**lost: Any) -> Mutation:
    def mutate(patch: pytest.MonkeyPatch) -> None:
        sound = directory.pack_state

        def pack_state(state: Any, *rest: Any) -> Any:
            kept = {
                name: value(getattr(state, name)) if callable(value) else value
                for name, value in lost.items()
            }
            return sound(replace(state, **kept), *rest)

        patch.setattr(directory, "pack_state", pack_state)

    mutate.__name__ = f"loses_{'_'.join(lost)}"
    return mutate


def check_memory_of_rounds(folder: Path) -> None:
    """A real round that had begun is not played again with fresh noise."""
    settings = small(privacy__randomness="os", method__name="idp-fedavg", privacy__saving_rate=None)
    options = {"output": folder / "run", "ledger": folder / "accounts.db"}
    with killed(at="play"):
        runs_training.train(settings, **options)
    result = runs_training.train(settings, resume=True, **options)
    assert [bool(line.get("skipped")) for line in result.metrics] == [True, False, False, False]


def forgets_reservations(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(directory.RunDirectory, "was_reserved", lambda *_: False)
    sound = Ledger.reserve

    def reserve(self: Any, run: str, t: int, **more: Any) -> None:
        if t not in self.run(run).rounds:
            sound(self, run, t, **more)

    patch.setattr(Ledger, "reserve", reserve)


# --- what is shown ---

PLANNED_OR_RELEASED = {
    "round",
    "epsilon",
    "evaluation",
    "randomness",
    "noise_deviation",
    "clip",
    "skipped",
}
OF_TEST_ROWS = {"accuracy", "loss"}


def check_metrics(folder: Path) -> None:
    """What a real run writes down of a round is planned, released, or of public test rows. Rows
    that were held out of clients are not public.
    """
    settings = small(privacy__randomness="os")
    result = runs_training.train(settings, output=folder / "run", ledger=folder / "accounts.db")
    for line in result.metrics:
        assert set(line) <= PLANNED_OR_RELEASED | OF_TEST_ROWS
    own = raw.completed(raw.write(folder / "files", raw.HOSPITALS), raw.REAL)
    own["data"] = {**own["data"], "validation": 0.3}
    del own["data"]["test_path"]
    result = runs_training.train(own, ledger=folder / "hospitals.db")
    assert len(result.metrics) == 3
    for line in result.metrics:
        assert line["accuracy"] is None
        assert line["loss"] is None


def shows_what_was_held_out(patch: pytest.MonkeyPatch) -> None:
    """Accuracy on rows that were not trained on: surely that is harmless."""
    sound = metrics.Observer.line

    def line(self: Any, state: Any, statistics: Any) -> Any:
        loss, found = self.setup.measured(state.model)
        return sound(self, state, statistics) | found | {"loss": loss}

    patch.setattr(metrics.Observer, "line", line)


def writes_statistics(patch: pytest.MonkeyPatch) -> None:
    """Norms and cohorts are so useful: they go into the log."""
    sound = rounds.describe
    patch.setattr(rounds, "describe", lambda answers, terms, _: sound(answers, terms, True))


def check_normalisation(folder: Path) -> None:
    raw.check(folder, raw.DATA["bounds"][0])


def check_broadcast(_: Path) -> None:
    """A client's task says nothing of the others: neither who they are nor what they allow."""
    budgets = {"north": 3.25, "south": 7.125, "west": 11.875}
    plan = fedspend.plan(budgets, delta=1e-3, rounds=2, rate=1.0)
    method = Planned(plan, "idp-fedavg")
    training = rounds.Training(
        rounds.Server(2), plan.clients, independence.STEPS, lambda _: 0.1, plan=plan.hash
    )
    state = rounds.begin(np.zeros(5, dtype=np.float32), method)
    terms, shared = rounds.prepared(state, method, training)
    made = rounds.tasks_of(np.arange(3), terms, plan.clients, shared)
    for mine in made:
        sent = mine.to_bytes()
        for number, other in enumerate(plan.clients):
            if other != mine.client:
                secrets = [other, str(budgets[other]), repr(float(terms.clip_norm[number]))]
                assert not [text for text in secrets if text.encode() in sent]


def tells_everybody(patch: pytest.MonkeyPatch) -> None:
    """Every client gets the whole table, to look its own line up."""
    sound = rounds.tasks_of

    def tasks_of(cohort: Any, terms: Any, clients: Any, shared: Any) -> Any:
        table = json.dumps(dict(zip(clients, terms.clip_norm.tolist(), strict=True)))
        return sound(cohort, terms, clients, replace(shared, plan=table))

    patch.setattr(rounds, "tasks_of", tasks_of)


# --- not a number ---


def check_nan(_: Path) -> None:
    plan = fedspend.plan([2.0] * 3, delta=1e-3, rounds=2, rate=0.5)
    method = guarded.held_to(plan, _WithNaN(plan))
    for round in (0, 1):
        with pytest.raises(Refused):
            method.terms(round, {})
    for hidden in ("noise_multiplier", "clip_norm", "sampling_rate"):
        forged = getattr(plan.schedules, hidden).copy()
        forged[1] = math.nan
        assert not fedspend.verify(tampered(plan, **{hidden: forged}), max_pld=0).ok
    with pytest.raises(InvalidInput):
        fedspend.plan([2.0, math.nan], delta=1e-3, rounds=2, rate=0.5)


@dataclass(frozen=True)
class _WithNaN:
    plan: Any
    name: str = "with NaN"

    def start(self) -> dict[str, float]:
        return {}

    def terms(self, round: int, state: Any) -> Any:
        made = Planned(self.plan, self.name).terms(round, state)
        if round == 0:
            return replace(made, clip_norm=made.clip_norm * math.nan)
        return replace(made, deviation=math.nan)

    def learn(self, state: Any, _: Any) -> Any:
        return state


def asks_whether_it_is_too_large(patch: pytest.MonkeyPatch) -> None:
    """`if cost > allowed: refuse`, and no comparison with NaN is true."""

    def checked(plan: Any, who: str, round: int, terms: Any) -> Any:
        table = plan.schedules
        cost = (terms.clip_norm / terms.deviation) ** 2
        if terms.deviation <= 0 or np.any(
            cost > table.noise_multiplier[round, table.of_client] ** -2.0 * (1 + 1e-9)
        ):
            raise Refused(who)
        return terms

    patch.setattr(guarded, "checked_for_clients", checked)


def findings_of_what_is_false(patch: pytest.MonkeyPatch) -> None:
    """A verifier that counts what is over, in place of what is not within."""
    from fedspend.verification import verify as verifying

    def check_clips(self: Any, *_: Any) -> None:
        noise, clip = self.table.noise_multiplier, self.table.clip_norm
        if np.any(noise < 0) or np.any(clip < 0):
            self.findings.fail(1, ["negative"])

    patch.setattr(verifying._Verifier, "check_clips", check_clips)
    patch.setattr(
        verifying._Verifier, "check_form", lambda self: np.flatnonzero(self.clients_of > 0)[:0]
    )
    patch.setattr(verifying._Verifier, "check_claims", lambda _: None)


# --- whose rows ---


def check_joined_by_id(folder: Path) -> None:
    plan = fedspend.plan({"north": 3.0, "south": 9.0}, delta=1e-3, rounds=1, rate=1.0)
    given = {"south": (["s"], [1]), "north": (["n"], [0])}
    assert arrays.rows_of(given, plan, simulation=False)["north"] == (["n"], [0])
    setup = from_config(any_config(raw.completed(raw.write(folder / "files", raw.HOSPITALS), {})))
    dataset = setup.federation.dataset
    for client, shard in zip(setup.federation.clients, setup.federation.shards, strict=True):
        mine = {row.values for row in raw.HOSPITALS[client]}
        found = {tuple(round(x, 4) for x in row) for row in dataset.features[shard].tolist()}
        assert found == mine, client


def joins_arrays_by_position(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        arrays,
        "rows_of",
        lambda clients, plan, **_: dict(zip(plan.clients, clients.values(), strict=True)),
    )


def joins_files_by_position(patch: pytest.MonkeyPatch) -> None:
    """Shards in the order of the data, budgets in the order of their file."""
    from fedspend import data

    sound = data.by_id

    def by_id(dataset: Any, clients: Any) -> Any:
        return replace(sound(dataset, sorted(clients)), clients=tuple(clients))

    patch.setattr(data, "by_id", by_id)


def check_split_by_row(folder: Path) -> None:
    raw.check(folder, raw.DATA["hold-out"][0])


def check_rounding(_: Path) -> None:
    """Another client's number of rows changes no bit of what a client sends, where the last bit
    decides.
    """
    module, start = independence.module_and_start("mlp")
    data = Data((12,), sizes=(3, 5, 2, 5, 4, 40, 2, 3, 1, 6, 5))
    training = independence.LocalTraining(batch_size=40, epochs=60)
    some = tasks_for(start, range(8), training, round=1, lr=6.0, clips=independence.CLIPS)
    found = []
    for version in (data, independence.changed(data, 5, independence.CHANGES["emptied"])):
        engine = dense.DenseEngine(version.work(module))
        engine.widest = max(len(shard) for shard in version.shards)  # type: ignore[attr-defined]
        found.append(outcome(engine, some))
    assert independence.others_differ(*found, 5) == []


def pads_to_the_widest(patch: pytest.MonkeyPatch) -> None:
    """Batches of a block are padded to the largest client of the federation."""
    sound, widest = dense.DenseEngine.run, [0]

    def run(self: Any, given: Any) -> Any:
        widest[0] = self.widest
        return list(sound(self, given))

    patch.setattr(dense.DenseEngine, "run", run)
    patch.setattr(dense, "padded_width", lambda examples, _: widest[0] if examples else 0)


def check_buffers(_: Path) -> None:
    """A module that remembers what it saw: nobody's update depends on who came before."""
    for name in ("reference", "clientwise"):
        module = independence.Remembers()
        start = nn.utils.parameters_to_vector(module.parameters()).detach()
        some = tasks_for(
            start, COHORT, independence.STEPS, round=1, lr=0.4, clips=independence.CLIPS
        )
        opened: list[Any] = []

        def running(engine: str, work_load: Any, opened: list[Any] = opened) -> Any:
            opened.append(ENGINES[engine](work_load))
            return opened[-1]

        try:
            independence.check(running, name, module, Data(), some, 5)
        finally:
            for engine in opened:
                engine.close()


def one_copy_for_all_clients(patch: pytest.MonkeyPatch) -> None:
    from fedspend.client import training

    copies: dict[int, Any] = {}

    def deepcopy(module: nn.Module) -> nn.Module:
        found: nn.Module = copies.setdefault(id(module), copy.deepcopy(module))
        return found

    patch.setattr(training, "copy", SimpleNamespace(deepcopy=deepcopy))


def takes_every_module_for_forgetful(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(clientwise, "remembers_nothing", lambda _: True)


# --- noise ---


def check_scalar(_: Path) -> None:
    """Whatever the sum of bits was, what is released lies on the same grid."""
    grid = NumberGrid.of(3.0, 20, distributed=False)
    for release in (rounds.release_bit, rounds.release_metric):
        for total in (10.0, 10.5):
            for t in range(50):
                released = release(total, 3.0, 20.0, Randomness(1), t, grid=grid)
                steps = Fraction((released - 0.5) * 20.0) * grid.steps
                assert abs(steps - round(steps)) < 1e-4


def as_a_double(role: str) -> Mutation:
    def mutate(patch: pytest.MonkeyPatch) -> None:
        def release(
            total: float, deviation: float, denominator: float, randomness: Any, t: int, **_: Any
        ) -> float:
            noise = float(randomness.normal(1, "noise", t)[0])
            return (total + deviation * noise) / denominator + 0.5

        patch.setattr(rounds, f"release_{role}", release)

    mutate.__name__ = f"{role}_as_a_double"
    return mutate


def check_every_round(_: Path) -> None:
    """Noise that falls while clips stay: every round's grid is looked at, and every round's
    terms.
    """
    made = fedspend.plan(
        [60.0] * 400,
        delta=1e-3,
        rounds=3,
        rate=1.0,
        policy="weights",
        weights=[1, 10, 1000],
        noise="discrete-distributed",
        bits=24,
    )
    grids.check_on_grid(made, 100, 24, True)
    with pytest.raises(Refused, match="too few"):  # in the last round only
        grids.check_on_grid(made, 100, 22, True)
    plan = fedspend.plan([2.0] * 3, delta=1e-3, rounds=3, rate=0.5)
    method = guarded.held_to(plan, _Falling(plan))
    method.terms(0, {})
    for round in (1, 2):
        with pytest.raises(Refused):
            method.terms(round, {})


@dataclass(frozen=True)
class _Falling:
    """A method whose noise falls from round to round, whatever was planned."""

    plan: Any
    name: str = "falling"

    def start(self) -> dict[str, float]:
        return {}

    def terms(self, round: int, state: Any) -> Any:
        made = Planned(self.plan, self.name).terms(round, state)
        return replace(made, deviation=made.deviation / 10**round)

    def learn(self, state: Any, _: Any) -> Any:
        return state


def looks_at_the_first_grid(patch: pytest.MonkeyPatch) -> None:
    """The clip is the same in all rounds, so one look is enough, is it not?"""

    def check(plan: Any, dimension: int, bits: int, _distributed: bool) -> None:
        table, deviation = plan.schedules, plan.clip * float(plan.round_noise[0])
        grid = grids.Grid.of(table.clip_norm[0, table.of_client], deviation, dimension, bits)
        grids.check_steps(grid, deviation, len(plan.clients), plan.grid_steps)

    patch.setattr(grids, "check_on_grid", check)


def looks_at_the_first_terms(patch: pytest.MonkeyPatch) -> None:
    sound = guarded.checked_for_clients
    patch.setattr(
        guarded,
        "checked_for_clients",
        lambda plan, who, round, terms: sound(plan, who, round, terms) if round == 0 else terms,
    )


def check_top_up(_: Path) -> None:
    for noise in ("distributed", "discrete-distributed"):
        for lost in ("half", "all"):
            found, _ = lossy.release(noise, "seeded", drop=lossy.LOST[lost])
            assert has_deviation(found, lossy.DEVIATION)


def counts_those_who_were_asked(patch: pytest.MonkeyPatch) -> None:
    sound = rounds.gather

    def trusting(given: Any, replies: Any, size: int, **how: bool) -> Any:
        answers = sound(given, replies, size, **how)
        return replace(answers, received_variance=len(given) * given[0].shared.own_deviation ** 2)

    patch.setattr(rounds, "gather", trusting)


# --- accounts and files ---


def check_on_account(folder: Path) -> None:
    """Every round of a real run from Python is in the ledger of this user, and the second run on
    the same budgets is refused.
    """
    with pytest.MonkeyPatch.context() as user:
        user.setenv("FEDSPEND_LEDGER", str(folder / "user.db"))
        result = runs_training.train(**own_arrays(), project="clinics")
        assert result.ledger is not None
        with Ledger.open(result.ledger, project="clinics") as ledger:
            (run,) = ledger.state.runs.values()
            assert list(run.rounds.values()) == ["committed"] * 2
            assert ledger.balances().spent.min() > 0
        with pytest.raises(Refused, match="lifetime budget"):
            runs_training.train(**own_arrays(), project="clinics")


def own_arrays() -> dict[str, Any]:
    """A real run on rows in memory: its randomness is the operating system's."""
    rows = np.random.default_rng(0).normal(size=(8, 4)).astype(np.float32)
    torch.manual_seed(0)
    return {
        "clients": {name: (rows, [0, 1] * 4) for name in ("north", "south")},
        "model": nn.Linear(4, 2),
        "plan": fedspend.plan({"north": 2.0, "south": 5.0}, delta=1e-3, rounds=2, rate=0.9),
        "test": (rows, [0, 1] * 4),
        "lr": 0.1,
        "batch_size": 4,
        "local_steps": 1,
    }


def charges_nobody(patch: pytest.MonkeyPatch) -> None:
    """A run without a run directory has nothing to be charged with."""
    sound = run_ledger.RunLedger.of_run.__func__  # type: ignore[attr-defined]
    patch.setattr(
        run_ledger.RunLedger,
        "of_run",
        classmethod(lambda cls, *given, **named: sound(cls, *given, **named | {"charged": False})),
    )


def one_ledger_per_run(patch: pytest.MonkeyPatch) -> None:
    """Every run has an account of its own, so ten runs spend ten budgets."""
    import itertools

    count = itertools.count()
    sound = run_ledger.default_ledger
    patch.setattr(run_ledger, "default_ledger", lambda: f"{sound()}.{next(count)}")


def check_private_files(folder: Path) -> None:
    """Every file of a run that shows a budget can be read by its owner only."""
    groups = [{"epsilon": 4.0625, "share": 1}, {"epsilon": 12.03125, "share": 2}]
    result = runs_training.train(small(privacy__groups=groups), output=folder / "run")
    assert result.folder is not None
    write_report([result.folder], result.folder / "report.html")
    showing = [
        path
        for path in result.folder.rglob("*")
        if path.is_file() and (b"4.0625" in path.read_bytes() or path.suffix == ".db")
    ]
    assert {"run.json", "plan.json", "ledger.db"} <= {path.name for path in showing}
    for path in showing:
        assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path.name


def writes_for_everyone(patch: pytest.MonkeyPatch) -> None:
    sound = files.write_whole

    def write_whole(path: Path, body: bytes, **_: Any) -> None:
        sound(path, body, private=False)

    patch.setattr(directory, "write_whole", write_whole)


TRAPS = (
    Trap(
        "weights by number of examples under equal-weight noise",
        check_weights,
        (weighs_by_examples,),
    ),
    Trap(
        "batch size drawn used as denominator",
        check_denominator,
        (divides_by_those_who_came,),
    ),
    Trap(
        "sampling accounted but not executed",
        check_sampling,
        (sampling_ignored, samples_a_block),
    ),
    Trap("adaptive clipping with the sign reversed", check_direction, (reverses_the_sign,)),
    Trap(
        "adaptive clipping with noise from the updated clip",
        check_noise_fits_the_clip,
        (noise_of_the_next_clip, terms_of_the_next_clip),
    ),
    Trap("per-layer clip without the square root", check_layers, (layers_without_the_root,)),
    Trap(
        "a norm that underflows while its gradient does not",
        check_vanishing_norms,
        (squares_that_vanish,),
    ),
    Trap("Gaussian formula for epsilon above 1", check_large_epsilon, (textbook_gaussian,)),
    Trap(
        "refused step that erases history",
        check_refusal_keeps_history,
        (forgets_when_it_refuses,),
    ),
    Trap("estimate used as a bound", check_claims_are_bounds, (estimates,)),
    Trap(
        "state lost on resume",
        check_resumed,
        (
            loses(method=lambda _: {"clip": 0.5}),
            loses(velocity=np.zeros_like),
        ),
    ),
    Trap(
        "a round that had begun is forgotten on resume",
        check_memory_of_rounds,
        (forgets_reservations,),
    ),
    Trap("metrics released for free", check_metrics, (writes_statistics, shows_what_was_held_out)),
    Trap(
        "normalisation statistics released for free",
        check_normalisation,
        (raw.learns_a_scale,),
    ),
    Trap("budgets or exhaustion broadcast to others", check_broadcast, (tells_everybody,)),
    Trap(
        "zero update dividing by zero",
        check_zero,
        (divides_by_the_norm, divides_by_each_layers_norm),
    ),
    Trap(
        "NaN passing a check written as if x < 0",
        check_nan,
        (asks_whether_it_is_too_large, findings_of_what_is_false),
    ),
    Trap(
        "rows and budgets joined by position",
        check_joined_by_id,
        (joins_arrays_by_position, joins_files_by_position),
    ),
    Trap("rows pooled before they are split", check_split_by_row, (raw.draws_over_the_pool,)),
    Trap(
        "one client's shape deciding another's rounding",
        check_rounding,
        (pads_to_the_widest,),
    ),
    Trap(
        "a buffer that survives a client",
        check_buffers,
        (one_copy_for_all_clients, takes_every_module_for_forgetful),
    ),
    Trap(
        "a scalar released as a double", check_scalar, (as_a_double("bit"), as_a_double("metric"))
    ),
    Trap(
        "noise checked in the first round only",
        check_every_round,
        (looks_at_the_first_grid, looks_at_the_first_terms),
    ),
    Trap("top-up for replies that never came", check_top_up, (counts_those_who_were_asked,)),
    Trap("a real release on no account", check_on_account, (charges_nobody, one_ledger_per_run)),
    Trap(
        "a file with budgets that everyone may read",
        check_private_files,
        (writes_for_everyone,),
    ),
)
