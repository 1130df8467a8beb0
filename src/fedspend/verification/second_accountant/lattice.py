"""Rényi divergence of a round with discrete Gaussian noise, as a sum over the integers.

Guarantee: `lattice_divergence` is the divergence for a contribution of one step on the coarsest
possible grid. At whole orders it depends on the grid no more than the Gaussian's does: every moment
of the likelihood ratio up to the order is the Gaussian's.
"""

from __future__ import annotations

import math

import numpy as np

from fedspend.verification.second_accountant.renyi import REACH, log_integrand

# above this the sum is not worth its length: it differs from the integral by less than exp(-10^7)
MOST_NOISE = 2000.0
MOST_ORDER = 1e5  # beyond this the sum is too long


def lattice_divergence(rate: float, noise: float, order: float) -> float:
    """Divergence of `(1-q) N_Z(0, s^2) + q N_Z(1, s^2)` from `N_Z(0, s^2)`.

    It is `log E[(1+u)^a] / (a-1)`, summed term by term; s is the noise multiplier.

    >>> round(lattice_divergence(0.9, 2.4, 2), 15)
    0.142861666907219
    """
    first, last = math.floor(-REACH * noise), math.ceil(max(order, 1.0) + REACH * noise)
    x = np.arange(first, last + 1) / noise
    terms = log_integrand(x, *(np.full_like(x, value) for value in (rate, noise, order)))
    top = terms.max()
    excess = top + math.log(np.exp(terms - top).sum()) - math.log(np.exp(-(x**2) / 2).sum())
    return float(np.logaddexp(0.0, excess) / (order - 1))
