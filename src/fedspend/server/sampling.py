"""Poisson sampling: every client enters a round independently, at its planned rate.

The server draws here. Where everyone is asked, each client draws for itself, and in simulations the
same numbers: `client.participation`.
"""

from __future__ import annotations

import numpy as np

from fedspend.basics.arrays import FloatArray, IntArray
from fedspend.noise.randomness import Randomness


def draw_cohort(sampling_rate: FloatArray, randomness: Randomness, round: int) -> IntArray:
    """Indices of the clients that take part, in increasing order. May be empty: a normal round."""
    chance = randomness.uniform(sampling_rate.size, "cohort", round)
    return np.flatnonzero(chance < sampling_rate)
