"""What the server makes of a noised mean: ours by name, or a function of your own.

Guarantee: a step sees releases and what it remembers of them, never data, so it costs no privacy
whatever it does. What it returns must be finite and of the model's size.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from fedspend.basics.arrays import Float32Array
from fedspend.basics.registry import Entry, Registry
from fedspend.errors import InvalidInput

# (parameters, noised mean update, two vectors that it remembers, which begin as zeros, server_lr):
# the new parameters, and what to remember
OwnStep = Callable[[Any, Any, Any, Any, float], tuple[Any, Any, Any]]


@dataclass(frozen=True)
class ServerStep(Entry):
    """`own` is a user's function; None for ours, which are in `rounds`."""

    own: OwnStep | None = None


SERVER_STEPS: Registry[ServerStep] = Registry(
    "server optimizer",
    ServerStep("sgd", "adds the update, with momentum if that is set"),
    ServerStep("adam", "FedAdam (Reddi et al. 2021)"),
    ServerStep("yogi", "FedYogi (Reddi et al. 2021)"),
    section="train",
)


def own_step(
    function: OwnStep,
    parameters: Float32Array,
    update: Float32Array,
    first: Float32Array,
    second: Float32Array,
    lr: float,
) -> tuple[Float32Array, Float32Array, Float32Array]:
    """A user's step; it gets copies, so that it cannot change what is stored."""
    size = parameters.size
    first, second = (
        one.copy() if one.size else np.zeros(size, np.float32) for one in (first, second)
    )
    found: object = function(parameters.copy(), update.copy(), first, second, lr)
    if not (isinstance(found, tuple | list) and len(found) == 3):
        raise InvalidInput(
            "your server step must give three vectors: parameters, and two to remember; got "
            f"{type(found).__name__}"
        )
    vectors = [np.asarray(one, dtype=np.float32) for one in found]
    for name, one in zip(("parameters", "first", "second"), vectors, strict=True):
        if one.shape != (size,) or not np.isfinite(one).all():
            raise InvalidInput(
                f"your server step must give finite vectors of {size} numbers; {name} has shape "
                f"{one.shape}" + ("" if one.shape != (size,) else " and is not finite")
            )
    return vectors[0], vectors[1], vectors[2]
