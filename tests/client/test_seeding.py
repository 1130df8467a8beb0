"""Seeds for many clients at once are those that numpy gives to each."""

from __future__ import annotations

from typing import get_args

import numpy as np
import pytest

from fedspend.noise.randomness import Randomness, Role
from fedspend.noise.seeding import philox_keys


def test_keys_are_those_of_numpy() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        first = generator.integers(0, 2**32, 3).tolist()
        clients = [0, 1, 2**32 - 1, *generator.integers(0, 2**32, 5).tolist()]
        for client, key in zip(clients, philox_keys(first, clients), strict=True):
            expected = np.random.SeedSequence([*first, client]).generate_state(2, np.uint64)
            assert key.tolist() == expected.tolist()


@pytest.mark.parametrize("seed", [0, 7, 2**32 - 1, 2**32, 2**70])
@pytest.mark.parametrize("clients", [[], [0], [5, 3, 3, 10_000], [2**32 - 1, 2**32]])
def test_streams_of_many_are_the_streams_of_each(seed: int, clients: list[int]) -> None:
    """Also if the client before has left numbers unused, or half a word."""
    randomness = Randomness(seed)
    found = [draws(one) for one in randomness.generators("batches", 4, clients)]
    for client, drawn in zip(clients, found, strict=True):
        philox = np.random.Philox(np.random.SeedSequence([seed, 3, 4, client]))
        assert drawn == draws(np.random.Generator(philox))
        assert drawn == draws(randomness.generator("batches", 4, client))


def draws(generator: np.random.Generator) -> list[int]:
    odd = generator.integers(0, 2**31, 3, dtype=np.int32).tolist()
    return [*odd, *generator.permutation(37).tolist()]


def test_no_two_uses_share_a_stream() -> None:
    roles = get_args(Role)
    assert len(roles) > 15
    assert len({tuple(draws(Randomness(1).generator(role, 2, 3))) for role in roles}) == len(roles)


@pytest.mark.parametrize("source", ["seeded", "os"])
def test_coins_are_a_function_of_seed_round_and_client(source) -> None:
    """In real runs too: they need no secrecy, and a node that is asked again rounds alike."""
    drawn = {
        key: Randomness(key[0], source).coins(*key[1:]).random(1000)
        for key in ((7, 4, 2), (8, 4, 2), (7, 5, 2), (7, 4, 3), (2**40, 4, 2))
    }
    sequence = np.random.SeedSequence([7, 8, 4, 2])
    expected = np.random.Generator(np.random.SFC64(sequence)).random(1000)
    assert (drawn[7, 4, 2] == expected).all()
    related = np.corrcoef(list(drawn.values()))
    assert np.abs(related - np.eye(len(drawn))).max() < 0.15  # 4.7 deviations
