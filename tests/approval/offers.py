"""Small offers, and the tasks that a server would send under them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

import fedspend
from fedspend.approval.slices import Terms, new_offer
from fedspend.client.task import ClientTask, LocalTraining, RoundTask
from fedspend.noise.grid import Grid
from fedspend.noise.numbers import NumberGrid
from fedspend.planning.parts import stating

CLIENTS = ("north", "south", "harbour")
BUDGETS = (3.0, 6.0, 9.0)
DELTA, SIZE, BITS = 1e-3, 7, 20


def planned(rounds=6, rate=0.8, budgets=BUDGETS, clients=CLIENTS, noise="central", parts=None):
    discrete = "discrete" if noise.startswith("discrete") else "continuous"
    made = fedspend.plan(
        dict(zip(clients, budgets, strict=True)),
        delta=DELTA,
        rounds=rounds,
        rate=rate,
        accountant="rdp",
        **({"noise": "discrete"} if discrete == "discrete" else {}),
    )
    return stating(made, parts) if parts else made


def offered(plan=None, run="0123456789ab", noise="central", planned_clips=True, **changes):
    plan = plan or planned(noise=noise)
    terms = Terms(
        run=run,
        simulation=False,
        method="idp-fedavg",
        clients=len(plan.clients),
        rounds=plan.rounds,
        size=SIZE,
        noise=noise,
        bits=BITS if noise.startswith("discrete") else 53,
        grid_steps=plan.grid_steps if noise.startswith("discrete") else 2**20,
        planned_clips=planned_clips,
        votes=False,
        own_coins=False,
        bit_noise=plan.bit_noise,
        metric_noise=plan.metric_noise,
    )
    keys = {client: f"SHA256:{client}" for client in plan.clients}
    return new_offer(replace(terms, **changes), plan, keys)


def task_of(offer, client="north", round=0, *, scale=1.0, **changes):
    """The task of a server that keeps to its offer, written down here from the plan alone."""
    plan, terms = offer.plan, offer.terms
    number = plan.clients.index(client)
    schedules = plan.schedules
    clips = scale * schedules.clip_norm[round, schedules.of_client]
    deviation = scale * float(plan.round_deviation[round])
    numbers = {
        "bit": terms.bit_noise is not None,
        "bit_grid": NumberGrid.of(terms.bit_noise, terms.clients, distributed=True)
        if terms.bit_noise is not None and terms.distributed
        else None,
        "metric": NumberGrid.of(terms.metric_noise, terms.clients, distributed=terms.distributed)
        if terms.metric_noise is not None
        else None,
    }
    shared = RoundTask(
        round=round,
        parameters=np.zeros(SIZE, dtype=np.float32),
        training=LocalTraining(batch_size=4, steps=1),
        lr=0.1,
        size=SIZE,
        run=terms.run,
        plan=offer.root,
        grid=None if terms.bits is None else Grid.of(clips, deviation, SIZE, terms.bits),
        own_deviation=deviation / np.sqrt(terms.clients) if terms.distributed else 0.0,
        **numbers,
    )
    own = {"client", "number", "clip_norm", "records", "coin"}
    rate = float(schedules.sampling_rate[round, schedules.of_client[number]])
    task = ClientTask(
        client=client,
        number=number,
        clip_norm=float(clips[number]),
        shared=shared,
        coin=rate if terms.own_coins else None,
    )
    inside = {name: value for name, value in changes.items() if name not in own}
    outside = {name: value for name, value in changes.items() if name in own}
    return replace(task, shared=replace(shared, **inside), **outside)
