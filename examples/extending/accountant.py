"""An accountant: Gaussian differential privacy (Dong et al. 2022), exact without sampling.

    fedspend --load examples/extending/accountant.py plan --epsilon 2:10 --delta 1e-3 --rounds 20 \\
        --rate 1 --accountant gdp

It reads the epsilon of one schedule. Whatever it claims must not be below what the independent
accountants find when the plan is verified.
"""

import math

from scipy.optimize import brentq
from scipy.stats import norm

import fedspend


def gdp(noise, _rate, delta):
    """Composed Gaussians are one Gaussian with `mu^2 = sum 1 / sigma^2`. This knows no sampling: a
    round counts in full whatever its rate.
    """
    mu = math.sqrt(sum(sigma**-2.0 for sigma in noise))

    def excess(epsilon):
        lost = norm.cdf(mu / 2 - epsilon / mu)
        return lost - math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu) - delta

    return 0.0 if excess(0.0) <= 0 else brentq(excess, 0.0, 10 * mu * (mu + 5), xtol=1e-10) + 1e-9


fedspend.register("accountant", "gdp", gdp, help="composed Gaussians, exact where rate is 1")
