"""On random quadratics, noise in the final model is what plans by `optimal` say that it is.

The rounds are the real ones: plan, sampling, mechanism, server step. Only the clients are simple:
each pulls the model towards its own optimum, along every direction by its own factor, and is not
clipped, since the prediction is for updates below the clip.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

import fedspend
from fedspend.client.contribution import Contribution, Remarks, Reply
from fedspend.client.task import LocalTraining
from fedspend.noise.randomness import Randomness
from fedspend.planning.influence import Course
from fedspend.planning.plan import Plan
from fedspend.runs.stores import MemoryStore
from fedspend.server import rounds
from fedspend.server.mechanism import Noised
from fedspend.server.methods.guarded import held_to
from fedspend.server.methods.planned import Planned
from fedspend.server.rounds import Server, Training, begin, run_rounds

SIZE = 3000  # directions; the variance over them is known to `4 * sqrt(2 / SIZE)`, 10%


@pytest.fixture(autouse=True)
def _believed(monkeypatch):
    """Replies of an engine of one's own are clipped if they are too long: not here."""
    monkeypatch.setattr(rounds, "is_trusted", lambda _: True)


@dataclass
class Quadratics:
    """Clients of quadratic losses: `update = -(1 - rho_i(t)) (model - optimum)`, never clipped."""

    contraction: np.ndarray  # (directions,) at the first learning rate
    rates: np.ndarray  # (rounds,) relative learning rates
    optima: np.ndarray  # (clients, directions)
    name: str = "quadratics"
    outside: bool = False

    def run(self, tasks):
        for task in tasks:
            pull = 1 - self.contraction ** self.rates[task.shared.round]
            away = task.shared.parameters.astype(np.float64) - self.optima[task.number]
            update = -pull * away
            norm = float(np.linalg.norm(update))
            yield Reply(
                Contribution(task.client, task.shared.round, update), Remarks(norm, False, "", None)
            )

    def close(self):
        pass


class Silent:
    """A mechanism without noise."""

    def start(self):
        return {}

    def release(self, sum, memory):
        return Noised(sum.total / sum.denominator), memory


def final_model(made: Plan, clients: Quadratics, tail: int, momentum: float, silent: bool):
    training = Training(
        server=Server(made.rounds, 1.0, momentum, tail),
        clients=made.clients,
        local=LocalTraining(1, steps=1),
        client_lr=lambda _: 0.1,
        mechanism=Silent() if silent else None,
    )
    method = held_to(made, Planned(made, "time-adaptive"))
    begun = begin(np.zeros(SIZE, dtype=np.float32), method)
    randomness = Randomness(7, "seeded")
    *_, (done, _) = run_rounds(
        begun, method, clients, training, randomness, MemoryStore(), lambda *_: {}
    )
    return done.model.astype(np.float64)


def measured(made: Plan, clients: Quadratics, tail: int, momentum: float) -> float:
    """Variance of the noise in a coordinate: the same run with and without it, same cohorts."""
    noisy, plain = (final_model(made, clients, tail, momentum, silent) for silent in (False, True))
    return float(((noisy - plain) ** 2).mean())


def predicted(made: Plan, h: np.ndarray) -> float:
    return float(((h * made.noise_of_average) ** 2).sum())


def quadratics(seed: int, made: Plan, contraction, rates) -> Quadratics:
    generator = np.random.default_rng(seed)
    spectrum = np.broadcast_to(contraction, SIZE)
    return Quadratics(spectrum, rates, generator.normal(0, 1e-3, (len(made.clients), SIZE)))


# rate, clients, contraction, tail, momentum, learning rate at the end, clip schedule
SETTINGS = [
    (0.9, 60, 0.9, 1, 0.0, 1.0, None),
    (0.9, 60, 0.8, 4, 0.0, 1.0, None),
    (0.9, 60, 0.95, 8, 0.0, 1.0, None),
    (0.9, 60, 0.9, 1, 0.5, 1.0, None),
    (0.9, 60, 0.85, 1, 0.0, 0.1, None),
    (0.9, 60, 0.85, 3, 0.0, 0.1, "constant"),
    (0.1, 600, 0.9, 1, 0.0, 1.0, None),
    (0.1, 600, 0.8, 4, 0.3, 0.2, None),
    (0.01, 6000, 0.9, 1, 0.0, 1.0, None),
    (0.01, 6000, 0.7, 2, 0.0, 1.0, None),
]


@pytest.mark.full(but=["0.9-60-0.8-4-0.0-1.0-None", "0.9-60-0.85-3-0.0-0.1-constant"])
@pytest.mark.parametrize(("rate", "clients", "rho", "tail", "momentum", "end", "clips"), SETTINGS)
def test_measured_noise_is_the_predicted_noise_and_the_gain_is_reached(
    rate, clients, rho, tail, momentum, end, clips
):
    rounds, rates = 15, np.linspace(1, end, 15)
    budgets = np.where(np.arange(clients) % 2, 4.0, 12.0)
    terms = {
        "delta": 1e-5,
        "rounds": rounds,
        "rate": rate,
        "learning_rates": rates,
        "clip_schedule": clips,
    }
    ahead = {"contraction": rho, "tail": tail, "server_momentum": momentum}
    ours = fedspend.plan(budgets, policy="optimal", **terms, **ahead)
    flat = fedspend.plan(budgets, policy="uniform", **terms)
    h = Course(rounds, tail, momentum, rates).influence(rho)
    found = []
    for made in (ours, flat):
        people = quadratics(1, made, rho, rates)
        found.append(measured(made, people, tail, momentum))
        assert found[-1] == pytest.approx(predicted(made, h), rel=4 * np.sqrt(2 / SIZE))
    gain = ours.parameters["expected"]["variance_of_uniform"]
    assert gain <= 1
    assert found[0] / found[1] == pytest.approx(gain, rel=8 * np.sqrt(1 / SIZE))


def test_many_directions_have_the_influence_of_their_root_mean_square():
    """A spectrum of contractions is planned for by its measured influence, not by one of them."""
    rounds, spectrum = 15, np.random.default_rng(3).uniform(0.5, 1.0, SIZE)
    each = np.array([Course(rounds).influence(rho) for rho in spectrum])
    h = np.sqrt((each**2).mean(axis=0))
    terms = {"delta": 1e-5, "rounds": rounds, "rate": 0.9}
    ours = fedspend.plan([4.0] * 60, policy="optimal", influence=h, **terms)
    flat = fedspend.plan([4.0] * 60, policy="uniform", **terms)
    ratio = [
        measured(made, quadratics(2, made, spectrum, np.ones(rounds)), 1, 0.0)
        for made in (ours, flat)
    ]
    assert ratio[0] == pytest.approx(predicted(ours, h), rel=4 * np.sqrt(2 / SIZE))
    gain = ours.parameters["expected"]["variance_of_uniform"]
    assert gain < 0.85
    assert ratio[0] / ratio[1] == pytest.approx(gain, rel=8 * np.sqrt(1 / SIZE))
