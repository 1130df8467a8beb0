"""Which noise a run has.

Guarantee: a real run draws its noise in whole numbers unless its config says otherwise, because the
last digits of floating-point noise give away what it was added to. (If the config does, the run has
a grid all the same: the finest that doubles hold, `noise.grid.FINE_BITS`.)
"""

from __future__ import annotations

from fedspend.configuration.config import Config
from fedspend.configuration.data_inputs import is_real
from fedspend.configuration.method_name import method_of
from fedspend.planning.protocol import AnyPlan
from fedspend.server.methods.table import METHODS


def noise_of(config: Config, plan: AnyPlan | None = None) -> str:
    """As the config says; else what the `plan` is for, if there is one; else discrete in a real run
    of clients.

    Records have their noise at the client (`client.record_steps`), and no other kind.
    """
    if config.privacy.noise is not None:
        return config.privacy.noise
    method = method_of(config)
    if method in METHODS and METHODS[method].unit != "client":
        return "central"
    if plan is not None:
        return noise_for(plan)
    return "discrete" if is_real(config) else "central"


def noise_for(plan: AnyPlan) -> str:
    """What a plan is for, where nothing else says it."""
    return "discrete" if plan.discrete else "central"


def is_discrete(config: Config, plan: AnyPlan | None = None) -> bool:
    return noise_of(config, plan).startswith("discrete")
