"""DP-FedSGD (Gu et al. 2023, Algorithm 1): clients take a few steps, clip and add noise.

The paper's noise level sigma is absolute: what *one* client adds to each coordinate of its update.
With q K clients in a round their sum carries noise of standard deviation `sigma sqrt(q K)`, and one
client moves that sum by at most the clip c. So

    noise multiplier = sigma sqrt(q K) / c        noise of the averaged update = sigma / sqrt(q K)

and rounds run like those of any plan: `Planned` with one constant schedule for everyone. The E
local "epochs" of the paper are E steps on one batch each (`train.local_steps`). Where we depart
from the letter of Algorithm 1, and why following it would give no guarantee:

- The paper's noise and divisor follow the number of clients that turned up. Cohorts here are
  Poisson samples, so noise and divisor are the planned `sigma sqrt(q K)` and `q K`, whoever turns
  up.
- The paper divides an update by `max(1, |u|^2 / c)`. That bounds it by `sqrt(c)`, not by c: for
  c = 0.01 one client could move the sum ten times as far as was accounted. Here an update is scaled
  to a norm of at most c.
- Its epsilon, Eq. (2), holds only up to an unknown constant and for small epsilon; it is the proxy
  f2. Plans use the accountant.
- Anyone who sees single noised updates, as the paper's server does, sees multiplier `sigma / c` and
  no sampling. The plan's guarantee is against other clients and the public.
"""

from __future__ import annotations

import math

from fedspend.accounting.conversion import check_delta, epsilon
from fedspend.accounting.rdp import NOISE_RANGE, ORDERS, rdp
from fedspend.errors import InvalidInput

NAME = "dp-fedsgd"


def multiplier_of(noise_level: float, *, rate: float, clients: int, clip: float) -> float:
    """The noise multiplier that corresponds to a noise level.

    >>> round(multiplier_of(0.05, rate=0.5, clients=40, clip=0.25), 4)
    0.8944
    """
    return noise_level * math.sqrt(rate * clients) / clip


def noise_level_of(multiplier: float, *, rate: float, clients: int, clip: float) -> float:
    """The noise level that corresponds to a noise multiplier."""
    return multiplier * clip / math.sqrt(rate * clients)


def budget_of(
    noise_level: float, *, rate: float, clients: int, clip: float, rounds: int, delta: float
) -> float:
    """What rounds at this noise level cost every client: the budget whose plan has this noise.

    >>> round(budget_of(0.05, rate=0.5, clients=40, clip=0.25, rounds=20, delta=1e-3), 2)
    15.12
    """
    multiplier = multiplier_of(noise_level, rate=rate, clients=clients, clip=clip)
    low, high = NOISE_RANGE
    if not low <= multiplier <= high:
        raise InvalidInput(
            f"noise_level {noise_level:g} is a noise multiplier of {multiplier:.3g} at rate "
            f"{rate:g}, {clients} clients and clip {clip:g}; the accountant handles {low:g} to "
            f"{high:g}: change noise_level or clip"
        )
    cost = float(epsilon(rounds * rdp(rate, multiplier, ORDERS), ORDERS, check_delta(delta)))
    if not cost > 0:
        raise InvalidInput(
            f"noise_level {noise_level:g} costs no epsilon at delta {delta:g}: there is no plan "
            "with this much noise; use less"
        )
    return cost
