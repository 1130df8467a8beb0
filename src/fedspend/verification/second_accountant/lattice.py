"""Rényi divergence of a round with discrete Gaussian noise, summed over the whole numbers
themselves.

Guarantee: `lattice_divergence` is the divergence for a contribution of one step on the coarsest
grid there is. At whole orders it depends on the grid as little as the Gaussian's does: every moment
of the likelihood ratio up to the order is the Gaussian's.
"""

from __future__ import annotations

import math

import numpy as np

from fedspend.verification.second_accountant.renyi import REACH, log_integrand

# beyond, the sum is longer than it is worth: the terms differ from the integral by less than
# exp(-10^7)
MOST_NOISE = 2000.0


def lattice_divergence(rate: float, noise: float, order: float) -> float:
    """Of `(1-q) N_Z(0, s^2) + q N_Z(1, s^2)` from `N_Z(0, s^2)`, s the noise multiplier:
    `log E[(1+u)^a] / (a-1)`, term by term.

    >>> round(lattice_divergence(0.9, 2.4, 2), 15)
    0.142861666907219
    """
    first, last = math.floor(-REACH * noise), math.ceil(max(order, 1.0) + REACH * noise)
    x = np.arange(first, last + 1) / noise
    terms = log_integrand(x, *(np.full_like(x, value) for value in (rate, noise, order)))
    top = terms.max()
    excess = top + math.log(np.exp(terms - top).sum()) - math.log(np.exp(-(x**2) / 2).sum())
    return float(np.logaddexp(0.0, excess) / (order - 1))
