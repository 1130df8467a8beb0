"""BLUR and LUS: limits, Lemma 2 on a quadratic, what they do to update norms, refusals. Engines:
`contracts/test_engines.py`.
"""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from boundary import client_task
from hypothesis import example, given
from hypothesis import strategies as st
from torch import nn

from fedspend.client.bounding import bounded
from fedspend.client.shaping import Shape, kept, sparsify
from fedspend.client.task import LocalTraining
from fedspend.configuration.config import config_of, load_config
from fedspend.engines.base import Workload
from fedspend.engines.clientwise import ClientwiseEngine
from fedspend.engines.reference import ReferenceEngine
from fedspend.errors import FedspendWarning, InvalidInput
from fedspend.noise.randomness import Randomness
from fedspend.runs.running import run
from fedspend.runs.setup import from_config
from fedspend.runs.training import train


class Quadratic(nn.Module):
    """A module whose cross-entropy is |w - goal|^2 / 2 + log 2: the second logit undoes the
    softmax.
    """

    def __init__(self, goal: torch.Tensor) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.zeros_like(goal))
        self.goal = goal

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        loss = 0.5 * (self.w - self.goal).square().sum() + math.log(2)
        return torch.stack(
            [torch.zeros(len(x)), torch.log(torch.expm1(loss)).expand(len(x))], dim=1
        )


def end_of(
    engine, goal: torch.Tensor, steps: int, lr: float, blur: float, radius: float
) -> np.ndarray:
    shards = {"0": np.arange(1)}
    work = Workload(
        Quadratic(goal), torch.zeros(1, 1), torch.zeros(1, dtype=torch.int64), shards, Randomness(0)
    )
    training = LocalTraining(batch_size=1, steps=steps, shape=Shape(blur=blur))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("fedspend.client.work.bounded", unclipped)
        (reply,) = engine(work).run([client_task(len(goal), radius, training=training, lr=lr)])
    return reply.contribution.vector


def unclipped(vector, task, randomness):
    """The ball of a clip without the clip, to look at what comes before it."""
    return bounded(vector, dataclasses.replace(task, clip_norm=math.inf), randomness)


@pytest.mark.parametrize("engine", [ReferenceEngine, ClientwiseEngine])
def test_lemma_2_on_a_quadratic(engine):
    """`w_Q - w_t = -lr sum_q gamma_q g_q`, gamma_q the product of `1 - blur lr` over later steps
    that began outside the ball.
    """
    goal, lr, blur, radius, steps = torch.tensor([3.0, -4.0]), 0.1, 0.8, 1.2, 12
    path = [np.zeros(2)] + [end_of(engine, goal, q, lr, blur, radius) for q in range(1, steps + 1)]
    gradients = [w - goal.numpy() for w in path[:-1]]
    outside = [np.linalg.norm(w) > radius for w in path[:-1]]
    assert 2 <= sum(outside) <= steps - 2
    discount = [
        np.prod([1 - blur * lr for later in outside[q + 1 :] if later]) for q in range(steps)
    ]
    assert discount[-1] == 1.0
    assert discount[0] == pytest.approx((1 - blur * lr) ** sum(outside))
    expected = -lr * sum(factor * g for factor, g in zip(discount, gradients, strict=True))
    assert np.allclose(path[-1], expected, rtol=0, atol=1e-5)


def test_where_a_quadratic_settles():
    """In the ball at its minimum; outside at `goal / (1 + blur)`, where pull and slope are equal;
    between the two on the rim.
    """
    goal = torch.tensor([3.0, -4.0])
    assert np.allclose(end_of(ReferenceEngine, goal, 300, 0.1, 0.8, 6.0), [3, -4], atol=1e-4)
    assert np.allclose(
        end_of(ReferenceEngine, goal, 300, 0.1, 0.8, 1.0), np.array([3, -4]) / 1.8, atol=1e-4
    )
    rim = end_of(ReferenceEngine, goal, 300, 0.1, 0.8, 4.0)
    assert np.linalg.norm(rim) == pytest.approx(4.0, abs=0.4)


@pytest.mark.full
@given(
    st.integers(1, 40),
    st.floats(0, 0.999),
    st.lists(st.integers(-3, 3), min_size=40, max_size=40),
    st.lists(st.integers(-3, 3), min_size=40, max_size=40),
)
def test_lus_keeps_the_most_important_and_of_equals_the_first(size, lus, update, gradient):
    """Small whole numbers, so that almost everything is a tie."""
    values = torch.tensor([update, update[::-1]], dtype=torch.float32)
    slope = torch.tensor([gradient, gradient], dtype=torch.float32)
    out = values.clone()
    sparsify(out, slope.clone(), (size, 40 - size) if size < 40 else (40,), lus)
    for row in range(2):
        for piece in (range(size), range(size, 40)):
            order = sorted(piece, key=lambda n: (-abs(float(values[row, n] * slope[row, n])), n))
            stay = set(order[: kept(len(piece), lus)])
            assert [float(out[row, n]) for n in piece] == [
                float(values[row, n]) if n in stay else 0.0 for n in piece
            ]


@given(st.integers(1, 10_000), st.integers(0, 999))
@example(10, 700)  # (1 - 0.7) * 10 is a little above 3 in doubles
def test_how_many_values_lus_keeps(size, thousandths):
    """`ceil((1 - c) d)` in whole numbers, which no rounding of the product can spoil."""
    assert kept(size, thousandths / 1000) == -(-(1000 - thousandths) * size // 1000)


DIGITS = {
    "data": {"name": "digits", "clients": 20, "partition": "dirichlet", "alpha": 0.3},
    "model": {"name": "logistic"},
    "method": {"name": "dp-fedavg"},
    "privacy": {"epsilon": 8.0, "delta": 1e-3, "rate": 0.8, "clip": 1.3},
    "train": {"rounds": 4, "local_steps": 15, "batch_size": 16, "lr": 0.3, "seed": 3},
}


def metrics_of(**changes):
    config = {section: values | changes.get(section, {}) for section, values in DIGITS.items()}
    config |= {section: values for section, values in changes.items() if section not in config}
    return run(from_config(config_of(config)), None).metrics


@pytest.mark.full
def test_blur_and_lus_lower_norms_and_the_clipped_share():
    plain, blurred, both = (
        metrics_of(shape=shape) for shape in ({}, {"blur": 0.4}, {"blur": 0.4, "lus": 0.5})
    )
    for a, b, c in zip(plain, blurred, both, strict=True):
        assert a["mean_norm"] > b["mean_norm"] > c["mean_norm"]
        assert a["clipped_share"] >= b["clipped_share"] >= c["clipped_share"]
    assert sum(line["clipped_share"] for line in both) < 0.9 * sum(
        line["clipped_share"] for line in plain
    )


def test_off_changes_nothing():
    assert metrics_of(shape={"blur": 0, "lus": 0.0}) == metrics_of()


@pytest.mark.full(but=["idp-fedavg"])
@pytest.mark.parametrize("name", ["idp-fedavg", "time-adaptive", "adaptive-clip"])
def test_the_ball_follows_each_client_s_clip_of_the_round(name, monkeypatch):
    """The engine gets the method's own clips, round by round."""
    seen = []
    plain = ClientwiseEngine.run

    def spy(self, tasks):
        seen.append(np.array([task.clip_norm for task in tasks]))
        return plain(self, tasks)

    monkeypatch.setattr("fedspend.engines.local.supports", lambda _: False)
    # to see everyone's
    monkeypatch.setattr("fedspend.server.rounds.draw_cohort", lambda rate, *_: np.arange(rate.size))
    monkeypatch.setattr(ClientwiseEngine, "run", spy)
    groups = [
        {"epsilon": 4.0, "share": 1, "saving_rate": 0.5},
        {"epsilon": 8.0, "share": 1, "saving_rate": 0.5},
    ]
    privacy = {key: value for key, value in DIGITS["privacy"].items() if key != "epsilon"} | {
        "groups": groups
    }
    config = DIGITS | {
        "method": {"name": name},
        "privacy": privacy,
        "shape": {"blur": 1.0, "lus": 0.5},
        "engine": {"workers": 1},
    }
    setup = from_config(config_of(config))
    run(setup, None)
    assert len(seen) == 4
    assert np.array_equal(seen[0], setup.method.terms(0, setup.method.start()).clip_norm)
    assert len(np.unique(seen[0])) == 2
    if name != "idp-fedavg":
        assert not np.array_equal(seen[0], seen[-1])


@pytest.mark.parametrize("bad", [-0.1, math.nan, math.inf, -math.inf])
def test_bad_blur(bad):
    with pytest.raises(InvalidInput, match="blur"):
        Shape(blur=bad)
    with pytest.raises(InvalidInput, match=r"blur in \[shape\] must be"):
        config_of({"shape": {"blur": bad}})


@pytest.mark.parametrize("bad", [-0.1, 1, 1.0, 2, math.nan, math.inf])
def test_bad_lus(bad):
    with pytest.raises(InvalidInput, match="lus"):
        Shape(lus=bad)
    with pytest.raises(InvalidInput, match=r"lus in \[shape\] must be"):
        config_of({"shape": {"lus": bad}})


@pytest.mark.parametrize("text", ["shape.blur=strong", "shape.lus=true", "shape.blurr=0.1"])
def test_bad_overrides(text):
    with pytest.raises(InvalidInput, match="shape"):
        load_config(None, [text])


def test_a_pull_that_overshoots_is_refused():
    with pytest.raises(InvalidInput, match="blur times lr must be below 1, got 4"):
        metrics_of(shape={"blur": 4.0})


def test_fedavg_has_no_ball():
    with pytest.warns(FedspendWarning, match="blur does nothing under fedavg"):
        shaped = metrics_of(method={"name": "fedavg"}, shape={"blur": 1.0})
    plain = metrics_of(method={"name": "fedavg"})
    assert [line["accuracy"] for line in shaped] == [line["accuracy"] for line in plain]


@pytest.mark.full
def test_from_arrays():
    import fedspend

    plan = fedspend.plan([8.0] * 3, delta=1e-3, rounds=2, rate=0.9, clip=0.1)
    x, y = np.random.default_rng(0).normal(size=(30, 5)).astype(np.float32), np.arange(30) % 2
    clients = [(x[n::3], y[n::3]) for n in range(3)]
    terms = {
        "plan": plan,
        "test": (x, y),
        "lr": 0.5,
        "batch_size": 8,
        "local_steps": 4,
        "randomness": "seeded",
    }

    def model():
        torch.manual_seed(0)
        return nn.Linear(5, 2)

    norms = [
        [
            line["mean_norm"]
            for line in train(clients=clients, model=model(), **terms, **shape).metrics
        ]
        for shape in ({}, {"blur": 1.0, "lus": 0.5})
    ]
    assert all(b < a for a, b in zip(*norms, strict=True))
    with pytest.raises(InvalidInput, match="lus"):
        train(clients=clients, model=model(), **terms, lus=1.0)
