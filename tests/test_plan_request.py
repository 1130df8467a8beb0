"""A request says all that a plan of clients needs, and keeps together what belongs to a client."""

from __future__ import annotations

import inspect
from dataclasses import MISSING, FrozenInstanceError, fields

import numpy as np
import pytest

from fedspend import plan
from fedspend.planning.request import PlanRequest

REQUEST = PlanRequest(
    epsilons=np.array([2.0, 4.0, 8.0]),
    clients=("a", "b", "c"),
    delta=1e-3,
    rounds=4,
    rate=0.5,
    saving_rate=np.array([0.2, 0.3, 0.4]),
    transition=3,
)
# a config asks for the usual noise by these; from Python the noise itself is given
USUAL = ("bit", "metric")


def test_it_has_every_argument_of_the_planner_with_the_same_default():
    wanted = {
        name: one.default
        for name, one in inspect.signature(plan).parameters.items()
        if name not in ("progress", "config", "overrides")
    }
    # ids have entered when a request is made, and options are a dict from the start
    assert wanted.pop("clients") is wanted.pop("options") is None
    for one in fields(PlanRequest):
        if one.name not in ("clients", "options", *USUAL):
            default = wanted.pop(one.name)
            # None stands for what has no default: the planner also takes a config in its place
            assert default == one.default or (default is None and one.default is MISSING)
    assert wanted == {}


def test_it_asks_for_the_plan_that_its_values_ask_for():
    values = {name: value for name, value in vars(REQUEST).items() if name not in USUAL}
    assert REQUEST.plan().hash == plan(**values).hash
    with pytest.raises(FrozenInstanceError):
        REQUEST.rounds = 5


def test_who_is_left_out_takes_everything_along():
    some = REQUEST.of(np.array([True, False, True]))
    assert some.clients == ("a", "c")
    assert some.epsilons.tolist() == [2.0, 8.0]
    assert some.saving_rate.tolist() == [0.2, 0.4]
    assert (some.transition, some.rounds) == (3, 4)
    assert REQUEST.clients == ("a", "b", "c")
