"""A privacy budget for every single record: two-stage accounting, rates from budgets, the choice of
noise, plans. Does not need torch.

>>> from fedspend import records
>>> terms = dict(delta=1e-3, rounds=20, local_steps=5, client_rate=0.5, noise_multiplier=1.0)
>>> rates = records.rates([0.5, 1.0, 5.0], **terms)
>>> bool((records.epsilon(rates, **terms) <= [0.5, 1.0, 5.0]).all())
True
"""

from typing import TYPE_CHECKING, Any

from fedspend.accounting.rdp import ORDERS
from fedspend.records.assignment import METHODS, SAFE_METHODS, Overspending, rates
from fedspend.records.curve_fit import Fit, fit_curve
from fedspend.records.noise_choice import Candidate, Suggestion, suggest_noise
from fedspend.records.planning import RecordPlan
from fedspend.records.preferences import PREFERENCES, BoundedMixGauss, BoundedPareto, ThreeLevels
from fedspend.records.spending import CONVERSIONS, OBSERVERS, epsilon
from fedspend.records.terms import Terms
from fedspend.records.verification import verify_records

if TYPE_CHECKING:
    from fedspend.configuration.record_plans import plan_of

__all__ = [
    "CONVERSIONS",
    "METHODS",
    "OBSERVERS",
    "ORDERS",
    "PREFERENCES",
    "SAFE_METHODS",
    "BoundedMixGauss",
    "BoundedPareto",
    "Candidate",
    "Fit",
    "Overspending",
    "RecordPlan",
    "Suggestion",
    "Terms",
    "ThreeLevels",
    "epsilon",
    "fit_curve",
    "plan_of",
    "rates",
    "suggest_noise",
    "verify_records",
]


def __getattr__(name: str) -> Any:
    if name == "plan_of":  # it reads a config, so it is defined in `configuration`
        from fedspend.configuration.record_plans import plan_of

        return plan_of
    raise AttributeError(f"module 'fedspend.records' has no attribute {name!r}")
