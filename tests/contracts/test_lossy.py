"""Answers that do not come: the noise of a release is the planned one, whoever answered.

Clients here have no rows, so a release is noise and nothing else, and its variance can be measured.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
import torch
from contracts.workshop import Lossy
from lib.noise import has_deviation
from torch import nn

from fedspend.client.task import LocalTraining
from fedspend.engines.base import Workload
from fedspend.noise.randomness import Randomness
from fedspend.server import rounds
from fedspend.server.answers import NO_ANSWER, Answers, gather
from fedspend.server.mechanism import NO_MEMORY, Gaussian
from fedspend.server.methods.base import Release, RoundTerms, State
from fedspend.server.rounds import Server, Training, begin, play

CLIENTS = ("anna", "ben", "cleo", "dan", "eva", "finn", "gus", "hana")
DEVIATION = 1.7
NOISES = {"central": ("central", None), "distributed": ("distributed", None)} | {
    "discrete": ("central", 32),
    "discrete-distributed": ("distributed", 32),
}
LOST = {"nobody": CLIENTS[:0], "one": CLIENTS[2:3], "half": CLIENTS[::2], "all": CLIENTS}


@dataclass(frozen=True)
class Everybody:
    """A method that asks everyone, with one clip and one deviation."""

    name: str = "everybody"

    def start(self) -> State:
        return {}

    def terms(self, round: int, state: State) -> RoundTerms:  # noqa: ARG002 - the same in every round
        ones = np.ones(len(CLIENTS))
        return RoundTerms(ones, ones, DEVIATION, 2.0, bit_deviation=None)

    def learn(self, state: State, release: Release) -> State:  # noqa: ARG002 - nothing to adapt
        return state


def release(
    noise: str, source: str, drop: Sequence[str] = (), corrupt: Sequence[str] = ()
) -> tuple[np.ndarray, dict[str, Any]]:
    """The noise of a release on the sum, and what was written down about the round."""
    place, bits = NOISES[noise]
    module, randomness = nn.Linear(150, 200), Randomness(5, source)  # type: ignore[arg-type]
    shards = {client: np.zeros(0, dtype=np.int64) for client in CLIENTS}
    work = Workload(
        module, torch.zeros(1, 150), torch.zeros(1, dtype=torch.int64), shards, randomness
    )
    training = Training(
        Server(1), CLIENTS, LocalTraining(1, steps=1), lambda _: 0.1, noise_place=place, bits=bits
    )
    progress = begin(
        nn.utils.parameters_to_vector(module.parameters()).detach().numpy(), Everybody()
    )
    engine = Lossy(work, drop, corrupt)
    kept = play(
        progress, Everybody(), engine, training, randomness, Gaussian(randomness), NO_MEMORY
    )
    return kept.release.update * 2.0, kept.statistics


@pytest.mark.full(
    but=[
        "nobody-central-seeded",
        "nobody-discrete-os",
        "one-distributed-seeded",
        "half-discrete-seeded",
        "all-central-os",
        "all-discrete-distributed-seeded",
    ]
)
@pytest.mark.parametrize("source", ["seeded", "os"])
@pytest.mark.parametrize("noise", NOISES)
@pytest.mark.parametrize("lost", LOST)
def test_the_noise_is_the_planned_one_whoever_answered(noise: str, lost: str, source: str) -> None:
    found, statistics = release(noise, source, drop=LOST[lost])
    assert has_deviation(found, DEVIATION)
    assert {
        client: why for client, why in statistics.get("reports", {}).items() if why == NO_ANSWER
    } == dict.fromkeys(LOST[lost], NO_ANSWER)


@pytest.mark.parametrize("noise", NOISES)
def test_a_damaged_answer_is_topped_up_like_a_lost_one(noise: str) -> None:
    found, statistics = release(noise, "seeded", drop=CLIENTS[:1], corrupt=CLIENTS[4:6])
    assert has_deviation(found, DEVIATION)
    assert statistics["discarded"] == 3
    assert "damaged" in statistics["reports"][CLIENTS[4]]


def test_counting_noise_that_never_came_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken server: it takes the cohort for those who answered."""

    def trusting(tasks: Any, replies: Any, size: int, **how: bool) -> Answers:
        answers = gather(tasks, replies, size, **how)
        return replace(answers, received_variance=len(tasks) * tasks[0].shared.own_deviation ** 2)

    assert has_deviation(release("distributed", "seeded", drop=LOST["half"])[0], DEVIATION)
    monkeypatch.setattr(rounds, "gather", trusting)
    assert not has_deviation(release("distributed", "seeded", drop=LOST["half"])[0], DEVIATION)


def test_counting_an_answer_twice_would_be_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    """The broken tally: it adds whatever comes. Some answers come twice, and one comes from a
    stranger.
    """
    from fedspend.server.answers import Tally

    def add(self: Any, reply: Any) -> None:
        self._total += reply.contribution.vector
        self._answered[reply.contribution.client] = None

    assert has_deviation(release("distributed", "seeded")[0], DEVIATION)
    monkeypatch.setattr(Tally, "add", add)
    assert not has_deviation(release("distributed", "seeded")[0], DEVIATION)
