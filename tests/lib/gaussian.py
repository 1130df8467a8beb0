"""What a plain Gaussian mechanism costs, by a closed form."""

import math

from scipy import optimize, stats


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The exact epsilon of a Gaussian mechanism with sensitivity `mu` standard deviations.

    By Balle and Wang (2018).

    >>> round(gaussian_epsilon(1.0, 1e-5), 3)
    4.377
    """

    def excess(epsilon: float) -> float:
        tail = stats.norm.logcdf(-mu / 2 - epsilon / mu)
        return float(stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + tail)) - delta

    if excess(0.0) <= 0:
        return 0.0
    # at the upper end the first term alone is below delta
    high = mu * (mu / 2 - float(stats.norm.ppf(delta)))
    return float(optimize.brentq(excess, 0.0, high))
