"""The clip of each round, relative to the plan's clip.

When the clients' learning rate falls, their updates shrink; with a constant clip the noise stays as
large, and drowns them. A clip that follows the learning rate shrinks the noise with the updates.

Guarantee: this costs no privacy, since only the ratio of noise to clip is accounted. The factors
are planned: they depend on public settings only. A round whose clip would be 0 sends nothing, so it
is not planned at all.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput, finite_number

WORDS = ("lr", "constant")
# limit on the largest clip of a plan over its smallest
WIDEST = 1e6
# Updates and their noise are 32-bit numbers: what is too small for one is nothing beside a clip.
LEAST_CLIP, MOST_CLIP = 1e-30, 1e30
# Clips of single clients and rounds may be far from the plan's, and follow releases; their squares
# are still far from where doubles end.
SMALLEST_CLIP, LARGEST_CLIP = 1e-60, 1e60


@dataclass(frozen=True, eq=False)
class RoundClips:
    """`factors` of the rounds that are planned; `dropped` rounds at the end would have clip 0."""

    factors: FloatArray  # (rounds,)
    dropped: int = 0

    @property
    def constant(self) -> bool:
        return bool((self.factors == 1).all())


def check_clip(value: Any) -> float:
    """The clip of a plan.

    >>> check_clip(0.5)
    0.5
    """
    clip = finite_number("clip", value)
    if not LEAST_CLIP <= clip <= MOST_CLIP:
        raise InvalidInput(
            f"clip must be positive, from {LEAST_CLIP:g} to {MOST_CLIP:g}, got {clip!r}; choose "
            "one near the norm of an update"
        )
    return clip


def check_round_clips(clip: float, clips: RoundClips) -> None:
    """Refuse factors that make ordinary clips extreme."""
    low, high = (float(clip * one) for one in (clips.factors.min(), clips.factors.max()))
    if not (low >= SMALLEST_CLIP and high <= LARGEST_CLIP):
        raise InvalidInput(
            f"clip_schedule makes clips from {low:g} to {high:g}; every clip must be from "
            f"{SMALLEST_CLIP:g} to {LARGEST_CLIP:g}, so give factors near 1"
        )


def round_clips(
    asked: Any, rounds: int, learning_rates: FloatArray | None, method: str | None
) -> RoundClips:
    """The clips that `asked` means: "lr", "constant", one number per round, or None for a default.

    By default the clip follows learning rates that fall, where the method lets it.

    >>> round_clips("lr", 3, np.array([0.2, 0.1, 0.0]), None).factors.tolist()
    [1.0, 0.5]
    """
    allowed = _allowed(method)
    if asked is None:
        follows = allowed == "follows" and learning_rates is not None
        asked = "lr" if follows else "constant"
    if isinstance(asked, str) and asked == "constant":
        return RoundClips(np.ones(rounds))
    if allowed == "constant":
        raise InvalidInput(
            f"clip_schedule must be 'constant' under method {method!r}, whose clients send no "
            f"updates that shrink with the learning rate; got {asked!r}"
        )
    if isinstance(asked, str):
        return _following(asked, rounds, learning_rates)
    factors = per_round("clip_schedule", asked, rounds)
    if not np.all(factors > 0):
        raise InvalidInput(
            f"clip_schedule must be positive in every round, got {float(factors.min())!r}; plan "
            "fewer rounds to leave some out"
        )
    return RoundClips(_bounded(factors))


def _allowed(method: str | None) -> str:
    """Whether the clip of a method may differ by round; a plan without one is for updates."""
    from fedspend.server.methods.table import METHODS

    if method is None or method not in METHODS:
        return "follows"
    return METHODS[method].clip_schedule


def _following(asked: str, rounds: int, learning_rates: FloatArray | None) -> RoundClips:
    if asked != "lr":
        raise InvalidInput(
            "clip_schedule must be 'lr', 'constant', or a list of positive numbers, one per "
            f"round; got {asked!r}"
        )
    if learning_rates is None:
        raise InvalidInput(
            "clip_schedule 'lr' needs the learning rates of the rounds: give learning_rates, one "
            "per round"
        )
    factors = learning_rates / learning_rates[0]
    dropped = rounds - int(np.flatnonzero(factors > 0)[-1]) - 1
    kept = factors[: rounds - dropped]
    if not np.all(kept > 0):
        at = int(np.flatnonzero(~(kept > 0))[0])
        raise InvalidInput(
            f"the learning rate of round {at + 1} is 0, and later ones are not: no clip follows "
            "it; give clip_schedule as a list"
        )
    return RoundClips(_bounded(kept), dropped)


def checked_rates(learning_rates: Any, rounds: int) -> FloatArray | None:
    """Learning rates, one per round, of which the first is positive; None where they do not change.

    Only their ratios matter.
    """
    if learning_rates is None:
        return None
    rates = per_round("learning_rates", learning_rates, rounds)
    if not (rates[0] > 0 and np.all(rates >= 0)):
        raise InvalidInput(
            "learning_rates must not be negative, and the first must be positive; got "
            f"{float(rates[0])!r} first and {float(rates.min())!r} as the smallest"
        )
    return rates


def per_round(name: str, values: Any, rounds: int) -> FloatArray:
    """One finite number per round."""
    try:
        array = np.array(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise InvalidInput(f"{name} must be numbers, one per round; got {values!r}") from None
    if array.shape != (rounds,):
        raise InvalidInput(
            f"{name} must be one number per round: got {array.size} for {rounds} rounds"
        )
    if not np.all(np.isfinite(array)):
        bad = float(array[~np.isfinite(array)][0])
        raise InvalidInput(f"{name} must be finite numbers, got {bad!r}")
    return array


def _bounded(factors: FloatArray) -> FloatArray:
    if not factors.max() <= WIDEST * factors.min():
        raise InvalidInput(
            f"the clips of a plan must lie within a factor of {WIDEST:g} of each other, got "
            f"{factors.min():g} to {factors.max():g}"
        )
    return factors


def stretched(factors: FloatArray, dropped: int, begun: int, more: int) -> FloatArray:
    """The factors of a plan that gets `more` rounds: rounds that have begun keep theirs.

    The others have the same course over more rounds, as the learning rate then has.
    """
    if bool((factors == factors[0]).all()):
        return np.full(factors.size + more, factors[0])
    course = np.append(factors, np.zeros(dropped))
    longer = course.size + more
    place = np.linspace(0, course.size - 1, longer)
    anew: FloatArray = np.interp(place, np.arange(course.size), course)[: longer - dropped]
    anew[:begun] = factors[:begun]
    return anew
