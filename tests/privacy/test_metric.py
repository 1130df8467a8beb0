"""A private metric: what a client contributes, the noise on the sum, what it costs, and that the
broken variants are caught. Bits under distributed noise are here too: they take the same way.
"""

import math
from collections import Counter
from dataclasses import replace
from fractions import Fraction
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from boundary import client_task, summed, tasks
from lib.noise import has_deviation
from scipy import stats
from torch import nn

from fedspend.accounting.rdp import rdp
from fedspend.client import numbers as client_numbers
from fedspend.client import work as client_work
from fedspend.client.contribution import Lost
from fedspend.client.rows import Rows
from fedspend.client.task import LocalTraining
from fedspend.client.work import Tools, finished
from fedspend.errors import InvalidInput, Refused
from fedspend.noise.grid import sum_excess
from fedspend.noise.numbers import FEWEST_STEPS, NumberGrid, steps_for
from fedspend.noise.randomness import Randomness
from fedspend.planning import parts
from fedspend.planning.making import plan
from fedspend.planning.parts import left_for_updates
from fedspend.planning.plan import Plan
from fedspend.planning.replanning import extended
from fedspend.server import mechanism
from fedspend.server.answers import gather
from fedspend.server.mechanism import release_bit, release_metric
from fedspend.server.methods.adaptive_clip import AdaptiveClip, adaptive_clip
from fedspend.server.methods.base import Given, RoundTerms
from fedspend.server.methods.guarded import (
    Guarded,
    checked_for_clients,
    checked_for_records,
    held_to,
)
from fedspend.server.methods.planned import Planned
from fedspend.server.rounds import Server, Training, begin, round_task
from fedspend.verification.verify import verify

GRID = NumberGrid(FEWEST_STEPS)
BUDGETS = [3.0] * 4 + [6.0] * 3 + [12.0] * 3


def made(**changes):
    terms = {"delta": 1e-3, "rounds": 4, "rate": 0.7, "clip": 0.5} | changes
    return plan(BUDGETS, **terms)


class Signs(nn.Module):
    """Class 1 where the first feature times the only parameter is positive, else class 0."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))

    def forward(self, x):
        return torch.stack([-x[:, 0] * self.weight[0], x[:, 0] * self.weight[0]], dim=1)


def held(features, labels):
    return Rows(
        torch.tensor(features, dtype=torch.float32)[:, None],
        torch.tensor(labels),
        np.arange(len(labels)),
    )


def metric_of(rows, grid=GRID, parameter=1.0, seed=0, number=0):
    task = client_task(
        1, number=number, metric=grid, parameters=np.array([parameter], dtype=np.float32)
    )
    tools = Tools(Signs(), Randomness(seed), held_out=None if rows is None else lambda _: rows)
    return finished(task, torch.zeros(1), 3, tools).contribution.metric


# --- what a client contributes --------------------------------------------------------------------


def test_a_metric_is_the_share_that_the_first_model_of_the_round_gets_right_minus_one_half():
    rows = held([1.0, 2.0, -1.0, -3.0], [1, 0, 0, 0])
    assert metric_of(rows) == 0.25
    assert metric_of(rows, parameter=-1.0) == -0.25
    assert metric_of(held([1.0], [1])) == 0.5
    assert metric_of(held([1.0], [0])) == -0.5


def test_a_client_without_held_out_rows_contributes_exactly_nothing():
    assert metric_of(None) == 0.0
    assert metric_of(held(np.zeros(0), np.zeros(0, dtype=np.int64))) == 0.0


def test_a_client_that_is_not_asked_reports_no_metric():
    tools = Tools(Signs(), Randomness(0), held_out=lambda _: held([1.0], [1]))
    assert finished(client_task(1), torch.zeros(1), 3, tools).contribution.metric is None


@pytest.mark.full
def test_rounding_is_random_without_bias_on_a_grid_and_never_leaves_the_bounds():
    rows = held([1.0] * 7, [1, 1, 0, 0, 0, 0, 0])  # 2/7 - 1/2 lies between two multiples
    found = np.array([metric_of(rows, number=n) for n in range(3000)])
    steps = found * GRID.steps
    exact = (2 / 7 - 1 / 2) * GRID.steps
    assert set(steps) == {math.floor(exact), math.ceil(exact)}
    chance = exact - math.floor(exact)
    ups = int((steps > exact).sum())
    assert stats.binomtest(ups, found.size, chance).pvalue > 1e-4
    for right in range(8):
        one = metric_of(held([1.0] * 7, [1] * right + [0] * (7 - right)))
        assert -0.5 <= one <= 0.5


def test_grids_are_fine_and_shares_add_up_to_a_discrete_gaussian():
    for deviation, clients in ((0.3, 1), (1.0, 10), (50.0, 1000), (1e4, 10**6)):
        for distributed in (False, True):
            grid = NumberGrid.of(deviation, clients, distributed=distributed)
            assert grid.steps >= 2**12
            assert grid.steps & (grid.steps - 1) == 0
            part = grid.own_deviation if distributed else deviation
            assert part * grid.steps >= 2**18 * (1 - 1e-12)
            if distributed:
                assert sum_excess(Fraction(part) ** 2 * grid.steps**2, clients, 1) < 1e-200
    with pytest.raises(InvalidInput, match="too small to add up"):
        NumberGrid.of(1e-6, 10**6, distributed=True)


# --- the noise ------------------------------------------------------------------------------------


def as_planned(values, deviation, level=1e-6):
    """Whether this is the planned noise, as far as so many draws can tell: its variance and its
    whole distribution.
    """
    values = np.asarray(values) / deviation
    return has_deviation(values, level=level) and stats.kstest(values, "norm").pvalue > level


def central(total, deviation, count=1500):
    grid = NumberGrid.of(deviation, 8, distributed=False)
    return np.array(
        [
            (release_metric(total, deviation, 10.0, Randomness(k), 0, grid=grid) - 0.5) * 10 - total
            for k in range(count)
        ]
    ), grid


@pytest.mark.full(but=["300.0"])
@pytest.mark.parametrize("deviation", [0.7, 4.0, 300.0])
def test_a_released_metric_has_the_planned_noise_and_stays_on_its_grid(deviation):
    noise, grid = central(2.25, deviation)
    assert as_planned(noise, deviation)
    assert (
        np.abs(noise * grid.steps - np.rint(noise * grid.steps)).max() < 1e-4 * grid.steps / 2**12
    )


@pytest.mark.full
def test_small_noise_has_exactly_the_probabilities_of_a_discrete_gaussian():
    """On a grid so coarse that every value can be counted."""
    grid, deviation = NumberGrid(4), 0.5  # two steps
    drawn = [
        round((release_metric(0.25, deviation, 1.0, Randomness(k), 0, grid=grid) - 0.5) * 4)
        for k in range(6000)
    ]
    weights = {x: math.exp(-(x**2) / (2 * 2.0**2)) for x in range(-12, 13)}
    counted = Counter(one - 1 for one in drawn)
    middle = list(range(-4, 5))
    seen = np.array([counted[x] for x in middle] + [sum(counted.values())], dtype=float)
    seen[-1] -= seen[:-1].sum()
    chance = np.array([weights[x] for x in middle]) / sum(weights.values())
    expected = np.append(chance, 1 - chance.sum()) * len(drawn)
    assert stats.chisquare(seen, expected).pvalue > 1e-5


def test_a_metric_without_noise_would_be_noticed(monkeypatch):
    monkeypatch.setattr(NumberGrid, "noise", lambda *_: 0)
    noise, _ = central(2.25, 4.0)
    assert not as_planned(noise, 4.0)


# --- distributed noise ----------------------------------------------------------------------------

ROSTER = 8


def distributed(kind, lost, seed, deviation=2.0):
    """The noise on a release of bits or metrics, of clients that have nothing to report."""
    grid = NumberGrid.of(deviation, ROSTER, distributed=True)
    asked = {"bit": True, "bit_grid": grid} if kind == "bit" else {"metric": grid}
    some = tasks(np.ones(ROSTER), 2, **asked)
    tools = Tools(nn.Identity(), Randomness(seed))
    replies = [
        Lost(task.client, "it did not answer")
        if task.number in lost
        else finished(task, torch.zeros(2), 0, tools)
        for task in some
    ]
    answers = gather(some, replies, 2, checked=True)
    if kind == "bit":
        released = release_bit(
            answers.bits,
            deviation,
            1.0,
            Randomness(seed),
            0,
            grid=grid,
            received=answers.received_bit_variance,
        )
    else:
        released = release_metric(
            answers.metrics,
            deviation,
            1.0,
            Randomness(seed),
            0,
            grid=grid,
            received=answers.received_metric_variance,
        )
    return released - 0.5


LOSSES = {"nobody": (), "one": (3,), "half": (0, 2, 4, 6), "all": tuple(range(ROSTER))}


@pytest.mark.full(but=["all-metric"])
@pytest.mark.parametrize("kind", ["bit", "metric"])
@pytest.mark.parametrize("lost", LOSSES)
def test_shares_of_noise_add_up_to_the_planned_noise_whoever_answered(kind, lost):
    found = [distributed(kind, LOSSES[lost], seed) for seed in range(400)]
    assert as_planned(found, 2.0)


@pytest.mark.full(but=["bit"])
@pytest.mark.parametrize("kind", ["bit", "metric"])
def test_one_message_carries_its_own_share_of_noise(kind):
    grid = NumberGrid.of(2.0, ROSTER, distributed=True)
    asked = {"bit": True, "bit_grid": grid} if kind == "bit" else {"metric": grid}
    task = client_task(2, **asked)
    sent = [
        finished(task, torch.zeros(2), 0, Tools(nn.Identity(), Randomness(seed))).contribution
        for seed in range(400)
    ]
    assert as_planned([getattr(one, kind) for one in sent], 2.0 / math.sqrt(ROSTER))
    assert all(grid.holds(getattr(one, kind)) for one in sent)


def test_a_client_that_adds_no_share_of_noise_would_be_noticed(monkeypatch):
    """The broken client of version 0.1: only the server noised the bit."""
    monkeypatch.setattr(client_work, "clip_bit", lambda *_: 0.0)
    assert not as_planned([distributed("bit", (), seed) for seed in range(400)], 2.0)


def test_counting_noise_that_never_came_would_be_noticed(monkeypatch):
    from fedspend.server.answers import Tally

    monkeypatch.setattr(
        Tally, "_received", lambda _, grid: ROSTER * grid.own_deviation**2 if grid else 0.0
    )
    assert not as_planned([distributed("metric", LOSSES["half"], s) for s in range(400)], 2.0)


def test_answers_off_the_grid_or_out_of_bounds_are_discarded():
    def told(grid, **numbers):
        task = client_task(2, metric=grid)
        reply = finished(task, torch.zeros(2), 1, Tools(nn.Identity(), Randomness(0)))
        changed = replace(reply, contribution=replace(reply.contribution, **numbers))
        return gather([task], [changed], 2, checked=True)

    shares = NumberGrid.of(2.0, ROSTER, distributed=True)
    assert told(GRID, metric=0.5).metrics == 0.5
    assert told(shares, metric=3.0).metrics == 3.0
    for grid, metric in (
        (GRID, 0.75),
        (GRID, None),
        (GRID, math.nan),
        (GRID, 1 / 3),
        (shares, math.inf),
        (shares, 1 / 3),
        (shares, 1e300),
    ):
        assert "metric" in told(grid, metric=metric).discarded["0"]
    bare = gather(
        [client_task(2)],
        [
            finished(
                client_task(2, metric=GRID), torch.zeros(2), 1, Tools(nn.Identity(), Randomness(0))
            )
        ],
        2,
        checked=True,
    )
    assert "metric" in bare.discarded["0"]


# --- an emptied client ----------------------------------------------------------------------------


def moved(rows):
    """How far one client moves the sums of bits and metrics against its own emptied self."""
    task = client_task(2, clip=1.0, bit=True, metric=GRID, parameters=np.ones(1, np.float32))
    module = Signs()
    full, empty = held([1.0] * 3, [0, 0, 0]), held(np.zeros(0), np.zeros(0, dtype=np.int64))
    found = []
    for own, count in ((full, rows), (empty, 0)):
        tools = Tools(module, Randomness(0), held_out=lambda _, own=own: own)
        found.append(finished(task, 5 * torch.ones(2), count, tools).contribution)
    return abs(found[0].bit - found[1].bit), abs(found[0].metric - found[1].metric)


def test_zeroing_a_client_moves_bits_and_metrics_by_at_most_one_half():
    assert moved(3) == (0.5, 0.5)


def test_an_emptied_client_that_votes_would_be_noticed(monkeypatch):
    sound = client_numbers.clip_bit
    monkeypatch.setattr(
        client_work,
        "clip_bit",
        lambda task, own, rows, randomness: (
            0.5 if rows == 0 else sound(task, own, rows, randomness)
        ),
    )
    monkeypatch.setattr(client_numbers, "measured", _votes_even_without_rows)
    assert moved(3) == (1.0, 1.0)


def _votes_even_without_rows(_task, held_out, _module, grid, *_):
    return grid.steps // 2 if len(held_out) == 0 else -grid.steps // 2


# --- what it costs --------------------------------------------------------------------------------


@pytest.mark.full(but=["numbers2-discrete-distributed"])
@pytest.mark.parametrize("noise", ["continuous", "discrete", "discrete-distributed"])
@pytest.mark.parametrize("numbers", [(None, 4.0), (5.0, None), (5.0, 7.0)])
def test_update_bit_and_metric_together_cost_what_the_plan_accounts(noise, numbers):
    bit, metric = numbers
    found = made(noise=noise, bit_noise=bit, metric_noise=metric)
    base = AdaptiveClip(found, bit) if bit else Planned(found, "idp-fedavg")
    terms = held_to(found, base).terms(1, base.start())
    assert (terms.bit_deviation, terms.metric_deviation) == (bit, metric)
    shift = np.array(
        [
            terms.clip_norm / terms.deviation,
            np.full(len(BUDGETS), 0 if bit is None else 0.5 / bit),
            np.full(len(BUDGETS), 0 if metric is None else 0.5 / metric),
        ]
    )
    length = np.linalg.norm(shift, axis=0)  # of what moves when a client is zeroed, in deviations
    assert length == pytest.approx(1 / found.noise_multiplier[1], rel=1e-9)
    # the moment of order 2 of the three sampled releases, in closed form, is that of the plan's one
    joint = np.log1p(0.7**2 * np.expm1(length**2))
    alone = rdp(np.full(10, 0.7), found.noise_multiplier[1], (2.0,))[:, 0]
    assert joint == pytest.approx(alone, rel=1e-9)
    assert verify(found, max_pld=1).ok


def test_the_ledger_is_charged_for_all_of_it():
    without, found = made(policy="uniform"), made(policy="uniform", metric_noise=4.0)
    assert np.array_equal(found.proposal().noise, without.proposal().noise)
    assert np.array_equal(found.epsilon, without.epsilon)
    assert found.round_noise.min() > without.round_noise.max()  # updates have made room


@pytest.mark.full
def test_the_usual_noise_takes_little_and_leaves_room_for_a_bit():
    from fedspend.planning.request import PlanRequest

    asked = PlanRequest(
        epsilons=np.array(BUDGETS),
        clients=tuple(map(str, range(10))),
        delta=1e-3,
        rounds=4,
        rate=0.7,
        policy="uniform",
        metric=True,
    )
    found = asked.plan()
    assert found.metric_noise >= 2 * found.noise_multiplier.max()
    both = replace(asked, bit=True, method="adaptive-clip").plan()
    assert both.metric_noise == found.metric_noise
    assert np.isfinite(both.update_noise).all()
    method = adaptive_clip(Given(both, 10, 0.7))
    assert method.bit_noise == both.bit_noise
    assert verify(both, max_pld=1).ok


@pytest.mark.full
def test_too_little_noise_is_refused_in_one_line():
    largest = made().noise_multiplier.max()
    for numbers, named in (
        ({"metric_noise": largest / 2}, "evaluation.noise"),
        ({"bit_noise": largest / 2}, "bit_noise"),
        ({"metric_noise": 0.7 * largest, "bit_noise": 0.7 * largest}, "bit_noise"),
    ):
        with pytest.raises(InvalidInput, match=named) as refused:
            made(**numbers)
        assert "\n" not in str(refused.value)
    for bad in (0.0, -1.0, math.nan, math.inf, "much"):
        with pytest.raises(InvalidInput, match="metric_noise"):
            made(metric_noise=bad)


@pytest.mark.full(only=["factors1"])
@pytest.mark.parametrize("factors", [None, [1.0, 0.8, 0.5, 0.3]])
def test_the_plan_keeps_its_parts_in_its_file_and_through_replanning(tmp_path, factors):
    from fedspend.accounting.mechanisms import Mechanisms

    found = made(metric_noise=9.0, bit_noise=8.0, clip_schedule=factors)
    assert verify(found, max_pld=1).ok
    found.save(tmp_path / "plan.json")
    again = Plan.load(tmp_path / "plan.json")
    assert (again.metric_noise, again.bit_noise, again.hash) == (9.0, 8.0, found.hash)
    longer = extended(again, 2, 1, Mechanisms.none(10), np.array(BUDGETS))
    assert (longer.rounds, longer.metric_noise) == (5, 9.0)
    assert verify(longer, max_pld=1).ok


# --- the guard and the verifier -------------------------------------------------------------------


def guarded(found, change):
    class Changed:
        name = "changed"

        def start(self):
            return {}

        def terms(self, round, state):
            return change(Planned(found, "idp-fedavg").terms(round, state))

        def learn(self, state, _release):
            return state

    return Guarded(Changed(), lambda *args: checked_for_clients(found, *args))


def test_a_metric_that_is_not_charged_is_refused_before_the_round():
    stated, without = made(metric_noise=4.0), made()
    method = guarded(without, lambda terms: replace(terms, metric_deviation=4.0))
    with pytest.raises(Refused, match="the plan states none"):
        method.terms(0, {})
    # stated, but the update takes what belongs to the metric
    whole = without.schedules
    method = guarded(
        stated,
        lambda terms: replace(
            terms,
            metric_deviation=4.0,
            clip_norm=whole.clip_norm[0, whole.of_client],
            deviation=without.clip * float(without.round_noise[0]),
        ),
    )
    with pytest.raises(Refused, match="cost more than was planned"):
        method.terms(0, {})
    for noise in (3.0, math.nan, 0.0, -4.0, math.inf):
        method = guarded(stated, lambda terms, noise=noise: replace(terms, metric_deviation=noise))
        with pytest.raises(Refused, match="on metrics"):
            method.terms(0, {})


def test_forgetting_to_make_room_is_caught_by_guard_and_verifier(monkeypatch):
    """The broken planner: the metric is stated, and updates keep the noise they had."""
    monkeypatch.setattr(parts, "left_for_updates", lambda total, *_: total)
    broken = made(metric_noise=4.0)
    monkeypatch.undo()
    verdict = verify(broken, max_pld=1)
    assert not verdict.ok
    assert "clip_norm" in verdict.failures[0]
    rounds = broken.schedules
    method = guarded(
        broken,
        lambda terms: replace(
            terms,
            metric_deviation=4.0,
            clip_norm=rounds.clip_norm[0, rounds.of_client],
            deviation=broken.clip * float(made().round_noise[0]),
        ),
    )
    with pytest.raises(Refused, match="cost more"):
        method.terms(0, {})


@pytest.mark.parametrize("noise", [1e-200, 0.5, 1e300, 3.9])
def test_forged_noise_of_a_metric_does_not_pass_and_raises_nothing(noise):
    found = made(metric_noise=4.0)
    forged = found.replace(parameters=found.parameters | {"metric_noise": noise})
    assert not verify(forged, max_pld=1).ok


def test_a_plan_with_a_metric_that_is_no_number_is_malformed():
    found = made(metric_noise=4.0)
    for bad in (True, "4", -4.0, math.nan, math.inf, [4.0]):
        with pytest.raises(InvalidInput, match="metric_noise"):
            found.replace(parameters=found.parameters | {"metric_noise": bad})


def test_what_single_messages_give_away_includes_bits_and_metrics():
    """Against who sees single messages, bit and metric cost like the update: all have a share."""
    found = made(metric_noise=9.0, bit_noise=8.0)
    verdict = verify(found, max_pld=1)
    names = {one.name: one for one in verdict.observers}
    alone = names["sees single updates"]
    assert "bit and metric" in alone.assumption
    clients = len(BUDGETS)
    task = round_task(
        begin(np.zeros(3, np.float32), Planned(found, "x")),
        held_to(found, AdaptiveClip(found, 8.0)).terms(0, {"clip": found.clip}),
        Training(Server(4), found.clients, LocalTraining(1, steps=1), lambda _: 0.1, "distributed"),
    )
    terms = held_to(found, AdaptiveClip(found, 8.0)).terms(0, {"clip": found.clip})
    shift = (
        (terms.clip_norm / task.own_deviation) ** 2
        + (0.5 / task.bit_grid.own_deviation) ** 2
        + (0.5 / task.metric.own_deviation) ** 2
    )
    assert shift == pytest.approx(clients / found.noise_multiplier[0] ** 2, rel=1e-9)
    assert alone.largest > names["plan"].largest


def test_private_metrics_are_refused_for_records():
    terms = RoundTerms(
        np.ones(2), np.ones(2), 1.0, 1.0, metric_deviation=3.0, records=lambda _: None
    )
    with pytest.raises(Refused, match="no bit or metric"):
        checked_for_records(SimpleNamespace(clients=("a", "b")), "round 1", 0, terms)


def test_without_parts_nothing_changes():
    total = made().schedules.noise_multiplier
    assert left_for_updates(total, None, None) is total
    assert steps_for(1.5) >= 2**12
    assert mechanism.release_bit(1.5, 0.0, 2.0, Randomness(0), 0) == 1.25


def test_sums_of_metrics_are_exact():
    grid = NumberGrid.of(3.0, 40, distributed=False)
    found = summed(
        torch.zeros(40, 2), np.ones(40), metric=grid, parameters=np.zeros(2, dtype=np.float32)
    )
    assert found.metrics == 0.0
