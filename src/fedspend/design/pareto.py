"""Pareto solutions of utility against privacy under a limit on rounds, in closed form (Gu et al.
2023, Theorems 2 and 3, corrected).

With T rounds, noise level sigma (standard deviation of the noise that one client adds, in the units
of the model), sampling rate q and K clients, both of these should be small, for 1 <= T <= T_max
and, if there is a limit, sigma <= sigma_max:

    f1 = 1/T + k sigma^2 / (q K)    utility: a bound on the loss, up to constants
    f2 = sqrt(q T) / sigma          privacy: a proxy for epsilon, up to constants

The real epsilon comes from the accountant.

*The paper's curve* is `k sigma^2 T = q K`, cut off at sigma_max; at T_max every smaller noise level
is a solution too, in all three cases (the paper's case I omits this). *The exact band* is the set
of solutions when T is a whole number. At a given privacy `s = sigma^2 / T` the best T minimises
`1/T + k s T / (q K)`, which is convex in T, so T only has to beat its neighbours:

    against T-1:  sigma <= sqrt(q K / (k (T-1)))
    against T+1:  sigma >= sqrt(q K / (k (T+1)))

The second does not apply if T+1 is out of reach: T = T_max, or sigma sqrt((T+1)/T) > sigma_max.

These are statements about f1 and f2. To see how close a real training comes to them, run `fedspend
design CONFIG`.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fedspend.accounting.calibration import check_rate
from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput, finite_number, whole_number


def positive_number(name: str, value: Any) -> float:
    number = finite_number(name, value)
    if not number > 0:
        raise InvalidInput(f"{name} must be positive, got {value!r}")
    return number


def noise_for(rounds: Any, *, k: float, rate: float, clients: int) -> float:
    """The noise level for the real rate, clients and rounds, `sqrt(q K / (k T))`: step two of the
    two-step procedure.

    `rounds` may be any positive number.

    >>> round(noise_for(100, k=25, rate=0.5, clients=40), 6)
    0.089443
    """
    share = check_rate("rate", rate) * whole_number("clients", clients, 1)
    return math.sqrt(share / (positive_number("k", k) * positive_number("rounds", rounds)))


def case_of(
    *, k: float, rate: float, clients: int, max_rounds: int, max_noise: float | None = None
) -> str:
    """Which case of Theorem 3 this is: I without a limit on noise, II if curve and limit cross
    within T_max, else III.

    >>> case_of(k=22, rate=1, clients=10, max_rounds=150, max_noise=0.1)
    'II'
    """
    lowest = noise_for(whole_number("max_rounds", max_rounds, 1), k=k, rate=rate, clients=clients)
    return (
        "I"
        if max_noise is None
        else "II"
        if positive_number("max_noise", max_noise) > lowest
        else "III"
    )


def pareto_noise(
    rounds: int,
    *,
    k: float,
    rate: float,
    clients: int,
    max_rounds: int,
    max_noise: float | None = None,
    exact: bool = False,
) -> tuple[float, float]:
    """The noise levels that are Pareto optimal with this many rounds: lowest and highest.

    `exact=False` is the paper's curve, where both are the same for all T below T_max. `exact=True`
    is the band for whole T; its upper end is infinite for one round without a limit. If the limit
    on noise sets the lower end of the band, that end itself is not optimal but everything above it
    is.

    >>> found = pareto_noise(150, k=22, rate=1, clients=10, max_rounds=150, max_noise=0.1)
    >>> [round(x, 6) for x in found]
    [0.0, 0.055048]
    >>> found = pareto_noise(50, k=22, rate=1, clients=10, max_rounds=200, exact=True)
    >>> [round(x, 6) for x in found]
    [0.094407, 0.096314]
    """
    last = whole_number("max_rounds", max_rounds, 1)
    here = whole_number("rounds", rounds, 1)
    if not here <= last:
        raise InvalidInput(f"rounds must be at most max_rounds = {last}, got {rounds!r}")
    limit = math.inf if max_noise is None else positive_number("max_noise", max_noise)
    curve = noise_for(here, k=k, rate=rate, clients=clients)
    if not exact:
        high = min(limit, curve)
        return (0.0 if here == last else high), high
    above = curve * math.sqrt(here / (here - 1)) if here > 1 else math.inf
    below = curve * math.sqrt(here / (here + 1))
    out_of_reach = limit * math.sqrt(here / (here + 1))
    return (0.0 if here == last else min(below, out_of_reach)), min(limit, above)


def pareto_rate(
    rounds: int, noise: float, *, k: float, clients: int, max_rounds: int, exact: bool = False
) -> tuple[float, float]:
    """With the rate free, the sampling rates that make this noise level optimal with this many
    rounds (Theorem 2).

    Only `sigma^2 / q` enters f1 and f2, so the solutions are `sigma^2 / q` in the band of rate 1.
    Refused if even q = 1 is too small a rate for so much noise.

    >>> [round(q, 6) for q in pareto_rate(100, 0.05, k=22, clients=40, max_rounds=200)]
    [0.1375, 0.1375]
    """
    level = positive_number("noise", noise)
    low, high = pareto_noise(
        rounds, k=k, rate=1.0, clients=clients, max_rounds=max_rounds, exact=exact
    )
    least, most = (level / high) ** 2, math.inf if low == 0 else (level / low) ** 2
    if not least <= 1:
        raise InvalidInput(
            f"noise {level:g} is too much for {rounds} rounds of {clients} clients at k = {k:g}: "
            f"even rate 1 allows {high:.4g}; use less noise, fewer rounds or more clients"
        )
    return least, min(1.0, most)


def objectives(
    rounds: Any, noise: Any, rate: Any, *, k: float, clients: int
) -> tuple[FloatArray, FloatArray]:
    """f1 and f2. Arguments may be arrays and are broadcast; without noise, f2 is infinite.

    >>> f1, f2 = objectives(50, 0.0953462589, 1.0, k=22, clients=10)
    >>> round(float(f1), 6), round(float(f2), 4)
    (0.04, 74.162)
    """
    t, sigma, q = np.broadcast_arrays(
        *(np.asarray(value, dtype=np.float64) for value in (rounds, noise, rate))
    )
    for name, values, good in (
        ("rounds", t, (t >= 1) & np.isfinite(t)),
        ("noise", sigma, (sigma >= 0) & np.isfinite(sigma)),
        ("rate", q, (q > 0) & (q <= 1)),
    ):
        if not np.all(good):
            raise InvalidInput(f"{name} is out of range, got {float(values[~good].flat[0])!r}")
    loss: FloatArray = 1 / t + positive_number("k", k) * sigma**2 / (
        q * whole_number("clients", clients, 1)
    )
    with np.errstate(divide="ignore"):
        leakage: FloatArray = np.sqrt(q * t) / sigma
    return loss, leakage


def pareto_front(
    *, k: float, rate: float, clients: int, max_rounds: int, max_noise: float | None = None
) -> FloatArray:
    """The front along the paper's curve: rows of (rounds, noise, f1, f2), one for every T.

    Its last row is the highest noise at T_max; with less noise the front continues to f1 = 1/T_max
    and infinite f2. For a free rate take rate 1 and read noise as `sigma / sqrt(q)`.

    >>> pareto_front(k=22, rate=1, clients=10, max_rounds=200)[49].round(6).tolist()
    [50.0, 0.095346, 0.04, 74.161985]
    """
    last = whole_number("max_rounds", max_rounds, 1)
    limits: dict[str, Any] = {
        "k": k,
        "rate": rate,
        "clients": clients,
        "max_rounds": last,
        "max_noise": max_noise,
    }
    rounds = np.arange(1, last + 1)
    noise = np.array([pareto_noise(int(t), **limits)[1] for t in rounds])
    return np.column_stack([rounds, noise, *objectives(rounds, noise, rate, k=k, clients=clients)])
