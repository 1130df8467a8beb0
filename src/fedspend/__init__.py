"""Differentially private federated learning in which every participant sets a privacy budget.

>>> import fedspend
>>> plan = fedspend.plan([10.0, 20.0, 30.0], delta=1e-5, rounds=25, rate=0.9, saving_rate=0.5)
>>> fedspend.verify(plan).ok
True
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fedspend import accounting as accounting
    from fedspend import design as design
    from fedspend import records as records
    from fedspend.configuration.register import register as register
    from fedspend.planning.making import plan as plan
    from fedspend.planning.plan import Plan as Plan
    from fedspend.publishing.checking import verify_publication as verify_publication
    from fedspend.publishing.writing import publish as publish
    from fedspend.runs.predicting import load_model as load_model
    from fedspend.runs.predicting import predict as predict
    from fedspend.runs.training import train as train
    from fedspend.runs.verifying import verify_run as verify_run
    from fedspend.tuning.entry import tune as tune
    from fedspend.verification.verify import Verification as Verification
    from fedspend.verification.verify import verify as verify

__version__ = "0.1.0"
__all__ = [
    "Plan",
    "Verification",
    "__version__",
    "accounting",
    "design",
    "load_model",
    "plan",
    "predict",
    "publish",
    "records",
    "register",
    "train",
    "tune",
    "verify",
    "verify_publication",
    "verify_run",
]

# Imported on first use, so that `fedspend --help` answers before numpy is loaded.
_HOME = {
    "Plan": "planning.plan",
    "plan": "planning.making",
    "publish": "publishing.writing",
    "register": "configuration.register",
    "load_model": "runs.predicting",
    "predict": "runs.predicting",
    "train": "runs.training",
    "tune": "tuning.entry",
    "Verification": "verification.verify",
    "verify": "verification.verify",
    "verify_publication": "publishing.checking",
    "verify_run": "runs.verifying",
}


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(_imported(_HOME[name]), name)
    if name in ("accounting", "design", "records"):
        return _imported(name)
    raise AttributeError(f"module 'fedspend' has no attribute {name!r}")


def _imported(home: str) -> Any:
    try:
        return import_module(f"fedspend.{home}")
    except ModuleNotFoundError as error:
        from fedspend.basics.extras import explained

        raise explained(error) or error from None


def __dir__() -> list[str]:
    return sorted(__all__)
