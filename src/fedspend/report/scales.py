"""Chart scales, linear and logarithmic, with round tick values and labels that do not overlap."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SHARE = 0.2  # of a scale for shares that does not begin at zero
WIDE_RANGE = 12  # above this ratio, small values vanish on a linear scale


@dataclass(frozen=True)
class Scale:
    """Maps `low..high` to `start..end`; on a screen y grows downwards, so `end` may be smaller."""

    low: float
    high: float
    start: float
    end: float
    ticks: tuple[float, ...]
    log: bool = False

    def __call__(self, value: float) -> float:
        low, high, at = (math.log(v) if self.log else v for v in (self.low, self.high, value))
        return self.start + (at - low) / (high - low) * (self.end - self.start)


def value_scale(
    values: Sequence[float], start: float, end: float, *, zero: bool, share: bool = False
) -> Scale:
    """A scale for all values that ends on round numbers.

    It is logarithmic if a linear one would hide small values. A linear one begins at zero if asked
    to, and whenever the smallest value is less than half the largest, so that no change looks
    larger than it is. A share is at most 1 and always on a
    linear scale.
    """
    low, high = min(values), max(values)
    if not share and low > 0 and high > WIDE_RANGE * low:
        return _log_scale(low, high, start, end)
    if low >= 0 and (zero or low < high / 2):
        low = 0.0
    if share and high - low < LEAST_SHARE:  # a difference of one point must look like one
        low = min(max(0.0, (low + high - LEAST_SHARE) / 2), 1 - LEAST_SHARE)
        high = max(high, low + LEAST_SHARE)
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = abs(high) / 2 or 0.5  # one value: put it in the middle
        low, high = (0.0 if zero and low >= 0 else low - margin), high + margin
    step = nice_step((high - low) / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    if share and last * step > 1 >= high:
        last -= 1
    ticks = tuple(n * step for n in range(first, last + 1))
    return Scale(ticks[0], max(ticks[-1], high), start, end, ticks)


def _log_scale(low: float, high: float, start: float, end: float) -> Scale:
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    for digits in ((1, 2, 5), (1, 3), (1,)):
        ticks = [
            d * 10.0**k for k in decades for d in digits if low / 1.2 <= d * 10.0**k <= high * 1.2
        ]
        if len(ticks) <= 7:
            break
    ticks = ticks[:: math.ceil(len(ticks) / 7)] if ticks else [low, high]
    return Scale(
        min(low / 1.1, ticks[0]), max(high * 1.1, ticks[-1]), start, end, tuple(ticks), log=True
    )


def round_scale(first: float, last: float, start: float, end: float, room: int) -> Scale:
    """A scale for rounds with about `room` ticks: first, last, and round numbers between."""
    if last <= first:
        return Scale(first - 0.5, first + 0.5, start, end, (first,))
    step = max(1.0, nice_step((last - first) / room))
    step = 5.0 if step == 2.5 else step
    inner = [n * step for n in range(math.ceil(first / step), math.floor(last / step) + 1)]
    kept = [tick for tick in inner if first + 0.6 * step < tick < last - 0.6 * step]
    return Scale(first, last, start, end, (first, *kept, last))


def nice_step(rough: float) -> float:
    """The smallest of 1, 2, 2.5, 5, 10 times a power of ten that is at least `rough`.

    >>> nice_step(0.07), nice_step(3), nice_step(0.21)
    (0.1, 5.0, 0.25)
    """
    rough = max(rough, 1e-300)  # a range of denormal numbers may underflow to zero
    power = 10.0 ** math.floor(math.log10(rough))
    return next(
        (m * power for m in (1.0, 2.0, 2.5, 5.0) if m * power >= rough * (1 - 1e-9)), 10.0 * power
    )


def text_width(words: str) -> float:
    """A rough upper estimate: the widest of the usual fonts, bold, at 12 pixels."""
    return sum(
        5.0 if c in " .,:;'|!ijlft-" else 12.5 if c in "mwMW@<>%…" or ord(c) > 0x2E80 else 8.7
        for c in words
    )


def apart(places: Sequence[float], gap: float, low: float, high: float) -> list[float]:
    """The places, in order, moved as little as needed to be `gap` apart and within `low..high`.

    >>> apart([10, 12, 50], 10, 0, 60)
    [6.0, 16.0, 50.0]
    """
    order = sorted(range(len(places)), key=lambda n: places[n])
    gap = min(gap, (high - low) / max(1, len(places) - 1))
    # (place of the first label, number of labels) of labels that touch
    blocks: list[tuple[float, int]] = []

    def inside(first: float, count: int) -> float:
        return min(max(first, low), max(low, high - (count - 1) * gap))

    for n in order:
        first, count = inside(float(places[n]), 1), 1
        while blocks and blocks[-1][0] + blocks[-1][1] * gap > first:
            before, size = blocks.pop()
            middle = (before + (size - 1) * gap / 2) * size + (
                first + (count - 1) * gap / 2
            ) * count
            count += size
            first = inside(middle / count - (count - 1) * gap / 2, count)
        blocks.append((first, count))
    moved = [first + k * gap for first, count in blocks for k in range(count)]
    result = [0.0] * len(places)
    for n, place in zip(order, moved, strict=True):
        result[n] = place
    return result
