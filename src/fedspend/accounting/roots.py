"""Many one-dimensional roots at once, each approached from the safe side."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fedspend.basics.arrays import FloatArray, IntArray

Evaluate = Callable[[FloatArray, IntArray], tuple[FloatArray, FloatArray | None]]


def safe_roots(
    evaluate: Evaluate, start: FloatArray, low: float, high: float, tolerance: float
) -> FloatArray:
    """For each element, the smallest x in [low, high] with `gap(x) <= 0`, for a decreasing `gap`.

    `evaluate(x, rows)` returns the gaps at `x` of the elements `rows` and, if it knows them, their
    slopes; without slopes, the chord of the bracket is used. Newton or secant steps stay inside a
    bracket, which is bisected now and then. The answer is the upper end of the bracket, where
    `gap <= 0` was seen to hold; it is NaN where that fails even at `high`.
    """
    n = start.size
    x = np.clip(start, low, high)
    left, left_gap = np.full(n, -np.inf), np.full(n, np.nan)
    right, right_gap = np.full(n, np.inf), np.full(n, np.nan)
    stride = np.zeros(n)
    active = np.arange(n)
    for iteration in range(300):
        gap, slope = evaluate(x[active], active)
        over = ~(gap <= 0)
        left[active[over]], left_gap[active[over]] = x[active[over]], gap[over]
        right[active[~over]], right_gap[active[~over]] = x[active[~over]], gap[~over]

        at_end = np.where(over, x[active] >= high, x[active] <= low)
        close = ~over & (gap > -tolerance)
        width = right[active] - left[active]
        keep = ~(at_end | close | (width < 1e-14))
        active, gap, width = active[keep], gap[keep], width[keep]
        if not active.size:
            break

        bracketed = np.isfinite(width)
        if slope is None:
            with np.errstate(invalid="ignore", divide="ignore"):
                chord = (right_gap[active] - left_gap[active]) / width
            slope = np.where(bracketed & (chord < 0), chord, -2.0)
        else:
            slope = slope[keep]
        # Aim half a tolerance past the root, so that the last step lands on the safe side; the clip
        # below prevents wild leaps far away.
        step = (gap + tolerance / 2) / -slope
        if iteration > 4:  # no bracket by now means that the steps are too short
            step = np.where(
                bracketed,
                step,
                np.sign(step) * np.maximum(np.abs(step), 2 * np.abs(stride[active])),
            )
        stride[active] = step = np.clip(step, -0.5, 0.5)
        proposal = x[active] + step
        inside = (proposal > left[active]) & (proposal < right[active])
        with np.errstate(invalid="ignore"):
            halved = (left[active] + right[active]) / 2
        stalled = bracketed & (iteration % 6 == 5)
        x[active] = np.clip(np.where((inside & ~stalled) | ~bracketed, proposal, halved), low, high)
    return np.where(np.isfinite(right), right, np.nan)
