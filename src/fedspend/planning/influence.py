"""How much of a round's noise is left in the model that is handed out: its influence `h_t`.

One round leaves the part rho of a push against the model (the contraction): clients pull it back.
With weights `a_k` on the iterates (the last one, or the mean of a tail),

    h_t = sum_{k >= t} a_k prod_{t < j <= k} rho_j,      rho_j = rho ** (lr_j / lr_1)

and the noise in the handed-out model has variance `sum_t (h_t c_t s_t / (N qbar_t))^2` in each
coordinate, for clip `c_t`, noise multiplier `s_t` and mean sampling rate `qbar_t`. Server momentum
carries a push on, so its influence is found by running the recursion.

This is exact for quadratic losses and updates below the clip, and a heuristic elsewhere. It decides
where noise goes, never how much privacy is spent.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedspend.basics.arrays import FloatArray
from fedspend.errors import InvalidInput, finite_number, whole_number
from fedspend.planning.clipping import per_round

# without a contraction, plans must do well for all of these
CONTRACTIONS = (1.0, 0.99, 0.97, 0.95, 0.9, 0.8, 0.7, 0.6, 0.5)
TYPICAL = 0.9  # for what a plan says that it expects
MOST_LOSS = 1.01  # noise over uniform's, under the worst of these contractions


@dataclass(frozen=True, eq=False)
class Course:
    """What is known before training about how a push against the model goes on."""

    rounds: int
    tail: int = 1  # the model that is handed out is the mean of this many last iterates
    momentum: float = 0.0  # of the server
    learning_rates: FloatArray | None = None  # (rounds,) of the clients; None: they stay the same

    def influence(self, contraction: float, tail: int | None = None) -> FloatArray:
        """`h_t` of every round, (rounds,).

        >>> Course(3).influence(0.5).tolist(), Course(3, tail=2).influence(0.5).tolist()
        ([0.25, 0.5, 1.0], [0.375, 0.75, 0.5])
        """
        return influence(
            self.contractions(contraction), self.tail if tail is None else tail, self.momentum
        )

    def contractions(self, contraction: float) -> FloatArray:
        """That of each round: a smaller learning rate pulls back less."""
        if self.learning_rates is None:
            return np.full(self.rounds, contraction)
        each: FloatArray = contraction ** (self.learning_rates / self.learning_rates[0])
        return each


@dataclass(frozen=True, eq=False)
class Foresight:
    """The course of training, with the contraction or a measured influence."""

    course: Course
    contraction: float | None
    measured: FloatArray | None = None  # (rounds,)

    @property
    def assumed(self) -> tuple[float, ...]:
        """The contractions that a plan must do well for: the one that is known, or many."""
        return CONTRACTIONS if self.contraction is None else (self.contraction,)

    def importance(self, clip_factors: FloatArray) -> FloatArray:
        """`(h_t c_t)^2`, (assumptions, rounds): how much a round's squared multiplier counts."""
        squares: FloatArray = self._influences(self.course.tail) ** 2 * clip_factors**2
        return squares

    def expected(self, noise: FloatArray, uniform: FloatArray) -> dict[str, Any]:
        """What a plan states: its noise in the model over uniform's, for noise `c_t s_t` by round.

        It is a ratio of variances. Rates are constant in both, so they drop out.
        """
        tail, rounds = self.course.tail, self.course.rounds
        if self.measured is not None:
            return {
                "tail": tail,
                "influence": self.measured.tolist(),
                "variance_of_uniform": self.ratios(noise, uniform, tail)[0],
            }
        at = self.assumed.index(TYPICAL if self.contraction is None else self.contraction)
        ratios = self.ratios(noise, uniform, tail)
        other = min(8, rounds) if tail == 1 else 1
        return {
            "contraction": self.contraction,
            "tail": tail,
            "server_momentum": self.course.momentum,
            "influence": self._influences(tail)[at].tolist(),
            "variance_of_uniform": ratios[at],
            "with_other_tail": [other, self.ratios(noise, uniform, other)[at]],
            **({} if self.contraction is not None else {"assumed": TYPICAL, "worst": max(ratios)}),
        }

    def allows(self, expected: Mapping[str, Any]) -> bool:
        """Whether this is no worse than uniform, or hardly so where the contraction is unknown."""
        if self.contraction is None and self.measured is None:
            return bool(expected["worst"] <= MOST_LOSS)
        return bool(expected["variance_of_uniform"] <= 1)

    def ratios(self, noise: FloatArray, uniform: FloatArray, tail: int) -> list[float]:
        squares = self._influences(tail) ** 2
        ratios: list[float] = ((squares @ noise**2) / (squares @ uniform**2)).tolist()
        return ratios

    def _influences(self, tail: int) -> FloatArray:
        if self.measured is not None:
            return self.measured[None, :]
        return np.array([self.course.influence(rho, tail) for rho in self.assumed])


def influence(contractions: FloatArray, tail: int, momentum: float) -> FloatArray:
    """`h_t` for the contraction of each round, read backwards.

    With model w and velocity v, a round does `v <- momentum v - (1 - rho) w + push`, `w <- w + v`.
    What is handed out is linear in (w, v) after each round; going back one round at a time gives
    the weights of both.
    """
    rounds = contractions.size
    of_model, of_velocity = 0.0, 0.0  # weights of (w, v) after the round, in what is handed out
    h = np.empty(rounds)
    for t in range(rounds - 1, -1, -1):
        of_model += 1 / tail if t >= rounds - tail else 0.0
        pushed = of_model + of_velocity  # a push enters v, and w through it
        h[t] = pushed
        of_model, of_velocity = of_model - (1 - contractions[t]) * pushed, momentum * pushed
    return h


def checked_course(
    rounds: int, tail: Any, momentum: Any, learning_rates: FloatArray | None
) -> Course:
    """The course, with a tail of at most all rounds that are planned, as in training."""
    span = min(rounds, whole_number("tail", 1 if tail is None else tail, 1))
    beta = finite_number("server_momentum", momentum)
    if not 0 <= beta < 1:
        raise InvalidInput(f"server_momentum must be at least 0 and below 1, got {momentum!r}")
    return Course(rounds, span, beta, learning_rates)


def checked_influence(influence: Any, contraction: float | None, rounds: int) -> FloatArray | None:
    """A measured influence, one number per round; that of rounds not planned is dropped."""
    if influence is None:
        return None
    if contraction is not None:
        raise InvalidInput(
            "contraction and influence both say how a push against the model goes on; drop one"
        )
    h = per_round("influence", list(influence)[: max(rounds, 1)], rounds)
    if not (np.all(h >= 0) and h.max() > 0):
        raise InvalidInput(
            f"influence must not be negative, nor 0 in all rounds; got {h.min():g} to {h.max():g}"
        )
    return h


FORMAT = "fedspend-influence"


def proposed_tail(path: str | Path) -> int:
    """The tail that `fedspend design influence` proposed, together with noise planned for it."""
    content = _influence_file(path)
    tail = content.get("proposed_tail")
    if not (type(tail) is int and tail >= 1):
        raise InvalidInput(
            f"{path} proposes no tail: losses could not be compared; give one as a number"
        )
    return tail


def read_influence(path: str | Path, tail: int) -> list[float]:
    """The influence of each round from a file that `fedspend design influence` wrote.

    It is for one tail, and a file has several.
    """
    content = _influence_file(path)
    by_tail, rounds = content["influence"], content["rounds"]
    if min(tail, rounds) not in by_tail:
        raise InvalidInput(
            f"{path} has no influence for a tail of {tail}, only for "
            f"{', '.join(map(str, sorted(by_tail)))}; measure it with train.tail_average={tail}"
        )
    found: list[float] = by_tail[min(tail, rounds)]
    return found


def _influence_file(path: str | Path) -> dict[str, Any]:
    """The file, with its influences as numbers by tail."""
    try:
        content = json.loads(Path(path).read_text(encoding="utf-8"))
        by_tail = {int(one): [float(h) for h in hs] for one, hs in content["influence"].items()}
        rounds = int(content["rounds"])
    except OSError as error:
        raise InvalidInput(f"cannot read the influence {path}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError, AttributeError):
        raise InvalidInput(
            f"{path} is not a file of influences; make one with fedspend design influence"
        ) from None
    if content.get("format") != FORMAT:
        raise InvalidInput(
            f"{path} is not a file of influences: its format is {content.get('format')!r}, not "
            f"{FORMAT!r}"
        )
    return dict(content) | {"influence": by_tail, "rounds": rounds}


def checked_contraction(contraction: Any) -> float | None:
    """A contraction in (0, 1], or None for none."""
    if contraction is None:
        return None
    value = finite_number("contraction", contraction)
    if not 0 < value <= 1:
        raise InvalidInput(
            f"contraction must lie in (0, 1], got {contraction!r}: it is how much of a small "
            "change to the model survives one round"
        )
    return value


def expectation(expected: Mapping[str, Any]) -> str:
    """What a plan by `optimal` expects, and what it assumed, on one short line. The numbers behind
    it (tails, deviations) are in `expected` itself.

    >>> expectation({"variance_of_uniform": 0.9, "contraction": None, "assumed": 0.9, "tail": 1})
    'about 10% less noise (variance) in the final model than uniform, if contraction is 0.9'
    """
    gain = _gain(expected["variance_of_uniform"])
    if "contraction" not in expected:
        assumed = ", by the influence that was measured"
    elif expected["contraction"] is None:
        assumed = f", if contraction is {expected['assumed']:g}"
    else:
        assumed = f", at contraction {expected['contraction']:g}"
    tail = expected.get("tail", 1)
    return f"{gain}{assumed}{'' if tail == 1 else f', with a tail of {tail}'}"


def _gain(ratio: float) -> str:
    if ratio > 0.99:
        return f"uniform is within {max(0.0, 1 - ratio):.1%} of the least noise in the final model"
    return f"about {1 - ratio:.0%} less noise (variance) in the final model than uniform"
