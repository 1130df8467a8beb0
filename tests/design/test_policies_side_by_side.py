"""Policies side by side, as a picture."""

from __future__ import annotations

import numpy as np

import fedspend
from fedspend.planning.influence import Course
from fedspend.report.plots import draw

TERMS = {"delta": 1e-3, "rounds": 8, "rate": 0.9}
BUDGETS = [2.0] * 3 + [8.0] * 2


def test_policies_are_shown_with_influence_and_what_is_left_of_their_noise():
    terms = TERMS | {"accountant": "rdp"}
    plans = {
        "uniform": fedspend.plan(BUDGETS, policy="uniform", **terms),
        "optimal": fedspend.plan(BUDGETS, policy="optimal", contraction=0.8, **terms),
    }
    figure = draw(plans, None)
    titles = [axes.get_title(loc="left") for axes in figure.axes]
    assert titles == ["Privacy spent", "Noise multiplier", "Influence", "Left in the final model"]
    h = Course(8).influence(0.8)
    assert np.allclose(figure.axes[2].lines[0].get_ydata(), h)
    for line, made in zip(figure.axes[3].lines, plans.values(), strict=True):
        left = h * made.noise_of_average
        assert np.allclose(line.get_ydata(), left)
        assert f"{np.sqrt((left**2).sum()):.3g} in all" in line.get_label()
    alone = draw({"uniform": plans["uniform"]}, None)
    assert len(alone.axes) == 2
    without = draw({"uniform": plans["uniform"], "again": plans["uniform"]}, None)
    assert "if the contraction is 0.9" in without.axes[2].get_ylabel()
