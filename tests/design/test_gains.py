"""Where saving pays: a map over contraction and tail, and policies side by side."""

from __future__ import annotations

import json

import numpy as np
import pytest

import fedspend
from fedspend.cli.main import main
from fedspend.design.gains import gain_map
from fedspend.planning.influence import Course
from fedspend.planning.request import PlanRequest
from fedspend.report.gain_plot import draw as draw_map
from fedspend.report.plots import draw

TERMS = {"delta": 1e-3, "rounds": 8, "rate": 0.9}
FLAGS = ["--epsilon", "2:3,8:2", "--delta", "1e-3", "--rounds", "8", "--rate", "0.9"]
BUDGETS = [2.0] * 3 + [8.0] * 2


@pytest.mark.full
def test_every_number_of_the_map_is_what_a_plan_states():
    request = PlanRequest(np.array(BUDGETS), tuple("abcde"), method="idp-fedavg", **TERMS)
    seen = []
    found = gain_map(request, lambda done, total: seen.append((done, total)))
    assert found.tails == (1, 2, 4)
    assert seen[-1] == (10, 10)
    ratio = np.array(found.ratio)
    for rho, tail in ((0.9, 1), (0.5, 4), (1.0, 2)):
        made = fedspend.plan(
            BUDGETS, policy="optimal", contraction=rho, tail=tail, accountant="rdp", **TERMS
        )
        at = found.contractions.index(rho), found.tails.index(tail)
        assert ratio[at] == made.parameters["expected"]["variance_of_uniform"]
    assert ratio.max() <= 1
    assert np.all(np.diff(ratio[:, 0]) <= 0), "the more is corrected, the more late noise counts"
    assert ratio[0, 0] == pytest.approx(1.0), "nothing to gain where nothing is corrected"
    words = [text.get_text() for text in draw_map(found).axes[0].texts]
    assert words[0] == "as good"
    assert f"{ratio[-1, 0]:.2f}" in words


@pytest.mark.full
def test_the_command_writes_the_map(tmp_path, capsys):
    for name in ("gain.png", "gain.svg"):
        assert main(["plan", *FLAGS, "--gain-map", str(tmp_path / name), "--json"]) == 0
        assert (tmp_path / name).stat().st_size > 5_000
    found = json.loads(capsys.readouterr().out.split("}\n{")[-1].join(["{", ""]))
    assert np.array(found["variance_of_uniform"]).shape == (10, 3)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (["--policy", "uniform"], "cannot go with --policy"),
        (["--contraction", "0.9"], "cannot go with --contraction"),
        (["--compare", "uniform,optimal"], "cannot go with --compare"),
        (["-o", "plan.json"], "cannot go with --output"),
        (["--method", "rpdp"], "is for plans of clients"),
    ],
)
def test_flags_that_a_map_has_no_use_for_are_refused(flags, said, tmp_path, capsys):
    place = tmp_path / "gain.png"
    assert main(["plan", *FLAGS, "--gain-map", str(place), *flags]) == 2
    line = capsys.readouterr().err
    assert said in line
    assert line.count("\n") == 1
    assert not place.exists()
    assert main(["plan", *FLAGS, "--gain-map", str(tmp_path / "gain.txt")]) == 2


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
