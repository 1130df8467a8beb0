"""Scales, ticks and labels: where a number lands on the page."""

from __future__ import annotations

import math
import re
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedspend.report.charts import Chart, Reference, Series, describe, draw
from fedspend.report.scales import apart, round_scale, value_scale

VALUES = st.floats(-1e6, 1e6).map(lambda x: 0.0 if abs(x) < 1e-9 else x)


@given(st.lists(VALUES, min_size=1, max_size=20), st.booleans())
def test_a_scale_holds_its_values_and_has_few_ticks(values, zero):
    scale = value_scale(values, 100.0, 0.0, zero=zero)
    assert all(-0.01 <= scale(value) <= 100.01 for value in values)
    assert 1 <= len(scale.ticks) <= 8
    assert all(-0.01 <= scale(tick) <= 100.01 for tick in scale.ticks)
    if zero and min(values) >= 0 and not scale.log:
        assert scale.low == 0


@given(st.lists(st.floats(0, 1), min_size=1, max_size=20))
def test_shares_stay_on_a_linear_scale_up_to_one(values):
    scale = value_scale(values, 100.0, 0.0, zero=True, share=True)
    assert not scale.log
    if max(values) > 0.7:
        assert scale.high <= 1


@given(st.lists(st.floats(0, 200), min_size=1, max_size=12))
def test_labels_keep_apart_in_order_and_in_place(places):
    moved = apart(places, 14, 0, 200)
    order = sorted(range(len(places)), key=lambda n: places[n])
    gaps = [moved[b] - moved[a] for a, b in pairwise(order)]
    assert all(gap >= 13.999 for gap in gaps)
    assert all(-1e-6 <= place <= 200 + 1e-6 for place in moved)


@given(st.integers(0, 50), st.integers(0, 5000), st.integers(3, 12))
def test_rounds_are_whole_and_begin_and_end_with_a_tick(first, length, room):
    scale = round_scale(first, first + length, 0, 100, room)
    assert all(tick == int(tick) for tick in scale.ticks)
    assert (scale.ticks[0], scale.ticks[-1]) == (first, first + length)
    assert len(scale.ticks) <= room + 2


def test_gaps_and_lone_values_are_drawn_as_what_they_are():
    chart = Chart("Loss", "loss", (1, 2, 3, 4, 5), (Series("loss", (1.0, None, 2.0, 3.0, None)),))
    drawn = draw(chart)
    assert drawn.count("<circle") == 2  # round 1, in both sizes
    assert all(path.count("M") == 1 for path in re.findall(r' d="(.*?)"', drawn))
    assert describe(chart) == "Loss, by round. loss from 1.000 in round 1 to 3.000 in round 4."


def test_the_last_value_lands_where_the_scale_says():
    chart = Chart(
        "Accuracy",
        "accuracy",
        (1, 2),
        (Series("accuracy", (0.0, 1.0)),),
        (Reference(0.5, "half"),),
        percent=True,
    )
    path = re.findall(r'<path class="line s1" d="M(.*?)L(.*?)"', draw(chart))
    (x0, y0), (x1, y1) = ([float(n) for n in place.split()] for place in path[0])
    assert x0 < x1
    assert (y0, y1) == (260.0, 26.0)
    assert not math.isnan(x1)


@pytest.mark.parametrize(
    ("values", "share", "low", "high"),
    [
        ([2.0, 0.6], False, 0.0, 2.0),  # a loss that falls to a third looks like a third
        ([0.905, 0.912], True, 0.8, 1.0),  # one point of accuracy does not fill the chart
        ([0.002, 0.004], True, 0.0, 0.2),
        ([0.999, 1.0], True, 0.8, 1.0),
        ([100.0, 101.0], False, 100.0, 101.0),  # far from zero: as it is
    ],
)
def test_an_axis_does_not_dramatise(values, share, low, high):
    scale = value_scale(values, 100.0, 0.0, zero=False, share=share)
    assert scale.low == pytest.approx(low)
    assert scale.high == pytest.approx(high)
