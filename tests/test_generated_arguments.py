"""Generated bad arguments of `fedspend.train(clients=...)`: one clear error each, nothing left.

50 in `make test`, a quarter of FEDSPEND_BAD_INPUTS where that is set. The seed of each is its
number.
"""

import os
import random
import warnings

import numpy as np
import pytest
import torch

import fedspend
from fedspend.errors import FedspendError

HOW_MANY = int(os.environ.get("FEDSPEND_BAD_INPUTS", "200")) // 4
VALUES = (
    *(0, -1, -0.0, 1e-320, 1e308, 2**63, -(2**63), 10**40, 0.5, 7, True, False),
    *("", " ", "abc", "nan", "-inf", "x" * 5000, "../..", "/"),
    *("a\nb", "\x00", "\U0001f9ea", "\u202e"),
    *([], [[]], [0], [-1.0], [1, "a"], ["a", "a"], {}, {"a": 1}, [{}], [{"epsilon": -1}]),
    *(float("nan"), float("inf"), -float("inf")),
)


def an_argument(draw):
    """One argument of `train(clients=...)` that is something else."""
    rows = [(np.zeros((4, 3), np.float32), np.arange(4) % 2) for _ in range(3)]
    good = {
        "clients": rows,
        "model": torch.nn.Linear(3, 2),
        "plan": PLAN,
        "test": rows[0],
        "lr": 0.1,
        "batch_size": 2,
        "local_steps": 1,
        "randomness": "seeded",
        "seed": 0,
    }
    others = (
        *("momentum", "weight_decay", "proximal", "gradient_clip", "optimizer", "server_lr"),
        *("server_optimizer", "clipping", "noise", "bits", "loss", "metrics", "stop", "lr_end"),
        *("lr_schedule", "tail_average", "engine", "workers", "blur", "lus", "classes", "typo"),
        *("max_length", "local_epochs", "server_momentum"),
    )
    name = draw.choice((*good, *others))
    odd = (*VALUES, None, object(), np.zeros(2), np.float64("nan"), print, [rows[0]] * 2)
    value = draw.choice(odd)
    if name in ("clients", "test") and draw.random() < 0.7:
        x = np.zeros((4, 3), np.float32)
        value = draw.choice(
            (
                (x, np.arange(5)),
                (x * np.nan, np.arange(4) % 2),
                (x, np.full(4, 99)),
                (x, np.full(4, -1)),
                (x, np.array(["a"] * 4)),
                (x[:, :2], np.zeros(4, int)),
                (x.astype(object), np.zeros(4)),
                (x, None),
                (x,),
                "rows",
            )
        )
        value = [value, *rows[:2]] if name == "clients" else value
    return good | {name: value}, name


PLAN = None


@pytest.fixture(autouse=True, scope="module")
def a_plan():
    global PLAN
    PLAN = fedspend.plan(epsilons=[3.0] * 3, rounds=1, rate=1.0, delta=1e-3, accountant="rdp")
    yield
    PLAN = None


@pytest.mark.usefixtures("quick_verify")
@pytest.mark.parametrize("seed", range(HOW_MANY))
def test_a_bad_argument_is_one_clear_error(seed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, name = an_argument(random.Random(seed))
    said = ""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            fedspend.train(**arguments)
    except FedspendError as error:
        said = str(error)
    assert "\n" not in said, name
    assert not list(tmp_path.iterdir()), name
