"""A task is done only if it has the terms of the slice that was approved."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from approval.offers import CLIENTS, SIZE, offered, planned, task_of

from fedspend.approval.tasks import compared, refuse_other_terms
from fedspend.client.bounding import own_noise
from fedspend.client.declining import Declined
from fedspend.client.task import ClientTask, RecordTerms
from fedspend.configuration.config import any_config
from fedspend.errors import InvalidInput
from fedspend.noise.numbers import NumberGrid
from fedspend.noise.randomness import Randomness
from fedspend.runs.offers import offer_of
from fedspend.runs.setup import from_config
from fedspend.server.rounds import begin, prepared, tasks_of

NOISES = ("central", "distributed", "discrete", "discrete-distributed")
PARTS = {"bit_noise": 8.0, "metric_noise": 8.0}


@pytest.mark.full(but_every=4)
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("parts", [None, PARTS])
def test_the_tasks_of_an_honest_server_are_done(noise, parts):
    offer = offered(planned(noise=noise, parts=parts), noise=noise)
    for number, client in enumerate(CLIENTS):
        for round in range(offer.terms.rounds):
            task = task_of(offer, client, round)
            refuse_other_terms(offer.slice_of(number), task)
            refuse_other_terms(offer.slice_of(number), ClientTask.from_bytes(task.to_bytes()))


@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize(
    "changes",
    [
        {"method": {"name": "idp-fedavg"}},
        {"method": {"name": "time-adaptive"}, "privacy": {"saving_rate": 0.4}},
        {"method": {"name": "adaptive-clip"}, "train": {"rounds": 3}},
        {"privacy": {"randomness": "os"}, "method": {"name": "idp-fedavg"}},
        {"engine": {"ask": "everyone"}, "method": {"name": "idp-fedavg"}},
    ],
    ids=["even", "saving", "adaptive", "real", "everyone"],
)
def test_the_tasks_of_our_methods_are_done(tiny, noise, changes):
    """As the server makes them, for all clients and rounds; a clip that moves is followed."""
    tiny["privacy"].pop("saving_rate")
    config = {name: section | changes.get(name, {}) for name, section in tiny.items()}
    config["privacy"]["noise"] = noise
    config |= {name: changes[name] for name in ("method", "engine") if name in changes}
    setup = from_config(any_config(config))
    offer = offer_of(setup, {})
    training = replace(setup.training, run=offer.terms.run, plan=offer.root)
    size = offer.terms.size
    state = begin(np.zeros(size, dtype=np.float32), setup.method)
    slices = [offer.slice_of(number) for number in range(6)]
    for round in range(offer.terms.rounds):
        terms, shared = prepared(replace(state, done=round), setup.method, training)
        clients = setup.training.clients
        for slice, task in zip(
            slices,
            tasks_of(np.arange(6), terms, clients, shared, training.ask_everyone),
            strict=True,
        ):
            assert [what for what, good in compared(slice, task) if not good] == []
        if "clip" in state.method:
            state = replace(state, method={"clip": state.method["clip"] * 1.7})
    assert offer.terms.planned_clips == (changes["method"]["name"] != "adaptive-clip")


def wrong_terms():
    """Changes of a task under distributed discrete noise with bits, and what is noticed."""
    grid = NumberGrid.of(8.0, 3, distributed=True)
    yield "run", {"run": "ba9876543210"}
    yield "plan", {"plan": "0" * 64}
    yield "client", {"client": "south"}
    yield "records", {"records": RecordTerms(*[np.ones(1)] * 3, 1.0, 1.0)}
    yield "size", {"size": SIZE + 1}
    yield "coin", {"coin": 0.8}
    yield "votes", {"asked": np.zeros(1, dtype=np.int64)}
    for clip in (0.0, np.inf, np.nan, 1e9):
        yield "clip", {"clip_norm": clip}
    for own in (0.0, 1e-3, np.nan, 99.0):
        yield "own noise", {"own_deviation": own}
    yield "grid", {"grid": None}
    yield "bit", {"bit": False}
    yield "noise on bits", {"bit_grid": None}
    yield "noise on bits", {"bit_grid": replace(grid, own_deviation=grid.own_deviation / 2)}
    yield "noise on bits", {"bit_grid": replace(grid, steps=grid.steps // 2)}
    yield "metric", {"metric": grid}


@pytest.mark.parametrize(("what", "changes"), list(wrong_terms()))
def test_a_task_with_other_terms_is_declined(what, changes):
    noise = "discrete-distributed"
    offer = offered(planned(noise=noise, parts={"bit_noise": 8.0}), noise=noise)
    with pytest.raises(Declined, match=what) as declined:
        refuse_other_terms(offer.slice_of(0), task_of(offer, **changes))
    assert declined.value.reason == "terms"


def test_where_clients_draw_their_own_coins_the_rate_is_the_planned_one():
    offer = offered(own_coins=True)
    refuse_other_terms(offer.slice_of(0), task_of(offer))
    for coin in (None, 0.81, 0.79, 1.0, 0.0, np.nan):
        with pytest.raises(Declined, match="coin"):
            refuse_other_terms(offer.slice_of(0), task_of(offer, coin=coin))


def test_a_round_after_the_last_is_declined():
    offer = offered()
    task = task_of(offer, round=5)
    for round in (6, 10**9):
        later = replace(task, shared=replace(task.shared, round=round))
        with pytest.raises(Declined, match="task's round"):
            refuse_other_terms(offer.slice_of(0), later)


def test_a_grid_that_is_too_coarse_or_has_other_bits_is_declined():
    noise = "discrete-distributed"
    offer = offered(planned(noise=noise), noise=noise)
    task = task_of(offer)
    for grid in (
        replace(task.shared.grid, step=task.shared.grid.step * 2**12),
        replace(task.shared.grid, bits=21),
        replace(task.shared.grid, bits=53),
    ):
        with pytest.raises(Declined, match="grid"):
            refuse_other_terms(offer.slice_of(0), task_of(offer, grid=grid))


def test_under_central_noise_a_client_adds_none_and_bits_are_bare():
    offer = offered(planned(parts=PARTS))
    slice = offer.slice_of(0)
    for changes in (
        {"own_deviation": 0.1},
        {"bit_grid": NumberGrid.of(8.0, 3, distributed=True)},
        {"metric": NumberGrid.of(8.0, 3, distributed=True)},
        {"metric": None},
    ):
        with pytest.raises(Declined):
            refuse_other_terms(slice, task_of(offer, **changes))


def test_a_clip_that_follows_releases_takes_the_clients_own_noise_along():
    offer = offered(planned(noise="distributed"), noise="distributed", planned_clips=False)
    slice = offer.slice_of(0)
    for scale in (0.01, 1.0, 50.0):
        task = task_of(offer, scale=scale)
        refuse_other_terms(slice, task)
        more = task.shared.own_deviation * 1.1
        refuse_other_terms(slice, task_of(offer, scale=scale, own_deviation=more))
        for wrong in (
            {"clip_norm": task.clip_norm * 1.001},
            {"own_deviation": task.shared.own_deviation * 0.999},
            {"own_deviation": 0.0},
            {"clip_norm": 0.0},
            {"clip_norm": np.nan},
            {"clip_norm": np.inf},
        ):
            with pytest.raises(Declined):
                refuse_other_terms(slice, task_of(offer, scale=scale, **wrong))


@pytest.mark.parametrize("noise", ["distributed", "discrete-distributed"])
@pytest.mark.parametrize("scale", [1e-300, 1e-170, 1e-162, 1e-59, 1e-20, 1e20, 1e59, 1e100])
def test_own_noise_has_the_planned_deviation_at_every_clip_or_nothing_is_done(noise, scale):
    """A clip of 1e-170 has noise whose square is zero in doubles: it was sent without any."""
    offer = offered(planned(noise=noise), noise=noise, planned_clips=False)
    task = task_of(offer, scale=scale)
    if not 1e-60 <= task.clip_norm <= 1e60:
        with pytest.raises(Declined, match="clip"):
            refuse_other_terms(offer.slice_of(0), task)
        return
    refuse_other_terms(offer.slice_of(0), task)
    deviation, grid = task.shared.own_deviation, task.shared.grid
    wide = replace(task.shared, grid=replace(grid, dimension=4000))
    drawn = own_noise(replace(task, shared=wide), Randomness(1), 4000)
    assert np.std(drawn) == pytest.approx(deviation / grid.step, rel=0.06)


def test_clips_of_a_slice_are_ordinary_numbers():
    for clip in (1e-170, 1e-61, 1e61):
        plan = planned(noise="distributed")
        extreme = plan.replace(clip_norm=np.full_like(plan.clip_norm, clip))
        with pytest.raises(InvalidInput, match="its clips are not all from 1e-60 to 1e\\+60"):
            offered(extreme, noise="distributed").slice_of(0)
