"""A second accountant, to check the first: it shares no code and no method with it.

The mechanism is rounds of a Gaussian of sensitivity 1 on a Poisson sample, adding or removing one
client; there are three readings of it. `best_of` is for the best of a random number of trials.

Guarantee: `renyi_divergence` is right to 1e-9, `pld_epsilon` and `best_of` are never too low, and
`fft_epsilon` brackets the true value.
"""

from fedspend.verification.second_accountant.best_of import best_of
from fedspend.verification.second_accountant.fft import fft_epsilon
from fedspend.verification.second_accountant.pld import _merged, pld_epsilon
from fedspend.verification.second_accountant.renyi import (
    divergence_of_schedule,
    epsilon_at,
    renyi_divergence,
)
from fedspend.verification.second_accountant.workers import Runs, pld_epsilons

__all__ = [
    "Runs",
    "_merged",
    "best_of",
    "divergence_of_schedule",
    "epsilon_at",
    "fft_epsilon",
    "pld_epsilon",
    "pld_epsilons",
    "renyi_divergence",
]
