"""Figure 1 of Gu et al. (2023): the solutions of Theorem 3, looked up by trying every T. No
training, and nothing of `fedspend.design`.

With a given rate q, f2 = sqrt(q T) / sigma depends on s = sigma^2 / T alone. So at every level of
privacy the solution is the T with the lowest f1 = 1/T + k s T / (q K); as that grows with s, no
setting of another level beats it in both. Here every whole T within the limits is tried, and held
against what the theorem prints (Equations 21 to 23).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import gu
import numpy as np
from judging import Verdict, together
from tables import markdown

LEVELS = 400  # of privacy
REACH = 10.0  # how far levels go beyond those that the curve has


@dataclass(frozen=True)
class Case:
    """Theorem 3 has one formula without a limit on noise, and one with it (II and III differ in
    where the curve meets the limit).
    """

    name: str
    max_rounds: int
    max_noise: float | None = None
    k: float = gu.PAPER_K["logistic"][0]
    rate: float = 1.0
    clients: int = 10

    @property
    def share(self) -> float:
        return self.rate * self.clients

    @property
    def limits(self) -> str:
        noise = "" if self.max_noise is None else f", sigma up to {self.max_noise:g}"
        return f"T up to {self.max_rounds}{noise}"

    @property
    def curve(self) -> tuple[float, float]:
        """The proxies at which `k sigma^2 T = q K` begins, at one round, and ends."""
        return (
            self.proxy(self.share / self.k),
            self.proxy(self.share / (self.k * self.max_rounds**2)),
        )

    def proxies(self) -> np.ndarray:
        """Levels of f2: from the most private one in reach, or beyond where the curve begins, to
        beyond where it ends.
        """
        begins, ends = self.curve
        lowest = begins / REACH if self.max_noise is None else self.proxy(self.max_noise**2)
        return np.geomspace(lowest, REACH * ends, LEVELS)

    def proxy(self, s: float) -> float:
        return math.sqrt(self.rate / s)

    def best(self, proxy: float) -> int:
        """The T with the lowest f1 at this privacy, of all that are in reach."""
        s = self.rate / proxy**2
        rounds = np.arange(1, self.max_rounds + 1)
        f1 = 1 / rounds + self.k * s * rounds / self.share
        if self.max_noise is not None:
            f1[np.sqrt(s * rounds) > self.max_noise * (1 + 1e-9)] = np.inf
        return int(rounds[f1.argmin()])

    def printed(self, proxy: float) -> float | None:
        """The T that the theorem has at this privacy, not rounded; None if it has none."""
        s = self.rate / proxy**2
        curve = math.sqrt(self.share / (self.k * s))  # k sigma^2 T = q K
        if self.max_noise is None:
            return curve if 1 <= curve <= self.max_rounds else None
        return min(curve, self.max_noise**2 / s, self.max_rounds)


# The figure has no numbers: k and the limits are those of Figure 3 for logistic regression, with
# the limit of case III that fits its condition.
CASES = (
    Case("I", gu.ROUNDS),
    *(Case(name, *limits) for name, limits in gu.CASES["logistic"].items()),
)


@dataclass(frozen=True)
class Compared:
    """A case of the theorem beside what trying finds. `missing` are the levels at which the theorem
    has no solution: the proxy, and the T that is best there.
    """

    case: Case
    right: int  # levels at which its T, rounded up or down, is the best one
    wrong: int
    missing: tuple[tuple[float, int], ...]

    @property
    def verdict(self) -> str:
        if self.wrong:
            return "not reproduced"
        return "reproduced in part" if self.missing else "reproduced"

    @property
    def gaps(self) -> str:
        """Where the theorem has none, and which T is best there."""
        begins, ends = self.case.curve
        below = {best for proxy, best in self.missing if proxy < begins}
        above = {best for proxy, best in self.missing if proxy > ends}
        told = [f"T = {best} at f2 below {begins:.2g}" for best in sorted(below)]
        told += [f"T = {best} at f2 above {ends:.3g}" for best in sorted(above)]
        return ", ".join(told)


def compared(case: Case) -> Compared:
    right, wrong, missing = 0, 0, []
    for proxy in case.proxies().tolist():
        printed, best = case.printed(proxy), case.best(proxy)
        if printed is None:
            missing.append((proxy, best))
        elif best in (math.floor(printed + 1e-9), math.ceil(printed - 1e-9)):
            right += 1
        else:
            wrong += 1
    return Compared(case, right, wrong, tuple(missing))


def judged(cases: Sequence[Case]) -> Verdict:
    found = [compared(case) for case in cases]
    told = []
    for one in found:
        said = f"case {one.case.name}: {one.right} of {one.right + one.wrong}"
        told.append(said + (f", but no solution with {one.gaps}" if one.missing else ""))
    return together([one.verdict for one in found]), (
        "computed, below: levels of privacy at which Theorem 3, which the figure draws, has the "
        f"best T, of those at which it has one: {'; '.join(told)}"
    )


def table(cases: Sequence[Case]) -> str:
    body = [
        [
            f"case {one.case.name}: {one.case.limits}",
            str(one.right + one.wrong + len(one.missing)),
            str(one.right + one.wrong),
            str(one.right),
            one.gaps or "none",
        ]
        for one in map(compared, cases)
    ]
    return markdown(
        ["Theorem 3", "levels of f2", "it has a T at", "the best T at", "best where it has none"],
        body,
    )
