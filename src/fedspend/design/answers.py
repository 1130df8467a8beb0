"""What `fedspend design theory` prints: solutions for some numbers of rounds, with real epsilon
beside the proxy. Does not need torch.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

from fedspend.accounting import noise_multiplier
from fedspend.accounting.conversion import check_delta
from fedspend.accounting.rdp import NOISE_RANGE
from fedspend.basics.toml_text import config_text
from fedspend.design.pareto import case_of, noise_for, objectives, pareto_noise, positive_number
from fedspend.errors import InvalidInput, Refused, whole_number
from fedspend.server.methods import dp_fedsgd
from fedspend.server.methods.dp_fedsgd import budget_of, multiplier_of, noise_level_of

CASES = {
    "I": "no limit on noise",
    "II": "the limit on noise binds for small T, the curve after that",
    "III": "the limit on noise binds for every T",
}


def theory_answer(
    *,
    k: float,
    clients: int,
    max_rounds: int,
    rate: float | None = None,
    rounds: int | None = None,
    max_noise: float | None = None,
    max_epsilon: float | None = None,
    delta: float | None = None,
    clip: float = 1.0,
    k_interval: tuple[float, float] | None = None,
) -> dict[str, Any]:
    """The whole answer as plain values. Without a rate, noise is given as `sigma / sqrt(q)`: the
    solutions for a free rate.
    """
    if rate is None and (max_noise is not None or delta is not None or max_epsilon is not None):
        raise InvalidInput("max-noise, max-epsilon and delta need a rate: give --rate")
    if max_epsilon is not None and delta is None:
        raise InvalidInput("max-epsilon needs a delta: give --delta")
    clip, delta = positive_number("clip", clip), None if delta is None else check_delta(delta)
    q = 1.0 if rate is None else rate
    limits: dict[str, Any] = {
        "k": k,
        "rate": q,
        "clients": clients,
        "max_rounds": max_rounds,
        "max_noise": max_noise,
    }
    case = case_of(**limits)
    wanted = landmarks(max_rounds, last_at_limit(limits)) if rounds is None else [rounds]
    rows = [_row(t, limits, delta, clip, k_interval) for t in wanted]
    answer: dict[str, Any] = limits | {
        "rate": rate,
        "clip": clip,
        "delta": delta,
        "k_interval": k_interval,
        "case": case,
        "rows": rows,
    }
    if max_epsilon is not None:
        assert rate is not None
        assert delta is not None
        found = best_under_budget(
            max_epsilon,
            delta=delta,
            k=k,
            rate=rate,
            clients=clients,
            max_rounds=max_rounds,
            clip=clip,
            max_noise=max_noise,
        )
        answer["recommended"] = asdict(found)
        answer["config"] = config_text(
            {
                "data": {"clients": clients},
                "method": {"name": dp_fedsgd.NAME},
                "privacy": {
                    "epsilon": max_epsilon,
                    "rate": rate,
                    "clip": clip,
                    "delta": delta,
                    "accountant": "rdp",  # whose noise it was chosen for
                },
                "train": {"rounds": found.rounds},
            }
        )
    return answer


def last_at_limit(limits: dict[str, Any]) -> int | None:
    """In case II, the largest number of rounds at which the limit on noise binds."""
    if limits["max_noise"] is None:
        return None
    crossing = limits["rate"] * limits["clients"] / (limits["k"] * limits["max_noise"] ** 2)
    return math.floor(crossing) if 1 <= crossing < limits["max_rounds"] else None


def landmarks(last: int, crossing: int | None = None) -> list[int]:
    """The numbers of rounds to show: 1, 2, 5, 10, ..., the last, and where the limit stops binding.

    >>> landmarks(200, 45)
    [1, 2, 5, 10, 20, 45, 46, 50, 100, 200]
    """
    ladder = [step * 10**power for power in range(len(str(last))) for step in (1, 2, 5)]
    around = [] if crossing is None else [crossing, crossing + 1]
    return sorted({t for t in [*ladder, *around, last] if t <= last})


def _row(
    rounds: int,
    limits: dict[str, Any],
    delta: float | None,
    clip: float,
    k_interval: tuple[float, float] | None,
) -> dict[str, Any]:
    low, high = pareto_noise(rounds, **limits)
    exact = pareto_noise(rounds, **limits, exact=True)
    k, rate, clients = limits["k"], limits["rate"], limits["clients"]
    f1, f2 = objectives(rounds, high, rate, k=k, clients=clients)
    row: dict[str, Any] = {
        "rounds": rounds,
        "noise": [low, high],
        "exact": [exact[0], exact[1] if math.isfinite(exact[1]) else None],
        "f1": float(f1),
        "f2": float(f2),
    }
    if k_interval is not None:  # a larger k means less noise
        row["noise_interval"] = [
            noise_for(rounds, k=end, rate=rate, clients=clients)
            for end in (k_interval[1], k_interval[0])
            if end > 0
        ]
    if delta is not None:
        row["noise_multiplier"] = multiplier_of(high, rate=rate, clients=clients, clip=clip)
        try:
            row["epsilon"] = budget_of(
                high, rate=rate, clients=clients, clip=clip, rounds=rounds, delta=delta
            )
        except InvalidInput:  # outside the accountant's range
            row["epsilon"] = None
    return row


@dataclass(frozen=True)
class Setting:
    """Theory's answer: how many rounds with how much noise, and the real epsilon they cost."""

    rounds: int
    noise_level: float
    noise_multiplier: float
    epsilon: float  # the budget, which this noise multiplier spends
    f1: float
    f2: float


def best_under_budget(
    epsilon: float,
    *,
    delta: float,
    k: float,
    rate: float,
    clients: int,
    max_rounds: int,
    clip: float = 1.0,
    max_noise: float | None = None,
) -> Setting:
    """The number of rounds with the lowest f1 if the noise is what the accountant requires: real
    epsilon in place of the proxy f2.

    More rounds need more noise, so f1 first falls and then rises with T; the T with the lowest f1
    is found by bisection on the slope.
    """
    last = whole_number("max_rounds", max_rounds, 1)
    limit = math.inf if max_noise is None else positive_number("max_noise", max_noise)
    seen: dict[int, Setting] = {}

    def at(rounds: int) -> Setting:
        if rounds not in seen:
            multiplier = noise_multiplier(epsilon, delta, rate, rounds)
            level = noise_level_of(
                multiplier, rate=rate, clients=clients, clip=positive_number("clip", clip)
            )
            f1, f2 = objectives(
                rounds, level, rate, k=k, clients=whole_number("clients", clients, 1)
            )
            seen[rounds] = Setting(rounds, level, multiplier, epsilon, float(f1), float(f2))
        return seen[rounds]

    low, high = 1, last
    while low < high:
        middle = (low + high) // 2
        better_later = at(middle + 1).f1 < at(middle).f1 and at(middle + 1).noise_level <= limit
        low, high = (middle + 1, high) if better_later else (low, middle)
    found = at(low)
    if not found.noise_level <= limit:
        raise Refused(
            f"epsilon {epsilon:g} needs noise level {found.noise_level:.4g} even for one round, "
            f"above max_noise = {max_noise:g}; raise epsilon or max_noise, use more clients or a "
            "smaller clip"
        )
    if found.noise_multiplier <= NOISE_RANGE[0]:
        raise Refused(
            f"epsilon {epsilon:g} needs less noise than the accountant can handle; use a smaller "
            "epsilon"
        )
    return found
